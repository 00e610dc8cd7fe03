package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore/datastoretest"
)

// Three processes whose requests fail at random for minutes, and which die and are replaced: never do two lead, and somebody leads again
// soon after all is well.
func TestOneLeads(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) { electionOf(t, seed) })
	}
}

func electionOf(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	store := datastoretest.NewFake()
	var mu sync.Mutex // guards all below
	leading := map[string]bool{}
	broken := map[int]bool{}
	terms := 0
	var running sync.WaitGroup
	start := func(place, n int) context.CancelFunc {
		ctx, stop := context.WithCancel(t.Context())
		name := fmt.Sprintf("%d-%d", place, n)
		session := store.Session(func(context.Context, datastoretest.Request) datastoretest.Fault {
			mu.Lock()
			defer mu.Unlock()
			if broken[place] || rng.IntN(20) == 0 {
				return []datastoretest.Fault{datastoretest.Unavailable, datastoretest.Lost}[rng.IntN(2)]
			}
			return datastoretest.None
		})
		e := NewElector(session, "ns", name, slog.New(slog.DiscardHandler))
		running.Go(func() {
			e.Run(ctx, func(ctx context.Context) {
				mu.Lock()
				leading[name] = true
				terms++
				if len(leading) > 1 {
					t.Errorf("seed %d: %v lead", seed, leading)
				}
				mu.Unlock()
				<-ctx.Done()
				mu.Lock()
				delete(leading, name)
				mu.Unlock()
			})
		})
		return stop
	}
	var stops [3]context.CancelFunc
	for i := range stops {
		stops[i] = start(i, 0)
	}
	for n := range 60 {
		time.Sleep(time.Duration(rng.Int64N(int64(40 * time.Second))))
		mu.Lock()
		place, what := rng.IntN(3), rng.IntN(3)
		if what < 2 {
			broken[place] = what == 0
		}
		mu.Unlock()
		if what == 2 {
			stops[place]()
			stops[place] = start(place, n+1)
		}
	}
	mu.Lock()
	clear(broken)
	mu.Unlock()
	time.Sleep(time.Minute)
	mu.Lock()
	if len(leading) != 1 || terms < 3 {
		t.Errorf("seed %d: in the end %v lead, after %d terms", seed, leading, terms)
	}
	mu.Unlock()
	for _, stop := range stops {
		stop()
	}
	running.Wait()
	lease := api.Lease{Meta: api.Meta{Namespace: "ns", Name: LeaseName}}
	if err := store.Get(context.Background(), &lease); err != nil || errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
