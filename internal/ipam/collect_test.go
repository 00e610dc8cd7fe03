package ipam

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// containerRequest returns calico-ipam's request for a container of network net.
func containerRequest(host, id string, at time.Time) Request {
	req := podRequest(host, "net."+id)
	req.Attrs = map[string]string{"node": host, "pod": "pod-" + id, "namespace": "default", "timestamp": at.UTC().Format(timestampFormat)}
	return req
}

func mustAssign(t *testing.T, store datastore.Store, req Request) []netip.Addr {
	t.Helper()
	got, err := client(store).Assign(t.Context(), req)
	errtest.Must(t, err)
	return addresses(got)
}

func TestCollect(t *testing.T) {
	store := seeded(t)
	began := clock.Add(time.Minute)
	live := map[string][]netip.Addr{}
	for _, c := range []struct {
		req  Request
		dead bool
	}{
		{req: containerRequest("node-a", "dead-1", clock), dead: true},
		{req: containerRequest("node-a", "live", clock)},
		{req: containerRequest("node-a", "dead-2", clock), dead: true},
		{req: containerRequest("node-a", "young", began.Add(time.Second))},
		{req: containerRequest("node-b", "dead-on-b", clock)},
		{req: podRequest("node-a", "net.no-node")},
		{req: func() Request { r := containerRequest("node-a", "x", clock); r.Handle = "other.dead"; return r }()},
		{req: func() Request { r := containerRequest("node-a", "x", clock); r.Handle = "netting.dead"; return r }()},
		{req: func() Request { r := containerRequest("node-a", "dual", clock); r.V6 = true; return r }(), dead: true},
		{req: func() Request {
			r := containerRequest("node-a", "no-time", clock)
			delete(r.Attrs, "timestamp")
			return r
		}(), dead: true},
	} {
		if got := mustAssign(t, store, c.req); !c.dead {
			live[c.req.Handle] = got
		}
	}
	freed, err := client(store).Collect(t.Context(), Collection{Host: "node-a", Network: "net", Live: []string{"live"}, Before: began})
	errtest.Must(t, err)
	var got []string
	for _, h := range freed {
		got = append(got, h.Handle+" "+h.Attrs["namespace"]+"/"+h.Attrs["pod"])
	}
	want := []string{"net.dead-1 default/pod-dead-1", "net.dead-2 default/pod-dead-2", "net.dual default/pod-dual",
		"net.no-time default/pod-no-time"}
	difftest.Want(t, "freed", want, got)
	if i := slices.IndexFunc(freed, func(h Holder) bool { return h.Handle == "net.dual" }); i >= 0 && len(freed[i].Addresses) != 2 {
		t.Errorf("of net.dual: %v, want both addresses", freed[i].Addresses)
	}
	errtest.Must(t, audit(store, live))
	freed, err = client(store).Collect(t.Context(), Collection{Host: "node-a", Network: "net", Live: []string{"live"}, Before: began})
	if err != nil || len(freed) > 0 {
		t.Errorf("collected again: %v, %v", freed, err)
	}
}

// Each block is written once, however many of its addresses are freed.
func TestCollectWritesABlockOnce(t *testing.T) {
	store := seeded(t)
	for _, id := range []string{"a", "b", "c"} {
		mustAssign(t, store, containerRequest("node-a", id, clock))
	}
	var r recorder
	_, err := client(store.Session(r.hook)).Collect(t.Context(), Collection{Host: "node-a", Network: "net"})
	errtest.Must(t, err)
	slices.Sort(r.writes)
	want := []string{"DELETE IPAMHandle net.a", "DELETE IPAMHandle net.b", "DELETE IPAMHandle net.c", "PUT IPAMBlock 10-0-0-12-30"}
	difftest.Want(t, "writes", want, r.writes)
}

// A container that starts while others are collected keeps its address, in the same block.
func TestCollectSparesWhoStarts(t *testing.T) {
	store := seeded(t)
	mustAssign(t, store, containerRequest("node-a", "dead", clock))
	live := map[string][]netip.Addr{}
	s := store.Session(func(_ context.Context, r datastoretest.Request) datastoretest.Fault {
		if r.Verb == "PUT" && live["net.new"] == nil {
			live["net.new"] = mustAssign(t, store, containerRequest("node-a", "new", clock))
		}
		return datastoretest.None
	})
	_, err := client(s).Collect(t.Context(), Collection{Host: "node-a", Network: "net"})
	errtest.Must(t, err)
	if live["net.new"] == nil {
		t.Fatal("nobody started")
	}
	errtest.Must(t, audit(store, live))
}

// A damaged block is an error, and the others are served.
func TestCollectPassesDamageOver(t *testing.T) {
	store := seeded(t, damagedBlock("10.0.0.0/30", "node-b"))
	mustAssign(t, store, containerRequest("node-a", "dead", clock))
	freed, err := client(store).Collect(t.Context(), Collection{Host: "node-a", Network: "net"})
	if !errtest.Names(err, "IPAMBlock 10-0-0-0-30") || len(freed) != 1 {
		t.Errorf("freed %v, error %v", freed, err)
	}
}

// A handle that holds nothing goes when it is older than any ADD takes, unless another host created it or it may hold
// something.
func TestCollectRemovesEmptyHandles(t *testing.T) {
	scene := func() *datastoretest.Fake {
		store := seeded(t)
		held := mustAssign(t, store, containerRequest("node-b", "Held", clock))
		old := &api.IPAMHandle{Meta: api.Meta{Name: "net.held"}, Spec: api.IPAMHandleSpec{HandleID: "net.Held"}}
		errtest.Must(t, store.Get(t.Context(), old))
		old.CreationTimestamp = clock.Add(-time.Hour).Format(time.RFC3339)
		errtest.Must(t, store.Update(t.Context(), old))
		for id, age := range map[string]time.Duration{
			"net.Gone": emptyHandleAge, "net.young": emptyHandleAge - time.Second, "other.gone": time.Hour, "net.Live": time.Hour, "net.untimed": 0,
		} {
			h := storedHandle(id, blockText(held)+"=1")
			if age > 0 {
				h.CreationTimestamp = clock.Add(-age).Format(time.RFC3339)
			}
			mustCreate(t, store, h)
		}
		others := hostHandle("net.others", "node-b")
		others.CreationTimestamp = clock.Add(-time.Hour).Format(time.RFC3339)
		mustCreate(t, store, others)
		return store
	}
	what := Collection{Host: "node-a", Network: "net", Live: []string{"Live"}}
	left := func(store datastore.Store) []string {
		c, err := readContents(store)
		errtest.Must(t, err)
		return slices.Sorted(maps.Keys(c.handles))
	}
	store := scene()
	freed, err := client(store).Collect(t.Context(), what)
	if err != nil || len(freed) > 0 {
		t.Errorf("freed %v, error %v", freed, err)
	}
	want := []string{"net.Held", "net.Live", "net.others", "net.untimed", "net.young", "other.gone"}
	difftest.Want(t, "handles", want, left(store))
	store = scene()
	damaged := damagedBlock("10.0.0.12/30", "node-c")
	mustCreate(t, store, damaged)
	if _, err := client(store).Collect(t.Context(), what); err == nil {
		t.Error("damage is no error")
	}
	errtest.Must(t, store.Delete(t.Context(), damaged))
	if got := left(store); !slices.Contains(got, "net.Gone") {
		t.Errorf("handles %v: one went though a block cannot be told", got)
	}
}

// blockText returns the block of the first address.
func blockText(held []netip.Addr) string { return netip.PrefixFrom(held[0], 30).Masked().String() }

func TestHolds(t *testing.T) {
	store := seeded(t)
	got := mustAssign(t, store, podRequest("node-a", "h"))
	errtest.Must(t, client(store).Holds(t.Context(), Owner{Handle: "h"}, got))
	for handle, addrs := range map[string][]netip.Addr{
		"h":     append(got, netip.MustParseAddr("10.0.0.13")),
		"other": got,
	} {
		if err := client(store).Holds(t.Context(), Owner{Handle: handle}, addrs); !errors.Is(err, ErrNotHeld) {
			t.Errorf("%s holds %v: error %v, want %v", handle, addrs, err, ErrNotHeld)
		}
	}
}

// Room answers as Assign would, and writes nothing.
func TestRoom(t *testing.T) {
	tiny := poolObject("tiny", "10.5.0.0/30")
	full := stored("10.5.0.0/30", "node-b", "a", "b", "c", "d").obj
	for _, c := range []struct {
		name   string
		objs   []api.Resource
		change func(*Request)
		config api.IPAMConfigSpec
		err    error
	}{
		{name: "in a new block"},
		{name: "in an own block", objs: []api.Resource{stored("10.0.0.0/30", "node-a").obj, claimed("node-a", "10.0.0.0/30", confirmed)}},
		{name: "in both families", change: func(r *Request) { r.V6 = true }},
		{name: "borrowed", objs: []api.Resource{tiny, stored("10.5.0.0/30", "node-b", "a").obj},
			change: func(r *Request) { r.PoolsV4 = []string{"tiny"} }},
		{name: "reclaimed", objs: []api.Resource{tiny, aged(stored("10.5.0.0/30", "node-b"), time.Hour).obj},
			config: api.IPAMConfigSpec{AutoAllocateBlocks: true, StrictAffinity: true}, change: func(r *Request) { r.PoolsV4 = []string{"tiny"} }},
		{name: "none", objs: []api.Resource{tiny, full}, change: func(r *Request) { r.PoolsV4 = []string{"tiny"} }, err: ErrExhausted},
		{name: "no pool", change: func(r *Request) { r.PoolsV4 = []string{"nowhere"} }, err: ErrNoPool},
		{name: "at the limit",
			objs:   []api.Resource{stored("10.0.0.0/30", "node-a", "a", "b", "c", "d").obj, claimed("node-a", "10.0.0.0/30", confirmed)},
			config: api.IPAMConfigSpec{AutoAllocateBlocks: true, StrictAffinity: true, MaxBlocksPerHost: 1}, err: ErrBlockLimit},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := seeded(t, c.objs...)
			if c.config != (api.IPAMConfigSpec{}) {
				mustCreate(t, store, &api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}, Spec: c.config})
			}
			req := podRequest("node-a", "")
			if c.change != nil {
				c.change(&req)
			}
			for _, known := range []*Known{nil, knownTo(t, store, "node-a")} {
				var r recorder
				err := client(store.Session(r.hook)).Room(t.Context(), req, known)
				if !errorIs(err, c.err) || len(r.writes) > 0 {
					t.Errorf("known %v: error %v, want %v; written %v", known != nil, err, c.err, r.writes)
				}
			}
		})
	}
	store := seeded(t)
	s := store.Session(func(context.Context, datastoretest.Request) datastoretest.Fault { return datastoretest.Unavailable })
	if err := client(s).Room(t.Context(), podRequest("node-a", ""), nil); !errors.Is(err, datastore.ErrUnavailable) {
		t.Errorf("error %v, want %v", err, datastore.ErrUnavailable)
	}
}
