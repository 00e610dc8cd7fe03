package controllers

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestAlive: what other goroutines change does not keep a process alive whose loop of passes is stuck.
func TestAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &board{}
		alive := func(want bool) {
			t.Helper()
			if err := b.alive(t.Context()); (err == nil) != want {
				t.Errorf("alive: %v, want %v", err, want)
			}
		}
		wait := func(d time.Duration) {
			for range 10 {
				<-time.After(d / 10)
				b.change(func(s *Status) { s.RouteReflectors = append(s.RouteReflectors, "node1") })
			}
		}
		wait(2 * stuckAfter)
		alive(true) // nothing was listed yet
		b.turn(func(s *Status) { s.Synced = true })
		wait(stuckAfter - time.Second)
		alive(true)
		wait(2 * time.Second)
		alive(false)
		b.turn(func(*Status) {})
		alive(true)
	})
}
