package routes_test

import (
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

// rack makes a namespace with eth0 and eth1, each towards a top-of-rack router.
func rack(t testing.TB) *netnstest.NS {
	ns := netnstest.New(t)
	for i := range 2 {
		name := fmt.Sprint("eth", i)
		netnstest.Cable(t, ns, name, ns, fmt.Sprint("far", i))
		ns.Addr(t, name, fmt.Sprintf("10.0.%d.1/24", i))
		ns.Addr(t, name, fmt.Sprintf("2001:db8:%d::1/64", i))
	}
	return ns
}

// viaBoth are prefixes that both routers announce, and one that only one does.
var viaBoth = []string{
	"10.244.1.0/26 nexthop via 10.0.1.2 dev eth1 nexthop via 10.0.0.2 dev eth0",
	"10.244.2.0/26 via 10.0.0.2 dev eth0",
	"10.9.0.0/16 nexthop via 10.0.0.2 dev eth0 weight 3 nexthop via 10.0.1.2 dev eth1 metric 1024",
	"fd00:1::/122 nexthop via 2001:db8:1::2 dev eth1 nexthop via 2001:db8::2 dev eth0",
	"unreachable fd00::/122",
}

// inTable returns the table without the blanks and line ends that differ between versions of ip.
func inTable(t testing.TB, ns *netnstest.NS) []string {
	t.Helper()
	text := strings.ReplaceAll(table(t, ns, "84"), "\nnexthop", " nexthop")
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(strings.ReplaceAll(line, "pref medium", "")), " "))
	}
	slices.Sort(lines)
	return lines
}

func wantHops(t testing.TB, ns *netnstest.NS, want ...string) {
	t.Helper()
	difftest.Want(t, "routes", slices.Sorted(slices.Values(want)), inTable(t, ns))
}

var viaBothTable = []string{
	"10.244.1.0/26 nexthop via 10.0.0.2 dev eth0 weight 1 nexthop via 10.0.1.2 dev eth1 weight 1",
	"10.244.2.0/26 via 10.0.0.2 dev eth0",
	"10.9.0.0/16 metric 1024 nexthop via 10.0.0.2 dev eth0 weight 3 nexthop via 10.0.1.2 dev eth1 weight 1",
	"fd00:1::/122 metric 1024 nexthop via 2001:db8::2 dev eth0 weight 1 nexthop via 2001:db8:1::2 dev eth1 weight 1",
	"unreachable fd00::/122 dev lo metric 1024",
}

func TestSeveralHops(t *testing.T) {
	ns := rack(t)
	tb := routes.New(ns.Conn, routes.Options{})
	sync(t, tb, routes.Stats{Added: 5}, viaBoth...)
	wantHops(t, ns, viaBothTable...)
	writes := ns.Writes(t)
	sync(t, tb, routes.Stats{Kept: 5}, viaBoth...)
	if n := writes(); n > 0 {
		t.Errorf("%d events: the kernel reports a change", n)
	}
	fewer := slices.Clone(viaBoth)
	fewer[0], fewer[3] = "10.244.1.0/26 via 10.0.1.2 dev eth1", "fd00:1::/122 via 2001:db8:1::2 dev eth1"
	sync(t, tb, routes.Stats{Replaced: 2, Kept: 3}, fewer...)
	sync(t, tb, routes.Stats{Replaced: 2, Kept: 3}, viaBoth...)
	wantHops(t, ns, viaBothTable...)
	sync(t, tb, routes.Stats{Deleted: 3, Kept: 2}, viaBoth[1], viaBoth[3])
	sync(t, tb, routes.Stats{Deleted: 2})
	wantHops(t, ns)
}

func TestHopsDrift(t *testing.T) {
	for _, tt := range []struct {
		name, command string
		want          routes.Stats
	}{
		{"one taken away", "route change 10.244.1.0/26 proto 84 via 10.0.0.2", routes.Stats{Replaced: 1, Kept: 4}},
		{"one changed", "route change 10.244.1.0/26 proto 84 nexthop via 10.0.0.2 nexthop via 10.0.1.9", routes.Stats{Replaced: 1, Kept: 4}},
		{"one more", "route change 10.244.1.0/26 proto 84 nexthop via 10.0.0.2 nexthop via 10.0.1.2 nexthop via 10.0.1.9",
			routes.Stats{Replaced: 1, Kept: 4}},
		{"weights", "route change 10.244.1.0/26 proto 84 nexthop via 10.0.0.2 weight 7 nexthop via 10.0.1.2", routes.Stats{Replaced: 1, Kept: 4}},
		{"another order", "route change 10.244.1.0/26 proto 84 nexthop via 10.0.1.2 nexthop via 10.0.0.2", routes.Stats{Kept: 5}},
		{"deleted", "route del 10.244.1.0/26", routes.Stats{Added: 1, Kept: 4}},
		{"a drop", "route change blackhole 10.244.1.0/26 proto 84", routes.Stats{Replaced: 1, Kept: 4}},
		{"IPv6 one taken away", "-6 route del fd00:1::/122 via 2001:db8::2 dev eth0", routes.Stats{Replaced: 1, Kept: 4}},
		{"IPv6 one more", "-6 route append fd00:1::/122 via 2001:db8::9 dev eth0 proto 84", routes.Stats{Replaced: 1, Kept: 4}},
		{"IPv6 deleted", "-6 route del fd00:1::/122", routes.Stats{Added: 1, Kept: 4}},
		{"IPv6 weights", "-6 route replace fd00:1::/122 proto 84 nexthop via 2001:db8::2 weight 2 nexthop via 2001:db8:1::2",
			routes.Stats{Replaced: 1, Kept: 4}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			repair(t, viaBoth, viaBothTable, tt.command, tt.want)
		})
	}
}

// repair changes a rack by a command of ip.
func repair(t *testing.T, desired, table []string, command string, want routes.Stats) {
	t.Helper()
	ns := rack(t)
	tb := routes.New(ns.Conn, routes.Options{})
	sync(t, tb, routes.Stats{Added: len(desired)}, desired...)
	ns.Run(t, "ip", strings.Fields(command)...)
	sync(t, tb, want, desired...)
	sync(t, tb, routes.Stats{Kept: len(desired)}, desired...)
	if changed(want) {
		wantHops(t, ns, table...)
	}
}

// TestHopWithoutLink: packets pass by the remaining hop, and nothing is written in that state.
func TestHopWithoutLink(t *testing.T) {
	for name, tt := range map[string]struct {
		away, back []string
		cut, again routes.Stats
	}{
		// The kernel itself marks the next hops; the routes by one next hop alone go with the link.
		"down": {
			[]string{"link set eth0 down"}, []string{"link set eth0 up"}, routes.Stats{Replaced: 3, Kept: 1},
			routes.Stats{Replaced: 3, Added: 1, Kept: 1},
		},
		"no carrier": {[]string{"link set far0 down"}, []string{"link set far0 up"}, routes.Stats{Replaced: 3, Kept: 2},
			routes.Stats{Replaced: 3, Kept: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			ns := rack(t)
			tb := routes.New(ns.Conn, routes.Options{})
			sync(t, tb, routes.Stats{Added: 5}, viaBoth...)
			for _, c := range tt.away {
				ns.Run(t, "ip", strings.Fields(c)...)
			}
			eventually(t, "the link is down", func() bool { return ns.Link(t, "eth0").Down })
			got, err := tb.Sync(t.Context(), parsed(t, viaBoth...))
			if got != tt.cut || (err != nil) != (name == "down") {
				t.Errorf("Sync = %+v, %v, want %+v", got, err, tt.cut)
			}
			for _, want := range []string{"10.244.1.0/26 via 10.0.1.2 dev eth1", "fd00:1::/122 via 2001:db8:1::2 dev eth1 metric 1024"} {
				if !slices.Contains(inTable(t, ns), want) {
					t.Errorf("no route %q in\n%s", want, strings.Join(inTable(t, ns), "\n"))
				}
			}
			if got, _ := tb.Sync(t.Context(), parsed(t, viaBoth...)); changed(got) {
				t.Errorf("steady: %+v", got)
			}
			for _, c := range tt.back {
				ns.Run(t, "ip", strings.Fields(c)...)
			}
			eventually(t, "the link is up", func() bool { return !ns.Link(t, "eth0").Down })
			ns.Run(t, "ip", "addr", "replace", "2001:db8:0::1/64", "dev", "eth0", "nodad")
			sync(t, tb, tt.again, viaBoth...)
			wantHops(t, ns, viaBothTable...)
		})
	}
}

// TestHopWithoutDevice: a link that does not exist takes its hop along, and the route only if it was the last.
func TestHopWithoutDevice(t *testing.T) {
	ns := rack(t)
	tb := routes.New(ns.Conn, routes.Options{})
	sync(t, tb, routes.Stats{Added: 5}, viaBoth...)
	ns.Run(t, "ip", "link", "del", "eth0")
	stats, err := tb.Sync(t.Context(), parsed(t, viaBoth...))
	// The kernel takes IPv4 routes away as a whole, and of IPv6 routes the one hop.
	if want := (routes.Stats{Added: 2, Kept: 2}); stats != want || !errtest.Names(err, "10.244.2.0/26 device eth0") {
		t.Errorf("Sync = %+v, %v, want %+v and an error about the route by eth0 alone", stats, err, want)
	}
	ns.Run(t, "ip", "link", "del", "eth1")
	stats, err = tb.Sync(t.Context(), parsed(t, viaBoth...))
	if want := (routes.Stats{Kept: 1}); stats != want || err == nil {
		t.Errorf("without any link: %+v, %v, want %+v", stats, err, want)
	}
}

func TestHopsRefused(t *testing.T) {
	many := "10.244.1.0/26"
	for i := range routes.MaxHops + 1 {
		many += fmt.Sprintf(" nexthop via 10.0.0.%d dev eth0", 10+i)
	}
	for bad, want := range map[string]string{
		many:                     "17 16",
		"10.244.1.0/26 metric 7": "hop device",
		"10.244.1.0/26 nexthop via 10.0.0.2 dev eth0 nexthop via fd00::1 dev eth1":             "family",
		"10.244.1.0/26 nexthop via 10.0.0.2 dev eth0 nexthop via 10.0.0.2 dev eth0":            "twice",
		"10.244.1.0/26 nexthop via 10.0.0.2 dev eth0 weight 257 nexthop via 10.0.1.2 dev eth1": "weight 257",
		// the kernel: no route to the next hop
		"10.244.1.0/26 nexthop via 10.0.0.2 dev eth0 nexthop via 10.7.1.2 dev eth1": "10.244.1.0/26",
	} {
		ns := rack(t)
		tb := routes.New(ns.Conn, routes.Options{})
		stats, err := tb.Sync(t.Context(), parsed(t, bad, viaBoth[1]))
		if !errtest.Names(err, want) || stats != (routes.Stats{Added: 1}) {
			t.Errorf("%s: %+v, %v; want %q", bad, stats, err, want)
		}
	}
}

// TestForeignHops: routes with several next hops of others are kept or, if they are a predecessor's, replaced.
func TestForeignHops(t *testing.T) {
	ns := rack(t)
	for _, r := range []string{
		"route add 10.244.1.0/26 proto bird nexthop via 10.0.0.9 nexthop via 10.0.1.9",
		"route add 10.98.0.0/26 proto bird nexthop via 10.0.0.9 nexthop via 10.0.1.9",
		"-6 route add fd00:1::/122 proto bird nexthop via 2001:db8::9 nexthop via 2001:db8:1::9",
		"-6 route add fd00:98::/122 proto bird nexthop via 2001:db8::9 nexthop via 2001:db8:1::9",
	} {
		ns.Run(t, "ip", strings.Fields(r)...)
	}
	before := table(t, ns, "bird")
	stats, err := routes.New(ns.Conn, routes.Options{}).Sync(t.Context(), parsed(t, viaBoth...))
	if err == nil || stats != (routes.Stats{Added: 3}) || !errors.Is(err, routes.ErrForeign) || strings.Count(err.Error(), "proto bird") != 2 {
		t.Errorf("Sync = %+v, %v", stats, err)
	}
	wantTable(t, ns, "bird", before)
	successor := routes.New(ns.Conn, routes.Options{TakeOver: []netlinkx.Protocol{netlinkx.ProtocolBIRD}, Devices: []string{"eth1"}})
	sync(t, successor, routes.Stats{Kept: 3, Replaced: 2, Deleted: 2}, viaBoth...)
	wantTable(t, ns, "bird")
	wantHops(t, ns, viaBothTable...)
}

// TestHopsChangeWithoutAGap replaces one hop of two, and one by two, and back, while packets look the destination up.
func TestHopsChangeWithoutAGap(t *testing.T) {
	for name, tt := range map[string]struct{ to, route, a, b, c string }{
		"IPv4": {"10.244.1.5:9", "10.244.1.0/26", "via 10.0.0.2 dev eth0", "via 10.0.1.2 dev eth1", "via 10.0.1.3 dev eth1"},
		"IPv6": {"[fd00:1::5]:9", "fd00:1::/122", "via 2001:db8::2 dev eth0", "via 2001:db8:1::2 dev eth1", "via 2001:db8:1::3 dev eth1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := rack(t)
			tb := routes.New(ns.Conn, routes.Options{})
			two := func(x, y string) string { return tt.route + " nexthop " + x + " nexthop " + y }
			sync(t, tb, routes.Stats{Added: 1}, two(tt.a, tt.b))
			listen := "0.0.0.0:0"
			if name == "IPv6" {
				listen = "[::]:0"
			}
			conn := ns.ListenUDP(t, listen)
			var sent atomic.Int64
			stop, done := make(chan struct{}), make(chan error, 1)
			go func() {
				var lost error
				for {
					select {
					case <-stop:
						done <- lost
						return
					default:
					}
					if _, err := conn.WriteToUDPAddrPort([]byte("x"), netip.MustParseAddrPort(tt.to)); err != nil && !isFull(err) {
						lost = err
					}
					sent.Add(1)
				}
			}()
			for range 100 {
				for _, r := range []string{two(tt.a, tt.c), tt.route + " " + tt.a, two(tt.c, tt.b), tt.route + " " + tt.b, two(tt.a, tt.b)} {
					sync(t, tb, routes.Stats{Replaced: 1}, r)
				}
			}
			changed := sent.Load()
			waittest.Until(t, 20*time.Second, "packets after the last change", func() bool { return sent.Load() > changed+100 })
			close(stop)
			if err := <-done; err != nil {
				t.Errorf("a packet found no route: %v", err)
			}
		})
	}
}

// isFull reports whether err means that too many packets wait for the neighbour, which does not exist.
func isFull(err error) bool {
	return strings.Contains(err.Error(), "no buffer space") || strings.Contains(err.Error(), "host is unreachable") ||
		strings.Contains(err.Error(), "no route to host")
}

func TestEqual(t *testing.T) {
	a := route(t, viaBoth[0])
	for text, want := range map[string]bool{
		"10.244.1.0/26 nexthop via 10.0.0.2 dev eth0 nexthop via 10.0.1.2 dev eth1":          true,
		"10.244.1.0/26 nexthop via 10.0.0.2 dev eth0 weight 1 nexthop via 10.0.1.2 dev eth1": true,
		"10.244.1.0/26 nexthop via 10.0.0.2 dev eth0 weight 2 nexthop via 10.0.1.2 dev eth1": false,
		"10.244.1.0/26 via 10.0.0.2 dev eth0":                                                false,
		"10.244.1.0/26 nexthop via 10.0.0.2 dev eth0 nexthop via 10.0.1.2 dev eth1 metric 9": false,
		"unreachable 10.244.1.0/26": false,
	} {
		if got := route(t, text); got.Equal(a) != want || a.Equal(got) != want {
			t.Errorf("%s and %s: equal is not %v", a, got, want)
		}
	}
	if got, want := a.String(), "10.244.1.0/26 nexthop via 10.0.1.2 dev eth1 weight 1 nexthop via 10.0.0.2 dev eth0 weight 1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
