package relay

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/bgp/policy"
	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// Rules decide which paths pass on a session, in both directions. They are immutable.
type Rules struct {
	Base           *policy.Base
	Session        policy.Session
	Import, Export *policy.Rules
	// Client: the peer gets the paths of other peers in our own AS, and they get its paths; see wire.Client.
	Client bool
	// Reflects: this node is a reflector.
	Reflects bool
	NextHop  NextHop
	// Aggregates are announced to the peer in the place of the prefixes that they cover.
	Aggregates policy.Aggregates
}

// NextHop is the treatment of the next hop of a learned path.
type NextHop uint8

// Next hops.
const (
	Auto NextHop = iota // BGP's own rule: our address towards another AS, unchanged inside of our own
	Self                // our end of the session
	Keep                // as it was learned
)

// String implements fmt.Stringer with the values of Calico's nextHopMode.
func (n NextHop) String() string {
	if n > Keep {
		return fmt.Sprintf("NextHopMode(%d)", uint8(n))
	}
	return []string{"Auto", "Self", "Keep"}[n]
}

// source returns the source with which the peer's paths are stamped.
func (r *Rules) source() wire.Source {
	switch {
	case r.Session.External():
		return wire.External
	case r.Client:
		return wire.Client
	}
	return wire.Internal
}

// imports decides about a path that the peer announces; a reason means refusal. self is our end of the session.
func (r *Rules) imports(prefix netip.Prefix, a *wire.Attributes, self netip.Addr) (wire.Change, string) {
	switch a.Via.WithZone("") {
	case wire.Placeholder4, wire.Placeholder6:
		return wire.Change{Withdraw: true}, policy.ReasonNoHop
	case self:
		return wire.Change{Withdraw: true}, policy.ReasonOwnHop
	}
	out := r.Base.Import(r.Session, r.Import, prefix, a)
	if out.Verdict == policy.Reject {
		return wire.Change{Withdraw: true}, out.Reason
	}
	return out.Change, ""
}

// exports decides about a path that the speaker behind announces to the peer. self is our end of the session, of any
// family.
func (r *Rules) exports(prefix netip.Prefix, a *wire.Attributes, stamp wire.Stamp, self netip.Addr) wire.Change {
	if !r.Session.External() && !r.passesInside(stamp.Source) {
		return wire.Change{Withdraw: true}
	}
	aggregate := stamp.Source == wire.Aggregate
	if r.Aggregates.Hide(prefix, aggregate) {
		return wire.Change{Withdraw: true}
	}
	if aggregate {
		stamp.Source = wire.Own
	}
	if wire.FamilyOf(self) != wire.FamilyOf(prefix.Addr()) {
		self = wire.Placeholder4 // see wire.Extend
	}
	hop := r.nextHop(a.NextHop, stamp, self)
	out := r.Base.Export(r.Session, r.Export,
		policy.Offer{Prefix: prefix, Attributes: a, Own: stamp.Source == wire.Own, Attracts: hop != stamp.NextHop})
	if out.Verdict == policy.Reject {
		return wire.Change{Withdraw: true}
	}
	out.Change.NextHop = hop
	return out.Change
}

// passesInside reports whether a peer in our own AS receives a path, by RFC 4456 section 6. After this node stops
// reflecting, the speaker behind goes on sending former paths of clients until the clients announce them anew, without
// withdrawals.
func (r *Rules) passesInside(source wire.Source) bool {
	switch source {
	case wire.Internal:
		return r.Client
	case wire.Client:
		return r.Reflects
	}
	return true
}

// nextHop returns the next hop announced to the peer; invalid: the speaker's own.
func (r *Rules) nextHop(said netip.Addr, stamp wire.Stamp, self netip.Addr) netip.Addr {
	if said == wire.Placeholder4 || said == wire.Placeholder6 {
		said = self
	}
	switch {
	case stamp.Source == wire.Own, r.NextHop == Auto:
		return said
	case r.NextHop == Self, wire.LinkLocal(stamp.NextHop):
		return self
	}
	return stamp.NextHop
}

// sameImports reports whether both accept the same paths of a peer, with the same changes.
func (r *Rules) sameImports(o *Rules) bool {
	return r.Session == o.Session && r.Client == o.Client && r.Import.Equal(o.Import) &&
		(r.Base == o.Base || r.Base.EqualImport(o.Base))
}

// SameExports reports whether both announce the same to the peer, apart from changes of Base: after them all is
// announced again to all peers.
func (r *Rules) SameExports(o *Rules) bool {
	return r.Session == o.Session && r.Client == o.Client && r.Reflects == o.Reflects && r.NextHop == o.NextHop && r.Export.Equal(o.Export) &&
		slices.Equal(r.Aggregates, o.Aggregates)
}

// Same reports whether both decide alike with the same base.
func (r *Rules) Same(o *Rules) bool {
	return r.SameExports(o) && r.Import.Equal(o.Import)
}
