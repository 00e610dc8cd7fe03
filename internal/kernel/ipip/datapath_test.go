package ipip_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

const tunnelMTU = 1480

// node is a namespace that stands for a node, with one pod.
type node struct {
	*netnstest.NS
	pod   *netnstest.NS
	addr  string // the node's own
	block string // its first address is the tunnel's, its second the pod's
}

func (n *node) tunnelAddr() netip.Addr { return netip.MustParsePrefix(n.block).Addr() }
func (n *node) podAddr() netip.Addr    { return n.tunnelAddr().Next() }

// pair makes two nodes that reach each other through a router with the MTU given on its link to b, and programs them as
// the agent does: tunnel, own block unreachable, the other's block through the tunnel.
func pair(t *testing.T, routerMTU int) (a, b *node) {
	t.Helper()
	router := newNS(t)
	forward(t, router)
	a = &node{NS: newNS(t), pod: newNS(t), addr: "172.30.1.2", block: "10.244.1.0/26"}
	b = &node{NS: newNS(t), pod: newNS(t), addr: "172.30.2.2", block: "10.244.2.0/26"}
	for i, n := range []*node{a, b} {
		side := fmt.Sprint("side", i+1)
		netnstest.Cable(t, n.NS, "eth0", router, side)
		router.Addr(t, side, fmt.Sprintf("172.30.%d.1/24", i+1))
		n.Addr(t, "eth0", n.addr+"/24")
		n.Route(t, "0.0.0.0/0", fmt.Sprintf("172.30.%d.1", i+1), "eth0")
		forward(t, n.NS)
	}
	errtest.Must(t, router.Conn.SetMTU(router.Link(t, "side2").Index, routerMTU))
	a.program(t, b)
	b.program(t, a)
	return a, b
}

func forward(t *testing.T, ns *netnstest.NS) {
	t.Helper()
	ns.Within(t, func() error { return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1") })
}

func (n *node) program(t *testing.T, other *node) {
	t.Helper()
	sync(t, n.NS, ipip.Tunnel{MTU: tunnelMTU, Addr: n.tunnelAddr()})
	_, err := routes.New(n.Conn, routes.Options{}).Sync(t.Context(), []routes.Route{
		{Dst: netip.MustParsePrefix(n.block), Type: netlinkx.Unreachable},
		routes.To(netip.MustParsePrefix(other.block), routes.Hop{Via: addr(other.addr), Dev: ipip.Device, Onlink: true}),
	})
	errtest.Must(t, err)
	n.Within(t, func() error {
		_, err := podnet.Setup(t.Context(), podnet.Config{
			Netns: n.pod.Path(), IfName: "eth0", HostVeth: "cali0", Addresses: []netip.Addr{n.podAddr()}, MTU: tunnelMTU,
		})
		return err
	})
}

func TestDatapath(t *testing.T) {
	a, b := pair(t, 1500)
	port := func(addr netip.Addr) string { return netip.AddrPortFrom(addr, 7000).String() }
	a.pod.EchoUDP(t, port(a.podAddr()))
	b.pod.EchoUDP(t, port(b.podAddr()))
	b.EchoUDP(t, port(b.tunnelAddr()))
	for _, tt := range []struct {
		name     string
		from     *netnstest.NS
		to, want string
	}{
		{"pod to pod", a.pod, port(b.podAddr()), "10.244.1.1 hello"},
		{"and back", b.pod, port(a.podAddr()), "10.244.2.1 hello"},
		{"node to pod", a.NS, port(b.podAddr()), "10.244.1.0 hello"}, // the reason for the tunnel's address
		{"pod to node's tunnel address", a.pod, port(b.tunnelAddr()), "10.244.1.1 hello"},
	} {
		if got, err := tt.from.AskUDP(t, "", tt.to, "hello", 10*time.Second); err != nil || got != tt.want {
			t.Errorf("%s: %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}
}

// TestOuterPacket looks at the wire between the nodes.
func TestOuterPacket(t *testing.T) {
	a, b := pair(t, 1500)
	to := netip.AddrPortFrom(b.podAddr(), 7000)
	b.pod.EchoUDP(t, to.String())
	if _, err := a.pod.AskUDP(t, "", to.String(), "warm up", 10*time.Second); err != nil {
		t.Fatal(err)
	}
	wire := capture(t, a.NS, "eth0")
	full := make([]byte, tunnelMTU-20-8) // inner IPv4 and UDP headers
	conn := a.pod.ListenUDP(t, "0.0.0.0:0")
	setPMTUDiscover(t, conn, unix.IP_PMTUDISC_DONT) // the inner packet has no DF
	if _, err := conn.WriteToUDPAddrPort(full, to); err != nil {
		t.Fatalf("datagram that fills the MTU: %v", err)
	}
	outer, inner := wire(a.addr, b.addr)
	if outer.protocol != unix.IPPROTO_IPIP || outer.size != 1500 || !outer.dontFragment || outer.ttl != 63 {
		t.Errorf("outer packet %+v, want protocol 4 of 1500 bytes with DF, and the inner packet's TTL, 63", outer)
	}
	if inner.protocol != unix.IPPROTO_UDP || inner.size != tunnelMTU || inner.ttl != 63 || inner.src != a.podAddr() ||
		inner.dst != b.podAddr() {
		t.Errorf("inner packet %+v, want UDP of %d bytes from %s to %s", inner, tunnelMTU, a.podAddr(), b.podAddr())
	}
	setPMTUDiscover(t, conn, unix.IP_PMTUDISC_DO)
	if _, err := conn.WriteToUDPAddrPort(append(full, 'x'), to); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("one byte more: %v, want EMSGSIZE", err)
	}
}

// TestTTL counts hops as a pod sees them: two nodes.
func TestTTL(t *testing.T) {
	a, b := pair(t, 1500)
	to := netip.AddrPortFrom(b.podAddr(), 7000)
	server := b.pod.ListenUDP(t, to.String())
	raw, err := server.SyscallConn()
	errtest.Must(t, err)
	errtest.Must(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTTL, 1) }))
	client := a.pod.ListenUDP(t, "0.0.0.0:0")
	buf, oob := make([]byte, 100), make([]byte, 100)
	for range 50 {
		if _, err := client.WriteToUDPAddrPort([]byte("hello"), to); err != nil {
			t.Fatal(err)
		}
		server.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		_, n, _, _, err := server.ReadMsgUDP(buf, oob)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		msgs, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil || len(msgs) != 1 {
			t.Fatalf("control messages: %v, %v", msgs, err)
		}
		if ttl := binary.NativeEndian.Uint32(msgs[0].Data); ttl != 62 {
			t.Errorf("ttl %d at the pod, want 62", ttl)
		}
		return
	}
	t.Fatal("no datagram arrived")
}

// TestNarrowPath sends through a router with a far link that is too small for a full outer packet, which the nodes can
// only learn from the router's ICMP messages (calico #7146).
func TestNarrowPath(t *testing.T) {
	a, b := pair(t, 1300)
	if err := a.pod.SendTCP(t, b.pod, netip.AddrPortFrom(b.podAddr(), 7001).String()); err != nil {
		t.Errorf("TCP over a path with MTU 1300: %v", err)
	}
	// Datagrams that may be fragmented are, and in the pod's own packets: clouds drop fragments of tunnels.
	to := netip.AddrPortFrom(b.podAddr(), 7000)
	server, client := b.pod.ListenUDP(t, to.String()), a.pod.ListenUDP(t, "0.0.0.0:0")
	setPMTUDiscover(t, client, unix.IP_PMTUDISC_DONT)
	buf := make([]byte, 2000)
	for range 50 {
		if _, err := client.WriteToUDPAddrPort(buf[:1400], to); err != nil {
			t.Fatal(err)
		}
		server.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if n, err := server.Read(buf); err == nil {
			if n != 1400 {
				t.Errorf("datagram of %d bytes arrived, want 1400", n)
			}
			return
		}
	}
	t.Error("a datagram of 1400 bytes does not get over a path with MTU 1300")
}

// TestVanishedPod sends to a pod that does not exist: the node that owns its block answers with an error at once, while
// with a blackhole the client would wait (calico #13570).
func TestVanishedPod(t *testing.T) {
	a, b := pair(t, 1500)
	gone := b.podAddr().Next()
	for name, from := range map[string]*netnstest.NS{"same node": b.pod, "other node": a.pod} {
		begin := time.Now()
		err := from.Do(func() error {
			conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(gone, 80).String(), 20*time.Second)
			if err == nil {
				conn.Close()
			}
			return err
		})
		if !errors.Is(err, unix.EHOSTUNREACH) {
			t.Errorf("%s: connect to a pod that is gone: %v after %v, want no route to host", name, err, time.Since(begin))
		}
	}
}

func setPMTUDiscover(t *testing.T, conn *net.UDPConn, mode int) {
	t.Helper()
	raw, err := conn.SyscallConn()
	errtest.Must(t, err)
	var setErr error
	err = raw.Control(func(fd uintptr) {
		setErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, mode)
	})
	errtest.Must(t, errors.Join(err, setErr))
}

// header is what the tests look at in an IPv4 packet.
type header struct {
	src, dst     netip.Addr
	protocol     byte
	ttl          byte
	size         int
	dontFragment bool
}

func parse(b []byte) header {
	src, _ := netip.AddrFromSlice(b[12:16])
	dst, _ := netip.AddrFromSlice(b[16:20])
	return header{
		src: src, dst: dst, protocol: b[9], ttl: b[8], size: int(binary.BigEndian.Uint16(b[2:])),
		dontFragment: b[6]&0x40 != 0,
	}
}

// capture listens on a link from now on. The function that it returns waits for an IPv4 packet between two addresses
// and returns it and the packet inside it.
func capture(t *testing.T, ns *netnstest.NS, link string) func(src, dst string) (outer, inner header) {
	t.Helper()
	const all = 0x0300 // ETH_P_ALL in network order; a listener for one protocol does not see what is sent
	var fd int
	ns.Within(t, func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all)
		return err
	})
	t.Cleanup(func() { unix.Close(fd) })
	err := errors.Join(
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ns.Link(t, link).Index}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}),
	)
	errtest.Must(t, err)
	return func(src, dst string) (outer, inner header) {
		t.Helper()
		buf := make([]byte, 65536)
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil || n < 40 || buf[0]>>4 != 4 {
				continue
			}
			if outer = parse(buf); outer.src == addr(src) && outer.dst == addr(dst) {
				return outer, parse(buf[20:])
			}
		}
		t.Fatalf("no packet from %s to %s on %s", src, dst, link)
		return
	}
}
