package duties

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam"
)

// TunnelKind holds the differences between the kinds of tunnels that have addresses from IPAM.
type TunnelKind struct {
	// device is the device's name in messages.
	device string
	// handle returns the handle ID of a node's address.
	handle func(node string) string
	// mark is the address's type in IPAM, by which garbage collection recognizes it.
	mark string
	v6   bool
}

// The kinds of tunnels.
var (
	IPIP    = TunnelKind{device: "tunl0", handle: names.TunnelHandle, mark: "ipipTunnelAddress"}
	VXLAN   = TunnelKind{device: "vxlan.calico", handle: names.VXLANHandle, mark: "vxlanTunnelAddress"}
	VXLANv6 = TunnelKind{device: "vxlan-v6.calico", handle: names.VXLANv6Handle, mark: "vxlanV6TunnelAddress", v6: true}

	WireGuard   = TunnelKind{device: "wireguard.cali", handle: names.WireGuardHandle, mark: "wireguardTunnelAddress"}
	WireGuardV6 = TunnelKind{device: "wg-v6.cali", handle: names.WireGuardV6Handle, mark: "wireguardV6TunnelAddress", v6: true}
)

const (
	// doubtTime is for how long after the Node was replaced the address is looked up again. A garbage collector that saw
	// no Node may remove the handle at any moment in that time; the address without a handle is then adopted.
	doubtTime = 5 * time.Minute
	// doubtPause is the pause between these lookups.
	doubtPause = 20 * time.Second
	// takeOverTries bounds how often in a row an address is taken over that garbage collection frees meanwhile.
	takeOverTries = 5
)

// Ranges hold the possible ranges of this node's tunnel address.
type Ranges struct {
	// Assign are the ranges for a new address: the encapsulating pools that select the node.
	Assign []netip.Prefix
	// Keep are the ranges in which an existing address may stay while Assign is empty: all encapsulating pools. Pods of a
	// disabled pool must stay reachable, also from this node, whose own packets need the address.
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

// Tunnel keeps the address of one of this node's tunnels.
//
// IPAM is the authority, by a handle of kind and node, such as ipip-tunnel-addr-NODE; the Node's annotation is a copy.
// So the next agent finds the writes of one that dies between any two of them, and no two nodes can have one address.
type Tunnel struct {
	ipam *ipam.Client
	kind TunnelKind
	node string
	now  func() time.Time

	// The inputs and the time of the last lookup: only a change of the inputs, or doubt, leads to another.
	done   bool
	in     TunnelInput
	looked time.Time
	addr   netip.Addr
	// doubt is the end of the time in which other programs may remove the handle unseen.
	doubt time.Time
	// anew: as far as is known, the address was assigned for an earlier Node.
	anew bool
	// fresh: this agent has assigned the address, and the Node's annotation does not have it yet.
	fresh bool
}

// TunnelInput is the input of the choice of the tunnel's address. After a change of any field the address may have
// another owner.
type TunnelInput struct {
	Ranges Ranges
	// UID is the Node's. It detects a re-created Node, whose former address may already be released, or about to be.
	UID string
	// Known: an agent of this machine has already taken over the addresses for this UID.
	Known bool
	// Noted is the Node's annotation. Users may have changed or removed it.
	Noted string
	// Blocks are this node's: a deleted block takes its addresses with it.
	Blocks []netip.Prefix
	// Unsure: some pools cannot be read. An existing address stays, as it may lie in one of them.
	Unsure bool
}

// NewTunnel returns the keeper of a node's address of a kind.
func NewTunnel(client *ipam.Client, kind TunnelKind, node string, now func() time.Time) *Tunnel {
	return &Tunnel{ipam: client, kind: kind, node: node, now: now}
}

// Address returns the address for the tunnel's device; the zero Addr if there is no range to assign from.
func (t *Tunnel) Address(ctx context.Context, in TunnelInput) (netip.Addr, error) {
	if t.done && in.UID != t.in.UID || !t.done && !in.Known {
		t.doubt, t.anew = t.now().Add(doubtTime), true
	}
	if in.Noted == text(t.addr) {
		t.fresh = false
	}
	if t.holds(in) {
		return t.addr, nil
	}
	addr, err := t.takeOver(ctx, in)
	if errors.Is(err, ipam.ErrForeignHandle) {
		err = t.reclaim(ctx, err)
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("address of %s: %w", t.kind.device, err)
	}
	t.done, t.anew, t.in, t.looked, t.addr = true, false, in, t.now(), addr
	return addr, nil
}

// reclaim removes an IPAMHandle with the name of this node's handle and an ID in another case. Its error informs
// operators; the next lookup finds no handle.
func (t *Tunnel) reclaim(ctx context.Context, why error) error {
	if err := t.ipam.RemoveForeign(ctx, t.owner().Handle); err != nil {
		return fmt.Errorf("%w: %w: delete it", why, err)
	}
	return fmt.Errorf("%w: another program has made an object with the name of this node's handle; it was removed, and the address will be "+
		"looked for again", why)
}

// holds reports that the result of the last lookup still counts.
func (t *Tunnel) holds(in TunnelInput) bool {
	doubtful := t.now().Before(t.doubt) && t.now().Sub(t.looked) >= doubtPause
	return t.done && !doubtful && t.in.UID == in.UID && t.in.Unsure == in.Unsure && t.in.Ranges.equal(in.Ranges) &&
		slices.Equal(t.in.Blocks, in.Blocks) && (in.Noted == t.in.Noted || in.Noted == text(t.addr))
}

// Abandon releases an address that this agent has assigned but could not write on its Node, because the Node is gone:
// nothing would ever release it.
func (t *Tunnel) Abandon(ctx context.Context) error {
	if !t.fresh {
		return nil
	}
	if _, err := t.ipam.Release(ctx, t.owner().Handle); err != nil {
		return fmt.Errorf("address of %s of a node that is gone: %w", t.kind.device, err)
	}
	t.done, t.fresh, t.addr = false, false, netip.Addr{}
	return nil
}

// text returns an address as an annotation has it: empty for the zero Addr.
func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// takeOver is find for the present Node. A garbage collector may have found an address of an earlier Node of this name
// without owner, and be about to free it. Renewing it makes it a new assignment, which the collector leaves. New
// addresses are renewed, too: after the loss of a handle IPAM returns an existing one. An address that is freed again
// and again is left to the next lookup, after a pause.
func (t *Tunnel) takeOver(ctx context.Context, in TunnelInput) (netip.Addr, error) {
	for range takeOverTries {
		a, err := t.find(ctx, in)
		if err != nil || !a.IsValid() || !t.anew {
			return a, err
		}
		if held, err := t.ipam.Renew(ctx, t.owner().Handle, a); err != nil || held {
			return a, err
		} // else the address has been freed since
	}
	return netip.Addr{}, fmt.Errorf("what handle %s holds was freed %d times while it was looked at: it will be tried again",
		t.owner().Handle, takeOverTries)
}

// find returns the address that IPAM has for this node, if it may stay, else a new one. If there is no range to assign
// from it releases all addresses and returns the zero Addr.
func (t *Tunnel) find(ctx context.Context, in TunnelInput) (netip.Addr, error) {
	owner := t.owner()
	held, err := t.ipam.Addresses(ctx, owner.Handle)
	if err != nil {
		return netip.Addr{}, err
	}
	noted, _ := netip.ParseAddr(in.Noted) // the invalid address if the annotation is malformed
	if kept := keepable(held, noted, in); kept.IsValid() {
		return kept, nil
	}
	if err := t.release(ctx, held); err != nil {
		return netip.Addr{}, err
	}
	if adopted, err := t.adopt(ctx, noted, in.Ranges); err != nil || adopted.IsValid() {
		return adopted, err
	}
	if len(in.Ranges.Assign) == 0 {
		_, err := t.ipam.Release(ctx, owner.Handle) // a handle without an address
		return netip.Addr{}, err
	}
	assigned, err := t.ipam.Assign(ctx, t.request(in.Ranges.Assign))
	if err != nil {
		return netip.Addr{}, err
	}
	t.fresh = true
	return assigned[0].Address, nil
}

// keepable returns the held address that may stay; the zero Addr if none may.
func keepable(held []netip.Addr, noted netip.Addr, in TunnelInput) netip.Addr {
	if slices.Contains(held, noted) && in.Ranges.allows(noted) {
		return noted
	}
	if i := slices.IndexFunc(held, in.Ranges.allows); i >= 0 {
		return held[i]
	}
	if len(held) > 0 && in.Unsure {
		return held[0]
	}
	return netip.Addr{}
}

// adopt puts the address in the Node's annotation under the node's handle, if it was assigned without a handle, or the
// handle was lost. An address that must not stay is released with it: nothing else would.
func (t *Tunnel) adopt(ctx context.Context, noted netip.Addr, ranges Ranges) (netip.Addr, error) {
	if !noted.IsValid() {
		return netip.Addr{}, nil
	}
	held, err := t.ipam.Adopt(ctx, t.owner(), noted)
	if err != nil || !held {
		return netip.Addr{}, err
	}
	if ranges.allows(noted) {
		return noted, nil
	}
	return netip.Addr{}, t.release(ctx, []netip.Addr{noted})
}

func (t *Tunnel) release(ctx context.Context, held []netip.Addr) error {
	if len(held) == 0 {
		return nil
	}
	_, err := t.ipam.Release(ctx, t.owner().Handle)
	return err
}

func (t *Tunnel) owner() ipam.Owner {
	return ipam.Owner{Handle: t.kind.handle(t.node), Attrs: map[string]string{"node": t.node, "type": t.kind.mark}}
}

func (t *Tunnel) request(ranges []netip.Prefix) ipam.Request {
	pools := make([]string, len(ranges))
	for i, p := range ranges {
		pools[i] = p.String()
	}
	r := ipam.Request{Owner: t.owner(), Host: t.node, Use: api.UseTunnel}
	if t.kind.v6 {
		r.V6, r.PoolsV6 = true, pools
	} else {
		r.V4, r.PoolsV4 = true, pools
	}
	return r
}
