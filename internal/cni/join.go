package cni

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tortie-net/tortie/internal/api"
)

// A container that is no pod's has one interface of Calico's, whatever number of networks it is added to: each further one
// gives it a profile, by which policy knows it, and no other address.

// join adds a container to a further network: it returns what the container has, or nil if this is the first network.
func (s *session) join(ctx context.Context) (*types100.Result, error) {
	if !s.plain() {
		return nil, nil
	}
	e := &objectEndpoint{s}
	var first *api.WorkloadEndpoint
	err := again(ctx, func() error {
		own, err := e.list(ctx)
		if first = nil; err != nil || len(own) == 0 || !e.joined(&own[0]) {
			return err
		}
		first = &own[0]
		if slices.Contains(first.Spec.Profiles, s.conf.Name) {
			return nil
		}
		first.Spec.Profiles = append(first.Spec.Profiles, s.conf.Name)
		return s.store.Update(ctx, first)
	})
	if err != nil || first == nil {
		return nil, err
	}
	if err := e.ensureProfile(ctx); err != nil {
		return nil, err
	}
	return s.joinedResult(first)
}

// joined says that an endpoint of this container was made by another network or for another interface.
func (e *objectEndpoint) joined(w *api.WorkloadEndpoint) bool {
	return e.plain() && (!e.ofNetwork(w) || w.Spec.Endpoint != e.ifName)
}

// joinedResult is what the container was given by its first network.
func (s *session) joinedResult(w *api.WorkloadEndpoint) (*types100.Result, error) {
	res := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{
			{Name: w.Spec.InterfaceName},
			{Name: w.Spec.Endpoint, Mac: w.Spec.MAC, Mtu: s.mtu, Sandbox: s.netns},
		},
	}
	for _, text := range w.Spec.IPNetworks {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("WorkloadEndpoint %s: spec.ipNetworks %q is no CIDR", w.Name, text)
		}
		res.IPs = append(res.IPs, &types100.IPConfig{
			Interface: types100.Int(1),
			Address:   net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
		})
	}
	return res, nil
}
