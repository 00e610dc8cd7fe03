package mesh

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// TestMeshOverIPIP runs the restart test over the kernel's IPIP, TestVXLAN from a pool with IPIP, and WireGuard over
// both, each also with a connection in the flowtable. A suite of its own selects it by name.
func TestMeshOverIPIP(t *testing.T) {
	inMachine(t, errors.Join(netnstest.IPIP(), netnstest.WireGuard()), nil, func(t *testing.T) {
		n := newTunnelled(t) // one for all: an emulated API server takes a minute to start
		n.beside(t, n.restart)
		if whole() {
			n.repair(t)
		}
		n.beside(t, n.changePools)
		if whole() {
			n.beside(t, n.encrypt)
		}
	})
}

// whole reports whether this is make test-all. The first tier has one restart and one change of pools.
func whole() bool { return tier.Size(false, true) }

// inMachine runs a test in a virtual machine with these options of lab vm, with the same test binary and agents. The
// machine counts instructions, so that no other program's load makes its API server slow. lacks is what this kernel
// lacks; the machine must have everything.
func inMachine(t *testing.T, lacks error, options []string, test func(*testing.T)) {
	if meshtest.TimeScale > 1 {
		errtest.Must(t, lacks)
		test(t)
		return
	}
	lab := labtest.Binary(t)
	args := slices.Concat([]string{"vm", "-count", "-timeout", "50m", "-programs", "hyperkube"}, options,
		[]string{"--", os.Args[0], "-test.run=^" + t.Name() + "$", "-test.v", "-test.timeout=45m"})
	cmd := exec.Command(lab, args...)
	meshtest.Program(t, meshtest.AnotherBuild) // beside the other
	cmd.Env = append(cmd.Environ(), meshtest.ProgramsEnv+"="+filepath.Dir(meshtest.Program(t, meshtest.Build)), "TORTIE_LAB="+lab)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Run(); err != nil {
		t.Fatalf("in the virtual machine: %v", err)
	}
}

// tunnelled is two nodes in one subnet and one in another, with pods of a pool that always encapsulates and of one that
// encapsulates only between subnets.
type tunnelled struct {
	*meshtest.Cluster
	nodes         []*meshtest.Node
	always, cross []*meshtest.Pod
	begun         time.Time
}

func (n *tunnelled) done(t testing.TB, what string) {
	t.Logf("%v: %s", time.Since(n.begun).Round(100*time.Millisecond), what)
}

// newTunnelled returns when the nodes have sessions with each other.
func newTunnelled(t *testing.T) *tunnelled {
	t.Helper()
	if meshtest.TimeScale > 1 {
		// An emulator may stop a processor for seconds, which overflows the kernel's default queue. In the virtual machine
		// the setting affects only the test.
		errtest.Must(t, sysctl.DefaultRoot.Set(sysctl.Key{"net", "core", "netdev_max_backlog"}, "100000"))
	}
	n := &tunnelled{Cluster: meshtest.NewCluster(t), begun: time.Now()}
	n.Env = []string{"TORTIE_FLOWTABLE=auto"}
	n.Launcher = append([]string{"unshare"}, ownSysfs...)
	n.Create(t, meshtest.NewPool("always", "10.90.0.0/16", api.EncapAlways), meshtest.NewPool("cross", "10.91.0.0/16", api.EncapCrossSubnet))
	for i, subnet := range []int{0, 0, 1} {
		node := n.NewNode(t, fmt.Sprint("node-", i+1), subnet, 10+i)
		node.Claim(t, fmt.Sprintf("10.90.%d.0/26", 100+i))
		node.Claim(t, fmt.Sprintf("10.91.%d.0/26", 100+i))
		n.always = append(n.always, node.NewPod(t, fmt.Sprintf("10.90.%d.5", 100+i)))
		n.cross = append(n.cross, node.NewPod(t, fmt.Sprintf("10.91.%d.5", 100+i)))
		n.nodes = append(n.nodes, node)
	}
	t.Cleanup(func() {
		for _, node := range n.nodes {
			if t.Failed() {
				t.Logf("%s has counted:\n%s", node.Name, node.Counters())
			}
		}
	})
	n.always[1].EchoUDP(t, netip.AddrPortFrom(n.always[1].V4, answers).String())
	meshtest.Start(t, n.nodes...)
	meshtest.Settle(t, n.nodes...)
	n.done(t, "the nodes know each other")
	for _, route := range []string{"10.90.101.0/26 via 172.31.1.11 dev tunl0", "10.91.101.0/26 via 172.31.1.11 dev eth0",
		"10.91.102.0/26 via 172.31.2.12 dev tunl0"} {
		if err := n.nodes[0].Has(t, route); err != nil {
			t.Errorf("%v:\n%s", err, n.nodes[0].Routes(t))
		}
	}
	return n
}

func (n *tunnelled) streams(t testing.TB) meshtest.Traffic {
	t.Helper()
	return append(meshtest.StartTraffic(t, n.always[0], n.always[1]), meshtest.StartTraffic(t, n.cross[0], n.cross[2])...)
}

// restart stops and restarts agents.
func (n *tunnelled) restart(t *testing.T) {
	nodes := n.nodes
	streams := func() meshtest.Traffic { return n.streams(t) }
	done := func(what string) { n.done(t, what) }

	packets := streams()
	nodes[0].Signal(t, syscall.SIGTERM)
	nodes[0].Start(t, meshtest.Build)
	nodes[2].Signal(t, syscall.SIGKILL)
	nodes[2].Start(t, meshtest.Build)
	meshtest.Settle(t, nodes...)
	packets.Intact(t)
	done("SIGTERM to one and SIGKILL to another")
	if !whole() {
		return
	}

	packets = streams()
	nodes[0].Signal(t, syscall.SIGTERM)
	nodes[0].Start(t, meshtest.AnotherBuild)
	packets.Onward(t, time.Second)
	nodes[0].Signal(t, syscall.SIGKILL)
	nodes[0].Start(t, meshtest.AnotherBuild)
	nodes[1].Wire.Stall()
	nodes[1].Wire.Reset()
	nodes[1].Signal(t, syscall.SIGTERM)
	nodes[1].Start(t, meshtest.Build)
	packets.Onward(t, 5*time.Second)
	nodes[1].Wire.Resume()
	meshtest.Settle(t, nodes...)
	packets.Intact(t)
	done("an upgrade, twice, and a restart without an API server")
}

// repair changes the device manually.
func (n *tunnelled) repair(t *testing.T) {
	for _, h := range tunnelInterventions(n.nodes[0]) {
		t.Logf("%s: back after %v", h.what, h.repair(t, n.nodes[0]).Round(time.Millisecond))
	}
	n.done(t, "tunl0 put right")
}

// changePools changes pools from IPIP to VXLAN and back under traffic.
func (n *tunnelled) changePools(t *testing.T) {
	never, always, cross := api.EncapNever, api.EncapAlways, api.EncapCrossSubnet
	for _, step := range []struct {
		ipip, vxlan api.Encapsulation
		near, far   string // devices to the second node and the third
	}{
		{never, always, "vxlan.calico", "vxlan.calico"},
		{always, never, "tunl0", "tunl0"},
		{never, cross, "eth0", "vxlan.calico"},
		{cross, never, "eth0", "tunl0"},
	}[:tier.Size(1, 4)] {
		packets := n.streams(t)
		for _, pool := range []string{"always", "cross"} {
			repool(t, n.Cluster, pool, step.ipip, step.vxlan)
		}
		for prefix, device := range map[string]string{"10.90.101.0/26": step.near, "10.91.102.0/26": step.far} {
			meshtest.Eventually(t, func() error {
				if text, err := n.nodes[0].Try("ip", "route", "show", prefix); err != nil || !strings.Contains(text, "dev "+device) {
					return fmt.Errorf("the way to %s is %q, %v; want %s", prefix, text, err, device)
				}
				return nil
			})
		}
		packets.Onward(t, 2*time.Second)
		packets.Intact(t)
		n.done(t, fmt.Sprintf("IPIP %s, VXLAN %s", step.ipip, step.vxlan))
	}
}

// tunnelInterventions returns manual changes of a tunnel.
func tunnelInterventions(n *meshtest.Node) []intervention {
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
	return []intervention{
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
