package mesh

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
	"github.com/tortie-net/tortie/internal/testkit/usagetest"
)

// thirty is the number of agents in the large mesh, including the late one.
const thirty = 30

// large is a converged full mesh of agents, with a monitor on each node.
type large struct {
	*meshtest.Cluster
	nodes    []*meshtest.Node
	monitors []*monitor
}

// newLarge creates nodes with a block each. The last node has no block, and its agent does not run yet.
func newLarge(t testing.TB, size int) *large {
	t.Helper()
	l := &large{Cluster: meshtest.NewCluster(t)}
	l.Create(t, meshtest.NewPool("pods", "10.90.0.0/16", api.EncapNever))
	for i := range size {
		n := l.NewNode(t, fmt.Sprintf("node-%d", 10+i), 0, 10+i)
		l.nodes = append(l.nodes, n)
		if i < size-1 {
			n.Claim(t, blockOf(n))
		}
		l.monitors = append(l.monitors, listen(t, n))
	}
	begun := time.Now()
	meshtest.Start(t, l.nodes[:size-1]...)
	meshtest.Timed(t, fmt.Sprintf("%d agents start at once: all are ready", size-1), begun)
	l.complete(t, l.nodes[:size-1])
	meshtest.Timed(t, fmt.Sprintf("%d agents start at once: all have sessions with all, know all, and hold nothing of before", size-1), begun)
	return l
}

func blockOf(n *meshtest.Node) string { return fmt.Sprintf("10.90.%d.0/26", n.Prefix.Addr().As4()[3]) }

// complete waits until every node has a session with every other, and a route to its block.
func (l *large) complete(t testing.TB, nodes []*meshtest.Node) {
	t.Helper()
	meshtest.Settle(t, nodes...)
	for _, n := range nodes {
		meshtest.Eventually(t, func() error {
			for _, other := range nodes {
				if other == n {
					continue
				}
				if err := n.Has(t, fmt.Sprintf("%s via %s dev eth0", blockOf(other), other.Prefix.Addr())); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// spread returns the time until each of the other nodes had a route.
func (l *large) spread(t testing.TB, since time.Time, owner *meshtest.Node, dst string, limit time.Duration) (all []time.Duration) {
	t.Helper()
	for i, e := range l.monitors {
		if l.nodes[i] == owner {
			continue
		}
		meshtest.Within(t, limit, func() error {
			at, err := e.made(dst)
			if err == nil {
				all = append(all, at.Sub(since))
			}
			return err
		})
	}
	slices.Sort(all)
	return all
}

func describe(all []time.Duration) string {
	at := func(q float64) time.Duration { return all[int(q*float64(len(all)-1))].Round(100 * time.Microsecond) }
	return fmt.Sprintf("p50 %v, p95 %v, max %v of %d", at(0.5), at(0.95), at(1), len(all))
}

// noFullPass is less than the time between two periodic passes: a change within it was caused by an event.
const noFullPass = 20 * time.Second

// join starts the last node's agent and, once the node is ready, confirms its first block. It returns the times until
// the other kernels had the route.
func (l *large) join(t testing.TB) []time.Duration {
	t.Helper()
	late := l.nodes[len(l.nodes)-1]
	begun := time.Now()
	meshtest.Start(t, late)
	meshtest.Timed(t, "a new node's agent starts: ready", begun)
	confirmed := time.Now()
	late.Claim(t, blockOf(late))
	return l.spread(t, confirmed, late, blockOf(late), noFullPass)
}

// Thirty agents in a full mesh: all have all routes, a node that joins late is learned at once, and then no kernel and
// no object is written. It does not run in parallel: each kernel knows the others' addresses, and all namespaces of a
// machine share a table of 1,024 neighbours (net.ipv4.neigh.default.gc_thresh3), which these and another test's nodes
// would fill. Then packets are lost.
func TestThirty(t *testing.T) {
	tier.All(t)
	l := newLarge(t, thirty)
	joined := l.join(t)
	t.Logf("first block of a new node, route in the other kernels after: %s", describe(joined))
	meshtest.RecordTimes("a new node's first block, until it is a route in another kernel", joined...)
	l.complete(t, l.nodes)

	for i := range meshtest.Repeat(5, 50) {
		owner, dst := l.nodes[i*7%thirty], fmt.Sprintf("10.90.%d.%d/26", 100+i/4, 64*(i%4))
		confirmed := time.Now()
		owner.Claim(t, dst)
		known := l.spread(t, confirmed, owner, dst, noFullPass)
		meshtest.Within(t, noFullPass, func() error { // unreachable, in the owner's kernel: it may come last
			_, err := l.monitors[i*7%thirty].made(dst)
			return err
		})
		t.Logf("block of %s, route in the other kernels after: %s", owner.Name, describe(known))
		meshtest.RecordTimes("a block in steady state, until it is a route in another kernel", known...)
	}
	for _, n := range l.nodes {
		n.Running(t)
	}
	l.quiet(t, time.Minute)
}

// quiet fails the test if a kernel or the API server is written within span.
func (l *large) quiet(t testing.TB, span time.Duration) {
	t.Helper()
	for _, e := range l.monitors {
		e.reset()
	}
	asked, used := l.Requests(t), make([]usagetest.Usage, len(l.nodes))
	for i, n := range l.nodes {
		used[i] = n.Usage(t)
	}
	if asked["POST blockaffinities"] == 0 {
		t.Errorf("the API server counts no writes, although there were some: %s", counts(asked))
	}
	time.Sleep(span) //nolint:forbidigo // two whole passes of an agent
	after := l.Requests(t)
	for i, e := range l.monitors {
		if events, err := e.all(); err != nil || len(events) > 0 {
			t.Errorf("%s in %v: %s, %v; want nothing", l.nodes[i].Name, span, counts(events), err)
		}
	}
	if w := meshtest.Writes(asked, after); len(w) > 0 {
		t.Errorf("writes to the API server in %v: %s; want none", span, counts(w))
	}
	var cpu []time.Duration
	var rss, anonymous []int
	for i, n := range l.nodes {
		now := n.Usage(t)
		cpu, rss, anonymous = append(cpu, now.CPU-used[i].CPU), append(rss, now.RSS), append(anonymous, now.Anonymous)
	}
	slices.Sort(cpu)
	slices.Sort(rss)
	slices.Sort(anonymous)
	for i := range cpu {
		meshtest.Record("an agent at rest: processor time per second", "ms", float64(cpu[i].Milliseconds())/span.Seconds())
		meshtest.Record(fmt.Sprintf("memory | full mesh, all peers answer | %d | memory", thirty), "MiB", float64(rss[i])/1024)
		meshtest.Record("an agent at rest: memory of its own (anonymous)", "MiB", float64(anonymous[i])/1024)
	}
	half := len(cpu) / 2
	t.Logf("%d agents in %v: CPU per agent median %v, largest %v; RSS median %d KiB, largest %d, of which anonymous %d and %d",
		len(cpu), span, cpu[half], cpu[len(cpu)-1], rss[half], rss[len(rss)-1], anonymous[half], anonymous[len(anonymous)-1])
}
