package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/names"
)

// tunnelAddressType marks a tunnel address in IPAM; garbage collection knows it by it.
const tunnelAddressType = "ipipTunnelAddress"

// tunnelPools returns the ranges that this node's tunnel address may come from: those of the encapsulating pools that
// select the node. None means that the node needs no tunnel address.
func (s *Snapshot) tunnelPools() []netip.Prefix {
	var cidrs []netip.Prefix
	for _, p := range s.Pools {
		if p.encapsulates() && p.CIDR.Addr().Is4() && p.Enabled && slices.Contains(p.Uses, api.UseTunnel) && p.Nodes.Matches(s.Self.Labels) {
			cidrs = append(cidrs, p.CIDR)
		}
	}
	return cidrs
}

// assignTunnelAddress returns the address of tunl0: the one that the node's handle holds already, if it lies in one of the
// ranges, else a new one. Without ranges it releases what the handle holds and returns the invalid address.
//
// IPAM is the authority and the annotation on the Node a copy, so that an agent that dies between the two loses nothing.
func assignTunnelAddress(ctx context.Context, client *ipam.Client, node string, ranges []netip.Prefix) (netip.Addr, error) {
	handle := names.TunnelHandle(node)
	held, err := client.Addresses(ctx, handle)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("tunnel address: %w", err)
	}
	for _, a := range held {
		if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return a, nil
		}
	}
	if len(held) > 0 {
		if _, err := client.Release(ctx, handle); err != nil {
			return netip.Addr{}, fmt.Errorf("tunnel address: %w", err)
		}
	}
	if len(ranges) == 0 {
		return netip.Addr{}, nil
	}
	assigned, err := client.Assign(ctx, tunnelRequest(node, handle, ranges))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("tunnel address: %w", err)
	}
	return assigned[0].Address, nil
}

func tunnelRequest(node, handle string, ranges []netip.Prefix) ipam.Request {
	pools := make([]string, len(ranges))
	for i, p := range ranges {
		pools[i] = p.String()
	}
	return ipam.Request{
		Owner:   ipam.Owner{Handle: handle, Attrs: map[string]string{"node": node, "type": tunnelAddressType}},
		Host:    node,
		V4:      true,
		PoolsV4: pools,
		Use:     api.UseTunnel,
	}
}
