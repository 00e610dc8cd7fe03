package mesh

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// TestRepairsAreTold undoes what an agent has made, as other programs do: it is made again, and an Event and the log name it.
func TestRepairsAreTold(t *testing.T) {
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
	for _, fault := range []struct {
		name, want string
		command    []string
	}{
		{"sysctl", "net.ipv4.ip_forward was 0, set to 1 (", []string{"sysctl", "-w", "net.ipv4.ip_forward=0"}},
		{"link", "link vxlan.calico was missing, made again (", []string{"ip", "link", "delete", vxlan.Device4}},
		{"alien link", "link vxlan.calico was another program's, of kind dummy: replaced by ours (", []string{"sh", "-c", "ip link delete vxlan.calico; ip link add vxlan.calico type dummy"}},
		{"route", "routes 1 of ", []string{"ip", "route", "delete", "10.90.11.0/26"}},
		{"tables", "nftables table inet tortie, chains guard-* were changed or removed, written again (", []string{"nft", "flush", "ruleset"}},
	} {
		n.Run(t, fault.command[0], fault.command[1:]...)
		meshtest.Eventually(t, func() error {
			if err := n.HasEvent(t, "Node", n.Name, "Repaired", n, fault.want); err != nil {
				return fmt.Errorf("%s: %w", fault.name, err)
			}
			return nil
		})
		if log := n.Tail(1 << 20); !strings.Contains(log, "repaired what another program has changed") {
			t.Errorf("%s: the log has no line", fault.name)
		}
	}
	meshtest.Settle(t, nodes...)
	if events := nodes[1].Events(t, "Node", nodes[1].Name); hasReason(events, "Repaired") {
		t.Errorf("a node that nothing was done to: %+v", events)
	}
}
