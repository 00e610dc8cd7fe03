package netlinkx_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// TestRoutesInBatches changes more routes than one system call carries; some are impossible, and only those fail.
func TestRoutesInBatches(t *testing.T) {
	ns, a := scratchRoutes(t)
	const n = 1000
	routes := make([]netlinkx.Route, n)
	for i := range routes {
		routes[i] = netlinkx.Route{
			Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 32), Via: netip.MustParseAddr("192.0.2.7"),
			Dev: a.Index, Onlink: true, Type: netlinkx.Unicast, Protocol: 84, Table: netlinkx.TableMain,
		}
	}
	routes[1].Dst = netip.MustParsePrefix("2001:db8:1::/122")
	routes[1].Via, routes[1].Metric = netip.MustParseAddr("2001:db8:ffff::1"), 12
	routes[2] = netlinkx.Route{
		Dst: netip.MustParsePrefix("10.8.0.0/26"), Type: netlinkx.Unreachable, Metric: 7, Protocol: 84, Table: netlinkx.TableMain,
	}
	routes[500] = routes[499] // taken by the one before
	gone := routes[700]
	gone.Dev = 9999
	routes[700] = gone
	bad := map[int]func(error) bool{500: netlinkx.IsExist, 700: netlinkx.IsNotExist}
	var want []netlinkx.Route
	for i, err := range ns.Conn.AddRoutes(routes) {
		if is := bad[i]; is != nil && !is(err) || is == nil && err != nil {
			t.Errorf("adding %s: %v", routes[i], err)
		}
		if bad[i] == nil {
			want = append(want, routes[i])
		}
	}
	got, err := ns.Conn.Routes(netlinkx.RouteFilter{Protocol: 84})
	errtest.Must(t, err)
	byDst := cmpopts.SortSlices(func(x, y netlinkx.Route) bool { return x.Dst.String() < y.Dst.String() })
	difftest.Want(t, "own routes", want, got, byDst)
	for i, err := range ns.Conn.DeleteRoutes(routes) {
		if is := bad[i]; is != nil && !netlinkx.IsNotExist(err) || is == nil && err != nil {
			t.Errorf("deleting %s: %v", routes[i], err)
		}
	}
	if got, err := ns.Conn.Routes(netlinkx.RouteFilter{Protocol: 84}); err != nil || len(got) != 0 {
		t.Errorf("own routes after deletion: %d, %v", len(got), err)
	}
}

func TestNoRoutesInBatches(t *testing.T) {
	ns, _ := scratchRoutes(t)
	if errs := ns.Conn.AddRoutes(nil); len(errs) != 0 {
		t.Errorf("adding nothing: %v", errs)
	}
}
