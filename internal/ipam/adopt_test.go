package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
)

// lost prepares a block with an address that no handle leads to.
func lost(t *testing.T, s datastore.Store, at api.AllocationAttribute) netip.Addr {
	t.Helper()
	seed(t, s)
	b := stored("10.0.0.12/30", "node-a", "x")
	b.obj.Spec.Attributes[0] = at
	mustCreate(t, s, b.obj, claimed("node-a", "10.0.0.12/30", confirmed))
	return netip.MustParseAddr("10.0.0.12")
}

// Whatever fault hits a request: the address is never free on the way, and a second try gets it and can release it.
func TestAdoptionSurvivesEveryFault(t *testing.T) {
	for name, at := range map[string]api.AllocationAttribute{
		"before there were handles": {},
		"a handle that is lost":     {HandleID: ptr("h"), Secondary: owner("h").Attrs},
	} {
		for fault, what := range faults {
			for n := 1; ; n++ {
				store := datastoretest.NewFake()
				addr := lost(t, store, at)
				hit := false
				session := store.Session(func(_ context.Context, r datastoretest.Request) datastoretest.Fault {
					if r.N != n {
						return datastoretest.None
					}
					hit = true
					return fault
				})
				_, err := client(session).Adopt(t.Context(), owner("h"), addr)
				if !hit {
					break
				}
				store.LandLate()
				what := fmt.Sprintf("%s, %s at request %d (%v)", name, what, n, err)
				if err != nil && !errors.Is(err, datastore.ErrUnavailable) && !session.Crashed() {
					t.Errorf("%s: error", what)
				}
				if held, err := client(store).Adopt(t.Context(), owner("h"), addr); err != nil || !held {
					t.Errorf("%s: once more: %v, %v", what, held, err)
				}
				if got, err := client(store).Addresses(t.Context(), "h"); err != nil || !slices.Equal(got, []netip.Addr{addr}) {
					t.Errorf("%s: the handle holds %v, %v", what, got, err)
				}
				if _, err := client(store).Release(t.Context(), "h"); err != nil {
					t.Errorf("%s: release: %v", what, err)
				}
				if err := audit(store, nil); err != nil {
					t.Errorf("%s: left:\n%v", what, err)
				}
			}
		}
	}
}

// Of many that adopt one address, one has it.
func TestAdoptionOfOneByMany(t *testing.T) {
	store := datastoretest.NewFake()
	addr := lost(t, store, api.AllocationAttribute{})
	var mu sync.Mutex
	var who []string
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			handle := fmt.Sprintf("h%d", i)
			held, err := client(store).Adopt(t.Context(), Owner{Handle: handle, Attrs: map[string]string{"node": handle}}, addr)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if held {
				who = append(who, handle)
			}
		})
	}
	all.Wait()
	if len(who) != 1 {
		t.Fatalf("held by %v", who)
	}
	if got, err := client(store).Addresses(t.Context(), who[0]); err != nil || len(got) != 1 {
		t.Errorf("%s holds %v, %v", who[0], got, err)
	}
}

func TestWhatIsNotAdopted(t *testing.T) {
	mine := owner("h")
	mine.Attrs = map[string]string{"node": "node-a", "type": "tunnel"}
	for name, at := range map[string]api.AllocationAttribute{
		"somebody's":                  {HandleID: ptr("x"), Secondary: map[string]string{"pod": "p"}},
		"a handle without attributes": {HandleID: ptr("x")},
		"attributes of others":        {Secondary: map[string]string{"node": "node-b", "type": "tunnel"}},
		"one that cools down":         {ReleasedAt: "2026-01-02T03:04:05Z"},
	} {
		store := datastoretest.NewFake()
		addr := lost(t, store, at)
		if held, err := client(store).Adopt(t.Context(), mine, addr); err != nil || held {
			t.Errorf("%s: %v, %v", name, held, err)
		}
		for _, other := range []string{"10.0.0.13", "10.99.0.1", "fd00::1"} {
			if held, err := client(store).Adopt(t.Context(), mine, netip.MustParseAddr(other)); err != nil || held {
				t.Errorf("%s: %v, %v", other, held, err)
			}
		}
	}
}

// The pool's size of blocks may have changed since the block was claimed.
func TestAdoptionInABlockOfAnotherSize(t *testing.T) {
	store := datastoretest.NewFake()
	seed(t, store)
	b := stored("10.0.0.8/29", "node-a", "x")
	b.obj.Spec.Attributes[0] = api.AllocationAttribute{}
	mustCreate(t, store, b.obj, claimed("node-a", "10.0.0.8/29", confirmed))
	addr := netip.MustParseAddr("10.0.0.8")
	held, err := client(store).Adopt(t.Context(), owner("h"), addr)
	if got, of := client(store).Addresses(t.Context(), "h"); !held || err != nil || of != nil || !slices.Equal(got, []netip.Addr{addr}) {
		t.Errorf("%v, %v; the handle holds %v, %v", held, err, got, of)
	}
}
