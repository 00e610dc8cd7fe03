package policy

import (
	"net/netip"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// Community is one of RFC 1997 or, with three numbers, of RFC 8092.
type Community = wire.Community

// ParseCommunity reads "aa:nn", or "aa:nn:mm" for a large community.
func ParseCommunity(text string) (Community, error) { return wire.ParseCommunity(text) }

// Direction says whether paths come in or go out.
type Direction int

// Directions.
const (
	Import Direction = iota
	Export
)

// Route is a path about which rules decide.
type Route struct {
	Prefix netip.Prefix
	*wire.Attributes
	// Own: this node originates it. On the way in nothing is.
	Own bool
	// External: the peer is in another AS.
	External bool
	// Interface is what the path leads through; empty: nothing, or it is not known.
	Interface string
	// Priority is the metric that a kernel route of it has.
	Priority uint32
}

// Verdict is what a list of rules says of a route.
type Verdict int

// Verdicts.
const (
	NoMatch Verdict = iota
	Accept
	Reject
)

// Outcome is what becomes of a route.
type Outcome struct {
	Verdict Verdict
	// Reason says in a few words which rule has rejected it; those of one rule are equal.
	Reason string
	// Change is what wire is to do with it.
	Change wire.Change
}

// Rules is an ordered list of rules: the first that matches decides. A nil *Rules has none. It does not change.
type Rules struct{ rules []Rule }

// Rule is one rule of a BGPFilter, checked.
type Rule struct{}

// Compile makes rules of the lists of a BGPFilter for one direction and family. Each error names a rule that can't be used,
// its field, the value and a remedy; with one of them the filter is of no use as a whole, and the rules are nil.
func Compile(name string, spec *api.BGPFilterSpec, d Direction, f wire.Family) (*Rules, []error) {
	return nil, nil // TODO(policy): being written
}

// Join returns the rules of several filters in order; nil if there are none.
func Join(all ...*Rules) *Rules {
	return nil // TODO(policy): being written
}

// Apply decides about a route by the first rule that matches.
func (r *Rules) Apply(route Route) Outcome { return Outcome{} }

// Equal reports whether both decide alike about every route: they have the same rules in the same order, under the same names.
func (r *Rules) Equal(other *Rules) bool { return false }

// Tag adds communities to what is announced inside of a prefix.
type Tag struct {
	Prefix      netip.Prefix
	Communities []Community
}
