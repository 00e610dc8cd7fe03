package cni

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/names"
)

// calicoIPAM is the ipam.type that calico serves itself: a second process and a second TLS connection would be most of what an
// ADD costs.
const calicoIPAM = "calico-ipam"

// addressing gives a container its addresses and takes them back.
type addressing interface {
	// add assigns what the container asks for, which it waits for as late as it can. After an error nothing is assigned.
	add(ctx context.Context, wanted func() (wish, error)) (*types100.Result, error)
	// del releases all that the container holds, as far as that may be done. To hold nothing is no error.
	del(ctx context.Context, may clearance) error
}

// clearance is what a release waits for.
type clearance struct {
	unwired func() error // the kernel has nothing of the container: an address must not be free while a pod has it
	noted   func() error // Felix and garbage collection have been told: nor while a pod is said to have it
}

// cleared is the clearance of what nobody was told about.
var cleared = clearance{unwired: func() error { return nil }, noted: func() error { return nil }}

// addressing returns who assigns this container's addresses.
func (s *session) addressing() addressing {
	if s.conf.IPAM.Type == calicoIPAM {
		return &inProcess{s}
	}
	return &delegated{s}
}

// inProcess assigns addresses from blocks of the datastore: calico-ipam, and calico in its place.
type inProcess struct{ *session }

func (p *inProcess) add(ctx context.Context, wanted func() (wish, error)) (*types100.Result, error) {
	unlock, err := p.lockHost(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	want, err := wanted()
	if err != nil {
		return nil, err
	}
	if want.unmanaged != nil {
		return explicitResult(want.unmanaged), nil
	}
	req := p.assignRequest(want)
	assigned, err := ipam.NewClient(p.store, time.Now).Assign(ctx, req)
	if err != nil {
		return nil, err
	}
	p.log.Info("assigned", "handle", req.Handle, "addresses", assigned)
	if want.addresses != nil {
		return explicitResult(want.addresses), nil
	}
	return ipamResult(assigned), nil
}

// timestampFormat is that of the attribute "timestamp": Go's own for a time, as Calico writes it.
const timestampFormat = "2006-01-02 15:04:05.999999999 -0700 MST"

func (p *inProcess) assignRequest(want wish) ipam.Request {
	return ipam.Request{
		Owner: ipam.Owner{
			Handle: p.handle(),
			Attrs: map[string]string{
				"node":      p.node,
				"pod":       p.pod,
				"namespace": p.namespace,
				"timestamp": time.Now().UTC().Format(timestampFormat),
			},
		},
		Host:            p.node,
		V4:              want.v4,
		V6:              want.v6,
		Addresses:       want.addresses,
		PoolsV4:         want.poolsV4,
		PoolsV6:         want.poolsV6,
		Use:             api.UseWorkload,
		NamespaceLabels: want.namespaceLabels,
	}
}

func (p *inProcess) del(ctx context.Context, may clearance) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	return postponable(p.releaseHandles(ctx, may))
}

// releaseHandles frees what the container holds, and if that is nothing, what a Calico before version 3 has left of the pod.
func (p *inProcess) releaseHandles(ctx context.Context, may clearance) error {
	if err := errors.Join(may.unwired(), may.noted()); err != nil {
		return err
	}
	unlock, err := p.lockHost(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	client := ipam.NewClient(p.store, time.Now)
	for _, handle := range []string{p.handle(), names.LegacyPodHandle(p.namespace, p.pod)} {
		freed, err := client.Release(ctx, handle)
		if err != nil {
			return err
		}
		p.log.Info("released", "handle", handle, "addresses", freed)
		if len(freed) > 0 {
			break
		}
	}
	return nil
}

// ipamResult has, for each address, the address under its block's mask, and a route of the same form, as Calico prints it.
func ipamResult(assigned []ipam.Assignment) *types100.Result {
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	for _, a := range assigned {
		n := ipNet(netip.PrefixFrom(a.Address, a.Block.Bits()))
		result.IPs = append(result.IPs, &types100.IPConfig{Address: n})
		result.Routes = append(result.Routes, &types.Route{Dst: n})
	}
	return result
}

// explicitResult has addresses that somebody chose. Calico prints them as /32 or /128 and without routes.
func explicitResult(addrs []netip.Addr) *types100.Result {
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	for _, a := range addrs {
		result.IPs = append(result.IPs, &types100.IPConfig{Address: ipNet(netip.PrefixFrom(a, a.BitLen()))})
	}
	return result
}

// ipNet keeps the host bits, which netip.Prefix.Masked would clear.
func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
