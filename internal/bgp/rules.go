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

// Policy is what passes on the sessions, in both directions. Its zero value takes what every peer announces, but for
// martians, paths of its AS number that are not its own and loops, and passes on nothing that was learned.
type Policy struct {
	// Transit: learned paths inside of one of these, and not inside of one of Hidden, are passed on where BGP passes
	// anything on: to and from peers in another AS, and by a reflector. All other learned paths never are. Hidden holds for what
	// this node originates, too.
	Transit, Hidden []netip.Prefix
	// Served are the ranges of Services: a learned address in them is passed on with its next hop or not at all, as this
	// node does not forward to the node that announces it. No rule of a peer undoes that.
	Served []netip.Prefix
	// Refuse are prefixes that no peer may announce, or use as next hops: this node's own addresses.
	Refuse []netip.Prefix
	// Own are prefixes that no peer may announce, though parts of them: this node's blocks.
	Own []netip.Prefix
	// Tags are communities for what is announced.
	Tags []policy.Tag
	// Links are the interfaces that rules can name.
	Links []policy.Link
	// Normal4 and Normal6 are the priorities of routes that nothing sets; 0 is Calico's.
	Normal4, Normal6 uint32
	// Import and Export are the rules that hold for one peer before all these, but for what is always refused. A peer that
	// is not in here has none.
	Import, Export map[netip.Addr]*policy.Rules
	// Aggregates are what a peer is told in place of blocks. A peer that is not in here has none.
	Aggregates map[netip.Addr]policy.Aggregates
}

func (p Policy) base() *policy.Base {
	b := &policy.Base{
		Transit: p.Transit, Hidden: p.Hidden, Served: p.Served, Refuse: p.Refuse, Own: p.Own, Tags: p.Tags,
		Normal4: p.Normal4, Normal6: p.Normal6,
	}
	// Links come and go: where no rule asks for them they must not have everything announced again.
	if named(p.Import) || named(p.Export) {
		b.Links = p.Links
	}
	return b
}

// named reports whether some rule asks for an interface by its name.
func named(all map[netip.Addr]*policy.Rules) bool {
	for _, rules := range all {
		if rules.NeedsInterface() {
			return true
		}
	}
	return false
}

// passable are the prefixes inside of which learned paths may be passed on to a peer: a rule of a peer may accept what
// is in no pool.
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

// Equal reports whether both let pass the same.
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

// rulesOf are the rules for a peer.
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

// setRules has the rules for a peer in force. Announcements under rules of its own have to be made again.
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

// announceAgain has those paths announced once more of which, by the rules that hold for every peer, something else
// becomes: the relay judges what passes.
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

// touchedBy tells prefixes of which something else may become by other rules for every peer.
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

// different returns what is in one of two lists only.
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

// retagged returns the prefixes that had other communities before.
func retagged(before, now []policy.Tag) []netip.Prefix {
	return tagged(slices.DeleteFunc(slices.Clone(now), func(tag policy.Tag) bool {
		return slices.ContainsFunc(before, tag.Equal)
	}))
}

// passesOn reports whether any of the peers is told what others have announced.
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

// passOn has GoBGP pass on what this node originates, and learned paths inside of prefixes; inside of which else it has
// passed on before it does so for ever, since it would not withdraw them. The relay decides; this is so that what it
// would always refuse is not even made, once for each of a thousand peers.
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

// passing is a policy of GoBGP's and the sets of prefixes that it names. Neither can be changed once it is there.
type passing struct {
	policy *api.Policy
	sets   []*api.DefinedSet
}

// ownStatement lets pass what this node originates. Inside, our own paths have a preference that no peer can exceed;
// see originatedPath.
func ownStatement(name string) *api.Statement {
	return &api.Statement{
		Name:       name,
		Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ACCEPT, LocalPref: &api.LocalPrefAction{Value: wire.LocalPref}},
	}
}

// insideStatement lets pass what is inside of the prefixes of a set.
func insideStatement(set string) *api.Statement {
	return &api.Statement{
		Name:       set,
		Conditions: &api.Conditions{PrefixSet: &api.MatchSet{Type: api.MatchSet_ANY, Name: set}},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ACCEPT},
	}
}

// prefixSet has the prefixes of a family, each with all that is inside of it.
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

// assign makes a new policy the one of what is announced.
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

// drop removes a policy that is assigned no longer.
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
