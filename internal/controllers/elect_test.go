package controllers

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// election is some processes and their datastore.
type election struct {
	t       *testing.T
	store   *datastoretest.Fake
	running sync.WaitGroup
	work    time.Duration // how long a leader's work takes to end

	mu      sync.Mutex // guards all below
	rng     *rand.Rand
	leading []string
	terms   int
	faults  [3]fault // by a process's place
}

func newElection(t *testing.T, seed uint64) *election {
	return &election{t: t, store: datastoretest.NewFake(), rng: rand.New(rand.NewPCG(seed, 0))}
}

// start starts a process, and returns what ends it.
func (e *election) start(place, n int) context.CancelFunc {
	ctx, stop := context.WithCancel(e.t.Context())
	name := fmt.Sprintf("%d-%d", place, n)
	elector := NewElector(&network{election: e, place: place}, "ns", LeaseName, name, slog.New(slog.DiscardHandler))
	e.running.Go(func() { elector.Run(ctx, func(ctx context.Context) { e.lead(ctx, name) }) })
	return stop
}

// lead is the work of a leader.
func (e *election) lead(ctx context.Context, name string) {
	e.mu.Lock()
	e.leading = append(e.leading, name)
	e.terms++
	if len(e.leading) > 1 {
		e.t.Errorf("%v lead", e.leading)
	}
	e.mu.Unlock()
	<-ctx.Done()
	if lease := e.lease(); lease.Spec.HolderIdentity == name {
		renewed, err := time.Parse(api.MicroTime, lease.Spec.RenewTime)
		if led := time.Since(renewed).Truncate(10 * time.Microsecond); err != nil || led > defaultTerms.renew {
			e.t.Errorf("%s led for %s after it had asked for its last renewal; %v", name, led, err)
		}
	}
	waittest.Advance(e.work)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leading = slices.DeleteFunc(e.leading, func(other string) bool { return other == name })
}

// leaders returns who leads, and how many terms there were.
func (e *election) leaders() ([]string, int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.leading), e.terms
}

func (e *election) lease() *api.Lease {
	lease := &api.Lease{Meta: api.Meta{Namespace: "ns", Name: LeaseName}}
	if err := e.store.Get(context.Background(), lease); err != nil {
		e.t.Error(err)
	}
	return lease
}

func (e *election) set(place int, f fault) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults[place] = f
}

func (e *election) random(n int64) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rng.Int64N(n)
}

// fault is what becomes of a process's requests.
type fault int

const (
	noneFail       fault = iota
	someFail             // of twenty one is refused and one loses its answer; one in ten takes long, there, back or both
	twoOfThreeFail       // are refused
	allFail              // are refused
	allHang              // do not arrive
	allSlow              // are answered late
)

// hang is longer than anybody waits for an answer, slow is not.
const (
	hang = 8 * time.Second
	slow = 2500 * time.Millisecond
)

// network is a process's way to the datastore.
type network struct {
	*election
	place int
	sent  int
}

// never is how long what does not arrive takes.
const never = time.Duration(math.MaxInt64)

// travel returns how long the next request takes there, and its answer back. A request that is refused does not arrive.
func (n *network) travel() (there, back time.Duration, refused bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent++
	switch n.faults[n.place] {
	case someFail:
		pick := func() time.Duration { return []time.Duration{0, slow / 2, slow, hang}[n.rng.IntN(4)] }
		switch n.rng.IntN(20) {
		case 0:
			return 0, 0, true
		case 1:
			return 0, never, false
		case 2, 3:
			return pick(), pick(), false
		}
	case twoOfThreeFail:
		return 0, 0, n.sent%3 != 0
	case allFail:
		return 0, 0, true
	case allHang:
		return never, 0, false
	case allSlow:
		return 0, slow, false
	}
	return 0, 0, false
}

// do sends a request. One that is given up arrives all the same.
func (n *network) do(ctx context.Context, serve func(context.Context) error) error {
	there, back, refused := n.travel()
	if refused {
		return datastore.ErrUnavailable
	}
	if there == never {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", datastore.ErrUnavailable, ctx.Err())
	}
	answer := make(chan error, 1)
	go func() {
		waittest.Advance(there)
		err := serve(context.WithoutCancel(ctx))
		if back != never {
			waittest.Advance(back)
			answer <- err
		}
	}()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", datastore.ErrUnavailable, ctx.Err())
	}
}

func (n *network) Get(ctx context.Context, obj api.Resource) error {
	return n.do(ctx, func(ctx context.Context) error { return n.store.Get(ctx, obj) })
}

func (n *network) List(ctx context.Context, list api.ResourceList, opts datastore.ListOptions) error {
	return n.do(ctx, func(ctx context.Context) error { return n.store.List(ctx, list, opts) })
}

func (n *network) Create(ctx context.Context, obj api.Resource) error {
	return n.do(ctx, func(ctx context.Context) error { return n.store.Create(ctx, obj) })
}

func (n *network) Update(ctx context.Context, obj api.Resource) error {
	return n.do(ctx, func(ctx context.Context) error { return n.store.Update(ctx, obj) })
}

func (n *network) Delete(ctx context.Context, obj api.Resource) error {
	return n.do(ctx, func(ctx context.Context) error { return n.store.Delete(ctx, obj) })
}

// The requests of three processes fail at random for minutes, are answered late and take effect even later, and the
// processes die and are replaced: two never lead at the same time, and one leads soon after the failures end, and
// continues.
func TestOneLeads(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { electionOf(t, seed) })
		})
	}
}

func electionOf(t *testing.T, seed uint64) {
	e := newElection(t, seed)
	for place := range e.faults {
		e.set(place, someFail)
	}
	var stops [3]context.CancelFunc
	for i := range stops {
		stops[i] = e.start(i, 0)
	}
	for n := range 60 {
		waittest.Advance(time.Duration(e.random(int64(40 * time.Second))))
		place := int(e.random(3))
		switch e.random(4) {
		case 0:
			e.set(place, allFail)
		case 1:
			e.set(place, allHang)
		case 2:
			e.set(place, someFail)
		case 3:
			stops[place]()
			stops[place] = e.start(place, n+1)
		}
	}
	for place := range e.faults {
		e.set(place, noneFail)
	}
	waittest.Advance(time.Minute)
	leaders, terms := e.leaders()
	if len(leaders) != 1 || terms < 3 {
		t.Errorf("a minute after the faults %v lead, after %d terms", leaders, terms)
	}
	waittest.Advance(10 * time.Minute)
	if later, after := e.leaders(); !slices.Equal(leaders, later) || after != terms {
		t.Errorf("without faults %v lead after %d terms, and then %v after %d", leaders, terms, later, after)
	}
	for _, stop := range stops {
		stop()
	}
	e.running.Wait()
}

// What ends the term of a leader, and when its successor's begins.
func TestTerms(t *testing.T) {
	for name, c := range map[string]struct {
		before  fault
		faults  fault
		last    time.Duration
		another bool          // another process leads in the end
		ends    time.Duration // the term has ended by then
	}{
		"requests are refused for as long as two attempts": {faults: allFail, last: 5 * time.Second},
		"requests are refused for as long as three":        {faults: allFail, last: 8 * time.Second},
		"no request is answered for as long as two":        {faults: allHang, last: 6 * time.Second},
		"every answer takes long":                          {faults: allSlow, last: 30 * time.Minute},
		"two requests of three are refused":                {faults: twoOfThreeFail, last: 30 * time.Minute},
		"requests are refused for too long after late answers": {before: allSlow, faults: allFail, last: 30 * time.Second,
			another: true, ends: 12 * time.Second},
		"requests are refused for too long":   {faults: allFail, last: 30 * time.Second, another: true, ends: 12 * time.Second},
		"no request is answered for too long": {faults: allHang, last: 30 * time.Second, another: true, ends: 12 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newElection(t, 0)
				e.set(0, c.before)
				first := e.start(0, 0)
				waittest.Advance(9100 * time.Millisecond) // no request begins as the faults do
				second := e.start(1, 0)
				waittest.Advance(time.Second)
				began := time.Now()
				e.set(0, c.faults)
				if c.ends > 0 {
					waittest.Advance(c.ends)
					if leaders, _ := e.leaders(); len(leaders) != 0 {
						t.Errorf("%v lead %s after the last renewal", leaders, c.ends)
					}
					waittest.Advance(20*time.Second - c.ends)
					if leaders, _ := e.leaders(); !slices.Equal(leaders, []string{"1-0"}) {
						t.Errorf("%v lead after 20 seconds", leaders)
					}
				}
				waittest.Advance(c.last - time.Since(began))
				e.set(0, noneFail)
				waittest.Advance(time.Minute)
				want, terms := []string{"0-0"}, 1
				if c.another {
					want, terms = []string{"1-0"}, 2
				}
				if leaders, n := e.leaders(); !slices.Equal(leaders, want) || n != terms {
					t.Errorf("%v lead after %d terms, want %v after %d", leaders, n, want, terms)
				}
				first()
				second()
				e.running.Wait()
			})
		})
	}
}

// A leader that is asked to end releases the lease when its work has ended, and not before.
func TestALeaderThatEndsGivesTheLeaseBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const work = 8 * time.Second
		e := newElection(t, 0)
		e.work = work
		first := e.start(0, 0)
		waittest.Advance(10 * time.Second)
		second := e.start(1, 0)
		waittest.Advance(10 * time.Second)
		first()
		waittest.Advance(work - time.Second)
		if leaders, _ := e.leaders(); !slices.Equal(leaders, []string{"0-0"}) {
			t.Errorf("%v lead while the work of 0-0 ends", leaders)
		}
		waittest.Advance(time.Second + 3*time.Second)
		if leaders, _ := e.leaders(); !slices.Equal(leaders, []string{"1-0"}) {
			t.Errorf("%v lead 3 seconds after it has ended", leaders)
		}
		second()
		e.running.Wait()
		if lease := e.lease(); lease.Spec.HolderIdentity != "" || lease.Spec.LeaseTransitions != 2 {
			t.Errorf("%+v", lease.Spec)
		}
	})
}

// A deleted lease is created again by the leader.
func TestADeletedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newElection(t, 0)
		stop := e.start(0, 0)
		waittest.Advance(10 * time.Second)
		errtest.Must(t, e.store.Delete(t.Context(), e.lease()))
		waittest.Advance(time.Minute)
		if leaders, terms := e.leaders(); len(leaders) != 1 || terms != 1 || e.lease().Spec.HolderIdentity != "0-0" {
			t.Errorf("%v lead after %d terms, by %+v", leaders, terms, e.lease().Spec)
		}
		stop()
		e.running.Wait()
	})
}
