package wireguard_test

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/hostsysctl"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/pathtest"
)

// node is a node of a pair, with its pod.
type node struct {
	*netnstest.NS
	pod *netnstest.NS
	*pathtest.Node
}

// pair makes two nodes with the agent's rules, in namespaces with strict rp_filter.
func pair(t *testing.T) (nodes [2]node) {
	t.Helper()
	if netnstest.WireGuard() != nil {
		needtest.More(t, "a kernel with WireGuard")
	}
	p, err := pathtest.New(t.Context(), pathtest.WireGuard)
	errtest.Must(t, err)
	errtest.Must(t, p.AddRules(t.Context()))
	for i, n := range p.Nodes {
		nodes[i] = node{&netnstest.NS{Namespace: n.NS, Conn: n.Conn}, &netnstest.NS{Namespace: n.Pod}, n}
		nodes[i].Within(t, func() error {
			if err := sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "conf", wireguard.Device4, "rp_filter"}, "1"); err != nil {
				return err
			}
			return hostsysctl.Sync(sysctl.DefaultRoot, hostsysctl.Config{Forward: true, Tunnels: []string{wireguard.Device4}, Link: "eth0"})
		})
	}
	return nodes
}

// handshakes is the time for the first one, of which a message may be lost: it begins anew after five seconds.
const handshakes = time.Minute

// Pods and nodes reach pods of the other node, and the wire carries none of it in the clear.
func TestDatapath(t *testing.T) {
	nodes := pair(t)
	a, b := nodes[0], nodes[1]
	port := func(a netip.Addr) string { return netip.AddrPortFrom(a, 7000).String() }
	a.pod.EchoUDP(t, port(a.PodAddr()))
	b.pod.EchoUDP(t, port(b.PodAddr()))
	b.EchoUDP(t, port(b.Block.Addr()))
	var encrypted, clear int
	stop := a.Watch(t, "eth0", func(p []byte) {
		src, _ := netip.AddrFromSlice(p[12:16])
		dst, _ := netip.AddrFromSlice(p[16:20])
		switch {
		case p[0]>>4 != 4:
		case pathtest.WireGuard.Pool().Contains(src) || pathtest.WireGuard.Pool().Contains(dst):
			clear++
		case p[9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(p[22:]) == wireguard.DefaultPort4:
			encrypted++
		}
	})
	for _, tt := range []struct {
		name     string
		from     *netnstest.NS
		to, want string
	}{
		{"pod to pod", a.pod, port(b.PodAddr()), "10.244.1.1 hello"},
		{"and back", b.pod, port(a.PodAddr()), "10.244.2.1 hello"},
		{"node to pod", a.NS, port(b.PodAddr()), "10.244.1.0 hello"}, // the reason for the device's address
		{"pod to node's device", a.pod, port(b.Block.Addr()), "10.244.1.1 hello"},
	} {
		if got, err := tt.from.AskUDP(t, "", tt.to, "hello", handshakes); err != nil || got != tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}
	stop()
	if encrypted < 8 || clear != 0 {
		t.Errorf("%d encrypted packets on the wire, %d in the clear", encrypted, clear)
	}
	// A program's packets from the node's own address are encrypted, and the answers to that address are not.
	if got, err := a.AskUDP(t, a.Node.Addr.String()+":0", port(b.PodAddr()), "hello", handshakes); err != nil || got != "172.30.0.1 hello" {
		t.Errorf("from the node's own address: %q, %v", got, err)
	}
	if err := a.pod.SendTCP(t, b.pod, netip.AddrPortFrom(b.PodAddr(), 7001).String()); err != nil {
		t.Errorf("TCP: %v", err)
	}
}

// A node sends from its own pods' addresses only: the other's device drops the rest.
func TestSpoofing(t *testing.T) {
	nodes := pair(t)
	a, b := nodes[0], nodes[1]
	a.NS.Addr(t, "lo", "10.244.9.9/32")
	server := b.pod.ListenUDP(t, netip.AddrPortFrom(b.PodAddr(), 7000).String())
	const wait = 300 * time.Millisecond
	arrives := func(from string, tries int) bool {
		client := a.ListenUDP(t, from)
		buf := make([]byte, 100)
		for range tries {
			_, err := client.WriteToUDPAddrPort([]byte(from), netip.AddrPortFrom(b.PodAddr(), 7000))
			errtest.Must(t, err)
			errtest.Must(t, server.SetReadDeadline(time.Now().Add(wait)))
			if n, err := server.Read(buf); err == nil && string(buf[:n]) == from {
				return true
			}
		}
		return false
	}
	for _, from := range []string{"10.244.1.0:6000", "172.30.0.1:6000"} {
		if !arrives(from, int(handshakes/wait)) {
			t.Errorf("nothing from %s arrives", from)
		}
	}
	if arrives("10.244.9.9:6000", 5) {
		t.Error("a forged source arrives")
	}
}
