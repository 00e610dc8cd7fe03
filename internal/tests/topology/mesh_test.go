package topology

import (
	"fmt"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// Chapter 1: the default mesh.
func TestMesh(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	w.apply(t, chapter(t, "1. "))
	var nodes []*meshtest.Node
	for number := 11; number <= 13; number++ {
		nodes = append(nodes, w.node(t, 0, number))
	}
	meshtest.Start(t, nodes...)
	for i, n := range nodes {
		var peers []string
		for _, other := range append(nodes[:i:i], nodes[i+1:]...) {
			peers = append(peers, other.Prefix.Addr().String(), other.V6.String())
		}
		peersWith(t, n, peers...)
		for _, other := range append(nodes[:i:i], nodes[i+1:]...) {
			w.knows(t, n, other)
			learnedFrom(t, n, blockOf(other), other.Prefix.Addr().String())
			learnedFrom(t, n, block6Of(other), other.V6.String())
		}
	}
	talk(t, w.pods[nodes[0]], w.pods[nodes[1]], w.pods[nodes[2]])
}

// knows waits until a node's kernel has routes to the blocks of other nodes with these nodes as next hops.
func (w *world) knows(t testing.TB, n *meshtest.Node, others ...*meshtest.Node) {
	t.Helper()
	for _, other := range others {
		leads(t, n.NS, n.Name, blockOf(other), fmt.Sprint(other.Prefix.Addr(), " eth0"))
		if w.Dual {
			leads(t, n.NS, n.Name, block6Of(other), fmt.Sprint(other.V6, " eth0"))
		}
	}
}

// blockOf is the node's IPv4 block.
func blockOf(n *meshtest.Node) string { return fmt.Sprintf("10.90.%d.0/26", numberOf(n)) }

// block6Of is the node's IPv6 block.
func block6Of(n *meshtest.Node) string { return fmt.Sprintf("fd90::%x:0/122", numberOf(n)) }

func numberOf(n *meshtest.Node) byte { return n.Prefix.Addr().As4()[3] }
