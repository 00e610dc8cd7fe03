package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/facts"
	"github.com/tortie-net/tortie/internal/nodestatus"
)

// stuckAfter is how long a pass may be overdue before the agent counts as stuck: several full passes and their time limits.
const stuckAfter = 3 * (fullPass + passTime)

// Status is what the agent tells people and probes. It is safe for concurrent use.
type Status struct {
	registry *prometheus.Registry
	healthy  func(context.Context) error

	mu   sync.Mutex
	seen seen

	passes      prometheus.Histogram
	failures    prometheus.Counter
	peers       *prometheus.GaugeVec
	learned     prometheus.Gauge
	refused     prometheus.Gauge
	originated  prometheus.Gauge
	routes      prometheus.Gauge
	routeWrites *prometheus.CounterVec
	readyGauge  prometheus.Gauge
	factsBytes  prometheus.Gauge
	factsWrites prometheus.Counter
	entries     prometheus.Gauge
	finished    prometheus.Counter
}

// NewStatus returns the status of a node whose agent has just started. healthy proves that the BGP speaker's loop turns.
func NewStatus(node string, now time.Time, healthy func(context.Context) error) *Status {
	s := &Status{
		registry: prometheus.NewRegistry(),
		healthy:  healthy,
		seen:     seen{node: node, started: now, lastPass: now, problems: map[string][]string{}},
		passes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tortie_node_pass_seconds", Help: "Time of one comparison of this node with what it should be.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tortie_node_pass_failures_total", Help: "Passes after which this node was not as it should be.",
		}),
		peers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tortie_bgp_peers", Help: "Configured BGP sessions by state.",
		}, []string{"state"}),
		learned: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tortie_bgp_learned_prefixes", Help: "Prefixes learned and accepted from BGP peers.",
		}),
		refused: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tortie_bgp_refused_prefixes", Help: "Learned prefixes inside a pool that lead to a node that does not own them.",
		}),
		originated: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tortie_bgp_originated_prefixes", Help: "Prefixes that this node announces.",
		}),
		routes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tortie_routes_desired", Help: "Routes that this node should have in the kernel.",
		}),
		routeWrites: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tortie_route_writes_total", Help: "Routes written to the kernel by what was done.",
		}, []string{"op"}),
		readyGauge: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tortie_node_ready", Help: "1 once the dataplane of this node stands.",
		}),
	}
	s.addPluginMetrics(now)
	s.registry.MustRegister(s.passes, s.failures, s.peers, s.learned, s.refused, s.originated, s.routes, s.routeWrites, s.readyGauge,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return s
}

// addPluginMetrics makes the metrics of what the agent does for the plugins.
func (s *Status) addPluginMetrics(begun time.Time) {
	s.factsBytes = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_facts_bytes", Help: "Size of the file of facts that saves the plugins requests.",
	})
	s.factsWrites = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tortie_facts_writes_total", Help: "How often the file of facts was written.",
	})
	age := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tortie_facts_age_seconds", Help: "Time since the facts were last known to hold; over 30 the plugins ask the API server instead.",
	}, func() float64 {
		since := begun
		if f := s.now().facts; f != nil {
			since = f.Written
		}
		return time.Since(since).Seconds()
	})
	s.entries = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_journal_entries", Help: "Containers whose addresses are still to be released because the API server was away.",
	})
	s.finished = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tortie_journal_finished_total", Help: "Containers whose addresses the agent has released for the plugins.",
	})
	s.registry.MustRegister(s.factsBytes, s.factsWrites, age, s.entries, s.finished)
}

// SetFacts notes what the plugins were told.
func (s *Status) SetFacts(f facts.Facts, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.facts = &nodestatus.Facts{
		Written: f.Written, AgentReady: f.AgentReady, DatastoreReady: f.DatastoreReady, Bytes: bytes,
		Pools: len(f.Pools), Reservations: len(f.Reservations), Affinities: len(f.Affinities), Namespaces: len(f.Namespaces),
	}
	s.factsBytes.Set(float64(bytes))
	s.factsWrites.Inc()
}

// SetJournal notes what the plugins have left to do, how much of that was just done, and why not all.
func (s *Status) SetJournal(left, finished int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.journal = nodestatus.Journal{Entries: left}
	if err != nil {
		s.seen.journal.LastError = err.Error()
	}
	s.entries.Set(float64(left))
	s.finished.Add(float64(finished))
}

// Passed notes the end of a pass.
func (s *Status) Passed(err error, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.lastPass, s.seen.lastTook, s.seen.lastErr = time.Now(), took, err
	s.passes.Observe(took.Seconds())
	if err != nil {
		s.failures.Inc()
		return
	}
	s.seen.ready = true
	s.readyGauge.Set(1)
}

// SetProblems replaces what is known to be wrong about something.
func (s *Status) SetProblems(about string, problems []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.seen.problems) // a copy is out there for a report that is being made
	all[about] = problems
	s.seen.problems = all
}

// SetNode notes what a pass has found. The snapshot is not changed any more.
func (s *Status) SetNode(snap *Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.snapshot = snap
}

// SetBGP replaces what is known of sessions and learned paths, after SetNode.
func (s *Status) SetBGP(peers []bgp.PeerStatus, learned []bgp.Path) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.peers, s.seen.learned = peers, learned
	s.peers.Reset()
	s.peers.WithLabelValues(string(bgp.Established)) // shown even when it is 0, for alerts
	for _, p := range peers {
		s.peers.WithLabelValues(string(p.State)).Inc()
	}
	s.learned.Set(float64(len(learned)))
	s.originated.Set(float64(len(s.seen.snapshot.Originated())))
}

// SetRoutes notes what the kernel should have and what was written.
func (s *Status) SetRoutes(r routesSeen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen.routes = r
	s.routes.Set(float64(r.desired))
	s.refused.Set(float64(len(r.refused)))
	s.routeWrites.WithLabelValues("add").Add(float64(r.stats.Added))
	s.routeWrites.WithLabelValues("replace").Add(float64(r.stats.Replaced))
	s.routeWrites.WithLabelValues("delete").Add(float64(r.stats.Deleted))
}

// now returns what is known now.
func (s *Status) now() seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen // what it refers to is replaced, never changed
}

// Report says what is known now. It costs time for each route: who needs less asks for less.
func (s *Status) Report() nodestatus.Report {
	known := s.now()
	return known.report(time.Now())
}

// Handler serves /livez, /readyz, /metrics and /status.
func (s *Status) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", probe(s.alive))
	mux.HandleFunc("GET /readyz", probe(s.ready))
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(s.Report()) // a reader that went away is its own loss
	})
	return mux
}

func probe(check func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := check(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// alive proves that both loops turn: the agent's own and the BGP speaker's.
func (s *Status) alive(ctx context.Context) error {
	known := s.now()
	if since := time.Since(known.lastPass); since > stuckAfter && known.ready {
		return fmt.Errorf("the last pass ended %s ago", since.Round(time.Second))
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := s.healthy(ctx); err != nil {
		return fmt.Errorf("BGP speaker: %w", err)
	}
	return nil
}

// ready is about this node's dataplane alone: neither a dead peer nor an API server that is away makes a node unready.
func (s *Status) ready(context.Context) error {
	known := s.now()
	switch {
	case known.ready:
		return nil
	case known.lastErr != nil:
		return known.lastErr
	default:
		return errors.New("the first pass has not ended yet")
	}
}

// Serve serves the handler until ctx ends.
func (s *Status) Serve(ctx context.Context, addr string, log *slog.Logger) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("serve health and metrics (FELIX_HEALTHHOST, FELIX_HEALTHPORT): %w", err)
	}
	server := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	log.Info("serving /livez, /readyz, /metrics and /status", "address", l.Addr())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
