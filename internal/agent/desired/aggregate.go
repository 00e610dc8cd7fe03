package desired

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/bgp/policy"
)

// Aggregate decides what routers are announced in place of blocks, given the paths that BGP has learned. It reports
// whether that is new, and which prefixes cannot be used: in those the blocks are announced.
//
// A node that announces an aggregate drops packets for what has no longer route, so that it must not hold addresses
// that lead anywhere else: pods' pools must fill it. And it gets packets for the blocks of all nodes, which it must not
// send back to the router.
func (j *Judge) Aggregate(learned []bgp.Path) (changed bool, problems []error) {
	s, before := j.Snapshot, j.Aggregates
	s.Aggregates = make(map[netip.Addr]policy.Aggregates, len(s.Peering.Aggregations))
	said, unfit := map[string]error{}, map[netip.Prefix]string{}
	for i := range s.Peering.Peers {
		peer := &s.Peering.Peers[i]
		by, name := s.Peering.Aggregations[peer.Addr], s.Peering.Sources[peer.Addr].Peer
		for _, p := range s.candidates(by, peer.Addr) {
			why, known := unfit[p]
			if !known {
				why = j.unfit(p)
				unfit[p] = why
			}
			if why != "" {
				err := fmt.Errorf("annotation %s %s: %s %s: it is not announced", api.AnnotationAggregate, by, p, why)
				said[name+" "+p.String()] = &peering.Problem{Kind: (*api.BGPPeer)(nil).ResourceType(), Name: name, Err: err}
				continue
			}
			s.Aggregates[peer.Addr] = s.withAggregate(s.Aggregates[peer.Addr], p)
		}
		for i := range s.Aggregates[peer.Addr] {
			a := &s.Aggregates[peer.Addr][i]
			a.Live = s.stands(*a, peer, learned)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(said)) {
		problems = append(problems, said[key])
	}
	return !maps.EqualFunc(before, s.Aggregates, slices.Equal[policy.Aggregates]), s.problemsWith(problems)
}

// liveAggregates are the prefixes that some peer is announced in place of blocks, in ascending order.
func (s *Snapshot) liveAggregates() (all []netip.Prefix) {
	for _, of := range s.Aggregates {
		for _, a := range of {
			if a.Live {
				all = append(all, a.Prefix)
			}
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// candidates are the prefixes that an aggregation is about and that are larger than the blocks in them, the largest
// first.
func (s *Snapshot) candidates(by peering.Aggregation, peer netip.Addr) (all []netip.Prefix) {
	var from []netip.Prefix
	switch by {
	case peering.ByPool:
		from = s.PoolRanges()
	case peering.ByAdvertisement:
		for _, t := range s.Peering.Tags {
			from = append(from, t.Prefix)
		}
	}
	for _, p := range from {
		if _, _, inBlock := s.blockOf(p); (p.Addr().Is4() == peer.Is4() || peer.Zone() != "") && !inBlock && s.holdsBlocks(p) {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return cmp.Or(a.Bits()-b.Bits(), a.Compare(b)) })
	return slices.Compact(all)
}

// holdsBlocks reports that there may be blocks that are smaller than a prefix in it.
func (s *Snapshot) holdsBlocks(p netip.Prefix) bool {
	return slices.ContainsFunc(s.Pools,
		func(pool Pool) bool { return pool.CIDR.Overlaps(p) && p.Bits() < pool.BlockBits && s.announced(&pool) })
}

// announced reports that blocks of a pool are announced: nodes have some, or may have.
func (s *Snapshot) announced(pool *Pool) bool {
	if pool.NoExport || pool.servicesOnly() {
		return false
	}
	in := func(block netip.Prefix) bool { return inside(block, pool.CIDR) }
	if pool.Enabled || slices.ContainsFunc(s.Blocks, in) {
		return true
	}
	for block := range s.Owners { // a disabled pool is often one that says which addresses need no NAT
		if in(block) {
			return true
		}
	}
	return false
}

// unfit says why a prefix cannot stand for blocks; empty if it can.
func (j *Judge) unfit(p netip.Prefix) string {
	if what := j.shares(p, j.ServiceRanges); what != "" {
		return "shares addresses with " + what
	}
	if !j.filled(p) {
		return "holds addresses of no IPPool for pods, or of one with disableBGPExport"
	}
	if block := j.beyond(p); block.IsValid() {
		return fmt.Sprintf("holds block %s of node %s, which is in another subnet, and the pool does not encapsulate",
			block, j.Owners[block].Node)
	}
	return ""
}

// beyond returns the first block in a prefix that is another node's to which there may be no way but by a router;
// invalid if there is none. Whether BGP has a path to it does not count: a node that fails would have all others
// announce their blocks.
func (j *Judge) beyond(p netip.Prefix) (first netip.Prefix) {
	for block, owner := range j.Owners {
		pool, _ := j.poolOf(block)
		if !inside(block, p) || pool == nil || pool.encapsulates() || !owner.Addr.IsValid() || first.IsValid() && first.Compare(block) < 0 {
			continue
		}
		if len(j.resolve(owner.Addr)) == 0 {
			first = block
		}
	}
	return first
}

// filled reports that each address of a prefix is in a pool whose blocks are announced, and in no other.
func (s *Snapshot) filled(p netip.Prefix) bool {
	full, any := false, false
	for i := range s.Pools {
		pool := &s.Pools[i]
		if !pool.CIDR.Overlaps(p) {
			continue
		}
		if !s.announced(pool) {
			return false
		}
		full, any = full || inside(p, pool.CIDR), true
	}
	if full || !any || p.IsSingleIP() {
		return full
	}
	upper := p.Addr().AsSlice()
	upper[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	middle, _ := netip.AddrFromSlice(upper)
	return s.filled(netip.PrefixFrom(p.Addr(), p.Bits()+1)) && s.filled(netip.PrefixFrom(middle, p.Bits()+1))
}

// withAggregate adds a prefix to a peer's aggregates, unless it lies in one.
func (s *Snapshot) withAggregate(all policy.Aggregates, p netip.Prefix) policy.Aggregates {
	if slices.ContainsFunc(all, func(a policy.Aggregate) bool { return inside(p, a.Prefix) }) {
		return all
	}
	singles := slices.ContainsFunc(s.Pools, func(pool Pool) bool { return pool.CIDR.Overlaps(p) && pool.BlockBits == p.Addr().BitLen() })
	return append(all, policy.Aggregate{Prefix: p, Singles: singles})
}

// stands reports that a peer would be announced a block in an aggregate.
func (s *Snapshot) stands(a policy.Aggregate, peer *bgp.Peer, learned []bgp.Path) bool {
	return slices.ContainsFunc(s.Blocks, a.Covers) ||
		slices.ContainsFunc(learned, func(p bgp.Path) bool { return a.Covers(p.Prefix) && s.passes(p, peer) })
}

// passes reports that a learned path is announced to a peer (RFC 4271 section 9.2, RFC 4456 section 6, RFC 1997).
func (s *Snapshot) passes(p bgp.Path, to *bgp.Peer) bool {
	i, known := slices.BinarySearchFunc(s.Peering.Peers, p.From, func(from bgp.Peer, a netip.Addr) int { return from.Addr.Compare(a) })
	if !known || p.From == to.Addr {
		return false
	}
	from, external := &s.Peering.Peers[i], s.external(to)
	return !p.Confined(external) && (external || s.external(from) || from.Client || to.Client)
}

// external reports that a peer is in another AS.
func (s *Snapshot) external(p *bgp.Peer) bool { return p.ASN != cmp.Or(p.LocalASN, s.OwnASN()) }
