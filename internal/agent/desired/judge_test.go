package desired

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/testkit/desiredtest"
)

// FuzzJudge is the import path: whatever peers announce, a resulting route lies in a pool, and inside a block leads to
// its owner unless the record confirms another node.
func FuzzJudge(f *testing.F) {
	for _, p := range []string{"192.168.2.0/26", "192.168.2.9/32", "192.168.1.7/32", "0.0.0.0/0", "fd00:10::/122",
		"fd00:10::9/128", "10.66.0.0/26"} {
		for _, hop := range []string{"10.0.0.2", "10.9.0.9", "10.0.0.1", "10.66.0.6", "fd00::2", "0.0.0.0"} {
			f.Add(prefix(p).Addr().AsSlice(), uint8(prefix(p).Bits()), addr(hop).AsSlice(), addr("10.0.0.2").AsSlice(), uint16(3))
		}
	}
	w := desiredtest.World(func(w *state.Cluster) {
		w.Pools = append(w.Pools,
			api.IPPool{Meta: api.Meta{Name: "v6"}, Spec: api.IPPoolSpec{CIDR: "fd00:10::/64"}},
			api.IPPool{Meta: api.Meta{Name: "plain"}, Spec: api.IPPoolSpec{CIDR: "10.66.0.0/16"}})
		w.Nodes[0].Annotations[api.AnnotationIPv6Address] = "fd00::2/64"
		w.Affinities = append(w.Affinities, api.BlockAffinity{Meta: api.Meta{Name: "six"},
			Spec: api.BlockAffinitySpec{Node: "node2", CIDR: "fd00:10::/122", State: api.AffinityConfirmed}})
	})
	f.Fuzz(func(t *testing.T, at []byte, bits uint8, hop, from []byte, flags uint16) {
		s, problems := Build(Self{Name: "node1", Addr: prefix("10.0.0.1/24"), Addr6: prefix("fd00::1/64"), Link: "eth0", Link6: "eth0"}, w)
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
		var g Grounds
		if flags&1 != 0 {
			g.Borrowed = map[Claim]Verdict{{Addr: p.Prefix.Addr(), Node: "far"}: {Confirmed: flags&2 != 0, Pending: flags&4 != 0, Why: "no"}}
		}
		accepted, refused := s.By(g).decide([]bgp.Path{p})
		if len(refused) == 0 && !slices.Contains(accepted, p) && !s.owns(p.Prefix) {
			t.Fatalf("%+v is neither accepted nor refused", p)
		}
		if judged, full := s.Judging(g).Objection(p), s.By(g).Objection(p); judged != full {
			t.Fatalf("objection %+v without what has no part in it, want %+v", judged, full)
		}
		for _, got := range accepted {
			checkAccepted(t, s.By(g), got)
		}
		for _, r := range s.By(g).Routes(accepted) {
			if _, ok := s.poolOf(r.Dst); !ok || r.Dst != r.Dst.Masked() {
				t.Fatalf("route %s", r)
			}
		}
	})
}

func checkAccepted(t *testing.T, s *Judge, p bgp.Path) {
	t.Helper()
	pool, ok := s.poolOf(p.Prefix)
	if !ok || p.Prefix.Bits() < pool.BlockBits || s.owns(p.Prefix) || p.Prefix.IsSingleIP() && s.hasPod(p.Prefix.Addr()) {
		t.Fatalf("accepted %+v", p)
	}
	block, owner, owned := s.blockOf(p.Prefix)
	m, isNode := s.MemberAt(p.NextHop)
	switch {
	case !isNode && pool.encapsulates():
		t.Fatalf("accepted %+v by way of a stranger", p)
	case !isNode || !owned || owner.Node == m.Name:
		return
	case !p.Prefix.IsSingleIP() || !s.Borrowed[Claim{Addr: p.Prefix.Addr(), Node: m.Name}].Confirmed:
		t.Fatalf("accepted %+v: block %s is %s's", p, block, owner)
	}
}
