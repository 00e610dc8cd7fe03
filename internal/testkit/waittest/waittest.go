// Package waittest is the one place where tests wait. For and Until poll for conditions that must become true; their
// limits do not test speed: a busy machine may exceed them. Advance is for the clock of a bubble of testing/synctest.
// No test waits for a time of the real clock: it waits for an event, or uses the clock of a bubble.
package waittest

import (
	"errors"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/app/config"
)

// Pauses between two checks: short at first, then long enough that polling costs little. After two seconds a pause is a
// fortieth of the wait so far: some checks read all objects of an API server.
const (
	firstPause = 5 * time.Millisecond
	usualPause = 50 * time.Millisecond
	lastPause  = 250 * time.Millisecond
	ofTheWait  = 40
)

// next returns the pause after a pause, by the length of the wait so far.
func next(pause, waited time.Duration) time.Duration {
	return max(min(2*pause, usualPause), min(waited/ofTheWait, lastPause))
}

// emulated is a machine with an emulated processor.
var emulated = func() bool {
	scale, _ := config.OS()("TORTIE_LAB_TIMESCALE")
	return scale != ""
}()

// mostMore bounds the additional wait on a busy machine.
const mostMore = 2 * time.Minute

// stretched returns the wait for a condition that takes at most limit on an idle machine: three times as long, or ten
// times on an emulated machine.
func stretched(limit time.Duration) time.Duration {
	if emulated {
		return 10 * limit
	}
	return limit + min(2*limit, mostMore)
}

// Advance moves the clock of a bubble of testing/synctest by d, while the rest of the bubble runs. It refuses the real
// clock: a bubble begins in the year 2000.
func Advance(d time.Duration) {
	if time.Now().Year() >= 2020 {
		panic("waittest.Advance outside of a bubble of testing/synctest")
	}
	time.Sleep(d)
}

// For polls until check returns nil. The test fails with the last error of check after limit, which a busy or emulated
// machine may exceed.
func For(t testing.TB, limit time.Duration, check func() error) {
	t.Helper()
	limit = stretched(limit)
	begun := time.Now()
	for pause := firstPause; ; pause = next(pause, time.Since(begun)) {
		err := check()
		if err == nil {
			return
		}
		if time.Since(begun) > limit {
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
