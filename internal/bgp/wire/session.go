package wire

import (
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"
	"unique"
)

// Family is an address family of unicast routes.
type Family uint16

// Families, by the numbers of RFC 4760.
const (
	IPv4 Family = 1
	IPv6 Family = 2

	unicast = 1
)

func (f Family) String() string {
	if f == IPv4 {
		return "IPv4"
	}
	return "IPv6"
}

// FamilyOf returns the family of an address.
func FamilyOf(addr netip.Addr) Family {
	if addr.Is4() {
		return IPv4
	}
	return IPv6
}

// bytes returns the length of an address.
func (f Family) bytes() int {
	if f == IPv4 {
		return 4
	}
	return 16
}

// Rules are the checks of a peer's messages.
type Rules struct {
	ASN      uint32     // the peer's AS
	LocalASN uint32     // our AS
	LocalID  netip.Addr // our router ID
	Families Families
	// Link is the name of the link if the session is between link-local addresses. Next hops are link-local then, for IPv4
	// prefixes as well (RFC 8950).
	Link string
	// MaxPrefixes bounds the peer's prefixes of all families together.
	MaxPrefixes int
	// Source is set in the stamps of this peer's paths; 0: no stamps.
	Source Source
	// ClusterID is ours, if this node is a reflector: a path that has passed it is refused.
	ClusterID netip.Addr
}

// Verdict is the decision on a message.
type Verdict struct {
	// Pass is the message for the speaker behind, or several for an UPDATE; nil: none. It is valid until the next message
	// is checked.
	Pass []byte
	// Gone are withdrawn prefixes of an UPDATE, Refused the announced ones that are refused, for the reason Refusal.
	Gone, Refused []netip.Prefix
	Refusal       string
	// Ended are the families with their End-of-RIB in the message, End means that no family is left.
	Ended Families
	End   bool
	// Reset ends the session: it is sent to the peer, and its Error is the reason.
	Reset *Notification
	// Flaw is the error in a message that did not end the session; empty: there was none.
	Flaw string
}

// Session checks the messages of one connection, in their order.
type Session struct {
	rules Rules
	state state
	offer Offer
	// announced holds the prefixes that the peer has announced and not withdrawn, with their attributes.
	announced map[netip.Prefix]Said
	ended     Families
}

// Said holds the attributes of an UPDATE as they were passed on, and the next hop before them. Few differ, so they are
// kept once for all sessions. Equal ones are ==. The zero value is of a refused path.
type Said struct{ unique.Handle[string] }

type state int

const (
	fresh state = iota // no message was read
	opened
	established // the peer has accepted our OPEN
)

// NewSession returns the session of a connection on which nothing was read.
func NewSession(rules Rules) *Session {
	return &Session{rules: rules, announced: make(map[netip.Prefix]Said)}
}

// Offer returns the peer's OPEN, zero before it.
func (s *Session) Offer() *Offer { return &s.offer }

// Established reports whether the peer has accepted our OPEN.
func (s *Session) Established() bool { return s.state == established }

// Prefixes returns how many prefixes the peer announces.
func (s *Session) Prefixes() int { return len(s.announced) }

// Check judges a whole message, as Read returns it.
func (s *Session) Check(message []byte) Verdict {
	kind := TypeOf(message)
	if kind == Notify {
		// The speaker behind would only log the data.
		n := ParseNotification(message)
		return Verdict{Pass: (&Notification{Code: n.Code, Subcode: n.Subcode}).Bytes()}
	}
	switch s.state {
	case fresh:
		if kind != Open {
			return outOfOrder(1, kind)
		}
		return s.open(message)
	case opened:
		if kind != Keepalive {
			return outOfOrder(2, kind)
		}
		s.state = established
	case established:
		switch kind {
		case Open:
			return outOfOrder(3, kind)
		case Update:
			return s.update(body(message))
		case RouteRefresh:
			return s.refresh(body(message))
		}
	}
	return Verdict{Pass: NewKeepalive()}
}

func outOfOrder(subcode uint8, kind Type) Verdict {
	return Verdict{Reset: &Notification{
		Code: StateError, Subcode: subcode, Data: []byte{byte(kind)},
		Reason: fmt.Sprintf("it sent a message of type %d out of order", kind),
	}}
}

func (s *Session) open(message []byte) Verdict {
	offer, fault := ParseOpen(message, s.rules)
	if fault != nil {
		return Verdict{Reset: fault}
	}
	s.state, s.offer = opened, offer
	offer.extended = false // Extend makes the IPv6 next hops for the peer
	return Verdict{Pass: offer.bytes(s.rules.Families)}
}

// refresh passes a plain request for a family of the session. Others are ignored, as RFC 2918 section 4 requires: we
// offer neither outbound filters (RFC 5291) nor the markers of RFC 7313.
func (s *Session) refresh(b []byte) Verdict {
	if len(b) != 4 {
		return Verdict{Flaw: fmt.Sprintf("ROUTE-REFRESH of %d bytes is ignored", headerLen+len(b))}
	}
	family := Family(binary.BigEndian.Uint16(b))
	if !s.offer.families.Has(family) || b[2] != 0 || b[3] != unicast {
		return Verdict{}
	}
	return Verdict{Pass: end(append(begin(RouteRefresh), 0, byte(family), 0, unicast))}
}

// announce records announced prefixes and reports whether they stay within MaxPrefixes.
func (s *Session) announce(prefixes []netip.Prefix, what Said) bool {
	for _, p := range prefixes {
		if len(s.announced) >= s.rules.MaxPrefixes {
			if _, known := s.announced[p]; !known {
				return false
			}
		}
		s.announced[p] = what
	}
	return true
}

// SetSource sets the source for later stamps, Table's included.
func (s *Session) SetSource(source Source) { s.rules.Source = source }

// Table returns messages that announce the wanted prefixes of the peer again, with the epoch in their stamps. The
// caller owns them.
func (s *Session) Table(epoch uint8, wanted func(netip.Prefix) bool) iter.Seq[[]byte] {
	type same struct {
		Said
		family Family
	}
	alike := make(map[same][]netip.Prefix)
	for p, what := range s.announced {
		if what != (Said{}) && wanted(p) {
			key := same{what, FamilyOf(p.Addr())}
			alike[key] = append(alike[key], p)
		}
	}
	return func(yield func([]byte) bool) {
		for what, prefixes := range alike {
			hop, attributes := what.parts()
			if s.rules.Source != 0 {
				stampAgain(attributes, s.rules.Source, epoch)
			}
			part := part{family: what.family, announced: prefixes, nextHop: hop}
			var w writer
			part.write(&w, attributes)
			for message := range Messages(w.text) {
				if !yield(message) {
					return
				}
			}
		}
	}
}

func (s *Session) withdraw(prefixes []netip.Prefix) {
	for _, p := range prefixes {
		delete(s.announced, p)
	}
}

// tooMany returns RFC 4486's Cease with the bound.
func (s *Session) tooMany(family Family) *Notification {
	data := binary.BigEndian.AppendUint32([]byte{0, byte(family), unicast}, uint32(s.rules.MaxPrefixes))
	return &Notification{
		Code: Cease, Subcode: MaxPrefixesReached, Data: data,
		Reason: fmt.Sprintf("maximum number of prefixes reached: it announces more than %d", s.rules.MaxPrefixes),
	}
}
