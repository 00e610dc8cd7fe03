package relay

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// adjRIBOut is a session's Adj-RIB-Out: what was announced to the peer of the speaker behind's paths.
type adjRIBOut struct {
	self netip.Addr  // our end of the connection
	over atomic.Bool // the end of our table was sent, of all families that the session has

	mu         sync.Mutex // guards the rest, and the order of announcements
	advertised advertised
	ended      wire.Families // of which the end of our table was sent
}

// announce tells the peer what becomes of a message by the rules. The mutex of out is held.
func (s *session) announce(message []byte) error {
	family := wire.FamilyIn(message)
	if !s.wire.Offer().Families().Has(family) {
		return nil // of a family that the peer does not have
	}
	if wire.EndsTable(message) {
		// Whenever the speaker behind sends its table again it says so; a peer wants to hear it once.
		if s.out.ended.Has(family) {
			return nil
		}
		s.out.ended = s.out.ended.With(family)
		s.out.over.Store(s.out.ended == s.wire.Offer().Families())
		return s.tell(message)
	}
	ownAS := 0
	if s.link.rules.Load().Session.External() {
		ownAS = 1
	}
	t := s.borrow(ownAS)
	defer lent.Put(t)
	t.Family = family
	for _, part := range s.rewrite(message, t) {
		for _, part := range wire.Prune(part, family, s.out.advertised.remove, s.out.advertised.add) {
			if err := s.tellAll(part); err != nil {
				return err
			}
		}
	}
	return nil
}

// rewrite returns what becomes of an UPDATE of the speaker behind by the rules.
func (s *session) rewrite(message []byte, t *tools) [][]byte {
	rules := s.link.rules.Load()
	plain, stamp := wire.TakeStamp(&t.buf, message, t.OwnAS == 0)
	t.Via = stamp.NextHop
	// Beside what is put before each path towards another AS our number can only be there in the place of the peer's.
	looped := t.OwnAS > 0 && wire.CountAS(plain, rules.Session.LocalASN) > t.OwnAS
	wire.ReplaceAS(plain, wire.MaskedASN, s.link.peer.SpeakerASN)
	parts, err := t.Edit(plain, func(p netip.Prefix, a *wire.Attributes) wire.Change {
		if looped {
			return wire.Change{Withdraw: true}
		}
		return rules.exports(p, a, stamp, s.out.self)
	})
	log, peer := s.link.relay.log, s.link.peer.Addr
	if err != nil { // it is our own speaker's
		log.Error("BGP message could not be edited and was not sent", "peer", peer, "error", err)
		return nil
	}
	if t.TooLong > 0 {
		log.Warn("paths are not announced: with what is added to them they are too long for a message", "peer", peer, "prefixes", t.TooLong)
		t.TooLong = 0
	}
	return parts
}

// tellAll tells the peer an UPDATE in the form that it understands.
func (s *session) tellAll(message []byte) error {
	parts := [][]byte{message}
	if s.narrow.Load() {
		parts = wire.Narrow(message, wire.FamilyIn(message))
	}
	for _, part := range parts {
		for _, part := range s.extended(part) {
			if err := s.tell(part); err != nil {
				return err
			}
		}
	}
	return nil
}

// extended returns what becomes of an UPDATE where next hops are link-local.
func (s *session) extended(message []byte) [][]byte {
	if !s.link.peer.linkLocal() {
		return [][]byte{message}
	}
	return wire.Extend(message, s.out.self)
}
