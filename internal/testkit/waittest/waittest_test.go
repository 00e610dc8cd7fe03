package waittest

import (
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// recorder is a test that records whether it failed.
type recorder struct {
	testing.TB
	failed bool
}

func (t *recorder) Helper() {}

func (t *recorder) Fatalf(string, ...any) {
	t.failed = true
	runtime.Goexit()
}

// What takes long is looked at less often, and never late by more than a fortieth of the wait or fifty milliseconds.
func TestPauses(t *testing.T) {
	for _, c := range []struct{ pause, waited, want time.Duration }{
		{5 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond},
		{40 * time.Millisecond, 75 * time.Millisecond, 50 * time.Millisecond},
		{50 * time.Millisecond, 2 * time.Second, 50 * time.Millisecond},
		{50 * time.Millisecond, 4 * time.Second, 100 * time.Millisecond},
		{100 * time.Millisecond, time.Minute, 250 * time.Millisecond},
	} {
		if got := next(c.pause, c.waited); got != c.want {
			t.Errorf("after a pause of %v and %v in all: %v, want %v", c.pause, c.waited, got, c.want)
		}
	}
}

// A busy machine may take three times as long, within bounds, and an emulated one ten times; then the test fails.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name        string
		emulated    bool
		limit, most time.Duration
	}{
		{"busy", false, time.Second, 3 * time.Second},
		{"busy, with a long limit", false, 10 * time.Minute, 12 * time.Minute},
		{"emulated", true, 10 * time.Minute, 100 * time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := emulated
			defer func() { emulated = before }()
			emulated = c.emulated
			for comes, fails := range map[time.Duration]bool{0: false, c.most - time.Second/2: false, c.most + time.Second/2: true} {
				synctest.Test(t, func(t *testing.T) {
					r, began := &recorder{TB: t}, time.Now()
					done := make(chan struct{})
					go func() {
						defer close(done)
						For(r, c.limit, func() error {
							if time.Since(began) < comes {
								return errors.New("not yet")
							}
							return nil
						})
					}()
					<-done
					if r.failed != fails {
						t.Errorf("true after %v: failed %v, want %v", comes, r.failed, fails)
					}
				})
			}
		})
	}
}
