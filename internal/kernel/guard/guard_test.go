package guard_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

var addr = netip.MustParseAddr

// The addresses of the hosts in the tests.
var (
	nodeAddr, known, stranger    = addr("192.0.2.1"), addr("192.0.2.2"), addr("198.51.100.2")
	nodeAddr6, known6, stranger6 = addr("2001:db8:1::1"), addr("2001:db8:1::2"), addr("2001:db8:2::2")
	pod                          = addr("10.244.0.7")
)

func config(nodes ...netip.Addr) guard.Config {
	return guard.Config{Nodes: nodes, PodLinks: podnet.DefaultVethPrefix, IPIP: true, VXLAN: true}
}

func newGuard(ns *netnstest.NS) *guard.Syncer { return guard.New(nft.New(ns.Namespace)) }

func sync(t *testing.T, g *guard.Syncer, c guard.Config) {
	t.Helper()
	errtest.Must(t, g.Sync(t.Context(), c))
}

func TestText(t *testing.T) {
	all := []netip.Addr{nodeAddr, known, nodeAddr6, known6}
	for name, change := range map[string]func(*guard.Config){
		"everything":       func(*guard.Config) {},
		"ipip-only":        func(c *guard.Config) { c.VXLAN = false },
		"no-encapsulation": func(c *guard.Config) { c.IPIP, c.VXLAN = false, false },
		"nodes-not-known":  func(c *guard.Config) { c.Nodes = nil },
		"another-port":     func(c *guard.Config) { c.VXLANPort = 8472 },
		"pods-may-ipip":    func(c *guard.Config) { c.AllowIPIPFromPods = true },
		"pods-may-all": func(c *guard.Config) {
			c.AllowIPIPFromPods, c.AllowVXLANFromPods, c.AllowBGPFromPods = true, true, true
		},
		"vxlan-at-bfds-port": func(c *guard.Config) { c.VXLANPort, c.AllowVXLANFromPods = guard.BFDPort, true },
		"wireguard":          func(c *guard.Config) { c.IPIP, c.VXLAN, c.WireGuardPorts = false, false, []uint16{51820, 51821} },
		"bgp-ports":          func(c *guard.Config) { c.BGPPorts = []uint16{1790, 179, 1790} },
		"own-links": func(c *guard.Config) {
			c.OwnLinks, c.Pools = []int{7, 1, 9}, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10::/64")}
		},
		"sources": func(c *guard.Config) {
			for _, p := range []string{"10.1.2.0/24", "10.1.0.0/16", "fd00:1::/64"} {
				c.Sources = append(c.Sources, guard.Source{Link: "cali0", Prefix: netip.MustParsePrefix(p)})
			}
			c.Sources = append(c.Sources, guard.Source{Link: "cali0123456789a", Prefix: netip.MustParsePrefix("192.0.2.9/32")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			c := config(all...)
			change(&c)
			sync(t, newGuard(ns), c)
			difftest.Golden(t, name+".txt", ns.Run(t, "nft", "list", "ruleset"))
			handles := ns.Run(t, "nft", "-a", "list", "ruleset")
			sync(t, newGuard(ns), c) // as an agent that starts
			if again := ns.Run(t, "nft", "-a", "list", "ruleset"); again != handles {
				t.Errorf("what was right is written again:\n%s\nbefore:\n%s", again, handles)
			}
			errtest.Must(t, newGuard(ns).Remove(t.Context()))
			if left := ns.Run(t, "nft", "list", "ruleset"); left != "" {
				t.Errorf("left after Remove:\n%s", left)
			}
		})
	}
}

func TestBadConfig(t *testing.T) {
	g := newGuard(netnstest.New(t))
	for want, c := range map[string]guard.Config{
		`prefix ""`:            {},
		"xxxxxxxxxxxxxxxx 15":  {PodLinks: strings.Repeat("x", 16)},
		`address "invalid IP"`: {PodLinks: "cali", Nodes: []netip.Addr{{}}},
		"0.0.0.0":              {PodLinks: "cali", Nodes: []netip.Addr{addr("0.0.0.0")}},
	} {
		if err := g.Sync(t.Context(), c); !errtest.Names(err, want) {
			t.Errorf("Sync(%v) = %v, want an error about %q", c, err, want)
		}
	}
}

// host is the node under test with its neighbours: a known node, a host that is none, and a pod.
type host struct {
	*netnstest.NS
	known, stranger, pod *netnstest.NS
	guard                *guard.Syncer
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{NS: netnstest.New(t), known: netnstest.New(t), stranger: netnstest.New(t), pod: netnstest.New(t)}
	h.guard = newGuard(h.NS)
	netnstest.Cable(t, h.NS, "eth0", h.known, "eth0")
	netnstest.Cable(t, h.NS, "eth1", h.stranger, "eth0")
	for _, a := range []struct {
		ns         *netnstest.NS
		link, cidr string
	}{
		{h.NS, "eth0", nodeAddr.String() + "/24"}, {h.NS, "eth0", nodeAddr6.String() + "/64"},
		{h.known, "eth0", known.String() + "/24"}, {h.known, "eth0", known6.String() + "/64"},
		{h.NS, "eth1", "198.51.100.1/24"}, {h.NS, "eth1", "2001:db8:2::1/64"},
		{h.stranger, "eth0", stranger.String() + "/24"}, {h.stranger, "eth0", stranger6.String() + "/64"},
	} {
		a.ns.Addr(t, a.link, a.cidr)
	}
	h.stranger.Route(t, "192.0.2.0/24", "198.51.100.1", "eth0")
	h.stranger.Route(t, "2001:db8:1::/64", "2001:db8:2::1", "eth0")
	h.known.Route(t, "10.244.0.0/24", nodeAddr.String(), "eth0")
	h.Route(t, "0.0.0.0/0", known.String(), "eth0") // the kernel is a pod's gateway only to where it knows a way itself
	h.Within(t, func() error {
		if err := sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1"); err != nil {
			return err
		}
		_, err := podnet.Setup(t.Context(),
			podnet.Config{Netns: h.pod.Path(), IfName: "eth0", HostVeth: "cali0", Addresses: []netip.Addr{pod}, MTU: 1480})
		return err
	})
	return h
}

// ipip sends packets of protocol 4 with any source.
func ipip(t *testing.T, from *netnstest.NS, src, dst netip.Addr, mark string) {
	t.Helper()
	packet := make([]byte, 20, 20+len(mark))
	packet[0], packet[8], packet[9] = 0x45, 64, unix.IPPROTO_IPIP
	copy(packet[12:], src.AsSlice())
	copy(packet[16:], dst.AsSlice())
	packet = append(packet, mark...)
	binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
	from.Within(t, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW) // the header is ours
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: dst.As4()})
	})
}

// listenIPIP returns a function that waits for the next packet of protocol 4 and returns what is in it.
func listenIPIP(t *testing.T, ns *netnstest.NS) func() string {
	t.Helper()
	var fd int
	ns.Within(t, func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_IPIP)
		return err
	})
	t.Cleanup(func() { unix.Close(fd) })
	errtest.Must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}))
	return func() string {
		t.Helper()
		buf := make([]byte, 1000)
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil || n < 20 {
			t.Fatalf("no packet of protocol 4 arrives: %v", err)
		}
		return string(buf[20:n])
	}
}

// eventually waits until the guard has counted packets.
func (h *host) eventually(t *testing.T, reason string, packets uint64) {
	t.Helper()
	var got map[string]nft.Counter
	waittest.For(t, 20*time.Second, func() (err error) {
		if got, err = h.guard.Counters(t.Context()); err == nil && got[reason].Packets < packets {
			err = fmt.Errorf("%s: fewer than %d packets counted: %v", reason, packets, got)
		}
		return err
	})
	if got[reason].Packets != packets {
		t.Errorf("%s: %d packets counted, want %d; all: %v", reason, got[reason].Packets, packets, got)
	}
}

// TestProtocol4 sends outer packets to a node that has no tunnel, where a raw socket sees what passes the input hook.
func TestProtocol4(t *testing.T) {
	h := newHost(t)
	next := listenIPIP(t, h.NS)
	wantNext := func(mark string) {
		t.Helper()
		if got := next(); got != mark {
			t.Errorf("the next packet that gets in is from %q, want %q", got, mark)
		}
	}
	// Without a list of nodes nobody is locked out.
	sync(t, h.guard, config())
	ipip(t, h.stranger, stranger, nodeAddr, "not known yet")
	wantNext("not known yet")

	sync(t, h.guard, config(nodeAddr, known))
	for i := range 3 {
		ipip(t, h.stranger, stranger, nodeAddr, "stranger")
		h.eventually(t, guard.IPIPFromStranger, uint64(i+1))
	}
	ipip(t, h.known, known, nodeAddr, "known node")
	wantNext("known node")

	// The node's other addresses are guarded as well.
	ipip(t, h.stranger, addr("203.0.113.9"), addr("198.51.100.1"), "forged")
	h.eventually(t, guard.IPIPFromStranger, 4)

	// A node that comes, and one that goes; counters stay.
	sync(t, h.guard, config(nodeAddr, known, stranger))
	ipip(t, h.stranger, stranger, nodeAddr, "new node")
	wantNext("new node")
	sync(t, h.guard, config(nodeAddr, stranger))
	ipip(t, h.known, known, nodeAddr, "gone node")
	h.eventually(t, guard.IPIPFromStranger, 5)

	// Pools without IPIP: others may use protocol 4.
	c := config(nodeAddr)
	c.IPIP = false
	sync(t, h.guard, c)
	ipip(t, h.known, known, nodeAddr, "somebody else's tunnel")
	wantNext("somebody else's tunnel")
}

// TestPods sends from a pod to its own node, and to another.
func TestPods(t *testing.T) {
	h := newHost(t)
	atNode, atKnown := listenIPIP(t, h.NS), listenIPIP(t, h.known)
	c := config(nodeAddr, known, pod) // not even if its address were a node's
	sync(t, h.guard, c)
	ipip(t, h.pod, pod, nodeAddr, "pod")
	h.eventually(t, guard.IPIPFromPod, 1)
	ipip(t, h.pod, pod, known, "pod")
	h.eventually(t, guard.IPIPFromPod, 2)
	ask := func(to netip.Addr) error {
		_, err := h.pod.AskUDP(t, "", netip.AddrPortFrom(to, guard.DefaultVXLANPort).String(), "hello", 300*time.Millisecond)
		return err
	}
	h.EchoUDP(t, netip.AddrPortFrom(nodeAddr, guard.DefaultVXLANPort).String())
	h.known.EchoUDP(t, netip.AddrPortFrom(known, guard.DefaultVXLANPort).String())
	for _, to := range []netip.Addr{nodeAddr, known} {
		before := h.count(t, guard.VXLANFromPod)
		if err := ask(to); err == nil {
			t.Errorf("a pod's VXLAN packet gets to %s", to)
		}
		if h.count(t, guard.VXLANFromPod) == before {
			t.Errorf("a pod's VXLAN packets to %s are not counted", to)
		}
	}

	c.AllowIPIPFromPods, c.AllowVXLANFromPods = true, true
	sync(t, h.guard, c)
	ipip(t, h.pod, pod, nodeAddr, "pod that may")
	ipip(t, h.pod, pod, known, "pod that may")
	for name, next := range map[string]func() string{"its node": atNode, "another": atKnown} {
		if got := next(); got != "pod that may" {
			t.Errorf("%s got %q first", name, got)
		}
	}
	for _, to := range []netip.Addr{nodeAddr, known} {
		if _, err := h.pod.AskUDP(t, "", netip.AddrPortFrom(to, guard.DefaultVXLANPort).String(), "hello", 20*time.Second); err != nil {
			t.Errorf("VXLAN to %s from a pod that may: %v", to, err)
		}
	}
}

func (h *host) count(t *testing.T, reason string) uint64 {
	t.Helper()
	got, err := h.guard.Counters(t.Context())
	errtest.Must(t, err)
	return got[reason].Packets
}

// TestDecapsulation has real VXLAN devices, in both families: what a stranger encapsulates does not come out.
func TestDecapsulation(t *testing.T) {
	for name, outer := range map[string]struct{ node, known, stranger netip.Addr }{
		"IPv4": {nodeAddr, known, stranger}, "IPv6": {nodeAddr6, known6, stranger6},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			for i, far := range []struct {
				ns   *netnstest.NS
				addr netip.Addr
			}{{h.known, outer.known}, {h.stranger, outer.stranger}} {
				for side, end := range []struct {
					ns            *netnstest.NS
					local, remote netip.Addr
				}{{h.NS, outer.node, far.addr}, {far.ns, far.addr, outer.node}} {
					dev, id := fmt.Sprint("vx", i), fmt.Sprint(i+1)
					end.ns.Run(t, "ip", "link", "add", dev, "type", "vxlan", "id", id, "dstport", fmt.Sprint(guard.DefaultVXLANPort),
						"local", end.local.String(), "remote", end.remote.String())
					end.ns.Addr(t, dev, fmt.Sprintf("172.30.%d.%d/24", i, side+1))
					end.ns.Up(t, dev)
				}
				h.EchoUDP(t, fmt.Sprintf("172.30.%d.1:7000", i))
			}
			sync(t, h.guard, config())
			for i, ns := range []*netnstest.NS{h.known, h.stranger} {
				if _, err := ns.AskUDP(t, "", fmt.Sprintf("172.30.%d.1:7000", i), "hello", 20*time.Second); err != nil {
					t.Errorf("host %d, before nodes are known: %v", i, err)
				}
			}
			sync(t, h.guard, config(outer.node, outer.known))
			if _, err := h.known.AskUDP(t, "", "172.30.0.1:7000", "hello", 20*time.Second); err != nil {
				t.Errorf("a known node: %v", err)
			}
			if got, err := h.stranger.AskUDP(t, "", "172.30.1.1:7000", "hello", 300*time.Millisecond); err == nil {
				t.Errorf("a stranger is answered: %q", got)
			}
			if h.count(t, guard.VXLANFromStranger) == 0 {
				t.Error("nothing is counted")
			}
		})
	}
}

func TestCountersWithoutATable(t *testing.T) {
	got, err := newGuard(netnstest.New(t)).Counters(t.Context())
	if err != nil || len(got) != 0 {
		t.Errorf("Counters = %v, %v; want none", got, err)
	}
}

// TestStateIsKept: counters survive a Sync with other nodes and a rule added by hand.
func TestStateIsKept(t *testing.T) {
	h := newHost(t)
	sync(t, h.guard, config(nodeAddr))
	ipip(t, h.known, known, nodeAddr, "stranger")
	h.eventually(t, guard.IPIPFromStranger, 1)
	h.Run(t, "nft", "insert rule inet tortie guard-input accept")
	sync(t, h.guard, config(nodeAddr, known6))
	h.eventually(t, guard.IPIPFromStranger, 1)
	if text := h.Run(t, "nft", "list", "chain", "inet", "tortie", "guard-input"); strings.Contains(text, "\t\taccept\n") {
		t.Errorf("a rule that hides the others is still there:\n%s", text)
	}
}
