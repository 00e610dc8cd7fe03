package ipam

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/etcd"
	"github.com/tortie-net/tortie/internal/labtest"
)

// etcdSite starts an etcd with a pool, and returns what opens it as a process of its own would: with its own connection.
func etcdSite(t *testing.T, pool *api.IPPool) func() datastore.Store {
	t.Helper()
	e := labtest.NewEtcd(t, true)
	open := func() datastore.Store {
		s, err := etcd.New(etcd.Config{Endpoints: []string{e.Endpoint}, CAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile})
		must(t, err)
		return s
	}
	must(t, open().Create(t.Context(), pool))
	return open
}

// 8 nodes with 12 pods each, all at once, on etcd: every address once, every block one owner, and all is given back.
func TestManyNodesAtOnceOnEtcd(t *testing.T) {
	open := etcdSite(t, poolObject("etcd", "10.30.0.0/24"))
	var g given
	group, ctx := errgroup.WithContext(t.Context())
	const nodes, pods = 8, 12
	for i := range nodes * pods {
		store := open()
		group.Go(func() error {
			handle := fmt.Sprintf("Net.Pod-%d", i) // etcd keeps the case of handles
			got, err := NewClient(store, time.Now).Assign(ctx, podRequest(fmt.Sprintf("node-%d", i%nodes), handle))
			g.add(handle, got)
			return err
		})
	}
	must(t, group.Wait())
	g.distinct(t, nodes*pods)
	must(t, audit(open(), g.live))

	group, ctx = errgroup.WithContext(t.Context())
	for handle, want := range g.live {
		store := open()
		group.Go(func() error {
			freed, err := NewClient(store, time.Now).Release(ctx, handle)
			if d := cmp.Diff(want, freed, byValue); d != "" && err == nil {
				err = fmt.Errorf("release of %s freed (-want +got):\n%s", handle, d)
			}
			return err
		})
	}
	must(t, group.Wait())
	must(t, audit(open(), nil))
}

// A pool that runs out on etcd says so, serves who asks again, and serves the next as soon as an address is free.
func TestExhaustedPoolOnEtcd(t *testing.T) {
	open := etcdSite(t, poolObject("small", "10.31.0.0/30"))
	store := open()
	c := NewClient(store, time.Now)
	live := map[string][]netip.Addr{}
	for i := range 4 { // node-y borrows
		handle := fmt.Sprintf("pod-%d", i)
		for range 2 { // the second asks again
			got, err := c.Assign(t.Context(), podRequest([]string{"node-x", "node-y"}[i%2], handle))
			must(t, err)
			if d := cmp.Diff(live[handle], addresses(got), byValue); d != "" && live[handle] != nil {
				t.Errorf("asked again, %s got (-first +again):\n%s", handle, d)
			}
			live[handle] = addresses(got)
		}
	}
	_, err := c.Assign(t.Context(), podRequest("node-x", "one-too-many"))
	checkRefusal(t, err, ErrExhausted, "no free address in [small 10.31.0.0/30]")
	must(t, audit(store, live))
	freed, err := c.Release(t.Context(), "pod-1")
	must(t, err)
	got, err := c.Assign(t.Context(), podRequest("node-x", "next"))
	must(t, err)
	if d := cmp.Diff(freed, addresses(got), byValue); d != "" {
		t.Errorf("assigned (-freed +got):\n%s", d)
	}
}
