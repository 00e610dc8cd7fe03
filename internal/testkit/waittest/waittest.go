// Package waittest polls for conditions that must become true. The limits are no expectation of speed.
package waittest

import (
	"errors"
	"sync"
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

// Late returns what tells for how long, until it is called, this process had no CPU although it wanted it: other processes, whose time is
// measured, had none either.
func Late(t testing.TB) (late func() time.Duration) {
	const nap = 5 * time.Millisecond
	done, sum := make(chan struct{}), make(chan time.Duration, 1)
	stop := sync.OnceFunc(func() { close(done) })
	t.Cleanup(stop)
	go func() {
		var late time.Duration
		for {
			select {
			case <-done:
				sum <- late
				return
			default:
			}
			began := time.Now()
			time.Sleep(nap)
			if over := time.Since(began) - nap; over > nap {
				late += over
			}
		}
	}()
	return func() time.Duration { stop(); return <-sum }
}
