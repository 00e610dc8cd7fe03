package mesh

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// The API server may fail, the cluster may change while watches are interrupted, and objects may be wrong for a moment:
// packets between unaffected pods are not lost. The parts run in sequence on one cluster.
func TestOutages(t *testing.T) {
	t.Parallel()
	c := meshtest.NewCluster(t)
	pools := []*api.IPPool{meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever),
		meshtest.NewPool("unused", "10.91.0.0/24", api.EncapNever)}
	c.Create(t, pools[0], pools[1])
	p := newPair(t, c, 0)
	others := newPair(t, c, 1)
	all := append(p.nodes(), others.nodes()...)
	meshtest.Start(t, all...)
	meshtest.Settle(t, all...)
	whole := t

	t.Run("API server", func(t *testing.T) {
		packets := append(p.traffic(t), others.traffic(t)...)
		errtest.Must(t, c.Server.Kill())
		packets.Onward(t, 4*time.Second)
		// This agent starts without an API server.
		others.a.Signal(t, syscall.SIGTERM)
		others.a.Start(t, meshtest.Build)
		packets.Onward(t, 6*time.Second)
		errtest.Must(t, c.Server.Start())
		meshtest.Settle(t, all...)
		// The watches work again.
		others.b.Claim(t, "10.90.200.0/26")
		for _, n := range []*meshtest.Node{p.a, p.b, others.a} {
			meshtest.Eventually(t, func() error { return n.Has(t, "10.90.200.0/26 via 172.31.1.13") })
		}
		packets.Intact(t)
	})

	t.Run("changed cluster", func(t *testing.T) {
		packets := p.traffic(t)
		for _, n := range p.nodes() {
			n.Wire.Stall()
			n.Wire.Reset()
		}
		// Meanwhile a node joins, another is deleted with its block, a block gets a new owner, pools are changed, created and
		// deleted.
		added := c.NewNode(whole, "node-20", 0, 20)
		added.Claim(t, "10.90.20.0/26")
		added.Start(t, meshtest.Build)
		others.b.Signal(t, syscall.SIGKILL)
		for _, obj := range []api.Resource{
			&api.Node{Meta: api.Meta{Name: others.b.Name}}, meshtest.NewAffinity(others.b.Name, "10.90.13.0/26"),
			meshtest.NewAffinity(others.b.Name, "10.90.200.0/26"), pools[1],
		} {
			c.Remove(t, obj)
		}
		others.a.Claim(t, "10.90.200.0/26")
		c.Create(t, meshtest.NewPool("late", "10.92.0.0/24", api.EncapNever))
		packets.Onward(t, 3*time.Second)
		for _, n := range p.nodes() {
			n.Wire.Resume()
		}
		for _, n := range p.nodes() {
			meshtest.Eventually(t, func() error {
				gone := errors.New("the block of the deleted node still has a route")
				if n.Has(t, "10.90.13.0/26") != nil {
					gone = nil
				}
				return errors.Join(n.Has(t, "10.90.20.0/26 via 172.31.1.20"), n.Has(t, "10.90.200.0/26 via 172.31.1.12"), gone)
			})
		}
		all = append(p.nodes(), others.a, added)
		meshtest.Settle(t, all...)
		packets.Intact(t)
	})

	t.Run("annotation", func(t *testing.T) {
		packets := p.traffic(t)
		for _, text := range []*string{ptr("172.31.1.99/24"), ptr("nonsense"), nil} {
			p.b.Annotate(t, api.AnnotationIPv4Address, text)
			meshtest.Eventually(t, func() error { return p.b.Annotated(t, api.AnnotationIPv4Address, p.b.Prefix.String()) })
		}
		meshtest.Settle(t, all...)
		packets.Intact(t)
	})
}

func ptr[T any](v T) *T { return &v }
