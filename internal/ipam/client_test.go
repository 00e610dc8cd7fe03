package ipam

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/datastoretest"
	"github.com/tortie-net/tortie/internal/names"
)

// recorder notes the requests of a client: reads, which run in parallel, sorted, and writes in their order.
type recorder struct {
	mu            sync.Mutex // guards the rest
	reads, writes []string
}

func (r *recorder) hook(_ context.Context, req datastoretest.Request) datastoretest.Fault {
	r.mu.Lock()
	defer r.mu.Unlock()
	if req.Write() {
		r.writes = append(r.writes, req.String())
	} else {
		r.reads = append(r.reads, strings.TrimSpace(req.String()))
		slices.Sort(r.reads)
	}
	return datastoretest.None
}

func TestRequests(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(*testing.T, *Client)
		do     func(context.Context, *Client) error
		reads  []string
		writes []string
	}{
		{
			name: "first pod of a node",
			do:   assignPod("h"),
			reads: []string{
				"GET IPAMConfig default", "GET Node node-a", "LIST BlockAffinity", "LIST IPAMBlock", "LIST IPPool", "LIST IPReservation",
			},
			writes: []string{
				"POST BlockAffinity node-a-10-0-0-12-30", "POST IPAMHandle h", "POST IPAMBlock 10-0-0-12-30",
				"PUT BlockAffinity node-a-10-0-0-12-30",
			},
		},
		{
			name:   "n-th pod of a node",
			before: func(t *testing.T, c *Client) { must(t, assignPod("first")(t.Context(), c)) },
			do:     assignPod("h"),
			reads: []string{
				"GET IPAMBlock 10-0-0-12-30", "GET IPAMConfig default", "GET Node node-a", "LIST BlockAffinity", "LIST IPPool", "LIST IPReservation",
			},
			writes: []string{"POST IPAMHandle h", "PUT IPAMBlock 10-0-0-12-30"},
		},
		{
			name:   "release",
			before: func(t *testing.T, c *Client) { must(t, assignPod("h")(t.Context(), c)) },
			do:     releasePod("h"),
			reads:  []string{"GET IPAMBlock 10-0-0-12-30", "GET IPAMHandle h"},
			writes: []string{"PUT IPAMBlock 10-0-0-12-30", "DELETE IPAMHandle h"},
		},
		{
			name:  "release of what does not exist",
			do:    releasePod("h"),
			reads: []string{"GET IPAMHandle h"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := datastoretest.NewFake()
			seed(t, store)
			if c.before != nil {
				c.before(t, client(store))
			}
			var r recorder
			if err := c.do(t.Context(), client(store.Session(r.hook))); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.reads, r.reads); d != "" {
				t.Errorf("reads (-want +got):\n%s", d)
			}
			if d := cmp.Diff(c.writes, r.writes); d != "" {
				t.Errorf("writes (-want +got):\n%s", d)
			}
		})
	}
}

func assignPod(handle string) func(context.Context, *Client) error {
	return func(ctx context.Context, c *Client) error {
		_, err := c.Assign(ctx, podRequest("node-a", handle))
		return err
	}
}

func releasePod(handle string) func(context.Context, *Client) error {
	return func(ctx context.Context, c *Client) error {
		_, err := c.Release(ctx, handle)
		return err
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAssignIsIdempotent(t *testing.T) {
	store := datastoretest.NewFake()
	seed(t, store)
	c := client(store)
	req := podRequest("node-a", "h")
	req.V6 = true
	first, err := c.Assign(t.Context(), req)
	must(t, err)
	second, err := c.Assign(t.Context(), req)
	must(t, err)
	if d := cmp.Diff(first, second, byValue); d != "" {
		t.Errorf("assigned (-first +second):\n%s", d)
	}
	held, err := c.Addresses(t.Context(), "h")
	must(t, err)
	slices.SortFunc(held, netip.Addr.Compare)
	if d := cmp.Diff(addresses(first), held, byValue); d != "" {
		t.Errorf("held (-assigned +got):\n%s", d)
	}
	must(t, audit(store, map[string][]netip.Addr{"h": addresses(first)}))
}

// A request that is repeated when the pool has run out gets the address that its handle holds.
func TestAssignAgainInAFullPool(t *testing.T) {
	store := datastoretest.NewFake()
	seed(t, store)
	c := client(store)
	live := map[string][]netip.Addr{}
	for i := range 16 {
		handle := "h" + string(rune('a'+i))
		got, err := c.Assign(t.Context(), podRequest(hosts[i%3], handle))
		must(t, err)
		live[handle] = addresses(got)
	}
	_, err := c.Assign(t.Context(), podRequest("node-a", "one-too-many"))
	checkRefusal(t, err, ErrExhausted, "no free address in [pool-a 10.0.0.0/28]")
	for handle, want := range live {
		got, err := c.Assign(t.Context(), podRequest("node-b", handle))
		must(t, err)
		if d := cmp.Diff(want, addresses(got), byValue); d != "" {
			t.Errorf("assigned again (-first +second):\n%s", d)
		}
	}
	must(t, audit(store, live))
}

// A list that is a little old must not make a request fail: not one that lacks the pool, nor one that shows a full cluster.
func TestOldListsRefuseNothing(t *testing.T) {
	store := datastoretest.NewFake()
	store.SetLag(func(states int) int { return states })
	seed(t, store)
	got, err := client(store).Assign(t.Context(), podRequest("node-a", "h"))
	must(t, err)
	must(t, audit(store, map[string][]netip.Addr{"h": addresses(got)}))
}

func TestReleaseReturnsWhatItFreed(t *testing.T) {
	store := datastoretest.NewFake()
	seed(t, store)
	c := client(store)
	req := podRequest("node-a", "H.Mixed")
	req.V6 = true
	got, err := c.Assign(t.Context(), req)
	must(t, err)
	// The second block's write meets a conflict: the first block is free by then.
	conflicts := 0
	s := store.Session(func(_ context.Context, r datastoretest.Request) datastoretest.Fault {
		if r.Write() && r.Kind == "IPAMBlock" && r.Writes == 2 {
			conflicts++
			return datastoretest.Conflict
		}
		return datastoretest.None
	})
	freed, err := client(s).Release(t.Context(), "H.Mixed")
	must(t, err)
	if d := cmp.Diff(addresses(got), freed, byValue); d != "" || conflicts != 1 {
		t.Errorf("freed after %d conflicts (-want +got):\n%s", conflicts, d)
	}
	freed, err = c.Release(t.Context(), "H.Mixed")
	if err != nil || freed != nil {
		t.Errorf("second release: %v, %v, want nothing", freed, err)
	}
	must(t, audit(store, nil))
}

// An affinity that no list shows stops nobody: one that is marked deleted, by a process that died before it removed it, and
// one that a Calico before 3.31 wrote without labels.
func TestClaimsMeetAffinitiesThatNoListShows(t *testing.T) {
	marked := claimed("node-a", "10.0.0.12/30", api.AffinityPendingDeletion)
	marked.MarkDeleted()
	unlabelled := claimed("node-a", "10.0.0.12/30", api.AffinityConfirmed)
	unlabelled.Labels, unlabelled.Annotations = nil, nil
	for _, c := range []struct {
		name string
		objs []api.Resource
		want string
		live map[string][]netip.Addr
	}{
		{"marked deleted", []api.Resource{marked}, "10.0.0.12", nil},
		{"marked deleted, its block still there", []api.Resource{marked, stored("10.0.0.12/30", "node-a").obj}, "10.0.0.12", nil},
		{"unlabelled", []api.Resource{unlabelled, stored("10.0.0.12/30", "node-a", "x").obj, storedHandle("x", "10.0.0.12/30=1")}, "10.0.0.13",
			map[string][]netip.Addr{"x": {netip.MustParseAddr("10.0.0.12")}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := datastoretest.NewFake()
			seed(t, store)
			mustCreate(t, store, c.objs...)
			got, err := client(store).Assign(t.Context(), podRequest("node-a", "h"))
			must(t, err)
			if addresses(got)[0].String() != c.want {
				t.Errorf("assigned %v, want %s", got, c.want)
			}
			live := map[string][]netip.Addr{"h": addresses(got)}
			maps.Copy(live, c.live)
			must(t, audit(store, live))
			a := &api.BlockAffinity{Meta: api.Meta{Name: names.Affinity("node-a", got[0].Block)}}
			must(t, store.Get(t.Context(), a))
			if d := cmp.Diff(newAffinity("node-a", got[0].Block).Labels, a.Labels); d != "" || !a.Confirmed() {
				t.Errorf("state %s, labels (-want +got):\n%s", a.Spec.State, d)
			}
		})
	}
}

// Objects that contradict themselves stop what depends on them with an error that names them, before anything is written.
func TestDamagedObjectsAreNamed(t *testing.T) {
	damaged := stored("10.0.0.0/30", "node-a", "x").obj
	damaged.Spec.Unallocated[0] = -4
	for _, c := range []struct {
		name string
		objs []api.Resource
		do   func(context.Context, *Client) error
		want string
	}{
		{"own block", []api.Resource{damaged, claimed("node-a", "10.0.0.0/30", confirmed)}, assignPod("h"), "IPAMBlock 10-0-0-0-30 is damaged"},
		{"a block of the cluster", []api.Resource{damaged}, assignPod("h"), "IPAMBlock 10-0-0-0-30 is damaged"},
		{"the handle's block", []api.Resource{damaged, storedHandle("h", "10.0.0.0/30=1")}, releasePod("h"), "IPAMBlock 10-0-0-0-30 is damaged"},
		{"affinity", []api.Resource{func() *api.BlockAffinity {
			a := claimed("node-a", "10.0.0.0/30", confirmed)
			a.Spec.CIDR = "10.0.0.0"
			return a
		}()}, assignPod("h"), `BlockAffinity node-a-10-0-0-0-30: spec.cidr "10.0.0.0" is no CIDR`},
		{"handle of another owner", []api.Resource{func() *api.IPAMHandle {
			h := storedHandle("H")
			return h
		}()}, releasePod("h"), `IPAMHandle h belongs to handle ID "H", not to "h"`},
		{"pool", []api.Resource{poolObject("pool-b", "10.1.0.0/16", func(p *api.IPPool) { p.Spec.BlockSize = 8 })}, assignPod("h"),
			"IPPool pool-b: spec.blockSize 8"},
		{"reservation", []api.Resource{&api.IPReservation{Meta: api.Meta{Name: "r"}, Spec: api.IPReservationSpec{ReservedCIDRs: []string{"10.0.0"}}}},
			assignPod("h"), `IPReservation r: spec.reservedCIDRs: "10.0.0" is neither a CIDR nor an address`},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := datastoretest.NewFake()
			seed(t, store)
			mustCreate(t, store, c.objs...)
			var r recorder
			err := c.do(t.Context(), client(store.Session(r.hook)))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if len(r.writes) > 0 {
				t.Errorf("written: %v", r.writes)
			}
		})
	}
}

func TestAssignNeedsTheNode(t *testing.T) {
	store := datastoretest.NewFake()
	seed(t, store)
	_, err := client(store).Assign(t.Context(), podRequest("nowhere", "h"))
	if !errors.Is(err, datastore.ErrNotFound) || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("error %v, want one that names node nowhere", err)
	}
}

// Who always loses gives up, and leaves nothing.
func TestAssignGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := datastoretest.NewFake()
		seed(t, store)
		s := store.Session(func(_ context.Context, r datastoretest.Request) datastoretest.Fault {
			if r.Kind == "IPAMBlock" && r.Verb == "POST" {
				return datastoretest.Conflict
			}
			return datastoretest.None
		})
		began := time.Now()
		_, err := client(s).Assign(t.Context(), podRequest("node-a", "h"))
		if !errors.Is(err, datastore.ErrExists) || !strings.Contains(err.Error(), "given up after 100 tries") {
			t.Errorf("error %v", err)
		}
		if took := time.Since(began); took < time.Second || took > maxTries*3*maxPause/2 {
			t.Errorf("giving up took %v: want pauses that grow to %v", took, maxPause)
		}
		must(t, audit(store, nil))
	})
}

// A deadline ends a contest, and what was written is undone in time of its own.
func TestAssignEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := datastoretest.NewFake()
		seed(t, store)
		s := store.Session(func(_ context.Context, r datastoretest.Request) datastoretest.Fault {
			if r.Kind == "IPAMBlock" && r.Verb == "POST" {
				return datastoretest.Conflict
			}
			return datastoretest.None
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := client(s).Assign(ctx, podRequest("node-a", "h"))
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, datastore.ErrExists) {
			t.Errorf("error %v, want the deadline and what it waited for", err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("it took %v, want 1s", took)
		}
		must(t, audit(store, nil))
	})
}

func TestUnavailableDatastore(t *testing.T) {
	store := datastoretest.NewFake()
	seed(t, store)
	s := store.Session(func(context.Context, datastoretest.Request) datastoretest.Fault { return datastoretest.Unavailable })
	for name, do := range map[string]func(context.Context, *Client) error{"assign": assignPod("h"), "release": releasePod("h")} {
		if err := do(t.Context(), client(s)); !errors.Is(err, datastore.ErrUnavailable) {
			t.Errorf("%s: error %v, want %v", name, err, datastore.ErrUnavailable)
		}
	}
}

// A refusal is sure also when it comes at a later try, which reads only the blocks again: here somebody takes the own block's
// last address, and the list that the first try accepted lacks the pool that was just made.
func TestLateRefusalsAreSure(t *testing.T) {
	store := datastoretest.NewFake()
	mustCreate(t, store, poolObject("one", "10.0.0.0/30"), &api.Node{Meta: api.Meta{Name: "node-a"}},
		claimed("node-a", "10.0.0.0/30", confirmed), stored("10.0.0.0/30", "node-a", "a", "b", "c").obj)
	store.SetLag(func(states int) int { return min(states, 1) })
	mustCreate(t, store, poolObject("two", "10.1.0.0/30"))
	raced := false
	s := store.Session(func(ctx context.Context, r datastoretest.Request) datastoretest.Fault {
		if r.Verb != "PUT" || r.Kind != "IPAMBlock" || raced {
			return datastoretest.None
		}
		raced = true
		store.SetLag(func(int) int { return 0 })
		if _, err := client(store).Assign(ctx, podRequest("node-a", "faster")); err != nil {
			t.Error(err)
		}
		return datastoretest.None
	})
	got, err := client(s).Assign(t.Context(), podRequest("node-a", "h"))
	if err != nil || addresses(got)[0].String() != "10.1.0.0" || !raced {
		t.Errorf("assigned %v, %v, raced %v: want 10.1.0.0", got, err, raced)
	}
}
