// Package waittest is the one place where tests wait. For and Until poll for what must become true; their limits are no
// expectation of speed: a busy machine may exceed them. Advance is for the clock of a bubble of testing/synctest. No
// test waits for a time of the real clock: it hears of an event instead, or takes the clock of a bubble.
package waittest

import (
	"errors"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/app/config"
)

// Pauses between two checks: short at first, then long enough that polling costs little. After two seconds a pause is a
// fortieth of the wait so far: some checks read all that an API server has.
const (
	firstPause = 5 * time.Millisecond
	usualPause = 50 * time.Millisecond
	lastPause  = 250 * time.Millisecond
	ofTheWait  = 40
)

// next returns the pause after another one, by how long the wait has been.
func next(pause, waited time.Duration) time.Duration {
	return max(min(2*pause, usualPause), min(waited/ofTheWait, lastPause))
}

// emulated is a machine with an emulated processor.
var emulated = func() bool {
	scale, _ := config.OS()("TORTIE_LAB_TIMESCALE")
	return scale != ""
}()

// mostMore bounds what a busy machine gets.
const mostMore = 2 * time.Minute

// stretched returns how long to wait for what takes limit at most on a machine that does nothing else: three times as
// long, or, on an emulated one, ten times.
func stretched(limit time.Duration) time.Duration {
	if emulated {
		return 10 * limit
	}
	return limit + min(2*limit, mostMore)
}

// Advance lets the clock of a bubble of testing/synctest go on by d, while what else is in the bubble acts. It refuses
// the real clock: a bubble begins in the year 2000.
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
