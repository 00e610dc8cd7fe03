package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
)

// churn is many nodes that start and end sandboxes until a number of processes has run.
type churn struct {
	*cluster
	*history
	nodes   []*node
	pools   []*api.IPPool
	kills   float64       // probability that a process is killed
	outages bool          // the datastore has outages: processes may fail without a kill
	only    uint          // the one code with which they fail then; 0: any
	slots   chan struct{} // limits concurrent processes; nil: no limit

	mu      sync.Mutex // guards what follows
	count   map[string]int
	usual   map[string]time.Duration // average duration of each verb without a kill
	target  int
	wrong   []string
	faulted map[string]bool
}

func newChurn(c *cluster, nodes []*node, target int) *churn {
	return &churn{cluster: c, history: newHistory(), nodes: nodes, target: target, kills: 0.45,
		count: map[string]int{}, usual: map[string]time.Duration{}, faulted: map[string]bool{}}
}

// fault records a violation.
func (st *churn) fault(format string, args ...any) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.wrong = append(st.wrong, fmt.Sprintf(format, args...))
}

// faultOnce records a violation once per thing.
func (st *churn) faultOnce(thing, format string, args ...any) {
	st.mu.Lock()
	known := st.faulted[thing]
	st.faulted[thing] = true
	st.mu.Unlock()
	if !known {
		st.fault(format, args...)
	}
}

// report fails the test with all violations.
func (st *churn) report(t testing.TB) {
	t.Helper()
	st.mu.Lock()
	defer st.mu.Unlock()
	for i, w := range st.wrong {
		if i == 20 {
			t.Errorf("and %d more", len(st.wrong)-i)
			break
		}
		t.Error(w)
	}
	if t.Failed() {
		t.Logf("seed %d", *seed)
	}
}

// done returns the number of processes that have run.
func (st *churn) done() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.count["ADD"] + st.count["DEL"]
}

// workers is the number of concurrent kubelet workers per node.
const workers = 2

// run runs until the target is reached. Running sandboxes are kept.
func (st *churn) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, n := range st.nodes {
		idle := make(chan *pod, len(n.pods))
		for _, p := range n.pods {
			idle <- p
		}
		for w := range workers {
			k := &kubelet{churn: st, random: rand.New(rand.NewPCG(*seed, uint64(i*workers+w)))}
			g.Go(func() error { return k.work(ctx, idle) })
		}
	}
	return g.Wait()
}

// drain ends all sandboxes without kills.
func (st *churn) drain(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(16)
	for _, n := range st.nodes {
		for _, p := range n.pods {
			if p.sandbox == nil {
				continue
			}
			k := st.gentle()
			g.Go(func() error { return k.finish(ctx, p.sandbox) })
		}
	}
	return g.Wait()
}

// reboot removes all sandboxes of a node without a DEL, as when a runtime has lost its state, and runs GC.
func (st *churn) reboot(n *node) error {
	var ended []operation
	for _, p := range n.pods {
		if p.sandbox == nil {
			continue
		}
		if err := p.sandbox.end(); err != nil {
			return err
		}
		ended = append(ended, operation{kind: release, handle: p.sandbox.handle(), called: st.now()})
		p.sandbox = nil
	}
	err := n.collect()
	for _, op := range ended {
		op.completed = st.now()
		st.history.add(op)
	}
	return err
}

// kubelet runs plugins for the pods of a node as a kubelet does through its runtime.
type kubelet struct {
	*churn
	random  *rand.Rand
	noKills bool // kills no process
	always  bool // kills every process
}

// gentle returns a kubelet that kills no process.
func (st *churn) gentle() *kubelet {
	return &kubelet{churn: st, random: rand.New(rand.NewPCG(*seed, 0)), noKills: true}
}

func (k *kubelet) chance(p float64) bool { return k.random.Float64() < p }

func (k *kubelet) work(ctx context.Context, idle chan *pod) error {
	for k.done() < k.target && ctx.Err() == nil {
		p := <-idle
		if err := k.attend(ctx, p); err != nil {
			return err
		}
		idle <- p
	}
	return nil
}

// attend does the next action for a pod: ADD, a repeated ADD, or DEL.
func (k *kubelet) attend(ctx context.Context, p *pod) error {
	switch {
	case p.sandbox == nil:
		return k.begin(ctx, p)
	case k.chance(0.2):
		return k.finish(ctx, p.sandbox)
	case k.chance(0.05):
		return k.addAgain(ctx, p.sandbox)
	}
	return nil
}

// begin creates a sandbox and ends it if the ADD fails; sometimes it retries the same container before.
func (k *kubelet) begin(ctx context.Context, p *pod) error {
	s, err := p.newSandbox()
	if err != nil {
		return err
	}
	for {
		ok, err := k.add(s)
		if err != nil {
			return err
		}
		if ok {
			p.sandbox = s
			return nil
		}
		if !k.chance(0.3) {
			return k.finish(ctx, s)
		}
	}
}

// addAgain repeats the ADD of a running sandbox. If that fails the sandbox is ended.
func (k *kubelet) addAgain(ctx context.Context, s *sandbox) error {
	had := s.addrs
	ok, err := k.add(s)
	if err != nil {
		return err
	}
	if !ok {
		return k.finish(ctx, s)
	}
	if !slices.Equal(had, s.addrs) {
		k.fault("%s had %v, and a repeated ADD gave it %v", s.container, had, s.addrs)
	}
	return nil
}

// finish repeats DEL until it succeeds, sometimes once more, and removes the sandbox.
func (k *kubelet) finish(ctx context.Context, s *sandbox) error {
	s.pod.sandbox = nil
	for {
		ok, err := k.del(s)
		if err != nil {
			return err
		}
		if ok && !k.chance(0.1) {
			return s.end()
		}
		if ok {
			continue
		}
		// A kubelet waits, too, for longer.
		select {
		case <-time.After(time.Duration(k.random.Int64N(int64(100 * time.Millisecond)))):
		case <-ctx.Done():
			return fmt.Errorf("end %s: %w", s.container, context.Cause(ctx))
		}
	}
}

// errRefused is the error of a process that failed although it was not killed and the datastore was available. The test
// stops at once, before other failures follow from it.
var errRefused = errors.New("failed without being killed")

func (k *kubelet) add(s *sandbox) (ok bool, err error) {
	a, err := k.call(s, "ADD")
	if err != nil {
		return false, err
	}
	op := operation{kind: assign, handle: s.handle(), called: a.called, completed: a.completed}
	if a.exit != 0 {
		op.unknown = true
		k.history.add(op)
		if !a.killed || k.outages {
			op.kind = release // it may have undone its work
			k.history.add(op)
		}
		return false, nil
	}
	if s.addrs, err = a.addresses(); err != nil {
		return false, err
	}
	op.addrs = s.addrs
	k.history.add(op)
	return true, nil
}

func (k *kubelet) del(s *sandbox) (ok bool, err error) {
	a, err := k.call(s, "DEL")
	if err != nil {
		return false, err
	}
	op := operation{kind: release, handle: s.handle(), called: a.called, completed: a.completed, unknown: a.exit != 0}
	if a.exit == 0 {
		if op.unknown, err = s.journalled(); err != nil {
			return false, err
		}
		op.completed = k.now() // another DEL on the node may have completed the journal's entry since
		k.tally("journalled", op.unknown)
	}
	k.history.add(op)
	return a.exit == 0, nil
}

// tally counts an event if it happened.
func (st *churn) tally(what string, happened bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if happened {
		st.count[what]++
	}
}

// call runs one process, and may kill it.
func (k *kubelet) call(s *sandbox, verb string) (answer, error) {
	k.mu.Lock()
	k.count[verb]++
	usual := k.usual[verb]
	k.mu.Unlock()
	var kill <-chan time.Time
	if !k.noKills && usual > 0 && (k.always || k.chance(k.kills)) {
		kill = time.After(time.Duration(k.random.Int64N(int64(usual))))
	}
	if k.slots != nil {
		k.slots <- struct{}{}
		defer func() { <-k.slots }()
	}
	a, err := s.call(verb, k.history, kill)
	if err != nil {
		return a, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case a.killed:
		k.count["killed "+verb]++
	case a.exit != 0 && (!k.outages || k.only != 0 && a.code() != k.only):
		return a, fmt.Errorf("%s of %s on %s %w: %v", verb, s.container, s.node.name, errRefused, a)
	case a.exit != 0:
		k.count["failed "+verb]++
	default:
		k.usual[verb] = average(usual, a.completed-a.called)
	}
	return a, nil
}

// average returns a moving average.
func average(old, next time.Duration) time.Duration {
	if old == 0 {
		return next
	}
	return old + (next-old)/8
}
