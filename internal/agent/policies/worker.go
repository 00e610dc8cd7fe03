package policies

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/policy"
)

const (
	// coalesce is the least time between two passes: the first event after a silence is served at once, events of a burst
	// together. After a longer pass the pause is as long as the pass: otherwise a user who may change pods or policies of
	// a namespace could keep a processor busy.
	coalesce = 10 * time.Millisecond
	// comparePause is how often the kernel's rules are compared with the Ruleset without a known change.
	comparePause = 180 * time.Second
	// unusedTime bounds how long programs without pods stay.
	unusedTime = time.Minute
	// passTime bounds one pass.
	passTime = 30 * time.Second
	// firstRetry and mostRetry bound the pauses after passes that failed.
	firstRetry = 50 * time.Millisecond
	mostRetry  = 10 * time.Second
	// firstProbe and mostProbe bound the pauses between probes of the kernel that had no result.
	firstProbe = time.Second
	mostProbe  = time.Minute
)

// Feed delivers the API server's state; cluster.PolicyFeed implements it.
type Feed interface {
	Run(ctx context.Context) error
	Changed() <-chan struct{}
	Take() cluster.PolicyView
	Want(interest policy.Interest)
	SetGround(g cluster.Ground)
}

// Engine programs a Ruleset; netpol.Engine implements it.
type Engine interface {
	Probe(ctx context.Context) error
	Sync(ctx context.Context, rules *policy.Ruleset, touched []netip.Addr) (netpol.Stats, error)
	Remove(ctx context.Context) error
	End(ctx context.Context, flows []netlinkx.Flow) error
	Events(ctx context.Context) (<-chan struct{}, error)
}

// Options are the parts and settings of a Worker.
type Options struct {
	Mode config.PolicyMode
	// KeepConnections: see config.Node.
	KeepConnections bool
	// FelixGoes: leftover rules of Felix are removed once ours are in force, so they do not count as another engine.
	FelixGoes bool
	// ConfDir is the runtime's directory of network configurations, which identify other engines. It may be missing.
	ConfDir string
	Feed    Feed
	Engine  Engine
	Kernel  *netlinkx.Conn
	Table   *nft.Table // to find Felix's rules
	Log     *slog.Logger
	// Drops returns denied packets; nil: none are logged.
	Drops DropsOf
	// Flows records connections; nil: they are not recorded.
	Flows Flows
	// APIServer keeps policies of host endpoints from locking the node out; nil: nothing does.
	APIServer *APIServer
	// Flowtable holds the connections with packets that bypass the rules; nil: there is none.
	Flowtable Flowtable
	// Decided, if set, is called with true when another engine enforces or enforcement is off, on each change.
	Decided func(stayOut bool)
	// Repaired, if set, is called after another program's change of the table was undone.
	Repaired func()
}

// Flowtable is flowtable.Syncer.
type Flowtable interface {
	// Await leaves the flowtable unchanged until Permit is called.
	Await()
	Permit(ctx context.Context, may bool) error
}

// Flows receives what is in force, and denied packets; flows.Recorder implements it.
type Flows interface {
	Run(ctx context.Context) error
	InForce(selection *policy.Selection, pods map[policy.PodKey]*policy.Pod, pending *policy.Selection, stagedBy map[policy.ID]policy.ID)
	Replace(pods map[policy.PodKey]*policy.Pod)
	NotInForce()
	Denied(d netpol.Drop)
}

// Worker keeps the policies of a node in force. Its reports are safe for concurrent use.
type Worker struct {
	Options
	sweepWanted chan struct{}
	hostChanged chan struct{}
	onTrial     chan struct{}
	placed      chan struct{}
	denials     denials

	mu       sync.RWMutex // guards the fields up to prefix
	inForce  compiled
	seen     Seen
	host     *policy.HostRules // nil: not known yet
	handling *policy.Handling  // likewise
	prefix   string            // of log lines for Log rules

	// The following fields are for the goroutine of Run.
	compiled   compiled // should be in force
	decision   decision
	routes     localRoutes
	model      model
	interest   policy.Interest // of the policies in the model
	todo       todo
	noAccounts time.Time // see awaitsAccounts
	// expires is when to compile anew, as policies have waited long enough for a list, or programs for a pod; zero: never.
	expires  time.Time
	waiting  time.Time // since when a change waits to be programmed
	compared time.Time // when everything was compared last
	full     time.Duration
	ended    time.Time // of the last pass
	probed   bool      // Probe had a result
	probeDue time.Time // when to probe again
	probing  wait.Backoff
	lasted   time.Duration
	synced   bool              // a Ruleset of this process is in the kernel
	removed  bool              // our rules are removed, as another engine enforces
	whole    time.Time         // when the model was first complete, while nothing is synced
	inPlace  bool              // as last signalled by Placed
	lacks    error             // what the kernel lacks, or why that is not known
	refused  error             // why programs are not in force, and their pods closed
	noReject bool              // the kernel cannot reject packets
	shown    *policy.Selection // last passed to Flows
	logged   map[string]bool   // problems, by the last report
	forbids  bool              // connections may have been forbidden since the last signal on sweepWanted

	feedEvents, routeEvents, addressEvents, tableEvents <-chan struct{} // nil: not subscribed
}

// compiled is a Ruleset with the policies and the local addresses from which it was made. rules is nil while there is
// none.
type compiled struct {
	rules     *policy.Compiled
	selection *policy.Selection
	routed    routed
	tried
	trial   *trial // nil: no host endpoints, or no guard. mu guards its answers
	back    bool   // the host endpoints have their policies from before the trial
	denying setIDs
}

// denied reports whether an address is in a set that a program denies: its pod may have sent packets before it was
// known.
func (c *compiled) denied(a netip.Addr) bool { return c.denying.anyOf(c.rules.Members[a]) }

// todo is the work of a pass besides the check whether to enforce.
type todo struct{ feed, routes, table, host bool }

var everything = todo{feed: true, routes: true, table: true, host: true}

// New returns a Worker for Run.
func New(o Options) *Worker {
	w := &Worker{Options: o, sweepWanted: make(chan struct{}, 1), hostChanged: make(chan struct{}, 1), onTrial: make(chan struct{}, 1),
		placed: make(chan struct{}, 1), routes: localRoutes{kernel: o.Kernel}, todo: everything, full: wait.Jitter(comparePause),
		probing: wait.Backoff{First: firstProbe, Most: mostProbe}}
	if w.Mode.Enforces() && w.Flowtable != nil {
		w.Flowtable.Await()
	}
	w.seen = Seen{Mode: o.Mode, Keeps: o.KeepConnections, Reason: reasonStarting}
	return w
}

// Run works until ctx ends, and then leaves everything in force.
func (w *Worker) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if w.Mode.Enforces() {
		g.Go(func() error { return w.Feed.Run(ctx) })
		g.Go(func() error { w.sweeps(ctx); return nil })
		g.Go(func() error { w.logDrops(ctx); return nil })
		g.Go(func() error { w.tries(ctx); return nil })
		if w.Flows != nil {
			g.Go(func() error { return w.Flows.Run(ctx) })
		}
		w.feedEvents = w.Feed.Changed()
	}
	g.Go(func() error { w.loop(ctx); return nil })
	return g.Wait()
}

func (w *Worker) loop(ctx context.Context) {
	backoff := wait.Backoff{First: firstRetry, Most: mostRetry}
	for ctx.Err() == nil {
		begun := time.Now()
		err := w.subscribe(ctx)
		if err == nil {
			err = w.pass(ctx, begun)
		}
		w.ended, w.lasted = time.Now(), time.Since(begun)
		if ctx.Err() != nil {
			return
		}
		w.report(err)
		if err != nil {
			w.todo = everything
			wait.Sleep(ctx, backoff.Next())
			continue
		}
		backoff.Reset()
		w.wait(ctx)
	}
}

// pass brings the kernel to the known state.
func (w *Worker) pass(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, passTime)
	defer cancel()
	if err := w.decide(ctx, now); err != nil {
		return err
	}
	if w.decision.rival != (rival{}) {
		return w.stayOut(ctx)
	}
	w.removed = false
	w.probe(ctx, now)
	touched, all, err := w.learn(now)
	if err != nil {
		return err
	}
	if !w.synced && !w.begins(now) {
		return nil // what an earlier agent left stays in force
	}
	w.tell(false)
	return w.apply(ctx, touched, all)
}

// begins reports whether the first Ruleset may be programmed: the model is complete, and either nothing more is missing
// or listTime has passed.
func (w *Worker) begins(now time.Time) bool {
	if !w.model.complete() {
		return false
	}
	if w.whole.IsZero() {
		w.whole = now
	}
	return w.model.since.IsZero() && w.hostKnown() || now.Sub(w.whole) >= listTime
}

// probe finds out what the kernel lacks, before a policy needs it. It is repeated until there is a result.
func (w *Worker) probe(ctx context.Context, now time.Time) {
	if w.probed || now.Before(w.probeDue) {
		return
	}
	w.lacks = w.Engine.Probe(ctx)
	if w.probed = !errors.Is(w.lacks, netpol.ErrNotProbed); !w.probed {
		w.probeDue = now.Add(w.probing.Next())
	}
}

// stayOut removes our rules: without updates they would keep new pods closed. A plugin that does not know of it yet may
// create some again.
func (w *Worker) stayOut(ctx context.Context) error {
	if w.removed = w.removed && !w.todo.table; w.removed {
		w.done()
		return nil
	}
	w.tell(true)
	if err := errors.Join(w.Engine.Remove(ctx), w.permitFlowtable(ctx, true)); err != nil {
		return fmt.Errorf("remove the rules of policies: %w", err)
	}
	w.removed, w.synced, w.model, w.whole = true, false, model{}, time.Time{}
	w.hideFlows()
	w.done()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.compiled, w.inForce = compiled{}, compiled{}
	return nil
}

// learn takes in changes. all: more than the Members of touched may have changed.
func (w *Worker) learn(now time.Time) (touched []netip.Addr, all bool, err error) {
	first := w.compiled.rules == nil
	fresh := w.compiled.routed
	if w.todo.routes || first {
		if fresh, err = w.routes.read(); err != nil {
			return nil, false, err
		}
	}
	hosts, err := w.hostsMoved()
	if err != nil {
		return nil, false, err
	}
	var news news
	if w.todo.feed || first {
		news = w.model.take(w.Feed.Take())
	}
	all = w.todo.table || first
	if w.awaitsAccounts(now) {
		w.compiled.routed = fresh // for compile, which always follows
		return nil, all, nil
	}
	expired := !w.expires.IsZero() && !now.Before(w.expires)
	if news.rerouted = !fresh.equal(w.compiled.routed); !first && !hosts && !news.all && !expired {
		if touched, local, ok := w.update(news, fresh); ok {
			return touched, all || local, nil
		}
	}
	return nil, true, w.compile(fresh, now)
}

// awaitsAccounts reports whether policies newly select pods by labels of service accounts that have not been listed
// yet. The selected pods are then not known, so everything stays unchanged for up to listTime.
func (w *Worker) awaitsAccounts(now time.Time) bool {
	if w.compiled.rules == nil || !w.model.view.AccountsMissing {
		w.noAccounts = time.Time{}
		return false
	}
	if w.noAccounts.IsZero() {
		w.noAccounts = now
	}
	w.expires = w.noAccounts.Add(listTime)
	return now.Before(w.expires)
}

// update applies changes of pods and routes. local: endpoints may have changed, too. ok is false if only compile will
// do: running pods may have to keep policies, and Flows accepts changes of other nodes' pods only.
func (w *Worker) update(n news, fresh routed) (touched []netip.Addr, local, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changed, known, ok := w.model.follow(n, w.compiled.routed, fresh)
	if local = n.own || n.rerouted; !ok || local && (w.Flows != nil || !w.model.since.IsZero()) {
		return nil, true, false
	}
	w.compiled.routed, w.forbids = fresh, known || w.forbids
	if len(changed) == 0 {
		return nil, local, true
	}
	w.showPods(changed)
	rules, before := w.compiled.rules, policy.Ruleset{}
	if local {
		before.Endpoints, before.Closed = maps.Clone(rules.Endpoints), rules.Closed
	}
	if touched, ok = rules.Update(w.model.State, changed); ok && rules.Unused() && w.expires.IsZero() {
		w.expires = time.Now().Add(unusedTime)
	}
	w.forbids = w.forbids || slices.ContainsFunc(touched, w.compiled.denied) || local && endpointsForbid(&before, rules.Endpoints)
	return touched, local, ok
}

// compile makes the Ruleset anew.
func (w *Worker) compile(routed routed, now time.Time) error {
	w.model.build(routed)
	if err := w.addHost(); err != nil {
		return err
	}
	selection := policy.Select(w.model.State)
	w.interest = selection.Interest()
	tried, hosts, back := w.try(), selection.HostPolicies(), w.rollsBack(selection)
	if back {
		tried.keepHosts(w.compiled.trial.former)
		selection.KeepHosts(w.compiled.trial.former)
		w.interest = w.interest.And(selection.Interest())
	}
	w.Feed.Want(w.named(tried.and(w.interest)))
	w.model.await(selection, w.interest, w.inForce, now)
	w.expires = w.model.due(now)
	rules := selection.Compile()
	w.note(func(s *Seen) { s.Compiles++ })
	for _, id := range rules.TooLarge {
		w.model.Invalid[id] = append(slices.Clip(w.model.Invalid[id]), policy.TooLargeText)
	}
	w.forbids = w.compiled.rules == nil || mayForbid(&w.compiled.rules.Ruleset, &rules.Ruleset) || w.forbids
	w.compiled = compiled{rules, selection, routed, tried, w.guard(&rules.Ruleset, hosts, back), back, denyingSets(&rules.Ruleset)}
	return nil
}

// apply programs the learnt state.
func (w *Worker) apply(ctx context.Context, touched []netip.Addr, all bool) error {
	if all = all || !w.synced || time.Since(w.compared) >= w.full; all {
		touched = nil
	} else if len(touched) == 0 {
		w.done()
		return nil
	}
	begun := time.Now()
	stats, err := w.Engine.Sync(ctx, &w.compiled.rules.Ruleset, touched)
	if err = w.takeRefusals(err); err != nil {
		return fmt.Errorf("program policies: %w", err)
	}
	if err := w.permitFlowtable(ctx, !judgesEachPacket(&w.compiled.rules.Ruleset)); err != nil {
		return err
	}
	if all {
		w.compared, w.full = time.Now(), wait.Jitter(comparePause)
	}
	w.synced = true
	w.mu.Lock()
	if w.compiled.trial != w.inForce.trial {
		wait.Signal(w.onTrial)
	}
	w.inForce = w.compiled
	w.mu.Unlock()
	w.showFlows()
	w.note(func(s *Seen) {
		s.Applied, s.Took, s.Stats, s.Applies = time.Now(), time.Since(begun), stats, s.Applies+1
	})
	w.done()
	restored := stats.Read && stats.Transactions > 0 // connections may have begun meanwhile
	if stats.Foreign && stats.Transactions > 0 && w.Repaired != nil {
		w.Repaired()
	}
	if (w.forbids || restored) && !w.KeepConnections {
		wait.Signal(w.sweepWanted)
	}
	w.forbids = false
	return nil
}

// takeRefusals records what the kernel refused while all else was done, and returns any other error. Probe has already
// reported rules that cannot log.
func (w *Worker) takeRefusals(err error) error {
	refused, noReject := errors.Is(err, netpol.ErrRefused), errors.Is(err, netpol.ErrNoReject)
	if err != nil && !refused && !noReject && !errors.Is(err, netpol.ErrNoLog) {
		return err
	}
	w.noReject = w.noReject || noReject
	if w.refused = nil; refused {
		w.refused = err
	}
	return nil
}

func (w *Worker) done() { w.todo, w.waiting = todo{}, time.Time{} }

// subscribe opens the event sockets, and reopens failed ones.
func (w *Worker) subscribe(ctx context.Context) (err error) {
	if w.routeEvents == nil && w.Mode.Enforces() {
		events := netlinkx.LinkEvents | netlinkx.RouteEvents // IPv4 routes deleted with their link have no event
		if w.routeEvents, err = w.Kernel.SubscribeToOthersAtOnce(ctx, events, podProtocols...); err != nil {
			return err
		}
		w.todo.routes = true
	}
	if w.addressEvents == nil && w.model.placesHosts() {
		if w.addressEvents, err = w.Kernel.SubscribeToOthersAtOnce(ctx, netlinkx.AddrEvents); err != nil {
			return err
		}
		w.todo.host = true
	}
	if w.tableEvents == nil {
		if w.tableEvents, err = w.Engine.Events(ctx); err != nil {
			return err
		}
		w.todo.table = true
	}
	return nil
}

// wait returns when there is work, or when a check is due.
func (w *Worker) wait(ctx context.Context) {
	if w.addressEvents == nil && w.model.placesHosts() {
		return // the next pass must subscribe first
	}
	due := w.lookPause() - time.Since(w.decision.looked)
	if w.synced {
		due = min(due, w.full-time.Since(w.compared))
	}
	for _, at := range []time.Time{w.expires, w.whole.Add(listTime), w.probeDue} {
		if rest := time.Until(at); rest > 0 {
			due = min(due, rest)
		}
	}
	timer := time.NewTimer(max(due, 0))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return
	case <-timer.C:
	case <-w.feedEvents:
		w.todo.feed = true
	case _, ok := <-w.routeEvents:
		w.heardRoutes(ok)
	case _, ok := <-w.addressEvents:
		w.heardAddresses(ok)
	case <-w.hostChanged:
		w.todo.host = true
	case _, ok := <-w.tableEvents:
		w.heardTable(ok)
	}
	if w.waiting.IsZero() && w.todo != (todo{}) {
		w.waiting = time.Now()
	}
	if rest := max(coalesce, w.lasted) - time.Since(w.ended); rest > 0 && wait.Sleep(ctx, rest) {
		w.drain()
	}
}

// drain takes the pending events.
func (w *Worker) drain() {
	for {
		select {
		case <-w.feedEvents:
			w.todo.feed = true
		case _, ok := <-w.routeEvents:
			w.heardRoutes(ok)
		case _, ok := <-w.addressEvents:
			w.heardAddresses(ok)
		case <-w.hostChanged:
			w.todo.host = true
		case _, ok := <-w.tableEvents:
			w.heardTable(ok)
		default:
			return
		}
	}
}

func (w *Worker) heardRoutes(ok bool) {
	if w.todo.routes = true; !ok {
		w.routeEvents = nil
	}
}

func (w *Worker) heardTable(ok bool) {
	if w.todo.table = true; !ok {
		w.tableEvents = nil
	}
}
