package cluster

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// watchReal starts a Watch of the real API server and returns a store for the changes that it is to see.
func watchReal(t *testing.T) (*Watch, *kubernetes.Store) {
	t.Helper()
	cfg, err := Connect(labtest.API(t), "test")
	errtest.Must(t, err)
	return watchAt(t, cfg), storeAt(t, cfg)
}

func create(t *testing.T, store *kubernetes.Store, obj api.Resource) {
	t.Helper()
	errtest.Must(t, store.Create(t.Context(), obj))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := store.Get(ctx, obj); err == nil {
			_ = store.Delete(ctx, obj)
		}
	})
}

// await waits for wake-ups until the state.Cluster is as wanted.
func await(t *testing.T, w *Watch, wanted func(state.Cluster) bool) {
	t.Helper()
	limit := time.After(10 * time.Second)
	for !wanted(w.Cluster()) {
		select {
		case <-w.Changed():
		case <-limit:
			t.Fatalf("the world never became as wanted: %+v", w.Cluster())
		}
	}
}

func TestWorldFollowsTheCluster(t *testing.T) {
	w, store := watchReal(t)
	node := &api.Node{Meta: api.Meta{Name: "watched", Labels: map[string]string{"zone": "a"}, Annotations: map[string]string{
		api.AnnotationIPv4Address: "10.0.0.7/24", "someone.else/big": "left out",
	}}}
	pool := &api.IPPool{Meta: api.Meta{Name: "watched"}, Spec: api.IPPoolSpec{CIDR: "10.81.0.0/16", IPIPMode: api.EncapAlways}}
	asn := uint32(65010)
	bgp := &api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName}, Spec: api.BGPConfigurationSpec{ASNumber: &asn}}
	affinity := &api.BlockAffinity{
		Meta: api.Meta{Name: "watched-10-81-0-0-26"},
		Spec: api.BlockAffinitySpec{State: api.AffinityPending, Node: "watched", CIDR: "10.81.0.0/26", Type: "host"},
	}
	for _, obj := range []api.Resource{node, pool, bgp, affinity} {
		create(t, store, obj)
	}
	seen := func(world state.Cluster) (n *api.Node) {
		for i := range world.Nodes {
			if world.Nodes[i].Name == "watched" {
				n = &world.Nodes[i]
			}
		}
		return n
	}
	await(t, w, func(world state.Cluster) bool {
		return seen(world) != nil && len(world.Pools) == 1 && len(world.Affinities) == 1 && world.BGP.ASNumber != nil
	})
	world := w.Cluster()
	n := seen(world)
	if n.UID == "" || n.Labels["zone"] != "a" || n.Annotations[api.AnnotationIPv4Address] != "10.0.0.7/24" || len(n.Annotations) != 1 {
		t.Errorf("node: %+v", n)
	}
	if world.Pools[0].Spec.CIDR != "10.81.0.0/16" || world.Pools[0].Spec.IPIPMode != api.EncapAlways || *world.BGP.ASNumber != asn ||
		world.Affinities[0].Confirmed() {
		t.Errorf("world: %+v", world)
	}

	affinity.Spec.State = api.AffinityConfirmed
	errtest.Must(t, store.Update(t.Context(), affinity))
	await(t, w, func(world state.Cluster) bool { return world.Affinities[0].Confirmed() })

	errtest.Must(t, store.Delete(t.Context(), affinity))
	await(t, w, func(world state.Cluster) bool {
		return !slices.ContainsFunc(world.Affinities, func(a api.BlockAffinity) bool { return !a.MarkedDeleted() })
	})
}

// Kubelets write their Node every few seconds: this must wake no reader.
func TestHeartbeatsWakeNobody(t *testing.T) {
	w, store := watchReal(t)
	node := &api.Node{Meta: api.Meta{Name: "beating"}}
	create(t, store, node)
	await(t, w, func(world state.Cluster) bool {
		return slices.ContainsFunc(world.Nodes, func(n api.Node) bool { return n.Name == "beating" })
	})
	drain(w)
	before := w.Revision()
	for range beats {
		stamp := time.Now().UTC().Format(time.RFC3339Nano)
		beat := kubernetes.Patch{Status: map[string]any{"conditions": []api.NodeCondition{{Type: "Ready", Status: "True", Message: stamp}}}}
		errtest.Must(t, store.PatchStatus(t.Context(), node, beat, false))
	}
	value := "10.0.0.8/24"
	change := kubernetes.Patch{Metadata: kubernetes.PatchMeta{Annotations: map[string]*string{api.AnnotationIPv4Address: &value}}}
	errtest.Must(t, store.PatchStatus(t.Context(), node, change, false))
	await(t, w, func(state.Cluster) bool {
		n := w.nodes.get("beating")
		return n != nil && n.Annotations[api.AnnotationIPv4Address] == value
	})
	waittest.Until(t, 10*time.Second, "a new address wakes nobody", func() bool { return w.Revision() > before })
	wantNoBeats(t, w, before)
}

// beats is how many heartbeats must wake nobody: more than the changes around them, of which a store may have shown
// each a moment before it wakes.
const beats = 3

// wantNoBeats fails the test if heartbeats, between two changes, have woken the reader of Cluster. Events of one kind
// come in their order, so that the test first waits for the change after them.
func wantNoBeats(t *testing.T, w *Watch, before uint64) {
	t.Helper()
	if n := w.Revision() - before; n >= beats {
		t.Errorf("%d wake-ups with %d heartbeats", n, beats)
	}
}

// drain waits until the wake-ups of earlier changes have been seen.
func drain(w *Watch) {
	for {
		select {
		case <-w.Changed():
		case <-time.After(300 * time.Millisecond):
			return
		}
	}
}
