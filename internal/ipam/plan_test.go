package ipam

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// planCase is one call of PlanAssign. The state is node-a's in a pool of four blocks of four addresses, 10.0.0.0/28,
// with an IPv6 pool like it, fd00::/124. node-a starts to look for a block at the last one.
type planCase struct {
	name     string
	affine   []*api.BlockAffinity
	blocks   []*Block       // the cluster's; blocks that node-a claims or the handle names are read one by one too
	names    bool           // whether the names of the cluster's blocks were listed
	cluster  bool           // whether the cluster's blocks were listed
	reads    []netip.Prefix // what else was read one by one
	needed   []netip.Prefix // what could not be reclaimed
	handle   *api.IPAMHandle
	reserved []netip.Prefix
	config   func(*api.IPAMConfigSpec)
	pools    func(testing.TB) []Pool
	request  func(*Request)

	want   string
	writes []string
	needs  string // what must be read before there is an answer
	err    error
	text   string // of the error
}

func (c planCase) state(t testing.TB) *State {
	t.Helper()
	st := &State{
		Now:        clock,
		Config:     DefaultConfig(),
		Reserved:   c.reserved,
		Pools:      []Pool{pool(t, "pool-a", "10.0.0.0/28"), pool(t, "pool-v6", "fd00::/124")},
		Affinities: c.affine,
		HaveLabels: true,
		Blocks:     map[netip.Prefix]*Block{},
		Needed:     map[netip.Prefix]bool{},
		Handle:     c.handle,
	}
	if c.pools != nil {
		st.Pools = c.pools(t)
	}
	if c.config != nil {
		c.config(&st.Config)
	}
	read := append(handleBlocks(c.handle), c.reads...)
	for _, a := range c.affine {
		read = append(read, cidr(a.Spec.CIDR))
	}
	for _, p := range read {
		st.Blocks[p] = nil
	}
	for _, b := range c.blocks {
		if _, ok := st.Blocks[b.cidr]; ok {
			st.Blocks[b.cidr] = b
		}
	}
	for _, p := range c.needed {
		st.Needed[p] = true
	}
	st.HaveTaken, st.HaveCluster = c.names || c.cluster, c.cluster
	for _, b := range c.blocks {
		if st.HaveTaken {
			st.Taken = append(st.Taken, b.cidr)
		}
		if st.HaveCluster {
			st.Cluster = append(st.Cluster, b)
		}
	}
	return st
}

func (c planCase) req() *Request {
	r := &Request{Owner: owner("h"), Host: "node-a", V4: true, Use: api.UseWorkload}
	if c.request != nil {
		c.request(r)
	}
	return r
}

func run(t *testing.T, cases []planCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			st := c.state(t)
			before := encode(t, st)
			plan, err := PlanAssign(st, c.req())
			if needs, ok := needsOf(err); ok || c.needs != "" {
				if needs != c.needs {
					t.Errorf("needs %q, want %q (error %v)", needs, c.needs, err)
				}
				return
			}
			if !errors.Is(err, c.err) || c.err != nil && !errtest.Names(err, c.text) {
				t.Fatalf("error %v, want %v with %q", err, c.err, c.text)
			}
			difftest.Want(t, "assigned", c.want, plan.got())
			difftest.Want(t, "writes", c.writes, plan.lines())
			if d := cmp.Diff(before, encode(t, st)); d != "" {
				t.Errorf("planning changed the state (-before +after):\n%s", d)
			}
			again, err := PlanAssign(st, c.req())
			if d := cmp.Diff(plan.lines(), again.lines()); d != "" || !errors.Is(err, c.err) {
				t.Errorf("the same question has another answer: %v (-first +second):\n%s", err, d)
			}
		})
	}
}

// needsOf returns a need as text, with the handle that can be predicted.
func needsOf(err error) (string, bool) {
	var n *need
	if !errors.As(err, &n) {
		return "", false
	}
	var out []string
	for _, b := range n.blocks {
		out = append(out, b.String())
	}
	for word, wanted := range map[string]bool{"labels": n.labels, "names": n.names, "cluster": n.cluster} {
		if wanted {
			out = append(out, word)
		}
	}
	if n.reclaim != nil {
		out = append(out, "to reclaim "+n.reclaim.cidr.String())
	}
	slices.Sort(out)
	if h, ok := n.handle("h", "node-a"); ok {
		out = append(out, "beside "+describe(h))
	}
	return strings.Join(out, ", "), true
}

// encode returns the parts of a state that a plan might change, as text.
func encode(t *testing.T, st *State) string {
	t.Helper()
	objs := []any{st.Affinities, st.Handle}
	for _, b := range st.Cluster {
		objs = append(objs, b.obj)
	}
	for _, p := range sortedKeys(st.Blocks) {
		if b := st.Blocks[p]; b != nil {
			objs = append(objs, b.obj)
		}
	}
	data, err := json.MarshalIndent(objs, "", " ")
	errtest.Must(t, err)
	return string(data)
}

func sortedKeys(m map[netip.Prefix]*Block) []netip.Prefix {
	var keys []netip.Prefix
	for p := range m {
		keys = append(keys, p)
	}
	slices.SortFunc(keys, netip.Prefix.Compare)
	return keys
}

const (
	pending   = api.AffinityPending
	confirmed = api.AffinityConfirmed
)

// claims are the writes that claim a block of node-a and assign its first address to h.
func claims(block string) []string {
	return append([]string{"create affinity node-a " + block + " pending"}, reclaims(block, "create")[1:]...)
}

// reclaims returns the writes for a block that node-a has claimed before; verb is create or update.
func reclaims(block, verb string) []string {
	return []string{
		"update affinity node-a " + block + " pending", "create handle h " + block + "=1",
		verb + " block " + block + " host:node-a [0:h . . .]", "update affinity node-a " + block + " confirmed",
	}
}

func TestPlanFromOwnBlocks(t *testing.T) {
	run(t, []planCase{
		{
			name:   "the n-th pod takes one write to the handle and one to the block",
			affine: []*api.BlockAffinity{claimed("node-a", "10.0.0.0/30", confirmed)},
			blocks: []*Block{stored("10.0.0.0/30", "node-a", "x")},
			want:   "10.0.0.1 from 10.0.0.0/30",
			writes: []string{"create handle h 10.0.0.0/30=1", "update block 10.0.0.0/30 host:node-a [0:x 1:h . .]"},
		},
		{
			name: "a full block is passed over",
			affine: []*api.BlockAffinity{
				claimed("node-a", "10.0.0.0/30", confirmed), claimed("node-a", "10.0.0.4/30", confirmed)},
			blocks: []*Block{stored("10.0.0.0/30", "node-a", "x", "x", "x", "x"), stored("10.0.0.4/30", "node-a")},
			want:   "10.0.0.4 from 10.0.0.4/30",
			writes: []string{"create handle h 10.0.0.4/30=1", "update block 10.0.0.4/30 host:node-a [0:h . . .]"},
		},
		{
			name:   "a pending claim of an own block is confirmed",
			affine: []*api.BlockAffinity{claimed("node-a", "10.0.0.0/30", pending)},
			blocks: []*Block{stored("10.0.0.0/30", "node-a")},
			want:   "10.0.0.0 from 10.0.0.0/30",
			writes: reclaims("10.0.0.0/30", "update"),
		},
		{
			name:   "a claim that is being given up is taken back",
			affine: []*api.BlockAffinity{claimed("node-a", "10.0.0.0/30", api.AffinityPendingDeletion)},
			blocks: []*Block{stored("10.0.0.0/30", "node-a")},
			want:   "10.0.0.0 from 10.0.0.0/30",
			writes: reclaims("10.0.0.0/30", "update"),
		},
		{
			name:   "an empty state, from old data, is confirmed",
			affine: []*api.BlockAffinity{claimed("node-a", "10.0.0.0/30", "")},
			blocks: []*Block{stored("10.0.0.0/30", "node-a")},
			want:   "10.0.0.0 from 10.0.0.0/30",
			writes: []string{"create handle h 10.0.0.0/30=1", "update block 10.0.0.0/30 host:node-a [0:h . . .]"},
		},
		{
			name:   "a claim without its block waits for the list of the cluster's blocks",
			affine: []*api.BlockAffinity{claimed("node-a", "10.0.0.4/30", pending)},
			needs:  "names",
		},
		{
			name:    "a claim without its block is completed",
			affine:  []*api.BlockAffinity{claimed("node-a", "10.0.0.4/30", pending)},
			cluster: true,
			want:    "10.0.0.4 from 10.0.0.4/30",
			writes:  reclaims("10.0.0.4/30", "create"),
		},
		{
			name:    "a confirmed claim whose block is gone starts anew",
			affine:  []*api.BlockAffinity{claimed("node-a", "10.0.0.4/30", confirmed)},
			cluster: true,
			want:    "10.0.0.4 from 10.0.0.4/30",
			writes:  reclaims("10.0.0.4/30", "create"),
		},
		{
			name:    "a claim without its block is not completed where a block of another size lies",
			affine:  []*api.BlockAffinity{claimed("node-a", "10.0.0.0/30", pending)},
			blocks:  []*Block{stored("10.0.0.0/29", "node-b")},
			cluster: true,
			want:    "10.0.0.12 from 10.0.0.12/30",
			writes:  claims("10.0.0.12/30"),
		},
		{
			name: "a stale claim of somebody else's block is dropped first",
			affine: []*api.BlockAffinity{
				claimed("node-a", "10.0.0.0/30", confirmed), claimed("node-a", "10.0.0.4/30", confirmed)},
			blocks: []*Block{stored("10.0.0.0/30", "node-b"), stored("10.0.0.4/30", "node-a")},
			want:   "10.0.0.4 from 10.0.0.4/30",
			writes: []string{
				"delete affinity node-a 10.0.0.0/30 confirmed", "create handle h 10.0.0.4/30=1",
				"update block 10.0.0.4/30 host:node-a [0:h . . .]",
			},
		},
		{
			name:   "reserved addresses are passed over",
			affine: []*api.BlockAffinity{claimed("node-a", "10.0.0.0/30", confirmed)},
			blocks: []*Block{stored("10.0.0.0/30", "node-a")}, reserved: cidrs("10.0.0.0/31"),
			want:   "10.0.0.2 from 10.0.0.0/30",
			writes: []string{"create handle h 10.0.0.0/30=1", "update block 10.0.0.0/30 host:node-a [. . 2:h .]"},
		},
		{
			name:   "an own block in a pool that is not usable is left alone",
			affine: []*api.BlockAffinity{claimed("node-a", "10.9.0.0/30", confirmed), claimed("node-a", "10.0.0.0/30", confirmed)},
			blocks: []*Block{stored("10.9.0.0/30", "node-a"), stored("10.0.0.0/30", "node-a")},
			want:   "10.0.0.0 from 10.0.0.0/30",
			writes: []string{"create handle h 10.0.0.0/30=1", "update block 10.0.0.0/30 host:node-a [0:h . . .]"},
		},
	})
}

func TestPlanNewBlock(t *testing.T) {
	firstPod := claims("10.0.0.12/30")
	run(t, []planCase{
		{name: "the cluster's blocks are listed only when own ones do not do", needs: "names"},
		{
			name: "the first pod claims a block: pending, handle, block, confirmed", cluster: true,
			want: "10.0.0.12 from 10.0.0.12/30", writes: firstPod,
		},
		{
			name: "a taken block is passed over, the walk wraps around", cluster: true,
			blocks: []*Block{stored("10.0.0.8/30", "node-b"), stored("10.0.0.12/30", "node-b", "x")},
			want:   "10.0.0.0 from 10.0.0.0/30",
			writes: claims("10.0.0.0/30"),
		},
		{
			name: "a full own block is followed by a new one", cluster: true,
			affine: []*api.BlockAffinity{claimed("node-a", "10.0.0.0/30", confirmed)},
			blocks: []*Block{stored("10.0.0.0/30", "node-a", "x", "x", "x", "x")},
			want:   "10.0.0.12 from 10.0.0.12/30", writes: firstPod,
		},
		{
			name: "a claim that was lost is made again when no range is free", cluster: true,
			blocks: []*Block{stored("10.0.0.0/30", "node-b"), stored("10.0.0.4/30", "node-a", "x"), stored("10.0.0.8/29", "node-b")},
			want:   "10.0.0.5 from 10.0.0.4/30",
			writes: []string{
				"create affinity node-a 10.0.0.4/30 pending", "create handle h 10.0.0.4/30=1",
				"update block 10.0.0.4/30 host:node-a [0:x 1:h . .]", "update affinity node-a 10.0.0.4/30 confirmed",
			},
		},
		{
			name: "blocks of a changed blockSize are not overlapped", cluster: true,
			blocks: []*Block{stored("10.0.0.8/29", "node-b", "x"), stored("10.0.0.2/31", "node-b")},
			want:   "10.0.0.4 from 10.0.0.4/30",
			writes: claims("10.0.0.4/30"),
		},
		{
			name: "a block that is all reserved is passed over", cluster: true, reserved: cidrs("10.0.0.8/29", "10.0.0.0/31", "10.0.0.2/31"),
			want:   "10.0.0.4 from 10.0.0.4/30",
			writes: claims("10.0.0.4/30"),
		},
		{
			name: "pools are tried in order", cluster: true,
			pools: func(t testing.TB) []Pool {
				return []Pool{pool(t, "full", "10.1.0.0/30"), pool(t, "next", "10.2.0.0/30")}
			},
			blocks: []*Block{stored("10.1.0.0/30", "node-b")},
			want:   "10.2.0.0 from 10.2.0.0/30",
			writes: claims("10.2.0.0/30"),
		},
		{
			name: "the pool that the pod asks for is used, and no other, though the node has a block", cluster: true,
			pools: func(t testing.TB) []Pool {
				return []Pool{pool(t, "pool-a", "10.0.0.0/28"), pool(t, "asked", "10.2.0.0/30",
					func(p *api.IPPool) { p.Spec.AssignmentMode = api.AssignManual })}
			},
			affine:  []*api.BlockAffinity{claimed("node-a", "10.0.0.0/30", confirmed)},
			blocks:  []*Block{stored("10.0.0.0/30", "node-a")},
			request: func(r *Request) { r.PoolsV4 = []string{"asked"} },
			want:    "10.2.0.0 from 10.2.0.0/30",
			writes:  claims("10.2.0.0/30"),
		},
	})
}

func TestPlanLimits(t *testing.T) {
	full := []*Block{
		stored("10.0.0.0/30", "node-a", "x", "x", "x", "x"), stored("10.0.0.4/30", "node-b", "x"),
		stored("10.0.0.8/30", "node-b", "x", "x", "x", "x"), stored("10.0.0.12/30", "node-c", "x", "x", "x", "x"),
	}
	own := []*api.BlockAffinity{claimed("node-a", "10.0.0.0/30", confirmed)}
	strict := func(c *api.IPAMConfigSpec) { c.StrictAffinity = true }
	noAuto := func(c *api.IPAMConfigSpec) { c.AutoAllocateBlocks = false }
	run(t, []planCase{
		{
			name: "when all blocks are claimed an address is borrowed, without a claim", cluster: true, affine: own, blocks: full,
			want:   "10.0.0.5 from 10.0.0.4/30",
			writes: []string{"create handle h 10.0.0.4/30=1", "update block 10.0.0.4/30 host:node-b [0:x 1:h . .]"},
		},
		{
			name: "a block without an owner can be borrowed from", cluster: true, affine: own,
			blocks: []*Block{full[0], stored("10.0.0.4/30", "", "x"), full[2], full[3]},
			want:   "10.0.0.5 from 10.0.0.4/30",
			writes: []string{"create handle h 10.0.0.4/30=1", "update block 10.0.0.4/30 orphan [0:x 1:h . .]"},
		},
		{
			name: "reserved addresses are not borrowed", cluster: true, affine: own, blocks: full, reserved: cidrs("10.0.0.4/30"),
			err: ErrExhausted, text: "pool-a 10.0.0.0/28",
		},
		{
			name: "strictAffinity", cluster: true, affine: own, blocks: full, config: strict,
			err: ErrExhausted, text: "strictAffinity",
		},
		{
			name: "autoAllocateBlocks=false forbids to claim, not to borrow", cluster: true, blocks: full[:2], config: noAuto,
			want:   "10.0.0.5 from 10.0.0.4/30",
			writes: []string{"create handle h 10.0.0.4/30=1", "update block 10.0.0.4/30 host:node-b [0:x 1:h . .]"},
		},
		{
			name: "autoAllocateBlocks=false with nothing to borrow", cluster: true, config: noAuto,
			err: ErrExhausted, text: "autoAllocateBlocks=false",
		},
		{
			name: "at its limit a node neither claims nor borrows", cluster: true, affine: own, blocks: full[:2],
			config: func(c *api.IPAMConfigSpec) { c.MaxBlocksPerHost = 1 },
			err:    ErrBlockLimit, text: "1",
		},
		{
			name: "below its limit a node claims", cluster: true, affine: own, blocks: full[:2],
			config: func(c *api.IPAMConfigSpec) { c.MaxBlocksPerHost = 2 },
			want:   "10.0.0.12 from 10.0.0.12/30",
			writes: claims("10.0.0.12/30"),
		},
		{
			name: "the limit counts blocks of usable pools only", cluster: true,
			affine: []*api.BlockAffinity{claimed("node-a", "10.9.0.0/30", confirmed)},
			blocks: []*Block{stored("10.9.0.0/30", "node-a", "x", "x", "x", "x")},
			config: func(c *api.IPAMConfigSpec) { c.MaxBlocksPerHost = 1 },
			want:   "10.0.0.12 from 10.0.0.12/30",
			writes: claims("10.0.0.12/30"),
		},
		{
			name: "no pool at all", pools: func(testing.TB) []Pool { return nil },
			err: ErrNoPool, text: "IPv4",
		},
		{
			name: "an unknown pool", request: func(r *Request) { r.PoolsV4 = []string{"nowhere"} },
			err: ErrNoPool, text: "(nowhere)",
		},
		{
			name: "both families or neither", cluster: true, affine: own, blocks: []*Block{stored("10.0.0.0/30", "node-a")},
			pools:   func(t testing.TB) []Pool { return []Pool{pool(t, "pool-a", "10.0.0.0/28")} },
			request: func(r *Request) { r.V6 = true },
			err:     ErrNoPool, text: "IPv6",
		},
	})
}

// With the default limit of 20 blocks the 21st is refused.
func TestPlanDefaultBlockLimit(t *testing.T) {
	c := planCase{cluster: true, pools: func(t testing.TB) []Pool { return []Pool{pool(t, "pool-a", "10.0.0.0/24")} }}
	p := pool(t, "pool-a", "10.0.0.0/24")
	for i := range uint64(defaultMaxBlocks) {
		text := p.block(i).String()
		c.affine = append(c.affine, claimed("node-a", text, confirmed))
		c.blocks = append(c.blocks, stored(text, "node-a", "x", "x", "x", "x"))
	}
	_, err := PlanAssign(c.state(t), c.req())
	checkRefusal(t, err, ErrBlockLimit, "20")
	c.affine, c.blocks = c.affine[1:], c.blocks[1:]
	if _, err := PlanAssign(c.state(t), c.req()); err != nil {
		t.Errorf("with 19 blocks: %v", err)
	}
}

func TestPlanDualStack(t *testing.T) {
	both := func(r *Request) { r.V6 = true }
	run(t, []planCase{
		{
			name: "one handle holds both addresses", request: both,
			affine: []*api.BlockAffinity{claimed("node-a", "10.0.0.0/30", confirmed), claimed("node-a", "fd00::/126", confirmed)},
			blocks: []*Block{stored("10.0.0.0/30", "node-a"), stored("fd00::/126", "node-a", "x")},
			want:   "10.0.0.0 from 10.0.0.0/30, fd00::1 from fd00::/126",
			writes: []string{
				"create handle h 10.0.0.0/30=1 fd00::/126=1",
				"update block 10.0.0.0/30 host:node-a [0:h . . .]", "update block fd00::/126 host:node-a [0:x 1:h . .]",
			},
		},
		{
			name: "two first blocks: all claims, handle, all blocks, all confirmations", request: both, cluster: true,
			want: "10.0.0.12 from 10.0.0.12/30, fd00::c from fd00::c/126",
			writes: []string{
				"create affinity node-a 10.0.0.12/30 pending", "create affinity node-a fd00::c/126 pending",
				"create handle h 10.0.0.12/30=1 fd00::c/126=1",
				"create block 10.0.0.12/30 host:node-a [0:h . . .]", "create block fd00::c/126 host:node-a [0:h . . .]",
				"update affinity node-a 10.0.0.12/30 confirmed", "update affinity node-a fd00::c/126 confirmed",
			},
		},
		{
			name: "IPv6 alone", request: func(r *Request) { r.V4, r.V6 = false, true },
			affine: []*api.BlockAffinity{claimed("node-a", "10.0.0.0/30", confirmed), claimed("node-a", "fd00::/126", confirmed)},
			blocks: []*Block{stored("10.0.0.0/30", "node-a"), stored("fd00::/126", "node-a")},
			want:   "fd00:: from fd00::/126",
			writes: []string{"create handle h fd00::/126=1", "update block fd00::/126 host:node-a [0:h . . .]"},
		},
		{
			name: "the family that an earlier try got is kept, the other is added", request: both,
			affine: []*api.BlockAffinity{claimed("node-a", "10.0.0.0/30", confirmed), claimed("node-a", "fd00::/126", confirmed)},
			blocks: []*Block{stored("10.0.0.0/30", "node-a", "x", "h"), stored("fd00::/126", "node-a")},
			handle: storedHandle("h", "10.0.0.0/30=1"),
			want:   "10.0.0.1 from 10.0.0.0/30, fd00:: from fd00::/126",
			writes: []string{"update handle h 10.0.0.0/30=1 fd00::/126=1", "update block fd00::/126 host:node-a [0:h . . .]"},
		},
	})
}

func TestPlanAgain(t *testing.T) {
	own := []*api.BlockAffinity{claimed("node-a", "10.0.0.0/30", confirmed)}
	run(t, []planCase{
		{
			name: "a repeated request keeps its address and writes nothing", affine: own,
			blocks: []*Block{stored("10.0.0.0/30", "node-a", "x", "h")}, handle: storedHandle("h", "10.0.0.0/30=1"),
			want: "10.0.0.1 from 10.0.0.0/30",
		},
		{
			name:   "also one in somebody else's block",
			blocks: []*Block{stored("10.0.0.4/30", "node-b", "h")}, handle: storedHandle("h", "10.0.0.4/30=1"),
			want: "10.0.0.4 from 10.0.0.4/30",
		},
		{
			name: "a claim that was not confirmed is confirmed", affine: []*api.BlockAffinity{claimed("node-a", "10.0.0.0/30", pending)},
			blocks: []*Block{stored("10.0.0.0/30", "node-a", "h")}, handle: storedHandle("h", "10.0.0.0/30=1"),
			want: "10.0.0.0 from 10.0.0.0/30", writes: []string{"update affinity node-a 10.0.0.0/30 confirmed"},
		},
		{
			name: "a handle that was written before its block is used as it is", affine: own,
			blocks: []*Block{stored("10.0.0.0/30", "node-a", "x")}, handle: storedHandle("h", "10.0.0.0/30=1"),
			want: "10.0.0.1 from 10.0.0.0/30", writes: []string{"update block 10.0.0.0/30 host:node-a [0:x 1:h . .]"},
		},
		{
			name: "what a lost try noted in the handle is dropped", affine: own,
			blocks: []*Block{stored("10.0.0.0/30", "node-a"), stored("10.0.0.4/30", "node-b", "x")},
			handle: storedHandle("h", "10.0.0.4/30=1", "10.0.0.8/30=1"),
			want:   "10.0.0.0 from 10.0.0.0/30",
			writes: []string{"update handle h 10.0.0.0/30=1", "update block 10.0.0.0/30 host:node-a [0:h . . .]"},
		},
		{
			name: "a wrong count in the handle is mended", affine: own,
			blocks: []*Block{stored("10.0.0.0/30", "node-a", "h")}, handle: storedHandle("h", "10.0.0.0/30=3"),
			want: "10.0.0.0 from 10.0.0.0/30", writes: []string{"update handle h 10.0.0.0/30=1"},
		},
		{
			name: "an address of a pool that was disabled meanwhile is kept", affine: own,
			blocks: []*Block{stored("10.0.0.0/30", "node-a"), stored("10.9.0.0/30", "node-a", "h")},
			handle: storedHandle("h", "10.9.0.0/30=1"),
			want:   "10.9.0.0 from 10.9.0.0/30",
		},
	})
}

func TestPlanRefusesToAskForNothing(t *testing.T) {
	plan, err := PlanAssign(planCase{}.state(t), planCase{request: func(r *Request) { r.V4 = false }}.req())
	if !errtest.Names(err, "IPv4 IPv6") || len(plan.writes) > 0 {
		t.Errorf("writes %v, error %v", plan.lines(), err)
	}
}

// Affinities that a plan writes carry the labels without which Calico since 3.31 does not see them, also those that had
// none.
func TestPlanLabelsAffinities(t *testing.T) {
	old := claimed("node-a", "10.0.0.0/30", pending)
	old.Labels, old.Annotations = nil, nil
	c := planCase{affine: []*api.BlockAffinity{old}, blocks: []*Block{stored("10.0.0.0/30", "node-a")}}
	plan, err := PlanAssign(c.state(t), c.req())
	errtest.Must(t, err)
	want := newAffinity("node-a", cidr("10.0.0.0/30")).Meta
	want.UID, want.ResourceVersion = old.UID, old.ResourceVersion
	n := 0
	for _, w := range plan.writes {
		if a, ok := w.obj.(*api.BlockAffinity); ok {
			n++
			difftest.Want(t, "metadata", want, a.Meta)
		}
	}
	if n != 2 {
		t.Errorf("the affinity is written %d times, want 2", n)
	}
}

// Pools of 2^32 blocks and more are walked in no time: past taken blocks, and past reserved ranges however large.
// A plan that looked at each block of these pools would not end.
func TestPlanWalksHugePools(t *testing.T) {
	huge := func(t testing.TB) []Pool {
		return []Pool{pool(t, "huge", "fd00::/48", func(p *api.IPPool) { p.Spec.BlockSize = 122 })}
	}
	v6 := func(r *Request) { r.V4, r.V6 = false, true }
	start := startBlock("node-a")
	taken := planCase{pools: huge, request: v6, cluster: true}
	for i := range uint64(1000) {
		taken.blocks = append(taken.blocks, stored(huge(t)[0].block(start+i).String(), "node-b"))
	}
	for _, c := range []struct {
		name string
		planCase
		want string
		err  error
	}{
		{"1000 taken blocks", taken, huge(t)[0].block(start + 1000).Addr().String(), nil},
		{"all but the first block reserved", planCase{pools: huge, request: v6, cluster: true, reserved: allButFirst("fd00::/48", 122)},
			"fd00::", nil},
		{"all reserved", planCase{pools: huge, request: v6, cluster: true, reserved: cidrs("fd00::/48")}, "", ErrExhausted},
		{"more than all reserved", planCase{pools: huge, request: v6, cluster: true, reserved: cidrs("::/0")}, "", ErrExhausted},
		{"a reserved IPv4 pool", planCase{cluster: true, reserved: cidrs("0.0.0.0/0"), pools: func(t testing.TB) []Pool {
			return []Pool{pool(t, "large", "0.0.0.0/0", func(p *api.IPPool) { p.Spec.BlockSize = 32 })}
		}}, "", ErrExhausted},
	} {
		t.Run(c.name, func(t *testing.T) {
			st, req := c.state(t), c.req()
			plan, err := PlanAssign(st, req)
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if err == nil && plan.Assignments[0].Address.String() != c.want {
				t.Errorf("assigned %s, want %s", plan.Assignments[0].Address, c.want)
			}
		})
	}
}

// allButFirst returns the ranges that cover a pool except its first block.
func allButFirst(pool string, blockBits int) []netip.Prefix {
	var out []netip.Prefix
	first := cidr(pool).Addr()
	for bits := cidr(pool).Bits() + 1; bits <= blockBits; bits++ {
		second := offset(first, 1, first.BitLen()-bits)
		out = append(out, netip.PrefixFrom(second, bits))
	}
	return out
}

func TestPlanRelease(t *testing.T) {
	for _, c := range []struct {
		name   string
		handle *api.IPAMHandle
		blocks []*Block
		freed  []string
		writes []string
	}{
		{
			name: "block before handle", handle: storedHandle("h", "10.0.0.0/30=1"),
			blocks: []*Block{stored("10.0.0.0/30", "node-a", "x", "h")}, freed: []string{"10.0.0.1"},
			writes: []string{"update block 10.0.0.0/30 host:node-a [0:x . . .]", "delete handle h 10.0.0.0/30=1"},
		},
		{
			name: "all blocks before the handle", handle: storedHandle("h", "10.0.0.0/30=2", "fd00::/126=1"),
			blocks: []*Block{stored("10.0.0.0/30", "node-a", "h", "x", "h"), stored("fd00::/126", "node-a", "h")},
			freed:  []string{"10.0.0.0", "10.0.0.2", "fd00::"},
			writes: []string{
				"update block 10.0.0.0/30 host:node-a [. 1:x . .]", "update block fd00::/126 host:node-a [. . . .]",
				"delete handle h 10.0.0.0/30=2 fd00::/126=1",
			},
		},
		{
			name: "the host keeps its empty block", handle: storedHandle("h", "10.0.0.0/30=1"),
			blocks: []*Block{stored("10.0.0.0/30", "node-a", "h")}, freed: []string{"10.0.0.0"},
			writes: []string{"update block 10.0.0.0/30 host:node-a [. . . .]", "delete handle h 10.0.0.0/30=1"},
		},
		{
			name: "an orphan block goes with its last address", handle: storedHandle("h", "10.0.0.0/30=1"),
			blocks: []*Block{stored("10.0.0.0/30", "", "h")}, freed: []string{"10.0.0.0"},
			writes: []string{"delete block 10.0.0.0/30 orphan [. . . .]", "delete handle h 10.0.0.0/30=1"},
		},
		{
			name: "an orphan block stays with its other addresses", handle: storedHandle("h", "10.0.0.0/30=1"),
			blocks: []*Block{stored("10.0.0.0/30", "", "x", "h")}, freed: []string{"10.0.0.1"},
			writes: []string{"update block 10.0.0.0/30 orphan [0:x . . .]", "delete handle h 10.0.0.0/30=1"},
		},
		{
			name: "a block that is gone is passed over", handle: storedHandle("h", "10.0.0.0/30=1"),
			blocks: nil, writes: []string{"delete handle h 10.0.0.0/30=1"},
		},
		{
			name: "a block that does not hold it yet is written, so that it never will", handle: storedHandle("h", "10.0.0.0/30=1"),
			blocks: []*Block{stored("10.0.0.0/30", "node-a", "x")},
			writes: []string{"update block 10.0.0.0/30 host:node-a [0:x . . .]", "delete handle h 10.0.0.0/30=1"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before []string
			for _, b := range c.blocks {
				before = append(before, describe(b.obj))
			}
			plan, freed := PlanRelease(c.handle, Owner{Handle: c.handle.Spec.HandleID}, c.blocks, Cooldown{})
			difftest.Want(t, "writes", c.writes, plan.lines())
			var got []string
			for _, a := range freed {
				got = append(got, a.String())
			}
			difftest.Want(t, "freed", c.freed, got)
			var after []string
			for _, b := range c.blocks {
				after = append(after, describe(b.obj))
			}
			if d := cmp.Diff(before, after); d != "" {
				t.Errorf("planning changed the blocks (-before +after):\n%s", d)
			}
		})
	}
}

// Each write of a block counts, and an assignment remembers the count before its own.
func TestPlansCountWrites(t *testing.T) {
	c := planCase{affine: []*api.BlockAffinity{claimed("node-a", "10.0.0.0/30", confirmed)},
		blocks: []*Block{stored("10.0.0.0/30", "node-a", "x")}}
	was := c.blocks[0].obj.Spec.SequenceNumber
	plan, err := PlanAssign(c.state(t), c.req())
	errtest.Must(t, err)
	b := plan.writes[len(plan.writes)-1].obj.(*api.IPAMBlock)
	if b.Spec.SequenceNumber != was+1 || b.Spec.SequenceNumberForAllocation["1"] != was {
		t.Errorf("assignment: %d, %v, want %d and %d", b.Spec.SequenceNumber, b.Spec.SequenceNumberForAllocation, was+1, was)
	}
	parsed, err := ParseBlock(b)
	errtest.Must(t, err)
	plan, _ = PlanRelease(storedHandle("h", "10.0.0.0/30=1"), Owner{Handle: "h"}, []*Block{parsed}, Cooldown{})
	b = plan.writes[0].obj.(*api.IPAMBlock)
	if _, ok := b.Spec.SequenceNumberForAllocation["1"]; ok || b.Spec.SequenceNumber != was+2 {
		t.Errorf("release: %d, %v, want %d and no entry", b.Spec.SequenceNumber, b.Spec.SequenceNumberForAllocation, was+2)
	}
}
