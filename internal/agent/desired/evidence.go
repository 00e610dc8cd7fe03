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
	// Known has the time since which each node's announcement is believed.
	Known Announcements
	// Internal are the InternalIPs of Nodes by name, which their kubelets write and agents cannot.
	Internal map[string][]netip.Addr
	// Blocks are the IPAMBlocks of claims that differ from their pool's block size, and of blocks that several nodes
	// claim.
	Blocks map[netip.Prefix]BlockRecord
	// Inherited are the destinations of routes that an earlier agent of this node left, with the next hop, if any. The
	// first decision uses it.
	Inherited map[netip.Prefix]netip.Addr

	before *Snapshot // the last decision; nil: none
}

// BlockRecord is the node and the creation time of an IPAMBlock.
type BlockRecord struct{ Node, Created string }

// Unsure lists the evidence that is needed while nodes contradict each other.
type Unsure struct {
	Nodes  []string     // their InternalIPs decide
	Blocks []BlockClaim // their IPAMBlocks decide
	// Self is a node that announces an address of this node, as long as its InternalIPs are not read.
	Self string
}

// BlockClaim is a block and a node that claims it.
type BlockClaim struct {
	Block netip.Prefix
	Node  string
}

// trust grades the evidence that an address belongs to a node; less is surer.
type trust int

const (
	vouched trust = iota // the address is in its InternalIPs
	unknown              // its InternalIPs have not been read
	denied               // its InternalIPs are others
)

// trusts grades the evidence that an address belongs to a node.
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

// claimant is a node with an address or MAC that another node announces too.
type claimant struct {
	*api.Node
	trust trust
	since time.Time
}

// refuted returns 1 if the address is not in the claimant's InternalIPs.
func (c claimant) refuted() int {
	if c.trust == denied {
		return 1
	}
	return 0
}

// before reports whether c has precedence over o: first a claimant that is not refuted, then the claimant believed
// earlier, then more trust, then the older Node. Nodes are read one by one: the belief must not change when only one of
// two has been read. The Node's name hardly counts: its creator has chosen it.
func (c claimant) before(o claimant) bool {
	return cmp.Or(
		cmp.Compare(c.refuted(), o.refuted()), c.since.Compare(o.since), cmp.Compare(c.trust, o.trust),
		strings.Compare(c.CreationTimestamp, o.CreationTimestamp), strings.Compare(c.UID, o.UID), strings.Compare(c.Name, o.Name),
	) < 0
}

// checkAddresses assigns each address to one node, the claimant with precedence. This node is a claimant too.
func (s *Snapshot) checkAddresses(w state.Cluster, ev *Evidence, note func(error)) {
	holders := make(map[netip.Addr]string, len(s.Others)) // the first seen; nearly always the only one
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

// nodesOf returns the Nodes by name, with an empty one for this node if it is not among them.
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

// award assigns an address to one of the nodes that announce it.
func (s *Snapshot) award(a netip.Addr, names []string, nodes map[string]*api.Node, ev *Evidence, note func(error)) {
	key := keyIPv4
	if a.Is6() {
		key = keyIPv6
	}
	rank := func(name string) claimant {
		if name == s.Self.Name { // contested addresses are in its own InternalIPs
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

// checkVTEPs drops VTEPs that do not belong to the node: an address outside of its own blocks, the MAC derived from
// another node's name, and a MAC that another node has by precedence.
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

// checkEnd drops a VTEP with an address outside of the node's blocks. The VTEP may be known before the block's claim;
// that alone is no problem to report.
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

// checkMACs drops the VTEPs of one address family that have another node's MAC.
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

// derivedMACs returns the node by the MAC that is derived from its name.
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
