package relay

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// adjRIBOut is a session's Adj-RIB-Out: the speaker's paths that were announced to the peer.
type adjRIBOut struct {
	self netip.Addr  // our end of the connection
	over atomic.Bool // End-of-RIB was sent for all families of the session

	mu         sync.Mutex // guards the rest, and the order of announcements
	advertised advertised
	ended      wire.Families // families whose End-of-RIB was sent
}

// announce sends the peer a message as the rules change it. Lock out.mu is held.
func (s *session) announce(message []byte) error {
	family := wire.FamilyIn(message)
	if !s.wire.Offer().Families().Has(family) {
		return nil // the peer does not have the family
	}
	if wire.EndsTable(message) {
		// The speaker behind sends End-of-RIB each time it sends its table; the peer gets the first one only.
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

// rewrite returns an UPDATE of the speaker behind as the rules change it.
func (s *session) rewrite(message []byte, t *tools) [][]byte {
	rules := s.link.rules.Load()
	plain, stamp := wire.TakeStamp(&t.buf, message, t.OwnAS == 0)
	t.Via = stamp.NextHop
	// Towards another AS our number is prepended to each path. Any further one can only replace the peer's number.
	looped := t.OwnAS > 0 && wire.CountAS(plain, rules.Session.LocalASN) > t.OwnAS
	wire.ReplaceAS(plain, wire.MaskedASN, s.link.peer.SpeakerASN)
	parts, err := t.Edit(plain, func(p netip.Prefix, a *wire.Attributes) wire.Change {
		if looped {
			return wire.Change{Withdraw: true}
		}
		return rules.exports(p, a, stamp, s.out.self)
	})
	log, peer := s.link.relay.log, s.link.peer.Addr
	if err != nil { // our own speaker made the message
		log.Error("BGP message could not be edited and was not sent", "peer", peer, "error", err)
		return nil
	}
	if t.TooLong > 0 {
		log.Warn("paths are not announced: with what is added to them they are too long for a message", "peer", peer, "prefixes", t.TooLong)
		t.TooLong = 0
	}
	return parts
}

// tellAll sends the peer an UPDATE in a form that it understands.
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

// extended returns the messages for an UPDATE where next hops are link-local.
func (s *session) extended(message []byte) [][]byte {
	if !s.link.peer.linkLocal() {
		return [][]byte{message}
	}
	return wire.Extend(message, s.out.self)
}
