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

// A node changes its key without the loss of a packet by a second device, which has the new key and receives beside the
// first one, as long as there are both keys. What must be known of a change is in the kernel and in annotations, so an
// agent can end and start anew at any time:
//
//  1. The node makes its second device and announces that key as its next one.
//  2. Other nodes make second devices too, with the keys they have. Who has completed a handshake with a peer by that
//     device sends there by it.
//  3. When that is so of all nodes that take part and can be reached, and has been for followTime, the first device
//     gets the new key, and the node announces that as its key, too: it differs from the next one no more.
//  4. Who has completed a handshake by the first device sends there by it again. A node that sends nothing by its
//     second device keeps it for retireTime: the agent of another one may have ended before it could do the same.
//
// Two nodes that begin at one time have a second device with a new key each, and know each other there by these. A node
// does not begin while it sees another one's change.
type rotation struct {
	began   time.Time // since when this agent knows of the change
	settled time.Time // since when the node waits for no other one; zero: it does
	idle    time.Time // since when the second device is there for nothing
	quiet   time.Time // until when the node leaves it to others to begin
	due     time.Time // since when the node is to begin and has not; zero: it is not
}

// turn is what a node has to do in changes of keys.
type turn struct {
	// second: there is a second device, with the node's next key (own) or its only one. begin: it is made anew.
	second, own, begin bool
	// since is when the change was seen first, zero without one.
	since time.Time
	// take: the first device gets the key of the second one.
	take bool
	// waiting are the nodes that the change of this node's key waits for.
	waiting []string
	// ahead are the nodes whose changes come before that of this node's key, which has been due since then.
	ahead []string
	due   time.Time
}

const (
	// turnKeepalive keeps sessions of second devices alive, in seconds, and shows who can be reached by the first ones.
	turnKeepalive = 10
	// turnTime bounds how long, in each countTime, a node is believed to change its key that does not answer, and
	// longTurn, one that does: no node begins meanwhile, and whoever has a node's token can have it change without end.
	turnTime, longTurn = time.Hour, 4 * time.Hour
	countTime          = 24 * time.Hour
	retireTime         = 10 * time.Minute
)

// turn decides by which device a node is sent to, given the next key that it announces.
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

// count takes the time since the last look for that of a change, if there was one then.
func (p *knownPeer) count(now time.Time) {
	if now.Sub(p.counted) >= countTime {
		p.spent, p.counted = 0, now
	} else if p.changes {
		p.spent += now.Sub(p.judged)
	}
	p.judged = now
}

// alive reports that a session can be used.
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

// BeginsRotation reports that the device is to be made anew, with a new key.
func (s *Snapshot) BeginsRotation(v6 bool) bool { return s.crypt[place(v6)].begin }

// KeyDue reports that a key is to be changed: that was asked for after the device got it, or it has come of age. Nodes
// that began at one time differ by up to a tenth.
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

// Unrotated names the nodes that a change of this node's key has waited for too long.
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

// TakesKey reports whether a family's device is to get the key of the second one, and the peers that no handshake of
// its former key is to count of.
func (s *Snapshot) TakesKey(v6 bool) (peers []wireguard.Key, takes bool) {
	c := &s.crypt[place(v6)]
	for _, p := range c.peers {
		if p.second {
			peers = append(peers, p.key)
		}
	}
	return peers, c.take
}
