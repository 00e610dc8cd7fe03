package topology

import (
	"slices"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// Chapter 4: route reflectors. The change from the mesh loses no packet.
func TestReflectors(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newWorld(t, true)
	var nodes []*meshtest.Node
	for number := 11; number <= 14; number++ {
		nodes = append(nodes, w.node(t, 0, number))
	}
	blocks := chapter(t, "4. ")
	isPools := func(b block) bool { return b.language == "yaml" }
	first := slices.IndexFunc(blocks, isPools)
	pools := blocks[first]
	// In the page's order, but the pools first: a cluster has a mesh before.
	w.apply(t, []block{pools})
	meshtest.Start(t, nodes...)
	meshtest.Settle(t, nodes...)
	// The route to this address is known by BGP only.
	w.AssignBorrowed(t, blockOf(nodes[3]), nodes[3], 9, nodes[2])
	guest := nodes[2].NewPod(t, "10.90.14.9")
	leads(t, nodes[3].NS, nodes[3].Name, "10.90.14.9", nodes[2].Prefix.Addr().String()+" eth0")
	packets := slices.Concat(meshtest.StartTraffic(t, w.pods[nodes[2]], w.pods[nodes[3]]), meshtest.StartTraffic(t, w.pods[nodes[3]], guest),
		meshtest.StartTraffic(t, w.pods[nodes[0]], w.pods[nodes[3]]))

	w.apply(t, blocks)
	for i, n := range nodes {
		var peers []string
		for j, other := range nodes {
			if i != j && (i < 2 || j < 2) {
				peers = append(peers, other.Prefix.Addr().String(), other.V6.String())
			}
		}
		peersWith(t, n, peers...)
		for j, other := range nodes {
			if i == j {
				continue
			}
			w.knows(t, n, other)
			by, by6 := []string{"172.31.1.11", "172.31.1.12"}, []string{nodes[0].V6.String(), nodes[1].V6.String()}
			learnedFrom(t, n, blockOf(other), append(by, other.Prefix.Addr().String())...)
			learnedFrom(t, n, block6Of(other), append(by6, other.V6.String())...)
		}
	}
	packets.Onward(t, time.Second)
	packets.Intact(t)

	// New routes are learned through the reflectors.
	nodes[2].Claim(t, "10.90.200.0/26")
	leads(t, nodes[3].NS, nodes[3].Name, "10.90.200.0/26", nodes[2].Prefix.Addr().String()+" eth0")
	talk(t, w.pods[nodes[0]], w.pods[nodes[1]], w.pods[nodes[2]], w.pods[nodes[3]])
}
