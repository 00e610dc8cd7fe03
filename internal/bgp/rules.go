package bgp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/tortie-net/tortie/internal/bgp/policy"
	"github.com/tortie-net/tortie/internal/bgp/relay"
	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// Policy has the rules for both directions of the sessions. Its zero value accepts what every peer announces, except
// martians, loops and paths that do not begin with the peer's AS number, and passes on no learned path.
type Policy struct {
	// Transit are the prefixes inside of which learned paths are passed on, except inside of Hidden, as far as BGP passes
	// paths on: to and from peers in another AS, and by a reflector. Other learned paths never are. Hidden also applies to
	// this node's own prefixes.
	Transit, Hidden []netip.Prefix
	// Served are the ranges of Services: a learned address in them is passed on with its next hop or not at all, as this
	// node does not forward to the node that announces it. No rule of a peer overrides that.
	Served []netip.Prefix
	// Refuse are prefixes that no peer may announce, or use as next hops: this node's own addresses.
	Refuse []netip.Prefix
	// Own are prefixes that no peer may announce as a whole: this node's blocks. Peers may announce parts of them.
	Own []netip.Prefix
	// Tags are communities to add to announcements.
	Tags []policy.Tag
	// Links are the interfaces that rules can name.
	Links []policy.Link
	// Normal4 and Normal6 are the default priorities of routes; 0 means Calico's.
	Normal4, Normal6 uint32
	// Import and Export are the rules by peer. They come before all these, except for the rules that always refuse a path.
	// A peer without an entry has none.
	Import, Export map[netip.Addr]*policy.Rules
	// Aggregates are the prefixes that a peer receives in place of blocks. A peer without an entry has none.
	Aggregates map[netip.Addr]policy.Aggregates
}

func (p Policy) base() *policy.Base {
	b := &policy.Base{
		Transit: p.Transit, Hidden: p.Hidden, Served: p.Served, Refuse: p.Refuse, Own: p.Own, Tags: p.Tags,
		Normal4: p.Normal4, Normal6: p.Normal6,
	}
	// Links come and go: if no rule names an interface, they must not cause new announcements of everything.
	if named(p.Import) || named(p.Export) {
		b.Links = p.Links
	}
	return b
}

// named reports whether some rule names an interface.
func named(all map[netip.Addr]*policy.Rules) bool {
	for _, rules := range all {
		if rules.NeedsInterface() {
			return true
		}
	}
	return false
}

// passable returns the prefixes inside of which learned paths may be passed on to a peer. A rule of a peer may accept
// paths outside of all pools.
func (p Policy) passable() []netip.Prefix {
	all := slices.Clone(p.Transit)
	for peer, rules := range p.Export {
		for _, family := range wire.FamiliesOf(peer).All() {
			all = append(all, rules.Accepts(family)...)
		}
	}
	return all
}

func (p Policy) validate() error {
	for name, list := range map[string][]netip.Prefix{"transit": p.Transit, "hidden": p.Hidden, "served": p.Served,
		"refused": p.Refuse, "own": p.Own} {
		for _, prefix := range list {
			if !prefix.IsValid() || prefix != prefix.Masked() || prefix.Addr().Is4In6() {
				return fmt.Errorf("%s prefix %q: must be a prefix without host bits", name, prefix)
			}
		}
	}
	return nil
}

// Equal reports whether both policies are the same.
func (p Policy) Equal(o Policy) bool {
	same := func(a, b map[netip.Addr]*policy.Rules) bool { return maps.EqualFunc(a, b, (*policy.Rules).Equal) }
	return slices.Equal(p.Transit, o.Transit) && slices.Equal(p.Hidden, o.Hidden) &&
		slices.Equal(p.Served, o.Served) && slices.Equal(p.Refuse, o.Refuse) && slices.Equal(p.Own, o.Own) && slices.Equal(p.Links, o.Links) &&
		slices.EqualFunc(p.Tags, o.Tags, policy.Tag.Equal) && p.Normal4 == o.Normal4 && p.Normal6 == o.Normal6 && same(p.Import, o.Import) &&
		same(p.Export, o.Export) && maps.EqualFunc(p.Aggregates, o.Aggregates, slices.Equal[policy.Aggregates])
}

// SetPolicy implements Speaker.
func (s *Server) SetPolicy(ctx context.Context, p Policy) error {
	if err := p.validate(); err != nil {
		return err
	}
	return s.do(ctx, func(ctx context.Context) error {
		if err := s.started(); err != nil {
			return err
		}
		if err := s.passOn(ctx, p.passable()); err != nil {
			return err
		}
		before := s.base
		s.policy = p
		if base := p.base(); !base.EqualImport(before) || !base.EqualExport(before) {
			s.base = base
		}
		return errors.Join(s.setAllRules(ctx), s.announceAgain(ctx, before))
	})
}

// rulesOf returns the rules for a peer.
func (s *Server) rulesOf(p Peer) *relay.Rules {
	return &relay.Rules{
		Base:    s.base,
		Session: policy.Session{LocalASN: s.localASN(p), PeerASN: p.ASN, AllowOwnASN: p.AllowOwnASN},
		Import:  s.policy.Import[p.Addr], Export: s.policy.Export[p.Addr],
		Client: p.Client && s.cluster(p).IsValid(), Reflects: s.local.ClusterID.IsValid(), NextHop: p.NextHop,
		Aggregates: s.policy.Aggregates[p.Addr],
	}
}

func (s *Server) setAllRules(ctx context.Context) error {
	var errs []error
	for _, addr := range slices.SortedFunc(maps.Keys(s.peers), netip.Addr.Compare) {
		errs = append(errs, s.setRules(ctx, addr))
	}
	return errors.Join(errs...)
}

// setRules applies the current rules to a peer. If the peer's export rules changed, its announcements are repeated.
func (s *Server) setRules(ctx context.Context, addr netip.Addr) error {
	known, now := s.sessions[addr], s.rulesOf(s.peers[addr])
	before := known.rules
	if known.link == nil || (before.Base == now.Base && before.Same(now)) {
		return nil
	}
	known.link.SetRules(now)
	known.rules = now
	s.sessions[addr] = known
	if before.SameExports(now) {
		return nil
	}
	if err := known.resend(ctx); err != nil {
		return fmt.Errorf("send peer %s what it is to have now: %w", addr, err)
	}
	return nil
}

// announceAgain repeats the announcement of the paths that the common rules now treat differently; the relay judges
// each.
func (s *Server) announceAgain(ctx context.Context, before *policy.Base) error {
	if s.base.EqualExport(before) {
		return nil
	}
	s.epoch = max(1, s.epoch+1)
	touched := touchedBy(before, s.base)
	var errs []error
	for _, prefix := range slices.SortedFunc(maps.Keys(s.originated), netip.Prefix.Compare) {
		if touched(prefix) {
			errs = append(errs, s.announce(ctx, prefix, s.originated[prefix]))
		}
	}
	if !s.passesOn() {
		return errors.Join(errs...)
	}
	for _, known := range s.sessions {
		if known.link != nil {
			known.link.Touch(s.epoch, touched)
		}
	}
	return errors.Join(errs...)
}

// touchedBy returns a function that reports whether the changed common rules may treat a prefix differently.
func touchedBy(before, now *policy.Base) func(netip.Prefix) bool {
	if !slices.Equal(before.Links, now.Links) || before.Normal4 != now.Normal4 || before.Normal6 != now.Normal6 {
		return func(netip.Prefix) bool { return true }
	}
	around := slices.Concat(
		different(before.Transit, now.Transit), different(before.Hidden, now.Hidden), different(before.Served, now.Served),
		different(tagged(before.Tags), tagged(now.Tags)), retagged(before.Tags, now.Tags),
	)
	return func(p netip.Prefix) bool { return within(p, around) }
}

// different returns the prefixes that are in one of two lists only.
func different(a, b []netip.Prefix) []netip.Prefix {
	not := func(list []netip.Prefix) func(netip.Prefix) bool {
		return func(p netip.Prefix) bool { return slices.Contains(list, p) }
	}
	return append(slices.DeleteFunc(slices.Clone(a), not(b)), slices.DeleteFunc(slices.Clone(b), not(a))...)
}

func tagged(tags []policy.Tag) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, tag := range tags {
		prefixes = append(prefixes, tag.Prefix)
	}
	return prefixes
}

// retagged returns the prefixes that have other communities now.
func retagged(before, now []policy.Tag) []netip.Prefix {
	return tagged(slices.DeleteFunc(slices.Clone(now), func(tag policy.Tag) bool {
		return slices.ContainsFunc(before, tag.Equal)
	}))
}

// passesOn reports whether learned paths are passed on to any peer.
func (s *Server) passesOn() bool {
	if s.local.ClusterID.IsValid() {
		return true
	}
	for _, p := range s.peers {
		if s.external(p) {
			return true
		}
	}
	return false
}

// passOn has GoBGP pass on this node's own prefixes, and learned paths inside of prefixes. GoBGP does not withdraw
// paths when a prefix leaves the set, so that earlier prefixes stay in it for ever. The relay decides; this policy only
// keeps GoBGP from making paths that the relay always refuses, once for each of a thousand peers.
func (s *Server) passOn(ctx context.Context, prefixes []netip.Prefix) error {
	wanted := slices.Clone(s.passable)
	for _, p := range prefixes {
		if !slices.Contains(wanted, p) {
			wanted = append(wanted, p)
		}
	}
	if s.passes > 0 && len(wanted) == len(s.passable) {
		return nil
	}
	s.passes++
	name := func(what string) string { return fmt.Sprintf("%s-%d", what, s.passes) }
	now := passing{policy: &api.Policy{Name: name("pass-on"), Statements: []*api.Statement{ownStatement(name("originated"))}}}
	for _, family := range []*api.Family{familyV4, familyV6} {
		if set := prefixSet(name("learned-"+family.Afi.String()), family, wanted); len(set.Prefixes) > 0 {
			now.sets = append(now.sets, set)
			now.policy.Statements = append(now.policy.Statements, insideStatement(set.Name))
		}
	}
	if err := s.assign(ctx, now); err != nil {
		return fmt.Errorf("set what is passed on: %w", err)
	}
	s.passable = wanted
	before := s.passing
	s.passing = now
	if before.policy == nil {
		return nil
	}
	return s.drop(ctx, before)
}

// passing is a GoBGP policy and the prefix sets that it names. GoBGP can change neither.
type passing struct {
	policy *api.Policy
	sets   []*api.DefinedSet
}

// ownStatement accepts this node's own prefixes. In GoBGP they have a preference that no peer can exceed, which it
// resets; see originatedPath.
func ownStatement(name string) *api.Statement {
	return &api.Statement{
		Name:       name,
		Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ACCEPT, LocalPref: &api.LocalPrefAction{Value: wire.LocalPref}},
	}
}

// insideStatement accepts what is inside of the prefixes of a set.
func insideStatement(set string) *api.Statement {
	return &api.Statement{
		Name:       set,
		Conditions: &api.Conditions{PrefixSet: &api.MatchSet{Type: api.MatchSet_ANY, Name: set}},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ACCEPT},
	}
}

// prefixSet returns the prefixes of a family, each with all prefixes inside of it.
func prefixSet(name string, family *api.Family, prefixes []netip.Prefix) *api.DefinedSet {
	set := &api.DefinedSet{DefinedType: api.DefinedType_PREFIX, Name: name}
	for _, p := range prefixes {
		if familyOf(p.Addr()) == family {
			set.Prefixes = append(set.Prefixes,
				&api.Prefix{IpPrefix: p.String(), MaskLengthMin: uint32(p.Bits()), MaskLengthMax: uint32(p.Addr().BitLen())})
		}
	}
	return set
}

// assign creates a policy and makes it GoBGP's export policy.
func (s *Server) assign(ctx context.Context, p passing) error {
	for _, set := range p.sets {
		if err := s.bgp.AddDefinedSet(ctx, &api.AddDefinedSetRequest{DefinedSet: set}); err != nil {
			return err
		}
	}
	if err := s.bgp.AddPolicy(ctx, &api.AddPolicyRequest{Policy: p.policy}); err != nil {
		return err
	}
	return s.bgp.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
		Name:          "global",
		Direction:     api.PolicyDirection_EXPORT,
		Policies:      []*api.Policy{{Name: p.policy.Name}},
		DefaultAction: api.RouteAction_REJECT,
	}})
}

// drop removes a policy that is no longer assigned.
func (s *Server) drop(ctx context.Context, p passing) error {
	err := s.bgp.DeletePolicy(ctx, &api.DeletePolicyRequest{Policy: p.policy, All: true})
	errs := []error{err}
	for _, set := range p.sets {
		errs = append(errs, s.bgp.DeleteDefinedSet(ctx, &api.DeleteDefinedSetRequest{DefinedSet: set, All: true}))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove what was passed on before: %w", err)
	}
	return nil
}
