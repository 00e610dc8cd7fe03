package agent

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/agent/paths"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/kernel/hairpin"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
)

// Each path of packets has its probe, or a reason why there is none.
func TestPathPeers(t *testing.T) {
	var w state.Cluster
	for _, n := range []struct{ name, addr string }{{"n2", "10.9.0.2"}, {"n3", "10.9.0.3"}, {"n4", "10.9.0.4"},
		{"n5", "10.9.0.5"}, {"n6", "10.9.0.6"}} {
		number := strings.TrimPrefix(n.name, "n")
		w.Nodes = append(w.Nodes, api.Node{Meta: api.Meta{Name: n.name, Annotations: map[string]string{
			api.AnnotationIPv4Address: n.addr + "/24", api.AnnotationIPv4VXLANAddr: "10.1." + number + ".0",
			api.AnnotationIPv6Address: "fd09::" + number + "/64", api.AnnotationIPv6VXLANAddr: "fd00::" + number + ":0",
		}}})
	}
	w.Pools = []api.IPPool{
		{Meta: api.Meta{Name: "pods"}, Spec: api.IPPoolSpec{CIDR: "10.1.0.0/16", BlockSize: 26, VXLANMode: api.EncapAlways}},
		{Meta: api.Meta{Name: "pods6"}, Spec: api.IPPoolSpec{CIDR: "fd00::/64", BlockSize: 122, VXLANMode: api.EncapAlways}},
	}
	for block, node := range map[string]string{"10.1.2.0/26": "n2", "fd00::2:0/122": "n2", "fd00::1:0/122": "n1"} {
		w.Affinities = append(w.Affinities, api.BlockAffinity{
			Meta: api.Meta{Name: node + block}, Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: node, CIDR: block},
		})
	}
	self := desired.Self{
		Name: "n1", Addr: prefix("10.9.0.1/24"), Link: "eth0", TunnelAddr: addr("10.1.1.1"), VTEP: addr("10.1.1.2"),
		Addr6: prefix("fd09::1/64"), Link6: "eth0", VTEP6: addr("fd00::1:0"),
	}
	s, _ := desired.Build(self, w)
	way := func(block, node string, hop routes.Hop, encrypted bool) desired.DesiredRoute {
		return desired.DesiredRoute{
			Route: routes.Route{Dst: prefix(block), Hops: []routes.Hop{hop}}, Encrypted: encrypted,
			Paths: []bgp.Path{{Prefix: prefix(block), NextHop: addr(node)}},
		}
	}
	k := &seen{node: "n1", ready: true, snapshot: &s, routes: routesSeen{ways: []desired.DesiredRoute{
		{Route: routes.Route{Dst: prefix("10.1.1.0/26")}, About: "own block"},
		way("10.1.6.0/26", "10.9.0.6", routes.Hop{Dev: "eth0", Via: addr("10.9.0.254")}, false),
		way("10.1.2.0/26", "10.9.0.2", routes.Hop{Dev: vxlan.Device4, Via: addr("10.1.2.0")}, false),
		way("10.1.2.64/26", "10.9.0.2", routes.Hop{Dev: "eth0", Via: addr("10.9.0.2")}, false), // the first counts
		way("10.1.3.0/26", "10.9.0.3", routes.Hop{Dev: ipip.Device, Via: addr("10.9.0.3")}, false),
		way("10.1.4.0/26", "10.9.0.4", routes.Hop{Dev: "eth0", Via: addr("10.9.0.4")}, false),
		way("10.1.5.0/26", "10.9.0.5", routes.Hop{Dev: "eth0", Via: addr("10.9.0.5")}, true),
		way("192.0.2.0/24", "10.9.0.200", routes.Hop{Dev: "eth0", Via: addr("10.9.0.200")}, false), // no node
		way("fd00::2:0/122", "fd09::2", routes.Hop{Dev: vxlan.Device6, Via: addr("fd00::2:0")}, false),
		way("fd00::4:0/122", "fd09::4", routes.Hop{Dev: "eth0", Via: addr("fd09::4")}, false),
		way("fd00::6:0/122", "fd09::6", routes.Hop{Dev: "eth0", Via: addr("fd09::ff")}, false),
	}}}
	type want struct {
		node        string
		kind        paths.Kind
		device      string
		back, outer netip.Addr
		probed      bool
	}
	none := netip.Addr{}
	all := []want{
		{"n2", paths.VXLAN, vxlan.Device4, addr("10.1.1.2"), none, true},
		{"n2", paths.VXLAN, vxlan.Device6, addr("fd00::1:0"), none, true},
		{"n3", paths.IPIP, ipip.Device, addr("10.1.1.1"), addr("10.9.0.3"), true},
		{"n4", paths.Plain, "eth0", addr("10.9.0.1"), none, true},
		{"n4", paths.Plain, "eth0", addr("fd09::1"), none, true},
		{"n5", paths.WireGuard, "eth0", none, none, false},
		{"n6", paths.Plain, "eth0", none, none, false},
		{"n6", paths.Plain, "eth0", none, none, false},
	}
	got := pathPeers(k)
	if len(got) != len(all) {
		t.Fatalf("%+v", got)
	}
	for i, p := range got {
		have := want{p.Node, p.Kind, p.Device, p.Way.Back, p.Way.Outer, p.Unprobed == ""}
		from, source := addr("10.9.0.1"), hairpin.Dummy
		if p.Addr.Is6() {
			from, source = addr("fd09::1"), addr("fd00::1:1") // the first of the block that is not the tunnel's
		}
		if have != all[i] || p.Way.From != from || p.Way.Source != source || p.Port != 179 {
			t.Errorf("%+v, want %+v", p, all[i])
		}
	}
	for i, v6 := range []bool{false, true} {
		if mac := vxlan.MACOf("n2", v6); got[i].Way.MAC != mac {
			t.Errorf("MAC %v, want %v", got[i].Way.MAC, mac)
		}
	}
	s.Blocks = nil
	if p := pathPeers(k)[1]; p.Unprobed == "" {
		t.Errorf("without a block of this node: %+v", p)
	}
	k.routes.starting = true
	if got := pathPeers(k); got != nil {
		t.Errorf("while routes of an earlier agent are held: %+v", got)
	}
}
