package interop_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// rackASN is the AS number of a router that is no node.
const rackASN = 64513

// rack configures a router on host 10 with a session by link-local addresses to a node, and blocks of both families.
func rack(kind bgptest.Kind, node netip.Addr) bgptest.Config {
	text := fmt.Sprintf(`
log stdout informational
router bgp %[2]d
 bgp router-id 10.0.0.10
 no bgp ebgp-requires-policy
 no bgp network import-check
 no bgp default ipv4-unicast
 bgp graceful-restart
 neighbor %[1]s remote-as %[3]d
 neighbor %[1]s interface eth0
 neighbor %[1]s timers connect 5
 neighbor %[1]s capability extended-nexthop
 address-family ipv4 unicast
  network 10.1.10.0/26
  neighbor %[1]s activate
 exit-address-family
 address-family ipv6 unicast
  network fd01:10::/122
  neighbor %[1]s activate
 exit-address-family
`, node, rackASN, ourASN)
	if kind != bgptest.FRR {
		text = fmt.Sprintf(`
router id 10.0.0.10;
log stderr all;
protocol device { scan time 2; }
protocol direct { ipv4; ipv6; interface "*"; }
protocol static { ipv4; route 10.1.10.0/26 blackhole; }
protocol static { ipv6; route fd01:10::/122 blackhole; }
protocol kernel { learn; persist; graceful restart; ipv4 { import all; export all; }; }
protocol kernel { learn; persist; graceful restart; ipv6 { import all; export all; }; }
protocol bgp Rack {
  debug { states };
  local as %[2]d;
  neighbor %[1]s%%eth0 as %[3]d;
  graceful restart;
  ipv4 { extended next hop on; import all; export where source = RTS_STATIC; };
  ipv6 { import all; export where source = RTS_STATIC; };
}
`, node, rackASN, ourASN)
	}
	return bgptest.Config{ASN: rackASN, Text: text}
}

// A session between link-local addresses carries the prefixes of both families by link-local next hops, and restarts
// gracefully at both ends.
func TestLinkLocal(t *testing.T) {
	t.Parallel()
	for _, kind := range newerKinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			lan, node := node(t)
			host := lan.Host(10)
			ours, theirs := node.Host.LinkLocal(t, "eth0"), host.LinkLocal(t, "eth0").WithZone("eth0")
			daemon := host.Daemon(kind, rack(kind, ours))
			watched := []bgp.Peer{{Addr: theirs, ASN: rackASN}}
			node.SetPeers(watched...)
			node.WaitEstablished(theirs)
			waitPaths(t, node, blocksOf(10), false)
			for _, p := range node.Snapshot() {
				if p.NextHop != theirs || p.From != theirs {
					t.Errorf("path %+v, want its next hop to be %s", p, theirs)
				}
			}
			waitVia(t, host, ours, ownBlocks...)

			node = restartBoth(t, node, daemon, watched, ours)
			node.Originate("10.99.0.0/26")
			waitGone(t, host, ownBlocks...)
		})
	}
}

// waitGone waits until the kernel of a host has no routes to prefixes.
func waitGone(t *testing.T, h *bgptest.Host, prefixes ...string) {
	t.Helper()
	bgptest.Eventually(t, func() error {
		for _, prefix := range prefixes {
			if route := h.KernelRoute(prefix); route != "" {
				return fmt.Errorf("%s is withdrawn, and the kernel has %q", prefix, route)
			}
		}
		return nil
	})
}

// restartBoth kills and restarts the router's process and the node's, without a lost route. It returns the node's new
// speaker.
func restartBoth(t *testing.T, node *bgptest.Speaker, daemon bgptest.Daemon, watched []bgp.Peer, ours netip.Addr) *bgptest.Speaker {
	t.Helper()
	host, theirs := daemon.On(), watched[0].Addr
	daemon.Signal(syscall.SIGKILL)
	waitPaths(t, node, blocksOf(10), true)
	daemon.Restart()
	waitPaths(t, node, blocksOf(10), false)
	waitVia(t, host, ours, ownBlocks...)

	record := host.Monitor()
	node.End(syscall.SIGKILL)
	node = node.Host.Speaker()
	node.Start(ourASN, true)
	node.Originate(ownBlocks...)
	node.SetPeers(watched...)
	node.WaitEstablished(theirs)
	waitPaths(t, node, blocksOf(10), false)
	node.Originate(append([]string{"10.99.0.0/26", "fd99::/122"}, ownBlocks...)...)
	waitVia(t, host, ours, "10.99.0.0/26", "fd99::/122")
	for _, prefix := range ownBlocks {
		if lost := record.Lost(prefix); len(lost) > 0 {
			t.Errorf("%s on the router's kernel: %q", prefix, lost)
		}
	}
	return node
}

// waitVia waits until the kernel of a host has routes by a link-local next hop. For IPv4 routes busybox' ip does not
// show it, and a dump does not if they use a next hop object, as FRR's do.
func waitVia(t *testing.T, h *bgptest.Host, via netip.Addr, prefixes ...string) {
	t.Helper()
	bgptest.Eventually(t, func() error {
		present, err := h.Conn.Routes(netlinkx.RouteFilter{})
		errtest.Must(t, err)
		for _, prefix := range prefixes {
			dst := netip.MustParsePrefix(prefix)
			dumped := slices.ContainsFunc(present, func(r netlinkx.Route) bool { return r.Dst == dst && r.Via == via })
			if route := h.KernelRoute(prefix); !dumped && !strings.Contains(route, via.String()) {
				return fmt.Errorf("route to %s is %q, want one via %s", prefix, route, via)
			}
		}
		return nil
	})
}

// Two nodes have such a session, whichever node connects, and with a password.
func TestLinkLocalNodes(t *testing.T) {
	t.Parallel()
	for _, password := range []string{"", "sesame"} {
		t.Run("password "+password, func(t *testing.T) {
			t.Parallel()
			lan, one := node(t)
			another := lan.Host(6).Speaker()
			another.Start(ourASN, false)
			another.Originate("10.1.6.0/26", "fd01:6::/122")
			ends := map[*bgptest.Speaker]netip.Addr{one: another.Host.LinkLocal(t, "eth0").WithZone("eth0"),
				another: one.Host.LinkLocal(t, "eth0").WithZone("eth0")}
			for _, passive := range []*bgptest.Speaker{one, another} {
				for s, peer := range ends {
					s.SetPeers(bgp.Peer{Addr: peer, ASN: ourASN, Passive: s == passive, Password: password})
				}
				for s, peer := range ends {
					s.WaitEstablished(peer)
				}
				waitPaths(t, one, blocksOf(6), false)
				waitPaths(t, another, blocksOf(5), false)
				if self := one.Peer(ends[one]).Self; self != ends[another] {
					t.Errorf("this end's address is %s, not %s", self, ends[another])
				}
				for s, peer := range ends {
					for _, p := range s.Snapshot() {
						if p.NextHop != peer {
							t.Errorf("path %+v, want its next hop to be %s", p, peer)
						}
					}
				}
				one.SetPeers()
				another.SetPeers()
			}
		})
	}
}

// A duplicate link-local address affects no other address, and listening and connecting resume on a link that is made
// anew.
func TestLinkLocalListener(t *testing.T) {
	t.Parallel()
	lan, one := node(t)
	other := lan.Host(6)
	const link = "up0"
	cable := func() {
		netnstest.Cable(t, one.NS, link, other.NS, link)
		for _, h := range []*bgptest.Host{one.Host, other} {
			h.IP("-6", "address", "flush", "dev", link)
		}
		other.Addr(t, link, "fe80::77/64")
		one.Addr(t, link, "fe80::5/64")
		one.Within(t, func() error {
			return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv6", "conf", link, "accept_dad"}, "1")
		})
		one.IP("address", "add", "fe80::77/64", "dev", link)
		bgptest.Eventually(t, func() error {
			if text := one.IP("-6", "address", "show", "dev", link); !strings.Contains(text, "dadfailed") {
				return fmt.Errorf("the address is no duplicate:\n%s", text)
			}
			return nil
		})
	}
	cable()
	another := other.Speaker()
	another.Start(ourASN, false)
	session := func() {
		t.Helper()
		one.SetPeers(bgp.Peer{Addr: netip.MustParseAddr("fe80::77%up0"), ASN: ourASN, Passive: true})
		another.SetPeers(bgp.Peer{Addr: netip.MustParseAddr("fe80::5%up0"), ASN: ourASN})
		another.WaitEstablished(netip.MustParseAddr("fe80::5%up0"))
	}
	session()
	one.IP("link", "delete", link)
	another.SetPeers() // its connection has ended unnoticed
	cable()
	session()
}

// A listener on all addresses cannot distinguish peers with one link-local address. With different passwords one peer
// is refused: else the later one would replace the other's password.
func TestPasswordsOnTwoLinks(t *testing.T) {
	t.Parallel()
	_, s := node(t)
	s.SetLocal(bgp.Local{ASN: ourASN, Listen: []netip.Addr{netip.IPv6Unspecified()}})
	first, second := netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("fe80::1%eth1")
	set := func(one, two string) {
		t.Helper()
		s.SetPeers(bgp.Peer{Addr: first, ASN: ourASN, Passive: true, Password: one},
			bgp.Peer{Addr: second, ASN: ourASN, Passive: true, Password: two})
	}
	active := func(addr netip.Addr) {
		t.Helper()
		bgptest.Eventually(t, func() error {
			if p := s.Peer(addr); p.State != bgp.Active || p.LastError != "" && addr == first {
				return fmt.Errorf("%+v", p)
			}
			return nil
		})
	}
	const refused = "no session: the kernel cannot check its password, or that it has none: "
	set("one", "two")
	s.WaitError(second, refused+"fe80::1%eth0 has not the same, and a listener on all addresses tells no links apart")
	active(first)
	set("one", "one")
	active(second)
	s.SetPeers(bgp.Peer{Addr: second, ASN: ourASN, Passive: true, Password: "two"})
	active(second)
	for _, password := range []string{"one", ""} { // the present peer keeps its password
		set(password, "two")
		s.WaitError(first, refused+"fe80::1%eth1 has not the same")
		active(second)
	}
}

// Paths with a link-local next hop are passed on with this node's own address on all sessions, unless a filter names
// the link.
func TestLinkLocalPassedOn(t *testing.T) {
	t.Parallel()
	lan, node := node(t)
	host, far := lan.Host(10), lan.Host(11)
	theirs := host.LinkLocal(t, "eth0").WithZone("eth0")
	host.Daemon(bgptest.FRR, rack(bgptest.FRR, node.Host.LinkLocal(t, "eth0")))
	inside := far.Daemon(bgptest.BIRD2, partner(11, node.Host))
	filter := func(of map[netip.Addr]api.BGPFilterSpec) { node.SetPolicy(bgp.Policy{Transit: blocksOf(10)}, of) }
	reject := func(link string) []api.BGPFilterRule { return []api.BGPFilterRule{{Interface: link, Action: "Reject"}} }
	exports := func(link string) map[netip.Addr]api.BGPFilterSpec {
		return map[netip.Addr]api.BGPFilterSpec{far.V4: {ExportV4: reject(link)}, far.V6: {ExportV6: reject(link)}}
	}
	filter(exports("up*"))
	node.SetPeers(append(peers(node.Host, far), bgp.Peer{Addr: theirs, ASN: rackASN})...)
	waitKernels(t, far, node.Host, "10.1.10.0/26", "fd01:10::/122")
	filter(exports("eth*"))
	waitGone(t, far, "10.1.10.0/26", "fd01:10::/122")
	filter(exports("up*"))
	waitKernels(t, far, node.Host, "10.1.10.0/26", "fd01:10::/122")
	filter(map[netip.Addr]api.BGPFilterSpec{theirs: {ImportV4: reject("eth*"), ImportV6: reject("eth*")}})
	waitGone(t, far, "10.1.10.0/26", "fd01:10::/122")
	if state := inside.State(node.V4); state != "Established" {
		t.Error(state)
	}
}
