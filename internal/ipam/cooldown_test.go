package ipam

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// cooling writes a block: each address's handle, "~" while it cools down, "." while it is free; then the order of the
// free.
func cooling(b *Block) string {
	out := ""
	for _, at := range b.obj.Spec.Allocations {
		switch {
		case at == nil:
			out += "."
		case b.obj.Spec.Attributes[*at].ReleasedAt != "":
			out += "~"
		default:
			out += *b.obj.Spec.Attributes[*at].HandleID
		}
	}
	return fmt.Sprintf("%s %v, %d attributes", out, b.obj.Spec.Unallocated, len(b.obj.Spec.Attributes))
}

func TestReleasedAddressesCoolDown(t *testing.T) {
	at := func(seconds int) Cooldown {
		return Cooldown{clock.Add(time.Duration(seconds) * time.Second), 10 * time.Second}
	}
	b := stored("10.0.0.0/29", "node-a", "a", "b", "c", "b")
	expect := func(when, want string, free int, empty bool) {
		t.Helper()
		if got := cooling(b); got != want || b.Free(nil) != free || b.Empty() != empty {
			t.Errorf("%s: %s, %d free, empty %v, want %s, %d, %v", when, got, b.Free(nil), b.Empty(), want, free, empty)
		}
		if err := b.check(); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	if freed := b.ReleaseHandle("b", at(0)); len(freed) != 2 {
		t.Errorf("released %v, want two addresses", freed)
	}
	expect("after a release", "a~c~.... [4 5 6 7], 3 attributes", 4, false)
	if freed := b.ReleaseHandle("b", at(0)); freed != nil {
		t.Errorf("released again: %v", freed)
	}
	b.ReleaseHandle("a", at(5))
	b.ReleaseHandle("c", at(3))
	expect("after all releases", "~~~~.... [4 5 6 7], 3 attributes", 4, false)
	if b.AssignAddress(netip.MustParseAddr("10.0.0.1"), owner("x")) {
		t.Error("an address was assigned while it cooled down")
	}
	b.FreeCooled(at(9))
	expect("after 9 s", "~~~~.... [4 5 6 7], 3 attributes", 4, false)
	b.FreeCooled(at(10))
	expect("after 10 s", "~.~..... [4 5 6 7 1 3], 2 attributes", 6, false)
	b.FreeCooled(at(14)) // releasedAt has whole seconds: a release counts from the start of its second
	expect("after 14 s", "~....... [4 5 6 7 1 3 2], 1 attributes", 7, false)
	b.FreeCooled(at(15))
	expect("after 15 s", "........ [4 5 6 7 1 3 2 0], 0 attributes", 8, true)
}

// The form of Calico's HEAD: an attribute that has only releasedAt, and no sequence number.
func TestCoolingAddressOnTheWire(t *testing.T) {
	b := stored("10.0.0.0/30", "node-a", "a")
	b.ReleaseHandle("a", Cooldown{clock, time.Minute})
	got := asMap(t, b.obj)["spec"].(map[string]any)
	want := map[string]any{
		"allocations": []any{0.0, nil, nil, nil}, "unallocated": []any{1.0, 2.0, 3.0},
		"attributes":                  []any{map[string]any{"releasedAt": "2026-11-20T16:03:57Z"}},
		"sequenceNumberForAllocation": map[string]any{},
	}
	for field, value := range want {
		difftest.Want(t, field, fmt.Sprint(value), fmt.Sprint(got[field]))
	}
}

func TestThaw(t *testing.T) {
	released := func(at time.Time) *Block {
		b := stored("10.0.0.0/30", "node-a", "a")
		b.ReleaseHandle("a", Cooldown{at, time.Hour})
		return b
	}
	for _, c := range []struct {
		name string
		b    *Block
		cool Cooldown
		free int
	}{
		{"cool-down was switched off", released(clock), Cooldown{Now: clock}, 4},
		{"cool-down was switched off, released by a clock ahead", released(clock.Add(time.Hour)), Cooldown{Now: clock}, 4},
		{"released by a clock ahead", released(clock.Add(time.Hour)), Cooldown{clock, time.Minute}, 3},
		{"cool-down was shortened", released(clock.Add(-time.Minute)), Cooldown{clock, time.Minute}, 4},
		{"cool-down was prolonged", released(clock.Add(-time.Minute)), Cooldown{clock, 2 * time.Minute}, 3},
	} {
		c.b.FreeCooled(c.cool)
		if got := c.b.Free(nil); got != c.free {
			t.Errorf("%s: %d free, want %d", c.name, got, c.free)
		}
	}
}

// The addresses that Windows keeps for itself do not make a block used.
func TestWindowsReservedIsEmpty(t *testing.T) {
	if b := stored("10.0.0.0/30", "node-a", "Windows-Reserved-IPAM-Handle"); !b.Empty() {
		t.Error("a block with reserved addresses only is not empty")
	}
	if b := stored("10.0.0.0/30", "node-a", windowsReserved, "a"); b.Empty() {
		t.Error("a block with a pod is empty")
	}
}

// With a cool-down of ten minutes, an address comes back after ten minutes, and no earlier though the pool is
// exhausted.
func TestCoolDownHoldsBackAddresses(t *testing.T) {
	store := seeded(t, poolObject("tiny", "10.5.0.0/31", func(p *api.IPPool) { p.Spec.BlockSize = 31 }),
		&api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}, Spec: api.IPAMConfigSpec{AutoAllocateBlocks: true, IPCooldownSeconds: 600}})
	now := clock
	c := NewClient(store, func() time.Time { return now })
	assign := func(handle string) ([]Assignment, error) {
		req := podRequest("node-a", handle)
		req.PoolsV4 = []string{"tiny"}
		return c.Assign(t.Context(), req)
	}
	for _, handle := range []string{"a", "b"} {
		_, err := assign(handle)
		errtest.Must(t, err)
	}
	_, err := c.Release(t.Context(), "a")
	errtest.Must(t, err)
	now = clock.Add(599 * time.Second)
	_, err = assign("c")
	checkRefusal(t, err, ErrExhausted, "tiny 10.5.0.0/31")
	now = clock.Add(600 * time.Second)
	got, err := assign("c")
	if err != nil || addresses(got)[0].String() != "10.5.0.0" {
		t.Errorf("assigned %v, %v, want 10.5.0.0", got, err)
	}
	errtest.Must(t, audit(store, map[string][]netip.Addr{"b": {netip.MustParseAddr("10.5.0.1")}, "c": addresses(got)}))
}

// Addresses that are handed over do not cool down.
func TestHandOver(t *testing.T) {
	store := seeded(t,
		&api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName}, Spec: api.IPAMConfigSpec{AutoAllocateBlocks: true, IPCooldownSeconds: 600}})
	want := mustAssign(t, store, podRequest("node-a", "old"))
	freed, err := client(store).HandOver(t.Context(), "old")
	errtest.Must(t, err)
	req := podRequest("node-a", "new")
	req.Addresses = freed
	difftest.Want(t, "assigned", want, mustAssign(t, store, req))
	errtest.Must(t, audit(store, map[string][]netip.Addr{"new": want}))
}

// A block without an owner stays while an address cools down, and is taken when its range is needed.
func TestOrphanOutlivesItsLastAddressWhileThatCoolsDown(t *testing.T) {
	store := seeded(t, poolObject("tiny", "10.5.0.0/30"), stored("10.5.0.0/30", "", "a").obj, storedHandle("a", "10.5.0.0/30=1"),
		&api.IPAMConfig{Meta: api.Meta{Name: api.DefaultName},
			Spec: api.IPAMConfigSpec{AutoAllocateBlocks: true, StrictAffinity: true, IPCooldownSeconds: 60}})
	now := clock
	c := NewClient(store, func() time.Time { return now })
	_, err := c.Release(t.Context(), "a")
	errtest.Must(t, err)
	req := podRequest("node-a", "h")
	req.PoolsV4 = []string{"tiny"}
	_, err = c.Assign(t.Context(), req)
	checkRefusal(t, err, ErrExhausted, "strictAffinity")
	now = clock.Add(time.Minute)
	got, err := c.Assign(t.Context(), req)
	errtest.Must(t, err)
	errtest.Must(t, audit(store, map[string][]netip.Addr{"h": addresses(got)}))
}
