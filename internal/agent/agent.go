package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/agent/diagnose"
	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/radv"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/cluster/duties"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kernel/flowtable"
	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/nat"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/takeover"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/plugin/journal"
)

const (
	// coalesce is the pause after the first event of a burst, so that a burst costs one pass.
	coalesce = 20 * time.Millisecond
	// tableGap is the pause instead if the burst has only events of the speaker and the last pass ended more than coalesce
	// ago: the first UPDATE is programmed soon, and a flapping peer costs at most one pass per coalesce. Without an event
	// of the speaker for tableGap a table counts as complete; tableTime bounds the wait for that.
	tableGap  = 3 * time.Millisecond
	tableTime = 150 * time.Millisecond
	// mostCoalesce bounds the additional pause after a long pass. The pause keeps passes to half of the time.
	mostCoalesce = 100 * time.Millisecond
	// fullPass is the interval of passes that compare everything, without an event.
	fullPass = 30 * time.Second
	// passTime bounds one pass.
	passTime = 30 * time.Second
	// dutyTime bounds the set-up of the cluster's objects.
	dutyTime = 30 * time.Second
	// settleTime is how long after a session came up a missing path counts as not yet received, and how long after the end
	// of the tables of all peers the routes of an earlier agent are removed.
	settleTime = 5 * time.Second
	// lookPause is the interval of checks for the end of the tables.
	lookPause = 2 * time.Second
	// workInTime is the time that GoBGP gets to process the end of a table.
	workInTime = time.Second
	// holdTime bounds how long a starting agent keeps routes that BGP has not announced: the restart time for which peers
	// keep theirs (RFC 4724).
	holdTime = bgp.DefaultRestartTime
	// maxRetry bounds the pause before a failed pass is repeated.
	maxRetry = 30 * time.Second
)

// errRestart means that the agent's set-up is for another address of the node.
var errRestart = errors.New("this node's address changed: the agent ends in order to start anew; routes stay")

// Deps are the parts that an agent works with.
type Deps struct {
	Dataplane
	Config  config.Node
	Log     *slog.Logger
	Store   *kubernetes.Store
	Watch   *cluster.Watch
	Speaker bgp.Speaker
	Status  *Status
	// APIServer are the known addresses of the API server.
	APIServer []netip.Addr
	Events    Recorder            // nil: problems are in status and log only
	Policies  *policies.Worker    // nil: NetworkPolicies are ignored
	Pods      *cluster.PolicyFeed // of Policies: names pods that the plugins need not read; nil: unknown
}

// Dataplane has the parts of the kernel that the agent programs.
type Dataplane struct {
	Kernel *netlinkx.Conn
	FIB    *routes.Table
	Encap  *ipip.Syncer
	VXLAN  *vxlan.Syncer
	// WireGuard programs the devices, and the routing tables beside the main one.
	WireGuard *wireguard.Syncer
	NFT       *nft.Table
	NAT       *nat.Syncer
	Guard     *guard.Syncer
	// Flowtable offloads established connections of pods.
	Flowtable *flowtable.Syncer
}

// Agent keeps this node's kernel and BGP speaker in the desired state. Its fields belong to the goroutine of Run.
type Agent struct {
	Deps
	clusterState
	nodeState
	passes

	peering desired.Deciding // the desired BGP sessions
	bgp     bgpState         // the state of the speaker
	routers *radv.Engine     // finds routers on links that BGPPeers name
	tunnels tunnels
	clear   clearNodes

	ipam         *ipam.Client
	factsWriter  *factsWriter
	reporter     eventReporter
	repairs      *repairs
	annotations  annotations
	parameters   parameters // kernel parameters that the agent must keep
	availability *duties.Availability
}

// clusterState is the known state of the cluster.
type clusterState struct {
	view        desired.View
	services    desired.ServiceView   // the announced prefixes of Services
	gone        bool                  // this node was deleted
	offline     error                 // why the state in use is an earlier agent's: no answer of the API server yet; nil: there was one
	memory      memory                // the state file of an earlier agent
	known       desired.Announcements // the addresses of other nodes that are in use
	unconfirmed time.Duration         // until a changed address is used; 0: there is none
	records     *records
	evidence    *evidence
}

// nodeState is the known state of this node.
type nodeState struct {
	node       *api.Node // as of the last pass
	anchor     anchor    // its addresses
	sysctls    sysctl.Root
	pods       []netip.Addr          // local addresses, as of the last pass
	links      []netlinkx.Link       // as of the last pass
	addrs      []netlinkx.Addr       // all of the host, as of the last pass
	guarded    []int                 // the own links that the guard has
	fast       flowtable.Config      // as of the last pass
	hosts      map[string]netip.Addr // host names that were looked up
	candidates []nodeaddr.Candidate  // as last logged
	calico     *takeover.Watch       // what Calico left on the node

	kernelEvents <-chan struct{} // nil: not subscribed
	tableEvents  <-chan struct{} // of nftables; nil: not subscribed
}

// passes are the last pass and the next one.
type passes struct {
	changed  changes             // the scope of the next pass
	took     time.Duration       // duration of the last pass
	ended    time.Time           // of the last pass
	full     time.Time           // of the last full pass
	reported string              // the last logged result of a pass
	broken   map[string][]string // the problems reported last, by area
}

// NewAgent returns an agent for Run.
func NewAgent(d Deps) *Agent {
	client := ipam.NewClient(d.Store, time.Now)
	a := &Agent{
		Deps: d,
		clusterState: clusterState{
			known: desired.Announcements{}, records: newRecords(d.Store), evidence: newEvidence(d.Store),
			memory: memory{path: filepath.Join(d.Config.RunDir, worldFile)},
		},
		nodeState: nodeState{
			sysctls: sysctl.Root(d.Config.SysctlRoot), hosts: map[string]netip.Addr{},
			calico: takeover.NewWatch(d.Kernel, d.NFT, d.WireGuard, d.Config.RemoveRules),
		},
		passes:       passes{changed: allChanges, broken: map[string][]string{}},
		routers:      radv.New(d.Log, d.Kernel.Namespace()),
		tunnels:      newTunnels(client, d.Config.Nodename, d.Config.StateDir),
		ipam:         client,
		factsWriter:  newFactsWriter(filepath.Join(d.Config.RunDir, factsFile), d.Watch, d.Pods, d.Status, d.Log),
		reporter:     eventReporter{to: d.Events, node: d.Config.Nodename},
		repairs:      &repairs{to: d.Events, node: d.Config.Nodename, log: d.Log},
		annotations:  annotations{right: map[string]string{}, undone: map[string]bool{}},
		parameters:   parameters{},
		availability: duties.NewAvailability(d.Store, d.Config.Nodename, time.Now),
	}
	d.Status.showDatastore(d.Watch.Datastore)
	d.Watch.OnArrival(a.groupBefore(), a.groupArrived(), a.arrive)
	return a
}

// Run works until ctx ends. It then leaves routes, addresses and, by graceful restart, the paths at peers as they are,
// so that traffic goes on until the next agent starts.
func (a *Agent) Run(ctx context.Context) error {
	a.sweepFiles()
	sessions := sessionLog{filepath.Join(a.Config.StateDir, endsFile), a.Speaker.Ends(), a.Log}
	sessions.recall()
	a.NFT.Repaired, a.Kernel.Replaced = a.repairs.tables, a.replaced
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return sessions.run(ctx) })
	g.Go(func() error { return a.Watch.Run(ctx) })
	g.Go(func() error { return a.loop(ctx) })
	g.Go(func() error { return a.factsWriter.run(ctx) })
	g.Go(func() error { return a.records.run(ctx) })
	g.Go(func() error { return a.evidence.run(ctx) })
	if a.Events != nil {
		g.Go(func() error { return a.Events.Run(ctx) })
	}
	g.Go(func() error { return a.journalWorker().run(ctx) })
	g.Go(func() error { return a.statusWriter().run(ctx) })
	g.Go(func() error { return a.pathWorker().Run(ctx) })
	if a.Policies != nil {
		a.Policies.Decided, a.Policies.Repaired = a.factsWriter.setNoPolicies, a.repairs.policyTable
		g.Go(func() error { return a.Policies.Run(ctx) })
	}
	err := g.Wait()
	a.tunnels.ignore()
	a.routers.Close()
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	return errors.Join(err, a.Speaker.Stop(stop, bgp.Exit))
}

// setUp checks that this node exists and creates the cluster's objects. It retries without an API server: a rebooted
// node often comes up before its control plane.
func (a *Agent) setUp(ctx context.Context) error {
	return a.retry(ctx, "set up the cluster's objects", func(ctx context.Context) error {
		if a.node = a.Watch.Cluster().Self; a.node == nil {
			return fmt.Errorf("node %s does not exist: is environment variable NODENAME %q the name of a Node?",
				a.Config.Nodename, a.Config.Nodename)
		}
		err := duties.SetUp(ctx, a.Store, duties.Cluster{Type: a.Config.ClusterType}, a.Watch.Defaults())
		if errors.Is(err, duties.ErrClusterType) {
			a.Log.Warn("ClusterInformation is not completed", "err", err)
			return nil
		}
		return err
	})
}

// awaitPools returns when the cluster has a pool, or at once with NO_DEFAULT_POOLS. Without a pool no pod gets an
// address; kube-controllers creates the default pools.
func (a *Agent) awaitPools(ctx context.Context) error {
	if a.Config.NoDefaultPools || a.Watch.HasPools() {
		return nil
	}
	const why = "the cluster has no IPPool: waiting until tortie-kube-controllers makes the default ones, or an operator creates one"
	a.Log.Info(why)
	a.Status.SetProblems("start", []string{why})
	for !a.Watch.HasPools() {
		select {
		case <-ctx.Done():
			return nil
		case <-a.Watch.Changed():
		}
	}
	a.Status.SetProblems("start", nil)
	return nil
}

func (a *Agent) statusWriter() *statusWriter {
	return &statusWriter{node: a.Config.Nodename, watch: a.Watch, store: a.Store, report: a.Status.Report, log: a.Log}
}

func (a *Agent) journalWorker() *journalWorker {
	dir := journal.Dir(filepath.Join(a.Config.StateDir, journalDir))
	return &journalWorker{dir: dir, node: a.Config.Nodename, store: a.Store, ipam: a.ipam, watch: a.Watch, status: a.Status, log: a.Log}
}

// retry repeats what until it succeeds or ctx ends, with exponential backoff and jitter.
func (a *Agent) retry(ctx context.Context, doing string, what func(context.Context) error) error {
	for backoff := (wait.Backoff{First: time.Second, Most: maxRetry}); ; {
		try, cancel := context.WithTimeout(ctx, dutyTime)
		err := what(try)
		cancel()
		if err == nil {
			a.Status.SetProblems("start", nil)
			return nil
		}
		pause := backoff.Next()
		a.Log.Warn("retrying", "doing", doing, "err", err, "pause", pause)
		a.Status.SetProblems("start", []string{fmt.Sprintf("%s: %v", doing, err)})
		if !wait.Sleep(ctx, pause) {
			return fmt.Errorf("%s: %w", doing, errors.Join(err, context.Cause(ctx)))
		}
	}
}

// loop makes passes after the set-up of the cluster's objects.
func (a *Agent) loop(ctx context.Context) error {
	if err := a.awaitCluster(ctx); err != nil {
		return err
	}
	if err := a.setUp(ctx); err != nil {
		return err
	}
	if err := a.awaitPools(ctx); err != nil {
		return err
	}
	a.awaitServices(ctx)
	a.bgp.begun, a.changed = time.Now(), allChanges
	return a.rounds(ctx, nil)
}

// rounds makes a pass after each event and at least every fullPass, until ctx ends or until delivers an error, which it
// returns.
func (a *Agent) rounds(ctx context.Context, until <-chan error) error {
	backoff := wait.Backoff{First: time.Second, Most: maxRetry}
	for {
		if err := a.subscribe(ctx); err != nil {
			return err
		}
		begun := time.Now()
		a.Status.Begin()
		err := a.pass(ctx)
		if errors.Is(err, errRestart) {
			return err
		}
		took := time.Since(begun)
		a.took, a.ended = min(took, mostCoalesce), time.Now()
		a.report(err, took)
		next := fullPass
		if err != nil {
			next = backoff.Next()
		} else {
			backoff.Reset()
		}
		if !a.wait(ctx, a.sooner(next)) {
			return nil
		}
		if err != nil {
			a.changed.bgp, a.changed.all = true, true
		}
		select {
		case err := <-until:
			return err
		default:
		}
	}
}

// sooner shortens the pause before the next pass if a check is due before.
func (a *Agent) sooner(next time.Duration) time.Duration {
	if a.bgp.holding { // also after a failed pass
		next = min(next, a.bgp.nextLook(time.Now()))
	}
	if a.unconfirmed > 0 {
		next = min(next, a.unconfirmed)
	}
	if a.tunnels.again > 0 {
		next = min(next, a.tunnels.again)
	}
	if a.anchor.moving() || a.offline != nil {
		next = min(next, time.Second)
	}
	if a.memory.putOff {
		next = min(next, a.memory.pause)
	}
	return next
}

// subscribe opens the event sockets for links, addresses, routes and the table inet tortie, again after one failed.
func (a *Agent) subscribe(ctx context.Context) (err error) {
	if a.kernelEvents == nil {
		protocols := append([]netlinkx.Protocol{netlinkx.Protocol(a.Config.RouteProtocol)}, netlinkx.HostProtocols...)
		events := netlinkx.LinkEvents | netlinkx.AddrEvents | netlinkx.RouteEvents | netlinkx.RuleEvents | netlinkx.SettingEvents
		a.kernelEvents, err = a.Kernel.SubscribeToOthers(ctx, events, protocols...)
		if err != nil {
			return err
		}
	}
	if a.tableEvents == nil {
		// Without these events only full passes find foreign changes: a problem, but no reason to end.
		var problems []error
		if a.tableEvents, err = a.NFT.Events(ctx); err != nil {
			problems = append(problems, err)
		}
		a.setProblems("nftables", problems)
	}
	return nil
}

// changes is the scope of a pass: outside of it the results of an earlier pass are reused where that saves work. The
// kernel is always read; the state of the cluster has a revision.
type changes struct {
	bgp      bool // sessions, learned paths, or the IPAMBlocks of borrowed addresses
	evidence bool // the objects that decide between contradicting nodes
	all      bool // anything
}

var allChanges = changes{bgp: true, all: true}

// wait returns after the pause or soon after an event; false if ctx ended.
func (a *Agent) wait(ctx context.Context, pause time.Duration) bool {
	a.changed = changes{}
	others := true // the event is not the speaker's
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		a.changed.bgp, a.changed.all = true, true
	case <-a.Watch.Changed():
	case <-a.Speaker.Dirty():
		a.changed.bgp, others = true, false
	case <-a.records.changed:
		a.changed.bgp = true
	case <-a.evidence.change:
		a.changed.evidence = true
	case <-a.routers.Changed():
	case <-a.Policies.Placed(): // Felix's rules may go
	case _, ok := <-a.kernelEvents:
		a.kernelChanged(ok)
	case _, ok := <-a.tableEvents:
		a.tableChanged(ok)
	case _, ok := <-a.tunnels.events:
		a.tunnels.heard(ok)
	}
	if !a.gather(ctx, others) {
		return false
	}
	if time.Since(a.full) > fullPass { // events that never end must not keep it off
		a.changed.bgp, a.changed.all = true, true
	}
	return true
}

// gather waits for the rest of a burst; others is set unless its first event is the speaker's. It returns false if ctx
// ended. A peer's table comes in many messages: waiting is faster than reading a part of it and soon after the whole.
func (a *Agent) gather(ctx context.Context, others bool) bool {
	begun := time.Now()
	rested := begun.Sub(a.ended)
	least := coalesce
	if !others && rested > coalesce {
		least = tableGap
	}
	for pause := max(least, a.took-rested); ; pause = max(tableGap, least-time.Since(begun)) {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
		learning, others := a.drainEvents()
		if others {
			least = coalesce
		}
		if waited := time.Since(begun); waited > tableTime || !learning && waited >= least {
			return true
		}
	}
}

// drainEvents takes the pending events. It reports whether there was an event of the speaker, and another event.
func (a *Agent) drainEvents() (learning, others bool) {
	for range 1000 { // endless events must not delay the pass
		select {
		case <-a.Speaker.Dirty():
			a.changed.bgp, learning = true, true
			continue
		case <-a.Watch.Changed():
		case <-a.routers.Changed():
		case <-a.records.changed:
			a.changed.bgp = true
		case <-a.evidence.change:
			a.changed.evidence = true
		case _, ok := <-a.kernelEvents:
			a.kernelChanged(ok)
		case _, ok := <-a.tableEvents:
			a.tableChanged(ok)
		case _, ok := <-a.tunnels.events:
			a.tunnels.heard(ok)
		default:
			return learning, others
		}
		others = true
	}
	return learning, others
}

func (a *Agent) kernelChanged(ok bool) {
	if !ok {
		a.kernelEvents = nil
	}
}

func (a *Agent) tableChanged(ok bool) {
	if !ok {
		a.tableEvents = nil
	}
}

// report logs the result of a pass and writes Events: once when a problem appears, changes or ends.
func (a *Agent) report(err error, took time.Duration) {
	a.Status.Passed(err, took)
	known := a.Status.now()
	a.reporter.report(time.Now(), &known, err)
	a.reporter.reportPolicies(time.Now(), a.Policies)
	a.reporter.reportSpace(time.Now(), diagnose.FullText("/"))
	a.repairs.flush(time.Now())
	a.factsWriter.setLocal(local{ready: known.ready, pods: a.pods})
	text := "ok"
	if err != nil {
		text = err.Error()
	}
	if text == a.reported {
		return
	}
	a.reported = text
	if err != nil {
		a.Log.Error("cannot bring this node to its desired state; retrying", "err", err)
		return
	}
	self := known.snapshot.Self
	a.Log.Info("this node is as it should be", "address", self.Addr, "interface", self.Link, "tunnels", self.TunnelAddrs(),
		"blocks", known.snapshot.Blocks, "peers", len(known.peers), "took", took)
}

// setProblems sets the problems of an area in the status, and logs the new ones.
func (a *Agent) setProblems(about string, problems []error) {
	a.reporter.reportProblems(problems)
	found := texts(problems)
	if slices.Equal(found, a.broken[about]) {
		return
	}
	before := map[string]bool{}
	for _, text := range a.broken[about] {
		before[text] = true
	}
	a.broken[about] = found
	a.Status.SetReasons(about, a.reporter.reasonsOf(problems))
	a.Status.SetProblems(about, found)
	for _, text := range found {
		if !before[text] {
			a.logProblem(about, text)
		}
	}
}

// logProblem logs that a configured object is left out, or that the host needs attention.
func (a *Agent) logProblem(about, text string) {
	switch about {
	case "object", "path", "gateway", "bfd":
		a.Log.Warn("left out of this node's configuration", about, text)
	default:
		a.Log.Warn("this host needs attention", about, text)
	}
}
