package bfd

import "time"

const (
	// slot is the width of a wheel's slots: how much later than asked for a session's turn may come, beside the engine's
	// tick.
	slot = time.Millisecond
	// slots is how far ahead a wheel reaches; what is due later has an early turn there, in which there is nothing to do.
	slots = 1024
)

// wheel has sessions by when there is something to do for them. A tick of a wheel costs as much as there is to do,
// however many sessions wait.
type wheel struct {
	origin time.Time
	passed int64 // the slot that was last taken, counted from origin
	slots  [slots][]*session
}

// place gives a session its turn at t, in place of the one it has. A turn that has passed is the next one.
func (w *wheel) place(s *session, t time.Time) {
	turn := int64((t.Sub(w.origin) + slot - 1) / slot)
	turn = min(max(turn, w.passed+1), w.passed+slots-1)
	if s.turn == turn {
		return
	}
	s.turn = turn // which ends the turn that s may have in another slot
	i := turn % slots
	w.slots[i] = append(w.slots[i], s)
}

// remove takes the session's turn away.
func (w *wheel) remove(s *session) { s.turn = 0 }

// due appends the sessions whose turn has come to list; they have none until they are placed again.
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
