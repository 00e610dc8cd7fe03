package bfd

import "time"

const (
	// slot is the width of a wheel's slots: a session's turn may be that much late, apart from the engine's tick.
	slot = time.Millisecond
	// slots is how far ahead a wheel reaches. A later turn comes early, and does nothing.
	slots = 1024
)

// wheel holds sessions by their next turn. The cost of a tick depends on the sessions that are due, not on how many
// wait.
type wheel struct {
	origin time.Time
	passed int64 // the last slot passed, counted from origin
	slots  [slots][]*session
}

// place replaces a session's turn by one at t. For a time that has passed it is the next slot.
func (w *wheel) place(s *session, t time.Time) {
	turn := int64((t.Sub(w.origin) + slot - 1) / slot)
	turn = min(max(turn, w.passed+1), w.passed+slots-1)
	if s.turn == turn {
		return
	}
	s.turn = turn // invalidates a turn that s may have in another slot
	i := turn % slots
	w.slots[i] = append(w.slots[i], s)
}

// remove drops the session's turn.
func (w *wheel) remove(s *session) { s.turn = 0 }

// due appends the sessions with a due turn to list; they have none until they are placed again.
func (w *wheel) due(list []*session, now time.Time) []*session {
	last := int64(now.Sub(w.origin) / slot)
	for turn := max(w.passed+1, last-slots+1); turn <= last; turn++ {
		in := &w.slots[turn%slots]
		for _, s := range *in {
			if s.turn > 0 && s.turn <= last {
				s.turn = 0
				list = append(list, s)
			}
		}
		clear(*in)
		*in = (*in)[:0]
	}
	w.passed = max(w.passed, last)
	return list
}
