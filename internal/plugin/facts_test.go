package plugin_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// tellFacts writes the facts that an agent would have of the world now, changed by edit unless that is nil.
func (w *world) tellFacts(t testing.TB, edit func(*facts.Facts)) {
	t.Helper()
	f := facts.Facts{
		Written: time.Now(), AgentReady: true, DatastoreReady: true, Node: w.name, Group: w.api.group,
		NodeLabels: map[string]string{"world": w.name},
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

// An ADD misled by wrong facts is as right as any, and only makes more requests. For IPAM with wrong pools,
// reservations and blocks see ipam's TestWrongFactsAreHarmless.
func TestFactsThatAreWrong(t *testing.T) {
	t.Parallel()
	for name, mislead := range map[string]func(f *facts.Facts){
		"no affinities":       func(f *facts.Facts) { f.Affinities = nil },
		"no namespace":        func(f *facts.Facts) { f.Namespaces = nil },
		"no labels of node":   func(f *facts.Facts) { f.NodeLabels = nil },
		"datastore not ready": func(f *facts.Facts) { f.DatastoreReady = false },
		"of another node":     func(f *facts.Facts) { f.Node = "other" },
		"old":                 func(f *facts.Facts) { f.Written = f.Written.Add(-time.Hour) },
		"of tomorrow":         func(f *facts.Facts) { f.Written = f.Written.Add(24 * time.Hour) },
		"no blocks allowed":   func(f *facts.Facts) { f.Config = api.IPAMConfigSpec{StrictAffinity: true} },
		"pools disabled": func(f *facts.Facts) {
			for i := range f.Pools {
				f.Pools[i].Spec.Disabled = true
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			first, s := w.newPod(t, "first"), w.newPod(t, "web")
			held := map[netip.Addr]*sandbox{address(t, first.add(t).result(t)): first}
			w.tellFacts(t, mislead)
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
