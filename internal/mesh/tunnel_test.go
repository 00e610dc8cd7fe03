package mesh

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/encap"
	"github.com/tortie-net/tortie/internal/labtest"
	"github.com/tortie-net/tortie/internal/mesh/meshtest"
	"github.com/tortie-net/tortie/internal/sysctl"
)

// TestTunnel is the same over the kernel's IPIP, here or, if this kernel has none, in a virtual machine, which runs this very
// binary and the agents that were built here.
func TestTunnel(t *testing.T) {
	err := encap.Available()
	if err == nil {
		overTunnel(t)
		return
	}
	if meshtest.TimeScale > 1 {
		t.Fatalf("in the virtual machine: %v", err)
	}
	lab := os.Getenv("TORTIE_LAB")
	if lab == "" {
		lab = filepath.Join(labtest.Root(), "bin", "lab")
	}
	cmd := exec.Command(lab, "vm", "-timeout", "15m", "--", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=14m")
	cmd.Env = append(cmd.Environ(), meshtest.BuiltElsewhere+"="+filepath.Dir(meshtest.Program(t, meshtest.Build)), "TORTIE_LAB="+lab)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Run(); err != nil {
		t.Fatalf("in the virtual machine: %v", err)
	}
}

// overTunnel has two nodes in one subnet and one in another, and pods of a pool that always encapsulates and of one that does so
// between the subnets.
func overTunnel(t *testing.T) {
	if meshtest.TimeScale > 1 {
		// The kernel's queue is too short for a processor that an emulator may stop for seconds. This one is the test's own.
		if err := sysctl.DefaultRoot.Set(sysctl.Key{"net", "core", "netdev_max_backlog"}, "100000"); err != nil {
			t.Fatal(err)
		}
	}
	c := meshtest.NewCluster(t)
	c.Create(t, meshtest.NewPool("always", "10.90.0.0/16", api.EncapAlways), meshtest.NewPool("cross", "10.91.0.0/16", api.EncapCrossSubnet))
	var nodes []*meshtest.Node
	var always, cross []*meshtest.Pod
	for i, subnet := range []int{0, 0, 1} {
		n := c.NewNode(t, fmt.Sprint("node-", i+1), subnet, 10+i)
		n.Claim(t, fmt.Sprintf("10.90.%d.0/26", 100+i))
		n.Claim(t, fmt.Sprintf("10.91.%d.0/26", 100+i))
		always = append(always, n.NewPod(t, fmt.Sprintf("10.90.%d.5", 100+i)))
		cross = append(cross, n.NewPod(t, fmt.Sprintf("10.91.%d.5", 100+i)))
		nodes = append(nodes, n)
	}
	defer func() {
		for _, n := range nodes {
			if t.Failed() {
				t.Logf("%s has counted:\n%s", n.Name, n.Counters())
			}
		}
	}()
	begun := time.Now()
	done := func(what string) { t.Logf("%v: %s", time.Since(begun).Round(100*time.Millisecond), what) }
	meshtest.Start(t, nodes...)
	meshtest.Settle(t, nodes...)
	done("the nodes know each other")
	for _, route := range []string{"10.90.101.0/26 via 172.31.1.11 dev tunl0", "10.91.101.0/26 via 172.31.1.11 dev eth0", "10.91.102.0/26 via 172.31.2.12 dev tunl0"} {
		if err := nodes[0].Has(t, route); err != nil {
			t.Errorf("%v:\n%s", err, nodes[0].Routes(t))
		}
	}
	streams := func() meshtest.Traffic {
		return append(meshtest.StartTraffic(t, always[0], always[1]), meshtest.StartTraffic(t, cross[0], cross[2])...)
	}

	packets := streams()
	nodes[0].Signal(t, syscall.SIGTERM)
	nodes[0].Start(t, meshtest.Build)
	nodes[2].Signal(t, syscall.SIGKILL)
	nodes[2].Start(t, meshtest.Build)
	meshtest.Settle(t, nodes...)
	packets.Intact(t)
	done("SIGTERM to one and SIGKILL to another")

	packets = streams()
	nodes[0].Signal(t, syscall.SIGTERM)
	nodes[0].Start(t, meshtest.AnotherBuild)
	time.Sleep(time.Second)
	nodes[0].Signal(t, syscall.SIGKILL)
	nodes[0].Start(t, meshtest.AnotherBuild)
	nodes[1].Wire.Silence()
	nodes[1].Wire.Reset()
	nodes[1].Signal(t, syscall.SIGTERM)
	nodes[1].Start(t, meshtest.Build)
	time.Sleep(5 * time.Second)
	nodes[1].Wire.Mend()
	meshtest.Settle(t, nodes...)
	packets.Intact(t)
	done("an upgrade, twice, and a restart without an API server")

	for _, h := range tunnelHands(nodes[0]) {
		t.Logf("%s: back after %v", h.what, h.repair(t, nodes[0]).Round(time.Millisecond))
	}
	done("tunl0 put right")
}

// tunnelHands are what can be undone of a tunnel.
func tunnelHands(n *meshtest.Node) []hand {
	shows := func(want ...string) func() error {
		return func() error {
			text, err := n.Try("ip", "addr", "show", "dev", "tunl0")
			for _, w := range want {
				if err != nil || !strings.Contains(text, w) {
					return fmt.Errorf("tunl0 is without %q: %s, %v", w, text, err)
				}
			}
			return nil
		}
	}
	text, _ := n.Try("ip", "-o", "-4", "addr", "show", "dev", "tunl0")
	address := ""
	if fields := strings.Fields(text); len(fields) > 3 {
		address = fields[3]
	}
	right := shows("inet "+address, "mtu 1480", ",UP")
	return []hand{
		{"the tunnel's address is removed", []string{"ip", "addr", "flush", "dev", "tunl0"}, right},
		{"the tunnel's MTU is changed", []string{"ip", "link", "set", "tunl0", "mtu", "1300"}, right},
		{"a route over the tunnel is removed", []string{"ip", "route", "del", "10.90.101.0/26"}, func() error {
			text, err := n.Try("ip", "route", "show", "10.90.101.0/26")
			if err != nil || !strings.Contains(text, "dev tunl0") {
				return fmt.Errorf("the route is %q, %v", text, err)
			}
			return nil
		}},
	}
}
