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
	if timeScale > 1 {
		t.Fatalf("in the virtual machine: %v", err)
	}
	lab := os.Getenv("TORTIE_LAB")
	if lab == "" {
		lab = filepath.Join(labtest.Root(), "bin", "lab")
	}
	cmd := exec.Command(lab, "vm", "-timeout", "15m", "--", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=14m")
	cmd.Env = append(cmd.Environ(), builtElsewhere+"="+filepath.Dir(program(t, build)), "TORTIE_LAB="+lab)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Run(); err != nil {
		t.Fatalf("in the virtual machine: %v", err)
	}
}

// overTunnel has two nodes in one subnet and one in another, and pods of a pool that always encapsulates and of one that does so
// between the subnets.
func overTunnel(t *testing.T) {
	if timeScale > 1 {
		// The kernel's queue is too short for a processor that an emulator may stop for seconds. This one is the test's own.
		if err := sysctl.DefaultRoot.Set(sysctl.Key{"net", "core", "netdev_max_backlog"}, "100000"); err != nil {
			t.Fatal(err)
		}
	}
	c := newCluster(t)
	c.create(t, newPool("always", "10.90.0.0/16", api.EncapAlways), newPool("cross", "10.91.0.0/16", api.EncapCrossSubnet))
	var nodes []*node
	var always, cross []*pod
	for i, subnet := range []int{0, 0, 1} {
		n := c.newNode(t, fmt.Sprint("node-", i+1), subnet, 10+i)
		n.claim(t, fmt.Sprintf("10.90.%d.0/26", 100+i))
		n.claim(t, fmt.Sprintf("10.91.%d.0/26", 100+i))
		always = append(always, n.newPod(t, fmt.Sprintf("10.90.%d.5", 100+i)))
		cross = append(cross, n.newPod(t, fmt.Sprintf("10.91.%d.5", 100+i)))
		nodes = append(nodes, n)
	}
	defer func() {
		for _, n := range nodes {
			if t.Failed() {
				t.Logf("%s has counted:\n%s", n.name, n.counters())
			}
		}
	}()
	begun := time.Now()
	done := func(what string) { t.Logf("%v: %s", time.Since(begun).Round(100*time.Millisecond), what) }
	start(t, nodes...)
	settle(t, nodes...)
	done("the nodes know each other")
	for _, route := range []string{"10.90.101.0/26 via 172.31.1.11 dev tunl0", "10.91.101.0/26 via 172.31.1.11 dev eth0", "10.91.102.0/26 via 172.31.2.12 dev tunl0"} {
		if err := nodes[0].has(t, route); err != nil {
			t.Errorf("%v:\n%s", err, nodes[0].routes(t))
		}
	}
	streams := func() traffic {
		return append(startTraffic(t, always[0], always[1]), startTraffic(t, cross[0], cross[2])...)
	}

	packets := streams()
	nodes[0].signal(t, syscall.SIGTERM)
	nodes[0].start(t, build)
	nodes[2].signal(t, syscall.SIGKILL)
	nodes[2].start(t, build)
	settle(t, nodes...)
	packets.intact(t)
	done("SIGTERM to one and SIGKILL to another")

	packets = streams()
	nodes[0].signal(t, syscall.SIGTERM)
	nodes[0].start(t, anotherBuild)
	time.Sleep(time.Second)
	nodes[0].signal(t, syscall.SIGKILL)
	nodes[0].start(t, anotherBuild)
	nodes[1].wire.Silence()
	nodes[1].wire.Reset()
	nodes[1].signal(t, syscall.SIGTERM)
	nodes[1].start(t, build)
	time.Sleep(5 * time.Second)
	nodes[1].wire.Mend()
	settle(t, nodes...)
	packets.intact(t)
	done("an upgrade, twice, and a restart without an API server")

	for _, h := range tunnelHands(nodes[0]) {
		t.Logf("%s: back after %v", h.what, h.repair(t, nodes[0]).Round(time.Millisecond))
	}
	done("tunl0 put right")
}

// tunnelHands are what can be undone of a tunnel.
func tunnelHands(n *node) []hand {
	shows := func(want ...string) func() error {
		return func() error {
			text, err := n.try("ip", "addr", "show", "dev", "tunl0")
			for _, w := range want {
				if err != nil || !strings.Contains(text, w) {
					return fmt.Errorf("tunl0 is without %q: %s, %v", w, text, err)
				}
			}
			return nil
		}
	}
	text, _ := n.try("ip", "-o", "-4", "addr", "show", "dev", "tunl0")
	address := ""
	if fields := strings.Fields(text); len(fields) > 3 {
		address = fields[3]
	}
	right := shows("inet "+address, "mtu 1480", ",UP")
	return []hand{
		{"the tunnel's address is removed", []string{"ip", "addr", "flush", "dev", "tunl0"}, right},
		{"the tunnel's MTU is changed", []string{"ip", "link", "set", "tunl0", "mtu", "1300"}, right},
		{"a route over the tunnel is removed", []string{"ip", "route", "del", "10.90.101.0/26"}, func() error {
			text, err := n.try("ip", "route", "show", "10.90.101.0/26")
			if err != nil || !strings.Contains(text, "dev tunl0") {
				return fmt.Errorf("the route is %q, %v", text, err)
			}
			return nil
		}},
	}
}

// counters are where a node's kernel says that it has dropped something.
func (n *node) counters() string {
	var all strings.Builder
	for _, args := range [][]string{
		{"cat", "/proc/self/net/snmp"}, {"cat", "/proc/self/net/stat/nf_conntrack"}, {"ip", "-s", "link"}, {"ip", "-s", "neigh"}, {"ip", "route"},
		{"nft", "list", "table", "inet", "tortie"},
	} {
		text, err := n.try(args[0], args[1:]...)
		fmt.Fprintf(&all, "%s (%v)\n%s", strings.Join(args, " "), err, text)
	}
	return all.String()
}
