package routes_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// unnumbered are routes by routers at link-local addresses; two routers share one.
var unnumbered = []string{
	"10.244.1.0/26 via fe80::1 dev eth0",
	"10.244.2.0/26 nexthop via fe80::1 dev eth1 nexthop via fe80::1 dev eth0",
	"10.244.3.0/26 nexthop via fe80::1 dev eth0 weight 3 nexthop via 10.0.1.2 dev eth1",
	"10.9.0.0/16 via fe80::2 dev eth1 metric 1024",
	"fd00:1::/122 via fe80::1 dev eth0",
	"fd00:2::/122 nexthop via fe80::1 dev eth1 nexthop via fe80::1 dev eth0",
	"fd00:3::/122 nexthop via fe80::1 dev eth1 nexthop via 2001:db8::2 dev eth0",
}

var unnumberedTable = []string{
	"10.244.1.0/26 via inet6 fe80::1 dev eth0",
	"10.244.2.0/26 nexthop via inet6 fe80::1 dev eth0 weight 1 nexthop via inet6 fe80::1 dev eth1 weight 1",
	"10.244.3.0/26 nexthop via 10.0.1.2 dev eth1 weight 1 nexthop via inet6 fe80::1 dev eth0 weight 3",
	"10.9.0.0/16 via inet6 fe80::2 dev eth1 metric 1024",
	"fd00:1::/122 via fe80::1 dev eth0 metric 1024",
	"fd00:2::/122 metric 1024 nexthop via fe80::1 dev eth0 weight 1 nexthop via fe80::1 dev eth1 weight 1",
	"fd00:3::/122 metric 1024 nexthop via 2001:db8::2 dev eth0 weight 1 nexthop via fe80::1 dev eth1 weight 1",
}

func TestLinkLocal(t *testing.T) {
	ns := rack(t)
	tb := routes.New(ns.Conn, routes.Options{})
	sync(t, tb, routes.Stats{Added: 7}, unnumbered...)
	wantHops(t, ns, unnumberedTable...)
	writes := ns.Writes(t)
	sync(t, tb, routes.Stats{Kept: 7}, unnumbered...)
	if n := writes(); n > 0 {
		t.Errorf("%d events: the kernel reports a change", n)
	}
	// Each form is replaced in place by the other.
	plain := slices.Clone(unnumbered)
	plain[0], plain[1], plain[5] = "10.244.1.0/26 via 10.0.0.2 dev eth0", "10.244.2.0/26 via fe80::1 dev eth1",
		"fd00:2::/122 via 2001:db8::2 dev eth0"
	sync(t, tb, routes.Stats{Replaced: 3, Kept: 4}, plain...)
	sync(t, tb, routes.Stats{Replaced: 3, Kept: 4}, unnumbered...)
	wantHops(t, ns, unnumberedTable...)
	sync(t, tb, routes.Stats{Deleted: 7})
	wantHops(t, ns)
}

func TestLinkLocalDrift(t *testing.T) {
	for name, tt := range map[string]struct {
		command string
		want    routes.Stats
	}{
		"another router":        {"route change 10.244.1.0/26 proto 84 via inet6 fe80::9 dev eth0", routes.Stats{Replaced: 1, Kept: 6}},
		"another link":          {"route change 10.244.1.0/26 proto 84 via inet6 fe80::1 dev eth1", routes.Stats{Replaced: 1, Kept: 6}},
		"by IPv4":               {"route change 10.244.1.0/26 proto 84 via 10.0.0.2 dev eth0", routes.Stats{Replaced: 1, Kept: 6}},
		"deleted":               {"route del 10.244.1.0/26", routes.Stats{Added: 1, Kept: 6}},
		"one of two taken away": {"route change 10.244.2.0/26 proto 84 via inet6 fe80::1 dev eth0", routes.Stats{Replaced: 1, Kept: 6}},
		"two in another order": {"route change 10.244.2.0/26 proto 84 nexthop via inet6 fe80::1 dev eth1 nexthop via inet6 fe80::1 dev eth0",
			routes.Stats{Kept: 7}},
		"weights": {"route change 10.244.3.0/26 proto 84 nexthop via inet6 fe80::1 dev eth0 nexthop via 10.0.1.2 dev eth1",
			routes.Stats{Replaced: 1, Kept: 6}},
		"IPv6 by another link":    {"-6 route replace fd00:1::/122 proto 84 via fe80::1 dev eth1", routes.Stats{Replaced: 1, Kept: 6}},
		"IPv6 one of two is gone": {"-6 route del fd00:2::/122 via fe80::1 dev eth1", routes.Stats{Replaced: 1, Kept: 6}},
	} {
		t.Run(name, func(t *testing.T) {
			repair(t, unnumbered, unnumberedTable, tt.command, tt.want)
		})
	}
}

// TestLinkLocalForeign: a foreign route by a router's link-local address is kept, a predecessor's is replaced in place.
func TestLinkLocalForeign(t *testing.T) {
	ns := rack(t)
	for _, r := range []string{
		"route add 10.244.1.0/26 proto bird via inet6 fe80::9 dev eth0",
		"route add 10.244.2.0/26 proto bird nexthop via inet6 fe80::9 dev eth0 nexthop via inet6 fe80::9 dev eth1",
	} {
		ns.Run(t, "ip", strings.Fields(r)...)
	}
	stats, err := routes.New(ns.Conn, routes.Options{}).Sync(t.Context(), parsed(t, unnumbered[:2]...))
	if stats != (routes.Stats{}) || !errtest.Names(err, "10.244.1.0/26 via inet6 fe80::9 proto bird not ours") ||
		strings.Count(err.Error(), "inet6 fe80::9") != 3 {
		t.Errorf("Sync = %+v, %v", stats, err)
	}
	sync(t, routes.New(ns.Conn, routes.Options{TakeOver: []netlinkx.Protocol{netlinkx.ProtocolBIRD}}),
		routes.Stats{Replaced: 2}, unnumbered[:2]...)
	wantTable(t, ns, "bird")
	wantHops(t, ns, unnumberedTable[:2]...)
}

// TestLinkLocalWithoutLink: a link that is not there is named, and costs only the routes that have no other.
func TestLinkLocalWithoutLink(t *testing.T) {
	ns := rack(t)
	tb := routes.New(ns.Conn, routes.Options{})
	want := append(slices.Clone(unnumbered), "10.244.9.0/26 via fe80::1 dev eth9",
		"10.244.8.0/26 nexthop via fe80::1 dev eth9 nexthop via fe80::1 dev eth0")
	stats, err := tb.Sync(t.Context(), parsed(t, want...))
	if stats != (routes.Stats{Added: 8}) || !errtest.Names(err, "10.244.9.0/26 via inet6 fe80::1 dev eth9: there is no device eth9") ||
		strings.Contains(err.Error(), "10.244.8.0") {
		t.Errorf("Sync = %+v, %v", stats, err)
	}
	netnstest.Cable(t, ns, "eth9", ns, "far9")
	ns.Up(t, "eth9")
	sync(t, tb, routes.Stats{Added: 1, Replaced: 1, Kept: 7}, want...)
	// A link that is made anew has another index.
	ns.Run(t, "ip", "link", "del", "eth9")
	netnstest.Cable(t, ns, "eth9", ns, "far9")
	ns.Up(t, "eth9")
	sync(t, tb, routes.Stats{Added: 2, Kept: 7}, want...)
	if got := inTable(t, ns); !slices.Contains(got, "10.244.9.0/26 via inet6 fe80::1 dev eth9") {
		t.Errorf("no route by the new link in\n%s", strings.Join(got, "\n"))
	}
}

func TestLinkLocalRefused(t *testing.T) {
	ns := rack(t)
	for bad, want := range map[string]string{
		"10.244.1.0/26 via fe80::1%eth0 dev eth0":    "10.244.1.0/26 fe80::1%eth0 zone device",
		"fd00:9::/122 via fe80::1%eth1 dev eth0":     "fe80::1%eth1 zone",
		"10.244.1.0/26 via 2001:db8::2 dev eth0":     "2001:db8::2 family",
		"fd00:9::/122 via 169.254.1.1 dev eth0":      "169.254.1.1 family",
		"10.244.1.0/26 via ::ffff:10.0.0.2 dev eth0": "family",
	} {
		stats, err := routes.New(ns.Conn, routes.Options{}).Sync(t.Context(), parsed(t, bad, unnumbered[4]))
		if !errtest.Names(err, want) || stats.Added+stats.Kept != 1 {
			t.Errorf("%s: %+v, %v; want %q", bad, stats, err, want)
		}
	}
}

// TestLinkLocalForwards: a packet of IPv4 arrives at a router that has no IPv4 address on the link.
func TestLinkLocalForwards(t *testing.T) {
	node, router := netnstest.New(t), netnstest.New(t)
	netnstest.Cable(t, node, "eth0", router, "eth0")
	node.Up(t, "eth0")
	router.Addr(t, "eth0", "fe80::1/64")
	node.Addr(t, "lo", "192.0.2.1/32")
	router.Addr(t, "lo", "10.244.1.5/32")
	router.EchoUDP(t, "10.244.1.5:7000")
	sync(t, routes.New(node.Conn, routes.Options{}), routes.Stats{Added: 1}, "10.244.1.0/26 via fe80::1 dev eth0")
	back := node.Link(t, "eth0")
	addrs, err := node.Conn.Addrs(back.Index, netlinkx.IPv6)
	errtest.Must(t, err)
	i := slices.IndexFunc(addrs, func(a netlinkx.Addr) bool { return a.Prefix.Addr().IsLinkLocalUnicast() })
	if i < 0 {
		t.Fatalf("eth0 has no link-local address: %v", addrs)
	}
	sync(t, routes.New(router.Conn, routes.Options{}), routes.Stats{Added: 1}, "192.0.2.1/32 via "+addrs[i].Prefix.Addr().String()+" dev eth0")
	if _, err := node.AskUDP(t, netip.MustParseAddrPort("192.0.2.1:0").String(), "10.244.1.5:7000", "hello", 20*time.Second); err != nil {
		t.Errorf("no answer: %v", err)
	}
}
