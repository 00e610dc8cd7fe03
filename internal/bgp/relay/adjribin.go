package relay

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// adjRIBIn is a session's Adj-RIB-In (RFC 4271 section 3.2), from which paths go to the speaker behind. When import
// rules change it is evaluated again from memory: not every peer supports ROUTE-REFRESH.
type adjRIBIn struct {
	order sync.Mutex // held while passing messages on, which keeps their order
	back  net.Conn   // the speaker behind; nil: the session has not begun, or is over; guarded by order

	mu      sync.Mutex                   // guards the rest, and the session's wire
	judged  *Rules                       // rules of the last full evaluation; later messages may have met newer ones
	refused map[netip.Prefix]string      // refused prefixes with the reason
	changed map[netip.Prefix]wire.Change // prefixes passed on otherwise than announced
	ended   time.Time                    // when its End-of-RIB was passed on; zero: not yet
}

// Refusal is a reason for refusing prefixes that a peer announces.
type Refusal struct {
	Reason   string
	Prefixes int
	Example  netip.Prefix // one of them
}

// tools are the buffers for rewriting a message. Sessions borrow them: there can be thousands, few at work.
type tools struct {
	wire.Editor
	buf []byte
}

var lent = sync.Pool{New: func() any { return new(tools) }}

// borrow returns tools for messages of the session. The caller puts them back into lent, after which messages made with
// them are invalid.
func (s *session) borrow(ownAS int) *tools {
	t := lent.Get().(*tools)
	t.OwnAS, t.Via = ownAS, netip.Addr{}
	return t
}

// check judges a message and notes the decision on each prefix. The verdict holds the message to pass on.
func (s *session) check(message []byte, t *tools) wire.Verdict {
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	v := s.wire.Check(message)
	if v.Reset != nil || wire.TypeOf(message) != wire.Update {
		return v
	}
	for _, p := range v.Gone {
		s.in.note(p, wire.Change{}, "")
	}
	for _, p := range v.Refused {
		s.in.note(p, wire.Change{}, v.Refusal)
	}
	v.Pass = s.edit(v.Pass, s.link.rules.Load(), t)
	return v
}

// edit applies the rules to checked UPDATEs. Lock in.mu is held.
func (s *session) edit(text []byte, rules *Rules, t *tools) (passed []byte) {
	for message := range wire.Messages(text) {
		t.Family = wire.FamilyIn(message)
		parts, err := t.Edit(message, func(p netip.Prefix, a *wire.Attributes) wire.Change {
			change, reason := rules.imports(p, a, s.out.self)
			s.in.note(p, change, reason)
			return change
		})
		if err != nil { // wire made it for this
			s.link.relay.log.Error("BGP message of a peer could not be edited and was dropped", "peer", s.link.peer.Addr, "error", err)
			continue
		}
		if len(parts) == 1 && len(passed) == 0 && len(parts[0]) == len(text) {
			return parts[0]
		}
		for _, part := range parts {
			passed = append(passed, part...)
		}
	}
	return passed
}

// noteEnd notes that the whole table was passed on.
func (s *session) noteEnd() {
	s.in.mu.Lock()
	if s.in.ended.IsZero() {
		s.in.ended = s.link.relay.now()
	}
	s.in.mu.Unlock()
	s.link.tableEnded()
}

// note keeps the decision on a prefix, if it is not the usual one.
func (in *adjRIBIn) note(p netip.Prefix, change wire.Change, reason string) {
	delete(in.refused, p)
	delete(in.changed, p)
	switch {
	case reason != "":
		put(&in.refused, p, reason)
	case !change.Equal(wire.Change{}):
		put(&in.changed, p, change)
	}
}

// put sets an entry of a map. Most of thousands of maps stay empty, and nil.
func put[V any](m *map[netip.Prefix]V, p netip.Prefix, v V) {
	if *m == nil {
		*m = make(map[netip.Prefix]V)
	}
	(*m)[p] = v
}

// pass passes text on to the speaker behind at its pace. Lock in.order is held.
func (s *session) pass(ctx context.Context, text []byte) bool {
	for message := range wire.Messages(text) {
		if wire.TypeOf(message) == wire.Update {
			wire.ReplaceAS(message, s.link.peer.SpeakerASN, wire.MaskedASN)
			s.link.behind.Throttle(ctx, message)
		}
		if !pass(s.in.back, message) {
			return false
		}
	}
	return true
}

// judgeAgain passes on the changes that the current rules make to the peer's paths. Touched paths are passed on in any
// case, with a new epoch, so that their announcements to other peers are judged again.
func (s *session) judgeAgain(ctx context.Context, epoch uint8, touched func(netip.Prefix) bool) {
	s.in.order.Lock()
	defer s.in.order.Unlock()
	s.judge(ctx, epoch, touched)
}

// judge is judgeAgain with order held.
func (s *session) judge(ctx context.Context, epoch uint8, touched func(netip.Prefix) bool) {
	if s.in.back != nil {
		s.pass(ctx, s.changed(s.link.rules.Load(), epoch, touched)) // on failure the reader of the peer's messages finds out
	}
}

func untouched(netip.Prefix) bool { return false }

func all(netip.Prefix) bool { return true }

// changed returns messages about prefixes with a changed decision, and about touched ones.
func (s *session) changed(now *Rules, epoch uint8, touched func(netip.Prefix) bool) (text []byte) {
	t := s.borrow(0)
	defer lent.Put(t)
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	before := s.in.judged
	s.in.judged = now
	if before.Client != now.Client {
		s.wire.SetSource(now.source())
		touched = all
	}
	others := make(map[netip.Prefix]bool)
	if !before.sameImports(now) {
		for message := range s.wire.Table(0, all) {
			t.Family = wire.FamilyIn(message)
			_, _ = t.Edit(message, func(p netip.Prefix, a *wire.Attributes) wire.Change {
				old, why := before.imports(p, a, s.out.self)
				if change, reason := now.imports(p, a, s.out.self); why != reason || !old.Equal(change) {
					others[p] = true
				}
				return wire.Change{}
			})
		}
	}
	for message := range s.wire.Table(epoch, func(p netip.Prefix) bool { return others[p] || touched(p) }) {
		text = append(text, s.edit(message, now, t)...)
	}
	return text
}

// refusals counts refused prefixes by reason.
func (s *session) refusals() []Refusal {
	byReason := make(map[string]Refusal)
	for p, reason := range s.in.refused {
		r := byReason[reason]
		if r.Prefixes == 0 || p.Compare(r.Example) < 0 {
			r.Example = p
		}
		r.Reason, r.Prefixes = reason, r.Prefixes+1
		byReason[reason] = r
	}
	return slices.SortedFunc(maps.Values(byReason), func(a, b Refusal) int { return strings.Compare(a.Reason, b.Reason) })
}
