package ipam

import (
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// A holder keeps all addresses if one was assigned anew, in whichever block; the others in these blocks lose theirs.
func TestExpireAllOrNone(t *testing.T) {
	for renewed := range 2 {
		store := seeded(t)
		c := client(store)
		dead := map[string][]Assignment{}
		var said []Expired
		for _, handle := range []string{"h", "other"} {
			got, err := c.Assign(t.Context(), Request{Owner: owner(handle), Host: "node-a", V4: true, V6: true, Use: api.UseWorkload})
			errtest.Must(t, err)
			dead[handle] = got
			e := Expired{Handle: handle, Addresses: map[netip.Addr]Assigned{}}
			for _, a := range got {
				b := &api.IPAMBlock{Meta: api.Meta{Name: names.Block(a.Block)}}
				errtest.Must(t, store.Get(t.Context(), b))
				ordinal := strconv.Itoa(int(distance(a.Block.Addr(), a.Address)))
				e.Addresses[a.Address] = Assigned{Block: a.Block, Sequence: b.Spec.SequenceNumberForAllocation[ordinal]}
			}
			said = append(said, e)
		}
		if held, err := c.Renew(t.Context(), "h", dead["h"][renewed].Address); err != nil || !held {
			t.Fatal(held, err)
		}
		if done, err := c.Expire(t.Context(), DefaultConfig(), said); err != nil || !slices.Equal(done, []int{1}) {
			t.Errorf("freed %v, %v, want only the second", done, err)
		}
		if held, err := c.Addresses(t.Context(), "h"); err != nil || len(held) != 2 {
			t.Errorf("the handle holds %v, %v, want both addresses", held, err)
		}
		if held, err := c.Addresses(t.Context(), "other"); err != nil || len(held) != 0 {
			t.Errorf("the other still holds %v, %v", held, err)
		}
	}
}

// An address that the handle does not hold is not renewed.
func TestRenewOfAnother(t *testing.T) {
	store := seeded(t)
	c := client(store)
	if _, err := c.Assign(t.Context(), Request{Owner: owner("h"), Host: "node-a", V4: true, Use: api.UseWorkload}); err != nil {
		t.Fatal(err)
	}
	for handle, a := range map[string]string{"h": "10.9.9.9", "nobody": "10.0.0.0"} {
		if held, err := c.Renew(t.Context(), handle, netip.MustParseAddr(a)); err != nil || held {
			t.Errorf("%s of %s: %v, %v", a, handle, held, err)
		}
	}
}
