package mesh

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
)

// What agents know of the cluster may go away, change behind their backs, or lie for a moment: the packets between pods that are
// none of that do not notice. The parts follow one another on one cluster.
func TestOutages(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	pools := []*api.IPPool{newPool("pods", "10.90.0.0/16", api.EncapNever), newPool("unused", "10.91.0.0/24", api.EncapNever)}
	c.create(t, pools[0], pools[1])
	p := c.newPair(t, 0)
	others := c.newPair(t, 1)
	all := append(p.nodes(), others.nodes()...)
	start(t, all...)
	settle(t, all...)
	whole := t

	t.Run("API server", func(t *testing.T) {
		packets := append(p.traffic(t), others.traffic(t)...)
		if err := c.server.Kill(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Second)
		// This one finds nobody to ask what to do.
		others.a.signal(t, syscall.SIGTERM)
		others.a.start(t, build)
		time.Sleep(6 * time.Second)
		if err := c.server.Start(); err != nil {
			t.Fatal(err)
		}
		settle(t, all...)
		// The watches work again.
		others.b.claim(t, "10.90.200.0/26")
		for _, n := range []*node{p.a, p.b, others.a} {
			eventually(t, func() error { return n.has(t, "10.90.200.0/26 via 172.31.1.13") })
		}
		packets.intact(t)
	})

	t.Run("another world", func(t *testing.T) {
		packets := p.traffic(t)
		for _, n := range p.nodes() {
			n.wire.Silence()
			n.wire.Reset()
		}
		// A node comes, another goes with its block, a block gets a new owner, pools are changed, come and go.
		added := c.newNode(whole, "node-20", 0, 20)
		added.claim(t, "10.90.20.0/26")
		added.start(t, build)
		others.b.signal(t, syscall.SIGKILL)
		for _, obj := range []api.Resource{
			&api.Node{Meta: api.Meta{Name: others.b.name}}, newAffinity(others.b.name, "10.90.13.0/26"), newAffinity(others.b.name, "10.90.200.0/26"), pools[1],
		} {
			c.remove(t, obj)
		}
		others.a.claim(t, "10.90.200.0/26")
		c.create(t, newPool("late", "10.92.0.0/24", api.EncapNever))
		time.Sleep(3 * time.Second)
		for _, n := range p.nodes() {
			n.wire.Mend()
		}
		for _, n := range p.nodes() {
			eventually(t, func() error {
				gone := errors.New("the block of the node that is gone still has a route")
				if n.has(t, "10.90.13.0/26") != nil {
					gone = nil
				}
				return errors.Join(n.has(t, "10.90.20.0/26 via 172.31.1.20"), n.has(t, "10.90.200.0/26 via 172.31.1.12"), gone)
			})
		}
		all = append(p.nodes(), others.a, added)
		settle(t, all...)
		packets.intact(t)
	})

	t.Run("annotation", func(t *testing.T) {
		packets := p.traffic(t)
		for _, text := range []*string{ptr("172.31.1.99/24"), ptr("nonsense"), nil} {
			p.b.annotate(t, api.AnnotationIPv4Address, text)
			eventually(t, func() error { return p.b.annotated(t, api.AnnotationIPv4Address, p.b.addr.String()) })
		}
		settle(t, all...)
		packets.intact(t)
	})
}

func ptr[T any](v T) *T { return &v }

// annotate edits the Node as a person would; nil removes.
func (n *node) annotate(t testing.TB, key string, text *string) {
	t.Helper()
	patch := kubernetes.Patch{Metadata: kubernetes.PatchMeta{Annotations: map[string]*string{key: text}}}
	if err := n.store.PatchStatus(t.Context(), &api.Node{Meta: api.Meta{Name: n.name}}, patch, false); err != nil {
		t.Fatal(err)
	}
}

func (n *node) annotated(t testing.TB, key, want string) error {
	obj := &api.Node{Meta: api.Meta{Name: n.name}}
	if err := n.store.Get(t.Context(), obj); err != nil {
		return err
	}
	if have := obj.Annotations[key]; have != want {
		return fmt.Errorf("%s: annotation %s is %q, want %q", n.name, key, have, want)
	}
	return nil
}
