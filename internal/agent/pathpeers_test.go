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
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
)

// Each way of packets has its probe, or a reason why there is none.
func TestPathPeers(t *testing.T) {
	var w state.Cluster
	for _, n := range []struct{ name, addr string }{{"n2", "10.9.0.2"}, {"n3", "10.9.0.3"}, {"n4", "10.9.0.4"}, {"n5", "10.9.0.5"}, {"n6", "10.9.0.6"}} {
		w.Nodes = append(w.Nodes, api.Node{Meta: api.Meta{Name: n.name, Annotations: map[string]string{
			api.AnnotationIPv4Address: n.addr + "/24", api.AnnotationIPv4VXLANAddr: "10.1." + strings.TrimPrefix(n.name, "n") + ".0",
		}}})
	}
	w.Pools = []api.IPPool{{Meta: api.Meta{Name: "pods"}, Spec: api.IPPoolSpec{CIDR: "10.1.0.0/16", BlockSize: 26, VXLANMode: api.EncapAlways}}}
	w.Affinities = []api.BlockAffinity{{Meta: api.Meta{Name: "n2-10-1-2-0-26"}, Spec: api.BlockAffinitySpec{State: api.AffinityConfirmed, Node: "n2", CIDR: "10.1.2.0/26"}}}
	self := desired.Self{Name: "n1", Addr: prefix("10.9.0.1/24"), Link: "eth0", TunnelAddr: addr("10.1.1.1"), VTEP: addr("10.1.1.2")}
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
		way("fd00::/122", "10.9.0.4", routes.Hop{Dev: "eth0"}, false),
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
		{"n3", paths.IPIP, ipip.Device, addr("10.1.1.1"), addr("10.9.0.3"), true},
		{"n4", paths.Plain, "eth0", addr("10.9.0.1"), none, true},
		{"n5", paths.WireGuard, "eth0", none, none, false},
		{"n6", paths.Plain, "eth0", none, none, false},
	}
	got := pathPeers(k)
	if len(got) != len(all) {
		t.Fatalf("%+v", got)
	}
	for i, p := range got {
		have := want{p.Node, p.Kind, p.Device, p.Way.Back, p.Way.Outer, p.Unprobed == ""}
		if have != all[i] || p.Way.From != addr("10.9.0.1") || p.Port != 179 {
			t.Errorf("%+v, want %+v", p, all[i])
		}
	}
	if mac := vxlan.MACOf("n2", false); got[0].Way.MAC != mac {
		t.Errorf("MAC %v, want %v", got[0].Way.MAC, mac)
	}
	k.routes.starting = true
	if got := pathPeers(k); got != nil {
		t.Errorf("while routes of an earlier agent are held: %+v", got)
	}
}
