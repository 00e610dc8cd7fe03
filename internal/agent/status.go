package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/agent/paths"
	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/app/serving"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// stuckAfter is how long a pass may be overdue before the agent counts as stuck: several full passes and their time
// limits.
const stuckAfter = 3 * (fullPass + passTime)

// Status is the agent's state for people and probes. It is safe for concurrent use.
type Status struct {
	metrics *metrics
	healthy func(context.Context) error
	traffic func() map[netip.Addr]bgp.Traffic // nil: not counted
	told    func() []netip.Prefix             // nil: not known
	paths   func() [2]paths.Report            // nil: not probed
	// policies is nil if NetworkPolicies are ignored.
	policies *policies.Worker
	pages    map[string]http.HandlerFunc

	mu         sync.Mutex // guards the rest
	stuckAfter time.Duration
	seen       seen
	begun      time.Time // of the pass that has not ended; zero between passes
}

// NewStatus returns the status of a node whose agent has just started. healthy returns an error unless the BGP
// speaker's loop turns.
func NewStatus(node string, now time.Time, healthy func(context.Context) error) *Status {
	s := &Status{
		healthy: healthy, stuckAfter: stuckAfter,
		seen: seen{node: node, started: now, lastPass: now, problems: map[string][]string{}, reasons: map[string]map[string]string{}},
	}
	s.metrics = newMetrics(s)
	s.metrics.addSpeaker(healthy)
	return s
}

// ShowPeers makes metrics for each peer, the mesh's too. Call it before the agent runs.
func (s *Status) ShowPeers() { s.metrics.allPeers = true }

// ShowEnds shows how the sessions with each peer have ended. Call it before the agent runs.
func (s *Status) ShowEnds(of func(peer netip.Addr) []bgp.End) { s.seen.ends = of }

// ShowEvents makes metrics of the events that were written and dropped. Call it before the agent runs.
func (s *Status) ShowEvents(counts func() (written, dropped uint64)) { s.metrics.addEvents(counts) }

// ShowTraffic shows the messages on BGP sessions, and the prefixes announced to peers, at the time of the request. Call
// it before the agent runs.
func (s *Status) ShowTraffic(traffic func() map[netip.Addr]bgp.Traffic, totals func() bgp.Totals, told func() []netip.Prefix) {
	s.traffic, s.told = traffic, told
	s.metrics.addTraffic(totals)
}

// ShowGuard makes metrics of the packets that the guard drops. Call it before the agent runs.
func (s *Status) ShowGuard(read func(context.Context) (map[string]nft.Counter, error)) {
	s.metrics.addGuard(read)
}

// showDatastore makes a metric of the API group in use, and of its lock. Call it before the agent runs.
func (s *Status) showDatastore(read func() (in groups.Group, locked bool)) {
	s.metrics.addDatastore(read)
}

// showPaths shows which nodes are reached. Call it before the agent runs.
func (s *Status) showPaths(report func() [2]paths.Report) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths = report
	s.metrics.addPaths(report)
}

// SetFacts records the facts written for the plugins.
func (s *Status) SetFacts(f facts.Facts, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.facts = &nodestatus.Facts{
		Written: f.Written, AgentReady: f.AgentReady, DatastoreReady: f.DatastoreReady, Bytes: bytes,
		Pools: len(f.Pools), Reservations: len(f.Reservations), Affinities: len(f.Affinities), Namespaces: len(f.Namespaces),
	}
	s.metrics.factsWrites.Inc()
}

// SetJournal records the number of entries left and just finished, and why some are left.
func (s *Status) SetJournal(left, finished int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.journal = nodestatus.Journal{Entries: left}
	if err != nil {
		s.seen.journal.LastError = err.Error()
	}
	s.metrics.finished.Add(float64(finished))
}

// Begin records the beginning of a pass.
func (s *Status) Begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = time.Now()
}

// Passed records the end of a pass.
func (s *Status) Passed(err error, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = time.Time{}
	s.seen.lastPass, s.seen.lastTook, s.seen.lastErr = time.Now(), took, err
	s.metrics.passes.Observe(took.Seconds())
	s.metrics.felixApply.Observe(took.Seconds())
	if err != nil {
		s.metrics.failures.Inc()
		s.metrics.felixFailures.Inc()
		return
	}
	s.seen.ready = true
}

// SetReasons replaces the reasons of the Events about an area's problems, by their texts.
func (s *Status) SetReasons(about string, reasons map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.seen.reasons)
	all[about] = reasons
	s.seen.reasons = all
}

// SetProblems replaces the problems of an area.
func (s *Status) SetProblems(about string, problems []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.seen.problems) // a report that is being made may use the former map
	all[about] = problems
	s.seen.problems = all
}

// SetUnacted records which fields of configurations have no effect.
func (s *Status) SetUnacted(all []state.Unacted) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.unacted = all
}

// SetFound records all addresses of the host, even if none is usable.
func (s *Status) SetFound(found []nodeaddr.Candidate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.found = found
}

// SetNode records the snapshot of a pass, which must not change afterwards.
func (s *Status) SetNode(snap *desired.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.snapshot = snap
}

// pods returns how many pods have these addresses: each has at most one of a family.
func pods(addrs []netip.Addr) int {
	v4 := 0
	for _, a := range addrs {
		if a.Is4() {
			v4++
		}
	}
	return max(v4, len(addrs)-v4)
}

// SetBGP replaces the sessions and the learned paths. Call it after SetNode.
func (s *Status) SetBGP(peers []bgp.PeerStatus, learned []bgp.Path) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.seen.peers
	s.seen.peers, s.seen.learned, s.seen.bgp = peers, learned, true
	s.metrics.countSessions(before, &s.seen)
}

// SetRoutes records the desired routes and the writes to the kernel.
func (s *Status) SetRoutes(r routesSeen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.routes = r
	s.metrics.routeWrites.WithLabelValues("add").Add(float64(r.stats.Added))
	s.metrics.routeWrites.WithLabelValues("replace").Add(float64(r.stats.Replaced))
	s.metrics.routeWrites.WithLabelValues("delete").Add(float64(r.stats.Deleted))
}

// now returns the present state.
func (s *Status) now() seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen // its references are replaced, never changed
}

// Report returns the present report. It takes time per route: callers that need less use less.
func (s *Status) Report() nodestatus.Report {
	known := s.now()
	if s.traffic != nil {
		known.traffic = s.traffic()
	}
	if s.told != nil {
		known.told = s.told()
	}
	r := known.report(time.Now())
	ways := s.pathReports()
	r.Paths, r.Paths6 = ways[0], ways[1]
	var problems []string
	var reasons map[string]string
	r.Policy, problems, reasons = policyReport(s.policies)
	for text, reason := range reasons {
		r.Reason(text, reason)
	}
	r.EnforcesPolicies = r.Policy != nil && r.Policy.Reason == ""
	r.Problems = append(r.Problems, problems...)
	return r
}

// Handler serves /livez, /readyz, /metrics and /status.
func (s *Status) Handler() http.Handler {
	return serving.Program{
		Alive: s.alive, Ready: s.ready, Metrics: s.metrics.registry, Status: func() any { return s.Report() }, Local: s.pages,
	}.Handler()
}

// speakerTime bounds how long the BGP speaker may take to answer; the liveness probe itself waits a second longer.
const speakerTime = 4 * time.Second

// alive returns an error unless both loops turn: the agent's own and the BGP speaker's. An agent that waits for its API
// server before its first pass is alive.
func (s *Status) alive(ctx context.Context) error {
	s.mu.Lock()
	begun, last, passed, limit := s.begun, s.seen.lastPass, s.seen.ready || s.seen.lastErr != nil, s.stuckAfter
	s.mu.Unlock()
	if !begun.IsZero() && time.Since(begun) > limit {
		return fmt.Errorf("a pass began %s ago and has not ended", time.Since(begun).Round(time.Second))
	}
	if passed && time.Since(last) > limit {
		return fmt.Errorf("the last pass ended %s ago", time.Since(last).Round(time.Second))
	}
	ctx, cancel := context.WithTimeout(ctx, speakerTime)
	defer cancel()
	if err := s.healthy(ctx); err != nil {
		return fmt.Errorf("BGP speaker: %w", err)
	}
	return nil
}

// ready returns an error while this node's dataplane, with policies, is not in place. Neither a dead peer nor an absent
// API server makes a node unready.
func (s *Status) ready(context.Context) error {
	known := s.now()
	switch {
	case known.ready && s.policies == nil:
		return nil
	case known.ready:
		return s.policies.NotInPlace()
	case known.lastErr != nil:
		return known.lastErr
	default:
		return errors.New("the first pass has not ended yet")
	}
}

// Serve serves the handler until ctx ends.
func (s *Status) Serve(ctx context.Context, addr string, log *slog.Logger) error {
	return serving.Run(ctx, addr, s.Handler(), log.With("paths", "/livez /readyz /metrics /status"), "FELIX_HEALTHHOST, FELIX_HEALTHPORT")
}

// ServeMetrics serves /metrics alone until ctx ends.
func (s *Status) ServeMetrics(ctx context.Context, addr string, log *slog.Logger) error {
	return serving.Run(ctx, addr, serving.Metrics(s.metrics.registry), log.With("paths", "/metrics"),
		"FELIX_PROMETHEUSMETRICSHOST, FELIX_PROMETHEUSMETRICSPORT")
}
