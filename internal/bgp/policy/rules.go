package policy

import (
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// Community is a community of RFC 1997 or, with three numbers, of RFC 8092.
type Community = wire.Community

// ParseCommunity reads "aa:nn", or "aa:nn:mm" for a large community.
func ParseCommunity(text string) (Community, error) { return wire.ParseCommunity(text) }

// Direction is whether paths are received or announced.
type Direction int

// Directions.
const (
	Import Direction = iota
	Export
)

// Priorities, which are metrics of kernel routes.
const (
	// NormalPriority is the default priority of a route.
	NormalPriority = 1024
	// maxPriority less the priority is the LOCAL_PREF.
	maxPriority = 1<<31 - 1
	// defaultLocalPref is the LOCAL_PREF of speakers that set no priority.
	defaultLocalPref = 100
)

// Priority returns the priority of a path with a LOCAL_PREF; 0, which rules cannot have, for one of maxPriority or
// more.
func Priority(localPref uint32) uint32 { return maxPriority - min(localPref, maxPriority) }

// LocalPref returns the LOCAL_PREF of a path with a priority.
func LocalPref(priority uint32) uint32 { return maxPriority - min(priority, maxPriority) }

// Route is a path that rules decide on.
type Route struct {
	Prefix netip.Prefix
	*wire.Attributes
	// Own: this node originates it. Never set on import.
	Own bool
	// External: the peer is in another AS.
	External bool
	// Interface is the path's outgoing interface; empty: none, or unknown.
	Interface string
	Priority  uint32
}

// Verdict is the decision of a list of rules on a route.
type Verdict int

// Verdicts.
const (
	NoMatch Verdict = iota
	Accept
	Reject
)

// Outcome is the decision on a route, with its changes.
type Outcome struct {
	Verdict Verdict
	// Reason is a short reason for a rejection. There are few different ones.
	Reason string
	// Change is the edit that wire applies to the path.
	Change wire.Change
}

func reject(reason string) Outcome {
	return Outcome{Verdict: Reject, Reason: reason, Change: wire.Change{Withdraw: true}}
}

// Rules is an ordered list of rules: the first that matches decides. A nil *Rules is empty. It is immutable.
type Rules struct{ rules []Rule }

// Join returns the rules of several filters in order; nil if there are none.
func Join(all ...*Rules) *Rules {
	var joined []Rule
	for _, r := range all {
		if r != nil {
			joined = append(joined, r.rules...)
		}
	}
	if len(joined) == 0 {
		return nil
	}
	return &Rules{rules: joined}
}

// Within returns rules that accept everything inside of some prefixes unchanged, and reject everything else.
func Within(prefixes []netip.Prefix, reason string) *Rules {
	r := &Rules{rules: make([]Rule, 0, len(prefixes)+1)}
	for _, p := range prefixes {
		r.rules = append(r.rules, Rule{prefix: p, least: p.Bits(), most: p.Addr().BitLen(), outcome: Outcome{Verdict: Accept}})
	}
	r.rules = append(r.rules, Rule{outcome: reject(reason)})
	return r
}

// Apply returns the outcome of the first rule that matches; NoMatch if none does.
func (r *Rules) Apply(route Route) Outcome {
	if r == nil {
		return Outcome{}
	}
	for i := range r.rules {
		if rule := &r.rules[i]; rule.matches(&route) {
			return rule.outcome
		}
	}
	return Outcome{}
}

// Equal reports whether both have the same rules with the same reasons.
func (r *Rules) Equal(other *Rules) bool {
	if r == nil || other == nil {
		return r.Len() == other.Len()
	}
	return slices.EqualFunc(r.rules, other.rules, Rule.equal)
}

// Len returns the number of rules.
func (r *Rules) Len() int {
	if r == nil {
		return 0
	}
	return len(r.rules)
}

// Rule is one rule of a BGPFilter, checked. Absent conditions have the zero value.
type Rule struct {
	family      wire.Family // 0: both
	prefix      netip.Prefix
	least, most int // bounds of the length of a prefix inside of prefix
	not         bool
	learned     bool
	iface       string
	internal    bool // matches peers in this AS only
	external    bool
	has         bool // whether community is set
	community   Community
	path        []uint32
	priority    uint32
	outcome     Outcome
}

// matches reports whether a route meets all of the rule's conditions.
func (r *Rule) matches(route *Route) bool {
	switch {
	case r.family != 0 && r.family != wire.FamilyOf(route.Prefix.Addr()),
		r.prefix.IsValid() && r.inside(route.Prefix) == r.not,
		r.learned && route.Own,
		r.internal && route.External,
		r.external && !route.External,
		r.iface != "" && !matchName(r.iface, route.Interface),
		r.has && !route.Communities.Has(r.community),
		len(r.path) > 0 && !route.Path.StartsWith(r.path),
		r.priority != 0 && r.priority != route.Priority:
		return false
	}
	return true
}

// inside reports whether p is inside of the rule's prefix, with a length in its range.
func (r *Rule) inside(p netip.Prefix) bool {
	return r.least <= p.Bits() && p.Bits() <= r.most && contains(r.prefix, p)
}

// contains reports whether inner is outer or a part of it.
func contains(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

func containsAny(all []netip.Prefix, inner netip.Prefix) bool {
	return slices.ContainsFunc(all, func(outer netip.Prefix) bool { return contains(outer, inner) })
}

// matchName reports whether name matches pattern, in which * stands for any text, also none. An unknown interface has
// an empty name.
func matchName(pattern, name string) bool {
	// star is the index of the last *, taken the end of its text in name: on a mismatch its text grows by one byte.
	star, taken := -1, 0
	p, n := 0, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, taken = p, n
			p++
		case p < len(pattern) && pattern[p] == name[n]:
			p, n = p+1, n+1
		case star >= 0:
			taken++
			p, n = star+1, taken
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

func (r Rule) equal(o Rule) bool {
	return r.family == o.family && r.prefix == o.prefix && r.least == o.least && r.most == o.most && r.not == o.not &&
		r.learned == o.learned && r.iface == o.iface && r.internal == o.internal && r.external == o.external && r.has == o.has &&
		r.community == o.community && slices.Equal(r.path, o.path) && r.priority == o.priority && r.outcome.equal(o.outcome)
}

func (o Outcome) equal(other Outcome) bool {
	return o.Verdict == other.Verdict && o.Reason == other.Reason && o.Change.Equal(other.Change)
}

// NeedsInterface reports whether some rule has a condition on the interface.
func (r *Rules) NeedsInterface() bool {
	return r != nil && slices.ContainsFunc(r.rules, func(rule Rule) bool { return rule.iface != "" })
}

// Accepts returns prefixes that contain every path which some rule accepts.
func (r *Rules) Accepts(family wire.Family) []netip.Prefix {
	var all []netip.Prefix
	for i := range r.Len() {
		rule := &r.rules[i]
		if rule.family != 0 && rule.family != family {
			continue
		}
		prefix := rule.prefix
		if !prefix.IsValid() || rule.not {
			prefix = netip.PrefixFrom(unspecified(family), 0)
		}
		if rule.outcome.Verdict == Accept && !slices.Contains(all, prefix) {
			all = append(all, prefix)
		}
	}
	return all
}

func unspecified(family wire.Family) netip.Addr {
	if family == wire.IPv4 {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
