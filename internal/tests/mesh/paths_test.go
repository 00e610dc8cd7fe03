package mesh

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/events"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// stack is whether a cluster has IPv4 and IPv6.
type stack [2]bool

var ipv4, ipv6, dual = stack{true, false}, stack{false, true}, stack{true, true}

// newPaths returns three nodes in one subnet, whose agents have received each other's answers.
func newPaths(t *testing.T, vxlan api.Encapsulation, s stack) []*meshtest.Node {
	t.Helper()
	c := meshtest.NewCluster(t)
	// The chart's capabilities.
	c.Launcher = []string{"setpriv", "--no-new-privs", "--bounding-set", "-all,+net_admin,+net_raw,+net_bind_service"}
	c.Dual = s[1]
	if !s[0] {
		c.Env = append(c.Env, "IP=none", "CALICO_ROUTER_ID=hash")
	}
	blocks := []string{"10.90.%d.0/26", "fd90::%x:0/122"}
	for f, cidr := range []string{"10.90.0.0/16", "fd90::/64"} {
		if s[f] {
			pool := meshtest.NewPool(fmt.Sprint("pods", f), cidr, api.EncapNever)
			pool.Spec.VXLANMode = vxlan
			c.Create(t, pool)
		}
	}
	var nodes []*meshtest.Node
	for i := range 3 {
		n := c.NewNode(t, fmt.Sprint("node-", 10+i), 0, 10+i)
		for f, block := range blocks {
			if s[f] {
				n.Claim(t, fmt.Sprintf(block, 10+i))
			}
		}
		n.Start(t, meshtest.Build)
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		meshtest.Eventually(t, func() error { return paths(n, s, 2, 0) })
	}
	return nodes
}

// paths returns nil if up nodes are reached by the node's pods, and down are not, in each family.
func paths(n *meshtest.Node, s stack, up, down int) error {
	r, err := n.Status()
	if err != nil {
		return err
	}
	for f, p := range []*nodestatus.Paths{r.Paths, r.Paths6} {
		if s[f] && (p == nil || p.Up != up || p.Down != down) {
			return fmt.Errorf("%s: paths are %+v, of IPv6 %+v; want %d up and %d down", n.Name, r.Paths, r.Paths6, up, down)
		}
	}
	return nil
}

// TestPaths injects faults that affect pods and not nodes: the other nodes' agents report the node, by Event, status
// and metric, and its recovery.
func TestPaths(t *testing.T) {
	t.Parallel()
	for _, of := range []struct {
		name         string
		mode         api.Encapsulation
		stack, fails stack
		table        string // of nftables
		kind, way    string
		sysctl       string
	}{
		{"dual-stack, IPv6 fails", api.EncapAlways, dual, ipv6, "ip6", "VXLAN", "VXLAN, IPv6", "net.ipv6.conf.all.forwarding"},
		{"plain", api.EncapNever, ipv4, ipv4, "inet", "no encapsulation", "no encapsulation", "net.ipv4.ip_forward"},
		{"vxlan", api.EncapAlways, ipv4, ipv4, "inet", "VXLAN", "VXLAN", "net.ipv4.ip_forward"},
		{"vxlan, IPv6", api.EncapAlways, ipv6, ipv6, "inet", "VXLAN", "VXLAN", "net.ipv6.conf.all.forwarding"},
		{"plain, IPv6", api.EncapNever, ipv6, ipv6, "inet", "no encapsulation", "no encapsulation", "net.ipv6.conf.all.forwarding"},
	}[:tier.Size(2, 5)] {
		t.Run(of.name, func(t *testing.T) {
			t.Parallel()
			nodes := newPaths(t, of.mode, of.stack)
			bad := nodes[2]
			bad.Run(t, "nft",
				fmt.Sprintf("add table %s hostfw; add chain %[1]s hostfw f { type filter hook forward priority 0; policy drop; }", of.table))
			for _, n := range nodes[:2] {
				meshtest.Eventually(t, func() error { return paths(n, of.fails, 1, 1) })
				meshtest.Eventually(t, func() error {
					return n.HasEvent(t, "Node", bad.Name, "PathDown", n,
						fmt.Sprintf("%s is not reached by pods of %s (%s, since ", bad.Name, n.Name, of.way))
				})
				if all := n.Events(t, "Node", bad.Name); !slices.ContainsFunc(all,
					func(e events.Event) bool { return strings.Contains(e.Message, of.sysctl) }) {
					t.Errorf("no Event names sysctl %s: %+v", of.sysctl, all)
				}
				text, err := n.Metrics()
				errtest.Must(t, err)
				r, err := n.Status()
				errtest.Must(t, err)
				for f, p := range []*nodestatus.Paths{r.Paths, r.Paths6} {
					if !of.stack[f] {
						continue
					}
					up := 1
					if of.fails[f] {
						up = 0
						if m := p.Missed; len(m) != 1 || m[0].Node != bad.Name || m[0].Since.IsZero() {
							t.Errorf("%s misses %+v", n.Name, m)
						}
					}
					if want := fmt.Sprintf("tortie_path_up{family=%q,kind=%q,peer=%q} %d\n", []string{"IPv4", "IPv6"}[f], of.kind, bad.Name,
						up); !strings.Contains(text, want) {
						t.Errorf("%s has no metric %s", n.Name, want)
					}
				}
			}
			errtest.Must(t, paths(bad, of.stack, 2, 0)) // the others forward
			// After a minute, the next agent has the last known state of the node's paths.
			if again := nodes[0]; whole() && of.name == "vxlan" {
				again.Signal(t, syscall.SIGKILL)
				again.Start(t, meshtest.Build)
				meshtest.Within(t, 3*meshtest.Patience, func() error { return paths(again, of.fails, 1, 1) })
			}
			bad.Run(t, "nft", "delete table "+of.table+" hostfw")
			for _, n := range nodes[:2] {
				meshtest.Eventually(t, func() error { return paths(n, of.stack, 2, 0) })
				meshtest.Eventually(t, func() error {
					return n.HasEvent(t, "Node", bad.Name, "PathUp", n,
						fmt.Sprintf("%s is reached by pods of %s again (%s, after ", bad.Name, n.Name, of.way))
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

// TestPathsOfOne has a node that receives no VXLAN: all others are unreachable for it, and it reports itself as the
// cause.
func TestPathsOfOne(t *testing.T) {
	tier.All(t)
	t.Parallel()
	nodes := newPaths(t, api.EncapAlways, ipv4)
	bad := nodes[2]
	bad.Run(t, "nft",
		"add table inet hostfw; add chain inet hostfw i { type filter hook input priority -10; }; add rule inet hostfw i udp dport 4789 drop")
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
