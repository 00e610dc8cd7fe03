package migrate

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// TestPoolInUseStays: of two pools that overlap a move leaves the one in use where it is, there and back, although the
// other one is the first by name.
func TestPoolInUseStays(t *testing.T) {
	m := mover(t, both(t).Kubeconfig())
	stranger(t, m, groups.V1)
	v1 := m.Stores[groups.V1]
	used := &api.IPPool{Meta: api.Meta{Name: "z-used"}, Spec: api.IPPoolSpec{CIDR: "10.0.0.0/16", NodeSelector: "all()"}}
	late := &api.IPPool{Meta: api.Meta{Name: "a-late"}, Spec: api.IPPoolSpec{CIDR: "10.0.0.0/17", NodeSelector: "all()"}}
	errtest.Must(t, v1.Create(t.Context(), used))
	errtest.Must(t, v1.SetStatus(t.Context(), used, api.IPPoolStatus{Conditions: []api.Condition{
		{Type: api.Allocatable, Status: "True", Reason: api.PoolOK, LastTransitionTime: "2026-11-30T08:00:00Z"}}}))
	errtest.Must(t, v1.Create(t.Context(), late)) // without a condition yet
	want := map[string]string{"z-used": api.PoolOK, "a-late": api.PoolOverlap}
	for _, to := range []groups.Group{groups.V3, groups.V1} {
		errtest.Must(t, m.Start(t.Context(), to))
		var pools api.IPPoolList
		errtest.Must(t, m.Stores[to].List(t.Context(), &pools, datastore.ListOptions{}))
		got := map[string]string{}
		for _, p := range ipam.ParsePools(pools.Items) {
			got[p.Name] = p.Reason
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("pools in %s (-want +got):\n%s", to, d)
		}
		if to == groups.V3 {
			agents(t, m)
			errtest.Must(t, answering(t, m, to).Finish(t.Context()))
		}
	}
}
