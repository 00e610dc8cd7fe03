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

// storm is many nodes that start and end sandboxes until enough has happened.
type storm struct {
	*cluster
	*history
	nodes   []*node
	pools   []*api.IPPool
	kills   float64       // share of processes that are to be killed
	outages bool          // the datastore may be away: what is not killed may fail
	slots   chan struct{} // one for each process that may run at the same time; nil: as many as there are

	mu     sync.Mutex // guards what follows
	count  map[string]int
	usual  map[string]time.Duration // how long each verb takes, when nobody kills it
	target int
	wrong  []string
	blamed map[string]bool
}

func newStorm(c *cluster, nodes []*node, target int) *storm {
	return &storm{cluster: c, history: newHistory(), nodes: nodes, target: target, kills: 0.45,
		count: map[string]int{}, usual: map[string]time.Duration{}, blamed: map[string]bool{}}
}

// blame notes something that must not be.
func (st *storm) blame(format string, args ...any) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.wrong = append(st.wrong, fmt.Sprintf(format, args...))
}

// blameOnce notes what would be seen again and again of one thing.
func (st *storm) blameOnce(thing, format string, args ...any) {
	st.mu.Lock()
	known := st.blamed[thing]
	st.blamed[thing] = true
	st.mu.Unlock()
	if !known {
		st.blame(format, args...)
	}
}

// report fails the test with all that was wrong.
func (st *storm) report(t testing.TB) {
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

// done says how many processes have run.
func (st *storm) done() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.count["ADD"] + st.count["DEL"]
}

// workers is how many kubelets work on one node at the same time.
const workers = 2

// blow runs until the target is reached. Sandboxes that run then go on running.
func (st *storm) blow(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, n := range st.nodes {
		idle := make(chan *pod, len(n.pods))
		for _, p := range n.pods {
			idle <- p
		}
		for w := range workers {
			k := &kubelet{storm: st, random: rand.New(rand.NewPCG(*seed, uint64(i*workers+w)))}
			g.Go(func() error { return k.work(ctx, idle) })
		}
	}
	return g.Wait()
}

// drain ends all sandboxes, without killing anybody any more.
func (st *storm) drain(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(16)
	for _, n := range st.nodes {
		for _, p := range n.pods {
			if p.sandbox == nil {
				continue
			}
			k := st.calm()
			g.Go(func() error { return k.finish(ctx, p.sandbox) })
		}
	}
	return g.Wait()
}

// reboot takes all sandboxes of a node away without a DEL, as when a runtime has lost its memory, and has GC collect what they
// had.
func (st *storm) reboot(n *node) error {
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

// kubelet does to the pods of a node what a kubelet does through its runtime.
type kubelet struct {
	*storm
	random   *rand.Rand
	peaceful bool // it kills nobody
	always   bool // it kills everybody
}

// calm returns a kubelet that kills nobody.
func (st *storm) calm() *kubelet {
	return &kubelet{storm: st, random: rand.New(rand.NewPCG(*seed, 0)), peaceful: true}
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

// attend does the next thing to a pod: it gets a sandbox, keeps it, or loses it.
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

// begin makes a sandbox and ends it if the ADD fails; sometimes the runtime tries the same container once more before.
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

// addAgain repeats the ADD of a sandbox that runs. If that fails the sandbox is ended.
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
		k.blame("%s had %v, and a repeated ADD gave it %v", s.container, had, s.addrs)
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
		// The kubelet waits as well, for longer.
		select {
		case <-time.After(time.Duration(k.random.Int64N(int64(100 * time.Millisecond)))):
		case <-ctx.Done():
			return fmt.Errorf("end %s: %w", s.container, context.Cause(ctx))
		}
	}
}

// errRefused: a process failed that nobody killed, with the datastore there. Going on would hide it among its consequences.
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
			op.kind = release // it has tried, or began, to undo what it did
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
		op.completed = k.now() // another DEL of the node may have finished the entry since
		k.tally("journalled", op.unknown)
	}
	k.history.add(op)
	return a.exit == 0, nil
}

// tally counts what happened.
func (st *storm) tally(what string, happened bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if happened {
		st.count[what]++
	}
}

// call runs one process, and kills it perhaps.
func (k *kubelet) call(s *sandbox, verb string) (answer, error) {
	k.mu.Lock()
	k.count[verb]++
	usual := k.usual[verb]
	k.mu.Unlock()
	var kill <-chan time.Time
	if !k.peaceful && usual > 0 && (k.always || k.chance(k.kills)) {
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
	case a.exit != 0 && !k.outages:
		return a, fmt.Errorf("%s of %s on %s %w: %v", verb, s.container, s.node.name, errRefused, a)
	case a.exit != 0:
		k.count["failed "+verb]++
	default:
		k.usual[verb] = average(usual, a.completed-a.called)
	}
	return a, nil
}

// average follows the last few values.
func average(old, next time.Duration) time.Duration {
	if old == 0 {
		return next
	}
	return old + (next-old)/8
}
