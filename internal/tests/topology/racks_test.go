package topology

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
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
	r.GrantSecret(t, "bgp-passwords")
	routers := r.apply(t, chapter(t, "2. "))
	spine := r.bridge(t, "spine")
	tor := func(name string, rack, number int, b block, changes ...string) {
		links := []link{{"spine", spine, []string{fmt.Sprintf("172.31.0.%d%d/24", rack, number), fmt.Sprintf("fd31::%d%d/64", rack, number)}}}
		if rack == 2 {
			links = slices.Insert(links, 0,
				link{"rack", "br1", []string{fmt.Sprintf("172.31.2.%d/24", number+1), fmt.Sprintf("fd31:2::%d/64", number+1)}})
		}
		h := r.host(t, name, links...)
		if rack == 1 {
			for _, n := range r.one {
				netnstest.Cable(t, n.NS, uplink(number), h.NS, n.Name)
			}
		}
		r.tors[name] = run(t, h, b, changes...)
	}
	tor("tor-1a", 1, 1, routers["tor-1a"])
	tor("tor-1b", 1, 2, routers["tor-1a"], "tor-1a", "tor-1b", "router-id 172.31.0.11", "router-id 172.31.0.12")
	tor("tor-2a", 2, 1, routers["tor-2a"])
	tor("tor-2b", 2, 2, routers["tor-2a"], "172.31.2.2 ", "172.31.2.3 ", "172.31.2.2;", "172.31.2.3;", "fd31:2::2 ", "fd31:2::3 ",
		"local 172.31.0.21", "local 172.31.0.22", "local fd31::21", "local fd31::22")
	meshtest.Start(t, append(r.one, r.two...)...)
	return r
}

// uplink is the link of a node in rack 1 to one of its routers.
func uplink(number int) string { return fmt.Sprint("up", number-1) }

// way is a next hop of a node: a router of its rack.
type way struct {
	peer, hop, dev string
	name           string // of the router
	port           string // of the router, where packets of the node come in
}

// kernel is the next hop as hops has it.
func (w way) kernel() string { return w.hop + " " + w.dev }

// ways returns a node's next hops by its rack's routers, for a prefix of one family.
func (r *racks) ways(t testing.TB, n *meshtest.Node, v6 bool) (both [2]way) {
	t.Helper()
	for i := range both {
		w := &both[i]
		if slices.Contains(r.one, n) {
			w.name, w.port, w.dev = "tor-1"+string(rune('a'+i)), n.Name, uplink(i+1)
			w.hop = r.tors[w.name].On().LinkLocal(t, n.Name).String()
			w.peer = w.hop + "%" + w.dev
			continue
		}
		w.name, w.port, w.dev = "tor-2"+string(rune('a'+i)), "rack", "eth0"
		w.hop = fmt.Sprint("172.31.2.", i+2)
		if v6 {
			w.hop = fmt.Sprint("fd31:2::", i+2)
		}
		w.peer = w.hop
	}
	return both
}

// bothLead waits until a node reaches another's blocks by both routers of its rack.
func (r *racks) bothLead(t testing.TB, from, to *meshtest.Node) {
	t.Helper()
	for v6, prefix := range map[bool]string{false: blockOf(to), true: block6Of(to)} {
		ways := r.ways(t, from, v6)
		leads(t, from.NS, from.Name, prefix, ways[0].kernel(), ways[1].kernel())
		learnedFrom(t, from, prefix, ways[0].peer, ways[1].peer)
	}
}

// Chapter 2: every node has a session with both routers of its rack, by link-local addresses or in both families;
// within a rack and between racks two paths are used, on nodes and on routers.
func TestRacks(t *testing.T) {
	t.Parallel()
	r := newRacks(t)
	all := slices.Concat(r.one, r.two)
	for _, from := range all {
		peers := map[string]bool{}
		for _, w := range slices.Concat(slice(r.ways(t, from, false)), slice(r.ways(t, from, true))) {
			peers[w.peer] = true
		}
		peersWith(t, from, slices.Collect(maps.Keys(peers))...)
		for _, to := range all {
			if from != to {
				r.bothLead(t, from, to)
			}
		}
	}
	for _, tor := range []string{"tor-1a", "tor-1b"} {
		leads(t, r.tors[tor].On().NS, tor, blockOf(r.two[0]), "172.31.0.21 spine", "172.31.0.22 spine")
		leads(t, r.tors[tor].On().NS, tor, blockOf(r.one[0]), r.one[0].LinkLocal(t, uplink(int(tor[5]-'a')+1)).String()+" node-11")
	}
	for _, tor := range []string{"tor-2a", "tor-2b"} {
		leads(t, r.tors[tor].On().NS, tor, blockOf(r.one[0]), "172.31.0.11 spine", "172.31.0.12 spine")
	}
	talk(t, r.pods[r.one[0]], r.pods[r.one[1]], r.pods[r.two[0]])
	r.printsRoutes(t, r.one[0])
}

// printsRoutes compares a node's routes with the page's, where routers have the addresses fe80::a and fe80::b.
func (r *racks) printsRoutes(t *testing.T, n *meshtest.Node) {
	t.Helper()
	var text strings.Builder
	meshtest.Eventually(t, func() error {
		report, err := n.Status()
		if err != nil {
			return err
		}
		text.Reset()
		if err = report.WriteRoutes(&text); err == nil && strings.Contains(text.String(), "starting") {
			err = fmt.Errorf("%s has not begun: %+v", n.Name, report.Peers)
		}
		return err
	})
	ways := r.ways(t, n, false)
	// In the order of the page.
	slices.SortFunc(ways[:], func(a, b way) int { return netip.MustParseAddr(a.hop).Compare(netip.MustParseAddr(b.hop)) })
	names := strings.NewReplacer(ways[0].peer, "fe80::a%up0", ways[1].peer, "fe80::b%up1", "up1, up0", "up0, up1")
	now := map[string]bool{}
	for line := range strings.Lines(names.Replace(text.String())) {
		now[strings.Join(strings.Fields(line), " ")] = true
	}
	shown := printed(t, "2. ", "node routes")
	if len(shown) < 2 {
		t.Fatalf("%s shows no routes: %q", document, shown)
	}
	for _, line := range shown {
		if !now[line] {
			t.Errorf("%s shows the route %q, which is not among\n%s", document, line, text.String())
		}
	}
}

func slice(w [2]way) []way { return w[:] }
