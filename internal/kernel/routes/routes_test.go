package routes_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// node makes a namespace with eth0 (10.0.0.1/24, 2001:db8::1/64) and tun, a link without addresses that stands for a
// tunnel.
func node(t testing.TB) *netnstest.NS {
	ns := netnstest.New(t)
	netnstest.Cable(t, ns, "eth0", ns, "far")
	netnstest.Cable(t, ns, "tun", ns, "end")
	ns.Addr(t, "eth0", "10.0.0.1/24")
	ns.Addr(t, "eth0", "2001:db8::1/64")
	return ns
}

// route parses a route in a part of ip-route's syntax.
func route(t testing.TB, text string) routes.Route {
	t.Helper()
	var r routes.Route
	words := strings.Fields(text)
	switch words[0] {
	case "unreachable":
		r.Type, words = netlinkx.Unreachable, words[1:]
	case "blackhole":
		r.Type, words = netlinkx.Blackhole, words[1:]
	}
	r.Dst = netip.MustParsePrefix(words[0])
	var h routes.Hop
	for words = words[1:]; len(words) > 0; {
		switch words[0] {
		case "onlink":
			h.Onlink, words = true, words[1:]
			continue
		case "nexthop":
			if h != (routes.Hop{}) {
				r.Hops = append(r.Hops, h)
			}
			h, words = routes.Hop{}, words[1:]
			continue
		case "via":
			h.Via = netip.MustParseAddr(words[1])
		case "dev":
			h.Dev = words[1]
		case "src":
			r.Src = netip.MustParseAddr(words[1])
		case "metric":
			number(t, words[1], &r.Metric)
		case "weight":
			number(t, words[1], &h.Weight)
		default:
			t.Fatalf("route %q: unknown word %q", text, words[0])
		}
		words = words[2:]
	}
	if h != (routes.Hop{}) {
		r.Hops = append(r.Hops, h)
	}
	return r
}

func number(t testing.TB, text string, into any) {
	t.Helper()
	if _, err := fmt.Sscan(text, into); err != nil {
		t.Fatal(err)
	}
}

func parsed(t testing.TB, texts ...string) []routes.Route {
	t.Helper()
	var rs []routes.Route
	for _, text := range texts {
		rs = append(rs, route(t, text))
	}
	return rs
}

// table returns ip's listing of the routes with a protocol, of both families.
func table(t testing.TB, ns *netnstest.NS, proto string) string {
	t.Helper()
	text := ns.Run(t, "ip", "route", "show", "proto", proto) + ns.Run(t, "ip", "-6", "route", "show", "proto", proto)
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(line), "pref medium")))
	}
	return strings.Join(lines, "\n")
}

func sync(t testing.TB, tb *routes.Table, want routes.Stats, desired ...string) {
	t.Helper()
	got, err := tb.Sync(t.Context(), parsed(t, desired...))
	errtest.Must(t, err)
	if got != want {
		t.Errorf("Sync did %+v, want %+v", got, want)
	}
}

func wantTable(t testing.TB, ns *netnstest.NS, proto string, lines ...string) {
	t.Helper()
	difftest.Want(t, fmt.Sprintf("routes of protocol %s", proto), strings.Join(lines, "\n"), table(t, ns, proto))
}

// aNode are the routes of a node with two peers, in both families.
var aNode = []string{
	"10.244.1.0/26 via 10.0.0.2 dev tun onlink",
	"10.244.2.0/26 via 10.0.0.3 dev eth0",
	"unreachable 10.244.0.0/26",
	"10.244.3.7/32 dev eth0 src 10.0.0.1 metric 9",
	"fd00:1::/122 via 2001:db8::2 dev eth0",
	"unreachable fd00::/122",
}

var aNodeTable = []string{
	"unreachable 10.244.0.0/26",
	"10.244.1.0/26 via 10.0.0.2 dev tun onlink",
	"10.244.2.0/26 via 10.0.0.3 dev eth0",
	"10.244.3.7 dev eth0 scope link src 10.0.0.1 metric 9",
	"unreachable fd00::/122 dev lo metric 1024",
	"fd00:1::/122 via 2001:db8::2 dev eth0 metric 1024",
}

func TestFromNothingAndBack(t *testing.T) {
	ns := node(t)
	tb := routes.New(ns.Conn, routes.Options{})
	sync(t, tb, routes.Stats{})
	sync(t, tb, routes.Stats{Added: 6}, aNode...)
	wantTable(t, ns, "84", aNodeTable...)
	sync(t, tb, routes.Stats{Deleted: 6})
	wantTable(t, ns, "84")
}

func TestMergeDeletesNothing(t *testing.T) {
	ns := node(t)
	tb := routes.New(ns.Conn, routes.Options{})
	sync(t, tb, routes.Stats{Added: 2}, "10.244.2.0/26 via 10.0.0.3 dev eth0", "10.244.4.0/26 via 10.0.0.3 dev eth0")
	got, err := tb.Merge(t.Context(), parsed(t, "10.244.2.0/26 via 10.0.0.4 dev eth0", "10.244.1.0/26 via 10.0.0.2 dev tun onlink"))
	if want := (routes.Stats{Added: 1, Replaced: 1, Held: 1}); err != nil || got != want {
		t.Errorf("Merge = %+v, %v; want %+v", got, err, want)
	}
	wantTable(t, ns, "84", "10.244.1.0/26 via 10.0.0.2 dev tun onlink", "10.244.2.0/26 via 10.0.0.4 dev eth0",
		"10.244.4.0/26 via 10.0.0.3 dev eth0")
}

// TestSteadyWritesNothing listens to all of the kernel's events of links, addresses, routes and rules.
func TestSteadyWritesNothing(t *testing.T) {
	ns := node(t)
	tb := routes.New(ns.Conn,
		routes.Options{TakeOver: []netlinkx.Protocol{netlinkx.ProtocolBIRD, netlinkx.ProtocolFelix}, Devices: []string{"tun"}})
	many := append(tenThousand(), parsed(t, aNode...)...)
	if _, err := tb.Sync(t.Context(), many); err != nil {
		t.Fatal(err)
	}
	writes := ns.Writes(t)
	for range 30 {
		if got, err := tb.Sync(t.Context(), many); err != nil || got != (routes.Stats{Kept: len(many)}) {
			t.Fatalf("Sync = %+v, %v", got, err)
		}
	}
	if n := writes(); n > 0 {
		t.Errorf("%d events: the kernel reports a change", n)
	}
	// The listener itself works.
	if _, err := tb.Sync(t.Context(), many[1:]); err != nil {
		t.Fatal(err)
	}
	if writes() == 0 {
		t.Error("the kernel reports no change after one")
	}
}

func TestDriftIsRepaired(t *testing.T) {
	for _, tt := range []struct {
		name, command string
		want          routes.Stats
	}{
		{"deleted", "route del 10.244.1.0/26", routes.Stats{Added: 1, Kept: 5}},
		{"next hop changed", "route change 10.244.1.0/26 via 10.0.0.9 dev tun onlink proto 84", routes.Stats{Replaced: 1, Kept: 5}},
		{"onlink lost", "route change 10.244.1.0/26 via 10.0.0.2 dev eth0 proto 84", routes.Stats{Replaced: 1, Kept: 5}},
		{"kind changed", "route change blackhole 10.244.0.0/26 proto 84", routes.Stats{Replaced: 1, Kept: 5}},
		{"IPv6 next hop changed", "-6 route change fd00:1::/122 via 2001:db8::9 dev eth0 proto 84", routes.Stats{Replaced: 1, Kept: 5}},
		{"IPv6 kind changed", "-6 route replace unreachable fd00:1::/122 proto 84", routes.Stats{Replaced: 1, Kept: 5}},
		{"spread over next hops", "route change 10.244.2.0/26 proto 84 nexthop via 10.0.0.3 nexthop via 10.0.0.4",
			routes.Stats{Replaced: 1, Kept: 5}},
		{"one too many", "route add 10.244.9.0/26 via 10.0.0.2 dev tun onlink proto 84", routes.Stats{Deleted: 1, Kept: 6}},
		{"another metric", "route add 10.244.1.0/26 via 10.0.0.2 dev tun onlink proto 84 metric 50", routes.Stats{Deleted: 1, Kept: 6}},
		{"a second with the same key", "route append 10.244.2.0/26 via 10.0.0.9 dev eth0 proto 84", routes.Stats{Deleted: 1, Kept: 6}},
		{"one too many with several next hops", "route add 10.244.9.0/26 proto 84 nexthop via 10.0.0.3 nexthop via 10.0.0.4",
			routes.Stats{Deleted: 1, Kept: 6}},
		{"a locked MTU", "route change 10.244.2.0/26 via 10.0.0.3 dev eth0 proto 84 mtu lock 1200", routes.Stats{Replaced: 1, Kept: 5}},
		{"another with a type of service", "route add 10.244.2.0/26 via 10.0.0.3 dev eth0 proto 84 tos 0x10", routes.Stats{Deleted: 1, Kept: 6}},
		{"IPv6 spread over next hops", "-6 route replace fd00:1::/122 proto 84 nexthop via 2001:db8::2 dev eth0 nexthop via 2001:db8::3 dev eth0",
			routes.Stats{Replaced: 1, Kept: 5}},
		{"IPv6 one too many with several next hops",
			"-6 route add fd00:9::/122 proto 84 nexthop via 2001:db8::2 dev eth0 nexthop via 2001:db8::3 dev eth0",
			routes.Stats{Deleted: 1, Kept: 6}},
		{"IPv6 deleted", "-6 route del fd00:1::/122", routes.Stats{Added: 1, Kept: 5}},
		{"IPv6 unreachable deleted", "-6 route del unreachable fd00::/122", routes.Stats{Added: 1, Kept: 5}},
		{"link taken down and up", "link set tun down", routes.Stats{Added: 1, Kept: 5}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := node(t)
			tb := routes.New(ns.Conn, routes.Options{})
			sync(t, tb, routes.Stats{Added: 6}, aNode...)
			ns.Run(t, "ip", strings.Fields(tt.command)...)
			ns.Up(t, "tun")
			sync(t, tb, tt.want, aNode...)
			wantTable(t, ns, "84", aNodeTable...)
			sync(t, tb, routes.Stats{Kept: 6}, aNode...)
		})
	}
}

func TestForeignRoutesAreKept(t *testing.T) {
	ns := node(t)
	tb := routes.New(ns.Conn, routes.Options{})
	foreign := []string{
		"10.99.0.0/26 via 10.0.0.2 dev eth0", "10.244.1.0/24 via 10.0.0.2 dev eth0", "10.244.1.0/26 via 10.0.0.5 dev eth0 metric 5",
	}
	for _, f := range foreign {
		ns.Run(t, "ip", append(strings.Fields("route add proto bird"), strings.Fields(f)...)...)
	}
	ns.Run(t, "ip", strings.Fields("route add 10.244.1.0/26 via 10.0.0.2 dev eth0 proto 84 table 100")...)
	before := table(t, ns, "bird")
	sync(t, tb, routes.Stats{Added: 6}, aNode...)
	sync(t, tb, routes.Stats{Deleted: 6})
	wantTable(t, ns, "bird", before)
	if got := ns.Run(t, "ip", "route", "show", "table", "100"); !strings.Contains(got, "10.244.1.0/26") {
		t.Errorf("routes of another table:\n%s", got)
	}
}

func TestForeignRouteInPlace(t *testing.T) {
	ns := node(t)
	tb := routes.New(ns.Conn, routes.Options{TakeOver: []netlinkx.Protocol{netlinkx.ProtocolFelix}})
	ns.Run(t, "ip", strings.Fields("route add 10.244.1.0/26 via 10.0.0.9 dev eth0 proto bird")...)
	stats, err := tb.Sync(t.Context(), parsed(t, aNode...))
	if !errtest.Names(err, "10.244.1.0/26 10.0.0.9 bird") {
		t.Errorf("Sync = %v, want an error that shows the foreign route", err)
	}
	if stats != (routes.Stats{Added: 5}) {
		t.Errorf("Sync did %+v, want the five others added", stats)
	}
	wantTable(t, ns, "bird", "10.244.1.0/26 via 10.0.0.9 dev eth0")
	wantTable(t, ns, "84", slices.Delete(slices.Clone(aNodeTable), 1, 2)...)
}

func TestForeignRouteBesideOurs(t *testing.T) {
	ns := node(t)
	tb := routes.New(ns.Conn, routes.Options{})
	sync(t, tb, routes.Stats{Added: 1}, "10.244.2.0/26 via 10.0.0.3 dev eth0")
	// A foreign route with the same key that the kernel consults first: a replacement would hit it.
	ns.Run(t, "ip", strings.Fields("route prepend 10.244.2.0/26 via 10.0.0.9 dev eth0 proto bird")...)
	sync(t, tb, routes.Stats{Kept: 1}, "10.244.2.0/26 via 10.0.0.3 dev eth0")
	_, err := tb.Sync(t.Context(), parsed(t, "10.244.2.0/26 via 10.0.0.4 dev eth0"))
	if err == nil || !strings.Contains(err.Error(), "10.0.0.9") {
		t.Errorf("Sync = %v, want an error that shows the foreign route", err)
	}
	wantTable(t, ns, "bird", "10.244.2.0/26 via 10.0.0.9 dev eth0")
}

func TestTakeOver(t *testing.T) {
	ns := node(t)
	tb := routes.New(ns.Conn,
		routes.Options{TakeOver: []netlinkx.Protocol{netlinkx.ProtocolBIRD, netlinkx.ProtocolFelix}, Devices: []string{"tun"}})
	for _, r := range []string{
		"10.244.1.0/26 via 10.0.0.2 dev tun onlink proto bird", "blackhole 10.244.0.0/26 proto 80",
		"10.99.0.0/26 via 10.0.0.2 dev eth0 proto bird",
		"10.244.2.0/26 via 10.0.0.9 dev eth0 proto bird metric 1024",  // would come up again once ours is withdrawn
		"10.98.0.0/26 via 10.0.0.9 dev tun onlink proto 80",           // the predecessor's, of a block that nobody has
		"10.97.0.0/26 via 10.0.0.9 dev tun onlink proto static",       // anybody's
		"10.244.2.0/26 via 10.0.0.9 dev eth0 proto static metric 500", // anybody's
	} {
		ns.Run(t, "ip", append([]string{"route", "add"}, strings.Fields(r)...)...)
	}
	for _, r := range []string{
		"fd00:1::/122 proto bird nexthop via 2001:db8::7 dev eth0 nexthop via 2001:db8::8 dev eth0", "blackhole fd00::/122 proto 80",
		"fd00:99::/122 via 2001:db8::7 dev eth0 proto bird", "fd00:1::/122 via 2001:db8::7 dev eth0 proto bird metric 2000",
	} {
		ns.Run(t, "ip", append([]string{"-6", "route", "add"}, strings.Fields(r)...)...)
	}
	got, err := tb.Merge(t.Context(), parsed(t, aNode...))
	if want := (routes.Stats{Added: 2, Replaced: 4}); err != nil || got != want {
		t.Fatalf("Merge = %+v, %v; want %+v", got, err, want)
	}
	sync(t, tb, routes.Stats{Kept: 6, Deleted: 3}, aNode...)
	wantTable(t, ns, "84", aNodeTable...)
	// Not in the place of one of ours, nor to its destination.
	wantTable(t, ns, "bird", "10.99.0.0/26 via 10.0.0.2 dev eth0", "fd00:99::/122 via 2001:db8::7 dev eth0 metric 1024")
	wantTable(t, ns, "80")
	wantTable(t, ns, "static", "10.97.0.0/26 via 10.0.0.9 dev tun onlink", "10.244.2.0/26 via 10.0.0.9 dev eth0 metric 500")
	sync(t, tb, routes.Stats{Kept: 6}, aNode...)
}

func TestOwnProtocol(t *testing.T) {
	ns := node(t)
	other := routes.New(ns.Conn, routes.Options{Protocol: 85})
	sync(t, other, routes.Stats{Added: 1}, "10.99.0.0/26 via 10.0.0.2 dev eth0")
	sync(t, routes.New(ns.Conn, routes.Options{}), routes.Stats{})
	wantTable(t, ns, "85", "10.99.0.0/26 via 10.0.0.2 dev eth0")
}

func TestOneBadRouteDoesNotBlockOthers(t *testing.T) {
	for bad, want := range map[string]string{
		"10.244.1.0/26 via 10.0.0.2 dev gone onlink":       "device gone",
		"10.244.1.0/26 via 192.0.2.9 dev eth0":             "10.244.1.0/26 via 192.0.2.9", // the kernel: no route to the next hop
		"10.244.1.1/26 via 10.0.0.2 dev eth0":              "10.244.1.1/26 10.244.1.0/26",
		"10.244.1.0/26 via fd00::1 dev eth0":               "family",
		"10.244.1.0/26 via 10.0.0.2":                       "device",
		"unreachable 10.244.1.0/26 dev eth0":               "hop",
		"10.244.1.0/26 dev tun onlink":                     "onlink hop",
		"10.244.1.0/26 via 10.0.0.2 dev tun src 192.0.2.1": "10.244.1.0/26", // the kernel: not an address of the node
	} {
		ns := node(t)
		tb := routes.New(ns.Conn, routes.Options{})
		good := slices.Clone(aNode)
		good[0] = bad
		stats, err := tb.Sync(t.Context(), parsed(t, good...))
		if !errtest.Names(err, want) {
			t.Errorf("with %s: error %v, want %q in it", bad, err, want)
		}
		if stats != (routes.Stats{Added: 5}) {
			t.Errorf("with %s: %+v, want the five others added", bad, stats)
		}
	}
}

func TestRouteThatCannotBeResolvedKeepsWhatRuns(t *testing.T) {
	ns := node(t)
	tb := routes.New(ns.Conn, routes.Options{})
	sync(t, tb, routes.Stats{Added: 2}, "10.244.2.0/26 via 10.0.0.3 dev eth0", "10.244.4.0/26 via 10.0.0.3 dev eth0")
	stats, err := tb.Sync(t.Context(), parsed(t, "10.244.2.0/26 via 10.0.0.3 dev tunl7 onlink"))
	if !errtest.Names(err, "device tunl7") {
		t.Errorf("Sync = %v, want an error about the device", err)
	}
	if want := (routes.Stats{Deleted: 1}); stats != want {
		t.Errorf("Sync did %+v, want %+v", stats, want)
	}
	wantTable(t, ns, "84", "10.244.2.0/26 via 10.0.0.3 dev eth0")
}

func TestSameKeyTwice(t *testing.T) {
	for _, second := range []string{"unreachable 10.244.1.0/26", "10.244.1.0/26 via 10.0.0.2 dev tun onlink"} {
		ns := node(t)
		tb := routes.New(ns.Conn, routes.Options{})
		sync(t, tb, routes.Stats{Added: 1}, "10.244.7.0/26 via 10.0.0.2 dev eth0")
		stats, err := tb.Sync(t.Context(), parsed(t, "10.244.1.0/26 via 10.0.0.2 dev tun onlink", second))
		if !errtest.Names(err, second) || changed(stats) {
			t.Errorf("Sync = %+v, %v; want an error and nothing done", stats, err)
		}
		wantTable(t, ns, "84", "10.244.7.0/26 via 10.0.0.2 dev eth0")
	}
	// In IPv6, no metric and 1024 are one.
	ns := node(t)
	_, err := routes.New(ns.Conn, routes.Options{}).Sync(t.Context(), parsed(t, "fd00::/122 dev eth0", "fd00::/122 dev tun metric 1024"))
	if err == nil {
		t.Error("IPv6 routes with metrics 0 and 1024 were taken for two")
	}
}

func TestContext(t *testing.T) {
	ns := node(t)
	tb := routes.New(ns.Conn, routes.Options{})
	sync(t, tb, routes.Stats{Added: 6}, aNode...)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if stats, err := tb.Sync(ctx, nil); !errors.Is(err, context.Canceled) || changed(stats) {
		t.Errorf("Sync after the end of its context: %+v, %v", stats, err)
	}
	wantTable(t, ns, "84", aNodeTable...)
}

// TestMoveWithoutAGap moves a destination from a /26 to two /27 and back while a prober looks it up all the time.
func TestMoveWithoutAGap(t *testing.T) {
	t.Parallel()
	ns := node(t)
	tb := routes.New(ns.Conn, routes.Options{})
	wide := []string{"10.244.1.0/26 via 10.0.0.2 dev eth0"}
	narrow := []string{"10.244.1.0/27 via 10.0.0.3 dev eth0", "10.244.1.32/27 via 10.0.0.2 dev eth0"}
	sync(t, tb, routes.Stats{Added: 1}, wide...)
	conn := ns.ListenUDP(t, "0.0.0.0:0")
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, err := conn.WriteToUDPAddrPort([]byte("x"), netip.MustParseAddrPort("10.244.1.5:9")); err != nil {
				done <- err
				return
			}
		}
	}()
	for range 200 {
		sync(t, tb, routes.Stats{Added: 2, Deleted: 1}, narrow...)
		sync(t, tb, routes.Stats{Added: 1, Deleted: 2}, wide...)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Errorf("a packet found no route: %v", err)
	}
}

func tenThousand() []routes.Route {
	desired := make([]routes.Route, 10_000)
	for i := range desired {
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 100, byte(i >> 8), byte(i)}), 32)
		desired[i] = routes.To(block, routes.Hop{Via: netip.MustParseAddr("10.0.0.2"), Dev: "tun", Onlink: true})
	}
	return desired
}

// elsewhere returns the routes by way of another next hop.
func elsewhere(all []routes.Route) []routes.Route {
	moved := slices.Clone(all)
	for i := range moved {
		moved[i].Hops = []routes.Hop{{Via: netip.MustParseAddr("10.0.0.3"), Dev: "tun", Onlink: true}}
	}
	return moved
}

func TestTenThousand(t *testing.T) {
	ns := node(t)
	tb := routes.New(ns.Conn, routes.Options{})
	desired := tenThousand()
	moved := elsewhere(desired)
	n := len(desired)
	for _, step := range []struct {
		desired []routes.Route
		want    routes.Stats
	}{
		{desired, routes.Stats{Added: n}}, {desired, routes.Stats{Kept: n}}, {moved, routes.Stats{Replaced: n}},
		{moved[:n/2], routes.Stats{Kept: n / 2, Deleted: n / 2}},
		{nil, routes.Stats{Deleted: n / 2}}, {nil, routes.Stats{}},
	} {
		begin := time.Now()
		got, err := tb.Sync(t.Context(), step.desired)
		if err != nil || got != step.want {
			t.Fatalf("Sync = %+v, %v; want %+v", got, err, step.want)
		}
		t.Logf("%+v in %v", got, time.Since(begin))
	}
}

// countdown is a context that ends when it has been checked a number of times.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left--; c.left < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// TestUnfinished ends Sync's context at each point where it is checked. The changes until then are right, Stats counts
// them, and the next Sync does the rest.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	ns := node(t)
	tb := routes.New(ns.Conn, routes.Options{})
	all := tenThousand()
	before, after := all[:6000], elsewhere(all[2000:8000])
	for looks := 0; ; looks++ {
		if _, err := tb.Sync(t.Context(), before); err != nil {
			t.Fatal(err)
		}
		part, err := tb.Sync(&countdown{t.Context(), looks}, after)
		if err == nil {
			if looks < 8 {
				t.Errorf("the context was looked at %d times only", looks)
			}
			return
		}
		if !errors.Is(err, context.DeadlineExceeded) || strings.Count(err.Error(), "\n") > 0 {
			t.Fatalf("Sync = %v, want the context's error once", err)
		}
		rest, err := tb.Sync(t.Context(), after)
		errtest.Must(t, err)
		if sum := (routes.Stats{
			Added: part.Added + rest.Added, Replaced: part.Replaced + rest.Replaced, Deleted: part.Deleted + rest.Deleted,
		}); sum != (routes.Stats{Added: 2000, Replaced: 4000, Deleted: 2000}) {
			t.Errorf("after %d looks: %+v and %+v", looks, part, rest)
		}
	}
}

// TestManyErrors: thousands of routes that fail for one reason make a few lines.
func TestManyErrors(t *testing.T) {
	ns := node(t)
	tb := routes.New(ns.Conn, routes.Options{})
	desired := tenThousand()
	for i := range desired {
		desired[i].Hops[0].Dev = "tunl0"
	}
	stats, err := tb.Sync(t.Context(), desired)
	if err == nil || changed(stats) || !errtest.Names(err, "device tunl0 9999") || len(err.Error()) > 300 {
		t.Errorf("Sync = %+v, %v", stats, err)
	}
	for i := range desired {
		desired[i].Hops[0].Dev, desired[i].Hops[0].Onlink = "tun", false // no route to the next hop there
	}
	stats, err = tb.Sync(t.Context(), desired)
	if err == nil || changed(stats) || strings.Count(err.Error(), "\n") != 10 || !errtest.Names(err, "9990") {
		t.Errorf("Sync = %+v, %v", stats, err)
	}
}

// keeper makes a Sync after each event of a relevant change, as the agent does; passes returns their number.
func keeper(t *testing.T, ns *netnstest.NS, desired []routes.Route) (passes func() int) {
	t.Helper()
	wake, err := ns.Conn.SubscribeToOthers(t.Context(), netlinkx.LinkEvents|netlinkx.AddrEvents|netlinkx.RouteEvents,
		routes.DefaultProtocol, netlinkx.ProtocolBoot)
	errtest.Must(t, err)
	tb := routes.New(ns.Conn, routes.Options{})
	if _, err := tb.Sync(t.Context(), desired); err != nil {
		t.Fatal(err)
	}
	var count atomic.Int64
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-wake:
				count.Add(1)
				tb.Sync(ctx, desired) // fails while a link is missing
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return func() int { return int(count.Load()) }
}

// TestLinkComesBack: a link is made anew, by the same name, with another index. The kernel sends no events of the
// routes that it removed with the old one.
func TestLinkComesBack(t *testing.T) {
	ns := node(t)
	keeper(t, ns, parsed(t, aNode...))
	old := ns.Link(t, "tun").Index
	for name, again := range map[string]func(){
		"made anew": func() {
			ns.Run(t, "ip", "link", "del", "tun")
			netnstest.Cable(t, ns, "tun", ns, "end")
			if ns.Link(t, "tun").Index == old {
				t.Error("the same index")
			}
		},
		"down and up": func() {
			ns.Run(t, "ip", "link", "set", "tun", "down")
			ns.Run(t, "ip", "link", "set", "tun", "up")
		},
		"address taken away": func() {
			ns.Run(t, "ip", "addr", "del", "10.0.0.1/24", "dev", "eth0")
			ns.Run(t, "ip", "addr", "add", "10.0.0.1/24", "dev", "eth0")
		},
		"all deleted": func() {
			ns.Run(t, "ip", "route", "flush", "proto", "84")
			ns.Run(t, "ip", "-6", "route", "flush", "proto", "84")
		},
	} {
		again()
		eventually(t, name, func() bool { return table(t, ns, "84") == strings.Join(aNodeTable, "\n") })
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	waittest.Until(t, 20*time.Second, what, is)
}

// TestNoPassForNothing: the loop that keeps routes is woken by none of its own changes, and by none of a foreign
// daemon's changes to its own routes. Events come in order, so that the change by hand comes last.
func TestNoPassForNothing(t *testing.T) {
	ns := node(t)
	ns.Writes(t)
	eventually(t, "links that do not change any more", func() bool { // their events come up to a second later
		links, addrs := ns.Run(t, "ip", "-o", "link", "show", "type", "veth"), ns.Run(t, "ip", "-o", "-6", "addr", "show", "scope", "link")
		return strings.Count(links, " state UP ") == 4 && strings.Count(addrs, "fe80::") == 4 && !strings.Contains(addrs, "tentative")
	})
	passes := keeper(t, ns, append(tenThousand(), parsed(t, aNode...)...))
	daemon, err := netlinkx.OpenAt(ns.Namespace)
	errtest.Must(t, err)
	defer daemon.Close()
	foreign := make([]netlinkx.Route, 2000)
	for i := range foreign {
		foreign[i] = netlinkx.Route{
			Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 50, byte(i >> 8), byte(i)}), 32), Via: netip.MustParseAddr("10.0.0.2"),
			Dev: ns.Link(t, "eth0").Index, Protocol: netlinkx.ProtocolBIRD,
		}
	}
	for range 5 {
		daemon.AddRoutes(foreign)
		daemon.DeleteRoutes(foreign)
	}
	ns.Run(t, "ip", "route", "del", "10.244.1.0/26")
	eventually(t, "a route deleted by hand", func() bool { return strings.Contains(table(t, ns, "84"), aNodeTable[1]) })
	if n := passes(); n != 1 {
		t.Errorf("%d passes after 10000 own and 20000 foreign changes and one by hand, want one", n)
	}
}

// BenchmarkTenThousand measures a node that learns 10,000 routes at once, and a second Sync of them.
func BenchmarkTenThousand(b *testing.B) {
	ns := node(b)
	tb := routes.New(ns.Conn, routes.Options{})
	desired := tenThousand()
	n := len(desired)
	measure := func(name string, before, after []routes.Route, changed int) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				if _, err := tb.Sync(b.Context(), before); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				got, err := tb.Sync(b.Context(), after)
				if err != nil || got.Added+got.Deleted != changed {
					b.Fatalf("Sync = %+v, %v", got, err)
				}
			}
		})
	}
	measure("add", nil, desired, n)
	measure("keep", desired, desired, 0)
	measure("delete", desired, nil, n)
}

// TestPredecessors: inside the cluster's ranges only a predecessor's routes to pods stay; a predecessor that still runs
// keeps all.
func TestPredecessors(t *testing.T) {
	ns := node(t)
	for _, r := range []string{
		"route add 10.244.1.0/26 via 10.0.0.9 dev eth0 proto bird",                                       // in the place of one of ours
		"route add blackhole 10.244.0.0/26 proto bird",                                                   // in the place of one of ours
		"route add blackhole 10.244.7.0/26 proto 80",                                                     // a block that this node has given back
		"route add 10.244.8.0/26 via 10.0.0.9 dev eth0 proto bird",                                       // a block of a node that is gone
		"route add 10.244.9.0/26 proto bird nexthop via 10.0.0.8 dev eth0 nexthop via 10.0.0.9 dev eth0", // by two routers
		"route add 10.244.0.5 dev tun proto 80",                                                          // a pod
		"route add 172.20.0.0/16 via 10.0.0.9 dev eth0 proto bird",                                       // outside
		"-6 route add fd00:8::/122 via 2001:db8::9 dev eth0 proto bird",
		"-6 route add fd00:8::5 dev tun proto 80",
		"-6 route add blackhole fd00:9::/122 proto 80",
	} {
		ns.Run(t, "ip", strings.Fields(r)...)
	}
	bird, felix := table(t, ns, "bird"), table(t, ns, "80")
	tb := routes.New(ns.Conn, routes.Options{TakeOver: []netlinkx.Protocol{netlinkx.ProtocolBIRD, netlinkx.ProtocolFelix}})
	predecessors := routes.Predecessors{Ranges: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:8::/31")}}

	predecessors.Alive = []netlinkx.Protocol{netlinkx.ProtocolBIRD, netlinkx.ProtocolFelix}
	tb.SetPredecessors(predecessors)
	sync(t, tb, routes.Stats{Added: 4, Left: 2}, aNode...)
	sync(t, tb, routes.Stats{Kept: 4, Left: 2}, aNode...)
	wantTable(t, ns, "bird", bird)
	wantTable(t, ns, "80", felix)
	if got := tb.Taken(); len(got) > 0 {
		t.Errorf("taken: %v", got)
	}

	predecessors.Alive = []netlinkx.Protocol{netlinkx.ProtocolFelix}
	tb.SetPredecessors(predecessors)
	sync(t, tb, routes.Stats{Kept: 4, Replaced: 2, Deleted: 3}, aNode...)
	wantTable(t, ns, "bird", "172.20.0.0/16 via 10.0.0.9 dev eth0")
	wantTable(t, ns, "80", felix)
	if got := tb.Taken(); len(got) != 5 {
		t.Errorf("taken: %v", got)
	}

	predecessors.Alive = nil
	tb.SetPredecessors(predecessors)
	sync(t, tb, routes.Stats{Kept: 6, Deleted: 2}, aNode...)
	wantTable(t, ns, "80", "10.244.0.5 dev tun scope link", "fd00:8::5 dev tun metric 1024")
	wantTable(t, ns, "84", aNodeTable...)
	sync(t, tb, routes.Stats{Kept: 6}, aNode...)
	if got := tb.Taken(); len(got) > 0 {
		t.Errorf("taken: %v", got)
	}
}

// changed reports whether anything was written.
func changed(s routes.Stats) bool { return s.Added+s.Replaced+s.Deleted > 0 }
