package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/testkit/cnitest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

var (
	moves    = flag.Int("moves", 2, "how often TestMoveUnderLoad moves the objects of a cluster to the other API group")
	clusters = flag.Int("clusters", 1, "how many clusters TestMoveUnderLoad has at once, which mostly wait")
)

const (
	// movePods is how many pods of a node come and go, by workers of their own.
	movePods = 4 * workers
	// movePace is the pause between two ADDs or DELs of the cluster, on a machine that is fast enough: 50 pods per second.
	// Plugins and API server take 51 ms of a processor for a pod (docs/benchmarks.csv, add), so that two processors, which
	// also run the agents, reach 5 to 15. The workers allow 120: each waits 48 ms for a pod where processors are idle.
	movePace = 10 * time.Millisecond
	// moveTime bounds the reactions to a change of the lock, which agents poll every 10 s.
	moveTime = 4 * time.Minute
	// agentPause is the longest pause between two kills of agents.
	agentPause = 3 * time.Second
	// agentAway is how long a killed agent may be away: its plugins use its last facts for 30 s. It is less than the
	// restart time of BGP.
	agentAway = 6 * time.Second
	// tryAgain is CNI's error code after which a runtime retries.
	tryAgain = 11
)

// agentLabels are the labels of the agents' pods.
var agentLabels = map[string]string{"app.kubernetes.io/name": "tortie", "app.kubernetes.io/component": "node"}

// moving is a cluster of three nodes with agents, plugins and controllers, on which pods come and go while its objects
// move between the API groups.
type moving struct {
	*churn
	seed        uint64
	kube        *kube
	kubeconfig  string // of an administrator
	server      *labtest.Server
	plugin      dynamic.Interface // with the rights of plugins
	stores      map[groups.Group]*kubernetes.Store
	agents      []*process // by node
	controllers *controllers
	now         groups.Group // in use

	preceded bool       // the last migration by Calico found a ready ClusterInformation
	alone    sync.Mutex // held while kube-controllers must not be killed

	// settled is held for writing while the objects move: then no group has all of them.
	settled sync.RWMutex
}

// TestMoveUnderLoad moves a cluster's objects between the API groups, there and back, while pods come and go on three
// nodes, and while movers, agents and plugins are killed. No packet between permanent pods is lost. No address is lost
// or has two holders. An ADD fails only with the code after which runtimes retry. In the end both groups have the same
// addresses, and `ipam check` finds nothing.
func TestMoveUnderLoad(t *testing.T) {
	for i := range *clusters {
		t.Run(fmt.Sprint("cluster ", i), func(t *testing.T) {
			t.Parallel()
			moveUnderLoad(t, *seed+uint64(i))
		})
	}
}

func moveUnderLoad(t *testing.T, seed uint64) {
	t.Helper()
	m := newMoving(t, seed)
	defer m.report(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Duration(*moves)*time.Minute)
	defer cancel()
	packets := m.talk(t)
	errtest.Must(t, m.underLoad(ctx, func(ctx context.Context, random *rand.Rand) error {
		for i := range *moves {
			if err := m.move(ctx, t, i, random); err != nil {
				return fmt.Errorf("move %d, from %s: %w", i, m.now, err)
			}
		}
		return nil
	}))
	packets.Intact(t)
	t.Logf("%v: %s", m.history.now().Round(time.Second), m.summary())
	errtest.Must(t, m.verify(ctx))
	m.empty(ctx, t)
	for _, w := range m.check() {
		m.fault("these operations are not linearizable:\n%s", w)
	}
}

// newMoving creates the cluster, with one pod for each node that stays.
func newMoving(t *testing.T, seed uint64) *moving {
	t.Helper()
	server := labtest.NewServerOf(t, groups.V1)
	server.Define(t, groups.V3)
	c := onKubernetes(t, server.Kubeconfig())
	m := &moving{churn: newChurn(c, nil, 0), seed: seed, kube: c.datastore.(*kube), kubeconfig: server.Kubeconfig(), server: server,
		stores: map[groups.Group]*kubernetes.Store{}, now: labtest.Group(t)}
	m.outages, m.only, m.kills = true, tryAgain, 0.05
	for _, in := range groups.All {
		m.stores[in] = c.store.(*kubernetes.Store).In(in)
	}
	c.create(t, &api.IPPool{Meta: api.Meta{Name: "move"}, Spec: api.IPPoolSpec{CIDR: "10.64.0.0/24", BlockSize: 29, NodeSelector: "all()"}})
	lan := netnstest.New(t)
	lan.Run(t, "ip", "link", "add", "br0", "type", "bridge")
	lan.Up(t, "br0")
	for i := range 3 {
		m.addNode(t, lan, i)
	}
	m.controllers = newControllers(t, "controllers", m.kube, programs)
	errtest.Must(t, m.controllers.start())
	m.plugin = newPlugin(t, m.kube, m.nodes[0].name)
	errtest.Must(t, m.followed(t.Context()))
	for _, n := range m.nodes {
		k := m.gentle()
		errtest.Must(t, k.begin(t.Context(), n.pods[0]))
	}
	return m
}

// addNode adds a node, and starts its agent.
func (m *moving) addNode(t *testing.T, lan *netnstest.NS, i int) {
	t.Helper()
	name, address := fmt.Sprint("node-", i), fmt.Sprint("10.250.10.", i+1)
	ns, port := netnstest.New(t), fmt.Sprint("port", i)
	netnstest.Cable(t, ns, "eth0", lan, port)
	lan.Run(t, "ip", "link", "set", port, "master", "br0")
	ns.Addr(t, "eth0", address+"/16")
	ns.Route(t, "0.0.0.0/0", "10.250.0.1", "eth0")
	n := m.newNodeOn(t, cnitest.NewHostIn(t, ns, programs.Dir(t)), name, shape{pods: 1 + movePods, ipam: "calico-ipam"})
	n.ours = append([]string{"/var/lib/calico/tortie/bgp-sessions.json"}, agentFiles...)
	patch := kubernetes.Patch{Status: map[string]any{"addresses": []api.NodeAddress{{Type: "InternalIP", Address: address}}}}
	errtest.Must(t, m.stores[m.now].PatchStatus(t.Context(), &api.Node{Meta: api.Meta{Name: name}}, patch, false))

	_, err := m.kube.core.CoreV1().Pods("kube-system").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "tortie-" + name, Labels: agentLabels},
		Spec:       corev1.PodSpec{NodeName: name, HostNetwork: true, Containers: []corev1.Container{{Name: "node", Image: "none"}}},
	}, metav1.CreateOptions{})
	errtest.Must(t, err)
	token := labtest.OnNode(t, m.kube.admin, agentAccount, name).BearerToken
	n.Write(t, agentKubeconfig, m.kube.kubeconfig(n.reach(t, m.kube.admin.Host), m.kube.admin.CAData, token))
	agent := &process{name: "agent of " + name, bin: cnitest.BinDir + "/node", within: n.Try, env: []string{
		"NODENAME=" + name, "KUBECONFIG=" + agentKubeconfig, "NAMESPACE=kube-system", "NO_DEFAULT_POOLS=true", "IP=" + address, "IP6=none",
	}}
	agent.endWith(t)
	m.nodes, m.agents = append(m.nodes, n), append(m.agents, agent)
	errtest.Must(t, agent.start())
}

// talk starts streams between the permanent pods.
func (m *moving) talk(t *testing.T) (all meshtest.Traffic) {
	t.Helper()
	var pods []*meshtest.Pod
	for _, n := range m.nodes {
		s := n.pods[0].sandbox
		conn, err := netlinkx.OpenAt(s.ns)
		errtest.Must(t, err)
		t.Cleanup(conn.Close)
		pods = append(pods, &meshtest.Pod{NS: &netnstest.NS{Namespace: s.ns, Conn: conn}, V4: s.addrs[0]})
	}
	for i, p := range pods {
		all = append(all, meshtest.StartTraffic(t, p, pods[(i+1)%len(pods)])...)
	}
	return all
}

// underLoad calls do while pods come and go, agents are killed, and the blocks are checked.
func (m *moving) underLoad(ctx context.Context, do func(context.Context, *rand.Rand) error) error {
	g, ctx := errgroup.WithContext(ctx)
	during, stop := context.WithCancel(ctx)
	pace := time.NewTicker(movePace)
	defer pace.Stop()
	for i, n := range m.nodes {
		for w := range workers {
			k := &kubelet{churn: m.churn, random: m.randomOf(i*workers + w)}
			pods := n.pods[1+w*movePods/workers:][:movePods/workers]
			g.Go(func() error { return m.work(ctx, during, k, pods, pace.C) })
		}
	}
	g.Go(func() error { return m.watchSettled(during) })
	g.Go(func() error { return m.killAgents(during, m.randomOf(100)) })
	err := do(ctx, m.randomOf(101))
	stop()
	return errors.Join(err, g.Wait())
}

func (m *moving) randomOf(number int) *rand.Rand {
	return rand.New(rand.NewPCG(m.seed, uint64(number)))
}

// work starts and ends pods until during ends, one for each tick of pace.
func (m *moving) work(ctx, during context.Context, k *kubelet, pods []*pod, pace <-chan time.Time) error {
	for {
		select {
		case <-during.Done():
			return nil
		case <-pace:
		}
		p := pods[k.random.IntN(len(pods))]
		switch {
		case p.sandbox == nil:
			if err := k.begin(ctx, p); err != nil {
				return err
			}
			m.tally("pods started on "+p.node.name, p.sandbox != nil)
		case k.chance(0.1):
			if err := k.addAgain(ctx, p.sandbox); err != nil {
				return err
			}
		default:
			if err := k.finish(ctx, p.sandbox); err != nil {
				return err
			}
		}
	}
}

// watchSettled checks the blocks repeatedly, but not while they move.
func (m *moving) watchSettled(ctx context.Context) error {
	for ; ctx.Err() == nil; sleep(ctx, watchInterval) {
		m.settled.RLock()
		err := m.look(ctx)
		m.settled.RUnlock()
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// killAgents kills an agent, sometimes with the controllers, and another one once that is back.
func (m *moving) killAgents(ctx context.Context, random *rand.Rand) error {
	for {
		sleep(ctx, time.Duration(random.Int64N(int64(agentPause))))
		if ctx.Err() != nil {
			return nil
		}
		i := random.IntN(len(m.agents))
		if err := m.agents[i].kill(); err != nil {
			return err
		}
		m.inc("kills of agents")
		if random.IntN(10) == 0 {
			if err := m.killControllers(ctx); err != nil {
				return err
			}
		}
		if random.IntN(2) == 0 {
			sleep(ctx, time.Duration(random.Int64N(int64(agentAway))))
		}
		began := time.Now()
		if err := m.agents[i].start(); err != nil {
			return err
		}
		err := m.until(ctx, "agent of "+m.nodes[i].name+" is back", func() (bool, error) {
			f, err := m.nodes[i].readFacts()
			return err == nil && f.AgentReady && f.Written.After(began), nil
		})
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// killControllers kills kube-controllers, unless they must not be killed now, and awaits that the next process has
// found the group.
func (m *moving) killControllers(ctx context.Context) error {
	if !m.alone.TryLock() {
		return nil
	}
	defer m.alone.Unlock()
	if err := errors.Join(m.controllers.kill(), m.controllers.start()); err != nil {
		return err
	}
	m.inc("kills of kube-controllers")
	if err := m.until(ctx, "kube-controllers are back", m.controllers.synced); ctx.Err() == nil {
		return err
	}
	return nil
}

func (m *moving) inc(what string) { m.tally(what, true) }

// until polls until so returns true. Its error contains what.
func (m *moving) until(ctx context.Context, what string, so func() (bool, error)) error {
	for end := time.Now().Add(moveTime); ; sleep(ctx, 50*time.Millisecond) {
		ok, err := so()
		switch {
		case ok && err == nil:
			return nil
		case err != nil:
			return fmt.Errorf("await that %s: %w", what, err)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Now().After(end):
			return fmt.Errorf("not within %v: %s", moveTime, what)
		}
	}
}

func (n *node) readFacts() (f *facts.Facts, err error) {
	err = n.Try(func() (err error) {
		f, err = facts.Read(facts.DefaultFile, n.name, time.Now())
		return err
	})
	return f, err
}

// followed waits until all agents use the group in use.
func (m *moving) followed(ctx context.Context) error { return m.seen(ctx, true) }

// seen waits until all agents are in the group in use, and take it for ready, or for locked.
func (m *moving) seen(ctx context.Context, ready bool) error {
	for _, n := range m.nodes {
		err := m.until(ctx, fmt.Sprintf("agent of %s is in %s, and that is ready: %v", n.name, m.now, ready), func() (bool, error) {
			f, err := n.readFacts()
			return err == nil && f.AgentReady && f.DatastoreReady == ready && !f.Moving && f.Group == m.now, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// started waits until a pod has started on each node since the call.
func (m *moving) started(ctx context.Context) error {
	count := func() (all []int) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, n := range m.nodes {
			all = append(all, m.count["pods started on "+n.name])
		}
		return all
	}
	before := count()
	return m.until(ctx, "pods start on all nodes", func() (bool, error) {
		return greater(count(), before), nil
	})
}

// greater reports whether each number is greater than before.
func greater(now, before []int) bool {
	for i := range now {
		if now[i] <= before[i] {
			return false
		}
	}
	return true
}

// move moves the objects to the other group. It returns once pods start there on all nodes, and the previous group is
// empty, ready for the return.
func (m *moving) move(ctx context.Context, t *testing.T, number int, random *rand.Rand) error {
	m.settled.Lock()
	defer m.settled.Unlock()
	by := m.byTool
	calicos := m.now == groups.V1 && number%4 < 2
	if calicos {
		by = m.byCalico
	}
	if err := by(ctx, random); err != nil {
		return err
	}
	m.arrive()
	// As soon as all agents have followed, the addresses of the pods that run are assigned there.
	if err := errors.Join(m.followed(ctx), m.look(ctx), m.started(ctx)); err != nil {
		return err
	}
	if !calicos || number%8 > 1 {
		return m.toEnd(ctx, random, "finish", "--yes")
	}
	if err := errors.Join(m.removeV1(ctx), m.followed(ctx), m.started(ctx)); err != nil {
		return fmt.Errorf("without definitions of %s: %w", groups.V1, err)
	}
	m.server.Define(t, groups.V1)
	return nil
}

// arrive makes the test use the other group from now on.
func (m *moving) arrive() {
	m.now = m.now.Other()
	m.store = m.stores[m.now]
	m.inc("moves to " + string(m.now))
}

// verify compares both groups with the pods that run, and after a last move both with each other.
func (m *moving) verify(ctx context.Context) error {
	if err := m.settle(ctx); err != nil {
		return err
	}
	before := m.now
	if err := m.byTool(ctx, nil); err != nil {
		return err
	}
	m.arrive()
	if err := m.followed(ctx); err != nil {
		return err
	}
	for _, in := range []groups.Group{before, m.now} {
		m.store = m.stores[in]
		if err := errors.Join(m.look(ctx), m.clean(ctx, in)); err != nil {
			return err
		}
		if _, err := m.audit(ctx, "in "+string(in)); err != nil {
			return err
		}
	}
	output, code, err := m.controllers.tool(ctx, "check", "-again", "0")
	if err == nil && code != 0 {
		err = fmt.Errorf("ipam check: exit code %d: %s", code, tail(output, 2000))
	}
	return err
}

// settle waits until the agents have completed the entries of all journals, and an audit finds nothing.
func (m *moving) settle(ctx context.Context) error {
	for _, n := range m.nodes {
		err := m.until(ctx, "journal of "+n.name+" is empty", func() (empty bool, err error) {
			err = n.Try(func() error {
				entries, err := os.ReadDir(journalPath)
				empty = len(entries) == 0
				if errors.Is(err, os.ErrNotExist) {
					return nil
				}
				return err
			})
			return empty, err
		})
		if err != nil {
			return err
		}
	}
	return m.clean(ctx, m.now)
}

// clean waits until an audit of a group finds nothing.
func (m *moving) clean(ctx context.Context, in groups.Group) error {
	found := ""
	err := m.until(ctx, "audit of "+string(in)+" finds nothing", func() (bool, error) {
		view, err := inventory.Read(ctx, inventory.Source{IPAM: m.stores[in], Cluster: m.stores[in]}, time.Now)
		if err != nil {
			return false, err
		}
		found = clean(&view, audit.Check(&view))
		return found == "", nil
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, found)
	}
	return nil
}

// empty ends all pods: nothing is left of them.
func (m *moving) empty(ctx context.Context, t *testing.T) {
	t.Helper()
	errtest.Must(t, errors.Join(m.drain(ctx), m.settle(ctx)))
	_, err := m.audit(ctx, "without pods")
	errtest.Must(t, err)
	for _, agent := range m.agents {
		errtest.Must(t, agent.kill())
	}
	m.checkNodes(t)
}
