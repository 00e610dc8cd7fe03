package gc

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// look runs a pass each second for a while, and checks after each that all live containers and tunnels hold their
// addresses.
func (h *history) look(t *testing.T, span time.Duration) {
	t.Helper()
	for end := time.Now().Add(span); time.Now().Before(end); {
		waittest.Advance(time.Second)
		v := h.read()
		next, d := Pass(h.states[0], &v, h.rules)
		h.states[0] = next
		s := Sweeper{IPAM: h.store, Cluster: h.store, Client: h.client(), Log: slog.New(slog.DiscardHandler)}
		if _, err := s.Sweep(h.ctx, &v, &d); err != nil {
			h.fail("sweep: %v", err)
		}
		h.check()
	}
}

// deleteNode deletes a Node. Its pods and its agent go on.
func (h *history) deleteNode(name string) {
	h.note("node %s is deleted", name)
	n := &api.Node{Meta: api.Meta{Name: name}}
	if err := errors.Join(h.store.Get(h.ctx, n), h.store.Delete(h.ctx, n)); err != nil {
		h.fail("%v", err)
	}
}

// A node that is deleted and comes back under its name within its grace period, again and again, keeps what its pods
// use, and its tunnel. One that is away for longer loses its tunnel's address, but nothing of pods that are still in
// the API; it gets an address again when it is back.
func TestANodeThatComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHistory(t, 1)
		h.rules = Rules{Grace: 4 * time.Second, NodeGrace: 5 * time.Second}
		h.comeNode("a")
		h.comeNode("b")
		h.startPod("b", "p", nil)
		h.tunnel("b")
		for range 3 {
			h.deleteNode("b")
			h.look(t, 2*time.Second)
			h.comeNode("b")
			h.look(t, 2*time.Second)
		}
		h.deleteNode("b")
		tunnel := names.TunnelHandle("b")
		delete(h.live, tunnel)
		h.look(t, 8*time.Second)
		v := h.read()
		for _, handle := range v.Handles {
			if handle.ID == tunnel {
				t.Errorf("the tunnel of a node that is gone is left: %+v", handle)
			}
		}
		h.comeNode("b")
		h.tunnel("b")
		h.look(t, 6*time.Second)
		if len(h.live) != 2 {
			t.Errorf("%d things hold addresses, want a pod and a tunnel", len(h.live))
		}
	})
}

// A datastore under migration is left alone; objects unused all the while are collected after it.
func TestALockedDatastore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHistory(t, 1)
		h.comeNode("a")
		h.startPod("a", "lost", nil)
		lost := h.of("lost")
		if err := h.store.Delete(h.ctx, h.getPod("lost")); err != nil {
			t.Fatal(err)
		}
		ready := func(is bool) {
			t.Helper()
			info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}}
			if err := h.store.Get(h.ctx, info); err != nil {
				t.Fatal(err)
			}
			info.Spec.DatastoreReady = &is
			if err := h.store.Update(h.ctx, info); err != nil {
				t.Fatal(err)
			}
		}
		ready(false)
		h.look(t, 3*h.rules.Grace)
		ready(true)
		delete(h.live, lost.handle)
		h.look(t, h.rules.Grace+2*time.Second)
		if v := h.read(); len(v.Handles) > 0 {
			t.Errorf("%d handles are left: %+v", len(v.Handles), v.Handles)
		}
	})
}
