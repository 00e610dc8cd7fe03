package mesh

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/events"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// newPaths returns three nodes in one subnet, whose agents have had an answer of each other's.
func newPaths(t *testing.T, vxlan api.Encapsulation) []*meshtest.Node {
	t.Helper()
	c := meshtest.NewCluster(t)
	c.Launcher = []string{"setpriv", "--no-new-privs", "--bounding-set", "-all,+net_admin,+net_raw,+net_bind_service"} // what the chart grants
	pool := meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever)
	pool.Spec.VXLANMode = vxlan
	c.Create(t, pool)
	var nodes []*meshtest.Node
	for i := range 3 {
		n, _ := c.NewNodeWithPod(t, 0, 10+i)
		n.Start(t, meshtest.Build)
		nodes = append(nodes, n)
	}
	meshtest.Settle(t, nodes...)
	for _, n := range nodes {
		meshtest.Eventually(t, func() error { return paths(n, 2, 0) })
	}
	return nodes
}

// paths returns nil if so many nodes are reached by the node's pods, and so many are not.
func paths(n *meshtest.Node, up, down int) error {
	r, err := n.Status()
	if err != nil {
		return err
	}
	if p := r.Paths; p == nil || p.Up != up || p.Down != down {
		return fmt.Errorf("%s: paths are %+v, want %d up and %d down", n.Name, p, up, down)
	}
	return nil
}

// TestPaths injects faults that pods suffer from and the nodes do not: the agents of the others name the node, by Event, status and metric, and
// say when it is over.
func TestPaths(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		mode api.Encapsulation
		kind string
	}{"vxlan": {api.EncapAlways, "VXLAN"}, "plain": {api.EncapNever, "no encapsulation"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := newPaths(t, of.mode)
			bad := nodes[2]
			bad.Run(t, "nft", "add table inet hostfw; add chain inet hostfw f { type filter hook forward priority 0; policy drop; }")
			for _, n := range nodes[:2] {
				meshtest.Eventually(t, func() error { return paths(n, 1, 1) })
				meshtest.Eventually(t, func() error {
					return n.HasEvent(t, "Node", bad.Name, "PathDown", n, fmt.Sprintf("%s is not reached by pods of %s (%s, since ", bad.Name, n.Name, of.kind))
				})
				text, err := n.Metrics()
				errtest.Must(t, err)
				if want := fmt.Sprintf("tortie_path_up{kind=%q,peer=%q} 0\n", of.kind, bad.Name); !strings.Contains(text, want) {
					t.Errorf("%s has no metric %s", n.Name, want)
				}
				r, err := n.Status()
				errtest.Must(t, err)
				if m := r.Paths.Missed; len(m) != 1 || m[0].Node != bad.Name || m[0].Since.IsZero() {
					t.Errorf("%s misses %+v", n.Name, m)
				}
			}
			errtest.Must(t, paths(bad, 2, 0)) // the others forward
			bad.Run(t, "nft", "delete table inet hostfw")
			for _, n := range nodes[:2] {
				meshtest.Eventually(t, func() error { return paths(n, 2, 0) })
				meshtest.Eventually(t, func() error {
					return n.HasEvent(t, "Node", bad.Name, "PathUp", n, fmt.Sprintf("%s is reached by pods of %s again", bad.Name, n.Name))
				})
			}
			for _, n := range nodes[:2] {
				if events := n.Events(t, "Node", n.Name); hasReason(events, "PathDown") {
					t.Errorf("a node that forwards is blamed: %+v", events)
				}
			}
		})
	}
}

// TestPathsOfOne has a node that receives no VXLAN: it misses all others, and blames itself.
func TestPathsOfOne(t *testing.T) {
	t.Parallel()
	nodes := newPaths(t, api.EncapAlways)
	bad := nodes[2]
	bad.Run(t, "nft", "add table inet hostfw; add chain inet hostfw i { type filter hook input priority -10; }; add rule inet hostfw i udp dport 4789 drop")
	meshtest.Eventually(t, func() error {
		return bad.HasEvent(t, "Node", bad.Name, "PathDown", bad, fmt.Sprintf("pods of %s reach no other node (VXLAN, since ", bad.Name))
	})
	meshtest.Eventually(t, func() error {
		return bad.HasEvent(t, "Node", bad.Name, "PathDown", nodes[0], "is not reached by pods of "+nodes[0].Name)
	})
	for _, n := range nodes[:2] {
		if events := n.Events(t, "Node", n.Name); hasReason(events, "PathDown") {
			t.Errorf("a node that receives VXLAN is blamed: %+v", events)
		}
	}
	bad.Run(t, "nft", "delete table inet hostfw")
	meshtest.Eventually(t, func() error {
		return bad.HasEvent(t, "Node", bad.Name, "PathUp", bad, fmt.Sprintf("pods of %s reach other nodes again", bad.Name))
	})
}

func hasReason(all []events.Event, reason string) bool {
	return slices.ContainsFunc(all, func(e events.Event) bool { return e.Reason == reason })
}
