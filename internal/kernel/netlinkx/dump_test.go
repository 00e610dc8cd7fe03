package netlinkx_test

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// routesByLibrary lists the main table with another reader of the same messages.
func routesByLibrary(t testing.TB, ns *netnstest.NS, protocol netlinkx.Protocol) []netlinkx.Route {
	t.Helper()
	var all []netlinkx.Route
	ns.Within(t, func() error {
		found, err := netlink.RouteListFiltered(netlink.FAMILY_ALL,
			&netlink.Route{Table: unix.RT_TABLE_MAIN, Protocol: netlink.RouteProtocol(protocol)}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		for _, r := range found {
			all = append(all, fromLibrary(r))
		}
		return err
	})
	return all
}

func fromLibrary(r netlink.Route) netlinkx.Route {
	ones, _ := r.Dst.Mask.Size()
	dst, _ := netip.AddrFromSlice(r.Dst.IP)
	if len(r.Dst.Mask) == net.IPv4len {
		dst = dst.Unmap()
	}
	out := netlinkx.Route{
		Dst: netip.PrefixFrom(dst, ones), Dev: r.LinkIndex, Table: r.Table, Protocol: netlinkx.Protocol(r.Protocol),
		Scope: netlinkx.Scope(r.Scope), Type: netlinkx.RouteType(r.Type), Onlink: r.Flags&unix.RTNH_F_ONLINK != 0,
		Metric: uint32(r.Priority), TOS: uint8(r.Tos), More: r.MTU > 0 || r.Realm > 0,
	}
	out.Via, _ = netip.AddrFromSlice(r.Gw)
	out.Src, _ = netip.AddrFromSlice(r.Src)
	if via, ok := r.Via.(*netlink.Via); ok {
		out.Via, _ = netip.AddrFromSlice(via.Addr)
	}
	for _, h := range r.MultiPath {
		hop := netlinkx.Hop{Dev: h.LinkIndex, Weight: h.Hops + 1, Onlink: h.Flags&unix.RTNH_F_ONLINK != 0}
		hop.Via, _ = netip.AddrFromSlice(h.Gw)
		out.Hops = append(out.Hops, hop)
	}
	if out.Type != netlinkx.Unicast || len(out.Hops) > 0 {
		out.Dev, out.Onlink = 0, false
	}
	return out
}

func sorted(routes []netlinkx.Route) []netlinkx.Route {
	slices.SortFunc(routes, func(a, b netlinkx.Route) int { return cmp.Compare(a.String(), b.String()) })
	return routes
}

// TestRoutesAreAsOthersReadThem has ip make routes of every kind, and the library read them.
func TestRoutesAreAsOthersReadThem(t *testing.T) {
	ns, _ := scratchRoutes(t)
	for _, r := range []string{
		"10.2.0.0/26 via 10.0.0.2 dev a", "10.2.0.64/26 via 192.0.2.7 dev a onlink", "10.2.1.1 dev a src 10.0.0.1 metric 12",
		"unreachable 10.2.2.0/26", "blackhole 10.2.3.0/26", "prohibit 10.2.4.0/26", "throw 10.2.5.0/26 metric 4000000000",
		"10.2.6.0/26 nexthop via 10.0.0.2 nexthop via 10.0.0.3", "10.2.7.0/26 via inet6 fe80::7 dev a", "10.2.8.0/26 via 10.0.0.2 tos 0x10",
		"10.2.9.0/26 via 10.0.0.2 mtu lock 1400", "10.2.10.0/26 via 10.0.0.2 realm 5", "default via 10.0.0.254",
	} {
		ns.Run(t, "ip", append(strings.Fields("route add proto 84"), strings.Fields(r)...)...)
	}
	for _, r := range []string{
		"2001:db8:2::/122 via fe80::1 dev a", "2001:db8:3::/122 dev a metric 7", "unreachable 2001:db8:4::/122",
		"blackhole 2001:db8:5::/122 metric 9", "2001:db8:6::/122 nexthop via fe80::2 dev a nexthop via fe80::3 dev a",
		"2001:db8:7::/122 via 2001:db8:ffff::1 dev a onlink", "2001:db8:8::/122 via fe80::1 dev a mtu 1400", "default via fe80::1 dev a",
		"::ffff:10.2.0.0/122 via fe80::1 dev a",
	} {
		ns.Run(t, "ip", append(strings.Fields("-6 route add proto 84"), strings.Fields(r)...)...)
	}
	want := sorted(routesByLibrary(t, ns, 84))
	got, err := ns.Conn.Routes(netlinkx.RouteFilter{Protocol: 84})
	if err != nil || len(want) != 22 {
		t.Fatalf("%d routes made, %v", len(want), err)
	}
	difftest.Want(t, "routes as the library reads them", want, sorted(got))
	for i, err := range ns.Conn.DeleteRoutes(got) {
		if err != nil {
			t.Errorf("a route as listed can't be deleted: %s: %v", got[i], err)
		}
	}
	if left, err := ns.Conn.Routes(netlinkx.RouteFilter{Protocol: 84}); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestNextHopObjects: next hop objects do not appear in a route's fields, and the route can be deleted.
func TestNextHopObjects(t *testing.T) {
	ns, _ := scratchRoutes(t)
	for _, c := range []string{
		"nexthop add id 5 via 10.0.0.2 dev a", "nexthop add id 6 via 10.0.0.3 dev a", "nexthop add id 7 group 5/6",
		"route add proto 84 10.2.0.0/26 nhid 5", "route add proto 84 10.3.0.0/26 nhid 7",
	} {
		ns.Run(t, "ip", strings.Fields(c)...)
	}
	got, err := ns.Conn.Routes(netlinkx.RouteFilter{Protocol: 84})
	if err != nil || len(got) != 2 {
		t.Fatalf("%v, %v", got, err)
	}
	for _, r := range got {
		if !r.Object || r.Via.IsValid() || r.Dev != 0 || len(r.Hops) > 0 {
			t.Errorf("%+v", r)
		}
	}
	for _, err := range ns.Conn.DeleteRoutes(got) {
		if err != nil {
			t.Error(err)
		}
	}
}

// TestLinkHasGone: a link that has gone since it was found has no routes and no neighbours, which is no error.
func TestLinkHasGone(t *testing.T) {
	const gone = 4711
	ns := netnstest.New(t)
	routes, err := ns.Conn.Routes(netlinkx.RouteFilter{Dev: gone})
	neighbours, err4 := ns.Conn.Neighbours(gone, netlinkx.IPv4)
	forwarding, errFDB := ns.Conn.Forwarding(gone)
	if err := errors.Join(err, err4, errFDB); err != nil || len(routes)+len(neighbours)+len(forwarding) > 0 {
		t.Errorf("%v, %v, %v: %v", routes, neighbours, forwarding, err)
	}
}

// TestRoutesFilterMany lists few among many, and many among more than one datagram holds.
func TestRoutesFilterMany(t *testing.T) {
	ns, a := scratchRoutes(t)
	const n = 5000
	foreign, own := manyRoutes(n, 99, a.Index, 12), manyRoutes(n/10, 100, a.Index, 84)
	for _, err := range ns.Conn.AddRoutes(append(slices.Clone(foreign), own...)) {
		errtest.Must(t, err)
	}
	for protocol, want := range map[netlinkx.Protocol][]netlinkx.Route{12: foreign, 84: own} {
		got, err := ns.Conn.Routes(netlinkx.RouteFilter{Protocol: protocol})
		errtest.Must(t, err)
		difftest.Want(t, fmt.Sprintf("protocol %s", protocol), want, got)
	}
	for i := range own {
		own[i].Via = own[i].Via.Next()
	}
	for _, err := range ns.Conn.ReplaceRoutes(own) {
		errtest.Must(t, err)
	}
	got, err := ns.Conn.Routes(netlinkx.RouteFilter{Protocol: 84})
	errtest.Must(t, err)
	difftest.Want(t, "replaced", own, got)
}

func manyRoutes(n int, second byte, dev int, protocol netlinkx.Protocol) []netlinkx.Route {
	routes := make([]netlinkx.Route, n)
	for i := range routes {
		routes[i] = netlinkx.Route{
			Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, second, byte(i >> 8), byte(i)}), 32), Via: netip.MustParseAddr("192.0.2.7"), Dev: dev,
			Onlink: true, Type: netlinkx.Unicast, Protocol: protocol, Table: netlinkx.TableMain,
		}
	}
	return routes
}

// TestListsUnderChange: interrupted lists are requested again, and unchanged entries are in each.
func TestListsUnderChange(t *testing.T) {
	ns, a := scratchRoutes(t)
	steady := manyRoutes(3000, 100, a.Index, 84)
	churn := manyRoutes(200, 101, a.Index, 84)
	for _, err := range ns.Conn.AddRoutes(steady) {
		errtest.Must(t, err)
	}
	other, err := netlinkx.OpenAt(ns.Namespace)
	errtest.Must(t, err)
	defer other.Close()
	changing := netip.MustParsePrefix("198.51.100.1/24")
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				other.AddRoutes(churn)
				_ = other.AddUniqueAddr(a.Index, changing)
				other.DeleteRoutes(churn)
				_ = other.DeleteAddr(a.Index, changing)
			}
		}
	}()
	for range 100 {
		got, err := ns.Conn.Routes(netlinkx.RouteFilter{Family: netlinkx.IPv4, Protocol: 84})
		if err != nil {
			t.Error(err)
			break
		}
		got = slices.DeleteFunc(got, func(r netlinkx.Route) bool { return r.Dst.Addr().As4()[1] == 101 })
		if !slices.EqualFunc(steady, got, netlinkx.Route.Equal) { // Want takes long
			difftest.Want(t, "routes", steady, got)
		}
		addrs, err := ns.Conn.Addrs(a.Index, netlinkx.IPv4)
		if err != nil || !slices.ContainsFunc(addrs, func(a netlinkx.Addr) bool { return a.Prefix.String() == "10.0.0.1/24" }) {
			t.Errorf("addresses %v, %v", addrs, err)
		}
		if t.Failed() {
			break
		}
	}
	close(stop)
	<-done
}

// TestManyBadRoutes: each of more failures than one datagram carries has its error, in its place.
func TestManyBadRoutes(t *testing.T) {
	ns, a := scratchRoutes(t)
	routes := manyRoutes(1000, 100, a.Index, 84)
	for i := range routes {
		if i%2 == 1 {
			routes[i].Dev = 99999
		}
	}
	for i, err := range ns.Conn.AddRoutes(routes) {
		if bad := i%2 == 1; bad != netlinkx.IsNotExist(err) || !bad && err != nil ||
			bad && !strings.Contains(err.Error(), routes[i].Dst.String()) {
			t.Fatalf("route %d: %v", i, err)
		}
	}
	for i, err := range ns.Conn.DeleteRoutes(routes) {
		if bad := i%2 == 1; bad != (err != nil) {
			t.Fatalf("route %d: %v", i, err)
		}
	}
}

// BenchmarkTenThousand measures reading routes, by this package and by the library, and writing them.
func BenchmarkTenThousand(b *testing.B) {
	ns := netnstest.New(b)
	netnstest.Cable(b, ns, "a", ns, "z")
	routes := manyRoutes(10_000, 100, ns.Link(b, "a").Index, 84)
	must := func(errs []error) {
		for _, err := range errs {
			errtest.Must(b, err)
		}
	}
	b.Run("add and delete", func(b *testing.B) {
		for b.Loop() {
			must(ns.Conn.AddRoutes(routes))
			must(ns.Conn.DeleteRoutes(routes))
		}
	})
	must(ns.Conn.AddRoutes(routes))
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			if got, err := ns.Conn.Routes(netlinkx.RouteFilter{Protocol: 84}); err != nil || len(got) != len(routes) {
				b.Fatal(len(got), err)
			}
		}
	})
	b.Run("list by the library", func(b *testing.B) {
		for b.Loop() {
			if got := routesByLibrary(b, ns, 84); len(got) != len(routes) {
				b.Fatal(len(got))
			}
		}
	})
}
