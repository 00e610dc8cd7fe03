package policy

import "net/netip"

// Aggregate is a prefix that one peer is told in place of the blocks in it.
type Aggregate struct {
	Prefix netip.Prefix
	// Live: the peer would be told at least one of these blocks, else nothing of them at all.
	Live bool
	// Singles: its blocks may be single addresses. Else those are ways of their own to pods that are not where their block
	// is, and are told besides.
	Singles bool
}

// Covers reports whether a path is one of those in whose place the aggregate stands.
func (a Aggregate) Covers(p netip.Prefix) bool {
	return p != a.Prefix && contains(a.Prefix, p) && (a.Singles || !p.IsSingleIP())
}

// Aggregates are those of one peer. They do not lie in each other.
type Aggregates []Aggregate

// Hide reports whether the peer is not told a path: a block in one of the aggregates, or an aggregate that is not live,
// or other peers'.
func (all Aggregates) Hide(p netip.Prefix, aggregate bool) bool {
	for i := range all {
		switch a := &all[i]; {
		case aggregate && a.Prefix == p:
			return !a.Live
		case !aggregate && a.Covers(p):
			return true
		}
	}
	return aggregate
}
