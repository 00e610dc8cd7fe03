package desired

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/bgp/policy"
	"github.com/tortie-net/tortie/internal/bgp/wire"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/testkit/desiredtest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// evil adds a pool with claims of nodes far and mate alone; mate is in this node's subnet.
func evil(cidr string, size int, claims ...string) func(*state.Cluster) {
	return func(w *state.Cluster) {
		w.Nodes = append(w.Nodes,
			api.Node{Meta: api.Meta{Name: "mate", Annotations: map[string]string{api.AnnotationIPv4Address: "10.0.0.77/24"}}})
		w.Pools = append(w.Pools,
			api.IPPool{Meta: api.Meta{Name: "evil"}, Spec: api.IPPoolSpec{CIDR: cidr, BlockSize: size, IPIPMode: api.EncapAlways}})
		for _, c := range claims {
			node, block, _ := strings.Cut(c, " ")
			w.Affinities = append(w.Affinities, claim(node, block, ""))
		}
	}
}

// Whatever pools and claims there are, by claims and by BGP alike: no route takes the network between the nodes away,
// and the pool is named.
func TestPoolsTakeNothingFromTheNetwork(t *testing.T) {
	for name, c := range map[string]struct {
		pool   string
		size   int
		claims string // node and block
		hop    string
		vouch  bool   // node2's kubelet reports its address
		why    string // empty: it is a route
	}{
		"an address of this node's subnet": {"10.0.0.0/24", 32, "far 10.0.0.53/32", "10.9.0.9", false,
			"lies in the subnet 10.0.0.0/24"},
		"another node": {"10.0.0.0/24", 32, "far 10.0.0.2/32", "10.9.0.9", false, "lies in the subnet 10.0.0.0/24"},
		"another node, by one in the subnet": {"10.0.0.0/24", 32, "mate 10.0.0.2/32", "10.0.0.77", true,
			"it holds the address 10.0.0.2 of a node"},
		"several nodes, by one in the subnet": {"10.0.0.0/24", 30, "mate 10.0.0.0/30", "10.0.0.77", true,
			"it holds this node's address 10.0.0.1"},
		"the gateway, by one in the subnet": {"10.0.0.0/24", 32, "mate 10.0.0.254/32", "10.0.0.77", false,
			"it holds a gateway of this host 10.0.0.254"},
		"this node":  {"10.0.0.0/24", 32, "far 10.0.0.1/32", "10.9.0.9", false, "10.0.0.1"},
		"the subnet": {"10.0.0.0/16", 24, "far 10.0.0.0/24", "10.9.0.9", false, "it is the subnet 10.0.0.0/24"},
		"the subnet of another link": {"10.1.0.0/16", 26, "far 10.1.0.64/26", "10.9.0.9", false,
			"lies in the subnet 10.1.0.0/24 that this node is in, by eth1"},
		"the API server": {"203.0.113.0/24", 26, "far 203.0.113.0/26", "10.9.0.9", false,
			"it holds the API server's address 203.0.113.10"},
		"a range of services":           {"10.96.0.0/12", 26, "far 10.97.0.0/26", "10.9.0.9", false, "addresses of services"},
		"more than a range of services": {"10.112.0.0/15", 20, "far 10.112.0.0/20", "10.9.0.9", false, "addresses of services"},
		"its own next hop":              {"10.9.0.0/24", 26, "far 10.9.0.0/26", "10.9.0.9", false, "it holds its own next hop"},
		"a node in another subnet": {"10.5.0.0/24", 26, "far 10.5.0.0/26", "10.9.0.9", true,
			"it holds the address 10.5.0.5 of a node"},
		"what a node says, and its kubelet does not": {"10.5.0.0/24", 26, "far 10.5.0.0/26", "10.9.0.9", false, ""},
		"pods in the nodes' own subnet":              {"10.0.0.128/25", 27, "mate 10.0.0.160/27", "10.0.0.77", true, ""},
		"elsewhere":                                  {"10.6.0.0/16", 26, "far 10.6.1.0/26", "10.9.0.9", false, ""},
		"a pool around a subnet":                     {"10.0.0.0/13", 26, "far 10.3.0.0/26", "10.9.0.9", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := desiredtest.World(evil(c.pool, c.size, c.claims))
			w.Nodes = append(w.Nodes,
				api.Node{Meta: api.Meta{Name: "fifth", Annotations: map[string]string{api.AnnotationIPv4Address: "10.5.0.5/24"}}})
			ev := Evidence{}
			if c.vouch {
				ev.Internal = map[string][]netip.Addr{"node2": {addr("10.0.0.2")}, "fifth": {addr("10.5.0.5")}}
			}
			if c.why == "" {
				ev.Internal = map[string][]netip.Addr{"fifth": {addr("10.6.6.6")}}
			}
			s, _ := build(Self{Name: "node1", Addr: prefix("10.0.0.1/24"), Link: "eth0"}, w, ev)
			s.Self.APIServer, s.Self.Gateways = []netip.Addr{addr("203.0.113.10")}, []netip.Addr{addr("10.0.0.254")}
			s.Self.Found = []nodeaddr.Candidate{{Addr: prefix("10.0.0.1/24"), Link: "eth0"}, {Addr: prefix("10.1.0.1/24"), Link: "eth1"}}
			s.ServiceRanges = rangesOf("10.96.0.0/12", "10.112.7.0/24")
			_, block, _ := strings.Cut(c.claims, " ")
			for what, learned := range map[string][]bgp.Path{"claim": nil,
				"BGP": {{Prefix: prefix(block), NextHop: addr(c.hop), From: addr(c.hop)}}} {
				accepted, refused := s.By(Grounds{}).decide(learned)
				is := slices.ContainsFunc(s.By(Grounds{}).Routes(accepted), func(r routes.Route) bool { return r.Dst == prefix(block) })
				says := slices.ContainsFunc(refused, func(r bgp.Objection) bool {
					return r.Path.Prefix == prefix(block) && !r.Usual && strings.Contains(r.Why, strings.TrimPrefix(c.why, "it "))
				})
				if c.why == "" && (!is || len(refused) > 0) || c.why != "" && (is || !says && !strings.Contains(fmt.Sprint(refused), c.why)) {
					t.Errorf("by %s it is a route: %v; refused: %v", what, is, refused)
				}
			}
			if problems := s.CheckPools(); c.why != "" &&
				(len(problems) != 1 || !strings.Contains(problems[0].Error(), "IPPool evil: spec.cidr "+c.pool)) ||
				name == "elsewhere" && len(problems) > 0 {
				t.Errorf("problems: %v", problems)
			}
		})
	}
}

// A pool for Services should lie in an announced range of Services; a pool for pods should not.
func TestPoolsInRangesOfServices(t *testing.T) {
	for _, c := range []struct {
		uses    []api.AllowedUse
		problem bool
	}{
		{nil, true},
		{[]api.AllowedUse{api.UseLoadBalancer}, false},
		{[]api.AllowedUse{api.UseLoadBalancer, api.UseWorkload}, true},
	} {
		s, _ := build(Self{Name: "node1", Addr: prefix("10.0.0.1/24"), Link: "eth0"}, desiredtest.World(func(w *state.Cluster) {
			w.Pools[0].Spec.CIDR, w.Pools[0].Spec.AllowedUses = "203.0.113.64/26", c.uses
		}), Evidence{})
		s.ServiceRanges = rangesOf("203.0.113.0/24")
		problems := s.CheckPools()
		if c.problem != (len(problems) == 1 && strings.Contains(problems[0].Error(), "203.0.113.0/24, the addresses of services")) ||
			!c.problem && len(problems) > 0 {
			t.Errorf("allowedUses %v: problems %v, want one: %v", c.uses, problems, c.problem)
		}
	}
}

// While the owner of an address is not known, the former state stays: routes to a block, or none.
func TestUnsureAddressesChangeNothing(t *testing.T) {
	poolAlone := func(w *state.Cluster) { evil("10.5.0.0/24", 26, "far 10.5.0.0/26")(w) }
	withNode := func(w *state.Cluster) {
		poolAlone(w)
		w.Nodes = append(w.Nodes,
			api.Node{Meta: api.Meta{Name: "fifth", Annotations: map[string]string{api.AnnotationIPv4Address: "10.5.0.5/24"}}})
	}
	nodeAlone := func(w *state.Cluster) { withNode(w); w.Affinities = w.Affinities[:len(w.Affinities)-1] }
	self := Self{Name: "node1", Addr: prefix("10.0.0.1/24"), Link: "eth0"}
	for name, c := range map[string]struct {
		before func(*state.Cluster)
		covers bool
	}{"the block was first": {poolAlone, false}, "the node was first": {nodeAlone, true}} {
		var v View
		v.Update(time.Unix(1, 0), self, desiredtest.World(c.before))
		for range 2 {
			v.Update(time.Unix(2, 0), self, desiredtest.World(withNode))
			if _, covered := v.Base.index.covered[prefix("10.5.0.0/26")]; covered != c.covers || !slices.Contains(v.Base.Unsure.Nodes, "fifth") {
				t.Errorf("%s: refused %v", name, covered)
			}
		}
		v.Evidence.Internal = map[string][]netip.Addr{"fifth": {addr("10.9.5.5")}}
		v.Update(time.Unix(3, 0), self, desiredtest.World(withNode))
		if len(v.Base.index.covered) > 0 {
			t.Errorf("%s: it stays refused although it is not the node's", name)
		}
	}
}

// Whatever a Node announces: an unusable address reaches neither the kernel's tables nor the guard, and is named.
func TestAddressesThatAreNone(t *testing.T) {
	for _, text := range []string{"0.0.0.0/0", "127.0.0.1/8", "224.0.0.1/4", "255.255.255.255/32", "169.254.9.9/16"} {
		s, problems := Build(Self{Name: "node1"},
			contest(func(_ *state.Cluster, far map[string]string) { far[api.AnnotationIPv4Address] = text }))
		if _, ok := s.MemberAt(prefix(text).Addr()); ok ||
			!strings.Contains(strings.Join(texts(problems), "\n"), "Node far: annotation projectcalico.org/IPv4Address "+text+" cannot be") {
			t.Errorf("%s: a member: %v; problems %q", text, ok, problems)
		}
	}
	for _, text := range []string{"::/0", "::1/128", "ff02::1/64", "fe80::1/64"} {
		s, problems := Build(Self{Name: "node1"},
			contest(func(_ *state.Cluster, far map[string]string) { far[api.AnnotationIPv6Address] = text }))
		if _, ok := s.MemberAt(prefix(text).Addr()); ok ||
			!strings.Contains(strings.Join(texts(problems), "\n"), "Node far: annotation projectcalico.org/IPv6Address "+text+" cannot be") {
			t.Errorf("%s: a member: %v; problems %q", text, ok, problems)
		}
	}
}

// A node may announce the broadcast address of a subnet of this node: the kernel rejects such a next hop, and every
// pass would fail. An address of this node, on another link, is no next hop either, and is named.
func TestNextHopsThatTheKernelRefuses(t *testing.T) {
	for address, why := range map[string]string{
		"10.0.0.255/24": "is the broadcast address of the subnet 10.0.0.0/24", "10.1.0.1/24": "is this node itself",
		"10.1.0.255/32": "is the broadcast address of the subnet 10.1.0.0/24",
		"10.2.0.191/32": "is the broadcast address of the subnet 10.2.0.128/26",
		"10.3.0.3/32":   "is the broadcast address of the subnet 10.3.0.0/30",
	} {
		w := contest(func(w *state.Cluster, far map[string]string) {
			w.Pools[0].Spec.VXLANMode, far[api.AnnotationIPv4Address] = api.EncapNever, address
		})
		s, _ := Build(Self{Name: "node1"}, w)
		s = s.As(Self{Name: "node1", Addr: prefix("10.0.0.1/24"), Link: "eth0", Found: []nodeaddr.Candidate{
			{Addr: prefix("10.0.0.1/24"), Link: "eth0"}, {Addr: prefix("10.1.0.1/24"), Link: "eth1"},
			{Addr: prefix("10.2.0.129/26"), Link: "eth2"}, {Addr: prefix("10.3.0.1/30"), Link: "eth3"},
		}})
		accepted, refused := s.By(Grounds{}).Accept(nil, nil)
		if got := s.By(Grounds{}).Routes(accepted); slices.ContainsFunc(got,
			func(r routes.Route) bool { return r.Dst == prefix("192.168.3.0/26") }) || len(got) == 0 {
			t.Errorf("%s: routes %v", address, got)
		}
		if text := fmt.Sprint(Refusals(refused)); !strings.Contains(text, "192.168.3.0/26 via "+prefix(address).Addr().String()) ||
			!strings.Contains(text, why) {
			t.Errorf("%s: %s", address, text)
		}
	}
}

// A kubelet may report any address for its Node, even one in another node's block: the block stays, also for the next
// agent, and the Node is named. A node that was there before a block around its address was claimed stays reachable.
func TestAKubeletEndsNoRoutesToBlocks(t *testing.T) {
	blockAlone := evil("10.5.0.0/24", 26, "far 10.5.0.0/26")
	withNode := func(w *state.Cluster) {
		blockAlone(w)
		w.Nodes = append(w.Nodes,
			api.Node{Meta: api.Meta{Name: "fifth", Annotations: map[string]string{api.AnnotationIPv4Address: "10.5.0.5/24"}}})
	}
	nodeAlone := func(w *state.Cluster) { withNode(w); w.Affinities = w.Affinities[:len(w.Affinities)-1] }
	self := Self{Name: "node1", Addr: prefix("10.0.0.1/24"), Link: "eth0"}
	vouched := map[string][]netip.Addr{"fifth": {addr("10.5.0.5")}}
	left := map[netip.Prefix]netip.Addr{prefix("10.5.0.0/26"): addr("10.9.0.9")}
	for name, c := range map[string]struct {
		before    func(*state.Cluster) // nil: this agent has just begun
		inherited map[netip.Prefix]netip.Addr
		covers    bool
	}{
		"the block was first":                     {blockAlone, nil, false},
		"the node was first":                      {nodeAlone, nil, true},
		"a new agent, whose kernel has the route": {nil, left, false},
		"a new agent on a new node":               {nil, nil, true},
	} {
		var v View
		if c.before != nil {
			v.Update(time.Unix(1, 0), self, desiredtest.World(c.before))
		}
		v.Evidence.Inherited = c.inherited
		v.Update(time.Unix(2, 0), self, desiredtest.World(withNode))
		v.Evidence = Evidence{Internal: vouched}
		for range 2 {
			v.Update(time.Unix(3, 0), self, desiredtest.World(withNode))
			if _, covered := v.Base.index.covered[prefix("10.5.0.0/26")]; covered != c.covers {
				t.Errorf("%s: the block is refused: %v", name, covered)
			}
			if says := strings.Contains(strings.Join(texts(v.Problems), "\n"),
				"Node fifth: its address 10.5.0.5 lies in block 10.5.0.0/26 of node far"); says == c.covers {
				t.Errorf("%s: problems %q", name, v.Problems)
			}
		}
	}
}

// Packets to another node's pod are encrypted for that node, and with encryption required never go in the clear,
// whatever address a node with a key announces: the kernel uses the peer with the longest prefix.
func TestANodeTakesNoPodsPacketsByItsAddress(t *testing.T) {
	self := Self{Name: "node1", Addr: prefix("10.0.0.1/24"), Link: "eth0", LinkMTU: 1500}
	world := func(address string) state.Cluster {
		return desiredtest.World(func(w *state.Cluster) {
			w.Nodes[0].Annotations[api.AnnotationWireGuardKey], w.Nodes[2].Annotations[api.AnnotationWireGuardKey] = key(2).String(), key(9).String()
			w.Nodes[2].Annotations[api.AnnotationIPv4Address] = address
		})
	}
	for _, of := range []string{"192.168.2.5", "192.168.1.5"} {
		want := []string{"2 10.0.0.2:51820 [10.0.0.2/32 192.168.2.0/26]", "9 " + of + ":51820 []", "192.168.2.0/26 dev wireguard.cali"}
		for _, required := range []bool{false, true} {
			var v View
			v.Update(time.Unix(1, 0), self, world("10.9.0.9/24"))
			v.Update(time.Unix(2, 0), self, world(of+"/32"))
			s := v.Base
			if s.Felix.WireGuard.On, s.Self.RequireEncryption = [2]bool{true, false}, required; required {
				want = append(want, "throw 192.168.1.0/26", "throw 192.168.1.64/26", "prohibit 192.168.0.0/16")
			}
			var c Crypts
			c.Follow(&s, answered(2, 9), time.Unix(1000, 0))
			difftest.Want(t, fmt.Sprintf("%s, required: %v", of, required), want, encrypted(&s, false, Grounds{}))
		}
	}
}

// A block without a claim may hold no node's address either, and has its pool's size.
func TestBlocksWithoutAClaim(t *testing.T) {
	s := snapshot(t, evil("10.5.0.0/16", 26))
	s.Others = append(s.Others, Member{Name: "fifth", Addr: addr("10.5.0.5")})
	s.index.addrs = append(s.index.addrs, addr("10.5.0.5"))
	slices.SortFunc(s.index.addrs, netip.Addr.Compare)
	for text, want := range map[string]string{
		"10.5.0.0/26 via 10.9.0.9": "it holds the address 10.5.0.5 of a node", "10.5.0.64/26 via 10.9.0.9": "",
		"10.5.0.96/27 via 10.9.0.9": "it is no block of IPPool evil (/26)",
	} {
		if r := s.By(Grounds{}).Objection(learn(text)[0]); r.Why != want {
			t.Errorf("%s: %q, want %q", text, r.Why, want)
		}
	}
}

// contest returns a cluster in which far, the older Node with the lesser name, announces what belongs to node2.
func contest(change func(w *state.Cluster, far map[string]string)) state.Cluster {
	return desiredtest.World(func(w *state.Cluster) {
		w.Pools[0].Spec.IPIPMode, w.Pools[0].Spec.VXLANMode = "", api.EncapAlways
		near, far := &w.Nodes[0], &w.Nodes[2]
		near.UID, far.UID, near.CreationTimestamp, far.CreationTimestamp = "b", "a", "2026-11-22T06:00:00Z", "2026-11-22T05:00:00Z"
		near.Annotations[api.AnnotationIPv4VXLANAddr], far.Annotations[api.AnnotationIPv4VXLANAddr] = "192.168.2.1", "192.168.3.1"
		w.Affinities = append(w.Affinities, claim("far", "192.168.3.0/26", ""))
		if change != nil {
			change(w, far.Annotations)
		}
	})
}

// A node's annotations harm no other node, whichever has the lesser name or the older Node.
func TestAnnotationsHarmNobodyElse(t *testing.T) {
	own := func(w state.Cluster) Announcements { // what was believed before far began to lie
		known := Announcements{}
		known.Believe(contest(nil).Nodes, "node1", time.Unix(1000, 0))
		known.Believe(w.Nodes, "node1", time.Unix(2000, 0))
		known.Believe(w.Nodes, "node1", time.Unix(2003, 0))
		return known
	}
	internal := map[string][]netip.Addr{"node2": {addr("10.0.0.2")}, "far": {addr("10.9.0.9")}}
	for name, c := range map[string]struct {
		lie  func(w *state.Cluster, far map[string]string)
		ev   func(w state.Cluster) Evidence
		says string
	}{
		"the address, which was believed before": {
			func(_ *state.Cluster, far map[string]string) { far[api.AnnotationIPv4Address] = "10.0.0.2/24" },
			func(w state.Cluster) Evidence { return Evidence{Known: own(w)} }, "Node far: its address 10.0.0.2 is that of node node2 too",
		},
		"the address, which a kubelet says": {
			func(_ *state.Cluster, far map[string]string) { far[api.AnnotationIPv4Address] = "10.0.0.2/24" },
			func(state.Cluster) Evidence { return Evidence{Internal: internal} }, "Node far: its address 10.0.0.2 is that of node node2 too",
		},
		"the address, which its own kubelet says and the other has not been asked yet": {
			func(_ *state.Cluster, far map[string]string) { far[api.AnnotationIPv4Address] = "10.0.0.2/24" },
			func(w state.Cluster) Evidence {
				return Evidence{Known: own(w), Internal: map[string][]netip.Addr{"far": {addr("10.0.0.2")}}}
			}, "Node far: its address 10.0.0.2 is that of node node2 too",
		},
		"the address, which both kubelets say": {
			func(_ *state.Cluster, far map[string]string) { far[api.AnnotationIPv4Address] = "10.0.0.2/24" },
			func(w state.Cluster) Evidence {
				return Evidence{Known: own(w), Internal: map[string][]netip.Addr{"far": {addr("10.0.0.2")}, "node2": {addr("10.0.0.2")}}}
			}, "Node far: its address 10.0.0.2 is that of node node2 too",
		},
		"the address of a node that is still to announce it": {
			func(_ *state.Cluster, far map[string]string) { far[api.AnnotationIPv4Address] = "10.0.0.2/24" },
			func(w state.Cluster) Evidence {
				early := contest(func(w *state.Cluster, far map[string]string) {
					far[api.AnnotationIPv4Address] = "10.0.0.2/24"
					delete(w.Nodes[0].Annotations, api.AnnotationIPv4Address)
				})
				known := Announcements{}
				known.Believe(early.Nodes, "node1", time.Unix(1000, 0))
				known.Believe(w.Nodes, "node1", time.Unix(2000, 0))
				known.Believe(w.Nodes, "node1", time.Unix(2003, 0))
				return Evidence{Known: known, Internal: internal}
			}, "Node far: its address 10.0.0.2 is that of node node2 too",
		},
		"the address and another AS number": {
			func(_ *state.Cluster, far map[string]string) {
				far[api.AnnotationIPv4Address], far[api.AnnotationASNumber] = "10.0.0.2/24", "65009"
			},
			func(state.Cluster) Evidence { return Evidence{Internal: internal} }, "Node far: its address 10.0.0.2 is that of node node2 too",
		},
		"the address of the younger Node": {
			func(w *state.Cluster, far map[string]string) {
				far[api.AnnotationIPv4Address] = "10.0.0.2/24"
				w.Nodes[0].CreationTimestamp = "2026-11-22T04:00:00Z"
			}, nil, "Node far: its address 10.0.0.2 is that of node node2 too",
		},
		"the address of the tunnel": {
			func(_ *state.Cluster, far map[string]string) { far[api.AnnotationIPv4VXLANAddr] = "192.168.2.1" }, nil,
			"Node far: its end of VXLAN tunnels, 192.168.2.1, lies in none of its blocks",
		},
		"the MAC that follows from the name": {
			func(_ *state.Cluster, far map[string]string) {
				far[api.AnnotationVXLANMAC] = vxlan.MACOf("node2", false).String()
			}, nil,
			"Node far: its end of VXLAN tunnels, 192.168.3.1 at " + vxlan.MACOf("node2", false).String() + ", has the MAC of node node2",
		},
		"the MAC of a node that is still to announce one": {
			func(_ *state.Cluster, far map[string]string) {
				far[api.AnnotationVXLANMAC] = vxlan.MACOf("new", false).String()
			}, nil, "has the MAC of node new",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := contest(c.lie)
			var ev Evidence
			if c.ev != nil {
				ev = c.ev(w)
			}
			s, problems := build(Self{Name: "node1", Addr: prefix("10.0.0.1/24"), Link: "eth0"}, w, ev)
			if got := s.By(Grounds{}).Routes(s.By(Grounds{}).known()); !slices.ContainsFunc(got, func(r routes.Route) bool {
				return r.String() == "192.168.2.0/26 via 192.168.2.1 dev vxlan.calico onlink"
			}) {
				t.Errorf("node2's block has no route by its own end: %v", got)
			}
			tunnel := s.Tunnels().VXLAN
			if want := (vxlan.Peer{Addr: addr("192.168.2.1"), MAC: vxlan.MACOf("node2", false), Node: addr("10.0.0.2")}); !slices.Contains(
				tunnel.Peers, want) {
				t.Errorf("ends %v, want %v among them", tunnel.Peers, want)
			}
			peers := sessions(&s)
			if i := slices.IndexFunc(peers, func(p bgp.Peer) bool { return p.Addr == addr("10.0.0.2") }); i < 0 || peers[i].ASN != 64512 ||
				s.Peering.Sources[peers[i].Addr].Node != "node2" {
				t.Errorf("sessions %+v, %+v", peers, s.Peering.Sources)
			}
			if text := strings.Join(texts(problems), "\n"); !strings.Contains(text, c.says) || strings.Contains(text, "Node node2") {
				t.Errorf("problems: %s", text)
			}
		})
	}
}

// A kubelet decides about this node's own address too: an annotation of another node alone does not keep this one from
// joining.
func TestThisNodesAddress(t *testing.T) {
	for name, c := range map[string]struct {
		internal map[string][]netip.Addr
		twin     string
		unsure   string
	}{
		"not known yet":               {nil, "", "far"},
		"its kubelet says another":    {map[string][]netip.Addr{"far": {addr("10.9.0.9")}}, "", ""},
		"its kubelet says this one's": {map[string][]netip.Addr{"far": {addr("10.0.0.1")}}, "far", ""},
	} {
		w := contest(func(w *state.Cluster, far map[string]string) {
			far[api.AnnotationIPv4Address] = "10.0.0.1/24"
			w.Self = &api.Node{Meta: api.Meta{Name: "node1"},
				Status: api.NodeStatus{Addresses: []api.NodeAddress{{Type: "InternalIP", Address: "10.0.0.1"}}}}
		})
		s, _ := build(Self{Name: "node1"}, w, Evidence{Internal: c.internal})
		s = s.As(Self{Name: "node1", Addr: prefix("10.0.0.1/24"), Link: "eth0"})
		twin, _ := s.Duplicate()
		if _, is := s.MemberAt(addr("10.0.0.1")); twin != c.twin || s.Unsure.Self != c.unsure || is || !slices.Contains(s.Unsure.Nodes, "far") {
			t.Errorf("%s: %q has the address too, %q may; %v is to be asked", name, twin, s.Unsure.Self, s.Unsure.Nodes)
		}
	}
}

// The announcements that an earlier agent believed win over later ones; a first announcement without evidence does not.
func TestAnnouncementsAreRecalled(t *testing.T) {
	known := Announcements{}
	known.Recall(contest(nil).Nodes)
	w := contest(func(_ *state.Cluster, far map[string]string) { far[api.AnnotationIPv4Address] = "10.0.0.2/24" })
	w.Nodes, _ = known.Believe(w.Nodes, "node1", time.Unix(1000, 0))
	if w.Nodes[2].Annotations[api.AnnotationIPv4Address] != "10.9.0.9/24" {
		t.Errorf("believed at once: %v", w.Nodes[2].Annotations)
	}
	w = contest(func(_ *state.Cluster, far map[string]string) { far[api.AnnotationIPv4Address] = "10.0.0.2/24" })
	w.Nodes, _ = known.Believe(w.Nodes, "node1", time.Unix(1004, 0))
	s, _ := build(Self{Name: "node1"}, w, Evidence{Known: known})
	if m, ok := s.MemberAt(addr("10.0.0.2")); !ok || m.Name != "node2" {
		t.Errorf("10.0.0.2 is %+v", m)
	}
}

// No text repeats more than a little of a node's annotations.
func TestProblemsAreShort(t *testing.T) {
	long := strings.Repeat("x", 200_000)
	w := desiredtest.World(func(w *state.Cluster) {
		for _, key := range []string{
			api.AnnotationIPv4Address, api.AnnotationIPv6Address, api.AnnotationASNumber, api.AnnotationLabels, api.AnnotationReflector,
			api.AnnotationIPv4VXLANAddr, api.AnnotationIPv6VXLANAddr, api.AnnotationVXLANMAC, api.AnnotationVXLANMACv6,
		} {
			w.Nodes[0].Annotations[key] = long
			w.Nodes[2].Annotations[key] = long
		}
		w.Nodes[2].Annotations[api.AnnotationIPv4VXLANAddr] = "192.168.9.9" // else its MAC is not read
		broken := claim("far", long, "")
		broken.Name = "broken"
		w.Affinities = append(w.Affinities, broken)
	})
	_, problems := Build(Self{Name: "node1"}, w)
	if len(problems) < 15 {
		t.Errorf("%d problems", len(problems))
	}
	for _, err := range problems {
		if len(err.Error()) > 600 {
			t.Errorf("%d characters: %.300s", len(err.Error()), err)
		}
	}
}

// A node that an operator's BGPPeer selects, even by its own labels, is believed about its own blocks, and beyond them
// only about prefixes that a BGPFilter accepts.
func TestNodesAreNoRouters(t *testing.T) {
	reflector := api.BGPPeer{Meta: api.Meta{Name: "to-reflectors"},
		Spec: api.BGPPeerSpec{NodeSelector: "all()", PeerSelector: "route-reflector == 'true'"}}
	open := api.BGPFilter{Meta: api.Meta{Name: "open"}, Spec: api.BGPFilterSpec{ImportV4: []api.BGPFilterRule{
		{CIDR: "172.20.0.0/16", MatchOperator: "In", Action: "Accept"}, {CIDR: "192.168.5.0/26", MatchOperator: "Equal", Action: "Accept"},
	}}}
	for name, c := range map[string]struct {
		filtered bool
		prefix   string
		hop      string
		passes   bool // the session's rules
		accepted bool
	}{
		"a default route":                      {false, "0.0.0.0/0", "10.0.0.2", false, false},
		"outside":                              {false, "172.20.1.0/24", "10.0.0.2", false, false},
		"outside, that a filter accepts":       {true, "172.20.1.0/24", "10.0.0.2", true, true},
		"outside, that no filter accepts":      {true, "8.8.8.8/32", "10.0.0.2", false, false},
		"its own block":                        {false, "192.168.2.0/26", "10.0.0.2", true, true},
		"another's block":                      {false, "192.168.3.0/26", "10.9.0.9", true, true},
		"a block by a router":                  {false, "192.168.5.0/26", "10.0.0.254", true, false},
		"a block by a router, with a filter":   {true, "192.168.5.0/26", "10.0.0.254", true, true},
		"a larger one by a router":             {false, "192.168.0.0/20", "10.0.0.254", true, false},
		"services, which reflectors pass on":   {false, "10.96.3.0/24", "10.0.0.2", true, false},
		"another's block, taken from its node": {false, "192.168.3.0/26", "10.0.0.2", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := racked(t, func(w *state.Cluster) {
				w.Nodes[0].Annotations[api.AnnotationLabels] = `{"route-reflector":"true"}`
				w.Affinities = append(w.Affinities, claim("far", "192.168.3.0/26", ""))
				peer := reflector
				if c.filtered {
					peer.Spec.Filters = []string{"open"}
				}
				w.Peers, w.Filters = []api.BGPPeer{peer}, []api.BGPFilter{open}
			})
			s.Peering = peering.Decision{}
			sessions(s)
			from := addr("10.0.0.2")
			if s.Peering.Sources[from].Peer != "to-reflectors" {
				t.Fatalf("sources %+v", s.Peering.Sources)
			}
			base := s.Policy()
			out := base.Import[from].Apply(policy.Route{Prefix: prefix(c.prefix), Attributes: &wire.Attributes{}})
			if rejected := out.Reason != ""; rejected == c.passes {
				t.Errorf("the session's rules say %+v", out)
			}
			p := bgp.Path{Prefix: prefix(c.prefix), NextHop: addr(c.hop), From: from}
			if r := s.By(Grounds{}).Objection(p); (r.Why == "") != c.accepted {
				t.Errorf("objection: %q", r.Why)
			}
			if r := s.By(Grounds{}).Objection(bgp.Path{Prefix: prefix("172.20.0.0/16"), NextHop: addr("10.0.0.254"),
				From: addr("10.0.0.254")}); r.Why == "" {
				t.Error("a router that is nobody's peer is believed")
			}
		})
	}
}

// With export rules, which could pass anything on, prefixes from a node of the mesh outside of the pools and of
// Services' ranges are not accepted: this node would not forward there. Services' ranges, and pools for Services alone,
// are named as not to be passed on.
func TestMeshIsNotPassedOn(t *testing.T) {
	s := racked(t, func(w *state.Cluster) {
		w.Pools = append(w.Pools,
			api.IPPool{Meta: api.Meta{Name: "lb"}, Spec: api.IPPoolSpec{CIDR: "203.0.113.0/24", AllowedUses: []api.AllowedUse{api.UseLoadBalancer}}})
	})
	from := addr("10.0.0.2")
	if rules := s.Policy().Import[from]; rules != nil {
		t.Errorf("without export rules: %+v", rules)
	}
	s.Peering.Export = map[netip.Addr]*policy.Rules{addr("10.0.0.254"): policy.Within(nil, "all")}
	p := s.Policy()
	for text, comes := range map[string]bool{"0.0.0.0/0": false, "172.20.1.0/24": false, "192.168.2.0/26": true,
		"10.96.0.0/12": true, "10.96.3.7/32": true} {
		if out := p.Import[from].Apply(policy.Route{Prefix: prefix(text),
			Attributes: &wire.Attributes{}}); (out.Verdict != policy.Reject) != comes {
			t.Errorf("%s: %+v", text, out)
		}
	}
	if p.Import[addr("10.0.0.254")] != nil {
		t.Error("a router has rules of nodes")
	}
	if want := []netip.Prefix{prefix("10.96.0.0/12"), prefix("203.0.113.0/24")}; !slices.Equal(p.Served, want) {
		t.Errorf("served %v, want %v", p.Served, want)
	}
}
