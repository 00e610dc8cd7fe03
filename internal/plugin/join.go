package plugin

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// A container without a pod has one Calico interface, however many networks it is added to. Each further network adds a
// profile, by which policy selects it, and no address.

// join adds a container to a further network, or again to one that it is in. It returns the container's result, or nil
// if the container has no interface. Neither its link nor its addresses change.
func (s *session) join(ctx context.Context) (*types100.Result, error) {
	if !s.plain() {
		return nil, nil
	}
	e := &objectEndpoint{s}
	var first *api.WorkloadEndpoint
	err := again(ctx, func() error {
		own, err := e.list(ctx)
		if first = nil; err != nil || len(own) == 0 || !e.joined(&own[0]) && s.link(&own[0]) == nil {
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
	return s.joinedResult(ctx, first)
}

// joined reports whether an endpoint of this container was made by another network or for another interface.
func (e *objectEndpoint) joined(w *api.WorkloadEndpoint) bool {
	return e.plain() && (!e.ofNetwork(w) || w.Spec.Endpoint != e.ifName)
}

// link returns the container's end of an endpoint's link; nil if it is missing. A container that was started anew, as
// after a crash of the machine, may have its former ID but has another namespace.
func (s *session) link(w *api.WorkloadEndpoint) *netlinkx.Link {
	ns, err := netlinkx.OpenNamespace(s.netns)
	if err != nil {
		return nil
	}
	defer ns.Close()
	inside, err := netlinkx.OpenAt(ns)
	if err != nil {
		return nil
	}
	defer inside.Close()
	link, err := inside.LinkByName(w.Spec.Endpoint)
	if err != nil || link.HardwareAddr.String() != w.Spec.MAC {
		return nil
	}
	return &link
}

// joinedResult returns the result of the container's first network.
func (s *session) joinedResult(ctx context.Context, w *api.WorkloadEndpoint) (*types100.Result, error) {
	inside := &types100.Interface{Name: w.Spec.Endpoint, Mac: w.Spec.MAC, Mtu: s.mtu, Sandbox: s.netns}
	if link := s.link(w); link != nil {
		inside.Mtu = link.MTU
	}
	res := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{{Name: w.Spec.InterfaceName}, inside},
	}
	for _, text := range w.Spec.IPNetworks {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("WorkloadEndpoint %s: spec.ipNetworks %q is no CIDR", w.Name, text)
		}
		res.IPs = append(res.IPs, &types100.IPConfig{Interface: types100.Int(1), Address: ipNet(p)})
	}
	var err error
	res.Routes, err = s.joinedRoutes(ctx, w)
	return res, err
}

// joinedRoutes returns the routes that calico-ipam returned with the container's addresses.
func (s *session) joinedRoutes(ctx context.Context, w *api.WorkloadEndpoint) ([]*types.Route, error) {
	if s.conf.IPAM.Type != calicoIPAM || s.address.IsValid() || len(w.Spec.Profiles) == 0 {
		return nil, nil
	}
	owner := (&inProcess{s}).owner()
	owner.Handle = names.PodHandle(w.Spec.Profiles[0], s.containerID)
	assigned, err := ipam.NewClient(s.store, time.Now).Assigned(ctx, owner)
	return ipamResult(assigned).Routes, err
}
