package desired

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
)

// Evidence decides between nodes that contradict each other: every node writes its own annotations and claims, and any
// may lie. The zero value has no evidence.
type Evidence struct {
	// Known says since when what nodes announce is believed.
	Known Announcements
	// Internal are the InternalIPs of Nodes by name, which their kubelets write and agents cannot.
	Internal map[string][]netip.Addr
	// Blocks are the IPAMBlocks of claims that do not have their pool's block size, and of blocks that several nodes
	// claim.
	Blocks map[netip.Prefix]BlockRecord
	// Inherited are the destinations that an earlier agent of this node has left routes to, with their next hop, if they
	// have one. It is for the first decision.
	Inherited map[netip.Prefix]netip.Addr

	before *Snapshot // the last decision; nil: none
}

// BlockRecord is an IPAMBlock: the node that it is of, and when it was made.
type BlockRecord struct{ Node, Created string }

// Unsure lists the evidence that is needed as long as nodes contradict each other.
type Unsure struct {
	Nodes  []string     // whose InternalIPs decide
	Blocks []BlockClaim // whose IPAMBlocks decide
	// Self is a node that announces an address of this one, as long as its InternalIPs are not read.
	Self string
}

// BlockClaim is a claim of a node's.
type BlockClaim struct {
	Block netip.Prefix
	Node  string
}

// trust grades the evidence that an address is a node's; less is surer.
type trust int

const (
	vouched trust = iota // the address is in its InternalIPs
	unknown              // its InternalIPs have not been read
	denied               // its InternalIPs are others
)

// trusts grades the evidence that an address is a node's.
func (ev *Evidence) trusts(node string, a netip.Addr) trust {
	internal, known := ev.Internal[node]
	switch {
	case !known:
		return unknown
	case slices.Contains(internal, a):
		return vouched
	}
	return denied
}

// claimant is a node whose address or MAC another node announces too.
type claimant struct {
	*api.Node
	trust trust
	since time.Time
}

// refuted is 1 if the address is not in the claimant's InternalIPs.
func (c claimant) refuted() int {
	if c.trust == denied {
		return 1
	}
	return 0
}

// before reports whether c has precedence over o: first a claimant that is not refuted, then the one that was believed
// earlier, then the one with more trust, then the older Node. Nodes are read one by one: that only one of two has been
// read must not change the belief. The Node's name does not count: its creator has chosen it.
func (c claimant) before(o claimant) bool {
	return cmp.Or(
		cmp.Compare(c.refuted(), o.refuted()), c.since.Compare(o.since), cmp.Compare(c.trust, o.trust),
		strings.Compare(c.CreationTimestamp, o.CreationTimestamp), strings.Compare(c.UID, o.UID), strings.Compare(c.Name, o.Name),
	) < 0
}

// checkAddresses leaves each address to one node, the first in precedence of those that announce it. This node is one
// of them.
func (s *Snapshot) checkAddresses(w state.Cluster, ev *Evidence, note func(error)) {
	holders := make(map[netip.Addr]string, len(s.Others)) // the first that was seen, of nearly all addresses the only one
	contested := map[netip.Addr][]string{}
	for _, a := range s.Self.Internal {
		holders[a] = s.Self.Name
	}
	for _, m := range s.Others {
		for _, a := range m.addrs() {
			first, taken := holders[a]
			switch {
			case !taken:
				holders[a] = m.Name
			case len(contested[a]) == 0:
				contested[a] = []string{first, m.Name}
			default:
				contested[a] = append(contested[a], m.Name)
			}
		}
	}
	if len(contested) == 0 {
		return
	}
	nodes := nodesOf(w, s.Self.Name)
	for a, names := range contested {
		s.award(a, names, nodes, ev, note)
	}
	s.Others = slices.DeleteFunc(s.Others, func(m Member) bool { return len(m.addrs()) == 0 })
	slices.Sort(s.Unsure.Nodes)
	s.Unsure.Nodes = slices.Compact(s.Unsure.Nodes)
}

// nodesOf finds Nodes by name, this one with its status.
func nodesOf(w state.Cluster, self string) map[string]*api.Node {
	nodes := make(map[string]*api.Node, len(w.Nodes))
	for i := range w.Nodes {
		nodes[w.Nodes[i].Name] = &w.Nodes[i]
	}
	if nodes[self] == nil {
		nodes[self] = &api.Node{Meta: api.Meta{Name: self}}
	}
	return nodes
}

// award gives an address to one of those that announce it.
func (s *Snapshot) award(a netip.Addr, names []string, nodes map[string]*api.Node, ev *Evidence, note func(error)) {
	key := keyIPv4
	if a.Is6() {
		key = keyIPv6
	}
	rank := func(name string) claimant {
		if name == s.Self.Name { // contested is what its own kubelet says
			return claimant{Node: nodes[name], trust: vouched}
		}
		return claimant{nodes[name], ev.trusts(name, a), ev.Known.since(name, key)}
	}
	first := rank(names[0])
	for _, name := range names[1:] {
		if c := rank(name); c.before(first) {
			first = c
		}
	}
	for _, name := range names {
		if name != s.Self.Name {
			s.Unsure.Nodes = append(s.Unsure.Nodes, name)
		}
		switch trust := ev.trusts(name, a); {
		case first.Name != s.Self.Name || name == first.Name:
		case trust == vouched:
			s.index.twins = map[netip.Addr]string{a: name}
		case trust == unknown:
			s.Unsure.Self = name
		}
		if name != first.Name && name != s.Self.Name {
			s.strip(name, a)
			note(inNode(name, fmt.Errorf(
				"its address %s is that of node %s too, which counts: give it another, or delete it if its machine is gone (kubectl delete node %s)",
				a, first.Name, name)))
		}
	}
}

// strip removes an address from a member.
func (s *Snapshot) strip(name string, a netip.Addr) {
	i, found := slices.BinarySearchFunc(s.Others, name, func(m Member, name string) int { return strings.Compare(m.Name, name) })
	switch m := s.Others[i : i+1]; {
	case !found:
	case m[0].Addr == a:
		m[0].Addr = netip.Addr{}
	default:
		m[0].Addr6 = netip.Addr{}
	}
}

// addrs returns the member's addresses, of one family or of both.
func (m *Member) addrs() []netip.Addr {
	both := [...]netip.Addr{m.Addr, m.Addr6}
	switch {
	case !m.Addr.IsValid() && !m.Addr6.IsValid():
		return nil
	case !m.Addr6.IsValid():
		return both[:1]
	case !m.Addr.IsValid():
		return both[1:]
	}
	return both[:]
}

// checkVTEPs drops VTEPs that are not the node's: an address outside of its own blocks, which no other node can claim,
// the MAC that is derived from another node's name, and a MAC that another node has by precedence.
func (s *Snapshot) checkVTEPs(nodes []api.Node, ev *Evidence, note func(error)) {
	for _, v6 := range []bool{false, true} {
		s.checkMACs(nodes, v6, ev, note)
	}
	for i := range s.Others {
		m := &s.Others[i]
		for _, v := range []*VTEP{&m.VTEP, &m.VTEP6} {
			if v.Addr.IsValid() {
				s.checkEnd(m.Name, v, note)
			}
		}
	}
}

// checkEnd drops a VTEP whose address is not in a block of the node's. The VTEP may be known before the block's claim
// is: that alone is no problem to report.
func (s *Snapshot) checkEnd(node string, v *VTEP, note func(error)) {
	single := netip.PrefixFrom(v.Addr, v.Addr.BitLen())
	_, owner, owned := s.blockOf(single)
	if owned && owner.Node == node {
		return
	}
	if _, inPool := s.poolOf(single); owned || !inPool {
		note(inNode(node, fmt.Errorf(
			"its end of VXLAN tunnels, %s, lies in none of its blocks: its pods are not reached by VXLAN until it has an address of its own",
			v.Addr)))
	}
	*v = VTEP{}
}

// checkMACs does that for the MACs of one address family.
func (s *Snapshot) checkMACs(nodes []api.Node, v6 bool, ev *Evidence, note func(error)) {
	key := keyMAC
	if v6 {
		key = keyMAC6
	}
	derived := map[vxlan.MAC]string{} // filled once a node has another MAC than the derived one
	first := map[vxlan.MAC]claimant{}
	places := map[string]int{}
	var claims []claimant
	for i := range nodes {
		n := &nodes[i]
		place, member := s.index.byName[n.Name]
		if member && s.Others[place].vtepOf(v6).Addr.IsValid() {
			places[n.Name] = place
			claims = append(claims, claimant{Node: n, since: ev.Known.since(n.Name, key)})
		}
	}
	drop := func(name, other string) {
		v := s.Others[places[name]].vtepOf(v6)
		note(inNode(name,
			fmt.Errorf("its end of VXLAN tunnels, %s at %s, has the MAC of node %s: remove the annotation of the wrong one", v.Addr, v.MAC, other)))
		*v = VTEP{}
	}
	first[s.Self.mac(v6)] = claimant{Node: &api.Node{Meta: api.Meta{Name: s.Self.Name}}, trust: vouched - 1}
	for _, c := range claims {
		mac := s.Others[places[c.Name]].vtepOf(v6).MAC
		if mac != vxlan.MACOf(c.Name, v6) {
			if len(derived) == 0 {
				derived = derivedMACs(nodes, s.Self.Name, v6)
			}
			if other, is := derived[mac]; is {
				drop(c.Name, other)
				continue
			}
		}
		before, taken := first[mac]
		switch {
		case !taken:
			first[mac] = c
		case c.before(before):
			drop(before.Name, c.Name)
			first[mac] = c
		default:
			drop(c.Name, before.Name)
		}
	}
}

// derivedMACs are the MACs that follow from all nodes' names.
func derivedMACs(nodes []api.Node, self string, v6 bool) map[vxlan.MAC]string {
	all := make(map[vxlan.MAC]string, len(nodes)+1)
	for i := range nodes {
		all[vxlan.MACOf(nodes[i].Name, v6)] = nodes[i].Name
	}
	all[vxlan.MACOf(self, v6)] = self
	return all
}

func (m *Member) vtepOf(v6 bool) *VTEP {
	if v6 {
		return &m.VTEP6
	}
	return &m.VTEP
}

// mostQuoted bounds how much of an annotation is quoted: it may have 256 KiB, and all agents log it.
const mostQuoted = 200

func cut(text string) string {
	if len(text) <= mostQuoted {
		return text
	}
	return text[:mostQuoted] + "..."
}
