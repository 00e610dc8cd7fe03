package plugin_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// tellFacts writes what the agent would know of the world now, changed by edit unless that is nil.
func (w *world) tellFacts(t testing.TB, edit func(*facts.Facts)) {
	t.Helper()
	f := facts.Facts{
		Written: time.Now(), AgentReady: true, DatastoreReady: true, Node: w.name, NodeLabels: map[string]string{"world": w.name},
		Config:     api.IPAMConfigSpec{AutoAllocateBlocks: true},
		Namespaces: map[string]facts.Namespace{w.name: {Labels: w.api.get(t, "Namespace", "", w.name).GetLabels()}},
	}
	listed(t, w.api, "IPPool", &f.Pools)
	listed(t, w.api, "IPReservation", &f.Reservations)
	var affinities []api.BlockAffinity
	listed(t, w.api, "BlockAffinity", &affinities)
	for _, a := range affinities {
		if a.Spec.Node == w.name {
			f.Affinities = append(f.Affinities, facts.Affinity{BlockAffinity: a})
		}
	}
	if edit != nil {
		edit(&f)
	}
	w.host.On(t, func() error { return facts.Write(facts.DefaultFile, f) })
}

// listed decodes all objects of a kind.
func listed[T any](t testing.TB, c *cluster, kind string, into *[]T) {
	t.Helper()
	for _, obj := range c.list(t, kind, "") {
		text, err := obj.MarshalJSON()
		var item T
		if err == nil {
			err = json.Unmarshal(text, &item)
		}
		errtest.Must(t, err)
		*into = append(*into, item)
	}
}

// Whatever the facts say: an ADD that they mislead is as right as any, and pays with requests only.
func TestFactsThatAreWrong(t *testing.T) {
	t.Parallel()
	block := func(w *world, cidr string) facts.Affinity {
		name := strings.NewReplacer(".", "-", "/", "-").Replace(cidr)
		return facts.Affinity{BlockAffinity: api.BlockAffinity{
			Meta: api.Meta{Name: w.name + "-" + name, UID: "0", ResourceVersion: "1"},
			Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: w.name, Type: api.AffinityHost, CIDR: cidr, Deleted: "false"},
		}}
	}
	for name, mislead := range map[string]func(t *testing.T, w *world, f *facts.Facts){
		"no affinities":       func(_ *testing.T, _ *world, f *facts.Facts) { f.Affinities = nil },
		"no pools":            func(_ *testing.T, _ *world, f *facts.Facts) { f.Pools = nil },
		"no namespace":        func(_ *testing.T, _ *world, f *facts.Facts) { f.Namespaces = nil },
		"no labels of node":   func(_ *testing.T, _ *world, f *facts.Facts) { f.NodeLabels = nil },
		"datastore not ready": func(_ *testing.T, _ *world, f *facts.Facts) { f.DatastoreReady = false },
		"of another node":     func(_ *testing.T, _ *world, f *facts.Facts) { f.Node = "other" },
		"old":                 func(_ *testing.T, _ *world, f *facts.Facts) { f.Written = f.Written.Add(-time.Hour) },
		"of tomorrow":         func(_ *testing.T, _ *world, f *facts.Facts) { f.Written = f.Written.Add(24 * time.Hour) },
		"everything reserved": func(_ *testing.T, w *world, f *facts.Facts) {
			f.Reservations = []api.IPReservation{{Spec: api.IPReservationSpec{ReservedCIDRs: []string{w.cidr}}}}
		},
		"no blocks allowed":    func(_ *testing.T, _ *world, f *facts.Facts) { f.Config = api.IPAMConfigSpec{StrictAffinity: true} },
		"a block that is none": func(_ *testing.T, w *world, f *facts.Facts) { f.Affinities = []facts.Affinity{block(w, "no block")} },
		"a block that is gone": func(_ *testing.T, w *world, f *facts.Facts) {
			f.Affinities = []facts.Affinity{block(w, strings.Replace(w.cidr, "0.0/16", "77.64/26", 1))}
		},
		"a pool that is gone": func(_ *testing.T, w *world, f *facts.Facts) {
			f.Pools = []api.IPPool{{Meta: api.Meta{Name: "gone"}, Spec: api.IPPoolSpec{CIDR: "10.255.0.0/16"}}}
			f.Affinities = []facts.Affinity{block(w, "10.255.3.64/26")}
		},
		"pools disabled": func(_ *testing.T, _ *world, f *facts.Facts) {
			for i := range f.Pools {
				f.Pools[i].Spec.Disabled = true
			}
		},
		"a pool that is damaged": func(_ *testing.T, _ *world, f *facts.Facts) {
			for i := range f.Pools {
				f.Pools[i].Spec.CIDR = "all of them"
			}
		},
		"another host's block": func(t *testing.T, w *world, f *facts.Facts) {
			f.Affinities = []facts.Affinity{block(w, w.blockOfAnother(t))}
		},
		"full blocks": func(_ *testing.T, _ *world, f *facts.Facts) {
			for i := range f.Affinities {
				none := 0
				f.Affinities[i].Free = &none
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			first, s := w.newPod(t, "first"), w.newPod(t, "web")
			held := map[netip.Addr]*sandbox{address(t, first.add(t).result(t)): first}
			w.tellFacts(t, func(f *facts.Facts) { mislead(t, w, f) })
			w.proxy.take()
			added := s.add(t)
			a := address(t, added.result(t))
			if n := len(w.proxy.take()); n > 25 {
				t.Errorf("it took %d requests", n)
			}
			held[a] = s
			w.wantHeld(t, held)
			s.check(t, added).ok(t)
			s.wantAnnotations(t, a.String(), s.container)
			s.del(t).ok(t)
			delete(held, a)
			w.wantHeld(t, held)
		})
	}
}

// A file of facts that is damaged is no file.
func TestFactsThatAreDamaged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i, text := range []string{"", "{", "null", "[]", `{"format":1}`, `{"format":99}`, "\x00"} {
		s := w.newPod(t, fmt.Sprintf("web-%d", i))
		w.host.Write(t, facts.DefaultFile, text)
		s.check(t, s.add(t).ok(t)).ok(t)
		s.del(t).ok(t)
	}
}

// blockOfAnother makes a block in the world's pool that another host owns, with every address free, and returns its CIDR.
func (w *world) blockOfAnother(t testing.TB) string {
	t.Helper()
	cidr := strings.Replace(w.cidr, "0.0/16", "200.0/30", 1)
	name := strings.NewReplacer(".", "-", "/", "-").Replace(cidr)
	w.api.create(t, manifest(t, fmt.Sprintf(`{apiVersion: crd.projectcalico.org/v1, kind: IPAMBlock, metadata: {name: %s}, spec: {cidr: %s, affinity: "host:other", strictAffinity: false,
		allocations: [null, null, null, null], unallocated: [0, 1, 2, 3], attributes: [], sequenceNumber: 1, sequenceNumberForAllocation: {}, deleted: false}}`, name, cidr)))
	return cidr
}
