package ipam

import (
	"context"
	"encoding/json"
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
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
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

func TestAssignIsIdempotent(t *testing.T) {
	store := seeded(t)
	c := client(store)
	req := podRequest("node-a", "h")
	req.V6 = true
	first, err := c.Assign(t.Context(), req)
	errtest.Must(t, err)
	second, err := c.Assign(t.Context(), req)
	errtest.Must(t, err)
	if d := cmp.Diff(first, second, difftest.Netip); d != "" {
		t.Errorf("assigned (-first +second):\n%s", d)
	}
	held, err := c.Addresses(t.Context(), "h")
	errtest.Must(t, err)
	slices.SortFunc(held, netip.Addr.Compare)
	if d := cmp.Diff(addresses(first), held, difftest.Netip); d != "" {
		t.Errorf("held (-assigned +got):\n%s", d)
	}
	errtest.Must(t, audit(store, map[string][]netip.Addr{"h": addresses(first)}))
}

// A request that is repeated when the pool has run out gets the address that its handle holds.
func TestAssignAgainInAFullPool(t *testing.T) {
	store := seeded(t)
	c := client(store)
	live := map[string][]netip.Addr{}
	for i := range 16 {
		handle := "h" + string(rune('a'+i))
		got, err := c.Assign(t.Context(), podRequest(hosts[i%3], handle))
		errtest.Must(t, err)
		live[handle] = addresses(got)
	}
	_, err := c.Assign(t.Context(), podRequest("node-a", "one-too-many"))
	checkRefusal(t, err, ErrExhausted, "pool-a 10.0.0.0/28")
	for handle, want := range live {
		got, err := c.Assign(t.Context(), podRequest("node-b", handle))
		errtest.Must(t, err)
		if d := cmp.Diff(want, addresses(got), difftest.Netip); d != "" {
			t.Errorf("assigned again (-first +second):\n%s", d)
		}
	}
	errtest.Must(t, audit(store, live))
}

// A list that is a little old must not make a request fail: not one that lacks the pool, nor one that shows a full
// cluster.
func TestOldListsRefuseNothing(t *testing.T) {
	store := datastoretest.NewFake()
	store.SetLag(func(states int) int { return states })
	seed(t, store)
	got, err := client(store).Assign(t.Context(), podRequest("node-a", "h"))
	errtest.Must(t, err)
	errtest.Must(t, audit(store, map[string][]netip.Addr{"h": addresses(got)}))
}

// Pods that start together on a new node have all seen that it has no block before the first of them gets the host's
// lock. One block serves them, in turn, whether they read that themselves or have it from the agent.
func TestBurstOnNewNodeSharesItsBlock(t *testing.T) {
	for _, known := range []bool{false, true} {
		store := seeded(t)
		var k *Known
		if known {
			k = knownTo(t, store, "node-a")
		}
		begin := func(req Request) *Attempt {
			return client(store).Begin(t.Context(), Start{Owner: req.Owner, Host: req.Host, V4: true, Use: req.Use, Known: k})
		}
		burst := map[string]*Attempt{}
		for _, handle := range []string{"a", "b", "c", "d"} {
			if !known { // with facts, an attempt begins when it has the lock
				burst[handle] = begin(podRequest("node-a", handle))
				<-burst[handle].opened
			}
		}
		live := map[string][]netip.Addr{}
		for _, handle := range []string{"a", "b", "c", "d"} {
			req := podRequest("node-a", handle)
			if known {
				burst[handle] = begin(req)
			}
			got, err := burst[handle].Finish(t.Context(), req)
			errtest.Must(t, err)
			live[handle] = addresses(got)
		}
		errtest.Must(t, audit(store, live))
		c, err := readContents(store)
		errtest.Must(t, err)
		if len(c.blocks) != 1 {
			t.Errorf("known %v: %d pods of one node have %d blocks of 4", known, len(live), len(c.blocks))
		}
	}
}

func TestReleaseReturnsWhatItFreed(t *testing.T) {
	store := seeded(t)
	c := client(store)
	req := podRequest("node-a", "H.Mixed")
	req.V6 = true
	got, err := c.Assign(t.Context(), req)
	errtest.Must(t, err)
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
	errtest.Must(t, err)
	if d := cmp.Diff(addresses(got), freed, difftest.Netip); d != "" || conflicts != 1 {
		t.Errorf("freed after %d conflicts (-want +got):\n%s", conflicts, d)
	}
	freed, err = c.Release(t.Context(), "H.Mixed")
	if err != nil || freed != nil {
		t.Errorf("second release: %v, %v, want nothing", freed, err)
	}
	errtest.Must(t, audit(store, nil))
}

// An affinity that no list shows blocks no claim: one that is marked deleted by a process that died before it removed
// it, and one that a Calico before 3.31 wrote without labels. Their block is found when all others are taken.
func TestClaimsMeetAffinitiesThatNoListShows(t *testing.T) {
	marked := claimed("node-a", "10.1.0.0/30", api.AffinityPendingDeletion)
	marked.Spec.Deleted = true
	unlabelled := claimed("node-a", "10.1.0.0/30", api.AffinityConfirmed)
	unlabelled.Labels, unlabelled.Annotations = nil, nil
	for _, c := range []struct {
		name string
		objs []api.Resource
		want string
		live map[string][]netip.Addr
	}{
		{"marked deleted", []api.Resource{marked}, "10.1.0.0", nil},
		{"marked deleted, its block still there", []api.Resource{marked, stored("10.1.0.0/30", "node-a").obj}, "10.1.0.0", nil},
		{"of no node", []api.Resource{&api.BlockAffinity{Meta: unlabelled.Meta}}, "10.1.0.0", nil},
		{"of a node and a range that its name does not stand for",
			[]api.Resource{&api.BlockAffinity{Meta: newAffinity("node-a", cidr("10.1.0.0/30")).Meta,
				Spec: api.BlockAffinitySpec{State: confirmed, Node: "node-b", CIDR: "10.0.0.0/8"}}}, "10.1.0.0", nil},
		{"unlabelled", []api.Resource{unlabelled, stored("10.1.0.0/30", "node-a", "x").obj, storedHandle("x", "10.1.0.0/30=1")}, "10.1.0.1",
			map[string][]netip.Addr{"x": {netip.MustParseAddr("10.1.0.0")}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := seeded(t, poolObject("tiny", "10.1.0.0/30"))
			mustCreate(t, store, c.objs...)
			req := podRequest("node-a", "h")
			req.PoolsV4 = []string{"tiny"}
			got, err := client(store).Assign(t.Context(), req)
			errtest.Must(t, err)
			if addresses(got)[0].String() != c.want {
				t.Errorf("assigned %v, want %s", got, c.want)
			}
			live := map[string][]netip.Addr{"h": addresses(got)}
			maps.Copy(live, c.live)
			errtest.Must(t, audit(store, live))
			a := newAffinity("node-a", got[0].Block)
			errtest.Must(t, store.Get(t.Context(), a))
			if d := cmp.Diff(newAffinity("node-a", got[0].Block).Labels, a.Labels); d != "" || !a.Confirmed() {
				t.Errorf("state %s, labels (-want +got):\n%s", a.Spec.State, d)
			}
		})
	}
}

// An operation that depends on an object which contradicts itself fails with an error that names the object, and
// assigns and releases nothing.
func TestDamagedObjectsAreNamed(t *testing.T) {
	damaged := damagedBlock("10.0.0.0/30", "node-a")
	for _, c := range []struct {
		name string
		objs []api.Resource
		do   func(context.Context, *Client) error
		want string
	}{
		{"the block of a handle that is released", []api.Resource{damaged, storedHandle("h", "10.0.0.0/30=1")}, releasePod("h"),
			"IPAMBlock 10-0-0-0-30"},
		{"the block of a handle that asks again", []api.Resource{damaged, storedHandle("h", "10.0.0.0/30=1")}, assignPod("h"),
			"IPAMBlock 10-0-0-0-30"},
		{"handle of another owner", []api.Resource{storedHandle("H")}, releasePod("h"), `IPAMHandle h`},
		{"reservation",
			[]api.Resource{&api.IPReservation{Meta: api.Meta{Name: "r"}, Spec: api.IPReservationSpec{ReservedCIDRs: []string{"10.0.0"}}}},
			assignPod("h"), `IPReservation r spec.reservedCIDRs "10.0.0"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := seeded(t)
			mustCreate(t, store, c.objs...)
			before := dumpRaw(t, store)
			err := c.do(t.Context(), client(store))
			if !errtest.Names(err, c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if d := cmp.Diff(before, dumpRaw(t, store)); d != "" {
				t.Errorf("the failed operation changed (-before +after):\n%s", d)
			}
		})
	}
}

func damagedBlock(text, host string) *api.IPAMBlock {
	obj := stored(text, host, "x").obj
	obj.Spec.Unallocated[0] = -4
	return obj
}

// dumpRaw writes the blocks and handles that a datastore has, damaged or not.
func dumpRaw(t *testing.T, store datastore.Store) []string {
	t.Helper()
	var blocks api.IPAMBlockList
	var handles api.IPAMHandleList
	for _, list := range []api.ResourceList{&blocks, &handles} {
		errtest.Must(t, store.List(t.Context(), list, datastore.ListOptions{}))
	}
	data, err := json.MarshalIndent([]any{blocks.Items, handles.Items}, "", " ")
	errtest.Must(t, err)
	return strings.Split(string(data), "\n")
}

// Other objects serve in place of a damaged one. If none can, the error names it.
func TestDamageIsPassedOver(t *testing.T) {
	badClaim := claimed("node-a", "10.0.0.0/30", confirmed)
	badClaim.Spec.CIDR = "10.0.0.0"
	badPool := poolObject("pool-0", "10.1.0.0/16", func(p *api.IPPool) { p.Spec.BlockSize = 8 })
	onlyIn := func(pool string) func(*Request) { return func(r *Request) { r.PoolsV4 = []string{pool} } }
	tiny := poolObject("tiny", "10.3.0.0/30")
	for _, c := range []struct {
		name   string
		objs   []api.Resource
		change func(*Request)
		want   string
		err    error
		text   string
	}{
		{name: "own block",
			objs: []api.Resource{damagedBlock("10.0.0.12/30", "node-a"), claimed("node-a", "10.0.0.12/30", confirmed)}, want: "10.0.0.0"},
		{name: "a block of the cluster", objs: []api.Resource{damagedBlock("10.0.0.12/30", "node-b")}, want: "10.0.0.0"},
		{name: "affinity", objs: []api.Resource{badClaim}, want: "10.0.0.12"},
		{name: "pool", objs: []api.Resource{badPool}, want: "10.0.0.12"},
		{name: "the only block", objs: []api.Resource{tiny, damagedBlock("10.3.0.0/30", "node-b")}, change: onlyIn("tiny"),
			err: ErrExhausted, text: "IPAMBlock 10-3-0-0-30"},
		{name: "the own and only block",
			objs:   []api.Resource{tiny, damagedBlock("10.3.0.0/30", "node-a"), claimed("node-a", "10.3.0.0/30", confirmed)},
			change: onlyIn("tiny"), err: ErrExhausted, text: "IPAMBlock 10-3-0-0-30"},
		{name: "the pool that was asked for", objs: []api.Resource{badPool}, change: onlyIn("pool-0"),
			err: ErrNoPool, text: "IPPool pool-0 spec.blockSize 8"},
		{name: "the block of the address that was asked for", objs: []api.Resource{damagedBlock("10.0.0.12/30", "node-a")},
			change: func(r *Request) { r.Addresses = []netip.Addr{netip.MustParseAddr("10.0.0.13")} }, text: "IPAMBlock 10-0-0-12-30"},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := seeded(t, c.objs...)
			req := podRequest("node-a", "h")
			if c.change != nil {
				c.change(&req)
			}
			got, err := client(store).Assign(t.Context(), req)
			if c.want == "" {
				if !errors.Is(err, c.err) && c.err != nil || !errtest.Names(err, c.text) {
					t.Errorf("assigned %v, error %v, want %v with %q", got, err, c.err, c.text)
				}
				return
			}
			errtest.Must(t, err)
			if a := addresses(got)[0].String(); a != c.want {
				t.Errorf("assigned %s, want %s", a, c.want)
			}
		})
	}
}

// The node's labels are read only if a pool that may serve depends on them.
func TestNodeIsReadForItsLabels(t *testing.T) {
	rack := func(p *api.IPPool) { p.Spec.NodeSelector = "rack == 'r1'" }
	for _, c := range []struct {
		name   string
		change func(*Request)
		pools  []api.Resource
		read   bool
		err    string
	}{
		{name: "no selector", pools: []api.Resource{poolObject("a", "10.1.0.0/30"), poolObject("all", "10.2.0.0/30",
			func(p *api.IPPool) { p.Spec.NodeSelector = "all()" })}},
		{name: "a selector", pools: []api.Resource{poolObject("a", "10.1.0.0/30", rack)}, read: true},
		{name: "a selector in a pool of the other family",
			pools: []api.Resource{poolObject("a", "10.1.0.0/30"), poolObject("b", "fd00::/126", rack)}},
		{name: "a selector in a pool for other uses", pools: []api.Resource{poolObject("a", "10.1.0.0/30"),
			poolObject("b", "10.2.0.0/30", rack, func(p *api.IPPool) { p.Spec.AllowedUses = []api.AllowedUse{api.UseTunnel} })}},
		{name: "a selector in a pool that is asked for", pools: []api.Resource{poolObject("a", "10.1.0.0/30", rack)},
			change: func(r *Request) { r.PoolsV4 = []string{"a"} }},
		{name: "a node that does not exist", pools: []api.Resource{poolObject("a", "10.1.0.0/30", rack)},
			change: func(r *Request) { r.Host = "nowhere" }, read: true, err: "nowhere"},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := datastoretest.NewFake()
			mustCreate(t, store, &api.Node{Meta: api.Meta{Name: "node-a", Labels: map[string]string{"rack": "r1"}}})
			mustCreate(t, store, c.pools...)
			req := podRequest("node-a", "h")
			if c.change != nil {
				c.change(&req)
			}
			var r recorder
			_, err := client(store.Session(r.hook)).Assign(t.Context(), req)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("error %v, want %q", err, c.err)
			}
			if got := slices.Contains(r.reads, "GET Node "+req.Host); got != c.read {
				t.Errorf("node read: %v, want %v", got, c.read)
			}
		})
	}
}

// An assignment that always loses gives up, and leaves nothing.
func TestAssignGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := seeded(t)
		s := store.Session(func(_ context.Context, r datastoretest.Request) datastoretest.Fault {
			if r.Kind == "IPAMBlock" && r.Verb == "POST" {
				return datastoretest.Conflict
			}
			return datastoretest.None
		})
		began := time.Now()
		_, err := client(s).Assign(t.Context(), podRequest("node-a", "h"))
		if !errors.Is(err, datastore.ErrExists) || !errtest.Names(err, "100") {
			t.Errorf("error %v", err)
		}
		if took := time.Since(began); took < time.Second || took > maxTries*3*maxPause/2 {
			t.Errorf("giving up took %v: want pauses that grow to %v", took, maxPause)
		}
		errtest.Must(t, audit(store, nil))
	})
}

// A deadline ends a contest; the undoing of its writes has time of its own.
func TestAssignEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := seeded(t)
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
		errtest.Must(t, audit(store, nil))
	})
}

func TestUnavailableDatastore(t *testing.T) {
	store := seeded(t)
	s := store.Session(func(context.Context, datastoretest.Request) datastoretest.Fault { return datastoretest.Unavailable })
	for name, do := range map[string]func(context.Context, *Client) error{"assign": assignPod("h"), "release": releasePod("h")} {
		if err := do(t.Context(), client(s)); !errors.Is(err, datastore.ErrUnavailable) {
			t.Errorf("%s: error %v, want %v", name, err, datastore.ErrUnavailable)
		}
	}
}

// A refusal is certain also when it comes at a later try, which reads only the blocks again: here another writer takes
// the own block's last address, and the list that the first try accepted lacks the pool that was just made.
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
