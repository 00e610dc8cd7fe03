package mesh

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp/bgptest"
	"github.com/tortie-net/tortie/internal/sysctl"
)

// calicoPreference is the LOCAL_PREF of Calico 3.32 and later: 2147483647 less the metric of a block's route, which is 1024.
const calicoPreference = 2147482623

// calicoNode is a node as Calico runs it: BIRD 1.6 has the sessions and the kernel's routes, and the Node says so in annotations.
// There is no agent on it.
type calicoNode struct {
	*node
	bird  bgptest.Daemon
	block string
	pod   *pod
}

// newCalicoNode makes a node with a block and a pod, whose BIRD knows all of peers.
func (c *cluster) newCalicoNode(t testing.TB, host int, peers ...netip.Addr) *calicoNode {
	t.Helper()
	n := &calicoNode{node: c.newNode(t, fmt.Sprintf("calico-%d", host), 0, host), block: fmt.Sprintf("10.90.%d.0/26", host)}
	obj := &api.Node{Meta: api.Meta{Name: n.name}}
	if err := c.store.Get(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	obj.Annotations = map[string]string{api.AnnotationIPv4Address: n.addr.String(), api.AnnotationASNumber: "64512"}
	if err := c.store.Update(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	n.claim(t, n.block)
	n.Within(t, func() error { return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1") })
	n.pod = n.newPod(t, fmt.Sprintf("10.90.%d.5", host))

	config := bgptest.Config{ASN: 64512, Announce: []netip.Prefix{netip.MustParsePrefix(n.block)}, LocalPref: calicoPreference}
	for _, peer := range peers {
		// Calico's rule: whose peer has the greater address, as text, waits.
		passive := peer.String() > n.addr.Addr().String()
		config.Sessions = append(config.Sessions, bgptest.Session{Peer: peer, ASN: 64512, Passive: passive})
	}
	n.bird = (&bgptest.Host{NS: n.NS, T: t, V4: n.addr.Addr()}).Daemon(bgptest.BIRD1, config)
	return n
}

// An agent in the mesh of Calico nodes, half of a cluster that changes over: of two, one connects to it and one waits for it. Both
// kernels have the other's routes, pods reach each other, and restarts on either side lose no packet.
func TestAmongCalicoNodes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.create(t, newPool("pods", "10.90.0.0/16", api.EncapNever))
	agent, first := c.newNodeWithPod(t, 20)
	pods := []*pod{first, agent.newPod(t, "10.90.20.6")}
	ours := agent.addr.Addr()
	calico := []*calicoNode{
		c.newCalicoNode(t, 100, ours, netip.MustParseAddr("172.31.1.30")), // "172.31.1.100" < "172.31.1.20" < "172.31.1.30"
		c.newCalicoNode(t, 30, ours, netip.MustParseAddr("172.31.1.100")),
	}
	start(t, agent)
	eventually(t, func() error { return agent.settled(len(calico)) })
	known(t, agent, calico)
	streams := func() traffic {
		return append(startTraffic(t, pods[0], calico[0].pod), startTraffic(t, pods[1], calico[1].pod)...)
	}

	packets := streams()
	agent.signal(t, syscall.SIGTERM)
	agent.start(t, build)
	eventually(t, func() error { return agent.settled(len(calico)) })
	agent.signal(t, syscall.SIGKILL)
	agent.start(t, build)
	eventually(t, func() error { return agent.settled(len(calico)) })
	time.Sleep(3 * time.Second) // what BIRD would drop, it drops by the end of the agent's table
	packets.intact(t)

	packets = streams()
	for _, n := range calico {
		n.bird.Signal(syscall.SIGKILL)
		n.bird.Restart()
		eventually(t, func() error { return agent.settled(len(calico)) })
	}
	time.Sleep(3 * time.Second)
	packets.intact(t)

	// A password for the mesh reaches both kinds of nodes, as far as Calico's part is concerned by the hand of its confd. New sessions
	// are begun, in which BIRD drops what it had: no packets are counted.
	changed := time.Now()
	c.protect(t, "first")
	for _, n := range calico {
		for _, peer := range append(others(calico, n), ours) {
			n.bird.SetPassword(peer, "pass-first")
		}
	}
	eventually(t, func() error { return agent.sessionsSince(changed, len(calico)) })
	known(t, agent, calico)
}

// known waits until the agent's kernel and those of Calico nodes have each other's blocks.
func known(t testing.TB, agent *node, calico []*calicoNode) {
	t.Helper()
	for _, n := range calico {
		eventually(t, func() error {
			return agent.has(t, fmt.Sprintf("%s via %s dev eth0", n.block, n.addr.Addr()))
		})
		bgptest.WaitKernel(t, n.bird.On(), "10.90.20.0/26", agent.addr.Addr())
	}
}

// others are the addresses of all Calico nodes but one.
func others(calico []*calicoNode, but *calicoNode) []netip.Addr {
	var list []netip.Addr
	for _, n := range calico {
		if n != but {
			list = append(list, n.addr.Addr())
		}
	}
	return list
}
