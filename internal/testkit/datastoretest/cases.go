package datastoretest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Run runs the conformance cases of a datastore. open returns a store for one case; stores may share their content, as
// each case uses names of its own and deletes its objects.
func Run(t *testing.T, open func() datastore.Store) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			c.run(t, &env{store: open(), id: fmt.Sprintf("%08x", rand.Uint32())})
		})
	}
}

var cases = []struct {
	name string
	run  func(*testing.T, *env)
}{
	{"what is created is read back whole", testRoundTrip},
	{"a name that is taken is ErrExists and keeps its object", testCreateTaken},
	{"a read leaves nothing of what was in the object before", testGetReplaces},
	{"what does not exist is ErrNotFound, and a failed read leaves the object as it was", testGetFailedKeeps},
	{"an update lands on the revision that was read", testUpdate},
	{"an update of an old revision is ErrConflict and changes nothing", outdated(update, changed, datastore.ErrConflict)},
	{"an update of what went away is ErrConflict", outdated(update, deleted, datastore.ErrConflict)},
	{"an update of what was created anew is ErrConflict", outdated(update, recreated, datastore.ErrConflict)},
	{"an update without a revision is refused", testUpdateBlind},
	{"a deletion removes what was read", testDelete},
	{"a deletion of an old revision is ErrConflict and removes nothing", outdated(remove, changed, datastore.ErrConflict)},
	{"a deletion of what went away is no error", outdated(remove, deleted, nil)},
	{"a deletion of what was created anew is ErrConflict and removes nothing", outdated(remove, recreated, datastore.ErrConflict)},
	{"a deletion that a reader finished is no error", testDeleteFinished},
	{"a deletion leaves no mark", testDeleteUnmarked},
	{"a plain object is deleted twice without an error", testDeletePlain},
	{"a reader finishes what is marked deleted", testMarked},
	{"a list leaves out what is marked deleted", testListMarked},
	{"a list of affinities has exactly those of the host", testListHost},
	{"a stale list shows what it once was", testListStale},
	{"a list of names has all names, with their revisions, and no contents", testListNames},
	{"a list of names has exactly those of the host", testListNamesHost},
	{"of many that create one name one wins", testCreateRace},
	{"of many that update one revision one wins", testUpdateRace},
	{"of those that update and delete one revision one wins", testDeleteRace},
	{"a context that has ended is ErrUnavailable", testContext},
}

// env is the environment of one case.
type env struct {
	store datastore.Store
	id    string // unique part of the case's names
}

func (e *env) handle(suffix string) *api.IPAMHandle {
	id := "Conformance." + e.id + suffix
	return &api.IPAMHandle{
		Meta: api.Meta{Name: names.Handle(id)},
		Spec: api.IPAMHandleSpec{HandleID: id, Block: map[string]int{"10.0.0.0/30": 1}},
	}
}

func (e *env) affinity(node string) *api.BlockAffinity {
	cidr := netip.MustParsePrefix("10.0.0.0/30")
	node = node + "-" + e.id
	return &api.BlockAffinity{
		Meta: api.Meta{Name: names.Affinity(node, cidr), Labels: names.AffinityLabels(node, api.AffinityHost, cidr)},
		Spec: api.BlockAffinitySpec{State: api.AffinityPending, Node: node, Type: api.AffinityHost, CIDR: cidr.String()},
	}
}

// pool returns an object with labels and annotations, as written by users.
func (e *env) pool() *api.IPPool {
	return &api.IPPool{
		Meta: api.Meta{Name: "conformance-" + e.id, Labels: map[string]string{"a": "label"}, Annotations: map[string]string{"an": "annotation"}},
		Spec: api.IPPoolSpec{CIDR: "198.19.0.0/24", Disabled: true, NodeSelector: "all()", AssignmentMode: api.AssignManual},
	}
}

// create stores an object and deletes it, in any state, when the test ends.
func (e *env) create(t *testing.T, obj api.Resource) {
	t.Helper()
	errtest.Must(t, e.store.Create(t.Context(), obj))
	e.cleanUp(t, obj)
}

func (e *env) cleanUp(t *testing.T, obj api.Resource) {
	left := keyed(obj)
	t.Cleanup(func() {
		err := e.store.Get(context.Background(), left)
		if err == nil {
			err = e.store.Delete(context.Background(), left)
		}
		if err != nil && !errors.Is(err, datastore.ErrNotFound) {
			t.Errorf("clean up %s: %v", left.GetMeta().Name, err)
		}
	})
}

// keyed returns an object with only the fields that Get needs.
func keyed(obj api.Resource) api.Resource {
	meta := api.Meta{Name: obj.GetMeta().Name}
	switch o := obj.(type) {
	case *api.IPAMHandle:
		return &api.IPAMHandle{Meta: meta, Spec: api.IPAMHandleSpec{HandleID: o.Spec.HandleID}}
	case *api.BlockAffinity:
		return &api.BlockAffinity{Meta: meta, Spec: api.BlockAffinitySpec{Node: o.Spec.Node, CIDR: o.Spec.CIDR}}
	}
	fresh := api.NewLike(obj)
	*fresh.GetMeta() = meta
	return fresh
}

// read returns the stored object with obj's name.
func (e *env) read(t *testing.T, obj api.Resource) api.Resource {
	t.Helper()
	have := keyed(obj)
	errtest.Must(t, e.store.Get(t.Context(), have))
	return have
}

// mark does the first of the two steps of a deletion.
func (e *env) mark(t *testing.T, obj api.Resource) {
	t.Helper()
	switch o := obj.(type) {
	case *api.IPAMHandle:
		o.Spec.Deleted = true
	case *api.BlockAffinity:
		o.Spec.Deleted = true
	}
	errtest.Must(t, e.store.Update(t.Context(), obj))
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

func diff(want, got any) string {
	return cmp.Diff(want, got, cmpopts.EquateEmpty())
}

func same(t *testing.T, what string, want, got any) {
	t.Helper()
	difftest.Want(t, what, want, got, cmpopts.EquateEmpty())
}

func testRoundTrip(t *testing.T, e *env) {
	one, handle, affinity := 0, "k8s-pod-network.AbC", "host:node-a"
	cidr := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(rand.Uint32()), byte(rand.Uint32()) &^ 3}), 30)
	block := &api.IPAMBlock{
		Meta: api.Meta{Name: names.Block(cidr)},
		Spec: api.IPAMBlockSpec{
			CIDR: cidr.String(), Affinity: &affinity, AffinityClaimTime: "2026-11-20T16:03:57Z",
			Allocations: []*int{nil, &one, nil, nil}, Unallocated: []int{2, 3, 0},
			Attributes: []api.AllocationAttribute{{HandleID: &handle, Secondary: map[string]string{"pod": "web-1"}}},
			// A float64 cannot hold this number: a decoder that uses one loses the last digits.
			SequenceNumber: 1795190637820903757, SequenceNumberForAllocation: map[string]uint64{"1": 1795190637820903756},
		},
	}
	for _, obj := range []api.Resource{e.handle(""), e.affinity("node-a"), block, e.pool()} {
		sent := api.NewLike(obj)
		api.Assign(sent, obj)
		e.create(t, obj)
		if m := obj.GetMeta(); m.ResourceVersion == "" {
			t.Errorf("%s: no revision after create", m.Name)
		}
		got := e.read(t, obj)
		same(t, "read", obj, got)
		volatile := cmpopts.IgnoreFields(api.Meta{}, "UID", "ResourceVersion", "CreationTimestamp")
		if d := cmp.Diff(sent, got, volatile); d != "" {
			t.Errorf("read (-sent +got):\n%s", d)
		}
	}
}

func testCreateTaken(t *testing.T, e *env) {
	first, second := e.handle(""), e.handle("")
	second.Spec.Block["10.0.0.4/30"] = 7
	e.create(t, first)
	wantError(t, "second create", e.store.Create(t.Context(), second), datastore.ErrExists)
	same(t, "object", api.Resource(first), e.read(t, first))
}

func testGetReplaces(t *testing.T, e *env) {
	stored := e.handle("")
	e.create(t, stored)
	got := e.handle("")
	got.Labels = map[string]string{"old": "label"}
	got.Spec.Block["10.0.0.4/30"] = 7
	errtest.Must(t, e.store.Get(t.Context(), got))
	same(t, "object", stored, got)
}

func testGetFailedKeeps(t *testing.T, e *env) {
	got := e.handle("")
	wantError(t, "get", e.store.Get(t.Context(), got), datastore.ErrNotFound)
	same(t, "object", e.handle(""), got)
}

func testUpdate(t *testing.T, e *env) {
	h := e.handle("")
	e.create(t, h)
	before := h.Meta
	h.Spec.Block = map[string]int{"10.0.0.4/30": 2}
	errtest.Must(t, e.store.Update(t.Context(), h))
	if h.ResourceVersion == before.ResourceVersion || h.UID != before.UID {
		t.Errorf("revision %s -> %s, UID %s -> %s: want a new revision of the same object",
			before.ResourceVersion, h.ResourceVersion, before.UID, h.UID)
	}
	same(t, "object", api.Resource(h), e.read(t, h))
}

// outdated has one client write an object that it read before another client's change, which must stay.
func outdated(write func(datastore.Store, api.Resource) error, change func(*testing.T, *env, *api.IPAMHandle) *api.IPAMHandle,
	want error) func(*testing.T, *env) {
	return func(t *testing.T, e *env) {
		h := e.handle("")
		e.create(t, h)
		old := *h
		left := change(t, e, h)
		wantError(t, "write", write(e.store, &old), want)
		if left != nil {
			same(t, "object", api.Resource(left), e.read(t, left))
		}
	}
}

func update(store datastore.Store, obj api.Resource) error {
	return store.Update(context.Background(), obj)
}
func remove(store datastore.Store, obj api.Resource) error {
	return store.Delete(context.Background(), obj)
}

func changed(t *testing.T, e *env, h *api.IPAMHandle) *api.IPAMHandle {
	h.Spec.Block = map[string]int{"10.0.0.4/30": 2}
	errtest.Must(t, e.store.Update(t.Context(), h))
	return h
}

func deleted(t *testing.T, e *env, h *api.IPAMHandle) *api.IPAMHandle {
	errtest.Must(t, e.store.Delete(t.Context(), h))
	return nil
}

func recreated(t *testing.T, e *env, h *api.IPAMHandle) *api.IPAMHandle {
	deleted(t, e, h)
	again := e.handle("")
	e.create(t, again)
	return again
}

func testUpdateBlind(t *testing.T, e *env) {
	h := e.handle("")
	e.create(t, h)
	blind := e.handle("")
	blind.Spec.Block = nil
	err := e.store.Update(t.Context(), blind)
	if err == nil || datastore.Contended(err) {
		t.Errorf("error %v: want one that asks for a read first and is not retriable", err)
	}
	same(t, "object", api.Resource(h), e.read(t, h))
}

func testDelete(t *testing.T, e *env) {
	h := e.handle("")
	e.create(t, h)
	errtest.Must(t, e.store.Delete(t.Context(), h))
	wantError(t, "get", e.store.Get(t.Context(), e.handle("")), datastore.ErrNotFound)
	e.create(t, e.handle("")) // the name can be reused
}

func testDeleteFinished(t *testing.T, e *env) {
	h := e.handle("")
	e.create(t, h)
	e.mark(t, h)
	wantError(t, "get", e.store.Get(t.Context(), e.handle("")), datastore.ErrNotFound)
	if err := e.store.Delete(t.Context(), h); err != nil {
		t.Errorf("second step of the deletion: %v", err)
	}
}

// A refused deletion leaves no mark, neither on the stored object nor on the caller's.
func testDeleteUnmarked(t *testing.T, e *env) {
	for _, obj := range []api.Resource{e.handle(""), e.affinity("node-a")} {
		e.create(t, obj)
		old := api.NewLike(obj)
		api.Assign(old, obj)
		change(obj)
		errtest.Must(t, e.store.Update(t.Context(), obj))
		wantError(t, "delete", e.store.Delete(t.Context(), old), datastore.ErrConflict)
		if api.Marked(old) || api.Marked(e.read(t, obj)) {
			t.Errorf("%s is marked deleted", obj.GetMeta().Name)
		}
	}
}

func change(obj api.Resource) {
	switch o := obj.(type) {
	case *api.IPAMHandle:
		o.Spec.Block = map[string]int{"10.0.0.4/30": 2}
	case *api.BlockAffinity:
		o.Spec.State = api.AffinityConfirmed
	}
}

func testDeletePlain(t *testing.T, e *env) {
	p := e.pool()
	e.create(t, p)
	for range 2 {
		if err := e.store.Delete(t.Context(), p); err != nil {
			t.Error(err)
		}
	}
	wantError(t, "get", e.store.Get(t.Context(), p), datastore.ErrNotFound)
}

func testMarked(t *testing.T, e *env) {
	for _, obj := range []api.Resource{e.handle(""), e.affinity("node-a")} {
		e.create(t, obj)
		e.mark(t, obj)
		wantError(t, "get", e.store.Get(t.Context(), keyed(obj)), datastore.ErrNotFound)
	}
	e.create(t, e.handle("")) // the names can be reused
	e.create(t, e.affinity("node-a"))
}

func testListMarked(t *testing.T, e *env) {
	kept, marked := e.handle("kept"), e.handle("marked")
	e.create(t, kept)
	e.create(t, marked)
	e.mark(t, marked)
	for _, opts := range []datastore.ListOptions{{}, {Stale: true}} {
		var list api.IPAMHandleList
		errtest.Must(t, e.store.List(t.Context(), &list, opts))
		for _, h := range list.Items {
			if h.Spec.Deleted {
				t.Errorf("stale=%v: the list has %s, which is marked deleted", opts.Stale, h.Name)
			}
		}
	}
}

func testListHost(t *testing.T, e *env) {
	a, b := e.affinity("node-a"), e.affinity("node-b")
	e.create(t, a)
	e.create(t, b)
	for _, want := range []*api.BlockAffinity{a, b} {
		var list api.BlockAffinityList
		opts := datastore.ListOptions{Host: want.Spec.Node}
		errtest.Must(t, e.store.List(t.Context(), &list, opts))
		same(t, "list", []api.BlockAffinity{*want}, list.Items)
	}
}

func testListStale(t *testing.T, e *env) {
	a := e.affinity("node-a")
	e.create(t, a)
	created := *a
	a.Spec.State = api.AffinityConfirmed
	errtest.Must(t, e.store.Update(t.Context(), a))
	var list api.BlockAffinityList
	opts := datastore.ListOptions{Stale: true, Host: a.Spec.Node}
	errtest.Must(t, e.store.List(t.Context(), &list, opts))
	if len(list.Items) == 0 {
		return // the state before the creation
	}
	if diff(list.Items, []api.BlockAffinity{created}) != "" && diff(list.Items, []api.BlockAffinity{*a}) != "" {
		t.Errorf("the list is not a past state: %+v", list.Items)
	}
}

func testListNames(t *testing.T, e *env) {
	kept, marked := e.handle("kept"), e.handle("marked")
	e.create(t, kept)
	e.create(t, marked)
	e.mark(t, marked)
	var list api.IPAMHandleList
	errtest.Must(t, e.store.List(t.Context(), &list, datastore.ListOptions{NamesOnly: true}))
	revisions := map[string]string{}
	for _, h := range list.Items {
		revisions[h.Name] = h.ResourceVersion
		if diff(h.Spec, api.IPAMHandleSpec{}) != "" {
			t.Errorf("%s has content: %+v", h.Name, h.Spec)
		}
	}
	for _, h := range []*api.IPAMHandle{kept, marked} {
		if revisions[h.Name] != h.ResourceVersion {
			t.Errorf("%s has revision %q in the list, want %q", h.Name, revisions[h.Name], h.ResourceVersion)
		}
	}
	var stale api.IPAMHandleList
	errtest.Must(t, e.store.List(t.Context(), &stale, datastore.ListOptions{NamesOnly: true, Stale: true}))
	for _, h := range stale.Items {
		if h.Name == "" || diff(h.Spec, api.IPAMHandleSpec{}) != "" {
			t.Errorf("%q has content or no name in a stale list: %+v", h.Name, h.Spec)
		}
	}
}

func testListNamesHost(t *testing.T, e *env) {
	a, b := e.affinity("node-a"), e.affinity("node-b")
	e.create(t, a)
	e.create(t, b)
	opts := datastore.ListOptions{NamesOnly: true, Host: a.Spec.Node}
	var list api.BlockAffinityList
	errtest.Must(t, e.store.List(t.Context(), &list, opts))
	if len(list.Items) != 1 || list.Items[0].Name != a.Name {
		t.Errorf("names %+v, want %s alone", list.Items, a.Name)
	}
}

// racers is the number of writers that compete; they start together.
const racers = 8

func race(t *testing.T, racers int, write func(i int) error, lost error) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, racers)
	start := make(chan struct{})
	for i := range racers {
		wg.Go(func() {
			<-start
			errs[i] = write(i)
		})
	}
	close(start)
	wg.Wait()
	winners := 0
	for _, err := range errs {
		if err == nil {
			winners++
			continue
		}
		wantError(t, "a loser", err, lost)
	}
	if winners != 1 {
		t.Errorf("%d writers won, want 1", winners)
	}
}

func testCreateRace(t *testing.T, e *env) {
	e.cleanUp(t, e.handle(""))
	race(t, racers, func(int) error { return e.store.Create(t.Context(), e.handle("")) }, datastore.ErrExists)
}

func testUpdateRace(t *testing.T, e *env) {
	h := e.handle("")
	e.create(t, h)
	race(t, racers, func(i int) error {
		mine := *h
		mine.Spec.Block = map[string]int{"10.0.0.0/30": i + 2}
		return e.store.Update(t.Context(), &mine)
	}, datastore.ErrConflict)
}

func testDeleteRace(t *testing.T, e *env) {
	h := e.handle("")
	e.create(t, h)
	update, remove := *h, *h
	update.Spec.Block = map[string]int{"10.0.0.0/30": 9}
	race(t, 2, func(i int) error {
		if i == 0 {
			return e.store.Update(t.Context(), &update)
		}
		return e.store.Delete(t.Context(), &remove)
	}, datastore.ErrConflict)
}

func testContext(t *testing.T, e *env) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantError(t, "get", e.store.Get(ctx, e.handle("")), datastore.ErrUnavailable)
	wantError(t, "create", e.store.Create(ctx, e.handle("")), datastore.ErrUnavailable)
	wantError(t, "get", e.store.Get(t.Context(), e.handle("")), datastore.ErrNotFound)
}
