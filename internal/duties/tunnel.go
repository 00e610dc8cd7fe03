package duties

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

// Ranges say where this node's tunnel address may lie.
type Ranges struct {
	// Assign: a new one comes from here. These are the encapsulating pools that select the node.
	Assign []netip.Prefix
	// Keep: the one there is may stay here as long as there is nothing to assign from. These are all encapsulating pools: while
	// one is disabled its pods are still to be reached, also by this node's own packets, which need the address.
	Keep []netip.Prefix
}

func (r Ranges) equal(o Ranges) bool {
	return slices.Equal(r.Assign, o.Assign) && slices.Equal(r.Keep, o.Keep)
}

// allows reports whether an address that is held already may stay.
func (r Ranges) allows(a netip.Addr) bool {
	ranges := r.Assign
	if len(ranges) == 0 {
		ranges = r.Keep
	}
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Tunnel keeps the address of this node's tunnel.
type Tunnel struct {
	ipam *ipam.Client
	node string

	// For which inputs the address was assigned: only a change of them asks the datastore again.
	done bool
	in   TunnelInput
	addr netip.Addr
}

// TunnelInput is what the tunnel's address depends on.
type TunnelInput struct {
	Ranges Ranges
	// UID is the Node's: one that was deleted and created again may have lost its address.
	UID string
	// Noted is the Node's annotation.
	Noted string
}

// NewTunnel returns the keeper of a node's tunnel address.
func NewTunnel(client *ipam.Client, node string) *Tunnel { return &Tunnel{ipam: client, node: node} }

// Address returns the address of tunl0, the invalid one if there is nothing to assign from. It asks the datastore only if
// the input changed.
func (t *Tunnel) Address(ctx context.Context, in TunnelInput) (netip.Addr, error) {
	if t.done && t.in.Ranges.equal(in.Ranges) && t.in.UID == in.UID && (in.Noted == t.in.Noted || in.Noted == text(t.addr)) {
		return t.addr, nil
	}
	addr, err := assignTunnelAddress(ctx, t.ipam, t.node, in.Ranges)
	if err != nil {
		return netip.Addr{}, err
	}
	t.done, t.in, t.addr = true, in, addr
	return addr, nil
}

// text is an address as an annotation has it: empty for the invalid one.
func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// assignTunnelAddress returns the address of tunl0: the one that the node's handle holds already, if it may stay, else a new
// one. If there is nothing to assign from it releases what the handle holds and returns the invalid address.
//
// IPAM is the authority and the annotation on the Node a copy, so that an agent that dies between the two loses nothing.
func assignTunnelAddress(ctx context.Context, client *ipam.Client, node string, ranges Ranges) (netip.Addr, error) {
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
	if len(ranges.Assign) == 0 {
		return netip.Addr{}, nil
	}
	assigned, err := client.Assign(ctx, tunnelRequest(node, handle, ranges.Assign))
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
