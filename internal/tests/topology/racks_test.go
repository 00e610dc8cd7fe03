package topology

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// racks is chapter 2: two racks with two routers each.
type racks struct {
	*world
	one, two []*meshtest.Node
	tors     map[string]bgptest.Daemon
}

func newRacks(t testing.TB) *racks {
	t.Helper()
	r := &racks{world: newWorld(t, true), tors: map[string]bgptest.Daemon{}}
	r.one = []*meshtest.Node{r.node(t, 0, 11), r.node(t, 0, 12)}
	r.two = []*meshtest.Node{r.node(t, 1, 21)}
	routers := r.apply(t, chapter(t, "2. "))
	spine := r.bridge(t, "spine")
	tor := func(name string, rack, number int, b block, changes ...string) {
		h := r.host(t, name,
			link{"rack", fmt.Sprint("br", rack-1), []string{fmt.Sprintf("172.31.%d.%d/24", rack, number+1), fmt.Sprintf("fd31:%d::%d/64", rack, number+1)}},
			link{"spine", spine, []string{fmt.Sprintf("172.31.0.%d%d/24", rack, number), fmt.Sprintf("fd31::%d%d/64", rack, number)}})
		r.tors[name] = run(t, h, b, changes...)
	}
	tor("tor-1a", 1, 1, routers["tor-1a"])
	tor("tor-1b", 1, 2, routers["tor-1a"], "tor-1a", "tor-1b", "172.31.1.2", "172.31.1.3")
	tor("tor-2a", 2, 1, routers["tor-2a"])
	tor("tor-2b", 2, 2, routers["tor-2a"], "172.31.2.2 ", "172.31.2.3 ", "172.31.2.2;", "172.31.2.3;", "fd31:2::2 ", "fd31:2::3 ",
		"local 172.31.0.21", "local 172.31.0.22", "local fd31::21", "local fd31::22")
	meshtest.Start(t, append(r.one, r.two...)...)
	return r
}

// Chapter 2: every node has a session with both routers of its rack, in both families; between racks two paths are used, on nodes and on
// routers; within a rack packets go directly between nodes.
func TestRacks(t *testing.T) {
	t.Parallel()
	r := newRacks(t)
	for _, n := range r.one {
		peersWith(t, n, "172.31.1.2", "172.31.1.3", "fd31:1::2", "fd31:1::3")
		leads(t, n.NS, n.Name, blockOf(r.two[0]), "172.31.1.2 eth0", "172.31.1.3 eth0")
		leads(t, n.NS, n.Name, block6Of(r.two[0]), "fd31:1::2 eth0", "fd31:1::3 eth0")
	}
	peersWith(t, r.two[0], "172.31.2.2", "172.31.2.3", "fd31:2::2", "fd31:2::3")
	for _, n := range r.one {
		leads(t, r.two[0].NS, r.two[0].Name, blockOf(n), "172.31.2.2 eth0", "172.31.2.3 eth0")
		leads(t, r.two[0].NS, r.two[0].Name, block6Of(n), "fd31:2::2 eth0", "fd31:2::3 eth0")
	}
	r.knows(t, r.one[0], r.one[1])
	learnedFrom(t, r.one[0], blockOf(r.one[1]), "172.31.1.2", "172.31.1.3")
	learnedFrom(t, r.one[0], block6Of(r.one[1]), "fd31:1::2", "fd31:1::3")
	for _, tor := range []string{"tor-1a", "tor-1b"} {
		leads(t, r.tors[tor].On().NS, tor, blockOf(r.two[0]), "172.31.0.21 spine", "172.31.0.22 spine")
		learned(t, r.tors[tor], r.one[0].Prefix.Addr(), bgptest.Route{Prefix: netip.MustParsePrefix(blockOf(r.one[0])), NextHop: r.one[0].Prefix.Addr(), ASPath: "65001"})
	}
	for _, tor := range []string{"tor-2a", "tor-2b"} {
		leads(t, r.tors[tor].On().NS, tor, blockOf(r.one[0]), "172.31.0.11 spine", "172.31.0.12 spine")
	}
	talk(t, r.pods[r.one[0]], r.pods[r.one[1]], r.pods[r.two[0]])
}
