package peering

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/bgp"
)

// holds reports whether the form gives n sessions.
func (f *form) holds(n *Node) bool {
	switch {
	case f.global:
		return true
	case f.node != "":
		return f.node == n.Name
	}
	return f.nodes.Matches(n.Labels)
}

// means reports whether node n, by its address addr, is a peer of the form.
func (f *form) means(n *Node, addr netip.Addr) bool {
	if f.addr.IsValid() {
		return f.addr == addr
	}
	return f.peers.Matches(n.Labels)
}

// end is one end of a session between two nodes.
type end struct {
	node *Node
	addr netip.Addr
}

// between returns the forms that give from a session with to, the first of which counts. forms has the global forms
// first, as Calico does.
func between(forms []*form, from, to end) []*form {
	var found []*form
	for _, f := range forms {
		if f.holds(from.node) && f.means(to.node, to.addr) {
			found = append(found, f)
		}
	}
	return found
}

// decider finds the sessions of one node.
type decider struct {
	in    *Input
	forms []*form
	// own has the forms that give this node sessions; it only saves time.
	own []*form
	// taken has the sessions decided so far, by the peer's address; says are the remarks on them.
	taken map[netip.Addr]found
	says  remarks
}

func (d *decider) asn(n *Node) uint32 { return cmp.Or(n.ASN, d.in.ASN) }

func (d *decider) port(n *Node) uint16 { return cmp.Or(n.Port, d.in.Port) }

// shows returns the AS number of node n in a session that n has by these forms.
func (d *decider) shows(n *Node, by []*form) uint32 {
	if len(by) > 0 && by[0].local != 0 {
		return by[0].local
	}
	return d.asn(n)
}

// back returns the form by which node n gets a session in return for another node's; nil if there is none. A peer given
// by address is node n only if AS number and port are also n's.
func (d *decider) back(n *Node, theirs []*form) *form {
	for _, f := range theirs {
		if f.manual {
			continue
		}
		if !f.addr.IsValid() || f.asn == d.asn(n) && (f.port == 0 || f.port == d.port(n)) {
			return f
		}
	}
	return nil
}

// found is a session with the reason for it.
type found struct {
	peer   bgp.Peer
	source Source
	form   *form // nil: the mesh's
}

// meets finds the sessions of this node with another in one family, the one that counts first. There are several only
// if several BGPPeers give one. Nil: there is no session.
func (d *decider) meets(self, other end) []found {
	ours, theirs := between(d.own, self, other), between(d.forms, other, self)
	source := Source{Node: other.node.Name}
	peer := bgp.Peer{Addr: other.addr, ASN: d.shows(other.node, theirs), Port: d.port(other.node), From: self.addr,
		MaxPrefixes: d.in.MaxPrefixes}
	var sessions []found
	for _, f := range ours {
		p, s := peer, source
		s.Peer, s.Global = f.name, f.global
		if f.addr.IsValid() {
			p.ASN, p.Port = d.asnOf(f, other.node, p.ASN), cmp.Or(f.port, p.Port)
		}
		p.Passive = f.global && bgp.Waits(self.addr, other.addr)
		p.LocalASN = f.local
		sessions = append(sessions, found{d.with(p, f, other.node), s, f})
	}
	if len(sessions) > 0 {
		return sessions
	}
	if f := d.back(self.node, theirs); f != nil {
		source.Peer, source.Global, source.Reverse = f.name, f.global, true
		return []found{{d.with(peer, f, other.node), source, f}}
	}
	if !d.inMesh(other.node) {
		return nil
	}
	peer.Passive = bgp.Waits(self.addr, other.addr)
	peer.Password, peer.RestartTime, peer.BFD = d.in.Mesh.Password, d.in.Mesh.Restart, d.in.Mesh.BFD
	return []found{{peer, source, nil}}
}

// reflectedPrefixes multiplies the prefix limit for a reflector in the node's AS: it passes on the announcements of all
// nodes.
const reflectedPrefixes = 20

// asnOf returns the AS number of a node that a form gives by its address: the number that the node shows this one,
// unless the form has a wrong one. Then the form counts, and the session will not come up.
func (d *decider) asnOf(f *form, other *Node, shown uint32) uint32 {
	if f.asn == d.asn(other) || f.asn == shown {
		return shown
	}
	d.says.about(f.name,
		fmt.Sprintf("spec.asNumber is %d, and node %s is in AS %d: set it to %d", f.asn, other.Name, shown, shown), f.addr)
	return f.asn
}

// with returns a session with a form's options. other is nil if the peer is not a node.
func (d *decider) with(p bgp.Peer, f *form, other *Node) bgp.Peer {
	inside := p.ASN == cmp.Or(p.LocalASN, d.asn(&d.in.Self))
	p.Password, p.AO, p.RestartTime, p.Keepalive, p.BFD = f.password, f.ao, f.restart, f.keepalive, f.bfd
	if 3*f.keepalive > bgp.DefaultHoldTime {
		p.HoldTime = 3 * f.keepalive
	}
	p.AllowOwnASN, p.TTLSecurity, p.NextHop = f.ownASN, f.hops, f.nextHop
	if f.keepOutside && !inside {
		p.NextHop = bgp.NextHopKeep
	}
	if f.unbound {
		p.From = netip.Addr{}
	}
	p.Client = inside && d.client(other)
	if inside && other != nil && other.Reflector {
		p.MaxPrefixes = reflectedPrefixes * cmp.Or(p.MaxPrefixes, bgp.DefaultMaxPrefixes)
	}
	return p
}

// client reports whether a peer in this node's AS is a client of this node: this node is a reflector, and the peer is
// not one of the same cluster.
func (d *decider) client(other *Node) bool {
	self := &d.in.Self
	return self.Reflector && self.ClusterID.IsValid() && (other == nil || other.ClusterID != self.ClusterID)
}

// inMesh reports whether this node has the mesh's session with another.
func (d *decider) inMesh(other *Node) bool {
	return d.in.Mesh.On && !d.in.Mesh.Unknown && !d.in.Self.Reflector && !other.Reflector
}

// externalPeers finds the sessions of this node with peers that are not nodes; if several are with one peer, the one
// that counts comes first. isNode reports whether an address is a node's, this node's included.
func (d *decider) externalPeers(isNode func(netip.Addr) bool) []found {
	var sessions []found
	for _, f := range d.own {
		if !f.addr.IsValid() || isNode(f.addr) {
			continue
		}
		from := d.in.Self.in(f.addr)
		if !from.IsValid() && f.addr.Zone() == "" {
			if !f.global { // nodes may have different families
				d.says.about(f.name, "this node has no address of its family: leave the node out, or give it one", f.addr)
			}
			continue
		}
		p := bgp.Peer{Addr: f.addr, ASN: f.asn, LocalASN: f.local, Port: cmp.Or(f.port, bgp.DefaultPort), From: from,
			MaxPrefixes: d.in.MaxPrefixes}
		sessions = append(sessions, found{d.with(p, f, nil), Source{Peer: f.name, Global: f.global}, f})
	}
	return sessions
}

// sortForms sorts forms by precedence.
func sortForms(forms []*form) {
	slices.SortFunc(forms, func(a, b *form) int {
		if a.global != b.global {
			if a.global {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.name, b.name)
	})
}
