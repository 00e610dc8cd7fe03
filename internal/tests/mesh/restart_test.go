package mesh

import (
	"cmp"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// pair is two nodes with a pod each. A second pod on the first node has an address borrowed from the second's block,
// whose route is known by BGP only.
type pair struct {
	a, b                 *meshtest.Node
	podA, podB, borrower *meshtest.Pod
}

// newPair creates two nodes of a subnet, whose names, blocks and pods are derived from number.
func newPair(t testing.TB, c *meshtest.Cluster, number int) *pair {
	t.Helper()
	p := &pair{}
	for i, at := range []struct {
		n *(*meshtest.Node)
		p *(*meshtest.Pod)
	}{{&p.a, &p.podA}, {&p.b, &p.podB}} {
		*at.n, *at.p = c.NewNodeWithPod(t, 0, 10+2*number+i)
	}
	c.AssignBorrowed(t, fmt.Sprintf("10.90.%d.0/26", 11+2*number), p.b, 9, p.a)
	p.borrower = p.a.NewPod(t, fmt.Sprintf("10.90.%d.9", 11+2*number))
	return p
}

// traffic starts streams between the nodes' own pods, and between the second's and the borrower.
func (p *pair) traffic(t testing.TB) meshtest.Traffic {
	t.Helper()
	return append(meshtest.StartTraffic(t, p.podA, p.podB), meshtest.StartTraffic(t, p.podB, p.borrower)...)
}

func (p *pair) nodes() []*meshtest.Node { return []*meshtest.Node{p.a, p.b} }

// An agent may be stopped or killed at any time and restarted without packet loss, and its AS number may change. Each
// case has a pair of nodes of its own in one full mesh.
func TestRestarts(t *testing.T) {
	t.Parallel()
	c := meshtest.NewCluster(t)
	c.Dual = true
	c.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever), meshtest.NewPool("pods6", "fd90::/64", api.EncapNever))
	ways := []struct {
		name string
		do   func(t *testing.T, p *pair, packets meshtest.Traffic)
	}{
		{"SIGTERM", func(t *testing.T, p *pair, packets meshtest.Traffic) {
			p.a.Signal(t, syscall.SIGTERM)
			packets.Onward(t, 500*time.Millisecond)
			p.a.Start(t, meshtest.Build)
		}},
		{"SIGKILL", func(t *testing.T, p *pair, _ meshtest.Traffic) {
			p.a.Signal(t, syscall.SIGKILL)
			p.a.Start(t, meshtest.Build)
		}},
		{"twice within two seconds", func(t *testing.T, p *pair, packets meshtest.Traffic) {
			p.a.Signal(t, syscall.SIGTERM)
			p.a.Start(t, meshtest.Build)
			packets.Onward(t, 1500*time.Millisecond)
			p.a.Signal(t, syscall.SIGKILL)
			p.a.Start(t, meshtest.Build)
		}},
		{"upgrade", func(t *testing.T, p *pair, _ meshtest.Traffic) {
			p.a.Signal(t, syscall.SIGTERM)
			p.a.Start(t, meshtest.AnotherBuild)
		}},
		{"both", func(t *testing.T, p *pair, _ meshtest.Traffic) {
			p.a.Signal(t, syscall.SIGTERM)
			p.b.Signal(t, syscall.SIGKILL)
			p.a.Start(t, meshtest.Build)
			p.b.Start(t, meshtest.Build)
		}},
		{"another AS number", func(t *testing.T, p *pair, packets meshtest.Traffic) {
			for _, asn := range []uint32{64999, 64998} {
				p.a.Annotate(t, api.AnnotationASNumber, ptr(fmt.Sprint(asn)))
				meshtest.Eventually(t, func() error { return sessionInAS(p.b, asn) })
				packets.Onward(t, 500*time.Millisecond)
			}
		}},
	}
	pairs := make([]*pair, len(ways))
	var all []*meshtest.Node
	for i := range ways {
		pairs[i] = newPair(t, c, i)
		all = append(all, pairs[i].nodes()...)
	}
	meshtest.Start(t, all...)
	meshtest.Settle(t, all...)
	var monitors []*monitor
	for _, n := range all {
		if n != pairs[len(pairs)-1].a { // in another AS its routes change with the several nodes of a path
			monitors = append(monitors, listen(t, n))
		}
	}
	t.Run("ways", func(t *testing.T) {
		for i, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				t.Parallel()
				p := pairs[i]
				packets := p.traffic(t)
				way.do(t, p, packets)
				begun := time.Now()
				meshtest.Eventually(t, func() error { return errors.Join(p.a.Probe("/readyz"), p.b.Probe("/readyz")) })
				meshtest.Timed(t, "an agent comes back, five pairs at once: ready", begun)
				// Long enough for the agent to remove stale routes.
				meshtest.Settle(t, all...)
				packets.Onward(t, time.Second)
				packets.Intact(t)
			})
		}
	})
	unchanged(t, monitors...)
}

// sessionInAS returns nil if a node has a session with a peer in an AS.
func sessionInAS(n *meshtest.Node, asn uint32) error {
	r, err := n.Status()
	for _, p := range r.Peers {
		if p.ASN == asn && p.State == "Established" {
			return nil
		}
	}
	return cmp.Or(err, fmt.Errorf("%s has no session with a peer in AS %d", n.Name, asn))
}
