package podnote

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

func TestWriteAndClear(t *testing.T) {
	store := labstore.Store(t)
	labtest.CreatePod(t, "default", "noted")
	pod := func() *api.Pod { return &api.Pod{Meta: api.Meta{Namespace: "default", Name: "noted"}} }
	check := func(what string, want map[string]string) {
		t.Helper()
		p := pod()
		errtest.Must(t, store.Get(t.Context(), p))
		difftest.Want(t, what, want, p.Annotations)
	}
	if err := Clear(t.Context(), store, pod(), "one"); !errors.Is(err, datastore.ErrConflict) {
		t.Errorf("clear a pod that names no container: %v", err)
	}
	addrs := []netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("fd00::5")}
	errtest.Must(t, Write(t.Context(), store, pod(), "one", addrs))
	full := map[string]string{
		api.AnnotationPodIP: "10.0.0.5/32", api.AnnotationPodIPs: "10.0.0.5/32,fd00::5/128", api.AnnotationContainerID: "one",
	}
	check("written", full)
	if err := Clear(t.Context(), store, pod(), "two"); !errors.Is(err, datastore.ErrConflict) {
		t.Errorf("clear for another container: %v", err)
	}
	check("after another container's", full)
	cleared := map[string]string{api.AnnotationPodIP: "", api.AnnotationPodIPs: "", api.AnnotationContainerID: "one"}
	for range 2 {
		errtest.Must(t, Clear(t.Context(), store, pod(), "one"))
		check("cleared", cleared)
	}
	other := pod()
	other.UID = "of-an-earlier-pod"
	if err := Write(t.Context(), store, other, "three", addrs); !errors.Is(err, datastore.ErrConflict) {
		t.Errorf("write for another pod of that name: %v", err)
	}
	check("after another pod's", cleared)
	same := pod()
	errtest.Must(t, store.Get(t.Context(), same))
	errtest.Must(t, Write(t.Context(), store, same, "one", addrs))
	check("written to the pod that was read", full)
	if err := Clear(t.Context(), store, &api.Pod{Meta: api.Meta{Namespace: "default", Name: "noted-never"}}, "one"); err != nil {
		t.Errorf("clear a pod that is gone: %v", err)
	}
}
