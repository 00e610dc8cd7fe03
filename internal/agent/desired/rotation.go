package desired

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/wireguard"
)

// A node changes its key without losing a packet: a second device with the new key receives beside the first one as
// long as both keys are valid. The state of a change is in the kernel and in annotations, so an agent can end and start
// anew at any time:
//
//  1. The node makes its second device and announces its key as the next one.
//  2. Other nodes make second devices too, with the keys they have. A node that has completed a handshake with a peer
//     through the second device sends to it there.
//  3. Once that holds for all nodes that take part and are reachable, for followTime, the first device gets the new
//     key, and the node announces it as its key: key and next key are equal again.
//  4. A node that has completed a handshake through the first device sends there again. A node that sends nothing
//     through its second device keeps it for retireTime: another agent may have ended before it could do the same.
//
// Two nodes that begin at the same time have a second device with a new key each, and know each other by these keys
// there. A node does not begin while it sees another node's change.
type rotation struct {
	began   time.Time // when this agent first saw the change
	settled time.Time // since when no other node is waited for; zero: one is
	idle    time.Time // since when the second device is unused
	quiet   time.Time // until when the node leaves it to others to begin
	due     time.Time // since when the node should begin and has not; zero: it should not
}

// turn is what a node does in changes of keys.
type turn struct {
	// second: there is a second device, with the node's next key (own) or its only key. begin: it is made anew.
	second, own, begin bool
	// since is when the change was seen first, zero without one.
	since time.Time
	// take: the first device gets the key of the second one.
	take bool
	// waiting are the nodes that the change of this node's key waits for.
	waiting []string
	// ahead are the nodes that change their keys before this node, which has been due since due.
	ahead []string
	due   time.Time
}

const (
	// turnKeepalive keeps sessions of second devices alive, in seconds, and shows which peers are reachable there.
	turnKeepalive = 10
	// In each countTime a node that does not answer counts as changing its key for at most turnTime, one that answers for
	// at most longTurn. No other node begins meanwhile, and a stolen node's token could announce changes without end.
	turnTime, longTurn = time.Hour, 4 * time.Hour
	countTime          = 24 * time.Hour
	retireTime         = 10 * time.Minute
)

// turn decides which device sends to a node, given the next key that the node announces.
func (p *knownPeer) turn(next wireguard.Key, state *wireguard.State, now time.Time) {
	p.count(now)
	p.announced = next
	p.next, p.second, p.changes = wireguard.Key{}, false, false
	if next == (wireguard.Key{}) {
		return
	}
	var answered time.Time
	if state.Second != nil {
		answered = state.Second.Handshakes[next]
	}
	p.changes = next != p.key && (p.spent < turnTime || alive(answered, now) && p.spent < longTurn)
	if p.changes || state.Changes() || !answered.IsZero() {
		p.next = next
	}
	_, first := state.Handshakes[p.key]
	p.second = alive(answered, now) && (p.changes || state.Changes() || !first)
}

// count adds the time since the last call to the time spent on a change, if one was under way then.
func (p *knownPeer) count(now time.Time) {
	if now.Sub(p.counted) >= countTime {
		p.spent, p.counted = 0, now
	} else if p.changes {
		p.spent += now.Sub(p.judged)
	}
	p.judged = now
}

// alive reports whether a session can be used.
func alive(handshake, now time.Time) bool { return now.Sub(handshake) < wireguard.SessionTime }

// follow decides about the second device.
func (r *rotation) follow(s *Snapshot, peers map[string]knownPeer, state *wireguard.State, now time.Time,
	i int) (t turn, again time.Duration) {
	for name, p := range peers {
		t.second = t.second || p.second
		if p.changes {
			t.ahead = append(t.ahead, name)
		}
		if takesPart := !p.gone && p.announced != (wireguard.Key{}); takesPart && !p.second && alive(state.Handshakes[p.key], now) {
			t.waiting = append(t.waiting, name)
		}
	}
	slices.Sort(t.waiting)
	slices.Sort(t.ahead)
	others := len(t.ahead) > 0
	switch {
	case !s.Self.RotateKeys[i] || state.Changes():
		r.due = time.Time{}
	case r.due.IsZero():
		r.due = now
	}
	t.due = r.due
	if others || r.quiet.IsZero() {
		r.quiet = now.Add(rand.N(time.Duration(len(s.Others)+1) * time.Second))
	}
	used := t.second || others || state.Changes()
	switch {
	case used || state.Second == nil:
		r.idle = time.Time{}
	case r.idle.IsZero():
		r.idle = now
	}
	free := state.Second == nil || !r.idle.IsZero() && now.Sub(r.idle) >= followTime
	t.begin = s.encrypts(cryptKind(i)) && s.Self.RotateKeys[i] && !used && free && !now.Before(r.quiet)
	t.own = t.begin || state.Changes()
	t.second = used || t.begin || state.Second != nil && now.Sub(r.idle) < retireTime
	if r.end(&t, state, now); used || s.Self.RotateKeys[i] {
		again = time.Second
	}
	return t, again
}

// end decides whether the first device takes the new key.
func (r *rotation) end(t *turn, state *wireguard.State, now time.Time) {
	if !state.Changes() {
		r.began, r.settled, t.waiting = time.Time{}, time.Time{}, nil
		return
	}
	if r.began.IsZero() {
		r.began = now
	}
	t.since = r.began
	switch {
	case len(t.waiting) > 0:
		r.settled = time.Time{}
	case r.settled.IsZero():
		r.settled = now
	default:
		t.take = now.Sub(r.settled) >= followTime
	}
}

// SecondWireGuard returns a family's second device without peers; nil if this node should not have it.
func (s *Snapshot) SecondWireGuard(v6 bool) *wireguard.Device {
	d, t := s.WireGuard(v6), s.crypt[place(v6)].turn
	if d == nil || !t.second {
		return nil
	}
	d.Second, d.SameKey, d.Port, d.Keepalive = true, !t.own, s.Felix.WireGuard.secondPort(place(v6)), turnKeepalive
	return d
}

// BeginsRotation reports whether the second device must be made anew, with a new key.
func (s *Snapshot) BeginsRotation(v6 bool) bool { return s.crypt[place(v6)].begin }

// KeyDue reports whether a key must be changed: an operator asked after the device got it, or its age is reached. The
// age is lengthened by up to a tenth, so that nodes that began at the same time differ.
func KeyDue(public wireguard.Key, since, asked time.Time, age time.Duration, now time.Time) bool {
	if public == (wireguard.Key{}) || since.IsZero() {
		return false
	}
	later := age / 10 / math.MaxUint16 * time.Duration(binary.BigEndian.Uint16(public[:]))
	return asked.After(since) || age > 0 && now.Sub(since) >= age+later
}

// rotationPatience is how long a change of the key may wait for other nodes before that is a problem to show. Before it
// begins, each node may have taken a turn of rotationTurn.
const (
	rotationPatience = 5 * time.Minute
	rotationTurn     = time.Minute
)

// Unrotated returns problems that name nodes for which a change of this node's key has waited too long.
func (s *Snapshot) Unrotated(now time.Time) (problems []error) {
	for i := range s.crypt {
		t := &s.crypt[i].turn
		if len(t.waiting) > 0 && now.Sub(t.since) >= rotationPatience {
			problems = append(problems, fmt.Errorf("%s: the new key waits for nodes (%d), such as %s: see that their agents run and that "+
				"UDP port %d is open between nodes, or remove annotation %s of a node that has no such agent", wireguard.Name(i == 1), len(t.waiting),
				t.waiting[0], s.Felix.WireGuard.secondPort(i), NextKeyAnnotations[i]))
		}
		if len(t.ahead) > 0 && !t.due.IsZero() && now.Sub(t.due) >= rotationPatience+time.Duration(len(s.Others))*rotationTurn {
			problems = append(problems, fmt.Errorf("%s: a new key is due since %s, and nodes (%d), such as %s, have begun before and "+
				"do not end: see what theirs wait for in the status of their agents, or remove annotation %s of a node whose agent does not run",
				wireguard.Name(i == 1), t.due.UTC().Format(time.RFC3339), len(t.ahead), t.ahead[0], NextKeyAnnotations[i]))
		}
	}
	return problems
}

// TakesKey reports whether a family's first device should get the second one's key, and returns the peers reached
// through the second device: their handshakes with the former key must not count.
func (s *Snapshot) TakesKey(v6 bool) (peers []wireguard.Key, takes bool) {
	c := &s.crypt[place(v6)]
	for _, p := range c.peers {
		if p.second {
			peers = append(peers, p.key)
		}
	}
	return peers, c.take
}
