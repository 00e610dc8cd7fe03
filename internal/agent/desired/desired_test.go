package desired

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/nat"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/testkit/desiredtest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

func snapshot(t *testing.T, change func(*state.Cluster)) *Snapshot {
	t.Helper()
	self := Self{Name: "node1", Addr: prefix("10.0.0.1/24"), Link: "eth0", LinkMTU: 1500}
	s, problems := Build(self, desiredtest.World(change))
	if len(problems) > 0 {
		t.Fatalf("problems: %v", problems)
	}
	s.Self.TunnelAddr = addr("192.168.1.1")
	return &s
}

func pool(change func(*api.IPPoolSpec)) func(*state.Cluster) {
	return func(w *state.Cluster) { change(&w.Pools[0].Spec) }
}

func TestOnlyConfirmedOwnBlocksAreOriginated(t *testing.T) {
	s := snapshot(t, nil)
	want := []bgp.Path{{Prefix: prefix("192.168.1.0/26")}, {Prefix: prefix("192.168.1.64/26")}}
	difftest.Want(t, "originated", want, s.Originated(), cmpopts.EquateEmpty())
	s = snapshot(t, pool(func(p *api.IPPoolSpec) { p.DisableBGPExport = true }))
	if got := s.Originated(); len(got) > 0 {
		t.Errorf("a pool with disableBGPExport is announced: %v", got)
	}
	s = snapshot(t, func(w *state.Cluster) { w.Pools = nil })
	if got := s.Originated(); len(got) > 0 {
		t.Errorf("blocks outside of every pool are announced: %v", got)
	}
}

func TestMeshHasEveryNodeThatAnnouncedItsAddress(t *testing.T) {
	peers := sessions(snapshot(t, nil))
	if len(peers) != 2 || peers[0].Addr != addr("10.0.0.2") || peers[1].Addr != addr("10.9.0.9") {
		t.Fatalf("peers: %+v", peers)
	}
	for _, p := range peers {
		if p.ASN != 64512 || p.Port != 179 || p.From != addr("10.0.0.1") {
			t.Errorf("peer %+v: want AS 64512, port 179, from 10.0.0.1", p)
		}
	}
	off := false
	s := snapshot(t, func(w *state.Cluster) { w.BGP.NodeToNodeMeshEnabled = &off })
	if got := sessions(s); len(got) > 0 {
		t.Errorf("the mesh is off, peers: %+v", got)
	}
}

func TestASNumbers(t *testing.T) {
	asn := uint32(65001)
	s := snapshot(t, func(w *state.Cluster) {
		w.BGP.ASNumber, w.BGP.ListenPort = &asn, 1790
		w.Nodes[0].Annotations[api.AnnotationASNumber] = "65002"
	})
	peers := sessions(s)
	if peers[0].ASN != 65002 || peers[1].ASN != 65001 || peers[0].Port != 1790 {
		t.Errorf("peers %+v: want the node's own AS 65002, else the cluster's 65001, and port 1790", peers)
	}
}

func TestRoutes(t *testing.T) {
	own := []routes.Route{
		{Dst: prefix("192.168.1.0/26"), Type: netlinkx.Unreachable},
		{Dst: prefix("192.168.1.64/26"), Type: netlinkx.Unreachable},
	}
	near := bgp.Path{Prefix: prefix("192.168.2.0/26"), NextHop: addr("10.0.0.2")}
	far := bgp.Path{Prefix: prefix("192.168.3.0/26"), NextHop: addr("10.9.0.9")}
	tunnel := func(p bgp.Path) routes.Route {
		return routes.To(p.Prefix, routes.Hop{Via: p.NextHop, Dev: "tunl0", Onlink: true})
	}
	direct := routes.To(near.Prefix, routes.Hop{Via: near.NextHop, Dev: "eth0"})
	for name, tc := range map[string]struct {
		change func(*state.Cluster)
		want   []routes.Route
	}{
		"always encapsulated": {nil, []routes.Route{tunnel(near), tunnel(far)}},
		"encapsulated between subnets": {pool(func(p *api.IPPoolSpec) { p.IPIPMode = api.EncapCrossSubnet }),
			[]routes.Route{direct, tunnel(far)}},
		"never encapsulated":               {pool(func(p *api.IPPoolSpec) { p.IPIPMode = api.EncapNever }), []routes.Route{direct}},
		"mode not set means never":         {pool(func(p *api.IPPoolSpec) { p.IPIPMode = "" }), []routes.Route{direct}},
		"a disabled pool keeps its routes": {pool(func(p *api.IPPoolSpec) { p.Disabled = true }), []routes.Route{tunnel(near), tunnel(far)}},
	} {
		t.Run(name, func(t *testing.T) {
			got := snapshot(t, tc.change).By(Grounds{}).Routes([]bgp.Path{near, far})
			difftest.Want(t, "routes", append(own[:2:2], tc.want...), got, cmpopts.EquateEmpty())
		})
	}
}

// An operator disables a pool to drain it, or restricts it to other nodes: its pods must stay reachable.
func TestTunnelStaysWhileAPoolEncapsulates(t *testing.T) {
	for name, change := range map[string]func(*api.IPPoolSpec){
		"disabled":        func(p *api.IPPoolSpec) { p.Disabled = true },
		"for other nodes": func(p *api.IPPoolSpec) { p.NodeSelector = "has(gpu)" },
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, pool(change))
			s.Self.TunnelAddr = netip.Addr{} // released: nothing may be assigned from the pool
			if got, ok := s.Tunnel(); !ok || got.MTU != 1480 || got.Addr.IsValid() {
				t.Errorf("tunnel %+v, %v; want one without an address", got, ok)
			}
			got := s.By(Grounds{}).Routes([]bgp.Path{{Prefix: prefix("192.168.2.0/26"), NextHop: addr("10.0.0.2")}})
			if len(got) != 3 || got[2].Hops[0].Dev != ipip.Device {
				t.Errorf("routes: %v", got)
			}
		})
	}
}

func TestTunnelAndMTU(t *testing.T) {
	s := snapshot(t, nil)
	got, ok := s.Tunnel()
	if want := (ipip.Tunnel{MTU: 1480, Addr: addr("192.168.1.1")}); !ok || got != want {
		t.Errorf("tunnel %+v, %v; want %+v", got, ok, want)
	}
	if s.PodMTU() != 1480 {
		t.Errorf("pod MTU %d, want 1480", s.PodMTU())
	}
	s.Self.TunnelMTU = 1400
	if got, _ := s.Tunnel(); got.MTU != 1400 || s.PodMTU() != 1400 {
		t.Errorf("configured MTU 1400, tunnel %d, pods %d", got.MTU, s.PodMTU())
	}
	plain := snapshot(t, pool(func(p *api.IPPoolSpec) { p.IPIPMode = api.EncapNever }))
	if _, ok := plain.Tunnel(); ok || plain.PodMTU() != 1500 {
		t.Errorf("no encapsulation: tunnel %v, pod MTU %d, want none and 1500", ok, plain.PodMTU())
	}
}

func TestNATCoversEveryPool(t *testing.T) {
	s := snapshot(t, func(w *state.Cluster) {
		w.Pools = append(w.Pools, api.IPPool{Meta: api.Meta{Name: "b"}, Spec: api.IPPoolSpec{CIDR: "10.5.0.0/16"}})
	})
	want := nat.Config{Pools: []nat.Pool{{CIDR: prefix("10.5.0.0/16")}, {CIDR: prefix("192.168.0.0/16"), NATOutgoing: true}}}
	difftest.Want(t, "NAT", want, s.NAT(), cmpopts.EquateEmpty())
}

func TestTunnelPools(t *testing.T) {
	for name, tc := range map[string]struct {
		change       func(*api.IPPoolSpec)
		assign, keep int
	}{
		"as usual":                     {func(*api.IPPoolSpec) {}, 1, 1},
		"between subnets":              {func(p *api.IPPoolSpec) { p.IPIPMode = api.EncapCrossSubnet }, 1, 1},
		"no encapsulation":             {func(p *api.IPPoolSpec) { p.IPIPMode = api.EncapNever }, 0, 0},
		"disabled":                     {func(p *api.IPPoolSpec) { p.Disabled = true }, 0, 1},
		"not for tunnels":              {func(p *api.IPPoolSpec) { p.AllowedUses = []api.AllowedUse{api.UseWorkload} }, 0, 1},
		"for other nodes":              {func(p *api.IPPoolSpec) { p.NodeSelector = "has(gpu)" }, 0, 1},
		"for namespaces, so pods only": {func(p *api.IPPoolSpec) { p.AssignmentMode = api.AssignManual }, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if assign, keep := snapshot(t, pool(tc.change)).TunnelRanges(IPIPTunnel); len(assign) != tc.assign || len(keep) != tc.keep {
				t.Errorf("assign from %v, keep in %v; want %d and %d ranges", assign, keep, tc.assign, tc.keep)
			}
		})
	}
}

func TestBrokenObjectsAreNamedAndLeftOut(t *testing.T) {
	w := desiredtest.World(func(w *state.Cluster) {
		w.Pools = append(w.Pools, api.IPPool{Meta: api.Meta{Name: "crooked"}, Spec: api.IPPoolSpec{CIDR: "10.5.0.1/16"}})
		w.Nodes[0].Annotations[api.AnnotationIPv4Address] = "10.0.0.2"
		w.Nodes[2].Annotations[api.AnnotationASNumber] = "minus"
		w.Affinities = append(w.Affinities, api.BlockAffinity{
			Meta: api.Meta{Name: "broken"}, Spec: api.BlockAffinitySpec{Node: "node1", CIDR: "x", State: "confirmed"},
		})
	})
	s, problems := Build(Self{Name: "node1", Addr: prefix("10.0.0.1/24")}, w)
	text := strings.Join(texts(problems), "\n")
	difftest.Contains(t, text, "IPPool crooked", "Node node2", `"10.0.0.2"`, "Node far", `"minus"`, "BlockAffinity broken")
	if len(s.Pools) != 1 || len(s.Others) != 1 || len(s.Blocks) != 2 {
		t.Errorf("the rest is not as before: %d pools, %d nodes, %d blocks", len(s.Pools), len(s.Others), len(s.Blocks))
	}
}

func TestPodsWithBorrowedAddressesAreOriginated(t *testing.T) {
	s := snapshot(t, nil)
	s.Self.Pods = []netip.Addr{addr("10.3.3.3"), addr("192.168.1.7"), addr("192.168.2.9")}
	want := []bgp.Path{{Prefix: prefix("192.168.1.0/26")}, {Prefix: prefix("192.168.1.64/26")}, {Prefix: prefix("192.168.2.9/32")}}
	difftest.Want(t, "originated", want, s.Originated(), cmpopts.EquateEmpty())
}

// judged shows a judgement as lines: "+ prefix via hop" for a route, "- prefix via hop" for a refusal.
func judged(s *Snapshot, g Grounds, learned ...bgp.Path) []string {
	accepted, refused := s.By(g).decide(learned)
	var lines []string
	for _, p := range accepted {
		lines = append(lines, "+ "+p.Prefix.String()+" via "+p.NextHop.String())
	}
	for _, r := range refused {
		lines = append(lines, "- "+r.Path.Prefix.String()+" via "+r.Path.NextHop.String())
	}
	return lines
}

func TestJudge(t *testing.T) {
	path := func(p, hop string) bgp.Path { return bgp.Path{Prefix: prefix(p), NextHop: addr(hop)} }
	// 192.168.2.0/26 belongs to node2 at 10.0.0.2; far is at 10.9.0.9.
	owned := "+ 192.168.2.0/26 via 10.0.0.2"
	never := pool(func(p *api.IPPoolSpec) { p.IPIPMode = api.EncapNever })
	for name, tc := range map[string]struct {
		change  func(*state.Cluster)
		learned []bgp.Path
		want    []string
	}{
		"BGP knows nothing: the owner's address": {nil, nil, []string{owned}},
		"BGP agrees":                             {nil, []bgp.Path{path("192.168.2.0/26", "10.0.0.2")}, []string{owned}},
		"another node announces the block": {nil, []bgp.Path{path("192.168.2.0/26", "10.9.0.9")},
			[]string{owned, "- 192.168.2.0/26 via 10.9.0.9"}},
		"a stranger announces the block": {nil, []bgp.Path{path("192.168.2.0/26", "10.66.0.6")},
			[]string{owned, "- 192.168.2.0/26 via 10.66.0.6"}},
		"a router on the way to the owner, no tunnel": {never, []bgp.Path{path("192.168.2.0/26", "10.0.0.254")},
			[]string{"+ 192.168.2.0/26 via 10.0.0.254"}},
		"a block whose affinity the API does not show yet": {nil, []bgp.Path{path("192.168.7.0/26", "10.9.0.9")},
			[]string{owned, "+ 192.168.7.0/26 via 10.9.0.9"}},
		"a part of another's block": {nil, []bgp.Path{path("192.168.2.32/27", "10.9.0.9")},
			[]string{owned, "- 192.168.2.32/27 via 10.9.0.9"}},
		"a part of its own block": {nil, []bgp.Path{path("192.168.2.32/27", "10.0.0.2")},
			[]string{owned, "+ 192.168.2.32/27 via 10.0.0.2"}},
		"a part of our block": {nil, []bgp.Path{path("192.168.1.32/27", "10.9.0.9")},
			[]string{owned, "- 192.168.1.32/27 via 10.9.0.9"}},
		"an address of its own block": {nil, []bgp.Path{path("192.168.2.9/32", "10.0.0.2")},
			[]string{owned, "+ 192.168.2.9/32 via 10.0.0.2"}},
		"a borrowed address": {nil, []bgp.Path{path("192.168.2.9/32", "10.9.0.9")},
			[]string{owned, "+ 192.168.2.9/32 via 10.9.0.9"}},
		"an address borrowed from us": {nil, []bgp.Path{path("192.168.1.9/32", "10.9.0.9")},
			[]string{"+ 192.168.1.9/32 via 10.9.0.9", owned}},
		"an address of a block that nobody owns": {nil, []bgp.Path{path("192.168.7.9/32", "10.9.0.9")},
			[]string{owned, "+ 192.168.7.9/32 via 10.9.0.9"}},
		"an address that the record gives to another": {nil, []bgp.Path{path("192.168.2.10/32", "10.9.0.9")},
			[]string{owned, "- 192.168.2.10/32 via 10.9.0.9"}},
		"an address whose record was not read": {nil, []bgp.Path{path("192.168.2.11/32", "10.9.0.9")},
			[]string{owned, "- 192.168.2.11/32 via 10.9.0.9"}},
		"an address of a pod here": {nil, []bgp.Path{path("192.168.2.12/32", "10.9.0.9")},
			[]string{owned, "- 192.168.2.12/32 via 10.9.0.9"}},
		"a node that names a router": {never, []bgp.Path{
			{Prefix: prefix("192.168.2.0/26"), NextHop: addr("10.0.0.254"), From: addr("10.9.0.9")},
		}, []string{owned, "- 192.168.2.0/26 via 10.0.0.254"}},
		"a borrowed address, no session": {nil, nil, []string{owned, "+ 192.168.2.13/32 via 10.9.0.9"}},
		"our own block":                  {nil, []bgp.Path{path("192.168.1.0/26", "10.9.0.9")}, []string{owned}},
		"the whole pool": {nil, []bgp.Path{path("192.168.0.0/16", "10.9.0.9")},
			[]string{owned, "- 192.168.0.0/16 via 10.9.0.9"}},
		"outside of every pool": {nil, []bgp.Path{path("10.96.0.0/26", "10.9.0.9")},
			[]string{owned, "- 10.96.0.0/26 via 10.9.0.9"}},
		"the owner has not announced its address": {
			func(w *state.Cluster) { delete(w.Nodes[0].Annotations, api.AnnotationIPv4Address) }, nil, nil,
		},
		"the owner's Node is gone": {func(w *state.Cluster) { w.Nodes = w.Nodes[1:] }, nil, nil},
		"the claim is not confirmed": {
			func(w *state.Cluster) { w.Affinities[4].Spec.State = api.AffinityPending }, nil, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(t, tc.change)
			s.Self.Pods = []netip.Addr{addr("192.168.2.12")}
			confirmed := Verdict{Confirmed: true}
			g := Grounds{Borrowed: map[Claim]Verdict{
				{Addr: addr("192.168.2.9"), Node: "far"}: confirmed, {Addr: addr("192.168.1.9"), Node: "far"}: confirmed,
				{Addr: addr("192.168.7.9"), Node: "far"}:  confirmed,
				{Addr: addr("192.168.2.13"), Node: "far"}: confirmed, {Addr: addr("192.168.2.10"), Node: "far"}: {Why: "no"},
			}}
			if strings.Contains(name, "no session") {
				g.Held = []Claim{{Addr: addr("192.168.2.13"), Node: "far"}}
			}
			difftest.Want(t, "judgement", tc.want, judged(s, g, tc.learned...), cmpopts.EquateEmpty())
		})
	}
}

// A claim to another node's block, or to a part of one, has no effect; the first claim counts. A claim of another size
// than a pool's blocks counts if the IPAMBlock exists, and from then on.
func TestTheFirstClaimCounts(t *testing.T) {
	const before, then, later = "2026-11-22T05:00:00Z", "2026-11-22T05:00:01Z", "2026-11-22T05:00:02Z"
	for name, c := range map[string]struct {
		claims []api.BlockAffinity
		want   string // owners of blocks of 192.168.2.0/24 and around, in order
		blocks map[netip.Prefix]BlockRecord
	}{
		"the same block": {[]api.BlockAffinity{claim("zz", "192.168.2.64/26", later), claim("node2", "192.168.2.64/26", then)},
			"192.168.2.64/26 node2", nil},
		"a part of it": {[]api.BlockAffinity{claim("far", "192.168.2.64/27", later), claim("node2", "192.168.2.64/26", then)},
			"192.168.2.64/26 node2", nil},
		"a part of this node's": {[]api.BlockAffinity{claim("far", "192.168.2.64/27", later), claim("node1", "192.168.2.64/26", then)},
			"192.168.2.64/26 node1", nil},
		"this node came later": {[]api.BlockAffinity{claim("node1", "192.168.2.64/26", later), claim("node2", "192.168.2.64/26", then)},
			"192.168.2.64/26 node2", nil},
		"its own part": {[]api.BlockAffinity{claim("node2", "192.168.2.64/27", later), claim("node2", "192.168.2.64/26", then)},
			"192.168.2.64/26 node2, 192.168.2.64/27 node2", nil},
		"its own part, before": {[]api.BlockAffinity{claim("node2", "192.168.2.64/27", before), claim("node2", "192.168.2.64/26", then)},
			"192.168.2.64/26 node2, 192.168.2.64/27 node2", nil},
		"at one time": {[]api.BlockAffinity{claim("zz", "192.168.2.64/26", then), claim("node2", "192.168.2.64/26", then)},
			"192.168.2.64/26 node2", nil},
		"a claim without the block, before": {
			[]api.BlockAffinity{claim("far", "192.168.2.64/26", before), claim("node2", "192.168.2.64/26", then)}, "192.168.2.64/26 node2",
			map[netip.Prefix]BlockRecord{prefix("192.168.2.64/26"): {"node2", then}},
		},
		"a claim without the block, of several": {
			[]api.BlockAffinity{claim("far", "192.168.2.64/26", before), claim("node2", "192.168.2.64/26", then),
				claim("zz", "192.168.2.64/26", later)}, "192.168.2.64/26 node2",
			map[netip.Prefix]BlockRecord{prefix("192.168.2.64/26"): {"node2", then}},
		},
		"a claim without this node's block, before": {
			[]api.BlockAffinity{claim("far", "192.168.2.64/26", before), claim("node1", "192.168.2.64/26", then)}, "192.168.2.64/26 node1",
			map[netip.Prefix]BlockRecord{prefix("192.168.2.64/26"): {"node1", then}},
		},
		"this node's claim without the block, before": {
			[]api.BlockAffinity{claim("node1", "192.168.2.64/26", before), claim("node2", "192.168.2.64/26", then)}, "192.168.2.64/26 node2",
			map[netip.Prefix]BlockRecord{prefix("192.168.2.64/26"): {"node2", then}},
		},
		"at one time, with the lesser name": {
			[]api.BlockAffinity{claim("far", "192.168.2.64/26", then), claim("node2", "192.168.2.64/26", then)}, "192.168.2.64/26 node2",
			map[netip.Prefix]BlockRecord{prefix("192.168.2.64/26"): {"node2", then}},
		},
		"all of the pool": {[]api.BlockAffinity{claim("far", "192.168.0.0/16", before), claim("node2", "192.168.2.64/26", then)},
			"192.168.2.64/26 node2", nil},
		"a part of what nobody has yet": {
			[]api.BlockAffinity{claim("far", "192.168.2.70/32", before), claim("far", "192.168.2.96/27", before),
				claim("node2", "192.168.2.64/26", then)},
			"192.168.2.64/26 node2", nil,
		},
		"a part of what nobody has": {[]api.BlockAffinity{claim("far", "192.168.2.96/27", before)}, "", nil},
		"parts from when blocks were smaller": {
			[]api.BlockAffinity{claim("far", "192.168.2.96/27", before), claim("zz", "192.168.2.64/26", then)},
			"192.168.2.64/26 zz, 192.168.2.96/27 far",
			map[netip.Prefix]BlockRecord{prefix("192.168.2.96/27"): {"far", before}},
		},
		"a part whose block was made when the whole was another's": {
			[]api.BlockAffinity{claim("far", "192.168.2.96/27", before), claim("node2", "192.168.2.64/26", then)}, "192.168.2.64/26 node2",
			map[netip.Prefix]BlockRecord{prefix("192.168.2.96/27"): {"far", later}},
		},
		"a part whose block is another's": {
			[]api.BlockAffinity{claim("far", "192.168.2.96/27", before)}, "",
			map[netip.Prefix]BlockRecord{prefix("192.168.2.96/27"): {"zz", before}},
		},
		"from when blocks were larger": {
			[]api.BlockAffinity{claim("far", "192.168.2.0/24", before)}, "192.168.2.0/24 far",
			map[netip.Prefix]BlockRecord{prefix("192.168.2.0/24"): {"far", before}},
		},
		"outside of the pools": {[]api.BlockAffinity{claim("far", "0.0.0.0/0", before), claim("far", "10.96.0.0/12", before)}, "", nil},
	} {
		w := desiredtest.World(nil)
		w.Affinities = c.claims
		s, problems := build(Self{Name: "node1", Addr: prefix("10.0.0.1/24"), Link: "eth0"}, w, Evidence{Blocks: c.blocks})
		var got []string
		for block, owner := range s.Owners {
			got = append(got, block.String()+" "+owner.Node)
		}
		for _, block := range s.Blocks {
			got = append(got, block.String()+" node1")
		}
		slices.Sort(got)
		if text := strings.Join(got, ", "); text != c.want || len(problems) != len(c.claims)-len(got) && name != "outside of the pools" {
			t.Errorf("%s: %s; %v", name, text, problems)
		}
	}
}

// Until the IPAMBlock of a block that two nodes claim has been read, the known owner stays, also for an agent that has
// just begun: the kernel's routes are its evidence.
func TestContestedClaimsChangeNothing(t *testing.T) {
	const before, then = "2026-11-22T05:00:00Z", "2026-11-22T05:00:01Z"
	block := prefix("192.168.2.64/26")
	self := Self{Name: "node1", Addr: prefix("10.0.0.1/24"), Link: "eth0"}
	w := func(claims ...api.BlockAffinity) state.Cluster {
		w := desiredtest.World(nil)
		w.Affinities = claims
		return w
	}
	of := func(s *Snapshot) string {
		if s.owns(block) {
			return "node1"
		}
		return s.Owners[block].Node
	}
	for _, of2 := range []string{"node1", "node2"} {
		both := w(claim("far", block.String(), before), claim(of2, block.String(), then))
		hop := addr("10.0.0.2")
		if of2 == "node1" {
			hop = netip.Addr{}
		}
		for name, c := range map[string]struct {
			before state.Cluster
			left   map[netip.Prefix]netip.Addr
			want   string
		}{
			"it was known":               {w(claim(of2, block.String(), then)), nil, of2},
			"the other was known":        {w(claim("far", block.String(), before)), nil, "far"},
			"the kernel has a route":     {state.Cluster{}, map[netip.Prefix]netip.Addr{block: hop}, of2},
			"the kernel has another":     {state.Cluster{}, map[netip.Prefix]netip.Addr{block: addr("10.9.0.9")}, "far"},
			"nothing is known of before": {state.Cluster{}, nil, "far"},
		} {
			var v View
			if len(c.before.Nodes) > 0 {
				v.Update(time.Unix(1, 0), self, c.before)
			}
			v.Evidence.Inherited = c.left
			for i := range 2 {
				v.Update(time.Unix(int64(2+i), 0), self, both)
				if got := of(&v.Base); got != c.want || len(v.Base.Unsure.Blocks) != 2 {
					t.Errorf("%s, %s: the block is %s's; to be read: %v", of2, name, got, v.Base.Unsure.Blocks)
				}
			}
			v.Evidence = Evidence{Blocks: map[netip.Prefix]BlockRecord{block: {of2, then}}}
			v.Update(time.Unix(4, 0), self, both)
			if got := of(&v.Base); got != of2 {
				t.Errorf("%s, %s: with its IPAMBlock the block is %s's", of2, name, got)
			}
		}
	}
}
