package policies_test

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// slowEngine takes its time for each pass, and always has an event.
type slowEngine struct {
	policies.Engine
	takes  time.Duration
	events chan struct{}
	passes atomic.Int64
}

func (e *slowEngine) Sync(context.Context, *policy.Ruleset, []netip.Addr) (netpol.Stats, error) {
	return netpol.Stats{}, nil
}

func (e *slowEngine) Remove(context.Context) error {
	e.passes.Add(1)
	time.Sleep(e.takes)
	e.events <- struct{}{}
	return nil
}

func (*slowEngine) Probe(context.Context) error { return nil }

func (e *slowEngine) Events(context.Context) (<-chan struct{}, error) { return e.events, nil }

// Whoever may change pods does not keep a processor busy: passes that take long have pauses of the same length, those
// that do not are made at once.
func TestPassesHavePauses(t *testing.T) {
	for name, c := range map[string]struct {
		takes       time.Duration
		least, most int64 // passes in a second
	}{"long": {100 * time.Millisecond, 1, 6}, "short": {time.Millisecond, 15, 110}} {
		t.Run(name, func(t *testing.T) {
			e := &slowEngine{takes: c.takes, events: make(chan struct{}, 200)}
			w := policies.New(policies.Options{Mode: config.PolicyOff, Engine: e, Kernel: netnstest.New(t).Conn, Log: slog.New(slog.DiscardHandler)})
			ctx, stop := context.WithTimeout(t.Context(), time.Second)
			defer stop()
			if err := w.Run(ctx); err != nil {
				t.Fatal(err)
			}
			if n := e.passes.Load(); n < c.least || n > c.most {
				t.Errorf("%d passes in a second, want %d to %d", n, c.least, c.most)
			}
		})
	}
}
