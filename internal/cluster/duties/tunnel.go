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

// TunnelKind has the differences between the tunnels whose addresses come from IPAM.
type TunnelKind struct {
	// device is for people.
	device string
	// handle is a node's.
	handle func(node string) string
	// mark is the address's type in IPAM; garbage collection knows it by it.
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
	// doubtTime is for how long after its Node was replaced the address is looked at again: who collects garbage may have
	// begun to when there was no Node, and remove the handle at any moment. It leaves an address without a handle, which
	// is adopted.
	doubtTime = 5 * time.Minute
	// doubtPause is how long a look is good for meanwhile.
	doubtPause = 20 * time.Second
	// takeOverTries bounds how often in a row an address is taken over that garbage collection frees meanwhile.
	takeOverTries = 5
)

// Ranges say where this node's tunnel address may lie.
type Ranges struct {
	// Assign: a new one comes from here. These are the encapsulating pools that select the node.
	Assign []netip.Prefix
	// Keep: the one there is may stay here as long as there is nothing to assign from. These are all encapsulating pools:
	// while one is disabled its pods are still to be reached, also by this node's own packets, which need the address.
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
// IPAM is the authority, by the handle of its kind and the node, such as ipip-tunnel-addr-NODE, and the Node's
// annotation a copy. So an agent that dies between any two writes leaves nothing that the next one does not find, and
// no two nodes can have one address.
type Tunnel struct {
	ipam *ipam.Client
	kind TunnelKind
	node string
	now  func() time.Time

	// For which inputs the address was looked up, and when: only a change of them, or doubt, asks the datastore again.
	done   bool
	in     TunnelInput
	looked time.Time
	addr   netip.Addr
	// doubt is until when others may take the handle away unseen.
	doubt time.Time
	// anew: the Node is another than the one for which the address was assigned, as far as is known.
	anew bool
	// fresh: it was assigned by this agent, and the Node does not say it yet.
	fresh bool
}

// TunnelInput is the input of the choice of the tunnel's address. A change of any of it may mean that the address is
// another's now.
type TunnelInput struct {
	Ranges Ranges
	// UID is the Node's: what belonged to one that was deleted may have been collected, or be about to.
	UID string
	// Known: an agent of this machine has taken over what belongs to the Node of this UID before.
	Known bool
	// Noted is the Node's annotation. Users may have changed or removed it.
	Noted string
	// Blocks are this node's: a block that is gone takes its addresses with it.
	Blocks []netip.Prefix
	// Unsure: there are pools that cannot be read. A held address stays, as it may be one of theirs.
	Unsure bool
}

// NewTunnel returns the keeper of a node's address of a kind.
func NewTunnel(client *ipam.Client, kind TunnelKind, node string, now func() time.Time) *Tunnel {
	return &Tunnel{ipam: client, kind: kind, node: node, now: now}
}

// Address returns the address of the tunnel's device, the invalid one if there is nothing to assign from.
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

// reclaim removes an IPAMHandle with the name of this node's handle and an ID in another case. The error that it
// returns tells operators of it; the next look finds that there is no handle.
func (t *Tunnel) reclaim(ctx context.Context, why error) error {
	if err := t.ipam.RemoveForeign(ctx, t.owner().Handle); err != nil {
		return fmt.Errorf("%w: %w: delete it", why, err)
	}
	return fmt.Errorf("%w: another program has made an object with the name of this node's handle; it was removed, and the address will be "+
		"looked for again", why)
}

// holds reports that nothing has happened since the last look that could have changed its result.
func (t *Tunnel) holds(in TunnelInput) bool {
	doubtful := t.now().Before(t.doubt) && t.now().Sub(t.looked) >= doubtPause
	return t.done && !doubtful && t.in.UID == in.UID && t.in.Unsure == in.Unsure && t.in.Ranges.equal(in.Ranges) &&
		slices.Equal(t.in.Blocks, in.Blocks) && (in.Noted == t.in.Noted || in.Noted == text(t.addr))
}

// Abandon releases an address that this agent has assigned and could not write on its Node, because that is gone:
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

// text is an address as an annotation has it: empty for the invalid one.
func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// takeOver is find for the present Node. A garbage collector may have found that what was assigned for an earlier Node
// of this name has no owner, and be about to free it; it becomes a new assignment, which the collector leaves. So does
// one that is new: where the handle was lost, IPAM returns what it finds. What others free each time is left to the
// next look, which comes after a pause.
func (t *Tunnel) takeOver(ctx context.Context, in TunnelInput) (netip.Addr, error) {
	for range takeOverTries {
		a, err := t.find(ctx, in)
		if err != nil || !a.IsValid() || !t.anew {
			return a, err
		}
		if held, err := t.ipam.Renew(ctx, t.owner().Handle, a); err != nil || held {
			return a, err
		} // else it was freed since it was found
	}
	return netip.Addr{}, fmt.Errorf("what handle %s holds was freed %d times while it was looked at: it will be tried again",
		t.owner().Handle, takeOverTries)
}

// find returns the address that IPAM has for this node, if it may stay, else a new one. If there is nothing to assign
// from it releases what there is and returns the invalid address.
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
		_, err := t.ipam.Release(ctx, owner.Handle) // one that was written, and no address for it
		return netip.Addr{}, err
	}
	assigned, err := t.ipam.Assign(ctx, t.request(in.Ranges.Assign))
	if err != nil {
		return netip.Addr{}, err
	}
	t.fresh = true
	return assigned[0].Address, nil
}

// keepable returns the address that may stay of those that are held, the invalid one if none may.
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

// adopt takes the address that the Node says under the node's handle, if it was assigned in a way that leaves no
// handle, or the handle was lost. What must not stay is released with it: no other part would.
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
