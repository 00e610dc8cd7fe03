package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/app/serving"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/cluster/events"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/gc"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

const (
	// calm is the least time between two passes after changes: in a busy cluster there are always some.
	calm = 30 * time.Second
	// soon is how long a pass waits for more deletions after a Node was deleted.
	soon = time.Second
	// sweepTime bounds one sweep. The next sweep does the rest.
	sweepTime = 15 * time.Minute
	// probeTime bounds the probe of the watches.
	probeTime = 5 * time.Second
	// minRetry and maxRetry bound the pause after a pass that failed.
	minRetry, maxRetry = 2 * time.Second, 30 * time.Second
)

// Deps are the controllers' dependencies.
type Deps struct {
	Config config.Controllers
	Log    *slog.Logger
	// Group is the API group of Calico's objects; nil is groups.V1.
	Group *groups.Current
	// Store is the Kubernetes API. Etcd is the datastore of addresses if it is not that one, else nil.
	Store *kubernetes.Store
	Etcd  Etcd
	Watch *cluster.Inventory
	// Policies are the NetworkPolicies, if they are not enforced; else nil.
	Policies *cluster.Policies
	// PolicyFeed is nil if policies are not enforced.
	PolicyFeed *cluster.PolicyFeed
	// LoadBalancers are nil if Services get no addresses.
	LoadBalancers *cluster.LoadBalancers
	// Configurations are nil with Etcd: no program reads them there.
	Configurations *cluster.Configurations
	Events         *events.Recorder
	// Identity is this process's unique identity in the Lease.
	Identity string
}

// Etcd is the datastore of addresses that is not the Kubernetes API.
type Etcd interface {
	datastore.Store
	etcdDuties
}

// Controllers is the process.
type Controllers struct {
	deps    Deps
	elector *Elector
	sweeper gc.Sweeper
	keeper  *housekeeping
	hosts   *hostKeeper // of Kubernetes as the datastore
	etcd    *etcdKeeper // nil without etcd
	board   *board

	state    gc.State
	forecast Forecast
	again    time.Time // when the next candidate may be due
	failed   int       // consecutive failed passes
	reported progress.Changes

	calico       calicoState // as of the last pass in projectcalico.org/v3
	alone        atomic.Bool // Calico's kube-controllers are known not to run there
	secondDue    time.Time   // when the other group is looked at again
	deadWebhooks string      // the logged state of them

	began chan struct{} // wakes the loop when this process becomes leader

	mu      sync.Mutex      // guards leading; held by a sweep, so that leadership cannot end during it
	leading context.Context // nil: another process leads
}

// New returns controllers that do nothing until Run.
func New(deps Deps) *Controllers {
	limiter := rate.NewLimiter(rate.Limit(deps.Config.Rate), deps.Config.Rate)
	cluster := &limited{deps.Store, limiter}
	addresses := cluster
	c := &Controllers{
		deps: deps, elector: NewElector(deps.Store, deps.Config.Namespace, LeaseName, deps.Identity, deps.Log),
		began: make(chan struct{}, 1), board: &board{metrics: newMetrics()},
	}
	if deps.Etcd != nil {
		addresses = &limited{deps.Etcd, limiter}
		c.etcd = &etcdKeeper{store: deps.Etcd, cluster: cluster, log: deps.Log}
	} else {
		c.board.metrics.datastore = deps.Watch.Datastore
	}
	c.hosts = &hostKeeper{store: cluster, log: deps.Log}
	if deps.PolicyFeed != nil {
		c.hosts.feed = deps.PolicyFeed
	}
	c.sweeper = gc.Sweeper{IPAM: addresses, Cluster: cluster, Client: ipam.NewClient(addresses, time.Now), Log: deps.Log}
	c.keeper = newHousekeeping(&deps, c.sweeper.Client)
	c.board.status = Status{Identity: deps.Identity, Started: time.Now()}
	return c
}

// Run runs the controllers until ctx ends.
func (c *Controllers) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return serving.Run(ctx, c.deps.Config.Address, c.board.handler(), c.deps.Log, "TORTIE_CONTROLLERS_ADDRESS")
	})
	if addr := c.deps.Config.Metrics; addr != "" {
		g.Go(func() error {
			return serving.Run(ctx, addr, serving.Metrics(c.board.metrics.registry), c.deps.Log, "TORTIE_CONTROLLERS_METRICS")
		})
	}
	g.Go(func() error { return c.deps.Watch.Run(ctx) })
	g.Go(func() error { return c.deps.Events.Run(ctx) })
	if c.deps.LoadBalancers != nil {
		g.Go(func() error { return c.deps.LoadBalancers.Run(ctx) })
	}
	if c.deps.Configurations != nil {
		g.Go(func() error { return c.deps.Configurations.Run(ctx) })
	}
	g.Go(func() error { c.reviewFields(ctx); return nil })
	if c.deps.Policies != nil {
		g.Go(func() error { return c.deps.Policies.Run(ctx) })
		g.Go(func() error { c.reportPolicies(ctx); return nil })
	} else {
		g.Go(func() error { return c.deps.PolicyFeed.Run(ctx) })
		g.Go(func() error { c.reviewPolicies(ctx); return nil })
	}
	g.Go(func() error {
		if err := c.deps.Watch.WaitForSync(ctx, c.deps.Log); err != nil {
			return nil // shutting down
		}
		c.board.turn(func(s *Status) { s.Synced = true })
		inner, ctx := errgroup.WithContext(ctx)
		inner.Go(func() error { c.elector.Run(ctx, c.lead); return nil })
		inner.Go(func() error { c.loop(ctx); return nil })
		return inner.Wait()
	})
	return g.Wait()
}

// lead serves Services and route reflectors and allows sweeps until ctx ends, and returns when all of these have ended.
func (c *Controllers) lead(ctx context.Context) {
	var balancing sync.WaitGroup
	if c.deps.LoadBalancers != nil {
		balancing.Go(func() { c.balance(ctx) })
	}
	if c.deps.Config.Reflectors.Automatic && c.etcd == nil {
		balancing.Go(func() { c.reflect(ctx) })
	}
	defer balancing.Wait()
	c.alone.Store(false)
	c.mu.Lock()
	c.leading = ctx
	c.mu.Unlock()
	wait.Signal(c.began)
	<-ctx.Done()
	c.mu.Lock()
	c.leading = nil
	c.mu.Unlock()
}

// loop runs passes until ctx ends. A process that does not lead runs them too, so that it can continue for the leader.
func (c *Controllers) loop(ctx context.Context) {
	for ctx.Err() == nil {
		settings, err := effective(&c.deps.Config, c.configuration())
		err = errors.Join(err, c.pass(ctx, settings))
		c.conclude(settings, err)
		c.wait(ctx, settings)
	}
}

// configuration returns the object with the controllers' settings, nil if there is none.
func (c *Controllers) configuration() *api.KubeControllersConfiguration {
	if c.etcd != nil {
		return c.etcd.settings.Load()
	}
	return c.deps.Watch.Settings()
}

// conclude records the result of a pass.
func (c *Controllers) conclude(settings Settings, err error) {
	text := ""
	c.failed++
	if err == nil {
		c.failed = 0
	} else {
		text = err.Error()
		c.board.metrics.failures.Inc()
	}
	if c.reported.New(err) {
		c.deps.Log.Warn("pass failed in part; retrying", "err", err)
	}
	c.board.turn(func(s *Status) {
		s.Error, s.LastPass, s.Grace, s.Period = text, time.Now(), settings.Grace.String(), settings.Period.String()
		s.Next = s.LastPass.Add(c.pauseAfter(settings))
		s.Passes++
		if own := c.configuration(); own != nil {
			s.FieldsWithoutEffect = own.StrangeKeys().WithoutEffect()
		}
	})
}

// pauseAfter returns the longest pause before the next pass.
func (c *Controllers) pauseAfter(s Settings) time.Duration {
	d := s.Period
	if s.Grace > 0 {
		d = min(d, s.Grace/2)
	}
	if !c.again.IsZero() {
		d = min(d, max(time.Until(c.again), 0)+time.Second)
	}
	if c.failed > 0 {
		backoff := min(minRetry<<min(c.failed-1, 20), maxRetry)
		d = max(min(d, backoff), backoff/2+rand.N(backoff))
	}
	return max(d, time.Second)
}

// wait waits for the next pass. Changes make it earlier, most of all a deleted Node, but not after a failure.
func (c *Controllers) wait(ctx context.Context, s Settings) {
	last := time.Now()
	due := last.Add(c.pauseAfter(s))
	changed := c.deps.Watch.Changed()
	for {
		timer := time.NewTimer(time.Until(due))
		sooner := due
		select {
		case <-ctx.Done():
		case <-timer.C:
			return
		case <-c.began:
			return
		case <-c.deps.Watch.NodeEnded():
			sooner = time.Now().Add(soon)
		case <-changed:
			sooner, changed = last.Add(calm), nil
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
		if c.failed == 0 && sooner.Before(due) {
			due = sooner
		}
	}
}

// pass judges the current view and, if this process leads, writes.
func (c *Controllers) pass(ctx context.Context, s Settings) error {
	v, err := c.view(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if v.Taken.IsZero() { // everything is listed, but a watch is not open yet: soon, by a probe
		c.again = began
		return nil
	}
	var d gc.Decision
	c.state, d = gc.Pass(c.state, &v, gc.Rules{Grace: s.Grace, NodeGrace: c.deps.Config.NodeGrace})
	usage := Measure(&v)
	warnings := c.forecast.Look(&usage, began)
	c.again = d.Again
	c.board.metrics.saw(usage, &d, time.Since(began), began.Sub(v.Taken))
	c.board.turn(func(st *Status) {
		st.Known, st.Candidates, st.Waiting, st.Locked = v.Taken, d.Candidates, d.Waiting, !v.Ready
	})
	return c.act(&v, &d, s, warnings)
}

// view returns the current view. If a candidate may be due that the watches have not confirmed, they are probed.
func (c *Controllers) view(ctx context.Context) (inventory.View, error) {
	now := time.Now()
	if !c.again.IsZero() && now.After(c.again) && c.deps.Watch.Behind(c.again) > 0 {
		limited, cancel := context.WithTimeout(ctx, probeTime)
		defer cancel()
		if err := c.deps.Watch.Probe(limited); err != nil {
			return inventory.View{}, fmt.Errorf("the watches may be behind: %w", err)
		}
	}
	v := c.deps.Watch.View()
	if c.etcd != nil {
		return c.etcd.view(ctx, v)
	}
	return v, nil
}

// act writes, if this process leads. The end of leadership cancels it.
func (c *Controllers) act(v *inventory.View, d *gc.Decision, s Settings, warnings []Warning) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx := c.leading
	if ctx == nil || ctx.Err() != nil {
		c.board.metrics.leading.Set(0)
		c.board.turn(func(s *Status) { s.Leading = false })
		return nil
	}
	c.board.metrics.leading.Set(1)
	c.board.turn(func(s *Status) { s.Leading = true })
	c.warn(v, warnings)
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	var errs []error
	if c.etcd == nil {
		errs = append(errs, c.lookAround(ctx), c.lookForSecondGroup(ctx, v.Ready, time.Now()),
			c.keeper.sync(ctx, v, c.configuration(), s, c.alone.Load(), time.Now()), c.keepHosts(ctx, v, s.Hosts))
	} else {
		errs = append(errs, c.etcd.sync(ctx, v, s))
	}
	if len(d.Due) > 0 {
		report, err := c.sweeper.Sweep(ctx, v, d)
		errs = append(errs, err)
		c.board.metrics.did(&report)
		c.board.turn(func(s *Status) { s.did(&report) })
		c.deps.Log.Info("collected", "addresses", report.Addresses(), "handles", report.Handles, "blocks", report.Blocks,
			"affinities", report.Affinities, "completed", report.Confirmed, "spared", report.Spared)
	}
	return errors.Join(errs...)
}

func (c *Controllers) keepHosts(ctx context.Context, v *inventory.View, s HostSettings) error {
	problems, err := c.hosts.sync(ctx, v, s)
	c.board.turn(func(s *Status) { s.HostEndpoints = problems })
	return err
}

// warn writes Events about pools that are exhausted or will be, and about damaged blocks.
func (c *Controllers) warn(v *inventory.View, warnings []Warning) {
	for _, w := range warnings {
		reason := "PoolExhausting"
		if w.Exhausted {
			reason = "PoolExhausted"
		}
		c.deps.Events.Warn(reference((*api.IPPool)(nil), &api.Meta{Name: w.Pool.Name, UID: w.Pool.UID}), reason, w.Text)
	}
	for i := range v.Blocks {
		if b := &v.Blocks[i]; b.Damage != nil {
			c.deps.Events.Warn(reference(b, &b.Meta), "DamagedBlock", b.Damage.Error())
		}
	}
}
