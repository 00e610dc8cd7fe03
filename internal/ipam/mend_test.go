package ipam

import (
	"context"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// mendWorld returns a node a with a pod's address; tests damage its handle and claim.
func mendWorld(t *testing.T) (*datastoretest.Fake, *Client, netip.Prefix) {
	t.Helper()
	store := datastoretest.NewFake()
	c := NewClient(store, func() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) })
	pool := &api.IPPool{Meta: api.Meta{Name: "pool"}, Spec: api.IPPoolSpec{CIDR: "10.0.0.0/24", BlockSize: 28}}
	errtest.Must(t, store.Create(t.Context(), pool))
	got, err := c.Assign(t.Context(), Request{Owner: Owner{Handle: "net.Pod"}, Host: "a", V4: true, Use: api.UseWorkload})
	errtest.Must(t, err)
	return store, c, got[0].Block
}

// take reads a stored object.
func take(t *testing.T, store *datastoretest.Fake, obj api.Resource) {
	t.Helper()
	errtest.Must(t, store.Get(context.Background(), obj))
}

func TestRecount(t *testing.T) {
	handle := func() *api.IPAMHandle {
		return &api.IPAMHandle{Meta: api.Meta{Name: "net.pod"}, Spec: api.IPAMHandleSpec{HandleID: "net.Pod"}}
	}
	for _, tt := range []struct {
		name   string
		damage func(*testing.T, *datastoretest.Fake)
		done   bool
	}{
		{"it is right", func(*testing.T, *datastoretest.Fake) {}, false},
		{"it is missing", func(t *testing.T, store *datastoretest.Fake) {
			h := handle()
			take(t, store, h)
			errtest.Must(t, store.Delete(t.Context(), h))
		}, true},
		{"it counts wrong", func(t *testing.T, store *datastoretest.Fake) {
			h := handle()
			take(t, store, h)
			h.Spec.Block = map[string]int{"10.0.0.0/28": 7, "nonsense": 1}
			errtest.Must(t, store.Update(t.Context(), h))
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store, c, block := mendWorld(t)
			tt.damage(t, store)
			if done, err := c.Recount(t.Context(), "net.Pod"); err != nil || done != tt.done {
				t.Errorf("done %v, %v", done, err)
			}
			h := handle()
			take(t, store, h)
			if want := map[string]int{block.String(): 1}; !maps.Equal(h.Spec.Block, want) || h.Spec.HandleID != "net.Pod" {
				t.Errorf("the handle says %v, want %v", h.Spec, want)
			}
		})
	}
	t.Run("nobody holds anything", func(t *testing.T) {
		_, c, _ := mendWorld(t)
		if done, err := c.Recount(t.Context(), "net.other"); err != nil || done {
			t.Errorf("done %v, %v", done, err)
		}
	})
	t.Run("a block cannot be read", func(t *testing.T) {
		store, c, cidr := mendWorld(t)
		b := &api.IPAMBlock{Meta: api.Meta{Name: names.Block(cidr)}}
		take(t, store, b)
		b.Spec.Unallocated = b.Spec.Unallocated[1:]
		errtest.Must(t, store.Update(t.Context(), b))
		if done, err := c.Recount(t.Context(), "net.Pod"); err == nil || done {
			t.Errorf("counted although nobody can tell: %v", done)
		}
	})
}

func TestRestoreClaim(t *testing.T) {
	store, c, cidr := mendWorld(t)
	if done, err := c.RestoreAffinity(t.Context(), cidr); err != nil || done {
		t.Errorf("there is one: %v, %v", done, err)
	}
	claim := newAffinity("a", cidr)
	take(t, store, claim)
	errtest.Must(t, store.Delete(t.Context(), claim))
	if done, err := c.RestoreAffinity(t.Context(), cidr); err != nil || !done {
		t.Errorf("it is missing: %v, %v", done, err)
	}
	claim = newAffinity("a", cidr)
	take(t, store, claim)
	if claim.Spec.State != api.AffinityConfirmed || !maps.Equal(claim.Labels, names.AffinityLabels("a", api.AffinityHost, cidr)) {
		t.Errorf("restored: %+v", claim)
	}
	if done, err := c.RestoreAffinity(t.Context(), netip.MustParsePrefix("10.0.0.240/28")); err != nil || done {
		t.Errorf("there is no such block: %v, %v", done, err)
	}
}
