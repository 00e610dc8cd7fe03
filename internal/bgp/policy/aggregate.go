package policy

import "net/netip"

// Aggregate is a prefix that one peer receives in place of the blocks in it.
type Aggregate struct {
	Prefix netip.Prefix
	// Live: at least one of these blocks would be announced to the peer; else neither blocks nor aggregate are.
	Live bool
	// Singles: its blocks may be single addresses. Otherwise single addresses are routes to pods outside of their block's
	// node, and are announced besides.
	Singles bool
}

// Covers reports whether the aggregate replaces a path.
func (a Aggregate) Covers(p netip.Prefix) bool {
	return p != a.Prefix && contains(a.Prefix, p) && (a.Singles || !p.IsSingleIP())
}

// Aggregates are the aggregates of one peer. None lies in another.
type Aggregates []Aggregate

// Hide reports whether a path is not announced to the peer: a block in one of the aggregates, an aggregate that is not
// live, or an aggregate for other peers only.
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
