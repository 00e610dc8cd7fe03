package topology

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// farRouter is two hops from the first node, behind the router between the subnets, on a port of its own.
const farRouter = `
router id 172.31.2.2;
protocol device { }
protocol direct { ipv4; interface "*"; }
protocol static { ipv4; route 203.0.113.0/24 blackhole; }
protocol bgp node_11 {
  local 172.31.2.2 port 1179 as 65077;
  neighbor 172.31.1.11 as 65055;
  multihop 2;
  ttl security on;
  passive on;
  graceful restart on;
  ipv4 { import all; export where source = RTS_STATIC; };
}
`

// All fields of a BGPPeer in one session, and a BGPConfiguration of one node.
func TestPeerFields(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newWorld(t, false)
	w.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever))
	nodes := []*meshtest.Node{w.node(t, 0, 11), w.node(t, 0, 12)}
	far := w.host(t, "far", link{"nodes", "br1", []string{"172.31.2.2/24"}})
	far.Route(t, "172.31.1.0/24", "172.31.2.1", "nodes")
	router := far.Daemon(bgptest.BIRD2, bgptest.Config{Text: farRouter})
	near := w.host(t, "near", link{"nodes", "br0", []string{"172.31.1.2/24"}}).Daemon(bgptest.FRR, bgptest.Config{
		ASN: 65000, Sessions: []bgptest.Session{{Peer: nodes[0].Prefix.Addr(), ASN: 64512}, {Peer: nodes[1].Prefix.Addr(), ASN: 64512}},
	})
	local, hops := uint32(65055), 2
	w.Create(t,
		&api.BGPPeer{Meta: api.Meta{Name: "far"}, Spec: api.BGPPeerSpec{
			Node: "node-11", PeerIP: "172.31.2.2:1179", ASNumber: 65077, LocalASNumber: &local, ReachableBy: "172.31.1.1",
			TTLSecurity: &hops, KeepaliveTime: "7s", MaxRestartTime: "77s", NextHopMode: "Self", SourceAddress: "UseNodeIP",
		}},
		&api.BGPPeer{Meta: api.Meta{Name: "near"}, Spec: api.BGPPeerSpec{PeerIP: "172.31.1.2", ASNumber: 65000, SourceAddress: "None"}},
		&api.BGPConfiguration{Meta: api.Meta{Name: "node.node-11"}, Spec: api.BGPConfigurationSpec{
			PrefixAdvertisements: []api.PrefixAdvertisement{{CIDR: "10.90.11.0/26", Communities: []string{"65000:11"}}},
		}})
	meshtest.Start(t, nodes...)
	peersWith(t, nodes[0], "172.31.1.2", "172.31.1.12", "172.31.2.2")
	peersWith(t, nodes[1], "172.31.1.2", "172.31.1.11")

	first := nodes[0].Prefix.Addr()
	block := func(n *meshtest.Node, path, communities string, via netip.Addr) bgptest.Route {
		return bgptest.Route{Prefix: netip.MustParsePrefix(blockOf(n)), NextHop: via, ASPath: path, Communities: communities}
	}
	learned(t, router, first, block(nodes[0], "65055", "65000:11", first), block(nodes[1], "65055", "", first))
	// Routes announced over eBGP have this node as next hop, and learned routes keep their communities.
	learned(t, near, first, block(nodes[0], "64512", "65000:11", first), block(nodes[1], "64512", "", netip.Addr{}))
	learned(t, near, nodes[1].Prefix.Addr(), block(nodes[0], "64512", "65000:11", netip.Addr{}),
		block(nodes[1], "64512", "", nodes[1].Prefix.Addr()))
	leads(t, nodes[0].NS, nodes[0].Name, "172.31.2.2", "172.31.1.1 eth0")
	leads(t, nodes[0].NS, nodes[0].Name, "203.0.113.0/24", "172.31.1.1 eth0")
	said := router.Session(first)
	difftest.Contains(t, said, "Restart time: 77", "Hold timer:")

	// After the deletion of the peer no route to it or from it is left.
	w.Remove(t, &api.BGPPeer{Meta: api.Meta{Name: "far"}})
	peersWith(t, nodes[0], "172.31.1.2", "172.31.1.12")
	meshtest.Eventually(t, func() error {
		if text := nodes[0].Run(t, "ip", "route", "show", "via", "172.31.1.1", "proto", "84"); text != "" {
			return fmt.Errorf("routes of a deleted peer: %s", text)
		}
		return nil
	})
}
