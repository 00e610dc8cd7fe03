package policies_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// slowEngine takes its time for each pass. It always has an event, or none unless it is busy.
type slowEngine struct {
	policies.Engine
	takes  time.Duration
	busy   bool
	events chan struct{}
	passes []time.Time // when each began
}

func (e *slowEngine) Remove(context.Context) error {
	e.passes = append(e.passes, time.Now())
	waittest.Advance(e.takes)
	if e.busy {
		e.events <- struct{}{}
	}
	return nil
}

func (e *slowEngine) Events(context.Context) (<-chan struct{}, error) { return e.events, nil }

// A user who may change pods cannot keep a processor busy: a long pass is followed by a pause of the same length, a
// short one by a short pause. An idle worker makes a pass now and then.
func TestPassesHavePauses(t *testing.T) {
	for name, c := range map[string]struct {
		takes   time.Duration
		busy    bool
		between time.Duration // the beginnings of two passes
	}{
		"long":    {100 * time.Millisecond, true, 200 * time.Millisecond},
		"short":   {time.Millisecond, true, 11 * time.Millisecond},
		"nothing": {time.Millisecond, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			kernel := netnstest.New(t).Conn
			synctest.Test(t, func(t *testing.T) {
				e := &slowEngine{takes: c.takes, busy: c.busy, events: make(chan struct{}, 1)}
				w := policies.New(policies.Options{Mode: config.PolicyOff, Engine: e, Kernel: kernel, Log: slog.New(slog.DiscardHandler)})
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				if err := w.Run(ctx); err != nil {
					t.Fatal(err)
				}
				if passes := w.Seen().Passes; !c.busy && (len(e.passes) != 1 || passes > 7) {
					t.Errorf("%d looks in a minute, of which %d changed something", passes, len(e.passes))
				} else if c.busy && len(e.passes) < 2 {
					t.Errorf("%d passes in a minute", len(e.passes))
				}
				for i := range len(e.passes) - 1 {
					if got := e.passes[i+1].Sub(e.passes[i]); got != c.between {
						t.Fatalf("pass %d begins after %v, want %v", i+1, got, c.between)
					}
				}
			})
		})
	}
}
