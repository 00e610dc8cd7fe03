package chaos

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// TestBurst starts many pods on one node at once, with more addresses than one block has.
func TestBurst(t *testing.T) {
	for i, tt := range []struct {
		name       string
		pods, bits int
		facts      bool
	}{
		{"30 pods", 30, 28, false},
		{"100 pods, with facts", 100, 26, true},
		{"30 pods, with facts", 30, 28, true},
		{"100 pods", 100, 26, false},
	}[:tier.Size(2, 4)] {
		t.Run(tt.name, func(t *testing.T) {
			c := shared(t)
			p := &api.IPPool{Meta: api.Meta{Name: fmt.Sprintf("burst-%d", i)}}
			p.Spec.CIDR, p.Spec.BlockSize = fmt.Sprintf("10.65.%d.0/24", i), tt.bits
			c.create(t, p)
			n := c.newNode(t, fmt.Sprintf("burst-%d", i), shape{pods: tt.pods, ipam: "calico-ipam"})
			if tt.facts {
				errtest.Must(t, n.writeFacts(n.facts(time.Now(), []api.IPPool{*p}, nil)))
			}
			st := newChurn(c, []*node{n}, 0)
			met := c.countConflicts(t)
			st.all(t)
			conflicts := float64(met()) / float64(tt.pods)
			t.Logf("%d ADDs in %v, %.2f conflicts each", tt.pods, st.now().Round(time.Millisecond), conflicts)
			if conflicts > 1.5 {
				t.Errorf("%.2f conflicts for each ADD, want at most 1.5", conflicts)
			}
			st.settle(t, (tt.pods+1<<(32-tt.bits)-1)>>(32-tt.bits))
		})
	}
}

// TestFirstBlocks starts the first pod of many nodes at once, each of which claims its first block in one pool.
func TestFirstBlocks(t *testing.T) {
	tier.All(t)
	const count = 20
	c := shared(t)
	p := &api.IPPool{Meta: api.Meta{Name: "first"}}
	p.Spec.CIDR, p.Spec.BlockSize = "10.66.0.0/25", 30 // 32 blocks: many nodes choose the same one
	c.create(t, p)
	var nodes []*node
	for i := range count {
		nodes = append(nodes, c.newNode(t, fmt.Sprintf("first-%d", i), shape{pods: 1, ipam: "calico-ipam"}))
	}
	st := newChurn(c, nodes, 0)
	met := c.countConflicts(t)
	st.all(t)
	t.Logf("%d first ADDs in %v, %d conflicts", count, st.now().Round(time.Millisecond), met())
	st.settle(t, count)
}

// all starts all pods of all nodes at once.
func (st *churn) all(t *testing.T) {
	t.Helper()
	defer st.report(t)
	var sandboxes []*sandbox
	for _, n := range st.nodes {
		for _, p := range n.pods {
			s, err := p.newSandbox()
			errtest.Must(t, err)
			p.sandbox = s
			sandboxes = append(sandboxes, s)
		}
	}
	st.history = newHistory()
	var g errgroup.Group
	for _, s := range sandboxes {
		k := st.gentle()
		g.Go(func() error {
			_, err := k.add(s)
			return err
		})
	}
	errtest.Must(t, g.Wait())
}

// settle checks the addresses of the pods, that this number of blocks has one owner each, and that nothing is left
// after the pods' deletion.
func (st *churn) settle(t *testing.T, blocks int) {
	t.Helper()
	defer st.report(t)
	all, err := st.audit(t.Context(), "with sandboxes")
	errtest.Must(t, err)
	owners := map[string]int{}
	for _, b := range all.blocks.Items {
		if b.Spec.Affinity != nil {
			owners[*b.Spec.Affinity]++
		}
	}
	if len(all.blocks.Items) != blocks || len(owners) != len(st.nodes) {
		t.Errorf("%d blocks, of %v; want %d, of %d nodes", len(all.blocks.Items), owners, blocks, len(st.nodes))
	}
	if left := all.unconfirmed(); len(left) > 0 {
		t.Errorf("not confirmed: %v", left)
	}
	errtest.Must(t, st.drain(t.Context()))
	if _, err := st.audit(t.Context(), "without sandboxes"); err != nil {
		t.Fatal(err)
	}
	st.checkNodes(t)
	for _, w := range st.check() {
		t.Errorf("these operations are not linearizable:\n%s", w)
	}
}
