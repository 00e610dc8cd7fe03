package gc

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
)

// TestForeignTunnelHandles: a handle that has only the name of a node's tunnel is collected, whether all of it was seen
// or its metadata alone; the node's own is not, as its agent may be about to use it.
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
				labstore.Make(t, store, obj)
				seen := inventory.NewHandle(obj)
				if named {
					seen.ID, seen.Named = "", true
				}
				v := &inventory.View{Ready: true, Taken: clock, Nodes: []inventory.Node{{Meta: api.Meta{Name: "gc-a"}}, {Meta: api.Meta{Name: "gc-b"}}},
					Handles: []inventory.Handle{seen}}
				st, _ := Pass(State{}, v, defaultRules)
				v.Taken = v.Taken.Add(time.Hour)
				_, decision := Pass(st, v, defaultRules)
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

// TestADamagedBlockHidesItsOwnHoldersOnly: one block that cannot be read keeps the handles that name it, and no others.
func TestADamagedBlockHidesItsOwnHoldersOnly(t *testing.T) {
	store := labstore.Store(t)
	const cidr = "10.83.0.0/26"
	block := &api.IPAMBlock{Meta: api.Meta{Name: "10-83-0-0-26"}}
	block.Spec = api.IPAMBlockSpec{CIDR: cidr, Allocations: make([]*int, 3), Unallocated: []int{0, 1, 77},
		Attributes: []api.AllocationAttribute{}, SequenceNumberForAllocation: map[string]uint64{}}
	labstore.Make(t, store, block)
	handles := map[string]struct {
		blocks map[string]int
		goes   bool
	}{
		"gc-damage.none":    {map[string]int{}, true},
		"gc-damage.other":   {map[string]int{"10.83.1.0/26": 1}, true},
		"gc-damage.in":      {map[string]int{cidr: 1}, false},
		"gc-damage.both":    {map[string]int{"10.83.1.0/26": 1, cidr: 1}, false},
		"gc-damage.strange": {map[string]int{"x": 1}, false},
	}
	v := &inventory.View{Ready: true, Taken: clock, Blocks: []inventory.Block{inventory.NewBlock(block)}}
	for id, c := range handles {
		obj := &api.IPAMHandle{Meta: api.Meta{Name: id}, Spec: api.IPAMHandleSpec{HandleID: id, Block: c.blocks}}
		labstore.Make(t, store, obj)
		seen := inventory.NewHandle(obj)
		v.Handles = append(v.Handles, inventory.Handle{Meta: seen.Meta, Named: true}) // as the watches show it
	}
	if v.Blocks[0].Damage == nil {
		t.Fatal("the block is not damaged")
	}
	st, _ := Pass(State{}, v, defaultRules)
	v.Taken = v.Taken.Add(time.Hour)
	_, decision := Pass(st, v, defaultRules)
	sweeper := Sweeper{IPAM: store, Cluster: store, Client: ipam.NewClient(store, time.Now), Log: slog.New(slog.DiscardHandler)}
	if _, err := sweeper.Sweep(t.Context(), v, &decision); err != nil {
		t.Fatal(err)
	}
	for id, c := range handles {
		err := store.Get(t.Context(), &api.IPAMHandle{Meta: api.Meta{Name: id}})
		if gone := errors.Is(err, datastore.ErrNotFound); gone != c.goes || err != nil && !gone {
			t.Errorf("%s, which holds %v: %v; want that it is gone: %v", id, c.blocks, err, c.goes)
		}
	}
}

// A view of a time that is not known, as before all watches are open, begins no grace period: else it would be over
// with the next view.
func TestAViewOfUnknownTimeBeginsNoGrace(t *testing.T) {
	obj := &api.IPAMHandle{Meta: api.Meta{Name: "gc-young"}, Spec: api.IPAMHandleSpec{HandleID: "gc-young", Block: map[string]int{}}}
	v := &inventory.View{Ready: true, Handles: []inventory.Handle{inventory.NewHandle(obj)}}
	st := State{}
	for _, step := range []struct {
		taken time.Time
		due   int
	}{{time.Time{}, 0}, {clock, 0}, {time.Time{}, 0}, {clock.Add(defaultRules.Grace - 1), 0}, {clock.Add(defaultRules.Grace), 1}} {
		var d Decision
		v.Taken = step.taken
		if st, d = Pass(st, v, defaultRules); len(d.Due) != step.due {
			t.Errorf("at %v: %d due, want %d", step.taken, len(d.Due), step.due)
		}
	}
}
