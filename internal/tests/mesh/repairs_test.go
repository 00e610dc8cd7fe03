package mesh

import (
	"strings"
	"syscall"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// TestRepairsAreTold removes objects of an agent, as other programs do: the agent restores them, and an Event and the
// log name them.
func TestRepairsAreTold(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := meshtest.NewCluster(t)
	pool := meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever)
	pool.Spec.VXLANMode = api.EncapAlways
	c.Create(t, pool)
	var nodes []*meshtest.Node
	for i := range 2 {
		n, _ := c.NewNodeWithPod(t, 0, 10+i)
		n.Start(t, meshtest.Build)
		nodes = append(nodes, n)
	}
	meshtest.Settle(t, nodes...)
	n := nodes[0]
	if events := n.Events(t, "Node", n.Name); hasReason(events, "Repaired") {
		t.Errorf("what is made for the first time is no repair: %+v", events)
	}
	told := func(texts ...string) {
		t.Helper()
		meshtest.Within(t, 2*meshtest.Patience, func() error { // one Event a minute
			for _, text := range texts {
				if err := n.HasEvent(t, "Node", n.Name, "Repaired", n, text); err != nil {
					return err
				}
			}
			return nil
		})
	}
	n.Run(t, "sysctl", "-w", "net.ipv4.ip_forward=0")
	told("net.ipv4.ip_forward was 0, set to 1 (1st time today)")
	wrong := "172.31.1.99/24"
	n.Annotate(t, api.AnnotationIPv4Address, &wrong)
	n.Run(t, "ip", "link", "set", vxlan.Device4, "mtu", "1300")
	n.Run(t, "bridge", "fdb", "del", vxlan.MACOf(nodes[1].Name, false).String(), "dev", vxlan.Device4)
	told("annotation projectcalico.org/IPv4Address of the Node was changed or removed, written again (1st time today)",
		"link vxlan.calico had MTU 1300, set again (1st time today)",
		"peers of vxlan.calico 1 of 1 were missing or changed, written again (1st time today)")
	// All the rest, while the agent sleeps: it would be faster than the test.
	errtest.Must(t, n.Cmd.Process.Signal(syscall.SIGSTOP))
	n.Run(t, "sysctl", "-w", "net.ipv4.ip_forward=0")
	n.Run(t, "ip", "link", "delete", vxlan.Device4)
	n.Run(t, "ip", "link", "add", vxlan.Device4, "type", "bridge")
	n.Run(t, "nft", "flush", "ruleset")
	errtest.Must(t, n.Cmd.Process.Signal(syscall.SIGCONT))
	told("net.ipv4.ip_forward was 0, set to 1 (2nd time today)",
		"link vxlan.calico was another program's, of kind bridge: replaced by ours (2nd time today)",
		"nftables table inet tortie, chains guard-* were changed or removed, written again (1st time today)",
		"were missing or changed, such as one to 10.90.1")
	if log := n.Tail(1 << 20); strings.Count(log, "repaired what another program has changed") < 5 {
		t.Errorf("the log has not a line for each:\n%s", log)
	}
	meshtest.Settle(t, nodes...)
	if events := nodes[1].Events(t, "Node", nodes[1].Name); hasReason(events, "Repaired") {
		t.Errorf("a node that nothing was done to: %+v", events)
	}
}
