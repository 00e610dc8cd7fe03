package desired

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

// takes returns what a route to a prefix of a pool would take away from the network between the nodes, whatever pool,
// block or claim it follows from; empty if nothing. A route that is less specific than the subnet of an address takes
// nothing from it.
func (s *Snapshot) takes(p netip.Prefix, hop netip.Addr) string {
	if s.isSelf(hop) {
		return fmt.Sprintf("its next hop %s is this node itself", hop)
	}
	if s.leadsAway(p, hop) {
		return fmt.Sprintf("it holds its own next hop %s", hop)
	}
	for _, at := range s.local().subnets {
		switch {
		case hop == broadcast(at.prefix): // the kernel rejects it, and the pass would fail
			return fmt.Sprintf("its next hop %s is the broadcast address of the subnet %s", hop, at.prefix)
		case at.prefix.IsSingleIP() || !inside(p, at.prefix):
		case p == at.prefix:
			return fmt.Sprintf("it is the subnet %s that this node is in, by %s", at.prefix, at.link)
		case !at.prefix.Contains(hop):
			return fmt.Sprintf("it lies in the subnet %s that this node is in, by %s, and its next hop does not", at.prefix, at.link)
		}
	}
	for _, known := range []struct {
		addrs []netip.Addr
		what  string
	}{{s.Self.addrs(), "this node's address"}, {s.Self.APIServer, "the API server's address"}, {s.Self.Gateways, "a gateway of this host"}} {
		for _, a := range known.addrs {
			if s.leadsAway(p, a) {
				return fmt.Sprintf("it holds %s %s", known.what, a)
			}
		}
	}
	if i := slices.IndexFunc(s.ServiceRanges, p.Overlaps); i >= 0 {
		return fmt.Sprintf("it overlaps %s, the addresses of services, which each node serves itself", s.ServiceRanges[i])
	}
	return s.takesMember(p)
}

// broadcast returns the last address of an IPv4 subnet; invalid if the subnet has no broadcast address.
func broadcast(p netip.Prefix) netip.Addr {
	if !p.Addr().Is4() || p.Bits() > 30 {
		return netip.Addr{}
	}
	a := p.Addr().As4()
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])|1<<(32-p.Bits())-1)
	return netip.AddrFrom4(a)
}

// leadsAway reports whether a route to a prefix would catch packets to an address: the prefix contains it, and no more
// specific subnet of this node does.
func (s *Snapshot) leadsAway(p netip.Prefix, a netip.Addr) bool {
	return p.Contains(a) && !slices.ContainsFunc(s.local().subnets, func(at Subnet) bool {
		return at.prefix.Bits() > p.Bits() && at.prefix.Contains(a) && !at.prefix.IsSingleIP()
	})
}

// takesMember is takes for other nodes' addresses. An address that a node announces does not stop a route to another
// node's block unless the address is certain.
func (s *Snapshot) takesMember(p netip.Prefix) string {
	block, _, owned := s.blockOf(p)
	if a, ok := s.index.covered[block]; owned && ok && s.leadsAway(p, a) {
		return fmt.Sprintf("it holds the address %s of a node", a)
	}
	if owned {
		return ""
	}
	for i, _ := slices.BinarySearchFunc(s.index.addrs, p.Addr(), netip.Addr.Compare); i < len(s.index.addrs) &&
		p.Contains(s.index.addrs[i]); i++ {
		if s.leadsAway(p, s.index.addrs[i]) {
			return fmt.Sprintf("it holds the address %s of a node", s.index.addrs[i])
		}
	}
	return ""
}

// coverMembers finds blocks that contain an address of another node than their owner. The earlier of the two counts: a
// kubelet may report any address for its Node, and must not end routes to others' blocks that way.
func (s *Snapshot) coverMembers(ev *Evidence, note func(error)) {
	s.index.covered = map[netip.Prefix]netip.Addr{}
	for i := range s.Others {
		m := &s.Others[i]
		for _, a := range m.addrs() {
			single := netip.PrefixFrom(a, a.BitLen())
			if _, in := s.poolOf(single); !in {
				continue
			}
			block, owner, owned := s.blockOf(single)
			if !owned || owner.Node == m.Name {
				continue
			}
			s.Unsure.Nodes = append(s.Unsure.Nodes, m.Name)
			if ev.trusts(m.Name, a) != denied && !ev.led(block, owner.Node) {
				s.index.covered[block] = a
				continue
			}
			note(inNode(m.Name,
				fmt.Errorf("its address %s lies in block %s of node %s, which counts: give it an address outside of all pools", a, block, owner.Node)))
		}
	}
}

// led reports whether a node's block had routes before.
func (ev *Evidence) led(block netip.Prefix, node string) bool {
	if ev.before == nil {
		_, inherited := ev.Inherited[block]
		return inherited
	}
	_, covered := ev.before.index.covered[block]
	return !covered && ev.before.Owners[block].Node == node
}

// had reports whether a block was known as a node's before.
func (s *Snapshot) had(ev *Evidence, block netip.Prefix, node string) bool {
	if ev.before != nil {
		return ev.before.Owners[block].Node == node || node == s.Self.Name && ev.before.owns(block)
	}
	hop, inherited := ev.Inherited[block]
	if node == s.Self.Name {
		return inherited && !hop.IsValid() // an own block is unreachable as a whole
	}
	m, ok := s.Member(node)
	return ok && hop.IsValid() && (hop == m.In(hop) || hop == m.vtepIn(hop).Addr)
}

// Meets reports whether pools share addresses with networks that this node is in.
func (s *Snapshot) Meets() bool {
	return slices.ContainsFunc(s.Pools, func(p Pool) bool {
		return slices.ContainsFunc(s.local().subnets, func(at Subnet) bool { return p.CIDR.Overlaps(at.prefix) })
	})
}

// CheckPools returns problems for pools that share addresses with the network between the nodes. Their other addresses
// are usable.
func (s *Snapshot) CheckPools() (problems []error) {
	for _, p := range s.Pools {
		ranges := s.ServiceRanges
		if p.servicesOnly() { // overlap is how its addresses are announced
			ranges = nil
		}
		if what := s.shares(p.CIDR, ranges); what != "" {
			problems = append(problems, InObject((*api.IPPool)(nil).ResourceType(), api.Meta{Name: p.Name, UID: p.UID},
				fmt.Errorf("spec.cidr %s shares addresses with %s: nothing that would take these away becomes a route: use a range that is not in use",
					p.CIDR, what)))
		}
	}
	return problems
}

// shares describes a network, an address or one of the ranges with which a pool shares addresses; empty if there is
// none.
func (s *Snapshot) shares(pool netip.Prefix, ranges []netip.Prefix) string {
	for _, at := range s.local().subnets {
		if pool.Overlaps(at.prefix) {
			return fmt.Sprintf("%s, which this node is in by %s", at.prefix, at.link)
		}
	}
	if i := slices.IndexFunc(ranges, pool.Overlaps); i >= 0 {
		return fmt.Sprintf("%s, the addresses of services", ranges[i])
	}
	if i := slices.IndexFunc(s.Self.APIServer, pool.Contains); i >= 0 {
		return fmt.Sprintf("the API server's address %s", s.Self.APIServer[i])
	}
	if i, _ := slices.BinarySearchFunc(s.index.addrs, pool.Addr(), netip.Addr.Compare); i < len(s.index.addrs) &&
		pool.Contains(s.index.addrs[i]) {
		return fmt.Sprintf("the address %s of a node", s.index.addrs[i])
	}
	return ""
}
