package mesh

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/agent"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// encrypt turns WireGuard on and off under traffic of a pool with IPIP and of one that routes within a subnet.
func (n *tunnelled) encrypt(t *testing.T) {
	felix := &api.FelixConfiguration{Meta: api.Meta{Name: api.DefaultName}} // created by the agents
	errtest.Must(t, n.Store.Get(t.Context(), felix))
	on := true
	felix.Spec.WireguardEnabled, felix.Spec.WireguardThreadingEnabled = &on, &on
	packets := n.streams(t)
	errtest.Must(t, n.Store.Update(t.Context(), felix))
	meshtest.Eventually(t, func() error { return n.encrypted(2) })
	wire := watchWire(t, n.nodes[0], "eth0")
	packets.Onward(t, 2*time.Second)
	encrypted, clear := wire()
	if encrypted == 0 || clear != 0 {
		t.Errorf("on the wire are %d encrypted packets and %d in the clear", encrypted, clear)
	}
	if threads := n.nodes[0].Run(t, "unshare", append(ownSysfs, "cat", "/sys/class/net/wireguard.cali/threaded")...); threads != "1\n" {
		t.Errorf("threaded is %q", threads)
	}
	packets.Intact(t)
	n.done(t, fmt.Sprintf("WireGuard turned on, %d packets seen", encrypted))

	packets = n.streams(t)
	restart(t, n.nodes[0])
	packets.Intact(t)
	n.done(t, "an agent with WireGuard restarted")

	n.rotate(t)

	packets = n.streams(t)
	on = false
	errtest.Must(t, n.Store.Update(t.Context(), felix))
	meshtest.Within(t, time.Minute*meshtest.TimeScale, func() error {
		for _, node := range n.nodes {
			for _, args := range [][]string{{"link", "show", "wireguard.cali"}, {"route", "show", "table", "1"}} {
				if text, err := node.Try("ip", args...); err == nil && text != "" {
					return fmt.Errorf("%s has %s", node.Name, text)
				}
			}
			if rules, err := node.Try("ip", "rule"); err != nil || strings.Contains(rules, "fwmark") {
				return fmt.Errorf("%s has rules %s, %w", node.Name, rules, err)
			}
		}
		return nil
	})
	packets.Intact(t)
	n.done(t, "WireGuard turned off")
}

// rotate makes a node change its key under traffic, while its agent and another one restart.
func (n *tunnelled) rotate(t *testing.T) {
	node := n.nodes[0]
	key := func() (key, next string, changing bool) { // empty while the API server is too slow
		obj := &api.Node{Meta: api.Meta{Name: node.Name}}
		if err := n.Store.Get(t.Context(), obj); err != nil {
			t.Log(err)
		}
		if r, err := node.Status(); err == nil {
			for _, tunnel := range r.Tunnels {
				changing = changing || tunnel.KeyChanging
			}
		}
		return obj.Annotations[api.AnnotationWireGuardKey], obj.Annotations[api.AnnotationWireGuardNextKey], changing
	}
	var before, next string
	meshtest.Eventually(t, func() error {
		if before, next, _ = key(); before == "" || next != before {
			return fmt.Errorf("key %q, next %q", before, next)
		}
		return nil
	})
	packets := n.streams(t)
	wire := watchWire(t, node, "eth0")
	errtest.Must(t, agent.AskRotation(filepath.Join(node.Dir, "state"), time.Now()))
	meshtest.Within(t, time.Minute*meshtest.TimeScale, func() error {
		if now, next, changing := key(); next == "" || next == before || !changing {
			return fmt.Errorf("key %s, next %s, shown as changing: %v", now, next, changing)
		}
		return nil
	})
	n.done(t, "a change of the key began")
	restart(t, node)
	restart(t, n.nodes[1])
	meshtest.Within(t, 2*time.Minute*meshtest.TimeScale, func() error {
		now, next, changing := key()
		table, err := node.Try("ip", "route", "show", "table", "1")
		if now == "" || now == before || next != now || changing || strings.Contains(table, wireguard.Second4) {
			return fmt.Errorf("key %s, before %s, next %s, shown as changing: %v, table\n%s%w", now, before, next, changing, table, err)
		}
		return nil
	})
	meshtest.Eventually(t, func() error { return n.encrypted(2) })
	packets.Intact(t)
	if _, clear := wire(); clear != 0 {
		t.Errorf("%d packets in the clear", clear)
	}
	n.done(t, "and ended")
}

// ownSysfs are the arguments of unshare for a program that sees the links of its network namespace in /sys.
var ownSysfs = []string{"--mount", "sh", "-c", `mount -t sysfs sysfs /sys && exec "$@"`, "sh"}

// encrypted returns an error unless all nodes send encrypted packets to others nodes, and have routes to the pods'
// blocks by WireGuard. Status may report it before the routes exist.
func (n *tunnelled) encrypted(others int) error {
	for _, node := range n.nodes {
		table, err := node.Try("ip", "route", "show", "table", "1")
		for i, other := range n.nodes {
			for _, format := range []string{"10.90.%d.0/26 dev wireguard.cali ", "10.91.%d.0/26 dev wireguard.cali "} {
				if way := fmt.Sprintf(format, 100+i); other != node && !strings.Contains(table, way) {
					return fmt.Errorf("%s has no route %s(%v):\n%s", node.Name, way, err, table)
				}
			}
		}
		r, err := node.Status()
		if err != nil {
			return err
		}
		count := -1
		for _, tunnel := range r.Tunnels {
			if tunnel.Kind == "WireGuard" {
				count = tunnel.Ends
			}
		}
		if count != others {
			return fmt.Errorf("%s encrypts to %d nodes; %v", node.Name, count, r.Problems)
		}
	}
	return nil
}

func restart(t *testing.T, node *meshtest.Node) {
	node.Signal(t, unix.SIGTERM)
	node.Start(t, meshtest.Build)
	meshtest.Settle(t, node)
}

// watchWire returns a function that returns how many IPv4 packets have passed a link since: WireGuard's, and those with
// an address of a pod.
func watchWire(t *testing.T, node *meshtest.Node, link string) func() (encrypted, clear int) {
	t.Helper()
	var encrypted, clear int
	stop := node.Watch(t, link, func(b []byte) {
		switch {
		case b[0]>>4 != 4:
		case ofPods(b[12:20]) || b[9] == unix.IPPROTO_IPIP:
			clear++
		case b[9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(b[22:]) == 51820:
			encrypted++
		}
	})
	return func() (int, int) {
		stop()
		return encrypted, clear
	}
}

// ofPods reports whether one of two addresses is in the pools.
func ofPods(b []byte) bool {
	pools := netip.MustParsePrefix("10.90.0.0/15")
	src, _ := netip.AddrFromSlice(b[:4])
	dst, _ := netip.AddrFromSlice(b[4:])
	return pools.Contains(src) || pools.Contains(dst)
}
