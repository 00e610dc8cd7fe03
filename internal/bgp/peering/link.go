package peering

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/wire"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// Learns reports whether a peer's address stands for the router on its link, whose own address is learned.
func Learns(peer netip.Addr) bool { return peer.Zone() != "" && peer.WithZone("") == wire.AnyRouter }

// checkPeer returns an error for an address that cannot be a peer's. A link-local address needs a zone, another address
// must not have one.
func checkPeer(a netip.Addr) error {
	zone := a.Zone()
	switch near := wire.LinkLocal(a); {
	case !near && zone != "":
		return fmt.Errorf("only link-local addresses have a zone: remove %%%s", zone)
	case !near:
		return checkUnicast(a)
	case zone == "":
		return fmt.Errorf("add the interface: %s%%eth0", a)
	}
	if err := netlinkx.CheckLinkName(zone); err != nil {
		return fmt.Errorf("use the name of an interface as the zone: %w", err)
	}
	return nil
}

// onLink handles the fields that have another meaning for a peer on a link: the peer is one hop away, and the session
// is between link-local addresses.
func (r *resolver) onLink() {
	if r.form.addr.Zone() == "" {
		return
	}
	r.form.unbound = true
	if r.spec.SourceAddress == "UseNodeIP" {
		r.note("spec.sourceAddress UseNodeIP has no effect: this node's end is its link-local address on %s: remove it", r.form.addr.Zone())
	}
	if r.form.hops > 1 {
		r.note("spec.ttlSecurity %d: %s is one hop away: use 1, which is in force", r.form.hops, r.spec.PeerIP)
		r.form.hops = 1
	}
}

// Link is an interface of this node.
type Link struct {
	// Router is the address, with its zone, of the router on the interface; it may be invalid where no peer is learned.
	// Why is the reason why it is invalid, or a problem of a valid one.
	Router netip.Addr
	Why    string
}

// Unresolved is a session whose peer has no address yet, or is on an interface that this node does not have.
type Unresolved struct {
	Peer bgp.Peer
	Why  string
}

// Interfaces returns the interfaces in the peers' addresses, true if the router on it must be learned; nil: none.
func (d *Decision) Interfaces() map[string]bool {
	var all map[string]bool
	for _, p := range d.Peers {
		zone := p.Addr.Zone()
		if zone == "" {
			continue
		}
		if all == nil {
			all = map[string]bool{}
		}
		all[zone] = all[zone] || Learns(p.Addr)
	}
	return all
}

// On returns the decision for a node with links, which are those of Interfaces that exist. A peer that stands for a
// router gets the router's address. Without one the peer is unresolved. So is a peer on a missing interface, unless its
// BGPPeer is for all nodes, which need not have the same interfaces.
func (d Decision) On(links map[string]Link) Decision {
	if d.Interfaces() == nil {
		return d
	}
	out := d
	out.Peers = make([]bgp.Peer, 0, len(d.Peers))
	out.Sources, out.Import, out.Export, out.Aggregations = maps.Clone(d.Sources), maps.Clone(d.Import), maps.Clone(d.Export),
		maps.Clone(d.Aggregations)
	for _, p := range d.Peers {
		zone := p.Addr.Zone()
		link, there := links[zone]
		switch {
		case zone == "" || there && !Learns(p.Addr):
			out.Peers = append(out.Peers, p)
		case !there && d.Sources[p.Addr].Global:
			out.drop(p.Addr)
			delete(out.Sources, p.Addr)
		case !there:
			out.drop(p.Addr)
			out.Unresolved = append(out.Unresolved,
				Unresolved{p, fmt.Sprintf("this node has no interface %s: make it, or leave the node out of the BGPPeer's nodes", zone)})
		case !link.Router.IsValid():
			out.drop(p.Addr)
			out.Unresolved = append(out.Unresolved, Unresolved{p, link.Why})
		default:
			if link.Why != "" {
				out.Problems = append(slices.Clip(out.Problems), inPeer(d.Sources[p.Addr].Peer, errors.New(link.Why)))
			}
			out.learned(p, link.Router)
		}
	}
	slices.SortFunc(out.Peers, func(a, b bgp.Peer) int { return a.Addr.Compare(b.Addr) })
	return out
}

// learned adds a peer whose address was learned, unless another BGPPeer has a session with that address.
func (d *Decision) learned(p bgp.Peer, router netip.Addr) {
	if other, taken := d.Sources[router]; taken {
		err := fmt.Errorf("peer %s: it is %s, which BGPPeer %s gives, and counts: remove one of them", p.Addr, router, other.Peer)
		d.Problems = append(slices.Clip(d.Problems), inPeer(d.Sources[p.Addr].Peer, err))
		d.drop(p.Addr)
		delete(d.Sources, p.Addr)
		return
	}
	rename(d.Sources, p.Addr, router)
	rename(d.Import, p.Addr, router)
	rename(d.Export, p.Addr, router)
	rename(d.Aggregations, p.Addr, router)
	p.Addr = router
	d.Peers = append(d.Peers, p)
}

// drop removes the settings of a session that is not possible.
func (d *Decision) drop(peer netip.Addr) {
	delete(d.Import, peer)
	delete(d.Export, peer)
	delete(d.Aggregations, peer)
}

func rename[V any](m map[netip.Addr]V, from, to netip.Addr) {
	if v, ok := m[from]; ok {
		m[to] = v
		delete(m, from)
	}
}
