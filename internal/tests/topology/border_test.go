package topology

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// Chapter 3: a router for all nodes, and one for some nodes; routes from a router stay on the nodes that have a session
// with it.
func TestBorder(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newWorld(t, false)
	var nodes []*meshtest.Node
	for number := 11; number <= 13; number++ {
		nodes = append(nodes, w.node(t, 0, number))
	}
	meshtest.Start(t, nodes...)
	routers := w.apply(t, chapter(t, "3. "))
	core := w.host(t, "core", link{"nodes", "br0", []string{"172.31.1.2/24"}})
	edge := w.host(t, "edge", link{"nodes", "br0", []string{"172.31.1.3/24"}})
	inside := clientOf(t, core, "203.0.113.1/24", "203.0.113.10/24")
	outside := clientOf(t, edge, "198.51.100.1/24", "198.51.100.10/24")
	// The nodes' default gateway has the external routes.
	w.Fabric.Run(t, "ip", "route", "add", "198.51.100.0/24", "via", "172.31.1.3")
	coreDaemon := run(t, core, routers["core"])
	edgeDaemon := edge.Daemon(bgptest.BIRD1, bgptest.Config{Text: routers["edge"].text})

	all := []string{"172.31.1.2", "172.31.1.11", "172.31.1.12", "172.31.1.13"}
	for i, n := range nodes {
		peers := append(all[:i+1:i+1], all[i+2:]...)
		if i < 2 {
			peers = append(peers, "172.31.1.3")
		}
		peersWith(t, n, peers...)
		w.knows(t, n, append(nodes[:i:i], nodes[i+1:]...)...)
		leads(t, n.NS, n.Name, "203.0.113.0/24", "172.31.1.2 eth0")
	}
	for _, n := range nodes[:2] {
		leads(t, n.NS, n.Name, "198.51.100.0/24", "172.31.1.3 eth0")
		learned(t, edgeDaemon, n.Prefix.Addr(), everyBlock(nodes)...)
	}
	leads(t, nodes[2].NS, nodes[2].Name, "198.51.100.0/24")
	learned(t, coreDaemon, nodes[2].Prefix.Addr(), everyBlock(nodes)...)

	var pods []*meshtest.Pod
	for _, n := range nodes {
		pods = append(pods, w.pods[n])
	}
	talk(t, append(pods, inside)...)
	talk(t, append(pods, outside)...)

	// A node that is no longer a border node closes its session with the edge, and no other.
	before := uptimes(t, nodes...)
	w.shell(t, "kubectl label node node-12 border-", "")
	peersWith(t, nodes[1], "172.31.1.2", "172.31.1.11", "172.31.1.13")
	leads(t, nodes[1].NS, nodes[1].Name, "198.51.100.0/24")
	before.untouched(t, "a label was removed", "172.31.1.3")
	if _, ok := before[nodes[1]]["172.31.1.3"]; !ok {
		t.Error("node-12 had no session with the edge")
	}
	if now := sessions(t, nodes[0])["172.31.1.3"]; !now.Since.Equal(before[nodes[0]]["172.31.1.3"]) {
		t.Errorf("node-11's session with the edge is up since %v, and was since %v", now.Since, before[nodes[0]]["172.31.1.3"])
	}
}

// everyBlock returns the routes that any node announces to a router of another AS: the blocks of all nodes, in order.
func everyBlock(nodes []*meshtest.Node) (all []bgptest.Route) {
	for _, n := range nodes {
		all = append(all, bgptest.Route{Prefix: netip.MustParsePrefix(blockOf(n)), ASPath: fmt.Sprint(64512)})
	}
	return all
}
