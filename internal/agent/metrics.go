package agent

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/tortie-net/tortie/internal/app/version"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/kernel/nft"
)

// metrics are what the agent counts. Those of Felix are here where they are true of this agent too, so that dashboards and
// alerts of a cluster that ran Calico go on; a name that would mean something else is left out.
type metrics struct {
	registry *prometheus.Registry

	passes    prometheus.Histogram
	failures  prometheus.Counter
	ready     prometheus.Gauge
	lastPass  prometheus.Gauge
	problems  *prometheus.GaugeVec
	blocks    prometheus.Gauge
	endpoints prometheus.Gauge
	hosts     prometheus.Gauge

	peers      *prometheus.GaugeVec
	held       prometheus.Gauge
	changes    prometheus.Counter
	lastChange prometheus.Gauge
	received   prometheus.Gauge
	sent       prometheus.Gauge
	learned    prometheus.Gauge
	refused    prometheus.Gauge
	reflection prometheus.Gauge
	originated prometheus.Gauge

	routes      prometheus.Gauge
	programmed  prometheus.Gauge
	heldRoutes  prometheus.Gauge
	routeWrites *prometheus.CounterVec

	factsBytes  prometheus.Gauge
	factsWrites prometheus.Counter
	entries     prometheus.Gauge
	finished    prometheus.Counter

	felixApply    prometheus.Summary
	felixFailures prometheus.Counter
	felixRoutes   *prometheus.GaugeVec

	perPeer *perPeer
	bgp     *bgpMetrics
}

// perPeer are series for each peer that a BGPPeer is about. For those of the mesh they would grow with the square of the nodes: only on
// request.
type perPeer struct {
	all bool // also the mesh's

	up       *prometheus.GaugeVec
	received *prometheus.GaugeVec
	sent     *prometheus.GaugeVec
	since    *prometheus.GaugeVec
	refused  *prometheus.GaugeVec
	losses   *prometheus.CounterVec

	shown map[peerLabels]time.Time // since when the session is up, zero if it is not
}

// peerLabels are the values of a peer's labels.
type peerLabels [3]string

func (p *perPeer) gauges() []*prometheus.GaugeVec {
	return []*prometheus.GaugeVec{p.up, p.received, p.sent, p.since, p.refused}
}

func newMetrics(node string) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	m.addOwn()
	m.addBGP()
	m.addSessions()
	m.addPerPeer()
	m.addMD5()
	m.addRoutes()
	m.addPlugins()
	m.addFelix(node)
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// addOwn makes the metrics of the agent's loop.
func (m *metrics) addOwn() {
	m.passes = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "tortie_node_pass_seconds", Help: "Time of one comparison of this node with what it should be.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
	})
	m.failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tortie_node_pass_failures_total", Help: "Passes after which this node was not as it should be.",
	})
	m.ready = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_node_ready", Help: "1 once the dataplane of this node stands.",
	})
	m.lastPass = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_node_last_pass_timestamp_seconds", Help: "When the last pass ended; it is seldom more than 30 seconds ago.",
	})
	m.problems = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tortie_node_problems", Help: "Problems that status lists, by what they are about: object (of the API), path (of BGP), address, gateway (of a BGPPeer), reflection, calico (that still runs), host, nftables, memory (of the next agent), facts or start.",
	}, []string{"about"})
	m.blocks = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_node_blocks", Help: "Confirmed blocks of this node.",
	})
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tortie_build_info", Help: "Always 1; the label has the agent's version.",
	}, []string{"version"})
	build.WithLabelValues(version.Version).Set(1)
	m.registry.MustRegister(m.passes, m.failures, m.ready, m.lastPass, m.problems, m.blocks, build)
}

// addBGP makes the metrics of sessions and paths.
func (m *metrics) addBGP() {
	m.peers = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tortie_bgp_peers", Help: "Configured BGP sessions by state.",
	}, []string{"state"})
	m.held = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_bgp_held_down_peers", Help: "Peers whose sessions are kept closed for what they did, such as announcing too many prefixes.",
	})
	m.changes = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tortie_bgp_session_changes_total", Help: "How often a session was established or lost.",
	})
	m.lastChange = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_bgp_last_change_timestamp_seconds", Help: "When a session was last established, lost or configured; 0 without sessions.",
	})
	m.received = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_bgp_received_prefixes", Help: "Prefixes that all peers together have announced, usable or not.",
	})
	m.sent = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_bgp_sent_prefixes", Help: "Prefixes that were announced to all peers together.",
	})
	m.learned = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_bgp_learned_prefixes", Help: "Prefixes inside the pools that BGP has learned.",
	})
	m.refused = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_bgp_refused_prefixes", Help: "Of these, those that must not become routes, as the next hop does not own them or they fit no pool's blocks.",
	})
	m.reflection = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_bgp_reflection_nodes", Help: "Nodes that take part in the agreement on route reflectors; 0 where there is none.",
	})
	m.originated = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_bgp_originated_prefixes", Help: "Prefixes that this node announces.",
	})
	m.registry.MustRegister(m.peers, m.held, m.changes, m.lastChange, m.received, m.sent, m.learned, m.refused, m.originated, m.reflection)
}

// addRoutes makes the metrics of the kernel's routes.
func (m *metrics) addRoutes() {
	m.routes = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_routes_desired", Help: "Routes that this node should have in the kernel.",
	})
	m.programmed = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_routes_programmed", Help: "Of these, those that the last pass found or made right.",
	})
	m.heldRoutes = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_routes_held", Help: "Routes of an earlier agent that are kept although nobody has confirmed them yet.",
	})
	m.routeWrites = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tortie_route_writes_total", Help: "Routes written to the kernel by what was done.",
	}, []string{"op"})
	m.registry.MustRegister(m.routes, m.programmed, m.heldRoutes, m.routeWrites)
}

// addPlugins makes the metrics of what the agent does for the plugins.
func (m *metrics) addPlugins() {
	m.factsBytes = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_facts_bytes", Help: "Size of the file of facts that saves the plugins requests.",
	})
	m.factsWrites = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tortie_facts_writes_total", Help: "How often the file of facts was written.",
	})
	m.entries = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_journal_entries", Help: "Containers whose addresses are still to be released because the API server was away.",
	})
	m.finished = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tortie_journal_finished_total", Help: "Containers whose addresses the agent has released for the plugins.",
	})
	m.registry.MustRegister(m.factsBytes, m.factsWrites, m.entries, m.finished)
}

// addFelix makes those of Felix's metrics that are true here.
func (m *metrics) addFelix(node string) {
	host := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "felix_host", Help: "Always 1; the label has the node's name.",
	}, []string{"host"})
	host.WithLabelValues(node).Set(1)
	m.felixApply = prometheus.NewSummary(prometheus.SummaryOpts{
		Name: "felix_int_dataplane_apply_time_seconds", Help: "As tortie_node_pass_seconds, under Felix's name.",
		Objectives: map[float64]float64{0.5: 0.05, 0.9: 0.01, 0.99: 0.001},
	})
	m.felixFailures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "felix_int_dataplane_failures", Help: "As tortie_node_pass_failures_total, under Felix's name.",
	})
	m.felixRoutes = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "felix_route_table_num_routes", Help: "Routes of the agent in the kernel, held ones among them; the table is always main.",
	}, []string{"table"})
	m.hosts = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "felix_cluster_num_hosts", Help: "Nodes of the cluster that have announced an address, this one among them.",
	})
	m.endpoints = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "felix_active_local_endpoints", Help: "Pods of this node, by the kernel's routes to them.",
	})
	m.registry.MustRegister(host, m.felixApply, m.felixFailures, m.felixRoutes, m.hosts, m.endpoints)
}

// addPerPeer makes the series of single peers.
func (m *metrics) addPerPeer() {
	labels := &perPeer{
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tortie_bgp_peer_up", Help: "1 if the session is established. There are tortie_bgp_peer_* for peers of BGPPeers, 100 at most, and with TORTIE_METRICS_PER_PEER=true for all.",
		}, []string{"peer", "node", "object"}),
		received: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tortie_bgp_peer_received_prefixes", Help: "Prefixes that the peer has announced.",
		}, []string{"peer", "node", "object"}),
		sent: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tortie_bgp_peer_sent_prefixes", Help: "Prefixes that were announced to the peer.",
		}, []string{"peer", "node", "object"}),
		since: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tortie_bgp_peer_since_timestamp_seconds", Help: "When the session was established or, if it is not, when it was lost or first configured.",
		}, []string{"peer", "node", "object"}),
		refused: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tortie_bgp_peer_refused_prefixes", Help: "Of the prefixes that the peer has announced, those that are not taken, by BGP's rules or a BGPFilter.",
		}, []string{"peer", "node", "object"}),
		losses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tortie_bgp_peer_losses_total", Help: "How often the session was lost.",
		}, []string{"peer", "node", "object"}),
		shown: map[peerLabels]time.Time{},
	}
	m.perPeer = labels
	m.registry.MustRegister(labels.up, labels.received, labels.sent, labels.since, labels.refused, labels.losses)
}

var allStates = []bgp.State{bgp.Idle, bgp.Active, bgp.OpenSent, bgp.OpenConfirm, bgp.Established}

// setPeers counts the sessions. before is what they were at the last look. A scrape may come at any moment: no number is ever one
// that was not so.
func (m *metrics) setPeers(before, peers []bgp.PeerStatus, now time.Time) {
	held, received, sent, last := 0, 0, 0, time.Time{}
	states := make(map[bgp.State]int, len(allStates))
	for _, p := range peers {
		states[p.State]++
		if p.HeldUntil.After(now) {
			held++
		}
		received += p.Received
		sent += p.Sent
		if p.Since.After(last) {
			last = p.Since
		}
	}
	for _, state := range allStates { // also those that none is in, for alerts
		m.peers.WithLabelValues(string(state)).Set(float64(states[state]))
	}
	m.held.Set(float64(held))
	m.received.Set(float64(received))
	m.sent.Set(float64(sent))
	m.lastChange.Set(seconds(last))
	m.changes.Add(float64(changesOf(before, peers)))
}

// seconds is a time as Prometheus has it.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// changesOf counts the sessions that were established or lost between two looks, both in the order of their addresses. One that
// was lost and is back counts twice: it has another time.
func changesOf(before, now []bgp.PeerStatus) int {
	changes := 0
	for _, p := range now {
		for len(before) > 0 && before[0].Addr.Less(p.Addr) {
			before = before[1:]
		}
		known := len(before) > 0 && before[0].Addr == p.Addr
		up := p.State == bgp.Established
		switch {
		case known && (before[0].State == bgp.Established) != up, !known && up:
			changes++
		case known && up && !before[0].Since.Equal(p.Since):
			changes += 2
		}
	}
	return changes
}

// set replaces the series. object names the BGPPeer and the node of a peer.
func (p *perPeer) set(peers []bgp.PeerStatus, object func(bgp.PeerStatus) (node, object string)) {
	now := make(map[peerLabels]time.Time, len(peers))
	for _, peer := range peers {
		node, name := object(peer)
		labels := peerLabels{peer.Addr.String(), node, name}
		up, refused := 0.0, 0
		now[labels] = time.Time{}
		if peer.State == bgp.Established {
			up, now[labels] = 1, peer.Since
		}
		for _, r := range peer.Refused {
			refused += r.Prefixes
		}
		for i, value := range []float64{up, float64(peer.Received), float64(peer.Sent), seconds(peer.Since), float64(refused)} {
			p.gauges()[i].WithLabelValues(labels[:]...).Set(value)
		}
		lost := p.losses.WithLabelValues(labels[:]...) // there from the first look
		if since := p.shown[labels]; !since.IsZero() && !since.Equal(now[labels]) {
			lost.Inc()
		}
	}
	for labels := range p.shown {
		if _, still := now[labels]; !still {
			for _, vec := range p.gauges() {
				vec.DeleteLabelValues(labels[:]...)
			}
			p.losses.DeleteLabelValues(labels[:]...)
		}
	}
	p.shown = now
}

// loopTime bounds how long a scrape waits for BGP's loop.
const loopTime = time.Second

// addLive makes the metrics that are found out when they are asked for.
func (m *metrics) addLive(begun time.Time, healthy func(context.Context) error, factsWritten func() time.Time) {
	age := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tortie_facts_age_seconds", Help: "Time since the facts were last known to hold; over 30 the plugins ask the API server instead.",
	}, func() float64 {
		since := factsWritten()
		if since.IsZero() {
			since = begun
		}
		return time.Since(since).Seconds()
	})
	loop := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tortie_bgp_loop_seconds", Help: "How long BGP's loop took to answer when this was asked for; infinite if it was more than a second.",
	}, func() float64 {
		ctx, cancel := context.WithTimeout(context.Background(), loopTime)
		defer cancel()
		asked := time.Now()
		if healthy(ctx) != nil {
			return math.Inf(1)
		}
		return time.Since(asked).Seconds()
	})
	m.registry.MustRegister(age, loop)
}

// addEvents makes the metrics of what operators are told.
func (m *metrics) addEvents(counts func() (written, dropped uint64)) {
	written := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "tortie_events_written_total", Help: "Kubernetes Events that were written, or counted on.",
	}, func() float64 { n, _ := counts(); return float64(n) })
	dropped := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "tortie_events_dropped_total", Help: "Kubernetes Events that were not written: the API server was away, or they were too many.",
	}, func() float64 { _, n := counts(); return float64(n) })
	m.registry.MustRegister(written, dropped)
}

// guardTime bounds how long a scrape waits for the kernel's counters.
const guardTime = 2 * time.Second

// guardCounters are the guard's, read from the kernel when they are asked for. Its rules begin anew when they change; the metric
// goes on.
type guardCounters struct {
	read    func(context.Context) (map[string]nft.Counter, error)
	dropped *prometheus.CounterVec

	mu   sync.Mutex
	last map[string]uint64
}

// addGuard makes the metrics of what the packet guard has dropped.
func (m *metrics) addGuard(read func(context.Context) (map[string]nft.Counter, error)) {
	g := &guardCounters{read: read, last: map[string]uint64{}}
	g.dropped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tortie_guard_dropped_packets_total", Help: "Packets that the packet guard dropped, by reason: tunnel packets whose sender is no node of the cluster, and what pods must not send.",
	}, []string{"reason"})
	m.registry.MustRegister(g)
}

// Describe implements prometheus.Collector.
func (g *guardCounters) Describe(ch chan<- *prometheus.Desc) { g.dropped.Describe(ch) }

// Collect implements prometheus.Collector. What cannot be read now is what it was.
func (g *guardCounters) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), guardTime)
	defer cancel()
	g.mu.Lock()
	defer g.mu.Unlock()
	if counters, err := g.read(ctx); err == nil {
		for reason, c := range counters {
			g.dropped.WithLabelValues(reason).Add(float64(grown(g.last[reason], c.Packets)))
			g.last[reason] = c.Packets
		}
	}
	g.dropped.Collect(ch)
}

// grown is by how much a counter has grown that may have begun at zero again.
func grown(before, now uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}
