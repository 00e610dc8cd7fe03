package policy

import (
	"net/netip"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// Base are the rules that hold for every peer, around those that the operator has made for it.
type Base struct {
	// Transit are the prefixes inside of which learned paths are passed on, but for those inside of Hidden. This node's own
	// paths inside of Hidden are not announced either.
	Transit, Hidden []netip.Prefix
	// Refuse are prefixes of which nobody may announce anything to us: this node's own addresses. Nor may they be next hops.
	Refuse []netip.Prefix
	// Tags are added to what is announced, all that match, if no rule of the peer has accepted it before.
	Tags []Tag
	// Links say which interface a next hop is reached through, the longest prefix first found by its length.
	Links []Link
	// Normal4 and Normal6 are the metrics of learned routes that nothing sets; 0 is 1024.
	Normal4, Normal6 uint32
}

// Link is the interface through which the next hops inside of a prefix are reached.
type Link struct {
	Prefix    netip.Prefix
	Interface string
}

// Session is who is at both ends.
type Session struct {
	LocalASN, PeerASN uint32
	// AllowOwnASN is how often LocalASN may be in the path of what the peer announces.
	AllowOwnASN int
}

// External reports whether the peer is in another AS.
func (s Session) External() bool { return s.LocalASN != s.PeerASN }

// Import decides about a path that the peer announces. The outcome's Change is what an Editor is to do; its Reason, if it is
// rejected, is one of few.
func (b *Base) Import(s Session, rules *Rules, prefix netip.Prefix, a *wire.Attributes) Outcome {
	return Outcome{Verdict: Accept} // TODO(policy): being written
}

// Export decides about a path that would be announced to the peer; own tells that this node originates it.
func (b *Base) Export(s Session, rules *Rules, own bool, prefix netip.Prefix, a *wire.Attributes) Outcome {
	return Outcome{Verdict: Accept} // TODO(policy): being written
}

// Equal reports whether both decide alike: nothing has to be announced again.
func (b *Base) Equal(other *Base) bool { return false } // TODO(policy): being written
