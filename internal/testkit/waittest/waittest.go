// Package waittest polls for conditions that must become true. The limits are no expectation of speed.
package waittest

import (
	"errors"
	"testing"
	"time"
)

// Pauses between two checks: short at first, then long enough that polling costs little.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 50 * time.Millisecond
)

// For polls until check returns nil. The test fails with the last error of check after limit.
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

// Until is For with a boolean condition; what describes it in the failure.
func Until(t testing.TB, limit time.Duration, what string, so func() bool) {
	t.Helper()
	For(t, limit, func() error {
		if !so() {
			return errors.New(what)
		}
		return nil
	})
}
