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

// node is a namespace that stands for a node.
type node struct {
	*netnstest.NS
	local, inside netip.Addr
	block         netip.Prefix
	mac           vxlan.MAC
}

// pair makes two nodes on one link with a router as their default route, and programs them as the agent does: tunnel, guard, masquerading,
// routes to each other's block by VXLAN, or as it is.
func pair(t testing.TB, encapsulated bool) (a, b *node) {
	t.Helper()
	a, b = newNode(t, 1), newNode(t, 2)
	router := netnstest.New(t)
	router.Run(t, "ip", "link", "add", "br0", "type", "bridge")
	router.Addr(t, "br0", "172.30.0.254/24")
	router.Up(t, "br0")
	for i, n := range []*node{a, b} {
		port := fmt.Sprint("port", i)
		netnstest.Cable(t, n.NS, "eth0", router, port)
		router.Run(t, "ip", "link", "set", port, "master", "br0")
		n.Addr(t, "eth0", n.local.String()+"/24")
		n.Route(t, "0.0.0.0/0", "172.30.0.254", "eth0")
		n.set(t, "net/ipv4/ip_forward", "1")
	}
	a.program(t, b, encapsulated)
	b.program(t, a, encapsulated)
	return a, b
}

func newNode(t testing.TB, i int) *node {
	t.Helper()
	block := netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/26", i))
	return &node{NS: netnstest.New(t), local: addr(fmt.Sprint("172.30.0.", i)), inside: block.Addr(), block: block, mac: vxlan.MACOf(fmt.Sprint("n", i), false)}
}

func (n *node) set(t testing.TB, key, value string) {
	t.Helper()
	n.Within(t, func() error { return sysctl.DefaultRoot.Set(strings.Split(key, "/"), value) })
}

func (n *node) program(t testing.TB, other *node, encapsulated bool) {
	t.Helper()
	n.Run(t, "ip", "route", "add", "unreachable", n.block.String())
	if encapsulated {
		n.Within(t, func() error {
			_, err := vxlan.New(n.Conn).Merge(t.Context(), vxlan.Tunnel{
				VNI: vxlan.DefaultVNI, Port: vxlan.DefaultPort, Local: n.local, Parent: "eth0", MAC: n.mac, MTU: 1400, Addr: n.inside,
				Peers: []vxlan.Peer{{Addr: other.inside, MAC: other.mac, Node: other.local}},
			})
			return err
		})
		n.Run(t, "ip", "route", "add", other.block.String(), "via", other.inside.String(), "dev", vxlan.Device4, "onlink")
	} else {
		n.Run(t, "ip", "route", "add", other.block.String(), "via", other.local.String(), "dev", "eth0")
	}
	table := nft.New(n.Namespace)
	errtest.Must(t, guard.New(table).Sync(t.Context(), guard.Config{Nodes: []netip.Addr{n.local, other.local}, PodLinks: podnet.DefaultVethPrefix, IPIP: true, VXLAN: true}))
	errtest.Must(t, nat.New(table).Sync(t.Context(), nat.Config{Pools: []nat.Pool{{CIDR: netip.MustParsePrefix("10.244.0.0/16"), NATOutgoing: true}}}))
}

// way is that of probes from a to b.
func (n *node) way(t testing.TB, to *node, encapsulated bool) hairpin.Way {
	t.Helper()
	if encapsulated {
		return hairpin.Way{Link: n.Link(t, vxlan.Device4).Index, MAC: to.mac, Back: n.inside}
	}
	return hairpin.Way{Link: n.Link(t, "eth0").Index, MAC: [6]byte(to.Link(t, "eth0").HardwareAddr), Back: n.local}
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

// both runs a test with VXLAN and without.
func both(t *testing.T, test func(t *testing.T, encapsulated bool)) {
	for name, encapsulated := range map[string]bool{"vxlan": true, "plain": false} {
		t.Run(name, func(t *testing.T) { test(t, encapsulated) })
	}
}

// TestAnswered: a node reflects probes whatever its reverse path filter is, and the kernel that gets them back neither logs a martian nor
// answers.
func TestAnswered(t *testing.T) {
	both(t, func(t *testing.T, encapsulated bool) {
		for _, filter := range []string{"0", "1", "2"} {
			a, b := pair(t, encapsulated)
			for _, n := range []*node{a, b} {
				n.set(t, "net/ipv4/conf/all/rp_filter", filter)
				if encapsulated && filter == "1" {
					n.set(t, "net/ipv4/conf/"+vxlan.Device4+"/rp_filter", "2") // as the agent does
				}
			}
			before := a.Run(t, "nstat", "-asz", "IcmpOutMsgs", "TcpExtIPReversePathFilter", "UdpNoPorts")
			if !a.probe(t, a.way(t, b, encapsulated), surely) {
				t.Errorf("rp_filter %s: no answer", filter)
			}
			if after := a.Run(t, "nstat", "-asz", "IcmpOutMsgs", "TcpExtIPReversePathFilter", "UdpNoPorts"); after != before {
				t.Errorf("rp_filter %s: the kernel's counters were\n%s\nand are\n%s", filter, before, after)
			}
		}
	})
}

// TestFaults: what keeps pods' packets from a node, or through it, keeps probes from it, too.
func TestFaults(t *testing.T) {
	both(t, func(t *testing.T, encapsulated bool) {
		for name, fault := range map[string]func(b *node){
			"forward policy drop": func(b *node) {
				b.Run(t, "nft", "add table inet firewall; add chain inet firewall f { type filter hook forward priority 0; policy drop; }")
			},
			"ip_forward 0": func(b *node) { b.set(t, "net/ipv4/ip_forward", "0") },
			"host firewall": func(b *node) {
				b.Run(t, "nft", "add table inet firewall; add chain inet firewall i { type filter hook prerouting priority -400; }; add rule inet firewall i udp dport 4789 drop; add rule inet firewall i ip saddr 192.0.0.8 drop")
			},
			"link down": func(b *node) { b.Run(t, "ip", "link", "set", "eth0", "down") },
		} {
			a, b := pair(t, encapsulated)
			way := a.way(t, b, encapsulated)
			if !a.probe(t, way, surely) {
				t.Fatalf("%s: no answer before", name)
			}
			fault(b)
			if a.probe(t, way, soon) {
				t.Errorf("%s: the node still answers", name)
			}
		}
	})
}

// TestInput: a host that lets nothing in for itself gets its probes back, as its pods get their packets.
func TestInput(t *testing.T) {
	both(t, func(t *testing.T, encapsulated bool) {
		a, b := pair(t, encapsulated)
		for _, n := range []*node{a, b} {
			n.Run(t, "nft", "add table inet firewall; add chain inet firewall i { type filter hook input priority 0; policy drop; }; add rule inet firewall i udp dport 4789 accept; add rule inet firewall i meta l4proto icmp accept")
		}
		if !a.probe(t, a.way(t, b, encapsulated), surely) {
			t.Error("no answer")
		}
	})
}

// BenchmarkProbe is one probe with its sockets.
func BenchmarkProbe(b *testing.B) {
	from, to := pair(b, true)
	way := from.way(b, to, true)
	for b.Loop() {
		from.probe(b, way, surely)
	}
}
