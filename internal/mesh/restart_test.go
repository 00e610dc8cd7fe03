package mesh

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/names"
)

// pair is two nodes with a pod each, and a second one on the first whose address is borrowed from the second's block: only BGP
// tells where that is.
type pair struct {
	a, b                 *node
	podA, podB, borrower *pod
}

// newPair makes two nodes of a subnet, the number-th pair of the cluster: nodes, blocks and pods have numbers made of it.
func (c *cluster) newPair(t testing.TB, number int) *pair {
	t.Helper()
	p := &pair{}
	for i, at := range []struct {
		n *(*node)
		p *(*pod)
	}{{&p.a, &p.podA}, {&p.b, &p.podB}} {
		*at.n, *at.p = c.newNodeWithPod(t, 10+2*number+i)
	}
	c.lend(t, fmt.Sprintf("10.90.%d.0/26", 11+2*number), p.b, 9, p.a)
	p.borrower = p.a.newPod(t, fmt.Sprintf("10.90.%d.9", 11+2*number))
	return p
}

// lend writes the record of a block of one node's, of which another one's pod has an address.
func (c *cluster) lend(t testing.TB, cidr string, owner *node, ordinal int, borrower *node) {
	t.Helper()
	first, handle, affinity := 0, "mesh", "host:"+owner.name
	b := &api.IPAMBlock{Meta: api.Meta{Name: names.Block(netip.MustParsePrefix(cidr))}, Spec: api.IPAMBlockSpec{
		CIDR: cidr, Affinity: &affinity, Allocations: make([]*int, 64), Unallocated: []int{}, SequenceNumberForAllocation: map[string]uint64{},
		Attributes: []api.AllocationAttribute{{HandleID: &handle, Secondary: map[string]string{"node": borrower.name}}},
	}}
	b.Spec.Allocations[ordinal] = &first
	c.create(t, b)
}

// traffic is streams between the nodes' own pods, and between the second's and the borrower.
func (p *pair) traffic(t testing.TB) traffic {
	t.Helper()
	return append(startTraffic(t, p.podA, p.podB), startTraffic(t, p.podB, p.borrower)...)
}

// newNodeWithPod makes a node in the first subnet whose address, name and block say its number.
func (c *cluster) newNodeWithPod(t testing.TB, number int) (*node, *pod) {
	t.Helper()
	n := c.newNode(t, fmt.Sprintf("node-%d", number), 0, number)
	n.claim(t, fmt.Sprintf("10.90.%d.0/26", number))
	addrs := []string{fmt.Sprintf("10.90.%d.5", number)}
	if c.dual {
		n.claim(t, fmt.Sprintf("fd90::%x:0/122", number))
		addrs = append(addrs, fmt.Sprintf("fd90::%x:5", number))
	}
	return n, n.newPod(t, addrs...)
}

func (p *pair) nodes() []*node { return []*node{p.a, p.b} }

// An agent may end in any way, at any time, and come back: the pods' packets do not notice. Each way has a pair of nodes of
// its own in one full mesh.
func TestRestarts(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.dual = true
	c.create(t, newPool("pods", "10.90.0.0/16", api.EncapNever), newPool("pods6", "fd90::/64", api.EncapNever))
	ways := []struct {
		name string
		do   func(t *testing.T, p *pair)
	}{
		{"SIGTERM", func(t *testing.T, p *pair) {
			p.a.signal(t, syscall.SIGTERM)
			time.Sleep(500 * time.Millisecond)
			p.a.start(t, build)
		}},
		{"SIGKILL", func(t *testing.T, p *pair) {
			p.a.signal(t, syscall.SIGKILL)
			p.a.start(t, build)
		}},
		{"twice within two seconds", func(t *testing.T, p *pair) {
			p.a.signal(t, syscall.SIGTERM)
			p.a.start(t, build)
			time.Sleep(1500 * time.Millisecond)
			p.a.signal(t, syscall.SIGKILL)
			p.a.start(t, build)
		}},
		{"upgrade", func(t *testing.T, p *pair) {
			p.a.signal(t, syscall.SIGTERM)
			p.a.start(t, anotherBuild)
		}},
		{"both", func(t *testing.T, p *pair) {
			p.a.signal(t, syscall.SIGTERM)
			p.b.signal(t, syscall.SIGKILL)
			p.a.start(t, build)
			p.b.start(t, build)
		}},
	}
	pairs := make([]*pair, len(ways))
	var all []*node
	for i := range ways {
		pairs[i] = c.newPair(t, i)
		all = append(all, pairs[i].nodes()...)
	}
	start(t, all...)
	settle(t, all...)
	var ears []*ear
	for _, n := range all {
		ears = append(ears, listen(t, n))
	}
	t.Run("ways", func(t *testing.T) {
		for i, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				t.Parallel()
				p := pairs[i]
				packets := p.traffic(t)
				way.do(t, p)
				begun := time.Now()
				eventually(t, func() error { return errors.Join(p.a.probe("/readyz"), p.b.probe("/readyz")) })
				timed(t, "an agent comes back, five pairs at once: ready", begun)
				// Long enough for the agent to remove what it thinks is not needed.
				settle(t, all...)
				time.Sleep(time.Second)
				packets.intact(t)
			})
		}
	})
	// The new agents have found everything as they would have it.
	for _, e := range ears {
		if heard, err := e.all(); err != nil || len(heard) > 0 {
			t.Errorf("%s: restarts have changed %s, %v; want nothing", e.node.name, counts(heard), err)
		}
	}
}
