package desired

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/testkit/desiredtest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// dual returns a snapshot with both families, in which node2 has announced its ends of all tunnels and far none.
func dual(t *testing.T, ipip, vxlan4, vxlan6 api.Encapsulation, change func(*state.Cluster)) *Snapshot {
	t.Helper()
	w := desiredtest.World(func(w *state.Cluster) {
		w.Pools[0].Spec.IPIPMode, w.Pools[0].Spec.VXLANMode = ipip, vxlan4
		w.Pools = append(w.Pools, api.IPPool{Meta: api.Meta{Name: "six"}, Spec: api.IPPoolSpec{CIDR: "fd44::/48", VXLANMode: vxlan6}})
		near, far := w.Nodes[0].Annotations, w.Nodes[2].Annotations
		near[api.AnnotationIPv6Address], far[api.AnnotationIPv6Address] = "fd00::2/64", "fd09::9/64"
		near[api.AnnotationIPv4VXLANAddr], near[api.AnnotationIPv6VXLANAddr] = "192.168.2.1", "fd44::2:1"
		near[api.AnnotationIPv4TunnelAddr], near[api.AnnotationVXLANMACv6] = "192.168.2.0", "02:00:00:00:00:02"
		w.Affinities = append(w.Affinities, claim("node2", "fd44::2:0/122", ""))
		if change != nil {
			change(w)
		}
	})
	self := Self{Name: "node1", Addr: prefix("10.0.0.1/24"), Link: "eth0", LinkMTU: 1500, Addr6: prefix("fd00::1/64"),
		Link6: "eth1", LinkMTU6: 9000}
	s, problems := Build(self, w)
	if len(problems) > 0 {
		t.Fatalf("problems: %v", problems)
	}
	s.Self.TunnelAddr, s.Self.VTEP, s.Self.VTEP6 = addr("192.168.1.1"), addr("192.168.1.2"), addr("fd44::1:1")
	return &s
}

// A pool that overlaps an older one has no blocks: blocks in both belong to the older one.
func TestPoolOfMaskedPool(t *testing.T) {
	w := desiredtest.World(func(w *state.Cluster) {
		w.Pools[0].CreationTimestamp = "2026-01-01T00:00:00Z"
		w.Pools = append(w.Pools, api.IPPool{
			Meta: api.Meta{Name: "young", CreationTimestamp: "2026-02-01T00:00:00Z"}, Spec: api.IPPoolSpec{CIDR: "192.168.2.0/24", BlockSize: 28},
		})
	})
	s, _ := Build(Self{Name: "node1", Addr: prefix("10.0.0.1/24"), Link: "eth0", LinkMTU: 1500}, w)
	if p, ok := s.poolOf(prefix("192.168.2.0/26")); !ok || p.Name != w.Pools[0].Name {
		t.Errorf("the block is of pool %+v, want %s", p, w.Pools[0].Name)
	}
}

// wayTo describes the next hop to a node in the pool of its family.
func (s *Snapshot) wayTo(t *testing.T, node string) string {
	t.Helper()
	p, ok := s.poolOf(prefix("192.168.2.0/26"))
	if addr(node).Is6() {
		p, ok = s.poolOf(prefix("fd44::2:0/122"))
	}
	if !ok {
		t.Fatal("no pool")
	}
	h, ok := s.over(p, addr(node))
	if !ok {
		return "none"
	}
	text := h.Via.String() + " " + h.Dev
	if h.Onlink {
		text += " onlink"
	}
	return text
}

const (
	near, far   = "10.0.0.2", "10.9.0.9"
	near6, far6 = "fd00::2", "fd09::9"
	ours        = "192.168.2.1 vxlan.calico onlink" // the way to near
)

func TestOver(t *testing.T) {
	never, always, cross := api.EncapNever, api.EncapAlways, api.EncapCrossSubnet
	for name, tt := range map[string]struct {
		ipip, vxlan, vxlan6    api.Encapsulation
		near, far, near6, far6 string
	}{
		"nothing":     {never, never, never, "10.0.0.2 eth0", "none", "fd00::2 eth1", "none"},
		"VXLAN":       {never, always, always, ours, "none", "fd44::2:1 vxlan-v6.calico onlink", "none"},
		"CrossSubnet": {never, cross, cross, "10.0.0.2 eth0", "none", "fd00::2 eth1", "none"},
		"IPIP":        {always, never, always, "10.0.0.2 tunl0 onlink", "10.9.0.9 tunl0 onlink", "fd44::2:1 vxlan-v6.calico onlink", "none"},
		"both kinds":  {cross, never, never, "10.0.0.2 eth0", "10.9.0.9 tunl0 onlink", "fd00::2 eth1", "none"},
	} {
		t.Run(name, func(t *testing.T) {
			s := dual(t, tt.ipip, tt.vxlan, tt.vxlan6, nil)
			got := []string{s.wayTo(t, near), s.wayTo(t, far), s.wayTo(t, near6), s.wayTo(t, far6)}
			difftest.Want(t, "ways", []string{tt.near, tt.far, tt.near6, tt.far6}, got)
		})
	}
}

// A path to a node without an announced VTEP is pending, and the reason does not name subnets.
func TestAwaitedEnds(t *testing.T) {
	s := dual(t, api.EncapNever, api.EncapAlways, api.EncapAlways, func(w *state.Cluster) {
		w.Affinities = append(w.Affinities, api.BlockAffinity{
			Meta: api.Meta{Name: "far-block"},
			Spec: api.BlockAffinitySpec{Node: "far", CIDR: "192.168.7.0/26", State: api.AffinityConfirmed, Type: "host"},
		})
	})
	accepted, refused := s.By(Grounds{}).Accept(nil, nil)
	ways, left := s.By(Grounds{}).DesiredRoutes(accepted)
	if len(refused) > 0 || len(left) != 1 || !left[0].Pending || !strings.Contains(left[0].Why, "not announced its end") ||
		len(Refusals(left)) > 0 {
		t.Errorf("left: %+v, refused: %+v", left, refused)
	}
	found := false
	for _, w := range ways {
		found = found || w.Route.String() == "192.168.2.0/26 via 192.168.2.1 dev vxlan.calico onlink"
	}
	if !found {
		t.Errorf("no way to node2's block: %v", RoutesOf(ways))
	}
}

// The kernel needs a route to an IPv6 VTEP before a route leads through it.
func TestEndWays(t *testing.T) {
	for name, tt := range map[string]struct {
		end  string
		want []string
	}{
		"in a block of its own":  {"fd44::2:1", []string{"fd44::2:1/128 dev vxlan-v6.calico"}},
		"in another one's block": {"fd44::9:1", nil},
		"in this node's":         {"fd44::1:9", nil},
		"outside of all pools":   {"fd00::53", nil},
	} {
		s := dual(t, api.EncapNever, api.EncapAlways, api.EncapAlways, func(w *state.Cluster) {
			w.Nodes[0].Annotations[api.AnnotationIPv6VXLANAddr] = "fd44::2:1"
			for cidr, node := range map[string]string{"fd44::2:0/122": "node2", "fd44::2:40/122": "node2", "fd44::9:0/122": "far",
				"fd44::1:0/122": "node1"} {
				w.Affinities = append(w.Affinities, claim(node, cidr, ""))
			}
		})
		s.Others[slices.IndexFunc(s.Others, func(m Member) bool { return m.Name == "node2" })].VTEP6.Addr = addr(tt.end)
		accepted, _ := s.By(Grounds{}).Accept(nil, nil)
		var ends []string
		for _, r := range s.By(Grounds{}).Routes(accepted) {
			if r.Dst.IsSingleIP() {
				ends = append(ends, r.String())
			}
		}
		difftest.Want(t, fmt.Sprintf("%s: ends", name), tt.want, ends)
	}
}

func TestTunnels(t *testing.T) {
	s := dual(t, api.EncapNever, api.EncapCrossSubnet, api.EncapAlways, nil)
	want := Tunnels{
		VXLAN: &vxlan.Tunnel{
			VNI: 4096, Port: 4789, Local: addr("10.0.0.1"), Parent: "eth0", MAC: vxlan.MACOf("node1", false), MTU: 1450, Addr: addr("192.168.1.2"),
			Peers: []vxlan.Peer{{Addr: addr("192.168.2.1"), MAC: vxlan.MACOf("node2", false), Node: addr("10.0.0.2")}},
		},
		VXLANv6: &vxlan.Tunnel{
			VNI: 4096, Port: 4789, Local: addr("fd00::1"), Parent: "eth1", MAC: vxlan.MACOf("node1", true), MTU: 8930, Addr: addr("fd44::1:1"),
			Peers: []vxlan.Peer{{Addr: addr("fd44::2:1"), MAC: vxlan.MAC{2, 0, 0, 0, 0, 2}, Node: addr("fd00::2")}},
		},
	}
	difftest.Want(t, "tunnels", want, s.Tunnels(), cmpopts.EquateEmpty())
	s.Felix = Felix{VXLANPort: 8472, VXLANVNI: 7, VXLANMTU: 1400, VXLANMTU6: 9000}
	s.Self.ChecksumsBroken = true
	got := s.Tunnels()
	if v := got.VXLAN; v.Port != 8472 || v.VNI != 7 || v.MTU != 1400 || !v.SoftChecksums {
		t.Errorf("by configuration: %+v", v)
	}
	if got.VXLANv6.MTU != 8930 {
		t.Errorf("an MTU that does not fit the link became %d", got.VXLANv6.MTU)
	}
	s.Felix.Checksums = checksumsByDevice
	if s.Tunnels().VXLAN.SoftChecksums {
		t.Error("the operator says that devices may compute checksums")
	}
	s.Self.Addr6 = netip.Prefix{}
	if s.Tunnels().VXLANv6 != nil {
		t.Error("a tunnel of IPv6 without an address of IPv6")
	}
}

func TestPodMTUFitsEveryWay(t *testing.T) {
	never, always := api.EncapNever, api.EncapAlways
	for name, tt := range map[string]struct {
		ipip, vxlan, vxlan6 api.Encapsulation
		link6               int
		want                int
	}{
		"no tunnel":              {never, never, never, 9000, 1500},
		"no tunnel, IPv6 less":   {never, never, never, 1400, 1400},
		"IPIP":                   {always, never, never, 9000, 1480},
		"VXLAN":                  {never, always, never, 9000, 1450},
		"VXLAN of IPv6":          {never, never, always, 1500, 1430},
		"VXLAN of IPv6, 9000":    {never, never, always, 9000, 1500},
		"VXLAN of both families": {never, always, always, 1500, 1430},
	} {
		s := dual(t, tt.ipip, tt.vxlan, tt.vxlan6, nil)
		s.Self.LinkMTU6 = tt.link6
		if got := s.PodMTU(); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// The error about a kernel without IPIP names the command that helps, in a form for a shell.
func TestRemedyOfNoIPIP(t *testing.T) {
	s := dual(t, api.EncapAlways, api.EncapNever, api.EncapNever, nil)
	s.Pools = append(s.Pools,
		Pool{Pool: ipam.Pool{Name: "second", CIDR: prefix("10.99.0.0/16")}, IPIP: api.EncapCrossSubnet},
		Pool{Pool: ipam.Pool{Name: "plain", CIDR: prefix("10.98.0.0/16")}})
	for in, kind := range map[groups.Group]string{groups.V1: "ippools.crd.projectcalico.org", groups.V3: "ippools.projectcalico.org"} {
		s.group = in
		err := s.NameRemedy(fmt.Errorf("tunl0: %w", ipip.ErrNoIPIP))
		_, command, _ := strings.Cut(err.Error(), ", run: ")
		want := "kubectl patch " + kind + ` default-ipv4-ippool second --type=merge -p '{"spec":{"ipipMode":"Never",` +
			`"vxlanMode":"Always"}}'`
		if command != want || !errors.Is(err, ipip.ErrNoIPIP) {
			t.Errorf("%v, want it to end with %s", err, want)
		}
	}
	if other := errors.New("other"); s.NameRemedy(other) != other || s.NameRemedy(nil) != nil {
		t.Error("another error has changed")
	}
}

// Unusable VTEPs are named, and the nodes count without them.
func TestBadEnds(t *testing.T) {
	w := desiredtest.World(func(w *state.Cluster) {
		w.Pools[0].Spec.VXLANMode = api.EncapCrossSubnet
		w.Nodes[0].Annotations[api.AnnotationIPv4VXLANAddr] = "192.168.2.1/32"
		w.Nodes[0].Annotations[api.AnnotationIPv6VXLANAddr] = "192.168.2.1"
		w.Nodes[2].Annotations[api.AnnotationIPv4VXLANAddr] = "192.168.3.1"
		w.Affinities = append(w.Affinities, claim("far", "192.168.3.0/26", ""), claim("us", "192.168.4.0/26", ""))
		w.Nodes[2].Annotations[api.AnnotationVXLANMAC] = "01:02"
		w.Nodes = append(w.Nodes, api.Node{Meta: api.Meta{Name: "twin", Annotations: map[string]string{
			api.AnnotationIPv4Address: "10.0.0.7/24", api.AnnotationIPv4VXLANAddr: "192.168.3.1",
		}}}, api.Node{Meta: api.Meta{Name: "us", Annotations: map[string]string{
			api.AnnotationIPv4Address: "10.0.0.8/24", api.AnnotationIPv4VXLANAddr: "192.168.4.1",
			api.AnnotationVXLANMAC: vxlan.MACOf("node1", false).String(),
		}}})
	})
	s, problems := Build(Self{Name: "node1", Addr: prefix("10.0.0.1/24")}, w)
	text := strings.Join(texts(problems), "\n")
	for _, want := range []string{
		`Node node2: annotation projectcalico.org/IPv4VXLANTunnelAddr "192.168.2.1/32" is no IPv4 address`,
		`Node node2: annotation projectcalico.org/IPv6VXLANTunnelAddr "192.168.2.1" is no IPv6 address`,
		`Node far: annotation projectcalico.org/VXLANTunnelMACAddr "01:02" is no MAC address`,
		"Node twin: its end of VXLAN tunnels, 192.168.3.1, lies in none of its blocks",
		"Node us: its end of VXLAN tunnels, 192.168.4.1 at " + vxlan.MACOf("node1", false).String() + ", has the MAC of node node1",
		"IPPool default-ipv4-ippool: spec.ipipMode Always and spec.vxlanMode CrossSubnet: a pool has one encapsulation, VXLAN is used",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("problems do not say %q:\n%s", want, text)
		}
	}
	if m, _ := s.Member("far"); m.VTEP != (VTEP{addr("192.168.3.1"), vxlan.MACOf("far", false)}) {
		t.Errorf("far: %+v", m.VTEP)
	}
	if len(s.Others) != 4 {
		t.Errorf("%d members", len(s.Others))
	}
}

// After a change of a pool, nodes' announcements and the clock decide which encapsulation is used and kept.
func TestChangeOfEncapsulation(t *testing.T) {
	never, always := api.EncapNever, api.EncapAlways
	start := time.Unix(1000, 0)
	type step struct {
		after       time.Duration
		ipip, vxlan api.Encapsulation
		change      func(*state.Cluster)
		near        string // the way to node2, which has a block
		ipipDev     bool   // this node has tunl0
		vxlanDev    bool
		again       bool // it changes by itself
	}
	unable := Standing{VXLANTunnel: true} // a kernel without IPIP
	noEnd := func(w *state.Cluster) { delete(w.Nodes[0].Annotations, api.AnnotationIPv4VXLANAddr) }
	elsewhere := func(*state.Cluster) {} // this node's subnet is its own address: see below
	noIPIP := func(w *state.Cluster) { delete(w.Nodes[0].Annotations, api.AnnotationIPv4TunnelAddr) }
	for name, steps := range map[string][]step{
		"IPIP to VXLAN": {
			{0, always, never, noEnd, "10.0.0.2 tunl0 onlink", true, false, false},
			{1, never, always, noEnd, "10.0.0.2 tunl0 onlink", true, true, true},
			{2, never, always, nil, ours, true, true, true},
			{1 + keepTime, never, always, nil, ours, false, true, false},
		},
		"a node that does not follow": {
			{0, always, never, noEnd, "10.0.0.2 tunl0 onlink", true, false, false},
			{1, never, always, noEnd, "10.0.0.2 tunl0 onlink", true, true, true},
			{9 * keepTime, never, always, noEnd, "10.0.0.2 tunl0 onlink", true, true, false},
			{9*keepTime + 1, never, always, nil, ours, false, true, false},
		},
		"VXLAN to IPIP": {
			{0, never, always, noIPIP, ours, false, true, false},
			{1, always, never, noIPIP, ours, true, true, true},
			{2, always, never, nil, "10.0.0.2 tunl0 onlink", true, true, true},
			{1 + followTime, always, never, nil, "10.0.0.2 tunl0 onlink", true, true, true},
			{1 + keepTime, always, never, nil, "10.0.0.2 tunl0 onlink", true, false, false},
		},
		"a node without an address of IPIP": {
			{0, never, always, noIPIP, ours, false, true, false},
			{1, always, never, noIPIP, ours, true, true, true},
			{followTime, always, never, noIPIP, ours, true, true, true},
			{1 + followTime, always, never, noIPIP, "10.0.0.2 tunl0 onlink", true, true, true},
			{1 + keepTime, always, never, noIPIP, "10.0.0.2 tunl0 onlink", true, false, false},
		},
		"to nothing and back": {
			{0, never, always, nil, ours, false, true, false},
			{1, never, never, nil, "10.0.0.2 eth0", false, true, true},
			{2, never, always, nil, ours, false, true, true},
			{2 + keepTime, never, always, nil, ours, false, true, false},
		},
		"a node in another subnet": {
			{0, never, always, elsewhere, ours, false, true, false},
			{1, never, never, elsewhere, ours, false, true, true},
			{1 + followTime, never, never, elsewhere, "none", false, true, true},
			{1 + keepTime, never, never, elsewhere, "none", false, false, false},
		},
		"a new agent": {
			{0, never, always, noEnd, "none", false, true, false},
			{1, never, always, nil, ours, false, true, false},
		},
		"IPIP that never stood to VXLAN": {
			{0, always, never, noEnd, "10.0.0.2 tunl0 onlink", true, false, false},
			{1, never, always, noEnd, "none", false, true, false},
			{2, never, always, nil, ours, false, true, false},
		},
		"from VXLAN to IPIP that never stood, and back": {
			{0, never, always, nil, ours, false, true, false},
			{1, always, never, nil, "10.0.0.2 tunl0 onlink", true, true, true},
			{2, never, always, nil, ours, false, true, true},
			{1 + keepTime, never, always, nil, ours, false, true, false},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var c Changes
			for i, st := range steps {
				s := dual(t, st.ipip, st.vxlan, never, st.change)
				if strings.Contains(name, "another subnet") {
					s.Self.Addr = prefix("10.0.0.1/32")
				}
				standing := Standing{true, true, true}
				if strings.Contains(name, "never stood") {
					standing = unable
				}
				again := c.Follow(s, standing, start.Add(st.after))
				_, ipip := s.Tunnel()
				got := []any{s.wayTo(t, near), ipip, s.Tunnels().VXLAN != nil, again > 0, s.Guard().IPIP, s.Guard().VXLAN}
				difftest.Want(t, fmt.Sprintf("step %d: way, tunl0, VXLAN, again, the guard's IPIP and VXLAN", i),
					[]any{st.near, st.ipipDev, st.vxlanDev, st.again, st.ipipDev, st.vxlanDev}, got)
				if assign, keep := s.TunnelRanges(VXLANTunnel); len(keep) > 0 != st.vxlanDev || len(assign) > 0 != (st.vxlan == always) {
					t.Errorf("step %d: the address of VXLAN is kept in %v, assigned from %v", i, keep, assign)
				}
			}
		})
	}
}

// A node's VTEP leads to the node: so an earlier agent's routes make claims.
func TestBehind(t *testing.T) {
	s := dual(t, api.EncapNever, api.EncapAlways, api.EncapAlways, nil)
	for via, want := range map[string]string{"192.168.2.1": near, "fd44::2:1": near6, near: near, "10.0.0.77": "10.0.0.77"} {
		if got := s.Behind(addr(via)); got != addr(want) {
			t.Errorf("behind %s: %s, want %s", via, got, want)
		}
	}
}

// IPIPWays has the destinations tunneled to each node, and those inside of them that go elsewhere: several next hops,
// no tunnel, pods of this node.
func TestIPIPWays(t *testing.T) {
	p, hop := netip.MustParsePrefix, func(via, dev string) routes.Hop { return routes.Hop{Via: netip.MustParseAddr(via), Dev: dev} }
	two := routes.Route{Dst: p("10.3.0.0/26"), Hops: []routes.Hop{hop("192.0.2.3", "tunl0"), hop("192.0.2.4", "tunl0")}}
	ways := []DesiredRoute{
		{Route: routes.Route{Dst: p("10.1.0.0/26"), Type: netlinkx.Unreachable}},
		{Route: routes.To(p("10.2.0.0/26"), hop("192.0.2.2", "tunl0"))}, {Route: two},
		{Route: routes.To(p("10.2.0.7/32"), hop("192.0.2.5", "eth0"))}, {Route: routes.To(p("fd00::/122"), hop("fd00:1::1", "vxlan-v6.calico"))},
	}
	s := Snapshot{Self: Self{Pods: []netip.Addr{netip.MustParseAddr("10.2.0.9"), netip.MustParseAddr("fd00::9")}}}
	want := []ipip.Way{{Dst: p("10.1.0.0/26")}, {Dst: p("10.2.0.0/26"), Node: netip.MustParseAddr("192.0.2.2")}, {Dst: p("10.3.0.0/26")},
		{Dst: p("10.2.0.7/32")}, {Dst: p("10.2.0.9/32")}}
	if got := s.IPIPWays(ways); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
