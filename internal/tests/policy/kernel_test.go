package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
)

// kernelClusters times perCluster packets go through a kernel under Kubernetes' policies, calicoKernelClusters under
// Calico's.
const kernelClusters, calicoKernelClusters = 40, 70

// enforcer is an engine in a namespace of its own.
type enforcer struct{ engine *netpol.Engine }

func newEnforcer(t *testing.T, ns *netnstest.NS) enforcer {
	e := enforcer{netpol.New(ns.Namespace, "cali")}
	t.Cleanup(e.engine.Close)
	return e
}

func (e enforcer) sync(t *testing.T, rs *policy.Ruleset, touched []netip.Addr) {
	t.Helper()
	if _, err := e.engine.Sync(t.Context(), rs, touched); err != nil {
		t.Fatal(err)
	}
}

// node is a rig with an engine that keeps the table for the rig's packets.
type node struct {
	*policytest.Rig
	enforcer
}

func newNode(t *testing.T) *node {
	t.Helper()
	rig := policytest.NewRig(t)
	return &node{rig, newEnforcer(t, rig.Host)}
}

// send sends a packet from where the cluster has its source.
func (n *node) send(t *testing.T, link string, p policytest.Packet) uint64 {
	t.Helper()
	number, err := n.Send(link, p)
	if err != nil {
		t.Fatal(err)
	}
	return number
}

// become turns the node into one of another cluster.
func (n *node) become(t *testing.T, c *policytest.Cluster) {
	t.Helper()
	compiled := policy.Compile(c.State())
	n.sync(t, &compiled.Ruleset, nil)
	n.Own(t, c)
	n.Forget(t)
}

// Packets arrive exactly where the reference allows them, on a node with an engine that changes from each cluster's
// ruleset to the next.
func TestPackets(t *testing.T) {
	throughKernel(t, kernelClusters, 1000, policytest.Generator.Cluster, policytest.Generator.Packets)
}

// So it is under Calico's policies among the others.
func TestCalicoPackets(t *testing.T) {
	throughKernel(t, calicoKernelClusters, 2000, policytest.Generator.CalicoCluster,
		func(g policytest.Generator, c *policytest.Cluster, n int) []policytest.Packet {
			return slices.DeleteFunc(g.CalicoPackets(c, n), func(p policytest.Packet) bool {
				// which a rig would choose
				return p.SourcePort == 0 && slices.Contains([]uint8{policytest.TCP, policytest.UDP, policytest.SCTP}, p.Protocol)
			})
		})
}

func throughKernel(t *testing.T, clusters uint64, atLeast int, cluster func(policytest.Generator) *policytest.Cluster,
	generate func(policytest.Generator, *policytest.Cluster, int) []policytest.Packet) {
	n, sent := newNode(t), 0
	for s := *seed; s < *seed+clusters; s++ {
		g := policytest.NewGenerator(s)
		c := cluster(g)
		n.become(t, c)
		packets := onWire(c, generate(g, c, perCluster))
		sent += len(packets)
		if p, wrong := n.try(t, c, packets); wrong != "" {
			t.Fatal(report(s, c, p, func(c *policytest.Cluster) string {
				n.become(t, c)
				_, wrong := n.try(t, c, []policytest.Packet{p})
				return wrong
			}))
		}
	}
	if sent < atLeast {
		t.Errorf("only %d packets were sent", sent)
	}
	t.Logf("%d packets", sent)
}

// onWire are the packets that meet the node: not those that the uplink would send back to itself.
func onWire(c *policytest.Cluster, all []policytest.Packet) (some []policytest.Packet) {
	for _, p := range all {
		if policytest.Sendable(p) && c.Place(p.From) != c.Place(p.To) {
			some = append(some, p)
		}
	}
	return some
}

// try sends packets at once, and returns the first one that wrongly arrived or did not arrive.
func (n *node) try(t *testing.T, c *policytest.Cluster, packets []policytest.Packet) (policytest.Packet, string) {
	t.Helper()
	numbers, came := make([]uint64, len(packets)), map[uint64]string{}
	var expected []uint64
	for i, p := range packets {
		numbers[i] = n.send(t, c.Place(p.From), p)
		if c.Allowed(p, policytest.Node) {
			expected = append(expected, numbers[i])
		}
	}
	n.Await(came, expected)
	for i, p := range packets {
		place, arrived := came[numbers[i]]
		if want := c.Allowed(p, policytest.Node); arrived != want || arrived && place != c.Place(p.To) {
			return p, fmt.Sprintf("arrived %v at %q, not %v at %q", arrived, place, want, c.Place(p.To))
		}
	}
	return n.tryAnswers(t, c, packets, numbers)
}

// tryAnswers sends the answers to the UDP packets that arrived: all of them arrive, whatever the policies for their
// direction.
func (n *node) tryAnswers(t *testing.T, c *policytest.Cluster, packets []policytest.Packet, numbers []uint64) (policytest.Packet, string) {
	t.Helper()
	came, answers := map[uint64]string{}, map[uint64]policytest.Packet{}
	for i, p := range packets {
		if p.Protocol != policytest.UDP || !c.Allowed(p, policytest.Node) {
			continue
		}
		answer, err := n.Answer(c.Place(p.To), p, numbers[i])
		if err != nil {
			t.Fatal(err)
		}
		answers[answer] = p
	}
	n.Await(came, slices.Collect(maps.Keys(answers)))
	for answer, p := range answers {
		if place, ok := came[answer]; !ok || place != c.Place(p.From) {
			return p, fmt.Sprintf("the answer arrived %v at %q, not at %q", ok, place, c.Place(p.From))
		}
	}
	return policytest.Packet{}, ""
}
