package hairpin_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/hairpin"
	"github.com/tortie-net/tortie/internal/kernel/nat"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

var addr = netip.MustParseAddr

const (
	// surely bounds a probe that must come back, soon one that must not.
	surely = 20 * time.Second
	soon   = 300 * time.Millisecond
)

// node is a namespace that stands for a node, with addresses of one family.
type node struct {
	*netnstest.NS
	kind
	local, inside netip.Addr
	block         netip.Prefix
	mac           vxlan.MAC
}

// kind is a way of packets.
type kind struct{ v6, encapsulated bool }

// of returns the text of its family.
func (k kind) of(four, six string) string {
	if k.v6 {
		return six
	}
	return four
}

// forwarding is what has a kernel forward packets.
func (k kind) forwarding() string { return k.of("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding") }

// pair makes two nodes on one link with a router as their default route, and programs them as the agent does: tunnel,
// guard, masquerading, routes to each other's block by VXLAN, or as it is.
func (k kind) pair(t testing.TB) (a, b *node) {
	t.Helper()
	a, b = k.newNode(t, 1), k.newNode(t, 2)
	router := netnstest.New(t)
	router.Run(t, "ip", "link", "add", "br0", "type", "bridge")
	router.Addr(t, "br0", k.of("172.30.0.254/24", "fd30::ff/64"))
	router.Up(t, "br0")
	for i, n := range []*node{a, b} {
		port := fmt.Sprint("port", i)
		netnstest.Cable(t, n.NS, "eth0", router, port)
		router.Run(t, "ip", "link", "set", port, "master", "br0")
		n.Addr(t, "eth0", n.local.String()+k.of("/24", "/64"))
		n.Route(t, k.of("0.0.0.0/0", "::/0"), k.of("172.30.0.254", "fd30::ff"), "eth0")
		n.set(t, k.forwarding(), "1")
	}
	a.program(t, b)
	b.program(t, a)
	return a, b
}

func (k kind) newNode(t testing.TB, i int) *node {
	t.Helper()
	block := netip.MustParsePrefix(fmt.Sprintf(k.of("10.244.%d.0/26", "fd44::%d:0/122"), i))
	return &node{
		NS: netnstest.New(t), kind: k, local: addr(fmt.Sprint(k.of("172.30.0.", "fd30::"), i)), inside: block.Addr(), block: block,
		mac: vxlan.MACOf(fmt.Sprint("n", i), k.v6),
	}
}

func (n *node) set(t testing.TB, key, value string) {
	t.Helper()
	n.Within(t, func() error { return sysctl.DefaultRoot.Set(strings.Split(key, "/"), value) })
}

func (n *node) program(t testing.TB, other *node) {
	t.Helper()
	n.Run(t, "ip", "route", "add", "unreachable", n.block.String())
	if n.encapsulated {
		n.Within(t, func() error {
			_, err := vxlan.New(n.Conn).Merge(t.Context(), vxlan.Tunnel{
				VNI: vxlan.DefaultVNI, Port: vxlan.DefaultPort, Local: n.local, Parent: "eth0", MAC: n.mac, MTU: 1400, Addr: n.inside,
				Peers: []vxlan.Peer{{Addr: other.inside, MAC: other.mac, Node: other.local}},
			})
			return err
		})
		if n.v6 {
			n.Run(t, "ip", "route", "add", other.inside.String(), "dev", vxlan.Device6)
		}
		n.Run(t, "ip", "route", "add", other.block.String(), "via", other.inside.String(), "dev", vxlan.Device(n.v6), "onlink")
	} else {
		n.Run(t, "ip", "route", "add", other.block.String(), "via", other.local.String(), "dev", "eth0")
	}
	table := nft.New(n.Namespace)
	errtest.Must(t, guard.New(table).Sync(t.Context(),
		guard.Config{Nodes: []netip.Addr{n.local, other.local}, PodLinks: podnet.DefaultVethPrefix, IPIP: true, VXLAN: true}))
	pool := netip.MustParsePrefix(n.of("10.244.0.0/16", "fd44::/64"))
	errtest.Must(t, nat.New(table).Sync(t.Context(), nat.Config{Pools: []nat.Pool{{CIDR: pool, NATOutgoing: true}}}))
}

// way returns the Way of probes to another node.
func (n *node) way(t testing.TB, to *node) hairpin.Way {
	t.Helper()
	way := hairpin.Way{Source: hairpin.Dummy}
	if n.v6 {
		way.Source = n.inside.Next()
	}
	if n.encapsulated {
		way.Link, way.MAC, way.Back = n.Link(t, vxlan.Device(n.v6)).Index, to.mac, n.inside
	} else {
		way.Link, way.MAC, way.Back = n.Link(t, "eth0").Index, [6]byte(to.Link(t, "eth0").HardwareAddr), n.local
	}
	return way
}

// probe opens a way and sends one probe.
func (n *node) probe(t testing.TB, way hairpin.Way, within time.Duration) bool {
	t.Helper()
	var p *hairpin.Probe
	n.Within(t, func() (err error) {
		p, err = hairpin.Open(t.Context(), way)
		return err
	})
	defer p.Close()
	answered, err := p.Answered(t.Context(), within)
	errtest.Must(t, err)
	return answered
}

// each runs a test with VXLAN and without, of IPv4 and of IPv6.
func each(t *testing.T, test func(t *testing.T, k kind)) {
	for name, k := range map[string]kind{"vxlan": {false, true}, "plain": {false, false}, "vxlan, IPv6": {true, true},
		"plain, IPv6": {true, false}} {
		t.Run(name, func(t *testing.T) { test(t, k) })
	}
}

// TestAnswered: a node reflects probes whatever its reverse path filter; the kernel that gets them back neither logs a
// martian nor answers, and the other sends no redirect.
func TestAnswered(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		counters := []string{"nstat", "-asz", "IcmpOutMsgs", "TcpExtIPReversePathFilter", "UdpNoPorts", "Icmp6OutRedirects",
			"Icmp6OutDestUnreachs", "Udp6NoPorts", "UdpInCsumErrors", "Udp6InCsumErrors"}
		for _, filter := range []string{"0", "1", "2"} {
			a, b := k.pair(t)
			for _, n := range []*node{a, b} {
				switch {
				case k.v6 && filter == "1": // as firewalld does
					n.Run(t, "nft",
						"add table ip6 firewall; add chain ip6 firewall p { type filter hook prerouting priority -290; }; add rule ip6 firewall p icmpv6 "+
							"type { nd-neighbor-solicit, nd-neighbor-advert } accept; add rule ip6 firewall p fib saddr . iif oif missing drop")
				case k.v6:
				default:
					n.set(t, "net/ipv4/conf/all/rp_filter", filter)
					if k.encapsulated && filter == "1" {
						n.set(t, "net/ipv4/conf/"+vxlan.Device4+"/rp_filter", "2") // as the agent does
					}
				}
			}
			before := []string{a.Run(t, counters[0], counters[1:]...), b.Run(t, counters[0], counters[1:]...)}
			if !a.probe(t, a.way(t, b), surely) {
				t.Errorf("filter %s: no answer", filter)
			}
			for i, n := range []*node{a, b} {
				if after := n.Run(t, counters[0], counters[1:]...); after != before[i] {
					t.Errorf("filter %s: the counters of node %d were\n%s\nand are\n%s", filter, i, before[i], after)
				}
			}
		}
	})
}

// TestFaults: obstacles for pods' packets to a node, or through it, stop probes, too.
func TestFaults(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		for name, fault := range map[string]func(b *node, source netip.Addr){
			"forward policy drop": func(b *node, _ netip.Addr) {
				b.Run(t, "nft", "add table inet firewall; add chain inet firewall f { type filter hook forward priority 0; policy drop; }")
			},
			"ip_forward 0": func(b *node, _ netip.Addr) { b.set(t, k.forwarding(), "0") },
			"host firewall": func(b *node, source netip.Addr) {
				b.Run(t, "nft", fmt.Sprintf("add table inet firewall; add chain inet firewall i { type filter hook prerouting priority -400; }; "+
					"add rule inet firewall i udp dport 4789 drop; add rule inet firewall i %s saddr %s drop", k.of("ip", "ip6"), source))
			},
			"link down": func(b *node, _ netip.Addr) { b.Run(t, "ip", "link", "set", "eth0", "down") },
		} {
			a, b := k.pair(t)
			way := a.way(t, b)
			if !a.probe(t, way, surely) {
				t.Fatalf("%s: no answer before", name)
			}
			fault(b, way.Source)
			if a.probe(t, way, soon) {
				t.Errorf("%s: the node still answers", name)
			}
		}
	})
}

// TestInput: a host with a firewall that drops all its input gets its probes back, as its pods get their packets.
func TestInput(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		a, b := k.pair(t)
		for _, n := range []*node{a, b} {
			n.Run(t, "nft", "add table inet firewall; add chain inet firewall i { type filter hook input priority 0; policy drop; }; "+
				"add rule inet firewall i udp dport 4789 accept; add rule inet firewall i meta l4proto { icmp, icmpv6 } accept")
		}
		if !a.probe(t, a.way(t, b), surely) {
			t.Error("no answer")
		}
	})
}

// TestEcho: a node answers an echo request, and an address without a host does not.
func TestEcho(t *testing.T) {
	for _, k := range []kind{{}, {v6: true}} {
		a, b := k.pair(t)
		for to, want := range map[netip.Addr]bool{b.local: true, b.local.Next(): false} {
			within := surely
			if !want {
				within = soon
			}
			var got bool
			a.Within(t, func() error { got = hairpin.Echo(t.Context(), a.local, to, within); return nil })
			if got != want {
				t.Errorf("echo of %s: %v", to, got)
			}
		}
	}
}

// BenchmarkProbe is one probe with its sockets.
func BenchmarkProbe(b *testing.B) {
	from, to := kind{encapsulated: true}.pair(b)
	way := from.way(b, to)
	for b.Loop() {
		from.probe(b, way, surely)
	}
}
