package chaos

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	store "github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// agentInterval is how often the agents write facts for their plugins. It is long, so that plugins use stale facts.
const agentInterval = time.Second

// agents writes facts for every second node, which are mostly stale or wrong.
func (st *churn) agents(ctx context.Context) error {
	random := rand.New(rand.NewPCG(*seed, 1<<32))
	for {
		if err := st.writeFacts(ctx, random); err != nil && ctx.Err() == nil && !st.outages {
			return err
		}
		select {
		case <-time.After(agentInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

func (st *churn) writeFacts(ctx context.Context, random *rand.Rand) error {
	var pools api.IPPoolList
	var affinities api.BlockAffinityList
	written := time.Now()
	for _, list := range []api.ResourceList{&pools, &affinities} {
		if err := st.store.List(ctx, list, store.ListOptions{}); err != nil {
			return err
		}
	}
	for i, n := range st.nodes {
		if i%2 == 0 {
			continue
		}
		f := n.facts(written, pools.Items, affinities.Items)
		for i := range f.Affinities {
			f.Affinities[i].Free = randomUsage(random)
		}
		if err := n.writeFacts(f); err != nil {
			return err
		}
	}
	return nil
}

// facts returns the facts that the node's agent writes for some pools and affinities.
func (n *node) facts(written time.Time, pools []api.IPPool, affinities []api.BlockAffinity) facts.Facts {
	f := facts.Facts{
		Written: written, AgentReady: true, DatastoreReady: true, Group: n.group, Node: n.name, Pools: pools,
		Config: api.IPAMConfigSpec{AutoAllocateBlocks: true}, Namespaces: map[string]facts.Namespace{namespace: {}},
	}
	for _, a := range affinities {
		if a.Spec.Node == n.name {
			f.Affinities = append(f.Affinities, facts.Affinity{BlockAffinity: a})
		}
	}
	return f
}

func (n *node) writeFacts(f facts.Facts) error {
	return n.Try(func() error {
		if err := os.MkdirAll(filepath.Dir(facts.DefaultFile), 0o755); err != nil {
			return err
		}
		return facts.Write(facts.DefaultFile, f)
	})
}

// removeFacts removes the facts of all nodes.
func (st *churn) removeFacts() error {
	var errs []error
	for _, n := range st.nodes {
		errs = append(errs, n.Try(func() error {
			if err := os.Remove(facts.DefaultFile); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		}))
	}
	return errors.Join(errs...)
}

// randomUsage returns a number of free addresses of a block, or nil, right or not.
func randomUsage(random *rand.Rand) *int {
	return [...]*int{nil, nil, ptr(0), ptr(3)}[random.IntN(4)]
}

func ptr(n int) *int { return &n }
