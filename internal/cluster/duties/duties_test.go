package duties

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// found returns the Defaults that a Watch would have.
func found(t *testing.T, store *kubernetes.Store) state.Defaults {
	t.Helper()
	var f state.Defaults
	has := func(obj api.Resource) bool {
		err := store.Get(t.Context(), obj)
		if err != nil && !isNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	}
	if info := (&api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}); has(info) {
		f.Information = info
	}
	f.IPAMConfig = has(&api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}})
	f.Felix = has(&api.FelixConfiguration{Meta: api.Meta{Name: api.DefaultName}})
	return f
}

// pools are those that there are.
func pools(t *testing.T, store *kubernetes.Store) []api.IPPool {
	t.Helper()
	var all api.IPPoolList
	errtest.Must(t, store.List(t.Context(), &all, datastore.ListOptions{}))
	return all.Items
}

// nothingThere removes what SetUp and MakePools make, now and at the end of the test.
func nothingThere(t *testing.T, store *kubernetes.Store) {
	t.Helper()
	for _, name := range []string{"default-ipv4-ippool", "default-ipv6-ippool"} {
		labstore.Forget(t, store, &api.IPPool{Meta: api.Meta{Name: name}})
	}
	labstore.Forget(t, store, &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}})
	labstore.Forget(t, store, &api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}})
	labstore.Forget(t, store, &api.FelixConfiguration{Meta: api.Meta{Name: api.DefaultName}})
}

func testPools() DefaultPools {
	return DefaultPools{IPv6: true, Own: func(context.Context) ([]netip.Prefix, error) { return nil, nil }, Pools: config.Pools{
		V4: &config.Pool{CIDR: netip.MustParsePrefix("10.77.0.0/16"),
			Spec: api.IPPoolSpec{BlockSize: 26, IPIPMode: api.EncapAlways, NATOutgoing: true}},
		V6: &config.Pool{Spec: api.IPPoolSpec{BlockSize: 122}},
	}}
}

func TestManyAgentsSetUpOneCluster(t *testing.T) {
	store := labstore.Store(t)
	nothingThere(t, store)
	var agents sync.WaitGroup
	for range 100 {
		agents.Go(func() {
			err := errors.Join(SetUp(t.Context(), store, Cluster{Type: []string{"k8s", "bgp"}}, state.Defaults{}),
				MakePools(t.Context(), store, testPools(), nil))
			if err != nil {
				t.Error(err)
			}
		})
	}
	agents.Wait()
	f := found(t, store)
	s := f.Information.Spec
	if s.DatastoreReady == nil || !*s.DatastoreReady || len(s.ClusterGUID) != 32 || s.ClusterType != "k8s,bgp,kdd" || s.CalicoVersion != "" {
		t.Errorf("ClusterInformation: %+v", s)
	}
	if !f.IPAMConfig || !f.Felix {
		t.Errorf("IPAMConfig %v, FelixConfiguration %v", f.IPAMConfig, f.Felix)
	}
	specs := map[string]api.IPPoolSpec{}
	for _, p := range pools(t, store) {
		specs[p.Name] = p.Spec
	}
	v4, v6 := specs["default-ipv4-ippool"], specs["default-ipv6-ippool"]
	if v4.CIDR != "10.77.0.0/16" || v4.IPIPMode != api.EncapAlways || !strings.HasPrefix(v6.CIDR, "fd") || !strings.HasSuffix(v6.CIDR, "/48") {
		t.Errorf("default pools: %+v", specs)
	}
}

// A cluster that is set up costs a starting agent no request: its watches have all that it needs.
func TestASteadyStartAsksNothing(t *testing.T) {
	proxy := labtest.NewProxy(t)
	store := labstore.At(t, proxy.Kubeconfig())
	nothingThere(t, store)
	want := Cluster{Type: []string{"k8s", "bgp"}}
	for _, requests := range []map[string]int{
		{
			"get configmaps": 2, "create clusterinformations": 1, "create ipamconfigs": 1, "create felixconfigurations": 1, "create ippools": 2,
		},
		{},
	} {
		now, there := found(t, store), pools(t, store)
		proxy.Reset()
		errtest.Must(t, errors.Join(SetUp(t.Context(), store, want, now), MakePools(t.Context(), store, testPools(), there)))
		difftest.Want(t, "requests", requests, proxy.Requests())
	}
}

func TestSetUpLeavesWhatAnOperatorWrote(t *testing.T) {
	store := labstore.Store(t)
	nothingThere(t, store)
	no := false
	info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
	info.Spec = api.ClusterInformationSpec{CalicoVersion: "v3.30.0", ClusterGUID: strings.Repeat("a", 32),
		ClusterType: "typha,kdd", DatastoreReady: &no}
	own := &api.IPPool{Meta: api.Meta{Name: "own"}}
	labstore.Forget(t, store, own)
	own.Meta, own.Spec = api.Meta{Name: "own"}, api.IPPoolSpec{CIDR: "10.78.0.0/16"}
	for _, obj := range []api.Resource{info, own} {
		errtest.Must(t, store.Create(t.Context(), obj))
	}
	stale, there := found(t, store), pools(t, store) // and somebody writes before SetUp does
	info.Spec.ClusterType = "typha,kdd,more"
	errtest.Must(t, store.Update(t.Context(), info))
	want := testPools()
	want.V6 = nil
	errtest.Must(t, errors.Join(SetUp(t.Context(), store, Cluster{Type: []string{"k8s"}}, stale), MakePools(t.Context(), store, want, there)))
	errtest.Must(t, store.Get(t.Context(), info))
	wanted := api.ClusterInformationSpec{CalicoVersion: "v3.30.0", ClusterGUID: strings.Repeat("a", 32),
		ClusterType: "typha,kdd,more,k8s", DatastoreReady: &no}
	difftest.Want(t, "ClusterInformation", wanted, info.Spec)
	if err := store.Get(t.Context(), &api.IPPool{Meta: api.Meta{Name: "default-ipv4-ippool"}}); !isNotFound(err) {
		t.Errorf("a default pool beside an operator's: %v", err)
	}
}

func isNotFound(err error) bool { return errors.Is(err, datastore.ErrNotFound) }

// refusing is a datastore that does not let ClusterInformation be changed, as the fence does where clusterType is full.
type refusing struct{ datastore.Store }

func (r refusing) Update(ctx context.Context, obj api.Resource) error {
	if _, ok := obj.(*api.ClusterInformation); ok {
		return datastore.ErrUnauthorized
	}
	return r.Store.Update(ctx, obj)
}

// What nobody needs keeps no agent from starting; what all need does.
func TestClusterTypeThatIsFull(t *testing.T) {
	store := labstore.Store(t)
	nothingThere(t, store)
	info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName},
		Spec: api.ClusterInformationSpec{ClusterType: "k8s," + strings.Repeat("x", 250)}}
	errtest.Must(t, store.Create(t.Context(), info))
	want := Cluster{Type: []string{"k8s", "bgp"}}
	if err := SetUp(t.Context(), refusing{store}, want, found(t, store)); err == nil || errors.Is(err, ErrClusterType) {
		t.Errorf("without a GUID: %v, want an error", err)
	}
	ready := true
	info.Spec.ClusterGUID, info.Spec.DatastoreReady = "0123456789abcdef0123456789abcdef", &ready
	errtest.Must(t, store.Update(t.Context(), info))
	if err := SetUp(t.Context(), refusing{store}, want, found(t, store)); !errors.Is(err, ErrClusterType) {
		t.Errorf("with a clusterType that stays: %v, want %v", err, ErrClusterType)
	}
	if f := found(t, store); !f.IPAMConfig || !f.Felix {
		t.Errorf("the rest is not set up: %+v", f)
	}
}
