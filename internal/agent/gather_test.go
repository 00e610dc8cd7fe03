package agent

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/bgp/radv"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// idle returns an agent with sources of events that ended its last pass long ago.
func idle() (*Agent, *peers) {
	speaker := newPeers()
	a := &Agent{Deps: Deps{Watch: &cluster.Watch{}, Speaker: speaker}, routers: radv.New(nil, nil)}
	a.records, a.evidence = newRecords(nil), newEvidence(nil)
	a.full = time.Now()
	return a, speaker
}

// A flapping peer costs at most a pass in coalesce, and delays none for longer than tableTime.
func TestPassesWhileAPeerFlaps(t *testing.T) {
	const window = time.Second
	for every, most := range map[time.Duration]int{
		time.Millisecond:       int(window/tableTime) + 1,
		2 * time.Millisecond:   int(window/tableTime) + 1,
		5 * time.Millisecond:   int(window / coalesce),
		10 * time.Millisecond:  int(window / coalesce),
		19 * time.Millisecond:  int(window / coalesce),
		21 * time.Millisecond:  int(window / coalesce),
		100 * time.Millisecond: int(window / (100 * time.Millisecond)),
	} {
		synctest.Test(t, func(t *testing.T) {
			a, speaker := idle()
			begun := time.Now()
			var flapping sync.WaitGroup
			defer flapping.Wait()
			flapping.Go(func() {
				for time.Since(begun) < window {
					waittest.Advance(every)
					speaker.tell(false)
				}
			})
			passes := 0
			for last := begun; ; passes++ {
				if !a.wait(t.Context(), window) {
					t.Fatal("the context has ended")
				}
				if time.Since(begun) > window {
					break
				}
				if took := time.Since(last); took > every+coalesce+tableTime+2*tableGap {
					t.Errorf("an UPDATE each %v: %v between two passes", every, took)
				}
				last, a.ended = time.Now(), time.Now()
			}
			if passes == 0 || passes > most+1 {
				t.Errorf("an UPDATE each %v: %d passes in %v, want at most %d", every, passes, window, most+1)
			}
		})
	}
}

// The pause is tableGap only for events of the speaker alone, and only long enough after the last pass.
func TestPauseBeforeAPass(t *testing.T) {
	update := func(_ *Agent, p *peers) { p.tell(false) }
	record := func(a *Agent, _ *peers) { wait.Signal(a.records.changed) }
	for name, c := range map[string]struct {
		rest         time.Duration // since the last pass
		first, later func(*Agent, *peers)
		want         time.Duration
	}{
		"an UPDATE":                     {time.Second, update, nil, tableGap},
		"soon after a pass":             {coalesce, update, nil, coalesce},
		"a record":                      {time.Second, record, nil, coalesce},
		"an UPDATE after a record":      {time.Second, record, update, coalesce + tableGap},
		"a record soon after an UPDATE": {time.Second, update, record, coalesce},
		"two UPDATEs":                   {time.Second, update, update, 2 * tableGap},
	} {
		synctest.Test(t, func(t *testing.T) {
			a, speaker := idle()
			a.ended = time.Now()
			waittest.Advance(c.rest)
			begun := time.Now()
			c.first(a, speaker)
			if c.later != nil {
				time.AfterFunc(tableGap/2, func() { c.later(a, speaker) })
			}
			a.wait(t.Context(), time.Second)
			if got := time.Since(begun); got != c.want {
				t.Errorf("%s: the pass begins after %v, want %v", name, got, c.want)
			}
		})
	}
}
