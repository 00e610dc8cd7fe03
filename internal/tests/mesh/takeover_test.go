package mesh

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// felixTable is what Felix leaves in nftables mode: it drops packets from unknown pods.
const felixTable = `table ip calico {
	chain filter-cali-from-wl-dispatch {
		iifname "cali*" drop
	}
	chain filter-FORWARD {
		type filter hook forward priority 0; policy accept;
		iifname "calinew*" jump filter-cali-from-wl-dispatch
	}
}
`

// A node migrates from Calico to the agent and back without packet loss, beside a node that keeps Calico and one that
// always has the agent. One pool has no encapsulation, with BIRD's routes, and one has VXLAN, with Felix's. The agent
// starts while BIRD still runs, and does not change its routes; then it takes over. After the return both have their
// routes again. Only the BIRD of the node that keeps Calico may lose packets.
func TestNodeChangesOverAndBack(t *testing.T) {
	t.Parallel()
	c := meshtest.NewCluster(t)
	vx := meshtest.NewPool("vxlan", "10.91.0.0/16", api.EncapNever)
	vx.Spec.VXLANMode = api.EncapAlways
	c.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever), vx)
	agent, agentPod := c.NewNodeWithPod(t, 0, 40)
	ours := agent.Prefix.Addr()
	stays := newCalicoNode(t, c, 30, ours, netip.MustParseAddr("172.31.1.20"))
	node := newCalicoNode(t, c, 20, ours, stays.Prefix.Addr())
	peers := []netip.Addr{ours, stays.Prefix.Addr()}
	felix, staying := withFelix(t, c, node.Node, "10.91.20.0/26"), withFelix(t, c, stays.Node, "10.91.30.0/26")
	agent.Claim(t, "10.91.40.0/26")
	vxPod := agent.NewPod(t, "10.91.40.5")
	meshtest.Start(t, agent)
	meshtest.Eventually(t, func() error { return agent.Settled(2) })
	meshtest.Eventually(t, func() error {
		if !end(t, agent, false).IsValid() {
			return fmt.Errorf("%s has announced no tunnel endpoint", agent.Name)
		}
		return nil
	})
	felix.knows(t, staying.Node, staying.end, staying.block)
	staying.knows(t, felix.Node, felix.end, felix.block)
	for _, f := range []*felixNode{felix, staying} {
		f.knows(t, agent, end(t, agent, false), "10.91.40.0/26")
	}
	for _, block := range []struct {
		prefix string
		via    netip.Addr
	}{{"10.90.40.0/26", ours}, {stays.block, stays.Prefix.Addr()}} {
		bgptest.WaitKernel(t, node.bird.On(), block.prefix, block.via)
	}
	leaveFelix(t, node)

	streams := func() (all meshtest.Traffic) {
		for _, pair := range [][2]*meshtest.Pod{{node.pod, agentPod}, {node.pod, stays.pod}, {felix.pod, vxPod}, {felix.pod, staying.pod},
			{stays.pod, agentPod}, {staying.pod, vxPod}} {
			all = append(all, meshtest.StartTraffic(t, pair[0], pair[1])...)
		}
		all[3].PastBIRD(1) // from stays.pod to node.pod
		return all
	}
	packets := streams()
	before := node.routesOf(t, "bird")
	node.Env = append(node.Env, "TORTIE_REMOVE_CALICO_RULES=true")
	node.Start(t, meshtest.Build)
	meshtest.Eventually(t, func() error { return node.complains("BIRD still runs on this node") })
	if after := node.routesOf(t, "bird"); after != before {
		t.Errorf("BIRD's routes while it runs:\n%s\nbefore:\n%s", after, before)
	}
	node.bird.Signal(syscall.SIGKILL)
	meshtest.Eventually(t, func() error { return node.Settled(len(peers)) })
	for _, route := range []string{"10.90.40.0/26 via 172.31.1.40 dev eth0", stays.block + " via 172.31.1.30 dev eth0",
		"unreachable " + node.block} {
		if err := node.Has(t, route); err != nil {
			t.Errorf("%v:\n%s", err, node.Routes(t))
		}
	}
	meshtest.Eventually(t, func() error {
		if left := node.routesOf(t, "bird") + node.routesOf(t, "80"); left != "" {
			return fmt.Errorf("left of BIRD's and Felix's routes: %s", left)
		}
		return node.Has(t, fmt.Sprintf("%s via %s dev vxlan.calico onlink", staying.block, staying.end))
	})
	meshtest.Eventually(t, func() error {
		if text, err := node.Try("nft", "list", "tables"); err != nil || strings.Contains(text, "calico") {
			return fmt.Errorf("tables of nftables: %s, %v", text, err)
		}
		return nil
	})
	packets.Onward(t, 3*time.Second) // the other BIRD drops stale routes at the End-of-RIB
	packets.Intact(t)

	packets = streams()
	if text, err := node.Try(meshtest.Program(t, meshtest.Build), "cleanup"); err == nil || !strings.Contains(text+err.Error(), "still runs") {
		t.Errorf("cleanup while the agent runs: %v\n%s", err, text)
	}
	node.Signal(t, syscall.SIGTERM)
	node.bird.Restart()
	for _, peer := range peers {
		bgptest.WaitState(t, node.bird, peer, "Established")
	}
	leaveFelix(t, node)
	text, err := node.Try(meshtest.Program(t, meshtest.Build), "cleanup")
	for _, want := range []string{
		"give route to BIRD: blackhole " + node.block, "give route to BIRD: " + stays.block + " via 172.31.1.30 dev eth0",
		fmt.Sprintf("give route to Felix: %s via %s dev vxlan.calico", staying.block, staying.end), "remove: table inet tortie",
	} {
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("cleanup: %v; want %q:\n%s", err, want, text)
		}
	}
	if left := node.Routes(t); left != "" {
		t.Errorf("left of the agent's routes:\n%s", left)
	}
	packets.Onward(t, 5*time.Second) // two scans of BIRD
	for _, want := range []string{"10.90.40.0/26 via 172.31.1.40 dev eth0", stays.block + " via 172.31.1.30 dev eth0",
		"blackhole " + node.block} {
		if got := node.routesOf(t, "bird"); !strings.Contains(got, want) {
			t.Errorf("BIRD has no route %q:\n%s", want, got)
		}
	}
	for _, f := range []*felixNode{staying, {Node: agent, block: "10.91.40.0/26", end: end(t, agent, false)}} {
		if want, got := fmt.Sprintf("%s via %s dev vxlan.calico onlink", f.block, f.end), node.routesOf(t, "80"); !strings.Contains(got, want) {
			t.Errorf("Felix has no route %q:\n%s", want, got)
		}
	}
	meshtest.Eventually(t, func() error { return agent.Settled(2) })
	packets.Intact(t)

	// The routes are BIRD's own: a withdrawal removes them.
	stays.bird.Announce(netip.MustParsePrefix("10.90.31.0/26"))
	bgptest.WaitKernel(t, node.bird.On(), "10.90.31.0/26", stays.Prefix.Addr())
	meshtest.Eventually(t, func() error {
		if got := node.routesOf(t, "bird"); strings.Contains(got, stays.block) {
			return fmt.Errorf("the route of a withdrawn block is still there:\n%s", got)
		}
		return nil
	})
}

// leaveFelix leaves the traces of Felix on the node, and a BIRD route of a deleted node.
func leaveFelix(t testing.TB, n *calicoNode) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "felix.nft")
	errtest.Must(t, os.WriteFile(file, []byte(felixTable), 0o600))
	n.Run(t, "nft", "-f", file)
}

func (n *calicoNode) routesOf(t testing.TB, protocol string) string {
	t.Helper()
	return n.Run(t, "ip", "route", "show", "proto", protocol)
}

// complains returns nil if the agent's status reports a problem.
func (n *calicoNode) complains(about string) error {
	r, err := n.Status()
	if err != nil {
		return err
	}
	if text := strings.Join(r.Problems, "\n"); !strings.Contains(text, about) {
		return fmt.Errorf("problems of %s:\n%s", n.Name, text)
	}
	return nil
}
