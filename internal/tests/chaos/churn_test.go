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
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

var (
	// processes is the minimum number of ADD and DEL on Kubernetes. The first tier has a second generation of pools, too.
	processes = tier.Size(400, 2000)
	// processesOnEtcd is that number on etcd, where the IPAM code is the same.
	processesOnEtcd = tier.Size(400, 600)
)

const (
	// processesInOutages is that number with outages of the datastore.
	processesInOutages = 600
	outages            = 4
	// absence is the minimum outage of the datastore: some plugins reach their deadline in it.
	absence = 500 * time.Millisecond
	// generation is the number of processes per pool. Then the next pool replaces it, in which nodes race for their first
	// blocks.
	generation = 300
	// watchInterval is the interval at which an observer reads all blocks.
	watchInterval = 250 * time.Millisecond
)

// newNodes creates the nodes. Half of them have more pods than their share of the pool has addresses, so that they
// borrow. Two assign both families, two run calico-ipam under another name, by the protocol of any IPAM plugin.
func (c *cluster) newNodes(t testing.TB) []*node {
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

// poolSize is the number of addresses of a pool, in 8 blocks.
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

// setDisabled sets spec.disabled of a pool. It retries while the API server is down.
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

// rotate replaces one pool by the next as processes run.
func (st *churn) rotate(ctx context.Context, pools [][]*api.IPPool) error {
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

// watch reads all blocks repeatedly, until ctx ends. Each list shows the state at one moment between its call and its
// return.
func (st *churn) watch(ctx context.Context) error {
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

func (st *churn) look(ctx context.Context) error {
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
			st.faultOnce(handle, "at %v, %s holds %s and %s", op.completed.Round(time.Millisecond), handle, a, other)
		}
		first[f] = a
	}
	for i := range blocks.Items {
		for _, fault := range blockFaults(&blocks.Items[i]) {
			st.faultOnce(blocks.Items[i].Name, "at %v, block %s: %s", op.completed.Round(time.Millisecond), blocks.Items[i].Name, fault)
		}
	}
	return nil
}

// borrowed reports whether an address is assigned on another node than its block's.
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

// live returns the addresses of the running sandboxes.
func (st *churn) live() map[string][]netip.Addr {
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

// audit records the violations in the datastore while no process runs.
func (st *churn) audit(ctx context.Context, when string) (*contents, error) {
	all, err := st.contents(ctx)
	if err != nil {
		return nil, err
	}
	for _, w := range all.audit(st.live()) {
		st.fault("%s: %s", when, w)
	}
	return all, nil
}

// repair runs one ADD and DEL on every node, without kills.
func (st *churn) repair(_ context.Context) error {
	for _, n := range st.nodes {
		k := st.gentle()
		s, err := n.pods[0].newSandbox()
		if err != nil {
			return err
		}
		for _, verb := range []string{"ADD", "DEL"} {
			if a, err := k.call(s, verb); err != nil || a.exit != 0 {
				return fmt.Errorf("%s on %s after the churn: %v, %w", verb, n.name, a, err)
			}
		}
		if err := s.end(); err != nil {
			return err
		}
	}
	return nil
}

// checkNodes records leftovers of deleted sandboxes on nodes and in pods' status.
func (st *churn) checkNodes(t testing.TB) {
	t.Helper()
	for _, n := range st.nodes {
		for _, l := range n.leftovers(t) {
			st.fault("left over: %s", l)
		}
		for _, p := range n.pods {
			if ip := st.reported(t, p); ip != "" {
				st.fault("left over: pod %s reports %s", p.name, ip)
			}
		}
	}
}

// TestKilledPlugins: with plugins killed at any time, no address is assigned to two containers, and the leftovers of
// killed plugins are removed once their containers have seen a DEL or a GC.
func TestKilledPlugins(t *testing.T) {
	t.Run("kubernetes", func(t *testing.T) {
		c := shared(t)
		met := c.countConflicts(t)
		newChurn(c, c.newNodes(t), processes).runChecked(t, nil)
		t.Logf("%d conflicts", met())
	})
	t.Run("etcdv3", func(t *testing.T) {
		c := onEtcd(t, labtest.NewEtcd(t, true))
		newChurn(c, c.newNodes(t), processesOnEtcd).runChecked(t, nil)
	})
}

// TestKilledDatastore is TestKilledPlugins with outages of the datastore.
func TestKilledDatastore(t *testing.T) {
	tier.All(t)
	t.Run("kubernetes", func(t *testing.T) {
		server := labtest.NewServer(t)
		c := onKubernetes(t, server.Kubeconfig())
		newChurn(c, c.newNodes(t), processesInOutages).runChecked(t, server)
	})
	t.Run("etcdv3", func(t *testing.T) {
		server := labtest.NewEtcd(t, true)
		c := onEtcd(t, server)
		newChurn(c, c.newNodes(t), processesInOutages).runChecked(t, server)
	})
}

// killable is a server that can be killed and restarted.
type killable interface {
	Kill() error
	Start() error
}

// killServer kills the server at random times, and restarts it after a pause.
func (st *churn) killServer(ctx context.Context, server killable) error {
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
		sleep(ctx, absence)
		if err := server.Start(); err != nil {
			return err
		}
	}
	return nil
}

// runChecked runs the churn, with outages of the server if it is not nil, and checks everything during and after it.
func (st *churn) runChecked(t *testing.T, server killable) {
	t.Helper()
	pools := st.createPools(t)
	if server != nil {
		st.outages, st.kills = true, st.kills/2
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	defer st.report(t)
	g, churning := errgroup.WithContext(ctx)
	stop := st.startObservers(churning)
	g.Go(func() error { return st.run(churning) })
	g.Go(func() error { return st.rotate(churning, pools) })
	if server != nil {
		g.Go(func() error { return st.killServer(churning, server) })
	}
	err := g.Wait()
	stop()
	errtest.Must(t, err)
	t.Logf("%v: %v", st.now().Round(time.Second), st.summary())
	st.checkStrength(t)
	errtest.Must(t, st.checkAfter(ctx, t))
	start := time.Now()
	for _, w := range st.check() {
		st.fault("these operations are not linearizable:\n%s", w)
	}
	t.Logf("checked %d operations in %v", len(st.ops), time.Since(start).Round(time.Millisecond))
}

// createPools creates the pools of all generations. Only the first is enabled.
func (st *churn) createPools(t testing.TB) [][]*api.IPPool {
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

// startObservers runs the observer and the agents until stop is called, which returns when they have ended.
func (st *churn) startObservers(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() {
		if err := st.watch(ctx); err != nil {
			st.fault("watch the blocks: %v", err)
		}
	})
	if _, ok := st.datastore.(*kube); ok { // agents need Kubernetes
		beside.Go(func() {
			if err := st.agents(ctx); err != nil {
				st.fault("write facts: %v", err)
			}
		})
	}
	return func() { cancel(); beside.Wait() }
}

// checkStrength fails the test if the churn did not cover enough.
func (st *churn) checkStrength(t testing.TB) {
	t.Helper()
	if killed := st.count["killed ADD"] + st.count["killed DEL"]; float64(killed) < float64(st.target)*st.kills/3 {
		t.Errorf("only %d processes were killed", killed)
	}
	if st.count[looksAtBorrowed] == 0 && !st.outages {
		t.Error("no node borrowed an address")
	}
}

const looksAtBorrowed = "looks at borrowed addresses"

func (st *churn) checkAfter(ctx context.Context, t *testing.T) error {
	if !st.outages {
		if _, err := st.audit(ctx, "with sandboxes"); err != nil {
			return err
		}
	}
	// Without agents, GC and the DELs of repair complete the journal's entries.
	err := errors.Join(st.removeFacts(), st.look(ctx))
	for i, n := range st.nodes {
		if i%2 == 1 {
			err = errors.Join(err, st.reboot(n))
		}
	}
	if err := errors.Join(err, st.drain(ctx), st.repair(ctx), st.look(ctx)); err != nil {
		return err
	}
	all, err := st.audit(ctx, "without sandboxes")
	if err != nil {
		return err
	}
	st.checkNodes(t)
	t.Logf("%d blocks, %d affinities, of which %d are not confirmed", len(all.blocks.Items), len(all.affinities.Items), len(all.unconfirmed()))
	for _, a := range all.unconfirmed() {
		if err := st.complete(ctx, a); err != nil {
			return err
		}
	}
	_, err = st.audit(ctx, "after the claims were completed")
	return err
}

// complete checks that an affinity left by a killed process is no obstacle: when its node needs the block, it confirms
// the affinity, or deletes it because another node owns the block.
func (st *churn) complete(ctx context.Context, a api.BlockAffinity) error {
	cidr := netip.MustParsePrefix(a.Spec.CIDR)
	for _, p := range st.pools {
		of := netip.MustParsePrefix(p.Spec.CIDR)
		if err := st.setDisabled(ctx, p, of.Addr().Is6() == cidr.Addr().Is6() && !of.Overlaps(cidr)); err != nil {
			return err
		}
	}
	n := st.nodes[slices.IndexFunc(st.nodes, func(n *node) bool { return n.name == a.Spec.Node })]
	k := st.gentle()
	var used []*sandbox
	defer func() {
		for _, s := range used {
			if err := k.finish(ctx, s); err != nil {
				st.fault("%v", err)
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
			return fmt.Errorf("ADD to confirm the affinity of %s to %s: %w", cidr, n.name, err)
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
	st.fault("the affinity of %s to %s stays %s, although the node needs blocks", cidr, n.name, a.Spec.State)
	return nil
}

func (st *churn) summary() string {
	st.mu.Lock()
	defer st.mu.Unlock()
	text := ""
	for _, what := range slices.Sorted(maps.Keys(st.count)) {
		text += fmt.Sprintf("%d %s, ", st.count[what], what)
	}
	return text + fmt.Sprintf("usual times %v", st.usual)
}
