package netlinkx_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// router joins a client and a pod by a node that tracks connections, has a service address (10.96.0.1, fd00:96::1) and
// hides the pod's address from the client.
func router(t *testing.T) (client, node, pod *netnstest.NS) {
	t.Helper()
	client, node, pod = netnstest.New(t), netnstest.New(t), netnstest.New(t)
	netnstest.Cable(t, client, "eth0", node, "out")
	netnstest.Cable(t, pod, "eth0", node, "in")
	node.Within(t, func() error { return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1") })
	node.Within(t, func() error {
		return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv6", "conf", "all", "forwarding"}, "1")
	})
	for _, a := range []struct {
		ns         *netnstest.NS
		link, addr string
	}{
		{client, "eth0", "192.0.2.2/24"}, {node, "out", "192.0.2.1/24"}, {client, "eth0", "fd00:2::2/64"}, {node, "out", "fd00:2::1/64"},
		{pod, "eth0", "10.65.0.2/24"}, {pod, "eth0", "10.65.0.3/24"}, {node, "in", "10.65.0.1/24"}, {pod, "eth0", "fd00:65::2/64"},
		{node, "in", "fd00:65::1/64"},
	} {
		a.ns.Addr(t, a.link, a.addr)
	}
	client.Route(t, "0.0.0.0/0", "192.0.2.1", "")
	client.Route(t, "::/0", "fd00:2::1", "eth0")
	pod.Route(t, "0.0.0.0/0", "10.65.0.1", "")
	pod.Route(t, "::/0", "fd00:65::1", "eth0")
	for _, cmd := range []string{
		"add table inet t",
		"add chain inet t pre { type nat hook prerouting priority dstnat; }",
		"add rule inet t pre ip daddr 10.96.0.1 dnat ip to 10.65.0.2",
		"add rule inet t pre ip6 daddr fd00:96::1 dnat ip6 to fd00:65::2",
		"add chain inet t post { type nat hook postrouting priority srcnat; }",
		"add rule inet t post oifname out masquerade",
	} {
		node.Run(t, "nft", cmd)
	}
	return client, node, pod
}

// flows returns the kernel's own list of the connections that mention an address.
func flows(t *testing.T, ns *netnstest.NS, addr string) []string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(ns.Run(t, "cat", "/proc/net/nf_conntrack")) {
		if strings.Contains(line, "="+addr+" ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// long returns an address as the kernel's list writes it.
func long(addr string) string {
	a := netip.MustParseAddr(addr)
	if a.Is4() {
		return addr
	}
	return a.StringExpanded()
}

func TestDeleteFlows(t *testing.T) {
	client, node, pod := router(t)
	for _, at := range []string{"10.65.0.2:53", "10.65.0.3:53", "[fd00:65::2]:53"} {
		pod.EchoUDP(t, at)
	}
	client.EchoUDP(t, "192.0.2.2:53")
	client.EchoUDP(t, "[fd00:2::2]:53")
	node.EchoUDP(t, "192.0.2.1:53")
	for _, f := range []struct {
		name      string
		from      *netnstest.NS
		local, to string
	}{
		{"to the pod", client, "", "10.65.0.2:53"},
		{"to the pod's service", client, "", "10.96.0.1:53"},
		{"from the pod, hidden", pod, "10.65.0.2:0", "192.0.2.2:53"},
		{"to the pod, IPv6", client, "", "[fd00:65::2]:53"},
		{"to the pod's service, IPv6", client, "", "[fd00:96::1]:53"},
		{"from the pod, hidden, IPv6", pod, "[fd00:65::2]:0", "[fd00:2::2]:53"},
		{"to another pod", client, "", "10.65.0.3:53"},
		{"from another pod", pod, "10.65.0.3:0", "192.0.2.2:53"},
		{"to the node", client, "", "192.0.2.1:53"},
	} {
		if _, err := f.from.AskUDP(t, f.local, f.to, "hello", 5*time.Second); err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
	}
	// Without an answer on this port the entry has seen one direction only.
	if _, err := client.AskUDP(t, "", "10.65.0.2:9", "hello", 0); err == nil {
		t.Fatal("an answer from a port on which nobody listens")
	}
	for _, addr := range []string{"10.65.0.2", "fd00:65::2"} {
		a := netip.MustParseAddr(addr)
		before := flows(t, node, long(addr))
		if len(before) < 3 {
			t.Fatalf("the kernel tracks only %q of %s: the test would show nothing", before, addr)
		}
		n, err := node.Conn.DeleteFlows([]netip.Addr{a})
		if err != nil || n != len(before) {
			t.Errorf("DeleteFlows(%s) = %d, %v; want %d: %q", addr, n, err, len(before), before)
		}
		if after := flows(t, node, long(addr)); len(after) != 0 {
			t.Errorf("connections of %s that are left: %q", addr, after)
		}
		if n, err := node.Conn.DeleteFlows([]netip.Addr{a}); err != nil || n != 0 {
			t.Errorf("DeleteFlows(%s) again = %d, %v; want none", addr, n, err)
		}
	}
	if others := flows(t, node, "10.65.0.3"); len(others) != 2 {
		t.Errorf("connections of the other pod: %q, want both", others)
	}
	if others := flows(t, node, "192.0.2.1"); len(others) == 0 {
		t.Error("connections of the node are gone")
	}
}

// TestDeleteFlowsOfALargeTable: so many entries that only filtered dumps are used.
func TestDeleteFlowsOfALargeTable(t *testing.T) {
	client, node, pod := router(t)
	for _, at := range []string{"10.65.0.2:53", "[fd00:65::2]:53"} {
		pod.EchoUDP(t, at)
		if _, err := client.AskUDP(t, "", at, "hello", 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	client.EchoUDP(t, "192.0.2.2:53")
	if _, err := pod.AskUDP(t, "10.65.0.2:0", "192.0.2.2:53", "hello", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	const others = 5000
	from := client.ListenUDP(t, "0.0.0.0:0")
	for port := range others {
		to := netip.AddrPortFrom(netip.MustParseAddr("10.65.0.3"), uint16(10000+port))
		if _, err := from.WriteToUDPAddrPort([]byte("x"), to); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(flows(t, node, "10.65.0.3")); n < others*9/10 {
		t.Fatalf("only %d connections of the other address", n)
	}
	start := time.Now()
	n, err := node.Conn.DeleteFlows([]netip.Addr{netip.MustParseAddr("10.65.0.2"), netip.MustParseAddr("fd00:65::2")})
	if err != nil || n != 3 {
		t.Errorf("DeleteFlows = %d, %v; want 3", n, err)
	}
	t.Logf("three of %d in %v", others, time.Since(start))
}

func TestDeleteFlowsWithoutTracking(t *testing.T) {
	ns := netnstest.New(t)
	if n, err := ns.Conn.DeleteFlows([]netip.Addr{netip.MustParseAddr("10.65.0.2")}); n != 0 || err != nil {
		t.Errorf("DeleteFlows where nothing is tracked = %d, %v", n, err)
	}
	if n, err := ns.Conn.DeleteFlows(nil); n != 0 || err != nil {
		t.Errorf("DeleteFlows of no address = %d, %v", n, err)
	}
}

// TestDeleteFlowsIf: a Flow has the client and the server that a connection reached, whatever address the client sent
// to, and only doomed connections are deleted.
func TestDeleteFlowsIf(t *testing.T) {
	client, node, pod := router(t)
	pod.EchoUDP(t, "10.65.0.2:53")
	pod.EchoUDP(t, "[fd00:65::2]:53")
	for _, ends := range [][2]string{{"192.0.2.2:4000", "10.96.0.1:53"}, {"192.0.2.2:4001", "10.65.0.2:53"},
		{"[fd00:2::2]:4002", "[fd00:96::1]:53"}} {
		if _, err := client.AskUDP(t, ends[0], ends[1], "hello", 5*time.Second); err != nil {
			t.Fatalf("%s: %v", ends, err)
		}
	}
	client.Within(t, func() error {
		conn, err := net.Dial("ip6:ipv6-icmp", "fd00:65::2")
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte{128, 3, 0, 0, 0, 1, 0, 1}) // an echo request, code 3
		return errors.Join(err, conn.SetDeadline(time.Now().Add(5*time.Second)), second(conn.Read(make([]byte, 1500))))
	})
	var seen, told []netlinkx.Flow
	n, err := node.Conn.DeleteFlowsIf(func(f netlinkx.Flow) bool {
		seen = append(seen, f)
		return f.Server.Is4()
	}, func(all []netlinkx.Flow) error { told = all; return nil })
	if err != nil || n != 2 || len(told) != 2 || !told[0].Server.Is4() {
		t.Fatalf("%d deleted, %v; told of %+v; seen %+v", n, err, told, seen)
	}
	want4 := netlinkx.Flow{Client: netip.MustParseAddr("192.0.2.2"), Server: netip.MustParseAddr("10.65.0.2"), Protocol: 17,
		Port: 53, SourcePort: 4000}
	want6 := netlinkx.Flow{Client: netip.MustParseAddr("fd00:2::2"), Server: netip.MustParseAddr("fd00:65::2"), Protocol: 17,
		Port: 53, SourcePort: 4002}
	echo := netlinkx.Flow{Client: want6.Client, Server: want6.Server, Protocol: 58, Port: 128<<8 | 3}
	if !slices.Contains(seen, want4) || !slices.Contains(seen, want6) || !slices.Contains(seen, echo) {
		t.Errorf("seen %+v", seen)
	}
	if left := flows(t, node, "10.65.0.2"); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	if kept := flows(t, node, long("fd00:65::2")); len(kept) == 0 {
		t.Error("one that was not doomed is gone")
	}
}
