package cni_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/facts"
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
	w.host.on(t, func() error { return facts.Write(facts.DefaultFile, f) })
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
		if err != nil {
			t.Fatal(err)
		}
		*into = append(*into, item)
	}
}
