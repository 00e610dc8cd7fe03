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

// Aggregate decides which prefixes are announced to routers in place of blocks, given the paths that BGP has learned.
// It reports whether the aggregates changed, and returns a problem for each unusable prefix: its blocks are announced
// instead.
//
// A node that announces an aggregate drops packets to addresses without a longer route. So pools of pods must fill the
// aggregate: it must not hold addresses that are reached elsewhere. The node also receives packets for the blocks of
// all nodes, which it must not send back to the router.
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

// liveAggregates returns the prefixes that are announced to at least one peer in place of blocks, in ascending order.
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

// candidates returns the prefixes that an aggregation names and that are larger than the blocks in them, the largest
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

// holdsBlocks reports whether a prefix may hold blocks that are smaller than itself.
func (s *Snapshot) holdsBlocks(p netip.Prefix) bool {
	return slices.ContainsFunc(s.Pools,
		func(pool Pool) bool { return pool.CIDR.Overlaps(p) && p.Bits() < pool.BlockBits && s.announced(&pool) })
}

// announced reports whether blocks of a pool are announced: nodes have some, or may get some.
func (s *Snapshot) announced(pool *Pool) bool {
	if pool.NoExport || pool.servicesOnly() {
		return false
	}
	in := func(block netip.Prefix) bool { return inside(block, pool.CIDR) }
	if pool.Enabled || slices.ContainsFunc(s.Blocks, in) {
		return true
	}
	for block := range s.Owners { // a disabled pool often only marks addresses that need no NAT
		if in(block) {
			return true
		}
	}
	return false
}

// unfit returns why a prefix cannot stand for blocks; empty if it can.
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

// beyond returns the first block in a prefix that belongs to another node and may be reachable through a router only;
// invalid if there is none. It ignores whether BGP has a path to the block: else one failing node would make all others
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

// filled reports whether each address of a prefix is in a pool with announced blocks, and in no other pool.
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

// withAggregate adds a prefix to a peer's aggregates, unless one of them covers it.
func (s *Snapshot) withAggregate(all policy.Aggregates, p netip.Prefix) policy.Aggregates {
	if slices.ContainsFunc(all, func(a policy.Aggregate) bool { return inside(p, a.Prefix) }) {
		return all
	}
	singles := slices.ContainsFunc(s.Pools, func(pool Pool) bool { return pool.CIDR.Overlaps(p) && pool.BlockBits == p.Addr().BitLen() })
	return append(all, policy.Aggregate{Prefix: p, Singles: singles})
}

// stands reports whether an aggregate covers a block or path that would be announced to a peer.
func (s *Snapshot) stands(a policy.Aggregate, peer *bgp.Peer, learned []bgp.Path) bool {
	return slices.ContainsFunc(s.Blocks, a.Covers) ||
		slices.ContainsFunc(learned, func(p bgp.Path) bool { return a.Covers(p.Prefix) && s.passes(p, peer) })
}

// passes reports whether a learned path is announced to a peer (RFC 4271 section 9.2, RFC 4456 section 6, RFC 1997).
func (s *Snapshot) passes(p bgp.Path, to *bgp.Peer) bool {
	i, known := slices.BinarySearchFunc(s.Peering.Peers, p.From, func(from bgp.Peer, a netip.Addr) int { return from.Addr.Compare(a) })
	if !known || p.From == to.Addr {
		return false
	}
	from, external := &s.Peering.Peers[i], s.external(to)
	return !p.Confined(external) && (external || s.external(from) || from.Client || to.Client)
}

// external reports whether a peer is in another AS.
func (s *Snapshot) external(p *bgp.Peer) bool { return p.ASN != cmp.Or(p.LocalASN, s.OwnASN()) }
