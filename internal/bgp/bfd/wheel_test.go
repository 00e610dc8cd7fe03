package bfd

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestWheel: each session has one turn, in the first tick at or after the time of its last placement, within a slot. A
// removed one has none. A turn beyond the wheel's reach may come early, and is placed again.
func TestWheel(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	w := &wheel{origin: start}
	sessions := make([]session, 50)
	at := map[*session]time.Time{}
	now := start
	for range 20_000 {
		s := &sessions[r.IntN(len(sessions))]
		switch r.IntN(4) {
		case 0:
			now = now.Add(time.Duration(r.ExpFloat64() * float64(20*time.Millisecond)))
			if r.IntN(500) == 0 {
				now = now.Add(3 * slots * slot) // a process that was stopped
			}
			for _, s := range w.due(nil, now) {
				placed, waits := at[s]
				switch delete(at, s); {
				case !waits:
					t.Fatal("a turn of a session that has none")
				case placed.After(now):
					w.place(s, placed)
					at[s] = placed
				}
			}
			for _, placed := range at {
				if placed.Add(slot).Before(now) {
					t.Fatalf("no turn %v after its time", now.Sub(placed))
				}
			}
		case 1:
			w.remove(s)
			delete(at, s)
		default:
			asked := now.Add(time.Duration(r.Int64N(int64(2*slots*slot))) - 50*slot)
			w.place(s, asked)
			if at[s] = asked; asked.Before(now) {
				at[s] = now // a turn that has passed is the next one
			}
		}
	}
}
