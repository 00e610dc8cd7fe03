// Package waittest lets tests wait for what must happen. How long they wait says nothing of how long that should take.
package waittest

import (
	"errors"
	"testing"
	"time"
)

// The pauses between two looks: short at first, for what is nearly so, then such that looking costs little.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 50 * time.Millisecond
)

// For waits until check returns nil. The test fails with what check said last when the limit is over.
func For(t testing.TB, limit time.Duration, check func() error) {
	t.Helper()
	end := time.Now().Add(limit)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %v", limit, err)
		}
		time.Sleep(pause)
	}
}

// Until is For where there is no reason to give but that it is not so; what names it.
func Until(t testing.TB, limit time.Duration, what string, so func() bool) {
	t.Helper()
	For(t, limit, func() error {
		if !so() {
			return errors.New(what)
		}
		return nil
	})
}
