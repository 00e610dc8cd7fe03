package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	store "github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

const (
	// processes is how many ADD and DEL the storm has at least.
	processes = 2000
	// processesOnEtcd is how many it has on etcd, where claims, handles and blocks are the same code's.
	processesOnEtcd = 600
	// processesInOutages is how many it has while the datastore dies now and then.
	processesInOutages = 600
	outages            = 4
	// absence is how long the datastore is away at least: some plugins give up before.
	absence = 500 * time.Millisecond
	// generation is how many processes share a pool before the next takes its place, in which nodes race for their first blocks.
	generation = 300
	// watchInterval is how often an observer reads all blocks.
	watchInterval = 250 * time.Millisecond
)

// fleet is the nodes of a storm. Half of them have more pods than their share of the pool's blocks has addresses, so that
// they borrow from others. Two assign both families, two execute calico-ipam under another name, as calico executes any IPAM
// plugin that it does not know.
func (c *cluster) fleet(t testing.TB) []*node {
	var nodes []*node
	for i := range 8 {
		s := shape{pods: 3, ipam: "calico-ipam"}
		if i%2 == 0 {
			s.pods = 11
		}
		s.dual = i == 0 || i == 1
		if i == 2 || i == 3 {
			s.ipam = delegate
		}
		nodes = append(nodes, c.newNode(t, fmt.Sprintf("node-%d", i), s))
	}
	return nodes
}

// poolSize is how many addresses a pool has, in 8 blocks.
const poolSize = 64

// pool returns the pool of a generation.
func pool(generation int, v6 bool) *api.IPPool {
	p := &api.IPPool{Meta: api.Meta{Name: fmt.Sprintf("pool-v4-%d", generation)}}
	p.Spec.CIDR, p.Spec.BlockSize = fmt.Sprintf("10.64.%d.0/26", generation), 29
	if v6 {
		p.Name = fmt.Sprintf("pool-v6-%d", generation)
		p.Spec.CIDR, p.Spec.BlockSize = fmt.Sprintf("fd64::%d:0/122", generation), 125
	}
	p.Spec.NodeSelector = "all()"
	return p
}

// setDisabled changes whether addresses are assigned from a pool. It tries again while the API server is away.
func (c *cluster) setDisabled(ctx context.Context, p *api.IPPool, disabled bool) error {
	for {
		err := c.store.Get(ctx, p)
		if err == nil {
			p.Spec.Disabled = disabled
			err = c.store.Update(ctx, p)
		}
		if err == nil || !errors.Is(err, store.ErrUnavailable) {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// rotate lets one pool follow the other as the storm goes on.
func (st *storm) rotate(ctx context.Context, pools [][]*api.IPPool) error {
	for i := 1; i < len(pools); i++ {
		for st.done() < st.target*i/len(pools) {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return nil
			}
		}
		for family := range pools[i] {
			if err := st.setDisabled(ctx, pools[i][family], false); err != nil {
				return err
			}
			if err := st.setDisabled(ctx, pools[i-1][family], true); err != nil {
				return err
			}
		}
	}
	return nil
}

// watch reads all blocks again and again, until ctx ends. Each list shows one moment between its call and its return.
func (st *storm) watch(ctx context.Context) error {
	for {
		if err := st.look(ctx); err != nil && ctx.Err() == nil && !st.outages {
			return err
		}
		select {
		case <-time.After(watchInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

func (st *storm) look(ctx context.Context) error {
	var blocks api.IPAMBlockList
	op := operation{kind: read, called: st.now()}
	if err := st.store.List(ctx, &blocks, store.ListOptions{}); err != nil {
		return err
	}
	op.completed = st.now()
	held, err := holders(blocks.Items)
	if err != nil {
		return err
	}
	op.held = held
	st.add(op)
	type family struct {
		handle string
		v6     bool
	}
	st.tally(looksAtBorrowed, borrowed(blocks.Items))
	first := map[family]netip.Addr{}
	for a, handle := range held {
		f := family{handle, a.Is6()}
		if other, ok := first[f]; ok {
			st.blameOnce(handle, "at %v, %s holds %s and %s", op.completed.Round(time.Millisecond), handle, a, other)
		}
		first[f] = a
	}
	for i := range blocks.Items {
		for _, fault := range blockFaults(&blocks.Items[i]) {
			st.blameOnce(blocks.Items[i].Name, "at %v, block %s: %s", op.completed.Round(time.Millisecond), blocks.Items[i].Name, fault)
		}
	}
	return nil
}

// borrowed says whether any address is held on another node than its block's.
func borrowed(blocks []api.IPAMBlock) bool {
	for _, b := range blocks {
		for _, attr := range b.Spec.Attributes {
			if node := attr.Secondary["node"]; node != "" && b.Spec.Affinity != nil && *b.Spec.Affinity != names.HostAffinity(node) {
				return true
			}
		}
	}
	return false
}

// live returns what the sandboxes that run were given.
func (st *storm) live() map[string][]netip.Addr {
	all := map[string][]netip.Addr{}
	for _, n := range st.nodes {
		for _, p := range n.pods {
			if p.sandbox != nil {
				all[p.sandbox.handle()] = p.sandbox.addrs
			}
		}
	}
	return all
}

// audit notes what is wrong in the datastore now that nobody works on it.
func (st *storm) audit(ctx context.Context, when string) (*contents, error) {
	all, err := st.contents(ctx)
	if err != nil {
		return nil, err
	}
	for _, w := range all.audit(st.live()) {
		st.blame("%s: %s", when, w)
	}
	return all, nil
}

// mend lets every node assign and release once more, nobody being killed.
func (st *storm) mend(ctx context.Context) error {
	for _, n := range st.nodes {
		k := st.calm()
		s, err := n.pods[0].newSandbox()
		if err != nil {
			return err
		}
		for _, verb := range []string{"ADD", "DEL"} {
			if a, err := k.call(s, verb); err != nil || a.exit != 0 {
				return fmt.Errorf("%s on %s after the storm: %v, %w", verb, n.name, a, err)
			}
		}
		if err := s.end(); err != nil {
			return err
		}
	}
	return nil
}

// checkNodes notes what nodes and pods have kept of sandboxes that are gone.
func (st *storm) checkNodes(t testing.TB) {
	t.Helper()
	for _, n := range st.nodes {
		for _, l := range n.leftovers(t) {
			st.blame("left over: %s", l)
		}
		for _, p := range n.pods {
			if ip := st.noted(t, p); ip != "" {
				st.blame("left over: pod %s is said to have %s", p.name, ip)
			}
		}
	}
}

// Whenever plugins are killed, no address is given to two containers, and what the killed have left is gone once their
// containers have seen a DEL or a GC.
func TestKilledPlugins(t *testing.T) {
	t.Run("kubernetes", func(t *testing.T) {
		c := shared(t)
		met := c.countConflicts(t)
		newStorm(c, c.fleet(t), processes).rage(t, nil)
		t.Logf("%d conflicts", met())
	})
	t.Run("etcdv3", func(t *testing.T) {
		c := onEtcd(t, labtest.NewEtcd(t, true))
		newStorm(c, c.fleet(t), processesOnEtcd).rage(t, nil)
	})
}

// The same while the datastore dies and comes back again and again.
func TestKilledDatastore(t *testing.T) {
	t.Run("kubernetes", func(t *testing.T) {
		server := labtest.NewServer(t)
		c := onKubernetes(t, server.Kubeconfig())
		newStorm(c, c.fleet(t), processesInOutages).rage(t, server)
	})
	t.Run("etcdv3", func(t *testing.T) {
		server := labtest.NewEtcd(t, true)
		c := onEtcd(t, server)
		newStorm(c, c.fleet(t), processesInOutages).rage(t, server)
	})
}

// mortal is a server that can be killed.
type mortal interface {
	Kill() error
	Start() error
}

// strike kills the server now and then, and lets it be away for a moment.
func (st *storm) strike(ctx context.Context, server mortal) error {
	for i := range outages {
		for st.done() < st.target*(i+1)/(outages+1) {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				return nil
			}
		}
		if err := server.Kill(); err != nil {
			return err
		}
		time.Sleep(absence)
		if err := server.Start(); err != nil {
			return err
		}
	}
	return nil
}

// rage runs a storm, in which the server, if one is given, dies now and then, and checks everything during and after it.
func (st *storm) rage(t *testing.T, server mortal) {
	t.Helper()
	pools := st.createPools(t)
	if server != nil {
		st.outages, st.kills = true, st.kills/2
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	defer st.report(t)
	g, storming := errgroup.WithContext(ctx)
	calm := st.accompany(storming)
	g.Go(func() error { return st.blow(storming) })
	g.Go(func() error { return st.rotate(storming, pools) })
	if server != nil {
		g.Go(func() error { return st.strike(storming, server) })
	}
	err := g.Wait()
	calm()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v: %v", st.now().Round(time.Second), st.summary())
	st.checkStrength(t)
	if err := st.aftermath(ctx, t); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for _, w := range st.check() {
		st.blame("no order of these operations makes sense:\n%s", w)
	}
	t.Logf("checked %d operations in %v", len(st.ops), time.Since(start).Round(time.Millisecond))
}

// createPools creates the pools of all generations, of which the first is open.
func (st *storm) createPools(t testing.TB) [][]*api.IPPool {
	t.Helper()
	pools := make([][]*api.IPPool, st.target/generation)
	for i := range pools {
		pools[i] = []*api.IPPool{pool(i, false), pool(i, true)}
		for _, p := range pools[i] {
			p.Spec.Disabled = i > 0
			st.create(t, p)
		}
		st.pools = append(st.pools, pools[i]...)
	}
	return pools
}

// accompany runs the observer and the agents until stop is called, which returns when they have ended.
func (st *storm) accompany(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() {
		if err := st.watch(ctx); err != nil {
			st.blame("watch the blocks: %v", err)
		}
	})
	if _, ok := st.datastore.(*kube); ok { // there are no agents elsewhere
		beside.Go(func() {
			if err := st.agents(ctx); err != nil {
				st.blame("write facts: %v", err)
			}
		})
	}
	return func() { cancel(); beside.Wait() }
}

// checkStrength fails the test if the storm was too weak to prove anything.
func (st *storm) checkStrength(t testing.TB) {
	t.Helper()
	if killed := st.count["killed ADD"] + st.count["killed DEL"]; float64(killed) < float64(st.target)*st.kills/3 {
		t.Errorf("only %d processes were killed", killed)
	}
	if st.count[looksAtBorrowed] == 0 && !st.outages {
		t.Error("no node has borrowed an address")
	}
}

const looksAtBorrowed = "looks at borrowed addresses"

func (st *storm) aftermath(ctx context.Context, t *testing.T) error {
	if !st.outages {
		if _, err := st.audit(ctx, "with sandboxes"); err != nil {
			return err
		}
	}
	// The agents are gone: what DELs have put down in the journal, GC and the DELs of mend finish.
	err := errors.Join(st.dismissAgents(), st.look(ctx))
	for i, n := range st.nodes {
		if i%2 == 1 {
			err = errors.Join(err, st.reboot(n))
		}
	}
	if err := errors.Join(err, st.drain(ctx), st.mend(ctx), st.look(ctx)); err != nil {
		return err
	}
	all, err := st.audit(ctx, "without sandboxes")
	if err != nil {
		return err
	}
	st.checkNodes(t)
	t.Logf("%d blocks, %d claims, of which %d are not confirmed", len(all.blocks.Items), len(all.affinities.Items), len(all.unconfirmed()))
	for _, a := range all.unconfirmed() {
		if err := st.complete(ctx, a); err != nil {
			return err
		}
	}
	_, err = st.audit(ctx, "after the claims were completed")
	return err
}

// complete checks that a claim which a process has left behind is no obstacle: as soon as its node needs the block, it gets
// it, or gives it up because somebody else has it.
func (st *storm) complete(ctx context.Context, a api.BlockAffinity) error {
	cidr := netip.MustParsePrefix(a.Spec.CIDR)
	for _, p := range st.pools {
		of := netip.MustParsePrefix(p.Spec.CIDR)
		if err := st.setDisabled(ctx, p, of.Addr().Is6() == cidr.Addr().Is6() && !of.Overlaps(cidr)); err != nil {
			return err
		}
	}
	n := st.nodes[slices.IndexFunc(st.nodes, func(n *node) bool { return n.name == a.Spec.Node })]
	k := st.calm()
	var used []*sandbox
	defer func() {
		for _, s := range used {
			if err := k.finish(ctx, s); err != nil {
				st.blame("%v", err)
			}
		}
	}()
	for range poolSize {
		s, err := n.pods[0].newSandbox()
		if err != nil {
			return err
		}
		used = append(used, s)
		if ok, err := k.add(s); !ok || err != nil {
			return fmt.Errorf("an ADD that may complete the claim of %s by %s: %w", cidr, n.name, err)
		}
		now := a
		err = st.store.Get(ctx, &now)
		if errors.Is(err, store.ErrNotFound) || err == nil && now.Spec.State == api.AffinityConfirmed {
			return nil
		}
		if err != nil {
			return err
		}
	}
	st.blame("the claim of %s by %s stays %s however many pods the node gets", cidr, n.name, a.Spec.State)
	return nil
}

func (st *storm) summary() string {
	st.mu.Lock()
	defer st.mu.Unlock()
	text := ""
	for _, what := range slices.Sorted(maps.Keys(st.count)) {
		text += fmt.Sprintf("%d %s, ", st.count[what], what)
	}
	return text + fmt.Sprintf("usual times %v", st.usual)
}
