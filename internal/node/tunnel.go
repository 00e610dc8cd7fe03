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

// tunnelRanges say where this node's tunnel address may lie.
type tunnelRanges struct {
	// assign: a new one comes from here. These are the encapsulating pools that select the node.
	assign []netip.Prefix
	// keep: the one there is may stay here as long as there is nothing to assign from. These are all encapsulating pools: while
	// one is disabled its pods are still to be reached, also by this node's own packets, which need the address.
	keep []netip.Prefix
}

func (r tunnelRanges) equal(o tunnelRanges) bool {
	return slices.Equal(r.assign, o.assign) && slices.Equal(r.keep, o.keep)
}

// allows reports whether an address that is held already may stay.
func (r tunnelRanges) allows(a netip.Addr) bool {
	ranges := r.assign
	if len(ranges) == 0 {
		ranges = r.keep
	}
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

func (s *Snapshot) tunnelRanges() tunnelRanges {
	var r tunnelRanges
	for _, p := range s.Pools {
		if !p.encapsulates() || !p.CIDR.Addr().Is4() {
			continue
		}
		r.keep = append(r.keep, p.CIDR)
		if p.Enabled && slices.Contains(p.Uses, api.UseTunnel) && p.Nodes.Matches(s.Self.Labels) {
			r.assign = append(r.assign, p.CIDR)
		}
	}
	return r
}

// assignTunnelAddress returns the address of tunl0: the one that the node's handle holds already, if it may stay, else a new
// one. If there is nothing to assign from it releases what the handle holds and returns the invalid address.
//
// IPAM is the authority and the annotation on the Node a copy, so that an agent that dies between the two loses nothing.
func assignTunnelAddress(ctx context.Context, client *ipam.Client, node string, ranges tunnelRanges) (netip.Addr, error) {
	handle := names.TunnelHandle(node)
	held, err := client.Addresses(ctx, handle)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("tunnel address: %w", err)
	}
	if i := slices.IndexFunc(held, ranges.allows); i >= 0 {
		return held[i], nil
	}
	if len(held) > 0 {
		if _, err := client.Release(ctx, handle); err != nil {
			return netip.Addr{}, fmt.Errorf("tunnel address: %w", err)
		}
	}
	if len(ranges.assign) == 0 {
		return netip.Addr{}, nil
	}
	assigned, err := client.Assign(ctx, tunnelRequest(node, handle, ranges.assign))
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
