package gc

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/inventory"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/labtest/labstore"
	"github.com/tortie-net/tortie/internal/names"
)

// TestForeignTunnelHandles: a handle that has only the name of a node's tunnel is collected, whether all of it was seen or its metadata
// alone; the node's own is not, as its agent may be about to use it.
func TestForeignTunnelHandles(t *testing.T) {
	store := labstore.Store(t)
	for _, named := range []bool{false, true} {
		for _, c := range []struct {
			name, id, node string
			goes           bool
		}{
			{"the node's own", "ipip-tunnel-addr-gc-a", "gc-a", false},
			{"the node's own, by Calico", "vxlan-tunnel-addr-gc-a", "", false},
			{"in capitals", "IPIP-tunnel-addr-gc-a", "", true},
			{"in capitals, of another node", "Vxlan-tunnel-addr-gc-a", "gc-b", true},
			{"of another node", "vxlan-v6-tunnel-addr-gc-a", "gc-b", true},
			{"of a node that is gone", "ipip-tunnel-addr-gc-gone", "", true},
		} {
			t.Run(c.name, func(t *testing.T) {
				obj := &api.IPAMHandle{
					Meta: api.Meta{Name: names.Handle(c.id), Annotations: map[string]string{}},
					Spec: api.IPAMHandleSpec{HandleID: c.id, Block: map[string]int{}},
				}
				if c.node != "" {
					obj.Annotations[names.AnnotationNode] = c.node
				}
				labstore.Forget(t, store, &api.IPAMHandle{Meta: api.Meta{Name: obj.Name}})
				if err := store.Create(t.Context(), obj); err != nil {
					t.Fatal(err)
				}
				seen := inventory.NewHandle(obj)
				if named {
					seen.ID, seen.Named = "", true
				}
				v := &inventory.View{Ready: true, Taken: clock, Nodes: []inventory.Node{{Meta: api.Meta{Name: "gc-a"}}, {Meta: api.Meta{Name: "gc-b"}}}, Handles: []inventory.Handle{seen}}
				st, _ := Pass(State{}, v, DefaultRules)
				v.Taken = v.Taken.Add(time.Hour)
				_, decision := Pass(st, v, DefaultRules)
				sweeper := Sweeper{IPAM: store, Cluster: store, Client: ipam.NewClient(store, time.Now), Log: slog.New(slog.DiscardHandler)}
				if _, err := sweeper.Sweep(t.Context(), v, &decision); err != nil {
					t.Fatal(err)
				}
				err := store.Get(t.Context(), obj)
				if gone := errors.Is(err, datastore.ErrNotFound); gone != c.goes || err != nil && !gone {
					t.Errorf("metadata alone %v: after the sweep: %v; want that it is gone: %v", named, err, c.goes)
				}
			})
		}
	}
}
