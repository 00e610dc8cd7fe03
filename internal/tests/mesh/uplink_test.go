package mesh

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// newRouter starts a router of AS 65001 that announces prefixes to a node.
func newRouter(t testing.TB, ns *netnstest.NS, addr, node string, announce ...string) {
	t.Helper()
	config := bgptest.Config{ASN: 65001, Sessions: []bgptest.Session{{Peer: netip.MustParseAddr(node), ASN: 64512}}}
	for _, p := range announce {
		config.Announce = append(config.Announce, netip.MustParsePrefix(p))
	}
	(&bgptest.Host{NS: ns, T: t, V4: netip.MustParseAddr(addr)}).Daemon(bgptest.BIRD2, config)
}

func newBGPPeer(name, ip string, change func(*api.BGPPeerSpec)) *api.BGPPeer {
	p := &api.BGPPeer{Meta: api.Meta{Name: name}, Spec: api.BGPPeerSpec{PeerIP: ip, ASNumber: 65001, SourceAddress: "None"}}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

// shown returns the kernel's route to a prefix in one line, or "".
func shown(t testing.TB, n *meshtest.Node, prefix string) string {
	t.Helper()
	return strings.Join(strings.Fields(n.Run(t, "ip", "route", "show", "exact", prefix)), " ")
}

// A node has a router at each of two links: a prefix outside of the pools that both announce has one multipath route,
// with a higher metric than the host's own routes. When one link fails the kernel uses the other long before BGP
// detects it; both are used again when the link is back. A third router is reached by a gateway from its BGPPeer, and
// so are its prefixes. Deleting the objects deletes their routes.
func TestUplinks(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := meshtest.NewCluster(t)
	c.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever))
	n := c.NewNode(t, "node", 0, 20)
	n.Claim(t, "10.90.20.0/26")

	left, right, far := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	netnstest.Cable(t, left, "eth0", c.Fabric, "left")
	c.Fabric.Run(t, "ip", "link", "set", "left", "master", "br0")
	left.Addr(t, "eth0", "172.31.1.2/24")
	netnstest.Cable(t, n.NS, "eth1", right, "eth0")
	n.Addr(t, "eth1", "172.31.9.20/24")
	right.Addr(t, "eth0", "172.31.9.2/24")
	netnstest.Cable(t, left, "far", far, "eth0")
	left.Addr(t, "far", "172.31.8.1/24")
	far.Addr(t, "eth0", "172.31.8.2/24")
	far.Addr(t, "lo", "10.255.0.9/32")
	far.Route(t, "172.31.1.0/24", "172.31.8.1", "eth0")
	left.Route(t, "10.255.0.9/32", "172.31.8.2", "far")
	left.Within(t, func() error { return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1") })
	newRouter(t, left, "172.31.1.2", "172.31.1.20", "10.99.0.0/16", "0.0.0.0/0", "172.31.9.0/25")
	newRouter(t, right, "172.31.9.2", "172.31.9.20", "10.99.0.0/16")
	newRouter(t, far, "10.255.0.9", "172.31.1.20", "10.98.0.0/16")

	peers := []*api.BGPPeer{
		newBGPPeer("left", "172.31.1.2", nil), newBGPPeer("right", "172.31.9.2", nil),
		newBGPPeer("far", "10.255.0.9", func(s *api.BGPPeerSpec) { s.ReachableBy = "172.31.1.2" }),
	}
	for _, p := range peers {
		c.Create(t, p)
	}
	meshtest.Start(t, n)
	becomes := func(prefix string, want ...string) {
		t.Helper()
		meshtest.Eventually(t, func() error {
			if got := shown(t, n, prefix); !slices.Contains(want, got) {
				return fmt.Errorf("route to %s: %q, want %q", prefix, got, want)
			}
			return nil
		})
	}
	const begin = "10.99.0.0/16 proto 84 metric 1024 "
	both := begin + "nexthop via 172.31.1.2 dev eth0 weight 1 nexthop via 172.31.9.2 dev eth1 weight 1"
	becomes("10.99.0.0/16", both)
	becomes("10.98.0.0/16", "10.98.0.0/16 via 172.31.1.2 dev eth0 proto 84 metric 1024")
	becomes("10.255.0.9", "10.255.0.9 via 172.31.1.2 dev eth0 proto 84")
	becomes("0.0.0.0/0", "default via 172.31.1.1 dev eth0 default via 172.31.1.2 dev eth0 proto 84 metric 1024")
	becomes("172.31.9.0/25", "")
	meshtest.Eventually(t, func() error { return n.Settled(3) })

	right.Run(t, "ip", "link", "set", "eth0", "down")
	becomes("10.99.0.0/16", "10.99.0.0/16 via 172.31.1.2 dev eth0 proto 84 metric 1024")
	if err := n.Settled(3); err != nil {
		t.Errorf("BGP knew before the kernel: %v", err)
	}
	right.Run(t, "ip", "link", "set", "eth0", "up")
	becomes("10.99.0.0/16", both)

	c.Remove(t, peers[0])
	becomes("10.99.0.0/16", "10.99.0.0/16 via 172.31.9.2 dev eth1 proto 84 metric 1024")
	c.Remove(t, peers[2])
	becomes("10.98.0.0/16", "")
	becomes("10.255.0.9", "")
	becomes("0.0.0.0/0", "default via 172.31.1.1 dev eth0")
}
