package controllers

import (
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/gc"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// A cache went back in time, but claims to be current: living pods are missing, an existing node is gone, an address
// belongs to its former owner. The controllers check against the real API server, and free nothing.
func TestACacheThatWentBackInTimeFreesNothing(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newWorld(t, audited(t))
	w.node("a")
	young := w.assign("young", "a", "young")
	onB := w.assign("on-b", "b", "on-b")
	w.assign("earlier", "a", "earlier")
	v := w.view()

	w.pod("young", "a", corev1.PodRunning, texts(young)...)
	w.node("b")
	w.pod("on-b", "b", corev1.PodRunning, texts(onB)...)
	if _, err := w.ipam.Release(t.Context(), "k8s-pod-network.earlier"); err != nil {
		t.Fatal(err)
	}
	// The same container's name and the same addresses, assigned anew.
	again, err := w.ipam.Assign(t.Context(), ipam.Request{
		Owner: ipam.Owner{Handle: "k8s-pod-network.earlier", Attrs: map[string]string{"node": "a", "pod": "earlier", "namespace": "default"}},
		Host:  "a", Addresses: heldBy(&v, "k8s-pod-network.earlier"), Use: api.UseWorkload,
	})
	errtest.Must(t, err)

	rules := gc.Rules{Grace: 15 * time.Minute, NodeGrace: 10 * time.Second}
	st, d := gc.State{}, gc.Decision{}
	for range 3 {
		v.Taken = v.Taken.Add(rules.Grace)
		st, d = gc.Pass(st, &v, rules)
	}
	if len(d.Due) != 3 {
		t.Fatalf("%d holders look dead, want 3: %+v", len(d.Due), d.Due)
	}
	s := gc.Sweeper{IPAM: w.store, Cluster: w.store, Client: w.ipam, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	report, err := s.Sweep(t.Context(), &v, &d)
	if err != nil || report.Addresses() != 0 || report.Spared != 3 {
		t.Errorf("%+v, %v", report, err)
	}
	now := w.view()
	w.stays("a pod that is younger than the cache", &now, "k8s-pod-network.young", young)
	w.stays("a pod of a node that is younger", &now, "k8s-pod-network.on-b", onB)
	for _, a := range again {
		if held(&now)[a.Address] != "k8s-pod-network.earlier" {
			t.Errorf("%s was assigned anew and is freed", a.Address)
		}
	}
	if len(now.Handles) != 3 {
		t.Errorf("%d handles", len(now.Handles))
	}
	if time.Since(v.Taken) > 0 {
		t.Error("the cache was to lie")
	}
}
