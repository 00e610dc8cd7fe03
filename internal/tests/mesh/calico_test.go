package mesh

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// calicoPreference is the LOCAL_PREF of Calico 3.32 and later: 2147483647 less the metric of a block's route, which
// is 1024.
const calicoPreference = 2147482623

// calicoNode is a node with Calico: BIRD 1.6 has the sessions and the kernel's routes, and the Node has the
// annotations. No agent runs on it.
type calicoNode struct {
	*meshtest.Node
	bird  bgptest.Daemon
	block string
	pod   *meshtest.Pod
}

// newCalicoNode creates a node with a block and a pod, whose BIRD has sessions with all peers.
func newCalicoNode(t testing.TB, c *meshtest.Cluster, host int, peers ...netip.Addr) *calicoNode {
	t.Helper()
	n := &calicoNode{Node: c.NewNode(t, fmt.Sprintf("calico-%d", host), 0, host), block: fmt.Sprintf("10.90.%d.0/26", host)}
	obj := &api.Node{Meta: api.Meta{Name: n.Name}}
	errtest.Must(t, c.Store.Get(t.Context(), obj))
	obj.Annotations = map[string]string{api.AnnotationIPv4Address: n.Prefix.String(), api.AnnotationASNumber: "64512"}
	errtest.Must(t, c.Store.Update(t.Context(), obj))
	n.Claim(t, n.block)
	n.Within(t, func() error { return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1") })
	n.pod = n.NewPod(t, fmt.Sprintf("10.90.%d.5", host))

	config := bgptest.Config{ASN: 64512, Announce: []netip.Prefix{netip.MustParsePrefix(n.block)}, LocalPref: calicoPreference}
	for _, peer := range peers {
		// Calico's rule: the side whose peer has the greater address, compared as text, is passive.
		passive := peer.String() > n.Prefix.Addr().String()
		config.Sessions = append(config.Sessions, bgptest.Session{Peer: peer, ASN: 64512, Passive: passive})
	}
	n.bird = (&bgptest.Host{NS: n.NS, T: t, V4: n.Prefix.Addr()}).Daemon(bgptest.BIRD1, config)
	return n
}

// An agent in a mesh of Calico nodes, as during a migration: it connects to one of two and waits for the other. All
// kernels have the others' routes, pods reach each other, and restarts on either side lose no packet.
func TestAmongCalicoNodes(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := meshtest.NewCluster(t)
	c.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever))
	agent, first := c.NewNodeWithPod(t, 0, 20)
	pods := []*meshtest.Pod{first, agent.NewPod(t, "10.90.20.6")}
	ours := agent.Prefix.Addr()
	calico := []*calicoNode{
		newCalicoNode(t, c, 100, ours, netip.MustParseAddr("172.31.1.30")), // "172.31.1.100" < "172.31.1.20" < "172.31.1.30"
		newCalicoNode(t, c, 30, ours, netip.MustParseAddr("172.31.1.100")),
	}
	meshtest.Start(t, agent)
	meshtest.Eventually(t, func() error { return agent.Settled(len(calico)) })
	known(t, agent, calico)
	streams := func() meshtest.Traffic {
		return append(meshtest.StartTraffic(t, pods[0], calico[0].pod), meshtest.StartTraffic(t, pods[1], calico[1].pod)...)
	}

	packets := streams()
	agent.Signal(t, syscall.SIGTERM)
	agent.Start(t, meshtest.Build)
	meshtest.Eventually(t, func() error { return agent.Settled(len(calico)) })
	agent.Signal(t, syscall.SIGKILL)
	agent.Start(t, meshtest.Build)
	meshtest.Eventually(t, func() error { return agent.Settled(len(calico)) })
	packets.Onward(t, 3*time.Second) // BIRD drops stale routes at the End-of-RIB
	packets.Intact(t)

	packets = streams()
	for _, n := range calico {
		n.bird.Signal(syscall.SIGKILL)
		n.bird.Restart()
		meshtest.Eventually(t, func() error { return agent.Settled(len(calico)) })
	}
	packets.Onward(t, 3*time.Second)
	packets.Intact(t)

	// Both kinds of nodes apply a password of the mesh; the test does it for Calico's confd. In the new sessions BIRD
	// drops the old paths: no packets are counted.
	changed := time.Now()
	c.SetPassword(t, "first")
	for _, n := range calico {
		for _, peer := range append(others(calico, n), ours) {
			n.bird.SetPassword(peer, "pass-first")
		}
	}
	meshtest.Eventually(t, func() error { return agent.SessionsSince(changed, len(calico)) })
	known(t, agent, calico)
}

// known waits until the kernels of the agent and of Calico nodes have routes to each other's blocks.
func known(t testing.TB, agent *meshtest.Node, calico []*calicoNode) {
	t.Helper()
	for _, n := range calico {
		meshtest.Eventually(t, func() error {
			return agent.Has(t, fmt.Sprintf("%s via %s dev eth0", n.block, n.Prefix.Addr()))
		})
		bgptest.WaitKernel(t, n.bird.On(), "10.90.20.0/26", agent.Prefix.Addr())
	}
}

// others returns the addresses of all Calico nodes but one.
func others(calico []*calicoNode, but *calicoNode) []netip.Addr {
	var list []netip.Addr
	for _, n := range calico {
		if n != but {
			list = append(list, n.Prefix.Addr())
		}
	}
	return list
}
