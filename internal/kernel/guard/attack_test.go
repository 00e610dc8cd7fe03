package guard_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/nat"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// Pods that attack, and their victim, in both families.
var (
	pod6              = addr("fd00:10::7")
	victim, victim6   = addr("10.244.0.8"), addr("fd00:10::8")
	hostMAC, otherMAC = mac("ee:ee:ee:ee:ee:ee"), mac("02:00:00:00:00:99")
)

func mac(text string) net.HardwareAddr {
	m, err := net.ParseMAC(text)
	if err != nil {
		panic(err)
	}
	return m
}

// cell is a node with two pods, of which one attacks, and a neighbour.
type cell struct {
	*host
	attacker, victim *netnstest.NS
}

const attackerLink, victimLink = "cali00000000001", "cali00000000002"

func newCell(t *testing.T) *cell {
	t.Helper()
	h := newHost(t)
	c := &cell{host: h, attacker: netnstest.New(t), victim: netnstest.New(t)}
	h.Run(t, "ip", "link", "delete", "cali0")
	h.Route(t, "::/0", known6.String(), "eth0")
	h.known.Route(t, "fd00:10::/64", nodeAddr6.String(), "eth0")
	h.Within(t, func() error {
		for _, key := range []sysctl.Key{{"net", "ipv6", "conf", "all", "forwarding"}} {
			if err := sysctl.DefaultRoot.Set(key, "1"); err != nil {
				return err
			}
		}
		for _, p := range []podnet.Config{
			{Netns: c.attacker.Path(), HostVeth: attackerLink, Addresses: []netip.Addr{pod, pod6}},
			{Netns: c.victim.Path(), HostVeth: victimLink, Addresses: []netip.Addr{victim, victim6}},
		} {
			p.IfName, p.MTU = "eth0", 1480
			if _, err := podnet.Setup(t.Context(), p); err != nil {
				return err
			}
		}
		return nil
	})
	return c
}

func (c *cell) shut(t *testing.T, change func(*guard.Config)) {
	t.Helper()
	config := config(nodeAddr, known, nodeAddr6, known6)
	if change != nil {
		change(&config)
	}
	sync(t, c.guard, config)
}

// send sends frames from within the attacker.
func (c *cell) send(t *testing.T, frames ...[]byte) {
	t.Helper()
	c.attacker.Send(t, "eth0", frames...)
}

// datagram sends UDP by a frame of the pod's, with any addresses in it.
func (c *cell) datagram(t *testing.T, src, dst netip.AddrPort, text string) {
	t.Helper()
	kind, b := netnstest.Datagram(src, dst, []byte(text))
	c.send(t, netnstest.Frame(c.attacker.Link(t, "eth0").HardwareAddr, hostMAC, kind, b))
}

// next returns the text and the source of the next datagram, empty after the wait.
func next(t *testing.T, conn *net.UDPConn, wait time.Duration) (string, netip.Addr) {
	t.Helper()
	errtest.Must(t, conn.SetReadDeadline(time.Now().Add(wait)))
	buf := make([]byte, 100)
	n, from, err := conn.ReadFromUDPAddrPort(buf)
	if err != nil {
		return "", netip.Addr{}
	}
	return string(buf[:n]), from.Addr().Unmap()
}

const soon, surely = 200 * time.Millisecond, 20 * time.Second

// TestSpoofedSource sends frames with other pods', nodes' and strangers' addresses to another pod, to the node and to
// another node.
func TestSpoofedSource(t *testing.T) {
	for name, is := range map[string]struct {
		own, node, to netip.Addr
		forged        []netip.Addr
	}{
		"IPv4": {pod, nodeAddr, known, []netip.Addr{victim, known, stranger, addr("127.0.0.1"), addr("169.254.1.1"), nodeAddr}},
		"IPv6": {pod6, nodeAddr6, known6, []netip.Addr{victim6, known6, stranger6, addr("fd00:10::9"), nodeAddr6}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t)
			to := netip.AddrPortFrom(is.to, 7000)
			conn := c.known.ListenUDP(t, to.String())
			other := victim
			if is.own.Is6() {
				other = victim6
			}
			atVictim := c.victim.ListenUDP(t, netip.AddrPortFrom(other, 7000).String())
			c.loosen(t)
			c.datagram(t, netip.AddrPortFrom(is.forged[1], 53), netip.AddrPortFrom(other, 7000), "forged")
			if got, from := next(t, atVictim, surely); got != "forged" || from != is.forged[1] {
				t.Fatalf("without the guard %q arrives from %s: the test shows nothing", got, from)
			}
			c.shut(t, nil)
			for i, src := range is.forged {
				c.datagram(t, netip.AddrPortFrom(src, 53), to, "forged")
				c.eventually(t, guard.SpoofedFromPod, uint64(2*i+1))
				c.datagram(t, netip.AddrPortFrom(src, 53), netip.AddrPortFrom(other, 7000), "forged")
				c.eventually(t, guard.SpoofedFromPod, uint64(2*i+2))
			}
			if got, from := next(t, atVictim, soon); got != "" {
				t.Errorf("the other pod got %q from %s", got, from)
			}
			c.datagram(t, netip.AddrPortFrom(is.own, 53), to, "own")
			if got, from := next(t, conn, surely); got != "own" || from != is.own {
				t.Errorf("the other node got %q from %s, want the pod's own only", got, from)
			}
			if tracked := c.Run(t, "cat", "/proc/net/nf_conntrack"); strings.Contains(tracked, "src="+stranger.String()+" ") {
				t.Errorf("a forged packet is tracked:\n%s", tracked)
			}
		})
	}
}

// loosen switches off the reverse path filter of the attacker's link, and of further ones, which also stops much of
// IPv4: the test is about the guard.
func (c *cell) loosen(t *testing.T, further ...string) {
	t.Helper()
	c.Within(t, func() error {
		for _, link := range append(further, "all", attackerLink) {
			if err := sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "conf", link, "rp_filter"}, "0"); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestSecondLink sends by a link that a pod with CAP_NET_ADMIN has made into the node: as its own pod, as another of
// the node, as one of another node, and as a node, in tunnels' packets too. Packets by the pod's own link, from the
// network, and from others behind links of the host pass.
func TestSecondLink(t *testing.T) {
	for name, is := range map[string]struct {
		own, other, far, to, guest netip.Addr
		pools                      []netip.Prefix
	}{
		"IPv4": {pod, victim, addr("10.244.9.9"), known, addr("198.51.100.9"), []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}},
		"IPv6": {pod6, victim6, addr("fd00:10::9:9"), known6, addr("2001:db8:99::9"), []netip.Prefix{netip.MustParsePrefix("fd00:10::/64")}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t)
			netnstest.Cable(t, c.NS, "x0", c.attacker, "x1")
			c.loosen(t, "x0", "eth0", "eth1")
			at := netip.AddrPortFrom(is.to, 7000)
			outside, atVictim := c.known.ListenUDP(t, at.String()), c.victim.ListenUDP(t, netip.AddrPortFrom(is.other, 7000).String())
			frame := func(ns *netnstest.NS, link string, gateway net.HardwareAddr, src netip.Addr, dst netip.AddrPort, text string) {
				kind, b := netnstest.Datagram(netip.AddrPortFrom(src, 53), dst, []byte(text))
				ns.Send(t, link, netnstest.Frame(ns.Link(t, link).HardwareAddr, gateway, kind, b))
			}
			second := c.Link(t, "x0").HardwareAddr
			frame(c.attacker, "x1", second, is.other, at, "forged")
			if got, _ := next(t, outside, surely); got != "forged" {
				t.Fatalf("without the guard %q arrives: the test shows nothing", got)
			}
			c.shut(t, func(g *guard.Config) {
				g.OwnLinks, g.Pools = []int{c.Link(t, "eth0").Index, c.Link(t, "eth1").Index, c.Link(t, "lo").Index}, is.pools
			})
			for i, src := range []netip.Addr{is.own, is.other, is.far, is.to} {
				frame(c.attacker, "x1", second, src, at, "forged")
				c.eventually(t, guard.SpoofedElsewhere, uint64(i+1))
			}
			frame(c.attacker, "x1", second, is.guest, at, "of the host's guest")
			if got, from := next(t, outside, surely); got != "of the host's guest" || from != is.guest {
				t.Errorf("the other node got %q from %s", got, from)
			}
			frame(c.known, "eth0", c.Link(t, "eth0").HardwareAddr, is.to, netip.AddrPortFrom(is.other, 7000), "honest")
			if got, from := next(t, atVictim, surely); got != "honest" || from != is.to {
				t.Errorf("the pod got %q from %s", got, from)
			}
			c.datagram(t, netip.AddrPortFrom(is.own, 53), at, "by its link")
			if got, from := next(t, outside, surely); got != "by its link" || from != is.own {
				t.Errorf("the other node got %q from %s", got, from)
			}
		})
	}
}

// TestAllowedSources has a pod that may send from other prefixes; no other pod may.
func TestAllowedSources(t *testing.T) {
	c := newCell(t)
	c.loosen(t)
	may := addr("10.1.2.3")
	to := netip.AddrPortFrom(known, 7000)
	conn := c.known.ListenUDP(t, to.String())
	only := func(link string) func(*guard.Config) {
		return func(g *guard.Config) {
			g.Sources = []guard.Source{{Link: link, Prefix: netip.MustParsePrefix("10.1.0.0/16")},
				{Link: link, Prefix: netip.MustParsePrefix("10.1.2.0/24")}}
		}
	}
	c.shut(t, only(victimLink))
	c.datagram(t, netip.AddrPortFrom(may, 53), to, "another pod's")
	c.eventually(t, guard.SpoofedFromPod, 1)
	c.shut(t, only(attackerLink))
	c.datagram(t, netip.AddrPortFrom(may, 53), to, "allowed")
	if got, from := next(t, conn, surely); got != "allowed" || from != may {
		t.Errorf("%q arrives from %s", got, from)
	}
	before := c.count(t, guard.SpoofedFromPod)
	c.datagram(t, netip.AddrPortFrom(addr("10.2.0.1"), 53), to, "no")
	c.eventually(t, guard.SpoofedFromPod, before+1)
}

// TestLoopback sends frames to 127.0.0.1 of the node, on a link that Calico, or the port mapping, has opened for that.
func TestLoopback(t *testing.T) {
	c := newCell(t)
	inside := netip.MustParseAddrPort("127.0.0.1:9099")
	conn := c.ListenUDP(t, inside.String())
	from := netip.AddrPortFrom(pod, 53)
	c.datagram(t, from, inside, "closed by the link")
	if got, _ := next(t, conn, soon); got != "" {
		t.Errorf("without route_localnet %q arrives", got)
	}
	c.Within(t, func() error {
		return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "conf", attackerLink, "route_localnet"}, "1")
	})
	c.datagram(t, from, inside, "attack")
	if got, _ := next(t, conn, surely); got != "attack" {
		t.Fatal("nothing arrives without the guard: the test shows nothing")
	}
	c.shut(t, nil)
	for i, to := range []string{"127.0.0.1:9099", "127.0.0.53:9099", "127.255.255.254:9099"} {
		c.datagram(t, from, netip.MustParseAddrPort(to), "attack")
		c.eventually(t, guard.LoopbackFromPod, uint64(i+1))
	}
	if got, _ := next(t, conn, soon); got != "" {
		t.Errorf("%q arrives", got)
	}
	// Intentional translation to a service there is allowed.
	c.Run(t, "nft", "add table ip user")
	c.Run(t, "nft", "add chain ip user pre { type nat hook prerouting priority dstnat; }")
	c.Run(t, "nft", "add rule ip user pre ip daddr 169.254.169.254 udp dport 80 dnat to 127.0.0.1:9099")
	c.datagram(t, from, netip.MustParseAddrPort("169.254.169.254:80"), "translated")
	if got, _ := next(t, conn, surely); got != "translated" {
		t.Errorf("translated: %q", got)
	}
}

// hostPort is the configuration of portmap for one port, as it follows the plugin calico in a conflist, with its
// result.
const hostPort = `{"cniVersion":"1.0.0","name":"pods","type":"portmap","snat":true,
    "runtimeConfig":{"portMappings":[{"hostPort":8081,"containerPort":80,"protocol":"tcp"}]},
	"prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"%s"}],"ips":[{"interface":0,"address":"%s/32"}]}}`

// TestHostPortOnLoopback opens a host port by portmap, also on 127.0.0.1 of the node: portmap sets route_localnet on
// the link of that pod. With the guard the pod still cannot reach programs that listen there.
func TestHostPortOnLoopback(t *testing.T) {
	needtest.More(t, "a build of portmap")
	c := newCell(t)
	portmap := filepath.Join(t.TempDir(), "portmap")
	if out, err := exec.Command("go", "build", "-o", portmap,
		"github.com/containernetworking/plugins/plugins/meta/portmap").CombinedOutput(); err != nil {
		t.Fatalf("build portmap: %v: %s", err, out)
	}
	var web net.Listener
	c.attacker.Within(t, func() (err error) {
		web, err = net.Listen("tcp", netip.AddrPortFrom(pod, 80).String())
		return err
	})
	t.Cleanup(func() { _ = web.Close() })
	door := netip.MustParseAddrPort("127.0.0.1:8081")
	localnet := func() string {
		return strings.TrimSpace(c.Run(t, "cat", "/proc/sys/net/ipv4/conf/"+attackerLink+"/route_localnet"))
	}
	if set := localnet(); set != "0" {
		t.Errorf("route_localnet of a pod's link is %s", set)
	}
	c.Within(t, func() error {
		cmd := exec.Command(portmap)
		cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID=porter", "CNI_NETNS="+c.attacker.Path(), "CNI_IFNAME=eth0",
			"CNI_PATH="+filepath.Dir(portmap))
		cmd.Stdin = strings.NewReader(fmt.Sprintf(hostPort, c.attacker.Path(), pod))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("portmap: %w: %s", err, out)
		}
		return nil
	})
	if set := localnet(); set != "1" {
		t.Errorf("portmap leaves route_localnet at %s", set)
	}
	c.shut(t, nil)
	if err := dial(t, c.NS, netip.AddrPort{}, door, surely); err != nil {
		t.Errorf("the host port on 127.0.0.1: %v", err)
	}

	inside := netip.MustParseAddrPort("127.0.0.1:9099")
	conn := c.ListenUDP(t, inside.String())
	c.datagram(t, netip.AddrPortFrom(pod, 53), inside, "attack")
	c.eventually(t, guard.LoopbackFromPod, 1)
	if got, _ := next(t, conn, soon); got != "" {
		t.Errorf("%q arrives", got)
	}

	// Without portmap's setting the kernel sends nothing from 127.0.0.1 to a pod.
	c.Within(t, func() error {
		return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "conf", attackerLink, "route_localnet"}, "0")
	})
	if err := dial(t, c.NS, netip.AddrPort{}, door, soon); err == nil {
		t.Error("the host port is open on 127.0.0.1 without route_localnet: the test shows nothing")
	}
}

// dial tries to open a connection.
func dial(t *testing.T, ns *netnstest.NS, local, to netip.AddrPort, wait time.Duration) error {
	t.Helper()
	var failed error
	ns.Within(t, func() error {
		d := net.Dialer{Timeout: wait}
		if local.IsValid() {
			d.LocalAddr = net.TCPAddrFromAddrPort(local)
		}
		conn, err := d.DialContext(t.Context(), "tcp", to.String())
		if failed = err; err == nil {
			_ = conn.Close()
		}
		return nil
	})
	return failed
}

func listen(t *testing.T, ns *netnstest.NS, at netip.AddrPort) {
	t.Helper()
	var l net.Listener
	ns.Within(t, func() (err error) {
		l, err = new(net.ListenConfig).Listen(t.Context(), "tcp", at.String())
		return err
	})
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
}

// TestBGP opens connections to BGP's ports: of the pod's own node, of another one, and by a service that leads there.
func TestBGP(t *testing.T) {
	for name, is := range map[string]struct{ pod, node, known netip.Addr }{"ip": {pod, nodeAddr, known}, "ip6": {pod6, nodeAddr6, known6}} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t)
			at := netip.AddrPortFrom
			var targets []netip.AddrPort
			for _, port := range []uint16{179, 1790} {
				targets = append(targets, at(is.node, port), at(is.known, port))
				listen(t, c.NS, at(is.node, port))
				listen(t, c.known, at(is.known, port))
			}
			c.Run(t, "nft", "add table inet user")
			c.Run(t, "nft", "add chain inet user pre { type nat hook prerouting priority dstnat; }")
			c.Run(t, "nft", fmt.Sprintf("add rule inet user pre tcp dport 8179 dnat %s to %s", name, at(is.known, 179)))
			targets = append(targets, at(is.known, 8179))
			all := func(want bool) {
				t.Helper()
				for _, to := range targets {
					wait := surely
					if !want {
						wait = soon
					}
					if err := dial(t, c.attacker, netip.AddrPort{}, to, wait); (err == nil) != want {
						t.Errorf("connection to %s: %v", to, err)
					}
				}
			}
			all(true) // without the guard
			c.shut(t, func(g *guard.Config) { g.BGPPorts = []uint16{1790} })
			all(false)
			if c.count(t, guard.BGPFromPod) < uint64(len(targets)) {
				t.Error("not all are counted")
			}
			// The kernel opens a connection whatever flags accompany SYN: congestion notification, PSH, URG.
			for _, flags := range []byte{0x02, 0xc2, 0x0a, 0x22, 0xea} {
				before := c.count(t, guard.BGPFromPod)
				c.send(t, opening(c.attacker.Link(t, "eth0").HardwareAddr, at(is.pod, 7000+uint16(flags)), at(is.known, 179), flags))
				waittest.Until(t, surely, fmt.Sprintf("a SYN with flags %#02x is dropped", flags),
					func() bool { return c.count(t, guard.BGPFromPod) > before })
			}
			// Nodes among themselves, and answers to a client that happens to use such a port.
			if err := dial(t, c.known, netip.AddrPort{}, at(is.node, 179), surely); err != nil {
				t.Errorf("from another node: %v", err)
			}
			listen(t, c.attacker, at(is.pod, 80))
			errtest.Must(t, dial(t, c.known, at(is.known, 17900), at(is.pod, 80), surely))
			c.shut(t, func(g *guard.Config) { g.BGPPorts = []uint16{1790, 17901} })
			if err := dial(t, c.known, at(is.known, 17901), at(is.pod, 80), surely); err != nil {
				t.Errorf("a client at a BGP port: %v", err)
			}
			c.shut(t, func(g *guard.Config) { g.BGPPorts, g.AllowBGPFromPods = []uint16{1790}, true })
			all(true)
		})
	}
}

// TestBGPLinkLocal: a router on a link of the node's reaches BGP and BFD by link-local addresses, and no pod reaches
// BGP so, be it by the address on its own link or by one on the router's.
func TestBGPLinkLocal(t *testing.T) {
	c := newCell(t)
	c.Addr(t, "eth1", "fe80::1/64")
	c.stranger.Addr(t, "eth0", "fe80::2/64") // as others in the rack, it is no node
	any6 := netip.IPv6Unspecified()
	listen(t, c.NS, netip.AddrPortFrom(any6, 179))
	c.EchoUDP(t, netip.AddrPortFrom(any6, 3784).String())
	// Zones are numbers: package net caches the indexes of links' names, also from other namespaces.
	at := func(a netip.Addr, of *netnstest.NS, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(a.WithZone(fmt.Sprint(of.Link(t, "eth0").Index)), port)
	}
	ours := addr("fe80::1")
	c.attacker.Run(t, "ip", "neigh", "replace", "fe80::1", "lladdr", hostMAC.String(), "dev", "eth0")
	if err := dial(t, c.attacker, netip.AddrPort{}, at(linkLocal, c.attacker, 179), surely); err != nil {
		t.Fatalf("without the guard: %v", err)
	}
	for name, change := range map[string]func(*guard.Config){"nodes": nil, "nodes not known": func(g *guard.Config) { g.Nodes = nil }} {
		c.shut(t, change)
		for i, from := range []netip.AddrPort{{}, netip.AddrPortFrom(pod6, 0)} {
			for _, to := range []netip.AddrPort{at(linkLocal, c.attacker, 179), at(ours, c.attacker, 179)} {
				if err := dial(t, c.attacker, from, to, soon); err == nil {
					t.Errorf("%s: a pod reaches BGP at %s from %s", name, to, from)
				}
			}
			if got := c.count(t, guard.BGPFromPod); got == 0 {
				t.Errorf("%s: case %d is not counted", name, i)
			}
		}
		before := c.count(t, guard.BGPFromPod)
		c.send(t, opening(c.attacker.Link(t, "eth0").HardwareAddr, netip.AddrPortFrom(addr("fe80::2"), 7000),
			netip.AddrPortFrom(nodeAddr6, 179), 0x02))
		waittest.Until(t, surely, "a SYN from the router's address to the node's is dropped",
			func() bool { return c.count(t, guard.BGPFromPod) > before })
		if err := dial(t, c.stranger, netip.AddrPort{}, at(ours, c.stranger, 179), surely); err != nil {
			t.Errorf("%s: a router does not reach BGP: %v", name, err)
		}
		if _, err := c.stranger.AskUDP(t, "", at(ours, c.stranger, 3784).String(), "hello", surely); err != nil {
			t.Errorf("%s: a router does not reach BFD: %v", name, err)
		}
	}
	c.shut(t, func(g *guard.Config) { g.AllowBGPFromPods = true })
	if err := dial(t, c.attacker, netip.AddrPort{}, at(linkLocal, c.attacker, 179), surely); err != nil {
		t.Errorf("a pod that may: %v", err)
	}
}

// opening is a frame with the first packet of a TCP connection.
func opening(from net.HardwareAddr, src, dst netip.AddrPort, flags byte) []byte {
	tcp := []byte{byte(src.Port() >> 8), byte(src.Port()), byte(dst.Port() >> 8), byte(dst.Port()), 0, 0, 0, 1, 0, 0, 0, 0, 0x50,
		flags, 0xff, 0xff, 0, 0, 0, 0}
	etherType, b := netnstest.Packet(src.Addr(), dst.Addr(), unix.IPPROTO_TCP, 64, tcp, 16)
	return netnstest.Frame(from, hostMAC, etherType, b)
}

// TestBFD sends BFD to the pod's node: as a router, from the pod's own and a link-local address, and by a service that
// leads there.
func TestBFD(t *testing.T) {
	at := netip.AddrPortFrom
	for name, is := range map[string]struct{ node, router, own, near netip.Addr }{
		"ip": {nodeAddr, known, pod, pod}, "ip6": {nodeAddr6, known6, pod6, addr("fe80::7")},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t)
			c.loosen(t)
			bfd := at(is.node, guard.BFDPort)
			conn := c.ListenUDP(t, bfd.String())
			c.Run(t, "nft", "add table inet user; add chain inet user pre { type nat hook prerouting priority dstnat; }")
			c.Run(t, "nft", fmt.Sprintf("add rule inet user pre udp dport 8784 dnat %s to %s", name, bfd))
			attack := func(want bool) {
				t.Helper()
				for src, to := range map[netip.AddrPort]netip.AddrPort{
					at(is.router, 49152): bfd, at(is.own, 49152): bfd, at(is.near, 49153): bfd, at(is.own, 49154): at(is.node, 8784),
				} {
					before := c.count(t, guard.BFDFromPod) + c.count(t, guard.SpoofedFromPod)
					c.datagram(t, src, to, "forged")
					if want {
						if got, from := next(t, conn, surely); got != "forged" || from.WithZone("") != src.Addr() {
							t.Errorf("from %s to %s: %q arrives from %s", src, to, got, from)
						}
						continue
					}
					waittest.Until(t, surely, fmt.Sprintf("a packet from %s to %s is dropped", src, to), func() bool {
						return c.count(t, guard.BFDFromPod)+c.count(t, guard.SpoofedFromPod) > before
					})
				}
			}
			attack(true) // without the guard
			c.shut(t, nil)
			attack(false)
			if forged, own := c.count(t, guard.SpoofedFromPod), c.count(t, guard.BFDFromPod); forged != 1 || own != 3 {
				t.Errorf("dropped for the source %d, for the port %d, want 1 and 3", forged, own)
			}
			router := c.known.ListenUDP(t, at(is.router, 49152).String())
			_, err := router.WriteToUDPAddrPort([]byte("router"), bfd)
			errtest.Must(t, err)
			if got, from := next(t, conn, surely); got != "router" || from != is.router {
				t.Errorf("%q arrives from %s, want the router's only", got, from)
			}
			c.shut(t, func(g *guard.Config) { g.AllowBGPFromPods = true })
			c.datagram(t, at(is.own, 49152), bfd, "allowed")
			if got, _ := next(t, conn, surely); got != "allowed" {
				t.Errorf("%q arrives from a pod that may", got)
			}
		})
	}
}

// TestTranslatedAway has VXLAN of nodes translated to a pod, as a host port or a Service with an external address does:
// the tunnel receives it all the same, in both families and directions.
func TestTranslatedAway(t *testing.T) {
	for name, is := range map[string]struct{ node, known, pod netip.Addr }{"ip": {nodeAddr, known, victim},
		"ip6": {nodeAddr6, known6, victim6}} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t)
			port := func(a netip.Addr) string { return netip.AddrPortFrom(a, guard.DefaultVXLANPort).String() }
			atNode, atKnown := c.ListenUDP(t, port(is.node)), c.known.ListenUDP(t, port(is.known))
			c.Run(t, "nft", "add table inet user")
			for _, hook := range []string{"prerouting", "output"} {
				c.Run(t, "nft", "add chain inet user "+hook+" { type nat hook "+hook+" priority -100; }")
				c.Run(t, "nft", fmt.Sprintf("add rule inet user %s udp dport 4789 dnat %s to %s", hook, name, port(is.pod)))
			}
			both := func(text string, want bool) {
				t.Helper()
				for what, way := range map[string]struct {
					from    *netnstest.NS
					src, to netip.Addr
					at      *net.UDPConn
				}{"in": {c.known, is.known, is.node, atNode}, "out": {c.NS, is.node, is.known, atKnown}} {
					wait := soon
					if want {
						wait = surely
					}
					conn := way.from.ListenUDP(t, netip.AddrPortFrom(way.src, 0).String())
					if _, err := conn.WriteToUDPAddrPort([]byte(text), netip.MustParseAddrPort(port(way.to))); err != nil {
						t.Fatal(err)
					}
					if got, _ := next(t, way.at, wait); (got == text) != want {
						t.Errorf("%s, %s: got %q", text, what, got)
					}
				}
			}
			both("without the guard", false)
			c.shut(t, nil)
			both("with it", true)
			c.shut(t, func(g *guard.Config) { g.VXLAN = false }) // others may use the port
			both("without VXLAN", false)
		})
	}
}

// TestTranslatedTo has packets of another host to a port of the node, or through it to another node, translated to
// VXLAN and BGP there: they arrive from a node's address, and no host may send them.
func TestTranslatedTo(t *testing.T) {
	for name, is := range map[string]struct{ node, known, pod netip.Addr }{"ip": {nodeAddr, known, victim},
		"ip6": {nodeAddr6, known6, victim6}} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t)
			at := netip.AddrPortFrom
			local := c.ListenUDP(t, at(is.node, guard.DefaultVXLANPort).String())
			pod := c.victim.ListenUDP(t, at(is.pod, guard.DefaultVXLANPort).String())
			listen(t, c.NS, at(is.node, 179))
			listen(t, c.victim, at(is.pod, 179))
			c.Run(t, "nft", "add table inet user")
			c.Run(t, "nft", "add chain inet user pre { type nat hook prerouting priority dstnat; }")
			rule := func(protocol string, port int, to netip.AddrPort) {
				c.Run(t, "nft", fmt.Sprintf("add rule inet user pre %s dport %d dnat %s to %s", protocol, port, name, to))
			}
			rule("udp", 30001, at(is.node, guard.DefaultVXLANPort))
			rule("tcp", 30001, at(is.node, 179))
			rule("udp", 30002, at(is.pod, guard.DefaultVXLANPort))
			rule("tcp", 30002, at(is.pod, 179))
			try := func(port uint16, conn *net.UDPConn, want bool) {
				t.Helper()
				wait := soon
				if want {
					wait = surely
				}
				from := c.known.ListenUDP(t, at(is.known, 0).String())
				if _, err := from.WriteToUDPAddrPort([]byte("packet"), at(is.node, port)); err != nil {
					t.Fatal(err)
				}
				if got, _ := next(t, conn, wait); (got != "") != want {
					t.Errorf("VXLAN by port %d: %q", port, got)
				}
				if err := dial(t, c.known, netip.AddrPort{}, at(is.node, port), wait); (err == nil) != want {
					t.Errorf("BGP by port %d: %v", port, err)
				}
			}
			try(30001, local, true) // without the guard
			c.shut(t, nil)
			try(30001, local, false)
			try(30002, pod, true) // a pod's own
			if c.count(t, guard.TranslatedVXLAN) == 0 || c.count(t, guard.TranslatedBGP) == 0 {
				t.Error("not all are counted")
			}
			// The pod's address is a node's now: as if the node had sent it on.
			c.shut(t, func(g *guard.Config) { g.Nodes = append(g.Nodes, is.pod) })
			try(30002, pod, false)
			c.shut(t, func(g *guard.Config) {
				g.Nodes, g.AllowBGPFromPods, g.AllowVXLANFromPods = append(g.Nodes, is.pod), true, true
			})
			try(30002, pod, true)
		})
	}
}

// neighbours returns the host's entries of a link.
func (c *cell) neighbours(t *testing.T, link string) []string {
	t.Helper()
	var all []string
	for line := range strings.Lines(c.Run(t, "ip", "neigh", "show", "dev", link)) {
		all = append(all, strings.TrimSpace(line))
	}
	return all
}

// claims returns the entries that have the attacker's other MAC address, or one of the addresses.
func (c *cell) claims(t *testing.T, addrs ...netip.Addr) (found []string) {
	t.Helper()
	for _, link := range []string{"eth0", "eth1", attackerLink, victimLink} {
		for _, entry := range c.neighbours(t, link) {
			first, _, _ := strings.Cut(entry, " ")
			if strings.Contains(entry, otherMAC.String()) || link == attackerLink && slices.Contains(addrs, addr(first)) {
				found = append(found, link+": "+entry)
			}
		}
	}
	return found
}

// reach sends from the host and the neighbour to the victim, and from the host to the neighbour.
func (c *cell) reach(t *testing.T) {
	t.Helper()
	for _, to := range []netip.Addr{victim, victim6} {
		for name, from := range map[string]*netnstest.NS{"its node": c.NS, "another node": c.known} {
			if _, err := from.AskUDP(t, "", netip.AddrPortFrom(to, 7000).String(), "hello", 5*time.Second); err != nil {
				t.Errorf("%s does not reach %s: %v", name, to, err)
			}
		}
	}
}

func (c *cell) echo(t *testing.T) {
	t.Helper()
	for _, a := range []netip.Addr{victim, victim6} {
		c.victim.EchoUDP(t, netip.AddrPortFrom(a, 7000).String())
	}
}

// TestARP claims other pods' and nodes' addresses by requests, replies and gratuitous ARP, with the pod's MAC address
// and another.
func TestARP(t *testing.T) {
	c := newCell(t)
	c.echo(t)
	c.shut(t, nil)
	c.reach(t)
	claimed := []netip.Addr{victim, nodeAddr, known, stranger, addr("10.244.0.99")}
	var frames [][]byte
	for _, src := range []net.HardwareAddr{otherMAC, c.attacker.Link(t, "eth0").HardwareAddr} {
		for _, a := range claimed {
			for _, op := range []byte{1, 2} { // request, reply
				for _, target := range []netip.Addr{a, addr("169.254.1.1"), nodeAddr, victim} { // the first is gratuitous
					frames = append(frames, netnstest.ARP(op, src, a, target))
				}
			}
		}
	}
	c.send(t, frames...)
	if got := c.claims(t, claimed...); len(got) > 0 {
		t.Errorf("the host believes: %q", got)
	}
	c.reach(t)
	// The pod may claim its own address.
	c.send(t, netnstest.ARP(1, otherMAC, pod, addr("169.254.1.1")))
	if got := c.claims(t); len(got) != 1 || !strings.Contains(got[0], pod.String()) {
		t.Errorf("after the pod has told its own address: %q", got)
	}
}

// TestARPFlood solicits the gateway from 2,000 addresses: the kernel has one table of 1,024 neighbours for all
// namespaces.
func TestARPFlood(t *testing.T) {
	c := newCell(t)
	c.echo(t)
	c.shut(t, nil)
	var frames [][]byte
	for i := range 2000 {
		frames = append(frames, netnstest.ARP(1, otherMAC, netip.AddrFrom4([4]byte{10, 250, byte(i >> 8), byte(i)}), addr("169.254.1.1")))
	}
	c.send(t, frames...)
	if got := len(c.neighbours(t, attackerLink)); got > 5 {
		t.Errorf("the host has %d neighbours on the pod's link", got)
	}
	c.reach(t)
}

// icmp6 is a frame of neighbour discovery.
func icmp6(kind byte, srcMAC net.HardwareAddr, src, dst, target netip.Addr) []byte {
	const option = 1 // source's link-layer address
	body := []byte{kind, 0, 0, 0, 0, 0, 0, 0}
	switch kind {
	case 136:
		body[4] = 0x60 // solicited, override
		body = slices.Concat(body, target.AsSlice(), []byte{2, 1}, srcMAC)
	case 135:
		body = slices.Concat(body, target.AsSlice(), []byte{option, 1}, srcMAC)
	case 137:
		body = slices.Concat(body, target.AsSlice(), target.AsSlice(), []byte{2, 1}, srcMAC)
	case 134:
		body = slices.Concat(body[:4], []byte{64, 0, 7, 8}, make([]byte, 8), []byte{option, 1}, srcMAC)
	default:
		body = slices.Concat(body, []byte{option, 1}, srcMAC)
	}
	etherType, b := netnstest.Packet(src, dst, unix.IPPROTO_ICMPV6, 255, body, 2)
	return netnstest.Frame(srcMAC, hostMAC, etherType, b)
}

var linkLocal = addr("fe80::ecee:eeff:feee:eeee")

// TestND claims other pods' and nodes' addresses by neighbour discovery, and poses as a router.
func TestND(t *testing.T) {
	c := newCell(t)
	c.echo(t)
	c.Within(t, func() error { // as hosts have it that take routes from routers although they forward
		return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv6", "conf", "all", "accept_ra"}, "2")
	})
	c.shut(t, nil)
	c.reach(t)
	routes := c.Run(t, "ip", "-6", "route", "show", "default")
	claimed := []netip.Addr{victim6, nodeAddr6, known6, stranger6, addr("fd00:10::99")}
	own := addr("fe80::99")
	var frames [][]byte
	for _, src := range []net.HardwareAddr{otherMAC, c.attacker.Link(t, "eth0").HardwareAddr} {
		for _, a := range claimed {
			for _, kind := range []byte{133, 135, 136} {
				frames = append(frames, icmp6(kind, src, a, linkLocal, linkLocal), icmp6(kind, src, a, linkLocal, a), icmp6(kind, src, a, nodeAddr6, a))
			}
			frames = append(frames, icmp6(136, src, own, linkLocal, a), icmp6(137, src, own, linkLocal, a))
		}
		frames = append(frames, icmp6(134, src, own, linkLocal, netip.Addr{}))
	}
	conn, to := c.known.ListenUDP(t, netip.AddrPortFrom(known, 7000).String()), netip.AddrPortFrom(known, 7000)
	c.send(t, frames...)
	c.datagram(t, netip.AddrPortFrom(pod, 53), to, "the last")
	if got, _ := next(t, conn, surely); got != "the last" {
		t.Errorf("%q arrives after the frames", got)
	}
	var believed []string
	for _, entry := range c.claims(t, claimed...) {
		if !strings.Contains(entry, own.String()+" ") { // a link-local address is the pod's to choose
			believed = append(believed, entry)
		}
	}
	if len(believed) > 0 {
		t.Errorf("the host believes: %q", believed)
	}
	if now := c.Run(t, "ip", "-6", "route", "show", "default"); now != routes {
		t.Errorf("default routes %q, before %q", now, routes)
	}
	c.reach(t)
}

// TestNDFlood solicits from 2,000 addresses, link-local ones among them.
func TestNDFlood(t *testing.T) {
	c := newCell(t)
	c.echo(t)
	c.shut(t, nil)
	var frames [][]byte
	for i := range 2000 {
		last := [16]byte{0: 0xfe, 1: 0x80, 14: byte(i >> 8), 15: byte(i)}
		if i%2 == 1 {
			last[0], last[1] = 0xfd, 0
		}
		frames = append(frames, icmp6([]byte{133, 135}[i/2%2], otherMAC, netip.AddrFrom16(last), linkLocal, linkLocal))
	}
	c.send(t, frames...)
	if got := len(c.neighbours(t, attackerLink)); got > 400 {
		t.Errorf("the host has %d neighbours on the pod's link", got)
	}
	if c.count(t, guard.NeighboursFromPod) == 0 {
		t.Error("nothing is counted")
	}
	c.reach(t)
}

// TestNewPod shows that a new pod's first packets are not dropped: duplicate address detection, router solicitation,
// reports of group membership, a DHCP client's broadcast.
func TestNewPod(t *testing.T) {
	c := newCell(t)
	c.shut(t, nil)
	unspecified := netip.IPv6Unspecified()
	c.send(t, icmp6(135, otherMAC, unspecified, addr("ff02::1:ff00:7"), pod6),
		icmp6(133, otherMAC, addr("fe80::99"), addr("ff02::2"), netip.Addr{}))
	c.datagram(t, netip.MustParseAddrPort("0.0.0.0:68"), netip.MustParseAddrPort("255.255.255.255:67"), "discover")
	if got := c.count(t, guard.SpoofedFromPod); got != 0 {
		t.Errorf("%d packets are taken for forged", got)
	}
	if !bytes.Contains([]byte(c.Run(t, "ip", "-6", "addr", "show", "dev", attackerLink)), []byte(linkLocal.String())) {
		t.Error("the pod's gateway is not there")
	}
}

// quote is the beginning of a packet that an error of ICMP is about.
func quote(src, dst netip.Addr, protocol byte, payload []byte) []byte {
	_, b := netnstest.Packet(src, dst, protocol, 64, payload, -1)
	return b
}

// tooLong returns a frame with an ICMP error that a packet was too long for a link of 1,300 bytes.
func tooLong(from net.HardwareAddr, src, dst netip.Addr, quoted []byte) []byte {
	kind, protocol, body := []byte{3, 4}, byte(unix.IPPROTO_ICMP), []byte{0, 0, 0, 0, 5, 20}
	if src.Is6() {
		kind, protocol = []byte{2, 0}, unix.IPPROTO_ICMPV6
	}
	body = slices.Concat(kind, body, quoted)
	etherType, b := netnstest.Packet(src, dst, protocol, 64, body, 2)
	if src.Is4() { // ICMP's checksum does not cover the addresses
		netnstest.PlainSum(body, 2)
		etherType, b = netnstest.Packet(src, dst, protocol, 64, body, -1)
	}
	return netnstest.Frame(from, hostMAC, etherType, b)
}

// TestPathMTU: a pod sends an error that packets of a tunnel between nodes were too long. Without the guard the kernel
// believes it.
func TestPathMTU(t *testing.T) {
	for name, is := range map[string]struct{ own, node, far netip.Addr }{"IPv4": {pod, nodeAddr, known}, "IPv6": {pod6, nodeAddr6, known6}} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t)
			for _, end := range []struct {
				ns          *netnstest.NS
				local, peer netip.Addr
			}{{c.NS, is.node, is.far}, {c.known, is.far, is.node}} {
				end.ns.Run(t, "ip", "link", "add", "vx", "type", "vxlan", "id", "4096", "dstport", fmt.Sprint(guard.DefaultVXLANPort), "local",
					end.local.String(), "nolearning")
				end.ns.Up(t, "vx")
			}
			udp := make([]byte, 16)
			copy(udp, []byte{200, 1, guard.DefaultVXLANPort >> 8, guard.DefaultVXLANPort & 0xff, 5, 180, 0, 0, 8, 0, 0, 0, 0, 4096 >> 8, 0, 0})
			attack := func() {
				mine := c.attacker.Link(t, "eth0").HardwareAddr
				c.send(t, tooLong(mine, is.own, is.node, quote(is.node, is.far, unix.IPPROTO_UDP, udp)),
					tooLong(mine, is.own, is.far, quote(is.far, is.node, unix.IPPROTO_UDP, udp)))
			}
			believed := func() (all []string) {
				for ns, to := range map[*netnstest.NS]netip.Addr{c.NS: is.far, c.known: is.node} {
					if way := ns.Run(t, "ip", "route", "get", to.String()); strings.Contains(way, "mtu") {
						all = append(all, way)
					}
				}
				return all
			}
			c.shut(t, nil)
			attack()
			c.eventually(t, guard.ErrorFromPod, 2)
			if got := believed(); len(got) > 0 {
				t.Errorf("believed: %q", got)
			}
			// True errors about its own connections are not dropped.
			c.Within(t, func() error {
				conn, err := net.Dial("udp", netip.AddrPortFrom(is.own, 7001).String())
				if err != nil {
					return err
				}
				defer conn.Close()
				_, _ = conn.Write([]byte("hello"))
				_ = conn.SetReadDeadline(time.Now().Add(surely))
				if _, err = conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("nobody listens at the pod's port: %v, want that the pod's word of it arrives", err)
				}
				return nil
			})
			errtest.Must(t, c.guard.Remove(t.Context()))
			waittest.For(t, surely, func() error {
				attack()
				if got := believed(); len(got) < 2 {
					return fmt.Errorf("without the guard the nodes believe %q: the test shows nothing", got)
				}
				return nil
			})
		})
	}
}

// TestTranslatedError: a pod's own connection to another node is masqueraded, and with it the pod's error that packets
// of it were too long: the error comes from the node's address, and without the guard the kernel applies it to all
// packets between the nodes. Other errors about the connection arrive.
func TestTranslatedError(t *testing.T) {
	for name, is := range map[string]struct{ own, node, far netip.Addr }{"IPv4": {pod, nodeAddr, known}, "IPv6": {pod6, nodeAddr6, known6}} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t)
			pools := nat.Config{Pools: []nat.Pool{{CIDR: netip.MustParsePrefix("10.244.0.0/16"), NATOutgoing: true},
				{CIDR: netip.MustParsePrefix("fd00:10::/64"), NATOutgoing: true}}}
			errtest.Must(t, nat.New(nft.New(c.Namespace)).Sync(t.Context(), pools))
			at := netip.AddrPortFrom(is.far, 7000)
			server := c.known.ListenUDP(t, at.String())
			mine := netip.AddrPortFrom(is.own, 7001)
			c.datagram(t, mine, at, "hello")
			if text, from := next(t, server, surely); text != "hello" || from != is.node {
				t.Fatalf("%q arrives from %s, want it from the node's address", text, from)
			}
			quoted := quote(is.far, is.own, unix.IPPROTO_UDP,
				[]byte{7000 >> 8, 7000 & 0xff, 7001 >> 8, 7001 & 0xff, 5, 180, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0})
			attack := func() { c.send(t, tooLong(c.attacker.Link(t, "eth0").HardwareAddr, is.own, is.far, quoted)) }
			believed := func() bool { return strings.Contains(c.known.Run(t, "ip", "route", "get", is.node.String()), "mtu") }
			c.shut(t, nil)
			attack()
			c.eventually(t, guard.ErrorFromPod, 1)
			if believed() {
				t.Error("the other node believes it")
			}
			errtest.Must(t, c.guard.Remove(t.Context()))
			waittest.Until(t, surely, "without the guard the other node believes it", func() bool { attack(); return believed() })
		})
	}
}
