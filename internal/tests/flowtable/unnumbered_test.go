package flowtable

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/tortie-net/tortie/internal/kernel/flowtable"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/pathtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// TestUnnumbered: a connection in the flowtable goes on when a route of IPv4 changes to an IPv6 next hop, which no
// flowtable follows: its link leaves before, in the agent's order, and so does a new connection find none.
func TestUnnumbered(t *testing.T) {
	r := newRig(t, pathtest.Routes)
	from, to := r.Nodes[0], r.Nodes[1]
	c := open(t, "tcp", from.Pod, to.Pod, to.PodAddr(), 7000)
	c.settle(t, 7000, from, to)
	for i, n := range r.Nodes {
		link, err := n.Conn.LinkByName("eth0")
		errtest.Must(t, errors.Join(err, n.Conn.AddUniqueAddr(link.Index, netip.MustParsePrefix(fmt.Sprintf("fe80::%d/64", i+1)))))
	}
	for i, n := range r.Nodes {
		links, err := n.Conn.Links()
		errtest.Must(t, err)
		fabric := flowtable.Fabric{Uplinks: []string{"eth0"}, Kernel: flowtable.Running()}
		alone := flowtable.Choose(fabric.Without([]string{"eth0"}), "cali", links)
		hop := routes.Hop{Via: netip.MustParseAddr(fmt.Sprintf("fe80::%d", 2-i)), Dev: "eth0"}
		errtest.Must(t, r.fast[i].Narrow(t.Context(), alone))
		_, err = routes.New(n.Conn, routes.Options{}).Sync(t.Context(),
			[]routes.Route{{Dst: n.Block, Type: netlinkx.Unreachable}, routes.To(r.Nodes[1-i].Block, hop)})
		errtest.Must(t, err)
		if err := c.exchange(50, soon); err != nil {
			t.Errorf("after the change of node %d, before that of its flowtable: %v", i, err)
		}
		errtest.Must(t, r.fast[i].Sync(t.Context(), alone))
		errtest.Must(t, c.exchange(50, soon))
	}
	next := open(t, "tcp", from.Pod, to.Pod, to.PodAddr(), 7001)
	errtest.Must(t, next.exchange(50, patience))
	waittest.For(t, patience, func() error { // the kernel frees a flowtable some time after its table is gone
		for i, n := range r.Nodes {
			for _, port := range []int{7000, 7001} {
				if offloaded(t, n, port) {
					return fmt.Errorf("the connection to port %d, by an IPv6 next hop, is in the flowtable of node %d", port, i)
				}
			}
		}
		return nil
	})
}
