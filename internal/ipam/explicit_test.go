package ipam

import (
	"net/netip"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func asks(texts ...string) func(*Request) {
	return func(r *Request) {
		r.V4 = false
		for _, t := range texts {
			r.Addresses = append(r.Addresses, netip.MustParseAddr(t))
		}
	}
}

func TestPlanExplicit(t *testing.T) {
	own := []*api.BlockAffinity{claimed("node-a", "10.0.0.0/30", confirmed)}
	strict := func(c *api.IPAMConfigSpec) { c.StrictAffinity = true }
	onlyPool := func(change ...func(*api.IPPool)) func(testing.TB) []Pool {
		return func(t testing.TB) []Pool { return []Pool{pool(t, "pool-a", "10.0.0.0/28", change...)} }
	}
	cooled := stored("10.0.0.0/30", "node-a", "x", "y")
	cooled.ReleaseHandle("y", Cooldown{clock, time.Minute})
	taken := stored("10.0.0.0/30", "node-a", "x", "y")
	taken.obj.Spec.Attributes[1].Secondary = map[string]string{"pod": "web", "namespace": "shop", "node": "node-b"}
	run(t, []planCase{
		{
			name: "its block is read first, while the handle is created", affine: own, request: asks("10.0.0.14"),
			needs: "10.0.0.12/30, beside handle h 10.0.0.12/30=1",
		},
		{
			name: "an address of an own block, out of order", affine: own, request: asks("10.0.0.2"),
			blocks: []*Block{stored("10.0.0.0/30", "node-a", "x")},
			want:   "10.0.0.2 from 10.0.0.0/30",
			writes: []string{"create handle h 10.0.0.0/30=1", "update block 10.0.0.0/30 host:node-a [0:x . 2:h .]"},
		},
		{
			name: "reservations, selectors and the mode of the pool do not matter", affine: own, request: asks("10.0.0.2"),
			reserved: cidrs("10.0.0.0/28"),
			pools: onlyPool(func(p *api.IPPool) {
				p.Spec.NodeSelector, p.Spec.NamespaceSelector, p.Spec.AssignmentMode = "has(x)", "has(y)", api.AssignManual
			}),
			blocks: []*Block{stored("10.0.0.0/30", "node-a")},
			want:   "10.0.0.2 from 10.0.0.0/30",
			writes: []string{"create handle h 10.0.0.0/30=1", "update block 10.0.0.0/30 host:node-a [. . 2:h .]"},
		},
		{
			name: "a block that does not exist is claimed, whatever the limits", affine: own, request: asks("10.0.0.6"), names: true,
			config: func(c *api.IPAMConfigSpec) {
				c.MaxBlocksPerHost, c.AutoAllocateBlocks, c.StrictAffinity = 1, false, true
			},
			blocks: []*Block{stored("10.0.0.0/30", "node-a")}, reads: cidrs("10.0.0.4/30"),
			want: "10.0.0.6 from 10.0.0.4/30",
			writes: []string{
				"create affinity node-a 10.0.0.4/30 pending", "create handle h 10.0.0.4/30=1",
				"create block 10.0.0.4/30 host:node-a [. . 2:h .]", "update affinity node-a 10.0.0.4/30 confirmed",
			},
		},
		{
			name: "whether its range is free is asked first", affine: own, request: asks("10.0.0.6"), reads: cidrs("10.0.0.4/30"), needs: "names",
		},
		{
			name: "a block from before the blockSize changed", request: asks("10.0.0.6"), names: true, reads: cidrs("10.0.0.4/30", "10.0.0.0/29"),
			blocks: []*Block{stored("10.0.0.0/29", "node-b", "x")},
			want:   "10.0.0.6 from 10.0.0.0/29",
			writes: []string{"create handle h 10.0.0.0/29=1", "update block 10.0.0.0/29 host:node-b [0:x . . . . . 6:h .]"},
		},
		{
			name: "a smaller block lies in the way", request: asks("10.0.0.6"), names: true, reads: cidrs("10.0.0.4/30"),
			blocks: []*Block{stored("10.0.0.4/31", "node-b")},
			err:    ErrTaken, text: "10.0.0.4/31",
		},
		{
			name: "another node's block", request: asks("10.0.0.2"), blocks: []*Block{stored("10.0.0.0/30", "node-b", "x")},
			reads:  cidrs("10.0.0.0/30"),
			want:   "10.0.0.2 from 10.0.0.0/30",
			writes: []string{"create handle h 10.0.0.0/30=1", "update block 10.0.0.0/30 host:node-b [0:x . 2:h .]"},
		},
		{
			name: "another node's block under strictAffinity", request: asks("10.0.0.2"), config: strict, reads: cidrs("10.0.0.0/30"),
			blocks: []*Block{stored("10.0.0.0/30", "node-b", "x")},
			err:    ErrTaken, text: "strictAffinity",
		},
		{
			name: "an own block whose claim was lost is claimed again", request: asks("10.0.0.2"), config: strict, reads: cidrs("10.0.0.0/30"),
			blocks: []*Block{stored("10.0.0.0/30", "node-a", "x")},
			want:   "10.0.0.2 from 10.0.0.0/30",
			writes: []string{
				"create affinity node-a 10.0.0.0/30 pending", "create handle h 10.0.0.0/30=1",
				"update block 10.0.0.0/30 host:node-a [0:x . 2:h .]", "update affinity node-a 10.0.0.0/30 confirmed",
			},
		},
		{
			name: "taken", affine: own, request: asks("10.0.0.1"), blocks: []*Block{taken},
			err: ErrTaken, text: "handle y shop/web node-b",
		},
		{
			name: "cooling down", affine: own, request: asks("10.0.0.1"), blocks: []*Block{cooled},
			config: func(c *api.IPAMConfigSpec) { c.IPCooldownSeconds = 60 },
			err:    ErrTaken, text: "2026-11-20T16:04:57Z",
		},
		{
			name: "held by the same handle", affine: own, request: asks("10.0.0.1"), handle: storedHandle("h", "10.0.0.0/30=1"),
			blocks: []*Block{stored("10.0.0.0/30", "node-a", "x", "h")}, want: "10.0.0.1 from 10.0.0.0/30",
		},
		{
			name: "held by the same handle, which was taken for new", affine: own, request: asks("10.0.0.1"),
			blocks: []*Block{stored("10.0.0.0/30", "node-a", "x", "h")}, want: "10.0.0.1 from 10.0.0.0/30",
			writes: []string{"create handle h 10.0.0.0/30=1"},
		},
		{
			name: "in no pool", request: asks("10.9.0.1"), err: ErrNoPool, text: "10.9.0.1",
		},
		{
			name: "in a disabled pool", request: asks("10.0.0.1"), pools: onlyPool(func(p *api.IPPool) { p.Spec.Disabled = true }),
			err: ErrNoPool, text: "spec.disabled",
		},
		{
			name: "in a pool for other uses", request: asks("10.0.0.1"),
			pools: onlyPool(func(p *api.IPPool) { p.Spec.AllowedUses = []api.AllowedUse{api.UseTunnel} }),
			err:   ErrNoPool, text: "Workload spec.allowedUses",
		},
		{
			name: "of both families", request: asks("10.0.0.1", "fd00::5"), reads: cidrs("10.0.0.0/30", "fd00::4/126"), names: true,
			want: "10.0.0.1 from 10.0.0.0/30, fd00::5 from fd00::4/126",
			writes: []string{
				"create affinity node-a 10.0.0.0/30 pending", "create affinity node-a fd00::4/126 pending",
				"create handle h 10.0.0.0/30=1 fd00::4/126=1", "create block 10.0.0.0/30 host:node-a [. 1:h . .]",
				"create block fd00::4/126 host:node-a [. 1:h . .]", "update affinity node-a 10.0.0.0/30 confirmed",
				"update affinity node-a fd00::4/126 confirmed",
			},
		},
		{
			name: "one family, and any address of the other", affine: own, names: true, reads: cidrs("fd00::4/126"),
			request: func(r *Request) { asks("fd00::5")(r); r.V4 = true },
			blocks:  []*Block{stored("10.0.0.0/30", "node-a")},
			want:    "10.0.0.0 from 10.0.0.0/30, fd00::5 from fd00::4/126",
			writes: []string{
				"create affinity node-a fd00::4/126 pending", "create handle h 10.0.0.0/30=1 fd00::4/126=1",
				"update block 10.0.0.0/30 host:node-a [0:h . . .]", "create block fd00::4/126 host:node-a [. 1:h . .]",
				"update affinity node-a fd00::4/126 confirmed",
			},
		},
	})
}

func TestTwoAddressesOfAFamilyAreRefused(t *testing.T) {
	req := planCase{request: asks("10.0.0.1", "10.0.0.2")}.req()
	if _, err := PlanAssign(&State{}, req); !errtest.Names(err, "handle h 10.0.0.1 10.0.0.2") {
		t.Errorf("error %v", err)
	}
}

// Both families or neither: the address that is free is not kept when the other is taken.
func TestExplicitBothOrNeither(t *testing.T) {
	store := seeded(t)
	c := client(store)
	req := podRequest("node-a", "x")
	asks("10.0.0.1", "fd00::1")(&req)
	got, err := c.Assign(t.Context(), req)
	errtest.Must(t, err)
	again, err := c.Assign(t.Context(), req)
	errtest.Must(t, err)
	if len(again) != 2 || again[0] != got[0] || again[1] != got[1] {
		t.Errorf("asked again: %v, want %v", again, got)
	}
	req = podRequest("node-b", "h")
	asks("10.0.0.2", "fd00::1")(&req)
	_, err = c.Assign(t.Context(), req)
	checkRefusal(t, err, ErrTaken, "fd00::1 handle x")
	errtest.Must(t, audit(store, map[string][]netip.Addr{"x": addresses(got)}))
}
