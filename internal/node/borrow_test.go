package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/kube"
	"github.com/tortie-net/tortie/internal/names"
)

func TestJudgeRecord(t *testing.T) {
	block := prefix("192.168.2.0/26")
	record := func(change func(*api.IPAMBlockSpec)) *api.IPAMBlock {
		at := func(i int) *int { return &i }
		b := &api.IPAMBlock{Spec: api.IPAMBlockSpec{
			Allocations: make([]*int, 64),
			Attributes: []api.AllocationAttribute{
				{Secondary: map[string]string{"node": "far"}}, {Secondary: map[string]string{"pod": "p"}},
				{Secondary: map[string]string{"node": "node2"}, AlternateOwnerAttrs: map[string]string{"node": "far"}},
				{Secondary: map[string]string{"node": "far"}, ReleasedAt: "2026-11-21T00:00:00Z"},
			},
		}}
		for i, attr := range []int{0, 1, 2, 3, 4, -1} {
			b.Spec.Allocations[10+i] = at(attr)
		}
		if change != nil {
			change(&b.Spec)
		}
		return b
	}
	for name, tc := range map[string]struct {
		addr, node string
		change     func(*api.IPAMBlockSpec)
		err        error
		want       string // "yes", "later ...", or part of the reason
	}{
		"the record says so":         {addr: "192.168.2.10", want: "yes"},
		"it names another":           {addr: "192.168.2.10", node: "node2", want: "in use on node far, not on node2"},
		"it names no node":           {addr: "192.168.2.11", want: "yes"},
		"a machine that moves":       {addr: "192.168.2.12", want: "yes"},
		"it was released":            {addr: "192.168.2.13", want: "nobody has the address"},
		"attributes that are not":    {addr: "192.168.2.14", want: "nobody has the address"},
		"a negative place":           {addr: "192.168.2.15", want: "nobody has the address"},
		"a free address":             {addr: "192.168.2.20", want: "nobody has the address"},
		"a short record":             {addr: "192.168.2.60", change: func(s *api.IPAMBlockSpec) { s.Allocations = s.Allocations[:16] }, want: "nobody has the address"},
		"marked deleted":             {addr: "192.168.2.10", change: func(s *api.IPAMBlockSpec) { s.Deleted = true }, want: "there is no record"},
		"no record":                  {addr: "192.168.2.10", err: datastore.ErrNotFound, want: "there is no record"},
		"an API server that is away": {addr: "192.168.2.10", err: errors.New("connection refused"), want: "later the record of block 192.168.2.0/26 cannot be read: connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			c := claim{addr: addr(tc.addr), node: "far"}
			if tc.node != "" {
				c.node = tc.node
			}
			v := judgeRecord(c, block, record(tc.change), tc.err)
			text := v.why
			if v.confirmed {
				text = "yes"
			}
			if v.pending {
				text = "later " + text
			}
			if !strings.Contains(text, tc.want) {
				t.Errorf("%q, want %q", text, tc.want)
			}
		})
	}
}

func TestOrdinal(t *testing.T) {
	for _, tc := range []struct {
		block, addr string
		want        int
	}{
		{"192.168.2.64/26", "192.168.2.64", 0}, {"192.168.2.64/26", "192.168.2.127", 63}, {"192.168.2.64/26", "192.168.2.128", -1},
		{"10.0.0.0/20", "10.0.15.255", 4095}, {"10.0.0.0/8", "10.0.0.1", -1}, {"10.0.0.7/32", "10.0.0.7", 0},
		{"fd00::ff40/122", "fd00::ff7f", 63}, {"fd00::/116", "fd00::fff", 4095}, {"fd00::/122", "192.168.2.1", -1},
	} {
		if got := ordinal(prefix(tc.block), addr(tc.addr)); got != tc.want {
			t.Errorf("%s in %s: %d, want %d", tc.addr, tc.block, got, tc.want)
		}
	}
}

// readings are a datastore that counts, and fails when it is told to.
type readings struct {
	obj  *api.IPAMBlock
	err  error
	read []string
}

func (r *readings) Get(_ context.Context, obj api.Resource) error {
	r.read = append(r.read, obj.GetMeta().Name)
	if r.err == nil {
		obj.(*api.IPAMBlock).Spec = r.obj.Spec
	}
	return r.err
}

func lentTo(node string) *api.IPAMBlock {
	first := 0
	b := &api.IPAMBlock{Spec: api.IPAMBlockSpec{Allocations: make([]*int, 64), Attributes: []api.AllocationAttribute{{Secondary: map[string]string{"node": node}}}}}
	b.Spec.Allocations[9], b.Spec.Allocations[10] = &first, &first
	return b
}

// A block is read once for all claims in it, what was confirmed stands while it cannot be read, and a claim that nobody makes any
// more is forgotten unless silence means nothing.
func TestRecords(t *testing.T) {
	block := prefix("192.168.2.0/26")
	one, two := claim{addr: addr("192.168.2.9"), node: "far"}, claim{addr: addr("192.168.2.10"), node: "far"}
	store := &readings{obj: lentTo("far")}
	r := newRecords(store, slog.New(slog.DiscardHandler))
	never := func(claim) bool { return false }
	settle := func() {
		for b := range r.take() {
			r.settle(t.Context(), b)
		}
	}
	now := time.Now()
	r.want(now, map[claim]netip.Prefix{one: block, two: block}, never)
	if v := r.verdicts()[one]; v.confirmed || !v.pending {
		t.Errorf("before it was read: %+v", v)
	}
	settle()
	if got := r.verdicts(); !got[one].confirmed || !got[two].confirmed || !slices.Equal(store.read, []string{names.Block(block)}) {
		t.Errorf("%+v after %v", got, store.read)
	}
	select {
	case <-r.changed:
	default:
		t.Error("nobody was woken")
	}
	r.want(now, map[claim]netip.Prefix{one: block, two: block}, never)
	if settle(); len(store.read) != 1 {
		t.Errorf("read again at once: %v", store.read)
	}

	store.err = errors.New("away")
	later := now.Add(recordAge + time.Minute)
	r.want(later, map[claim]netip.Prefix{one: block, two: block}, never)
	if settle(); len(store.read) != 2 || !r.verdicts()[one].confirmed {
		t.Errorf("an API server that is away: %+v after %v", r.verdicts()[one], store.read)
	}

	store.err, store.obj = nil, lentTo("node2")
	r.want(later.Add(recordAge+time.Minute), map[claim]netip.Prefix{one: block}, func(c claim) bool { return c == two })
	if settle(); r.verdicts()[one].confirmed || r.verdicts()[one].pending || len(r.verdicts()) != 2 {
		t.Errorf("given to another: %+v", r.verdicts())
	}
	r.want(later, nil, never)
	if got := r.verdicts(); len(got) != 0 {
		t.Errorf("nobody claims anything: %+v", got)
	}
	r.trust(map[claim]netip.Prefix{one: block})
	if !r.verdicts()[one].confirmed {
		t.Error("what an earlier agent has verified is not trusted")
	}
}

func TestAFloodOfClaimsIsBounded(t *testing.T) {
	r := newRecords(&readings{obj: lentTo("far")}, slog.New(slog.DiscardHandler))
	claims := map[claim]netip.Prefix{}
	for i := range 3 * mostClaims {
		a := nth("10.0.0.0", i, 64)
		claims[claim{addr: a, node: "far"}] = netip.PrefixFrom(a, 26)
	}
	r.want(time.Now(), claims, func(claim) bool { return false })
	if len(r.verdicts()) != mostClaims || len(r.take()) != mostClaims {
		t.Errorf("%d claims are remembered", len(r.verdicts()))
	}
}

// FuzzJudge is the import path: whatever peers announce, what becomes a route lies in a pool, and inside a block leads to its owner
// unless the record says otherwise.
func FuzzJudge(f *testing.F) {
	for _, p := range []string{"192.168.2.0/26", "192.168.2.9/32", "192.168.1.7/32", "0.0.0.0/0", "fd00:10::/122", "fd00:10::9/128", "10.66.0.0/26"} {
		for _, hop := range []string{"10.0.0.2", "10.9.0.9", "10.0.0.1", "10.66.0.6", "fd00::2", "0.0.0.0"} {
			f.Add(prefix(p).Addr().AsSlice(), uint8(prefix(p).Bits()), addr(hop).AsSlice(), addr("10.0.0.2").AsSlice(), uint16(3))
		}
	}
	w := cluster(func(w *kube.World) {
		w.Pools = append(w.Pools,
			api.IPPool{Meta: api.Meta{Name: "v6"}, Spec: api.IPPoolSpec{CIDR: "fd00:10::/64"}},
			api.IPPool{Meta: api.Meta{Name: "plain"}, Spec: api.IPPoolSpec{CIDR: "10.66.0.0/16"}})
		w.Nodes[0].Annotations[api.AnnotationIPv6Address] = "fd00::2/64"
		w.Affinities = append(w.Affinities, api.BlockAffinity{Meta: api.Meta{Name: "six"}, Spec: api.BlockAffinitySpec{Node: "node2", CIDR: "fd00:10::/122", State: api.AffinityConfirmed}})
	})
	f.Fuzz(func(t *testing.T, at []byte, bits uint8, hop, from []byte, flags uint16) {
		s, problems := BuildSnapshot(Self{Name: "node1", Addr: prefix("10.0.0.1/24"), Addr6: prefix("fd00::1/64"), Link: "eth0", Link6: "eth0"}, w)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		a, _ := netip.AddrFromSlice(at)
		p := bgp.Path{Prefix: netip.PrefixFrom(a, int(bits)).Masked()}
		p.NextHop, _ = netip.AddrFromSlice(hop)
		p.From, _ = netip.AddrFromSlice(from)
		if !p.Prefix.IsValid() {
			return
		}
		s.Self.Pods = []netip.Addr{addr("192.168.1.7")}
		if flags&1 != 0 {
			s.borrowed = map[claim]verdict{{addr: p.Prefix.Addr(), node: "far"}: {confirmed: flags&2 != 0, pending: flags&4 != 0, why: "no"}}
		}
		accepted, refused := s.Judge([]bgp.Path{p})
		if len(refused) == 0 && !slices.Contains(accepted, p) && !s.owns(p.Prefix) {
			t.Fatalf("%+v is neither accepted nor refused", p)
		}
		for _, got := range accepted {
			checkAccepted(t, &s, got)
		}
		for _, r := range s.Routes(accepted) {
			if _, ok := s.poolOf(r.Dst); !ok || r.Dst != r.Dst.Masked() {
				t.Fatalf("route %s", r)
			}
		}
	})
}

func checkAccepted(t *testing.T, s *Snapshot, p bgp.Path) {
	t.Helper()
	pool, ok := s.poolOf(p.Prefix)
	if !ok || p.Prefix.Bits() < pool.BlockBits || s.owns(p.Prefix) || p.Prefix.IsSingleIP() && s.hasPod(p.Prefix.Addr()) {
		t.Fatalf("accepted %+v", p)
	}
	block, owner, owned := s.blockOf(p.Prefix)
	m, isNode := s.memberAt(p.NextHop)
	switch {
	case !isNode && pool.encapsulates():
		t.Fatalf("accepted %+v by way of a stranger", p)
	case !isNode || !owned || owner.Node == m.Name:
		return
	case !p.Prefix.IsSingleIP() || !s.borrowed[claim{addr: p.Prefix.Addr(), node: m.Name}].confirmed:
		t.Fatalf("accepted %+v: block %s is %s's", p, block, owner)
	}
}
