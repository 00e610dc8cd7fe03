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
	// coalesce is the least time between two passes: the first event after a silence is served at once, those of a burst
	// together. After a longer pass it is as long as that was: whoever may change pods or policies of a namespace could
	// else keep a processor busy.
	coalesce = 10 * time.Millisecond
	// comparePause is how often the kernel's rules are compared with what they should be although nothing is known to have
	// changed.
	comparePause = 180 * time.Second
	// unusedTime bounds how long programs stay that no pod has any more.
	unusedTime = time.Minute
	// passTime bounds one pass.
	passTime = 30 * time.Second
	// firstRetry and mostRetry bound the pauses after passes that failed.
	firstRetry = 50 * time.Millisecond
	mostRetry  = 10 * time.Second
	// firstProbe and mostProbe bound the pauses between questions to the kernel what it lacks that had no answer.
	firstProbe = time.Second
	mostProbe  = time.Minute
)

// Feed tells what the API server knows; cluster.PolicyFeed has the real one.
type Feed interface {
	Run(ctx context.Context) error
	Changed() <-chan struct{}
	Take() cluster.PolicyView
	Want(interest policy.Interest)
	SetGround(g cluster.Ground)
}

// Engine programs a Ruleset; netpol.Engine has the real one.
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
	// FelixGoes: the rules of a Felix that does not run any more are removed once ours are in force, so that they do not
	// count for one.
	FelixGoes bool
	// ConfDir is the runtime's directory of network configurations, by which other engines are known. A missing one has
	// none.
	ConfDir string
	Feed    Feed
	Engine  Engine
	Kernel  *netlinkx.Conn
	Table   *nft.Table // by which Felix's rules are found
	Log     *slog.Logger
	// Drops tells of denied packets; nil: none are logged.
	Drops DropsOf
	// Flows records connections; nil: they are not recorded.
	Flows Flows
	// APIServer keeps policies of host endpoints from locking the node out; nil: nothing does.
	APIServer *APIServer
	// Flowtable has the connections whose packets pass no rules; nil: there is none.
	Flowtable Flowtable
	// Decided is called with whether another engine enforces, or none is to, when that has changed; nil: not called.
	Decided func(stayOut bool)
	// Repaired is called after another program's change of the table was undone; nil: not called.
	Repaired func()
}

// Flowtable is flowtable.Syncer.
type Flowtable interface {
	// Await leaves the flowtable as it is until Permit says whether there may be one.
	Await()
	Permit(ctx context.Context, may bool) error
}

// Flows is told what is in force, and which packets are denied; flows.Recorder has the real one.
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

	mu       sync.RWMutex // guards what follows: Run alone writes it
	inForce  compiled
	seen     Seen
	host     *policy.HostRules // nil: not known yet
	handling *policy.Handling  // likewise
	prefix   string            // of the log of what Log rules match

	// What follows is for the goroutine of Run.
	compiled   compiled // what is to be in force
	decision   decision
	routes     localRoutes
	model      model
	interest   policy.Interest // whose pods the policies in the model name
	todo       todo
	noAccounts time.Time // see awaitsAccounts
	// when what is compiled is to be compiled anew, as policies have waited long enough for a list, or programs for a pod;
	// zero: never
	expires  time.Time
	waiting  time.Time // since when a change waits to be programmed
	compared time.Time // when everything was compared last
	full     time.Duration
	ended    time.Time // of the last pass
	probed   bool      // the kernel has told what it lacks
	probeDue time.Time // when it is asked again, if it has not
	probing  wait.Backoff
	lasted   time.Duration
	synced   bool              // a Ruleset of this process is in the kernel
	removed  bool              // there is nothing of ours in the kernel, as another engine enforces
	whole    time.Time         // when the model was complete first, while nothing is synced
	inPlace  bool              // as Placed has told
	lacks    error             // what the kernel lacks, or why that is not known; report tells it, and logs it when it is new
	refused  error             // why programs are not in force, whose pods are closed
	noReject bool              // the kernel cannot tell who sends what is denied
	shown    *policy.Selection // what Flows was told last
	logged   map[string]bool   // problems, by the last report
	forbids  bool              // since the last sweep was wished for something may have been forbidden

	feedEvents, routeEvents, addressEvents, tableEvents <-chan struct{} // nil: not subscribed
}

// compiled is a Ruleset with the policies and the local addresses that it was made with. rules is nil while there is
// none.
type compiled struct {
	rules     *policy.Compiled
	selection *policy.Selection
	routed    routed
	tried
	trial   *trial // of host endpoints; nil: there are none, or nothing is guarded. mu guards what it points to
	back    bool   // the host endpoints have what they had before the trial
	denying setIDs
}

// denied reports that an address is in a set that a program denies: a pod may have sent before it was known.
func (c *compiled) denied(a netip.Addr) bool { return c.denying.anyOf(c.rules.Members[a]) }

// todo has the work of a pass besides the check whether to enforce.
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

// Run works until ctx ends. It then leaves everything in force.
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

// pass brings the kernel to what is known now.
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

// begins reports that the first Ruleset may be programmed: nothing is missing, or it is a list that takes long, or what
// the agent has to say.
func (w *Worker) begins(now time.Time) bool {
	if !w.model.complete() {
		return false
	}
	if w.whole.IsZero() {
		w.whole = now
	}
	return w.model.since.IsZero() && w.hostKnown() || now.Sub(w.whole) >= listTime
}

// probe finds out before any policy needs it what the kernel lacks, and asks until there is an answer.
func (w *Worker) probe(ctx context.Context, now time.Time) {
	if w.probed || now.Before(w.probeDue) {
		return
	}
	w.lacks = w.Engine.Probe(ctx)
	if w.probed = !errors.Is(w.lacks, netpol.ErrNotProbed); !w.probed {
		w.probeDue = now.Add(w.probing.Next())
	}
}

// stayOut leaves the node without rules of ours: without updates they would keep new pods closed. A plugin that has
// not heard of it may make some once more.
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

// learn takes in what has changed. all: more than the Members of touched may be another.
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
		w.compiled.routed = fresh // for compile, which follows in any case
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

// awaitsAccounts reports that policies have come to select pods by labels of service accounts, which have not been
// listed yet: who is selected is not known, so that all stays as it is for a while.
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

// update takes in pods and routes. local: endpoints may be others, too. ok is false if that is not enough: pods that
// run may be about to keep policies, and Flows is told of pods of other nodes alone.
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

// apply programs what was learnt.
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

// takeRefusals takes in what the kernel has refused though all else is done, and returns any other error. Probe has
// reported rules that it cannot log.
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

// subscribe opens the sockets of events, again after one failed.
func (w *Worker) subscribe(ctx context.Context) (err error) {
	if w.routeEvents == nil && w.Mode.Enforces() {
		events := netlinkx.LinkEvents | netlinkx.RouteEvents // the kernel tells of no route of IPv4 that goes with its link
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

// wait returns when there is something to do, or when a look is due.
func (w *Worker) wait(ctx context.Context) {
	if w.addressEvents == nil && w.model.placesHosts() {
		return // until the next pass has subscribed, addresses change unseen
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

// drain takes the events that are there.
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
