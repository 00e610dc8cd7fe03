package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// metronome records the requests of a client in rounds: each request takes a second of a bubble's time, so that
// requests sent together end together.
type metronome struct {
	mu     sync.Mutex // guards rounds
	rounds [][]string
	began  time.Time
}

func (m *metronome) hook(_ context.Context, r datastoretest.Request) datastoretest.Fault {
	m.mu.Lock()
	n := int(time.Since(m.began) / time.Second)
	for len(m.rounds) <= n {
		m.rounds = append(m.rounds, nil)
	}
	m.rounds[n] = append(m.rounds[n], strings.TrimSpace(r.String()))
	slices.Sort(m.rounds[n])
	m.mu.Unlock()
	waittest.Advance(time.Second)
	return datastoretest.None
}

// knownTo returns the facts that an agent of the host would have: all but the labels of namespaces.
func knownTo(t testing.TB, store datastore.Store, host string) *Known {
	t.Helper()
	k := &Known{Config: DefaultConfig()}
	cfg := &api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}}
	if store.Get(t.Context(), cfg) == nil {
		k.Config = cfg.Spec
	}
	var pools api.IPPoolList
	var reservations api.IPReservationList
	var affinities api.BlockAffinityList
	for _, list := range []api.ResourceList{&pools, &reservations, &affinities} {
		errtest.Must(t, store.List(t.Context(), list, datastore.ListOptions{}))
	}
	k.Pools, k.Reservations = pools.Items, reservations.Items
	for _, a := range affinities.Items {
		if a.Spec.Node != host {
			continue
		}
		c := Claim{BlockAffinity: a}
		obj := &api.IPAMBlock{Meta: api.Meta{Name: strings.TrimPrefix(a.Name, host+"-")}}
		if store.Get(t.Context(), obj) == nil {
			c.Free = ptr(len(obj.Spec.Unallocated))
		}
		k.Claims = append(k.Claims, c)
	}
	return k
}

// begin is Begin and Finish of a request, with an agent's facts.
func begin(known *Known, req Request) func(context.Context, *Client) error {
	return func(ctx context.Context, c *Client) error {
		start := Start{Owner: req.Owner, Host: req.Host, V4: req.V4, V6: req.V6, Known: known}
		_, err := c.Begin(ctx, start).Finish(ctx, req)
		return err
	}
}

type roundsCase struct {
	name    string
	objs    []api.Resource
	before  []string // handles that node-a has assigned before
	known   func(*Known)
	request func(*Request)
	blind   bool // nothing is known
	want    []string
	err     error
}

func TestRequestsAndRounds(t *testing.T) {
	full := []string{"a", "b", "c", "d"}
	dual := func(r *Request) { r.V6 = true }
	const slow = "GET IPAMConfig default, LIST BlockAffinity, LIST IPPool, LIST IPReservation"
	// The agent's data is read again before a block is claimed.
	const again = "GET IPAMConfig default, LIST BlockAffinity, LIST IPAMBlock, LIST IPPool, LIST IPReservation"
	for _, c := range []roundsCase{
		{
			name: "n-th pod, nothing known", blind: true, before: []string{"x"},
			want: []string{slow, "GET IPAMBlock 10-0-0-12-30, POST IPAMHandle h", "PUT IPAMBlock 10-0-0-12-30"},
		},
		{
			name: "first pod, nothing known", blind: true,
			want: []string{slow, "LIST BlockAffinity, LIST IPAMBlock", "POST BlockAffinity node-a-10-0-0-12-30, POST IPAMHandle h",
				"POST IPAMBlock 10-0-0-12-30", "PUT BlockAffinity node-a-10-0-0-12-30"},
		},
		{
			name: "n-th pod, nothing known, dual stack", blind: true, before: []string{"x"}, request: dual,
			want: []string{slow, "GET IPAMBlock 10-0-0-12-30, GET IPAMBlock fd00---126, POST IPAMHandle h",
				"PUT IPAMBlock 10-0-0-12-30, PUT IPAMBlock fd00---126"},
			objs: []api.Resource{claimed("node-a", "fd00::/126", confirmed), stored("fd00::/126", "node-a").obj},
		},
		{
			name: "n-th pod", before: []string{"x"},
			want: []string{"GET IPAMBlock 10-0-0-12-30, POST IPAMHandle h", "PUT IPAMBlock 10-0-0-12-30"},
		},
		{
			name: "n-th pod, dual stack", before: []string{"x"}, request: dual,
			want: []string{"GET IPAMBlock 10-0-0-12-30, GET IPAMBlock fd00---126, POST IPAMHandle h",
				"PUT IPAMBlock 10-0-0-12-30, PUT IPAMBlock fd00---126"},
			objs: []api.Resource{claimed("node-a", "fd00::/126", confirmed), stored("fd00::/126", "node-a").obj},
		},
		{
			name: "n-th pod of a node with two blocks: the one with more room is taken", before: []string{"x", "y"},
			want: []string{"GET IPAMBlock 10-0-0-0-30, POST IPAMHandle h", "PUT IPAMBlock 10-0-0-0-30"},
			objs: []api.Resource{claimed("node-a", "10.0.0.0/30", confirmed), stored("10.0.0.0/30", "node-a", "z").obj,
				storedHandle("z", "10.0.0.0/30=1")},
		},
		{
			name: "first pod",
			want: []string{again, "POST BlockAffinity node-a-10-0-0-12-30, POST IPAMHandle h", "POST IPAMBlock 10-0-0-12-30",
				"PUT BlockAffinity node-a-10-0-0-12-30"},
		},
		{
			name: "first pod, dual stack", request: dual,
			want: []string{
				again,
				"POST BlockAffinity node-a-10-0-0-12-30, POST BlockAffinity node-a-fd00--c-126, POST IPAMHandle h",
				"POST IPAMBlock 10-0-0-12-30, POST IPAMBlock fd00--c-126",
				"PUT BlockAffinity node-a-10-0-0-12-30, PUT BlockAffinity node-a-fd00--c-126",
			},
		},
		{
			name: "the first pod over a full block, which is looked at beside the names", before: full,
			want: []string{"GET IPAMBlock 10-0-0-12-30, " + again, "POST BlockAffinity node-a-10-0-0-0-30, POST IPAMHandle h",
				"POST IPAMBlock 10-0-0-0-30", "PUT BlockAffinity node-a-10-0-0-0-30"},
		},
		{
			name: "a block that is thought to be full and is not", before: []string{"x"},
			known: func(k *Known) { k.Claims[0].Free = ptr(0) },
			want:  []string{"GET IPAMBlock 10-0-0-12-30, " + again, "POST IPAMHandle h", "PUT IPAMBlock 10-0-0-12-30"},
		},
		{
			name: "a block that is thought to have room and has none", before: full,
			known: func(k *Known) { k.Claims[0].Free = ptr(2) },
			want: []string{"GET IPAMBlock 10-0-0-12-30, POST IPAMHandle h", again,
				"POST BlockAffinity node-a-10-0-0-0-30, PUT IPAMHandle h", "POST IPAMBlock 10-0-0-0-30", "PUT BlockAffinity node-a-10-0-0-0-30"},
		},
		{
			name: "the request knows better which pool", before: []string{"x"},
			request: func(r *Request) { r.PoolsV4 = []string{"other"} },
			objs: []api.Resource{poolObject("other", "10.5.0.0/30"), claimed("node-a", "10.5.0.0/30", confirmed),
				stored("10.5.0.0/30", "node-a", "y", "y2").obj, storedHandle("y", "10.5.0.0/30=1"), storedHandle("y2", "10.5.0.0/30=1")},
			want: []string{"GET IPAMBlock 10-0-0-12-30, POST IPAMHandle h", "GET IPAMBlock 10-5-0-0-30", "PUT IPAMHandle h",
				"PUT IPAMBlock 10-5-0-0-30"},
		},
		{
			name: "the handle exists", before: []string{"h"},
			want: []string{"GET IPAMBlock 10-0-0-12-30, POST IPAMHandle h", "GET IPAMHandle h"},
		},
		{
			name: "an address that is asked for", blind: true,
			request: func(r *Request) { r.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.13")} }, before: []string{"x"},
			want: []string{slow, "GET IPAMBlock 10-0-0-12-30, POST IPAMHandle h", "PUT IPAMBlock 10-0-0-12-30"},
		},
		{
			name: "an address that is taken: the handle is taken back", before: []string{"x"},
			request: func(r *Request) { r.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.12")} }, err: ErrTaken,
			want: []string{
				"GET IPAMBlock 10-0-0-12-30, POST IPAMHandle h", // as if any address would do
				slow, "GET IPAMBlock 10-0-0-12-30", // for a refusal, all is read again, and then for certain
				slow, "GET IPAMBlock 10-0-0-12-30", "DELETE IPAMHandle h",
			},
		},
	} {
		t.Run(c.name, c.run)
	}
}

// A conflict costs the handle, the block and a second write of the block, in two rounds.
func TestRoundsOfAConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := seeded(t)
		live := map[string][]netip.Addr{"x": mustAssign(t, store, podRequest("node-a", "x"))}
		known := knownTo(t, store, "node-a")
		m := &metronome{began: time.Now()}
		s := store.Session(func(ctx context.Context, r datastoretest.Request) datastoretest.Fault {
			if r.String() == "PUT IPAMBlock 10-0-0-12-30" && live["faster"] == nil {
				live["faster"] = mustAssign(t, store, podRequest("node-a", "faster"))
			}
			return m.hook(ctx, r)
		})
		errtest.Must(t, begin(known, podRequest("node-a", "h"))(t.Context(), client(s)))
		want := []string{
			"GET IPAMBlock 10-0-0-12-30, POST IPAMHandle h", "PUT IPAMBlock 10-0-0-12-30",
			"GET IPAMBlock 10-0-0-12-30, GET IPAMHandle h", "PUT IPAMBlock 10-0-0-12-30",
		}
		var got []string
		for _, r := range m.rounds {
			got = append(got, strings.Join(r, ", "))
		}
		difftest.Want(t, "rounds", want, got)
		held, err := client(store).Addresses(t.Context(), "h")
		errtest.Must(t, err)
		live["h"] = held
		errtest.Must(t, audit(store, live))
	})
}

// A DEL that comes while an ADD meets a conflict removes the handle. The ADD writes it again before it assigns.
func TestHandleRemovedBetweenTries(t *testing.T) {
	store := seeded(t)
	mustAssign(t, store, podRequest("node-a", "x"))
	met := false
	s := store.Session(func(ctx context.Context, r datastoretest.Request) datastoretest.Fault {
		if r.String() == "PUT IPAMBlock 10-0-0-12-30" && !met {
			met = true
			_, err := client(store).Release(ctx, "h")
			errtest.Must(t, err)
		}
		return datastoretest.None
	})
	got, err := client(s).Assign(t.Context(), podRequest("node-a", "h"))
	errtest.Must(t, err)
	if !met {
		t.Fatal("no conflict")
	}
	errtest.Must(t, audit(store, map[string][]netip.Addr{"x": {netip.MustParseAddr("10.0.0.12")}, "h": addresses(got)}))
}

func (c roundsCase) run(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := seeded(t, c.objs...)
		live := liveHandles(t, store)
		for _, handle := range c.before {
			req := podRequest("node-a", handle)
			req.PoolsV4 = []string{"pool-a"}
			got, err := client(store).Assign(t.Context(), req)
			errtest.Must(t, err)
			live[handle] = addresses(got)
		}
		known := knownTo(t, store, "node-a")
		if c.known != nil {
			c.known(known)
		}
		if c.blind {
			known = nil
		}
		req := podRequest("node-a", "h")
		if c.request != nil {
			c.request(&req)
		}
		m := &metronome{began: time.Now()}
		if err := begin(known, req)(t.Context(), client(store.Session(m.hook))); !errorIs(err, c.err) {
			t.Fatalf("error %v, want %v", err, c.err)
		}
		var got []string
		for _, r := range m.rounds {
			got = append(got, strings.Join(r, ", "))
		}
		difftest.Want(t, "rounds", c.want, got)
		if held, err := client(store).Addresses(t.Context(), "h"); err != nil {
			t.Error(err)
		} else if len(held) > 0 {
			live["h"] = held
		}
		errtest.Must(t, audit(store, live))
	})
}

func errorIs(err, want error) bool {
	if want == nil {
		return err == nil
	}
	return errors.Is(err, want)
}

// An abandoned request deletes the handle, and only that.
func TestAbandon(t *testing.T) {
	for _, known := range []bool{false, true} {
		store := seeded(t)
		got, err := client(store).Assign(t.Context(), podRequest("node-a", "x"))
		errtest.Must(t, err)
		start := Start{Owner: owner("h"), Host: "node-a", V4: true, Use: api.UseWorkload}
		if known {
			start.Known = knownTo(t, store, "node-a")
		}
		var r recorder
		errtest.Must(t, client(store.Session(r.hook)).Begin(t.Context(), start).Abandon(t.Context()))
		want := map[bool][]string{true: {"POST IPAMHandle h", "DELETE IPAMHandle h"}}[known]
		difftest.Want(t, fmt.Sprintf("known %v: writes", known), want, r.writes)
		errtest.Must(t, audit(store, map[string][]netip.Addr{"x": addresses(got)}))
	}
}

func TestRequestsOfARelease(t *testing.T) {
	for _, c := range []struct {
		name   string
		handle string
		dual   bool
		known  bool
		want   []string
	}{
		{"nothing known", "h", false, false,
			[]string{"GET IPAMConfig default, GET IPAMHandle h", "GET IPAMBlock 10-0-0-12-30", "PUT IPAMBlock 10-0-0-12-30",
				"DELETE IPAMHandle h"}},
		{"known", "h", false, true,
			[]string{"GET IPAMHandle h", "GET IPAMBlock 10-0-0-12-30", "PUT IPAMBlock 10-0-0-12-30", "DELETE IPAMHandle h"}},
		{"known, dual stack", "h", true, true, []string{"GET IPAMHandle h", "GET IPAMBlock 10-0-0-12-30, GET IPAMBlock fd00--c-126",
			"PUT IPAMBlock 10-0-0-12-30, PUT IPAMBlock fd00--c-126", "DELETE IPAMHandle h"}},
		{"of what does not exist", "other", false, true, []string{"GET IPAMHandle other"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := seeded(t)
				req := podRequest("node-a", "h")
				req.V6 = c.dual
				_, err := client(store).Assign(t.Context(), req)
				errtest.Must(t, err)
				var known *Known
				if c.known {
					known = knownTo(t, store, "node-a")
				}
				m := &metronome{began: time.Now()}
				_, err = client(store.Session(m.hook)).ReleaseKnowing(t.Context(), Owner{Handle: c.handle}, "node-a", known)
				errtest.Must(t, err)
				var got []string
				for _, r := range m.rounds {
					got = append(got, strings.Join(r, ", "))
				}
				difftest.Want(t, "rounds", c.want, got)
			})
		})
	}
}

// In a large cluster, neither a node's first pod nor its next reads the contents of the others' blocks.
func TestLargeClusterIsNotRead(t *testing.T) {
	store := datastoretest.NewFake()
	big := func(p *api.IPPool) { p.Spec.BlockSize = 26 }
	mustCreate(t, store, poolObject("big", "10.0.0.0/16", big))
	p := pool(t, "big", "10.0.0.0/16", big)
	for i := range uint64(1000) {
		mustCreate(t, store, NewBlock(p.block(i), "somebody", clock).obj)
	}
	for _, handle := range []string{"first", "second"} {
		for _, known := range []*Known{nil, knownTo(t, store, "node-a")} {
			seen := &counting{Store: store}
			req := podRequest("node-a", handle)
			if known != nil {
				req.Handle += "-known"
			}
			errtest.Must(t, begin(known, req)(t.Context(), client(seen)))
			if seen.blocks > 1 || seen.lists > 0 {
				t.Errorf("%s, known %v: the contents of %d blocks and of %d lists of blocks were read", handle, known != nil, seen.blocks, seen.lists)
			}
		}
	}
}

// counting counts reads of blocks with their contents, and lists.
type counting struct {
	datastore.Store
	mu     sync.Mutex // guards the rest
	blocks int
	lists  int
}

func (c *counting) Get(ctx context.Context, obj api.Resource) error {
	if _, ok := obj.(*api.IPAMBlock); ok {
		c.mu.Lock()
		c.blocks++
		c.mu.Unlock()
	}
	return c.Store.Get(ctx, obj)
}

func (c *counting) List(ctx context.Context, list api.ResourceList, opts datastore.ListOptions) error {
	if _, ok := list.(*api.IPAMBlockList); ok && !opts.NamesOnly {
		c.mu.Lock()
		c.lists++
		c.mu.Unlock()
	}
	return c.Store.List(ctx, list, opts)
}

// Facts that are wrong in any way cost requests, and never an address or a refusal.
func TestWrongFactsAreHarmless(t *testing.T) {
	gone := claimed("node-a", "10.0.0.4/30", confirmed)
	foreign := claimed("node-a", "10.0.0.8/30", confirmed)
	for name, wrong := range map[string]func(*Known){
		"no pool":              func(k *Known) { k.Pools = nil },
		"a pool that is gone":  func(k *Known) { k.Pools = append([]api.IPPool{*poolObject("gone", "10.7.0.0/30")}, k.Pools...) },
		"no claim":             func(k *Known) { k.Claims = nil },
		"a claim that is gone": func(k *Known) { k.Claims = []Claim{{BlockAffinity: *gone, Free: ptr(4)}} },
		"a claim of another's": func(k *Known) { k.Claims = []Claim{{BlockAffinity: *foreign, Free: ptr(4)}} },
		"another node's claim": func(k *Known) { k.Claims[0].Spec.Node = "node-b" },
		"an old revision":      func(k *Known) { k.Claims[0].ResourceVersion = "0" },
		"all reserved": func(k *Known) {
			k.Reservations = []api.IPReservation{{Spec: api.IPReservationSpec{ReservedCIDRs: []string{"0.0.0.0/0"}}}}
		},
		"a limit":                   func(k *Known) { k.Config.MaxBlocksPerHost, k.Claims[0].Free = 1, nil },
		"another node's labels":     func(k *Known) { k.NodeLabels = map[string]string{"rack": "other"} },
		"a pool for other nodes":    func(k *Known) { k.Pools[0].Spec.NodeSelector = "has(nothing)" },
		"more room than there is":   func(k *Known) { k.Claims[0].Free = ptr(1000) },
		"less room than there is":   func(k *Known) { k.Claims[0].Free = ptr(-3) },
		"nobody may claim a block":  func(k *Known) { k.Config.AutoAllocateBlocks, k.Claims = false, nil },
		"nobody may borrow":         func(k *Known) { k.Config.StrictAffinity = true },
		"a claim without a CIDR":    func(k *Known) { k.Claims[0].Spec.CIDR = "" },
		"a pool that is no pool":    func(k *Known) { k.Pools[0].Spec.CIDR = "10.0.0.1" },
		"a claim that is given up":  func(k *Known) { k.Claims[0].Spec.State = api.AffinityPendingDeletion },
		"a damaged affinity's name": func(k *Known) { k.Claims[0].Name = "node-a" },
	} {
		t.Run(name, func(t *testing.T) {
			store := seeded(t, stored("10.0.0.8/30", "node-b").obj, claimed("node-b", "10.0.0.8/30", confirmed))
			live := map[string][]netip.Addr{}
			for _, handle := range []string{"x", "y"} {
				got, err := client(store).Assign(t.Context(), podRequest("node-a", handle))
				errtest.Must(t, err)
				live[handle] = addresses(got)
			}
			known := knownTo(t, store, "node-a")
			wrong(known)
			errtest.Must(t, begin(known, podRequest("node-a", "h"))(t.Context(), client(store)))
			held, err := client(store).Addresses(t.Context(), "h")
			errtest.Must(t, err)
			maps.Copy(live, map[string][]netip.Addr{"h": held})
			errtest.Must(t, audit(store, live))
		})
	}
}
