package duties

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/labtest"
	"github.com/tortie-net/tortie/internal/names"
)

// connect returns a store at the real API server, as its administrator.
func connect(t *testing.T) *kubernetes.Store {
	t.Helper()
	cfg, err := kubernetes.LoadKubeconfig(labtest.API(t))
	if err != nil {
		t.Fatal(err)
	}
	store, err := kubernetes.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// forget removes an object now and at the end of the test: the API server is shared.
func forget(t *testing.T, store *kubernetes.Store, obj api.Resource) {
	t.Helper()
	clean := func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := store.Get(ctx, obj); err == nil {
			_ = store.Delete(ctx, obj)
		}
	}
	clean()
	t.Cleanup(clean)
}

var testPool = api.IPPoolSpec{CIDR: "10.77.0.0/16", BlockSize: 26, IPIPMode: api.EncapAlways, NATOutgoing: true}

func TestManyAgentsSetUpOneCluster(t *testing.T) {
	store := connect(t)
	info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	pool := &api.IPPool{Meta: api.Meta{Name: defaultPoolName}}
	for _, obj := range []api.Resource{info, pool, &api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}}} {
		forget(t, store, obj)
	}
	var agents sync.WaitGroup
	for range 8 {
		agents.Go(func() {
			if err := SetUp(t.Context(), store, []string{"k8s", "bgp"}, &testPool); err != nil {
				t.Error(err)
			}
		})
	}
	agents.Wait()
	for _, obj := range []api.Resource{info, pool} {
		if err := store.Get(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	s := info.Spec
	if s.DatastoreReady == nil || !*s.DatastoreReady || len(s.ClusterGUID) != 32 || s.ClusterType != "k8s,bgp" || s.CalicoVersion != "" {
		t.Errorf("ClusterInformation: %+v", s)
	}
	if pool.Spec.CIDR != testPool.CIDR || pool.Spec.IPIPMode != api.EncapAlways {
		t.Errorf("default pool: %+v", pool.Spec)
	}
}

func TestSetUpLeavesWhatAnOperatorWrote(t *testing.T) {
	store := connect(t)
	no := false
	info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	forget(t, store, info)
	info.Meta = api.Meta{Name: api.DefaultName}
	info.Spec = api.ClusterInformationSpec{CalicoVersion: "v3.30.0", ClusterGUID: strings.Repeat("a", 32), ClusterType: "typha", DatastoreReady: &no}
	own := &api.IPPool{Meta: api.Meta{Name: "own"}}
	def := &api.IPPool{Meta: api.Meta{Name: defaultPoolName}}
	forget(t, store, own)
	forget(t, store, def)
	own.Meta, own.Spec = api.Meta{Name: "own"}, api.IPPoolSpec{CIDR: "10.78.0.0/16"}
	for _, obj := range []api.Resource{info, own} {
		if err := store.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	if err := SetUp(t.Context(), store, []string{"k8s"}, &testPool); err != nil {
		t.Fatal(err)
	}
	if err := store.Get(t.Context(), info); err != nil {
		t.Fatal(err)
	}
	want := api.ClusterInformationSpec{CalicoVersion: "v3.30.0", ClusterGUID: strings.Repeat("a", 32), ClusterType: "typha,k8s", DatastoreReady: &no}
	if d := cmp.Diff(want, info.Spec); d != "" {
		t.Errorf("ClusterInformation (-want +got):\n%s", d)
	}
	if err := store.Get(t.Context(), &api.IPPool{Meta: api.Meta{Name: defaultPoolName}}); !isNotFound(err) {
		t.Errorf("a default pool beside an operator's: %v", err)
	}
}

func isNotFound(err error) bool { return errors.Is(err, datastore.ErrNotFound) }

func TestTunnelAddressSurvivesAndFollowsThePools(t *testing.T) {
	store := connect(t)
	node := &api.Node{Meta: api.Meta{Name: "tunnel-node"}}
	forget(t, store, node)
	node.Meta = api.Meta{Name: "tunnel-node"}
	if err := store.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	for name, cidr := range map[string]string{"tunnel-a": "10.79.0.0/24", "tunnel-b": "10.80.0.0/24"} {
		p := &api.IPPool{Meta: api.Meta{Name: name}}
		forget(t, store, p)
		p.Meta, p.Spec = api.Meta{Name: name}, api.IPPoolSpec{CIDR: cidr, IPIPMode: api.EncapAlways}
		if err := store.Create(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	client := ipam.NewClient(store, time.Now)
	keep := []netip.Prefix{netip.MustParsePrefix("10.79.0.0/24"), netip.MustParsePrefix("10.80.0.0/24")}
	assign := func(ranges ...netip.Prefix) netip.Addr {
		t.Helper()
		a, err := assignTunnelAddress(t.Context(), client, "tunnel-node", Ranges{Assign: ranges, Keep: keep})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	first := assign(netip.MustParsePrefix("10.79.0.0/24"))
	if !netip.MustParsePrefix("10.79.0.0/24").Contains(first) {
		t.Fatalf("address %s is not in the pool", first)
	}
	if again := assign(netip.MustParsePrefix("10.80.0.0/24"), netip.MustParsePrefix("10.79.0.0/24")); again != first {
		t.Errorf("the next agent got %s instead of %s", again, first)
	}
	moved := assign(netip.MustParsePrefix("10.80.0.0/24"))
	if !netip.MustParsePrefix("10.80.0.0/24").Contains(moved) {
		t.Errorf("after the pool was replaced the address is %s", moved)
	}
	held, err := client.Addresses(t.Context(), names.TunnelHandle("tunnel-node"))
	if err != nil || len(held) != 1 || held[0] != moved {
		t.Errorf("the handle holds %v, %v; want %s alone", held, err, moved)
	}
	if kept := assign(); kept != moved {
		t.Errorf("with all pools disabled the address is %s, want %s to stay", kept, moved)
	}
	keep = keep[:1] // its pool is gone
	if none := assign(); none.IsValid() {
		t.Errorf("without a pool the address is %s", none)
	}
	if held, err := client.Addresses(t.Context(), names.TunnelHandle("tunnel-node")); err != nil || len(held) > 0 {
		t.Errorf("the handle still holds %v, %v", held, err)
	}
}

func TestAnnounceAndNetworkAvailable(t *testing.T) {
	store := connect(t)
	node := &api.Node{Meta: api.Meta{Name: "announced"}}
	forget(t, store, node)
	node.Meta = api.Meta{Name: "announced", Annotations: map[string]string{"other": "stays", api.AnnotationIPv4TunnelAddr: "10.1.1.1"}}
	if err := store.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{api.AnnotationIPv4Address: "10.0.0.1/24", api.AnnotationIPv4TunnelAddr: ""}
	if err := Announce(t.Context(), store, node.Annotations, node.Name, want); err != nil {
		t.Fatal(err)
	}
	if err := DeclareAvailable(t.Context(), store, node.Name, time.Now()); err != nil {
		t.Fatal(err)
	}
	got := &api.Node{Meta: api.Meta{Name: "announced"}}
	if err := store.Get(t.Context(), got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"other": "stays", api.AnnotationIPv4Address: "10.0.0.1/24"}, got.Annotations); d != "" {
		t.Errorf("annotations (-want +got):\n%s", d)
	}
	if c := got.Status.Conditions; len(c) != 1 || c[0].Type != "NetworkUnavailable" || c[0].Status != "False" || c[0].Reason != "CalicoIsUp" {
		t.Errorf("conditions: %+v", c)
	}
	// What is right already is not written again.
	before := got.ResourceVersion
	if err := Announce(t.Context(), store, got.Annotations, got.Name, want); err != nil {
		t.Fatal(err)
	}
	if err := DeclareAvailable(t.Context(), store, got.Name, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := store.Get(t.Context(), got); err != nil || got.ResourceVersion != before {
		t.Errorf("a Node that was right was written: revision %s, then %s (%v)", before, got.ResourceVersion, err)
	}
}
