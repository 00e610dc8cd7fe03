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
