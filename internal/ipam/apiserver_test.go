package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// cluster creates nodes and one pool on the real API server, and removes them and all of IPAM's objects when the test ends.
func cluster(t *testing.T, pool *api.IPPool, nodes ...string) {
	t.Helper()
	store := labstore.Store(t)
	objs := []api.Resource{pool}
	for _, n := range nodes {
		objs = append(objs, &api.Node{Meta: api.Meta{Name: n}})
	}
	mustCreate(t, store, objs...)
	t.Cleanup(func() {
		removeAll(t, store, &api.IPAMBlockList{}, func(l *api.IPAMBlockList) []api.Resource { return pointers(l.Items) })
		removeAll(t, store, &api.BlockAffinityList{}, func(l *api.BlockAffinityList) []api.Resource { return pointers(l.Items) })
		removeAll(t, store, &api.IPAMHandleList{}, func(l *api.IPAMHandleList) []api.Resource { return pointers(l.Items) })
		for _, obj := range objs {
			errtest.Must(t, store.Get(context.Background(), obj))
			errtest.Must(t, store.Delete(context.Background(), obj))
		}
	})
}

func removeAll[L api.ResourceList](t *testing.T, store datastore.Store, list L, items func(L) []api.Resource) {
	errtest.Must(t, store.List(context.Background(), list, datastore.ListOptions{}))
	for _, obj := range items(list) {
		errtest.Must(t, store.Delete(context.Background(), obj))
	}
}

func pointers[T any, P interface {
	*T
	api.Resource
}](items []T) []api.Resource {
	var out []api.Resource
	for i := range items {
		out = append(out, P(&items[i]))
	}
	return out
}

// crowd is pods that ask at once, and what they hold.
type crowd struct {
	open func() datastore.Store // each call as another process would
	live map[string][]netip.Addr
}

// assign has so many pods ask for an address, each by a store of its own. All get one that no other has, and what is written is sound.
func (c *crowd) assign(t *testing.T, count int, pod func(i int) (node, handle string)) {
	t.Helper()
	c.live = map[string][]netip.Addr{}
	var mu sync.Mutex // guards live
	group, ctx := errgroup.WithContext(t.Context())
	for i := range count {
		node, handle := pod(i)
		store := c.open()
		group.Go(func() error {
			got, err := NewClient(store, time.Now).Assign(ctx, podRequest(node, handle))
			mu.Lock()
			defer mu.Unlock()
			c.live[handle] = addresses(got)
			return err
		})
	}
	errtest.Must(t, group.Wait())
	c.distinct(t, count)
	errtest.Must(t, audit(c.open(), c.live))
}

// distinct fails the test if two handles were given the same address, or one none.
func (c *crowd) distinct(t *testing.T, want int) {
	t.Helper()
	holder := map[netip.Addr]string{}
	for handle, addrs := range c.live {
		if len(addrs) != 1 {
			t.Errorf("%s was given %v", handle, addrs)
		}
		for _, a := range addrs {
			if other, ok := holder[a]; ok {
				t.Errorf("%s was given to %s and to %s", a, other, handle)
			}
			holder[a] = handle
		}
	}
	if len(holder) != want {
		t.Errorf("%d addresses were given, want %d", len(holder), want)
	}
}

// release gives all back, twenty at a time: of each handle what it held is freed, and nothing is left.
func (c *crowd) release(t *testing.T) {
	t.Helper()
	store := c.open()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(20)
	for handle, want := range c.live {
		group.Go(func() error {
			freed, err := NewClient(store, time.Now).Release(ctx, handle)
			if d := cmp.Diff(want, freed, difftest.Netip); d != "" && err == nil {
				err = fmt.Errorf("release of %s freed (-want +got):\n%s", handle, d)
			}
			return err
		})
	}
	errtest.Must(t, group.Wait())
	errtest.Must(t, audit(store, nil))
}

// onServer opens stores of the test binary's API server.
func onServer(t *testing.T) func() datastore.Store {
	return func() datastore.Store { return labstore.Store(t) }
}

// 20 nodes claim their first block in one pool at once: each gets one of its own.
func TestManyNodesClaimAtOnce(t *testing.T) {
	var nodes []string
	for i := range 20 {
		nodes = append(nodes, fmt.Sprintf("claim-%d", i))
	}
	cluster(t, poolObject("claims", "10.20.0.0/25"), nodes...) // 32 blocks: many nodes want the same one
	g := crowd{open: onServer(t)}
	g.assign(t, len(nodes), func(i int) (node, handle string) { return nodes[i], "pod-on-" + nodes[i] })
	c, err := readContents(g.open())
	errtest.Must(t, err)
	owners := map[string]int{}
	for _, b := range c.blocks {
		owners[strings.TrimPrefix(*b.obj.Spec.Affinity, "host:")]++
	}
	for _, n := range nodes {
		if owners[n] != 1 {
			t.Errorf("%s owns %d blocks, want 1", n, owners[n])
		}
	}
	if len(c.blocks) != len(nodes) {
		t.Errorf("%d blocks, want %d", len(c.blocks), len(nodes))
	}
}

// 100 pods of one node at once, over two blocks of 64: all get an address, and all give it back.
func TestManyPodsAtOnce(t *testing.T) {
	cluster(t, poolObject("pods", "10.21.0.0/24", func(p *api.IPPool) { p.Spec.BlockSize = 26 }), "busy")
	g := crowd{open: onServer(t)}
	g.assign(t, 100, func(i int) (node, handle string) { return "busy", fmt.Sprintf("pod-%d", i) })
	g.release(t)
	c, err := readContents(g.open())
	errtest.Must(t, err)
	for _, b := range c.blocks {
		if !b.Empty() || !b.OwnedBy("busy") || len(b.obj.Spec.Attributes) > 0 {
			t.Errorf("after all releases: %s", describe(b.obj))
		}
	}
}

func TestExhaustedPool(t *testing.T) {
	cluster(t, poolObject("small", "10.22.0.0/30"), "node-x", "node-y")
	useUp(t, labstore.Store(t), "10.22.0.0/30")
}

// useUp uses up a store's one pool, called small, which has four addresses: when it runs out it says so, serves who asks again, and
// serves the next as soon as an address is free.
func useUp(t *testing.T, store datastore.Store, cidr string) {
	t.Helper()
	c := NewClient(store, time.Now)
	live := map[string][]netip.Addr{}
	for i := range 4 { // node-y borrows
		handle := fmt.Sprintf("pod-%d", i)
		for range 2 { // the second asks again
			got, err := c.Assign(t.Context(), podRequest([]string{"node-x", "node-y"}[i%2], handle))
			errtest.Must(t, err)
			if d := cmp.Diff(live[handle], addresses(got), difftest.Netip); d != "" && live[handle] != nil {
				t.Errorf("asked again, %s got (-first +again):\n%s", handle, d)
			}
			live[handle] = addresses(got)
		}
	}
	_, err := c.Assign(t.Context(), podRequest("node-x", "one-too-many"))
	checkRefusal(t, err, ErrExhausted, "small "+cidr)
	errtest.Must(t, audit(store, live))
	freed, err := c.Release(t.Context(), "pod-1")
	errtest.Must(t, err)
	got, err := c.Assign(t.Context(), podRequest("node-x", "next"))
	errtest.Must(t, err)
	if d := cmp.Diff(freed, addresses(got), difftest.Netip); d != "" {
		t.Errorf("assigned (-freed +got):\n%s", d)
	}
	delete(live, "pod-1")
	live["next"] = addresses(got)
	errtest.Must(t, audit(store, live))
}

// How many requests each operation sends to the API server, without contention. Calico's AutoAssign takes 10 for the n-th pod,
// 15 for a node's first, and 9 to 10 for a release. The rounds are in TestRequestsAndRounds.
//
// All of a process's requests share one connection.
func TestRequestsToTheServer(t *testing.T) {
	cluster(t, poolObject("counted", "10.23.0.0/24"), "counted-node")
	proxy := labtest.NewProxy(t)
	slow := map[string]int{"get ipamconfigs": 1, "list ipreservations": 1, "list ippools": 1, "list blockaffinities": 1}
	with := func(more map[string]int) map[string]int {
		all := maps.Clone(slow)
		maps.Copy(all, more)
		return all
	}
	var known *Known
	assign := func(handle string) func(*Client) error {
		return func(c *Client) error { return begin(known, podRequest("counted-node", handle))(t.Context(), c) }
	}
	release := func(handle string) func(*Client) error {
		return func(c *Client) error {
			_, err := c.ReleaseKnowing(t.Context(), Owner{Handle: handle}, "counted-node", known)
			return err
		}
	}
	nth := map[string]int{"get ipamblocks": 1, "create ipamhandles": 1, "update ipamblocks": 1}
	for _, c := range []struct {
		name  string
		known bool
		do    func(*Client) error
		want  map[string]int
	}{
		{"first pod", false, assign("a"), with(map[string]int{"list blockaffinities": 2, "list ipamblocks": 1, "create blockaffinities": 1, "create ipamhandles": 1,
			"create ipamblocks": 1, "update blockaffinities": 1})},
		{"n-th pod", false, assign("b"), with(nth)},
		{"n-th pod, with facts", true, assign("c"), nth},
		{"release", false, release("b"), map[string]int{"get ipamconfigs": 1, "get ipamhandles": 1, "get ipamblocks": 1, "update ipamblocks": 1,
			"delete ipamhandles": 1}},
		{"release, with facts", true, release("c"), map[string]int{"get ipamhandles": 1, "get ipamblocks": 1, "update ipamblocks": 1, "delete ipamhandles": 1}},
		{"release of what does not exist", true, release("b"), map[string]int{"get ipamhandles": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			// The watch cache that answers stale lists must know what the last case wrote, or this one tries twice.
			waitForCache(t)
			if known = nil; c.known {
				known = knownTo(t, labstore.Store(t), "counted-node")
			}
			proxy.Reset()
			errtest.Must(t, c.do(NewClient(labstore.At(t, proxy.Kubeconfig()), time.Now)))
			difftest.Want(t, "requests", c.want, proxy.Requests())
			if n := proxy.Connections(); n != 1 {
				t.Errorf("%d connections, want 1", n)
			}
		})
	}
}

// waitForCache returns when a stale list shows what a consistent one does.
func waitForCache(t *testing.T) {
	t.Helper()
	store := labstore.Store(t)
	waittest.For(t, 10*time.Second, func() error {
		var now, cached api.BlockAffinityList
		errtest.Must(t, store.List(t.Context(), &now, datastore.ListOptions{}))
		errtest.Must(t, store.List(t.Context(), &cached, datastore.ListOptions{Stale: true}))
		var pools api.IPPoolList
		errtest.Must(t, store.List(t.Context(), &pools, datastore.ListOptions{Stale: true}))
		if !cmp.Equal(now.Items, cached.Items) || len(pools.Items) == 0 {
			return errors.New("the cache is behind")
		}
		return nil
	})
}
