package ipam

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func TestNewBlockIsFree(t *testing.T) {
	b := NewBlock(cidr("10.0.0.7/30"), "node-a", clock)
	if b.cidr != cidr("10.0.0.4/30") || !b.Empty() || !b.OwnedBy("node-a") || b.OwnedBy("node-b") || b.Orphan() {
		t.Errorf("block %s: empty %v, owner %v", b.cidr, b.Empty(), *b.obj.Spec.Affinity)
	}
	if _, err := ParseBlock(b.obj); err != nil {
		t.Errorf("a new block is not valid: %v", err)
	}
	data, err := json.Marshal(b.obj.Spec)
	errtest.Must(t, err)
	const want = `{"cidr":"10.0.0.4/30","affinity":"host:node-a","affinityClaimTime":"2026-11-20T16:03:57Z",` +
		`"allocations":[null,null,null,null],"unallocated":[0,1,2,3],"attributes":[],` +
		`"sequenceNumber":1795190637820903754,"sequenceNumberForAllocation":{},"deleted":false,"strictAffinity":false}`
	difftest.Want(t, "spec", want, string(data))
}

func TestReservedAddressesAreSkippedAndKeepTheirPlace(t *testing.T) {
	b := NewBlock(cidr("10.0.0.0/29"), "node-a", clock)
	reserved := cidrs("10.0.0.0/31", "10.0.0.3/32")
	if got := b.Free(reserved); got != 5 {
		t.Errorf("free %d, want 5", got)
	}
	if a, ok := b.Assign(owner("a"), reserved); !ok || a.String() != "10.0.0.2" {
		t.Errorf("assigned %v %v, want 10.0.0.2", a, ok)
	}
	difftest.Want(t, "order", []int{0, 1, 3, 4, 5, 6, 7}, b.obj.Spec.Unallocated)
	if a, ok := b.Assign(owner("b"), cidrs("10.0.0.0/29")); ok {
		t.Errorf("assigned %v where all is reserved", a)
	}
}

func TestReleaseKeepsTheOrderOfAttributes(t *testing.T) {
	b := NewBlock(cidr("10.0.0.0/29"), "node-a", clock)
	for _, h := range []string{"a", "b", "a", "c"} {
		b.Assign(owner(h), nil)
	}
	difftest.Want(t, "allocations, of which one owner's share an attribute",
		[]*int{ptr(0), ptr(1), ptr(0), ptr(2), nil, nil, nil, nil}, b.obj.Spec.Allocations)
	freed := b.ReleaseHandle("a", Cooldown{})
	difftest.Want(t, "freed", []netip.Addr{netip.MustParseAddr("10.0.0.0"), netip.MustParseAddr("10.0.0.2")}, freed)
	difftest.Want(t, "attributes", []api.AllocationAttribute{attribute("b"), attribute("c")}, b.obj.Spec.Attributes)
	difftest.Want(t, "allocations", []*int{nil, ptr(0), nil, ptr(1), nil, nil, nil, nil}, b.obj.Spec.Allocations)
	difftest.Want(t, "order", []int{4, 5, 6, 7, 0, 2}, b.obj.Spec.Unallocated)
	if freed := b.ReleaseHandle("nobody", Cooldown{}); freed != nil {
		t.Errorf("a handle that holds nothing freed %v", freed)
	}
}

// An address that cools down after its release (a newer Calico's form) is neither free nor anybody's.
func TestCoolingAddressesAreNobodys(t *testing.T) {
	obj := stored("10.0.0.0/30", "node-a", "a").obj
	obj.Spec.Attributes[0] = api.AllocationAttribute{ReleasedAt: "2026-11-20T16:00:00Z"}
	b, err := ParseBlock(obj)
	errtest.Must(t, err)
	if b.Empty() || b.Free(nil) != 3 || len(b.Held("a")) != 0 || len(b.Held("")) != 0 {
		t.Errorf("empty %v, free %d, held %v %v: want 3 free and the first nobody's", b.Empty(), b.Free(nil), b.Held("a"), b.Held(""))
	}
	if a, _ := b.Assign(Owner{}, nil); a.String() != "10.0.0.1" {
		t.Errorf("assigned %s, want 10.0.0.1", a)
	}
	if at := b.obj.Spec.Allocations[1]; *at != 1 {
		t.Errorf("the new owner shares the attribute of the cooling address")
	}
}

// A block that contradicts itself is refused with an error that names it and the contradiction.
func TestParseBlockRefusesDamage(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(*api.IPAMBlock)
		want   string
	}{
		{"no range", func(b *api.IPAMBlock) { b.Spec.CIDR = "" }, `spec.cidr ""`},
		{"no prefix", func(b *api.IPAMBlock) { b.Spec.CIDR = "10.0.0.0" }, `spec.cidr "10.0.0.0"`},
		{"host bits", func(b *api.IPAMBlock) { b.Spec.CIDR = "10.0.0.1/30" }, "spec.cidr 10.0.0.1/30"},
		{"another block's range", func(b *api.IPAMBlock) { b.Spec.CIDR = "10.0.0.4/30" }, "spec.cidr 10.0.0.4/30"},
		{"huge range", func(b *api.IPAMBlock) { b.Name, b.Spec.CIDR = "10-0-0-0-8", "10.0.0.0/8" }, "spec.cidr 10.0.0.0/8 4096"},
		{"no allocations", func(b *api.IPAMBlock) { b.Spec.Allocations = nil }, "spec.allocations 0 10.0.0.0/30 4"},
		{"short allocations", func(b *api.IPAMBlock) { b.Spec.Allocations = b.Spec.Allocations[:3] }, "spec.allocations 3 10.0.0.0/30 4"},
		{"long allocations", func(b *api.IPAMBlock) { b.Spec.Allocations = append(b.Spec.Allocations, nil) }, "spec.allocations 5 10.0.0.0/30 4"},
		{"attribute out of range", func(b *api.IPAMBlock) { b.Spec.Allocations[0] = ptr(2) }, "spec.allocations[0] 2"},
		{"negative attribute", func(b *api.IPAMBlock) { b.Spec.Allocations[0] = ptr(-1) }, "spec.allocations[0] -1 2"},
		{"no attributes", func(b *api.IPAMBlock) { b.Spec.Attributes = nil }, "spec.allocations[0] 0"},
		{"negative ordinal", func(b *api.IPAMBlock) { b.Spec.Unallocated[0] = -1 }, "spec.unallocated -1"},
		{"ordinal out of range", func(b *api.IPAMBlock) { b.Spec.Unallocated[0] = 4 }, "spec.unallocated 4"},
		{"ordinal twice", func(b *api.IPAMBlock) { b.Spec.Unallocated[0] = 3 }, "spec.unallocated 3"},
		{"free and taken", func(b *api.IPAMBlock) { b.Spec.Unallocated[0] = 1 }, "spec.unallocated 1"},
		{"neither free nor taken", func(b *api.IPAMBlock) { b.Spec.Unallocated = []int{2} }, "damaged 1"},
		{"no free list", func(b *api.IPAMBlock) { b.Spec.Unallocated = nil }, "damaged 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			obj := stored("10.0.0.0/30", "node-a", "a", "b").obj
			if _, err := ParseBlock(obj); err != nil {
				t.Fatalf("before the damage: %v", err)
			}
			c.damage(obj)
			_, err := ParseBlock(obj)
			if want := "IPAMBlock " + obj.Name + " " + c.want; !errtest.Names(err, want) {
				t.Errorf("error %v, want one that names %s", err, want)
			}
		})
	}
}

// Lists that the schema refuses as null are written as empty, also from a block that was stored without them.
func TestParsedBlocksEncodeNoNullLists(t *testing.T) {
	full := stored("10.0.0.0/32", "node-a", "a").obj
	full.Spec.Unallocated = nil
	free := stored("10.0.0.0/30", "node-a").obj
	free.Spec.Attributes, free.Spec.SequenceNumberForAllocation = nil, nil
	for _, obj := range []*api.IPAMBlock{full, free} {
		b, err := ParseBlock(obj)
		errtest.Must(t, err)
		data, err := json.Marshal(b.clone().obj)
		errtest.Must(t, err)
		for _, field := range []string{"unallocated", "attributes", "sequenceNumberForAllocation"} {
			if strings.Contains(string(data), `"`+field+`":null`) {
				t.Errorf("%s is null in %s", field, data)
			}
		}
	}
}

func TestCloneIsIndependent(t *testing.T) {
	b := stored("10.0.0.0/29", "node-a", "a", "b", "c")
	b.ReleaseHandle("b", Cooldown{Now: clock, Period: time.Minute})
	before := asMap(t, b.obj)
	c := b.clone()
	c.FreeCooled(Cooldown{Now: clock.Add(time.Minute), Period: time.Minute})
	c.Assign(owner("d"), nil)
	c.AssignAddress(netip.MustParseAddr("10.0.0.7"), owner("e"))
	c.ReleaseHandle("a", Cooldown{})
	c.ReleaseHandle("c", Cooldown{Now: clock, Period: time.Minute})
	c.bump()
	if d := cmp.Diff(before, asMap(t, b.obj)); d != "" {
		t.Errorf("the original changed (-before +after):\n%s", d)
	}
}

func TestOffsetAndDistance(t *testing.T) {
	for _, c := range []struct {
		from  string
		n     uint64
		shift int
		want  string
	}{
		{"10.0.0.0", 0, 0, "10.0.0.0"},
		{"10.0.0.250", 10, 0, "10.0.1.4"},
		{"10.0.0.0", 3, 6, "10.0.0.192"},
		{"255.255.255.255", 1, 0, "0.0.0.0"},
		{"fd00::", 1, 6, "fd00::40"},
		{"fd00::ffff:ffff:ffff:ffff", 1, 0, "fd00:0:0:1::"},
		{"fd00::", 0xffffffff, 6, "fd00::3f:ffff:ffc0"},
		{"fd00::", 3, 63, "fd00:0:0:1:8000::"},
		{"fd00::", 5, 64, "fd00:0:0:5::"},
		{"fd00::", 1, 80, "fd00:0:1::"},
		{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 1, 0, "::"},
	} {
		from, want := netip.MustParseAddr(c.from), netip.MustParseAddr(c.want)
		got := offset(from, c.n, c.shift)
		if got != want {
			t.Errorf("offset(%s, %d<<%d) = %s, want %s", from, c.n, c.shift, got, want)
		}
		if c.shift == 0 && from.Less(got) && distance(from, got) != c.n {
			t.Errorf("distance(%s, %s) = %d, want %d", from, got, distance(from, got), c.n)
		}
	}
}

// FuzzParseBlock: no stored block makes the parser panic, and a block that it accepts keeps its invariants and behaves
// like the model, a map, over any assignments and releases.
func FuzzParseBlock(f *testing.F) {
	for _, b := range []*Block{
		NewBlock(cidr("10.0.0.0/29"), "node-a", clock),
		stored("10.0.0.0/30", "node-a", "a", "b", "a"),
		stored("10.0.0.0/30", "", "-", "a"),
		stored("fd00::40/124", "node-b", "a", "-", "c"),
	} {
		data, err := json.Marshal(b.obj)
		errtest.Must(f, err)
		f.Add(data, uint64(1))
	}
	f.Add([]byte(`{"metadata":{"name":"10-0-0-0-30"},"spec":{"cidr":"10.0.0.0/30","allocations":[null,-1,0,9],"unallocated":[0,0,-7]}}`),
		uint64(2))
	f.Fuzz(func(t *testing.T, data []byte, seed uint64) {
		var obj api.IPAMBlock
		if json.Unmarshal(data, &obj) != nil {
			return
		}
		b, err := ParseBlock(&obj)
		if err != nil {
			if !errtest.Names(err, "IPAMBlock "+obj.Name) {
				t.Errorf("error %q does not name block %q", err, obj.Name)
			}
			return
		}
		checkAgainstModel(t, b, rand.New(rand.NewPCG(seed, 0)))
	})
}

func TestBlockAgreesWithItsModel(t *testing.T) {
	for seed := range uint64(200) {
		checkAgainstModel(t, NewBlock(cidr("10.0.0.0/28"), "node-a", clock), rand.New(rand.NewPCG(seed, 0)))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// checkAgainstModel assigns and releases at random and compares the block with a map from address to handle and a queue
// of free addresses.
func checkAgainstModel(t *testing.T, b *Block, r *rand.Rand) {
	t.Helper()
	holders := map[netip.Addr]string{}
	foreign := map[netip.Addr]bool{} // taken by what the model does not release
	var queue []netip.Addr
	for _, ordinal := range b.obj.Spec.Unallocated {
		queue = append(queue, b.addr(ordinal))
	}
	for ordinal, at := range b.obj.Spec.Allocations {
		if at != nil {
			foreign[b.addr(ordinal)] = true
		}
	}
	for range 40 {
		handle := "model-" + string(rune('a'+r.IntN(4)))
		if r.IntN(2) == 0 {
			got, ok := b.Assign(owner(handle), nil)
			if ok != (len(queue) > 0) || ok && got != queue[0] {
				t.Fatalf("assigned %v %v, want the first of %v", got, ok, queue)
			}
			if ok {
				queue, holders[got] = queue[1:], handle
			}
		} else {
			var want []netip.Addr
			for a, h := range holders {
				if h == handle {
					want = append(want, a)
					delete(holders, a)
				}
			}
			slices.SortFunc(want, netip.Addr.Compare)
			queue = append(queue, want...)
			if d := cmp.Diff(want, b.ReleaseHandle(handle, Cooldown{}), difftest.Netip); d != "" {
				t.Fatalf("released by %s (-want +got):\n%s", handle, d)
			}
		}
		checkInvariants(t, b, holders, foreign)
	}
}

func checkInvariants(t *testing.T, b *Block, holders map[netip.Addr]string, foreign map[netip.Addr]bool) {
	t.Helper()
	data, err := json.Marshal(b.obj)
	errtest.Must(t, err)
	var obj api.IPAMBlock
	errtest.Must(t, json.Unmarshal(data, &obj))
	again, err := ParseBlock(&obj)
	if err != nil {
		t.Fatalf("the block is not valid any more: %v\n%s", err, data)
	}
	for ordinal, at := range obj.Spec.Allocations {
		a := again.addr(ordinal)
		if (at != nil) != (holders[a] != "" || foreign[a]) {
			t.Fatalf("%s is taken %v, model %q, foreign %v", a, at != nil, holders[a], foreign[a])
		}
		if h := holders[a]; h != "" && !slices.Contains(again.Held(h), a) {
			t.Fatalf("%s is not held by %s", a, h)
		}
	}
}

// FuzzDamagedBlock: a valid block in which some fields were overwritten is refused, or is valid still: then it keeps
// its promises too.
func FuzzDamagedBlock(f *testing.F) {
	f.Add([]byte{0, 1, 2}, uint64(1))
	f.Add([]byte{1, 0, 3, 2, 7, 7, 5, 0, 0}, uint64(2))
	f.Add([]byte{7, 0, 1, 7, 1, 2}, uint64(3))
	f.Fuzz(func(t *testing.T, damage []byte, seed uint64) {
		obj := stored("10.0.0.0/29", "node-a", "a", "b", "-", "a").obj
		for ; len(damage) >= 3; damage = damage[3:] {
			overwrite(obj, damage[0], int(int8(damage[1])), int(int8(damage[2])))
		}
		b, err := ParseBlock(obj)
		if err != nil {
			return
		}
		checkCooling(t, b, rand.New(rand.NewPCG(seed, 0)))
		checkAgainstModel(t, b, rand.New(rand.NewPCG(seed, 0)))
	})
}

// checkCooling lets addresses cool down and thaw: the block stays valid, and each address comes back, once its time has
// come.
func checkCooling(t *testing.T, b *Block, r *rand.Rand) {
	t.Helper()
	b.FreeCooled(Cooldown{Now: clock}) // what cooled down before, whenever that was
	free, now := b.Free(nil), clock
	period := time.Duration(1+r.IntN(60)) * time.Second
	for range 20 {
		handle := "cool-" + string(rune('a'+r.IntN(3)))
		switch r.IntN(3) {
		case 0:
			b.Assign(owner(handle), nil)
		case 1:
			b.ReleaseHandle(handle, Cooldown{now, period})
		default:
			now = now.Add(time.Duration(r.IntN(30)) * time.Second)
			b.FreeCooled(Cooldown{now, period})
		}
		if err := b.check(); err != nil {
			t.Fatalf("the block is not valid any more: %v", err)
		}
	}
	for _, handle := range []string{"cool-a", "cool-b", "cool-c"} {
		b.ReleaseHandle(handle, Cooldown{now, period})
	}
	b.FreeCooled(Cooldown{now.Add(period), period})
	if got := b.Free(nil); got != free {
		t.Fatalf("%d addresses are free when all have cooled down, want %d", got, free)
	}
}

// overwrite sets one field, chosen by what, to a value; a negative index stands for the end.
func overwrite(obj *api.IPAMBlock, what byte, i, value int) {
	s := &obj.Spec
	at := func(n int) int { return ((i % n) + n) % n }
	switch what % 8 {
	case 0:
		s.Allocations[at(len(s.Allocations))] = &value
	case 1:
		s.Allocations[at(len(s.Allocations))] = nil
	case 2:
		s.Unallocated = append(s.Unallocated, value)
	case 3:
		if len(s.Unallocated) > 0 {
			s.Unallocated[at(len(s.Unallocated))] = value
		}
	case 4:
		if len(s.Unallocated) > 0 {
			s.Unallocated = slices.Delete(s.Unallocated, at(len(s.Unallocated)), at(len(s.Unallocated))+1)
		}
	case 5:
		s.Attributes = append(s.Attributes, api.AllocationAttribute{})
	case 6:
		if len(s.Attributes) > 0 {
			s.Attributes = s.Attributes[:at(len(s.Attributes))]
		}
	case 7:
		if len(s.Attributes) > 0 {
			s.Attributes[at(len(s.Attributes))].ReleasedAt = []string{"soon", "2026-01-02T03:04:05Z", "2999-01-01T00:00:00+01:00", ""}[value&3]
		}
	}
}
