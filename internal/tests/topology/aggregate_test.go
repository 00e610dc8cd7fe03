package topology

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// aggregated is a mesh of two nodes and a router to which they announce pools, not blocks. It is the nodes' default
// gateway, and has a client.
type aggregated struct {
	*world
	nodes  []*meshtest.Node
	host   *bgptest.Host
	tor    bgptest.Daemon
	client *meshtest.Pod
}

const toTor = "kubectl annotate --overwrite bgppeers.crd.projectcalico.org tor tor6 tortie.io/aggregate"

func newAggregated(t *testing.T, kind bgptest.Kind) *aggregated {
	t.Helper()
	a := &aggregated{world: newWorld(t, true)}
	a.podPools(t)
	a.nodes = []*meshtest.Node{a.node(t, 0, 11), a.node(t, 0, 12)}
	a.AssignBorrowed(t, blockOf(a.nodes[0]), a.nodes[0], 9, a.nodes[1])
	a.pods[nil] = a.nodes[1].NewPod(t, "10.90.11.9")
	a.host, a.tor = a.torOf(t, kind, map[string]string{api.AnnotationAggregate: "pools"}, a.nodes...)
	a.client = clientOf(t, a.host, "198.51.100.1/24", "198.51.100.10/24")
	for _, n := range a.nodes {
		n.Run(t, "ip", "route", "replace", "default", "via", "172.31.1.2")
	}
	meshtest.Start(t, a.nodes...)
	return a
}

// tells waits until the router has exactly these prefixes from each node.
func (a *aggregated) tells(t *testing.T, communities string, v4 ...string) {
	t.Helper()
	for _, n := range a.nodes {
		var want []bgptest.Route
		for _, p := range v4 {
			of := communities
			if strings.HasSuffix(p, "/32") {
				of = ""
			}
			want = append(want, bgptest.Route{Prefix: netip.MustParsePrefix(p), ASPath: "64512", Communities: of})
		}
		learned(t, a.tor, n.Prefix.Addr(), want...)
	}
}

// The router gets the pools, and the nodes get each other's blocks. Packets for the other node's pods, for a borrowed
// address and for no pod arrive correctly by either node; the aggregate is withdrawn with the last block, and sessions
// stay up.
func TestAggregate(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for _, kind := range []bgptest.Kind{bgptest.FRR, bgptest.BIRD2} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			testAggregate(t, newAggregated(t, kind))
		})
	}
}

func testAggregate(t *testing.T, a *aggregated) {
	const borrowed = "10.90.11.9/32"
	one, two := a.nodes[0], a.nodes[1]
	a.tells(t, "", "10.90.0.0/16", borrowed)
	for _, n := range a.nodes {
		learned(t, a.tor, n.V6, bgptest.Route{Prefix: netip.MustParsePrefix("fd90::/48"), ASPath: "64512"})
		leads(t, n.NS, n.Name, "10.90.0.0/16", "unreachable")
	}
	leads(t, a.host.NS, "tor", "10.90.0.0/16", "172.31.1.11 nodes", "172.31.1.12 nodes")
	a.knows(t, one, two)
	a.knows(t, two, one)
	learnedFrom(t, one, blockOf(two), "172.31.1.12")
	sent := map[string]int{"172.31.1.2": 2, "172.31.1.12": 1, "fd31:1::2": 1, "fd31:1::c": 1}
	meshtest.Eventually(t, func() error {
		for addr, p := range sessions(t, one) {
			if p.Sent != sent[addr] {
				return fmt.Errorf("%s was told %d prefixes, want %d", addr, p.Sent, sent[addr])
			}
		}
		return nil
	})
	t.Run("packets", func(t *testing.T) { a.packets(t) })
	before := uptimes(t, a.nodes...)
	a.shell(t, toTor+"=prefixAdvertisements", "")
	a.tells(t, "", blockOf(one), borrowed, blockOf(two)) // there are none
	a.Create(t, &api.BGPConfiguration{Meta: api.Meta{Name: "default"}, Spec: api.BGPConfigurationSpec{
		PrefixAdvertisements: []api.PrefixAdvertisement{{CIDR: "10.90.0.0/18", Communities: []string{"65000:100"}}},
	}})
	a.tells(t, "65000:100", "10.90.0.0/18", borrowed)
	a.shell(t, toTor+"=all", "")
	meshtest.Eventually(t, func() error { return says(one, `tortie.io/aggregate "all": use pools or prefixAdvertisements`) })
	a.tells(t, "65000:100", "10.90.0.0/18", borrowed)
	a.shell(t, toTor+"-", "")
	a.tells(t, "65000:100", blockOf(one), borrowed, blockOf(two))
	leads(t, one.NS, one.Name, "10.90.0.0/18")
	a.shell(t, toTor+"=pools; kubectl apply -f -", `
apiVersion: crd.projectcalico.org/v1
kind: BGPFilter
metadata: {name: tor}
spec:
  exportV4:
  - {action: Accept, matchOperator: Equal, cidr: 10.90.0.0/16, operations: [{addCommunity: {value: "65000:7"}}]}
  - {action: Reject}
`)
	a.shell(t, `kubectl patch bgppeers.crd.projectcalico.org tor --type=merge -p '{"spec":{"filters":["tor"]}}'`, "")
	a.tells(t, "65000:7", "10.90.0.0/16")
	t.Run("blocks", func(t *testing.T) { a.blocks(t) })
	before.untouched(t, "aggregates came and went")
}

// packets sends packets by the wrong node.
func (a *aggregated) packets(t *testing.T) {
	one, two := a.nodes[0], a.nodes[1]
	talk(t, a.client, a.pods[one], a.pods[two], a.pods[nil])
	for _, n := range a.nodes {
		way := fmt.Sprint(" via ", n.Prefix.Addr())
		for _, to := range []*meshtest.Pod{a.pods[one], a.pods[two], a.pods[nil]} {
			a.host.Run(t, "ip", strings.Fields("route replace "+to.V4.String()+way+" metric 1")...)
			talk(t, a.client, to)
			a.host.Run(t, "ip", "route", "del", to.V4.String(), "metric", "1")
		}
		a.host.Run(t, "ip", strings.Fields("route replace 10.90.200.0/24"+way)...)
		text := a.client.Run(t, "busybox", "traceroute", "-n", "-q", "1", "-m", "9", "-w", "2", "10.90.200.1")
		// The hops of the router and of the node, which answers that the host is unreachable.
		lines := strings.Split(strings.TrimSpace(text), "\n")
		difftest.Contains(t, lines[len(lines)-1], n.Prefix.Addr().String(), "!H")
		if len(lines) != 3 {
			t.Errorf("the way to an address of no block: %s", text)
		}
	}
}

// blocks removes the nodes' blocks and restores them.
func (a *aggregated) blocks(t *testing.T) {
	one, two := a.nodes[0], a.nodes[1]
	a.Remove(t, meshtest.NewAffinity(one.Name, blockOf(one)))
	leads(t, two.NS, two.Name, "10.90.0.0/16", "unreachable")
	meshtest.Eventually(t, func() error {
		if r, err := one.Status(); err != nil ||
			slices.ContainsFunc(r.Announced, func(p nodestatus.Announced) bool { return p.Prefix == blockOf(one) }) {
			return fmt.Errorf("%s still announces its block: %v %v", one.Name, r.Announced, err)
		}
		return nil
	})
	a.tells(t, "65000:7", "10.90.0.0/16") // for the other's block
	a.Remove(t, meshtest.NewAffinity(two.Name, blockOf(two)))
	a.tells(t, "")
	leads(t, two.NS, two.Name, "10.90.0.0/16")
	two.Claim(t, blockOf(two))
	a.tells(t, "65000:7", "10.90.0.0/16")
	leads(t, one.NS, one.Name, "10.90.0.0/16", "unreachable")

	const pool6 = "fd90::/48"
	tells := func(prefixes ...string) {
		t.Helper()
		var want []bgptest.Route
		for _, p := range prefixes {
			want = append(want, bgptest.Route{Prefix: netip.MustParsePrefix(p), ASPath: "64512"})
		}
		for _, n := range a.nodes {
			learned(t, a.tor, n.V6, want...)
		}
	}
	// Both nodes announce the address of a pod whose block is gone.
	alone := func(n *meshtest.Node) string { return netip.PrefixFrom(a.pods[n].V6, 128).String() }
	a.Remove(t, meshtest.NewAffinity(one.Name, block6Of(one)))
	tells(pool6, alone(one)) // the aggregate for the other's block
	a.Remove(t, meshtest.NewAffinity(two.Name, block6Of(two)))
	leads(t, two.NS, two.Name, pool6)
	tells(alone(one), alone(two))
	two.Claim(t, block6Of(two))
	leads(t, one.NS, one.Name, pool6, "unreachable")
	tells(pool6, alone(one))
}

// says returns an error unless a node reports a problem.
func says(n *meshtest.Node, text string) error {
	r, err := n.Status()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(r.Problems, func(p string) bool { return strings.Contains(p, text) }) {
		return fmt.Errorf("%s tells of %q, want %q", n.Name, r.Problems, text)
	}
	return nil
}
