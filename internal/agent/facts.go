package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

const (
	// factsGrace is how long a starting agent waits for its first pass before it writes the facts file: the earlier
	// agent's file still holds, and a restart should not look like a failure.
	factsGrace = 5 * time.Second
	// quietTime is how long watches may be silent before the API server is probed. In a cluster of some hundred nodes
	// changes are more frequent.
	quietTime = 2 * time.Second
	// probeTime bounds that request.
	probeTime = 3 * time.Second
)

// local is the part of the facts that comes from the agent's passes and from the watch of pods, not from cluster.Watch.
type local struct {
	// ready: one pass has succeeded.
	ready bool
	// pods are the addresses to which the kernel has routes, and the tunnels' addresses, in ascending order.
	pods []netip.Addr
	// noPolicies and plainPods: see facts.Facts. The passes do not set them.
	noPolicies bool
	plainPods  []string
}

// buildFacts makes the plugins' facts from the watched objects and local; ok is false if this node does not exist. It
// is pure: everything but the time comes from its arguments, whose order does not matter.
func buildFacts(a state.Assignment, l local) (f facts.Facts, ok bool) {
	if a.Node == nil {
		return facts.Facts{}, false
	}
	f = facts.Facts{
		AgentReady:     l.ready,
		NoPolicies:     l.noPolicies,
		Group:          a.Group,
		DatastoreReady: state.Ready(a.Information) && !a.Held,
		Moving:         state.Ready(a.Information) && a.Held,
		Node:           a.Node.Name,
		NodeLabels:     a.Node.Labels,
		Config:         ipam.DefaultConfig(),
		Pools:          []api.IPPool{},
		Reservations:   []api.IPReservation{},
		Affinities:     []facts.Affinity{},
		Namespaces:     namespaces(a),
		PlainPods:      l.plainPods,
	}
	if a.Config != nil {
		f.Config = a.Config.Spec
	}
	for _, p := range a.Pools {
		p.Meta = api.Meta{Name: p.Name, DeletionTimestamp: p.DeletionTimestamp}
		f.Pools = append(f.Pools, p)
	}
	for _, r := range a.Reservations {
		r.Meta = api.Meta{Name: r.Name}
		f.Reservations = append(f.Reservations, r)
	}
	for _, b := range a.Affinities {
		if !b.MarkedDeleted() {
			f.Affinities = append(f.Affinities, facts.Affinity{BlockAffinity: b, Free: noneFree(b, l.pods)})
		}
	}
	slices.SortFunc(f.Pools, func(x, y api.IPPool) int { return strings.Compare(x.Name, y.Name) })
	slices.SortFunc(f.Reservations, func(x, y api.IPReservation) int { return strings.Compare(x.Name, y.Name) })
	slices.SortFunc(f.Affinities, func(x, y facts.Affinity) int { return strings.Compare(x.Name, y.Name) })
	return f, true
}

// noneFree returns 0 if the kernel has a route to a pod for each address of the block, which then has no free one; else
// nil: addresses without a route here may be assigned too. Blocks are not watched, see docs/design/agent.md.
func noneFree(b api.BlockAffinity, pods []netip.Addr) *int {
	cidr, err := netip.ParsePrefix(b.Spec.CIDR)
	if err != nil || len(pods) == 0 {
		return nil
	}
	host := cidr.Addr().BitLen() - cidr.Bits()
	from, _ := slices.BinarySearchFunc(pods, cidr.Masked().Addr(), netip.Addr.Compare)
	inside := 0
	for inside < len(pods)-from && cidr.Contains(pods[from+inside]) {
		inside++
	}
	if host > 16 || inside < 1<<host {
		return nil
	}
	return new(int)
}

// namespaces returns, for each namespace, its annotations and the labels that pools' selectors use. The plugins refuse
// a pool with an invalid selector.
func namespaces(a state.Assignment) map[string]facts.Namespace {
	var keys []string
	for _, p := range ipam.ValidPools(a.Pools) {
		keys = append(keys, p.Namespaces.Keys()...)
	}
	all := make(map[string]facts.Namespace, len(a.Namespaces))
	for _, n := range a.Namespaces {
		all[n.Name] = facts.Namespace{Labels: only(n.Labels, keys), Annotations: n.Annotations}
	}
	return all
}

func only(labels map[string]string, keys []string) map[string]string {
	var kept map[string]string
	for _, key := range keys {
		value, ok := labels[key]
		if !ok {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[key] = value
	}
	return kept
}

// factsWriter writes the file of facts for this node's plugins.
type factsWriter struct {
	path   string
	watch  *cluster.Watch
	pods   *cluster.PolicyFeed // nil: pods are unknown
	status *Status
	log    *slog.Logger

	mu      sync.Mutex
	local   local
	changed chan struct{} // readable after local changed

	// Of the goroutine of run.
	content  string    // the last content written, without its time
	written  time.Time // the time in it
	reported progress.Changes
}

func newFactsWriter(path string, watch *cluster.Watch, pods *cluster.PolicyFeed, status *Status, log *slog.Logger) *factsWriter {
	return &factsWriter{path: path, watch: watch, pods: pods, status: status, log: log, changed: make(chan struct{}, 1)}
}

// setLocal stores the result of a pass; noPolicies stays.
func (h *factsWriter) setLocal(l local) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.local.ready == l.ready && slices.Equal(h.local.pods, l.pods) {
		return
	}
	l.noPolicies = h.local.noPolicies
	h.local = l
	wait.Signal(h.changed)
}

// setNoPolicies stores whether no NetworkPolicies are enforced on this node.
func (h *factsWriter) setNoPolicies(none bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.local.noPolicies != none {
		h.local.noPolicies = none
		wait.Signal(h.changed)
	}
}

func (h *factsWriter) known() local {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.local
}

// run writes facts when they change, and renews their time while the watches are live. When it ends the file stays: its
// time shows its age, and the next agent starts soon.
func (h *factsWriter) run(ctx context.Context) error {
	if err := h.watch.WaitForSync(ctx, slog.New(slog.DiscardHandler)); err != nil {
		return nil // ctx ended; the agent's loop logs the wait
	}
	h.awaitFirstPass(ctx)
	beat := make(chan struct{}, 1)
	probes := make(chan struct{})
	go func() {
		defer close(probes)
		h.probe(ctx, beat)
	}()
	defer func() { <-probes }()
	var pods <-chan struct{}
	if h.pods != nil {
		pods = h.pods.PlainPodsChanged()
	}
	for ctx.Err() == nil {
		began := time.Now()
		h.refresh()
		took := time.Since(began)
		select {
		case <-ctx.Done():
			return nil
		case <-h.watch.AssignmentChanged():
		case <-pods:
		case <-h.changed:
		case <-beat:
		}
		wait.Sleep(ctx, max(coalesce, 4*took)) // annotations of pods cause writes: a fifth of a processor at most
	}
	return nil
}

func (h *factsWriter) awaitFirstPass(ctx context.Context) {
	limit := time.NewTimer(factsGrace)
	defer limit.Stop()
	for !h.known().ready {
		select {
		case <-ctx.Done():
			return
		case <-limit.C:
			return
		case <-h.changed:
		}
	}
}

// probe asks the API server when watches are silent, and wakes run so that it renews the file's time.
func (h *factsWriter) probe(ctx context.Context, beat chan<- struct{}) {
	for ctx.Err() == nil {
		pause := facts.Interval*3/4 + rand.N(facts.Interval/4)
		err := h.ask(ctx)
		if ctx.Err() == nil {
			h.status.SetProblems("facts", factsProblem(err))
		}
		if err != nil {
			pause = wait.Jitter(quietTime)
		}
		wait.Signal(beat)
		wait.Sleep(ctx, pause)
	}
}

// ask sends the API server a request, unless a watch has received something from it within quietTime.
func (h *factsWriter) ask(ctx context.Context) error {
	if time.Since(h.watch.Confirmed()) <= quietTime {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	return h.watch.Probe(ctx)
}

func factsProblem(err error) []string {
	if err == nil {
		return nil
	}
	return []string{fmt.Sprintf("the facts file is getting old, plugins will ask the API server instead: %v", err)}
}

// refresh writes the file if facts changed, or if its time is older than half of facts.Interval.
func (h *factsWriter) refresh() {
	confirmed := h.watch.Confirmed()
	if confirmed.IsZero() {
		return
	}
	l := h.known()
	if h.pods != nil {
		l.plainPods = h.pods.PlainPods()
	}
	f, ok := buildFacts(h.watch.Assignment(), l)
	if !ok {
		h.report(h.retract())
		return
	}
	data, err := facts.Encode(f)
	if err == nil && (string(data) != h.content || confirmed.Sub(h.written) >= facts.Interval/2) {
		f.Written = confirmed
		if err = facts.Write(h.path, f); err == nil {
			h.content, h.written = string(data), confirmed
			h.status.SetFacts(f, len(data))
		}
	}
	h.report(err)
}

// retract removes the file: a node that does not exist has no facts.
func (h *factsWriter) retract() error {
	h.content, h.written = "", time.Time{}
	if err := os.Remove(h.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// report logs an error once.
func (h *factsWriter) report(err error) {
	if h.reported.New(err) {
		h.log.Warn("cannot write the facts file; plugins ask the API server", "err", err)
	}
}
