package datastoretest

import (
	"context"
	"errors"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func TestFakePassesTheCases(t *testing.T) {
	Run(t, func() datastore.Store { return NewFake() })
}

func TestFakePassesTheCasesWithOldLists(t *testing.T) {
	f := NewFake()
	f.SetLag(func(states int) int { return states })
	Run(t, func() datastore.Store { return f })
}

// Effect of each fault on a create: the error that the caller gets, and whether the object exists at once and after
// late writes were applied.
func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name        string
		fault       Fault
		want        error
		now, landed bool
		dead        bool
	}{
		{"none", None, nil, true, true, false},
		{"conflict", Conflict, datastore.ErrExists, false, false, false},
		{"unavailable", Unavailable, datastore.ErrUnavailable, false, false, false},
		{"lost", Lost, datastore.ErrUnavailable, true, true, false},
		{"late", Late, datastore.ErrUnavailable, false, true, false},
		{"crash", Crash, ErrCrashed, false, false, true},
		{"crash after", CrashAfter, ErrCrashed, true, true, true},
		{"crash late", CrashLate, ErrCrashed, false, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := NewFake()
			s := f.Session(func(_ context.Context, r Request) Fault {
				if r.Write() {
					return c.fault
				}
				return None
			})
			e := &env{store: s, id: "x"}
			if err := s.Create(t.Context(), e.handle("")); !errors.Is(err, c.want) {
				t.Errorf("create: error %v, want %v", err, c.want)
			}
			if got := f.Get(t.Context(), e.handle("")) == nil; got != c.now {
				t.Errorf("the object exists: %v, want %v", got, c.now)
			}
			f.LandLate()
			if got := f.Get(t.Context(), e.handle("")) == nil; got != c.landed {
				t.Errorf("the object exists after late writes: %v, want %v", got, c.landed)
			}
			if got := errors.Is(s.Get(t.Context(), e.handle("")), ErrCrashed); got != c.dead {
				t.Errorf("the client has crashed: %v, want %v", got, c.dead)
			}
		})
	}
}

// Each request passes through the hook, even a request of a reader that finishes a deletion.
func TestHookSeesEveryRequest(t *testing.T) {
	f := NewFake()
	var got []string
	s := f.Session(func(_ context.Context, r Request) Fault {
		got = append(got, r.String())
		return None
	})
	e := &env{store: s, id: "x"}
	h := e.handle("")
	e.create(t, h)
	errtest.Must(t, s.Delete(t.Context(), h))
	h = e.handle("")
	e.create(t, h)
	e.mark(t, h)
	wantError(t, "get", s.Get(t.Context(), e.handle("")), datastore.ErrNotFound)
	var list api.IPAMHandleList
	errtest.Must(t, s.List(t.Context(), &list, datastore.ListOptions{}))
	const name = "IPAMHandle conformance.x"
	want := []string{
		"POST " + name, "DELETE " + name,
		"POST " + name, "PUT " + name, "GET " + name, "DELETE " + name,
		"LIST IPAMHandle ",
	}
	difftest.Want(t, "requests", want, got)
}

// A late write conflicts like any other on an object that changed in between.
func TestLateWriteConflicts(t *testing.T) {
	f := NewFake()
	e := &env{store: f, id: "x"}
	h := e.handle("")
	e.create(t, h)
	s := f.Session(func(context.Context, Request) Fault { return Late })
	late := *h
	late.Spec.Block = map[string]int{"10.0.0.0/30": 9}
	wantError(t, "update", s.Update(t.Context(), &late), datastore.ErrUnavailable)
	h.Spec.Block = map[string]int{"10.0.0.0/30": 2}
	errtest.Must(t, f.Update(t.Context(), h))
	f.LandLate()
	difftest.Want(t, "object", api.Resource(h), e.read(t, h))
}

func TestStaleListsLag(t *testing.T) {
	f := NewFake()
	lag := 0
	f.SetLag(func(int) int { return lag })
	e := &env{store: f, id: "x"}
	e.create(t, e.handle("a"))
	e.create(t, e.handle("b"))
	for want, missed := range []int{2, 1, 0} {
		lag = missed
		var stale, sure api.IPAMHandleList
		errtest.Must(t, f.List(t.Context(), &stale, datastore.ListOptions{Stale: true}))
		errtest.Must(t, f.List(t.Context(), &sure, datastore.ListOptions{}))
		if len(stale.Items) != want || len(sure.Items) != 2 {
			t.Errorf("lag %d: %d items in the stale list, want %d; %d in the current one, want 2", missed, len(stale.Items), want, len(sure.Items))
		}
	}
}
