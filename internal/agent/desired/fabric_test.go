package desired

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// racked returns a node behind two top-of-rack routers, 10.0.0.254 on eth0 and 10.1.0.254 on eth1, with one more,
// 10.255.0.1, behind a gateway, and a host's route to 10.77.0.0/16. Its pool does not encapsulate.
func racked(t *testing.T, change func(*state.Cluster)) *Snapshot {
	t.Helper()
	s := snapshot(t, func(w *state.Cluster) {
		w.Pools[0].Spec.IPIPMode = api.EncapNever
		if change != nil {
			change(w)
		}
	})
	for a, link := range map[string]string{
		"10.0.0.1/24": "eth0", "10.1.0.1/24": "eth1", "10.1.0.33/27": "eth2", "127.0.0.1/8": "lo", "10.200.0.1/16": "tunl0",
		"10.88.0.1/32": "dummy0", "2001:db8:1::1/64": "eth1",
	} {
		s.Self.Found = append(s.Self.Found, nodeaddr.Candidate{Addr: prefix(a), Link: link})
	}
	s.Self.TunnelAddr = netip.Addr{}
	s.ServiceRanges = []netip.Prefix{prefix("10.96.0.0/12")}
	s.Peering.Sources = map[netip.Addr]peering.Source{addr("10.0.0.2"): {Node: "node2"}}
	for _, tor := range []string{"10.0.0.254", "10.1.0.254", "10.255.0.1", "2001:db8:1::fe"} {
		s.Peering.Sources[addr(tor)] = peering.Source{Peer: "tor"}
	}
	s.Peering.Static = []peering.Static{{Peer: addr("10.255.0.1"), Via: addr("10.0.0.253")}, {Peer: addr("10.255.0.2"), Via: addr("10.7.7.7")}}
	return s
}

// rackGrounds returns grounds with a host's route and the learned paths.
func rackGrounds(s *Snapshot, learned []bgp.Path) Grounds {
	var g Grounds
	g.HostRoutes.add(prefix("10.77.0.0/16"), routes.Hop{Via: addr("10.0.0.252"), Dev: "eth0"})
	g, _ = s.By(g).Resolve(learned)
	return g
}

// learn reads "PREFIX via HOP from PEER".
func learn(texts ...string) []bgp.Path {
	var paths []bgp.Path
	for _, text := range texts {
		words := strings.Fields(text)
		p := bgp.Path{Prefix: prefix(words[0]), NextHop: addr(words[2])}
		if p.From = p.NextHop; len(words) > 4 {
			p.From = addr(words[4])
		}
		paths = append(paths, p)
	}
	return paths
}

// outcome returns the result for paths, without the routes of blocks of the cluster and of peers: a route, or the
// reason against it.
func outcome(s *Snapshot, borrowed map[Claim]Verdict, paths []bgp.Path) []string {
	g := rackGrounds(s, paths)
	g.Borrowed = borrowed
	accepted, refused := s.By(g).decide(paths)
	ways, left := s.By(g).DesiredRoutes(accepted)
	var lines []string
	for _, w := range ways {
		if len(w.Paths) > 0 && w.Paths[0].From.IsValid() {
			lines = append(lines, w.Route.String())
		}
	}
	for _, r := range slices.Concat(refused, left) {
		lines = append(lines, "no: "+r.Why)
	}
	return lines
}

func TestRouters(t *testing.T) {
	for name, tc := range map[string]struct {
		learned []string
		want    []string // each is the beginning of a line of the outcome
	}{
		"a block by one router": {[]string{"192.168.5.0/26 via 10.0.0.254"}, []string{"192.168.5.0/26 via 10.0.0.254 dev eth0"}},
		"a block by two": {
			[]string{"192.168.5.0/26 via 10.0.0.254", "192.168.5.0/26 via 10.1.0.254"},
			[]string{"192.168.5.0/26 nexthop via 10.0.0.254 dev eth0 weight 1 nexthop via 10.1.0.254 dev eth1 weight 1"},
		},
		"one block by two, one by one": {
			[]string{"192.168.5.0/26 via 10.0.0.254", "192.168.5.0/26 via 10.1.0.254", "192.168.6.0/26 via 10.1.0.254"},
			[]string{"192.168.5.0/26 nexthop", "192.168.6.0/26 via 10.1.0.254 dev eth1"},
		},
		"another's block": {[]string{"192.168.2.0/26 via 10.1.0.254"},
			[]string{"192.168.2.0/26 via 10.1.0.254 dev eth1"}},
		"all blocks of a rack as one": {[]string{"192.168.64.0/20 via 10.0.0.254"},
			[]string{"192.168.64.0/20 via 10.0.0.254 dev eth0"}},
		"the whole pool": {[]string{"192.168.0.0/16 via 10.0.0.254"},
			[]string{"192.168.0.0/16 via 10.0.0.254 dev eth0"}},
		"a part of our block": {[]string{"192.168.1.32/27 via 10.0.0.254"},
			[]string{"no: it lies in this node's own block 192.168.1.0/26"}},
		"an address borrowed from us": {[]string{"192.168.1.9/32 via 10.0.0.254"},
			[]string{"192.168.1.9/32 via 10.0.0.254 dev eth0"}},
		"an address stolen from us": {[]string{"192.168.1.10/32 via 10.0.0.254"},
			[]string{"no: its block's record is being read"}},
		"an address of a pod here": {[]string{"192.168.1.12/32 via 10.0.0.254"}, []string{"no: a pod on this node"}},
		"that of no read block":    {[]string{"192.168.1.13/32 via 10.0.0.254"}, []string{"no: a pod on this node"}},
		"that by a node":           {[]string{"192.168.1.13/32 via 10.0.0.2"}, []string{"no: a pod on this node"}},
		"a next hop behind a gateway": {[]string{"192.168.5.0/26 via 10.255.0.1"},
			[]string{"192.168.5.0/26 via 10.0.0.253 dev eth0"}},
		"a gateway that is nowhere": {[]string{"192.168.5.0/26 via 10.255.0.2 from 10.0.0.254"},
			[]string{"no: its next hop is in no subnet"}},
		"a router of a mesh node": {[]string{"192.168.5.0/26 via 10.0.0.254 from 10.0.0.2"},
			[]string{"no: the next hop is no node"}},
		"a next hop in the subnet of this node's end of a link": {[]string{"192.168.5.0/26 via 10.1.0.40 from 10.1.0.254"},
			[]string{"192.168.5.0/26 via 10.1.0.40 dev eth2"}},

		"outside": {[]string{"172.20.0.0/16 via 10.0.0.254"},
			[]string{"172.20.0.0/16 via 10.0.0.254 dev eth0 metric 1024"}},
		"outside by two": {[]string{"172.20.0.0/16 via 10.1.0.254", "172.20.0.0/16 via 10.0.0.254"},
			[]string{"172.20.0.0/16 metric 1024 nexthop via 10.1.0.254 dev eth1 weight 1 nexthop via 10.0.0.254 dev eth0"}},
		"a default route": {[]string{"0.0.0.0/0 via 10.0.0.254"}, []string{"0.0.0.0/0 via 10.0.0.254 dev eth0 metric 1024"}},
		"outside, IPv6": {[]string{"2001:db8:9::/48 via 2001:db8:1::fe"},
			[]string{"2001:db8:9::/48 via 2001:db8:1::fe dev eth1 metric 1024"}},
		"outside from a mesh node": {[]string{"172.20.0.0/16 via 10.0.0.254 from 10.0.0.2"}, []string{"no: it lies in no IPPool"}},
		"services": {[]string{"10.96.0.0/12 via 10.0.0.254"},
			[]string{"no: it lies in 10.96.0.0/12, the addresses of services"}},
		"a service":              {[]string{"10.97.0.7/32 via 10.0.0.2"}, []string{"no: it lies in 10.96.0.0/12"}},
		"more than services":     {[]string{"10.0.0.0/8 via 10.0.0.254"}, []string{"10.0.0.0/8 via 10.0.0.254 dev eth0 metric 1024"}},
		"our address":            {[]string{"10.0.0.1/32 via 10.0.0.254"}, []string{"no: it is this node's own address"}},
		"our loopback's address": {[]string{"10.88.0.1/32 via 10.0.0.254"}, []string{"no: it is this node's own address"}},
		"our subnet": {[]string{"10.1.0.0/24 via 10.0.0.254"},
			[]string{"no: this node is in the subnet 10.1.0.0/24 itself, by eth1"}},
		"a part of our subnet": {[]string{"10.1.0.64/26 via 10.0.0.254"}, []string{"no: this node is in the subnet 10.1.0.0/24"}},
		"a martian":            {[]string{"127.0.0.0/16 via 10.0.0.254"}, []string{"no: no router has a way"}},
		"multicast":            {[]string{"224.0.0.0/4 via 10.0.0.254"}, []string{"no: no router has a way"}},
		"a next hop that is us": {[]string{"172.20.0.0/16 via 10.1.0.1 from 10.0.0.254"},
			[]string{"no: its next hop is this node itself"}},
		"a next hop that is nowhere": {[]string{"172.20.0.0/16 via 203.0.113.9 from 10.0.0.254"},
			[]string{"no: its next hop is in no subnet"}},
		"a next hop in a tunnel": {[]string{"172.20.0.0/16 via 10.200.0.9 from 10.0.0.254"},
			[]string{"no: its next hop is in no subnet"}},
		"a next hop by the host's route": {[]string{"172.20.0.0/16 via 10.77.0.9 from 10.0.0.254"},
			[]string{"172.20.0.0/16 via 10.0.0.252 dev eth0 metric 1024"}},
		"a next hop by another path": {
			[]string{"172.16.9.0/24 via 10.0.0.254", "172.16.9.0/24 via 10.1.0.254", "172.20.0.0/16 via 172.16.9.1 from 10.0.0.254"},
			[]string{
				"172.16.9.0/24 metric 1024 nexthop via 10.0.0.254 dev eth0 weight 1 nexthop via 10.1.0.254 dev eth1",
				"172.20.0.0/16 metric 1024 nexthop via 10.0.0.254 dev eth0 weight 1 nexthop via 10.1.0.254 dev eth1",
			},
		},
		"a path is more specific than the host's route": {
			[]string{"10.77.3.0/24 via 10.1.0.254", "172.20.0.0/16 via 10.77.3.1 from 10.0.0.254"},
			[]string{"10.77.3.0/24 via 10.1.0.254", "172.20.0.0/16 via 10.1.0.254 dev eth1"},
		},
		"next hops in a circle": {
			[]string{"172.16.0.0/16 via 172.20.0.1 from 10.0.0.254", "172.20.0.0/16 via 172.16.0.1 from 10.0.0.254"},
			[]string{"no: its next hop", "no: its next hop"},
		},
		"a next hop in its own path": {[]string{"172.16.0.0/16 via 172.16.0.1 from 10.0.0.254"}, []string{"no: its next hop"}},
		"a next hop by a default route alone": {
			[]string{"0.0.0.0/0 via 10.0.0.254", "172.20.0.0/16 via 172.16.0.1 from 10.0.0.254"},
			[]string{"0.0.0.0/0 via 10.0.0.254", "no: its next hop"},
		},
		"a node in another subnet": {[]string{"192.168.7.0/26 via 10.9.0.9 from 10.0.0.254"}, []string{"no: the next hop is in another subnet"}},
		"a node in a subnet that a router announces": {
			[]string{"10.9.0.0/24 via 10.0.0.254", "192.168.7.0/26 via 10.9.0.9 from 10.0.0.254"},
			[]string{"10.9.0.0/24 via 10.0.0.254 dev eth0 metric 1024", "192.168.7.0/26 via 10.0.0.254 dev eth0"},
		},
		"a peer that the operator has given a gateway": {[]string{"10.255.0.1/32 via 10.1.0.254"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := racked(t, nil)
			s.Self.Pods = []netip.Addr{addr("192.168.1.12"), addr("192.168.1.13")}
			borrowed := map[Claim]Verdict{
				{addr("192.168.1.9"), "node1", true}: {Confirmed: true}, {addr("192.168.1.12"), "node1", true}: {Confirmed: true},
			}
			got := outcome(s, borrowed, learn(tc.learned...))
			matches := len(got) == len(tc.want)
			for i := range got {
				matches = matches && strings.HasPrefix(got[i], tc.want[i])
			}
			if !matches {
				t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

// TestStatics: peers with a gateway have routes of their own, and impossible ones are named.
func TestStatics(t *testing.T) {
	s := racked(t, nil)
	static, problems := s.StaticRoutes()
	want := []routes.Route{routes.To(prefix("10.255.0.1/32"), routes.Hop{Via: addr("10.0.0.253"), Dev: "eth0"})}
	difftest.Want(t, "", want, static, cmpopts.EquateEmpty())
	if len(problems) != 1 || !errtest.Names(problems[0], "10.255.0.2 reachableBy 10.7.7.7") {
		t.Errorf("problems: %v", problems)
	}
	if got := s.By(rackGrounds(s, nil)).Routes(nil); !slices.ContainsFunc(got, want[0].Equal) {
		t.Errorf("not among all routes: %v", got)
	}
}

func TestNormalRoutePriority(t *testing.T) {
	set := func(v4, v6 int) func(*state.Cluster) {
		return func(w *state.Cluster) { w.BGP.IPv4NormalRoutePriority, w.BGP.IPv6NormalRoutePriority = &v4, &v6 }
	}
	for _, tc := range []struct {
		change func(*state.Cluster)
		want   string
	}{{set(90, 91), "90 91 0"}, {set(0, -1), "1024 1024 0"}, {nil, "1024 1024 0"}} {
		s := racked(t, tc.change)
		got := fmt.Sprint(s.metric(prefix("172.20.0.0/16"), nil), s.metric(prefix("2001:db8:9::/48"), nil),
			s.metric(prefix("192.168.5.0/26"), &s.Pools[0]))
		if got != tc.want {
			t.Errorf("metrics outside, of IPv6, and in a pool: %s, want %s", got, tc.want)
		}
	}
}

// TestEncapsulatedPoolsAreNodesAlone: no router can be the end of a tunnel.
func TestEncapsulatedPoolsAreNodesAlone(t *testing.T) {
	s := racked(t, pool(func(p *api.IPPoolSpec) { p.IPIPMode = api.EncapCrossSubnet }))
	for _, path := range learn("192.168.5.0/26 via 10.0.0.254", "192.168.0.0/16 via 10.0.0.254") {
		if r := s.By(rackGrounds(s, nil)).Objection(path); r.Why == "" {
			t.Errorf("%v is accepted", path)
		}
	}
}

// TestWhatIsUsualIsNoComplaint: all nodes of Calico announce the ranges of services.
func TestWhatIsUsualIsNoComplaint(t *testing.T) {
	s := racked(t, nil)
	_, refused := s.By(rackGrounds(s, nil)).decide(learn("10.96.0.0/12 via 10.0.0.2", "172.20.0.0/16 via 10.0.0.2",
		"127.0.0.0/16 via 10.0.0.254"))
	if errs := Refusals(refused); len(refused) != 3 || len(errs) != 1 || !strings.Contains(errs[0].Error(), "127.0.0.0/16") {
		t.Errorf("%d refused, complaints %v", len(refused), errs)
	}
	if n := Objections(refused); n != 1 {
		t.Errorf("%d objections, want 1", n)
	}
}

func TestHostWays(t *testing.T) {
	links := []netlinkx.Link{{Index: 2, Name: "eth0"}, {Index: 3, Name: "cali123"}}
	route := func(dst, via string, dev int, metric uint32) netlinkx.Route {
		r := netlinkx.Route{Dst: prefix(dst), Dev: dev, Metric: metric, Type: netlinkx.Unicast}
		r.Via, _ = netip.ParseAddr(via)
		return r
	}
	ways := HostRoutesOf([]netlinkx.Route{
		route("10.77.0.0/16", "10.0.0.9", 2, 100), route("10.77.0.0/16", "10.0.0.8", 2, 50), route("10.77.0.0/16", "10.0.0.7", 2, 70),
		route("0.0.0.0/0", "10.0.0.1", 2, 0), route("10.5.0.0/16", "", 2, 0), route("10.6.0.0/16", "10.6.6.6", 3, 0),
		route("10.7.0.0/16", "10.0.0.1", 9, 0),
		{Dst: prefix("10.8.0.0/16"), Type: netlinkx.Unreachable}, route("10.77.5.0/24", "10.0.0.5", 2, 0),
	}, links)
	for a, want := range map[string]string{
		"10.77.1.1": "[{10.0.0.8 eth0 false 0}] 16", "10.77.5.1": "[{10.0.0.5 eth0 false 0}] 24", "10.5.0.1": "[] -1", "10.6.0.1": "[] -1",
		"10.7.0.1": "[] -1", "10.8.0.1": "[] -1", "8.8.8.8": "[] -1", "fd00::1": "[] -1",
	} {
		if got := fmt.Sprint(ways.find(addr(a))); got != want {
			t.Errorf("%s: %s, want %s", a, got, want)
		}
	}
}

// FuzzRouters: whatever a router that is a peer announces, a resulting route is not to this node's own, and its next
// hops are reachable.
func FuzzRouters(f *testing.F) {
	for _, p := range []string{"0.0.0.0/0", "192.168.1.9/32", "192.168.1.0/25", "10.96.0.0/12", "10.1.0.64/26", "127.0.0.1/32",
		"172.20.0.0/16", "2001:db8:1::/64", "::1/128"} {
		for _, hop := range []string{"10.0.0.254", "10.77.0.9", "10.0.0.1", "2001:db8:1::fe", "10.9.0.9", "127.0.0.1", "fe80::1", "fe80::a"} {
			for _, zone := range []string{"", "eth0", "eth1", "tunl0"} {
				f.Add(prefix(p).Addr().AsSlice(), uint8(prefix(p).Bits()), addr(hop).AsSlice(), zone)
			}
		}
	}
	f.Fuzz(func(t *testing.T, at []byte, bits uint8, hop []byte, zone string) {
		s := unnumbered(t, nil)
		s.Self.Pods = []netip.Addr{addr("192.168.1.12"), addr("192.168.1.13")}
		a, _ := netip.AddrFromSlice(at)
		p := bgp.Path{Prefix: netip.PrefixFrom(a, int(bits)).Masked(), From: addr("10.0.0.254")}
		p.NextHop, _ = netip.AddrFromSlice(hop)
		if zone != "" {
			p.NextHop, p.From = p.NextHop.WithZone(zone), addr("fe80::1%eth0")
		}
		if !p.Prefix.IsValid() || !p.NextHop.IsValid() {
			return
		}
		judge := s.By(rackGrounds(s, []bgp.Path{p}))
		accepted, _ := judge.decide([]bgp.Path{p})
		ways, _ := judge.DesiredRoutes(accepted)
		for _, w := range ways {
			if len(w.Paths) == 0 || !w.Paths[0].From.IsValid() {
				continue
			}
			for _, at := range s.local().subnets {
				if inside(p.Prefix, at.prefix) {
					t.Fatalf("%s: the subnet %s is this node's", w.Route, at.prefix)
				}
			}
			for _, b := range append(s.ServiceRanges, s.Blocks...) {
				if inside(p.Prefix, b) {
					t.Fatalf("%s lies in %s", w.Route, b)
				}
			}
			for _, h := range w.Route.Hops {
				via := h.Via
				if p.NextHop.Zone() != "" {
					via = via.WithZone("eth0") // the peer's
				}
				if on, ok := s.connected(via); !ok || on != h {
					t.Fatalf("%s: %v is not reached", w.Route, h)
				}
			}
		}
	})
}
