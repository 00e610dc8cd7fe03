package agent

import (
	"cmp"
	"context"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/agent/paths"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/version"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/bfd"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nft"
)

// metrics are the agent's metrics for Prometheus. Those that follow from a Status are in a table, computed at a scrape;
// the rest are counters. There are metrics of Felix too where they are true of this agent, so that dashboards and
// alerts of a former Calico cluster go on; a name with another meaning is left out.
type metrics struct {
	registry *prometheus.Registry

	passes      prometheus.Histogram
	failures    prometheus.Counter
	changes     prometheus.Counter
	routeWrites *prometheus.CounterVec
	factsWrites prometheus.Counter
	finished    prometheus.Counter

	felixApply    prometheus.Summary
	felixFailures prometheus.Counter

	losses   *prometheus.CounterVec
	allPeers bool                     // also series of the mesh's peers
	up       map[peerLabels]time.Time // since when sessions with a loss counter are up; zero: not up
	notTaken *prometheus.GaugeVec
	reasons  map[string]bool // with series of notTaken
}

// peerLabels are a peer's address, node and BGPPeer.
type peerLabels [3]string

// sample is the state at a scrape.
type sample struct {
	*seen
	now      time.Time
	sessions map[netip.Addr]desired.Session
	role     string
	shown    []bgp.PeerStatus
	labels   []peerLabels // of shown
}

// sum adds up a value of all peers.
func (s *sample) sum(of func(bgp.PeerStatus) float64) (sum float64) {
	for _, p := range s.peers {
		sum += of(p)
	}
	return sum
}

func (s *sample) count(is func(bgp.PeerStatus) bool) float64 {
	return s.sum(func(p bgp.PeerStatus) float64 { return truth(is(p)) })
}

// row is one line of a table of metrics.
type row struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	values func(s *sample, set func(value float64, labels ...string))
}

func gauge(name, help string, value func(*sample) float64) row {
	return row{prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue,
		func(s *sample, set func(float64, ...string)) { set(value(s)) }}
}

func gauges(name, help string, labels []string, values func(*sample, func(float64, ...string))) row {
	return row{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue, values}
}

func counter(name, help string, value func() float64) row {
	return row{prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue,
		func(_ *sample, set func(float64, ...string)) { set(value()) }}
}

// peerGauge is a gauge with a value per shown peer.
func peerGauge(name, help string, labels []string, value func(bgp.PeerStatus) float64) row {
	return gauges(name, help, labels, func(s *sample, set func(float64, ...string)) {
		for i, p := range s.shown {
			set(value(p), s.labels[i][:]...)
		}
	})
}

// ofKeys returns the values of a gauge of WireGuard's devices that have keys.
func ofKeys(value func(nodestatus.Tunnel) float64) func(*sample, func(float64, ...string)) {
	return func(s *sample, set func(float64, ...string)) {
		for _, t := range tunnelReports(s.snapshot) {
			if !t.KeySince.IsZero() {
				set(value(t), t.Device)
			}
		}
	}
}

// table is a prometheus.Collector.
type table struct {
	scrape func() *sample
	rows   []row
}

// Describe implements prometheus.Collector.
func (t table) Describe(ch chan<- *prometheus.Desc) {
	for _, r := range t.rows {
		ch <- r.desc
	}
}

// Collect implements prometheus.Collector. All values are of one moment.
func (t table) Collect(ch chan<- prometheus.Metric) {
	s := t.scrape()
	for _, r := range t.rows {
		r.values(s, func(value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(r.desc, r.kind, value, labels...)
		})
	}
}

func (m *metrics) add(rows ...row) {
	m.registry.MustRegister(table{func() *sample { return nil }, rows})
}

func number[T int | uint64](n T) float64 { return float64(n) }

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// rows are the metrics that follow from a Status.
var rows = []row{
	gauge("tortie_node_ready", "1 once the dataplane of this node stands.", func(s *sample) float64 { return truth(s.ready) }),
	gauge("tortie_node_last_pass_timestamp_seconds", "When the last pass ended; it is seldom more than 30 seconds ago.",
		func(s *sample) float64 {
			if s.lastTook == 0 { // there was no pass
				return 0
			}
			return seconds(s.lastPass)
		}),
	gauges("tortie_node_problems", "Problems that status lists, by what they are about: object (of the API), path "+
		"(of BGP), address, gateway (of a BGPPeer), bfd (with peers behind routers), reflection, calico (that still runs), host, nftables, "+
		"memory (of the next agent), wireguard, encryption (by WireGuard, of what is sent to other nodes), facts or start.", []string{"about"},
		func(s *sample, set func(float64, ...string)) {
			for about, problems := range s.problems {
				set(number(len(problems)), about)
			}
		}),
	gauge("tortie_node_blocks", "Confirmed blocks of this node.", func(s *sample) float64 { return number(len(s.snapshot.Blocks)) }),
	gauges("tortie_build_info", "Always 1; the label has the agent's version.", []string{"version"},
		func(_ *sample, set func(float64, ...string)) { set(1, version.Version) }),

	gauges("tortie_bgp_peers", "Configured BGP sessions by state.", []string{"state"}, func(s *sample, set func(float64, ...string)) {
		for _, state := range allStates { // also states of no session, for alerts
			set(s.count(func(p bgp.PeerStatus) bool { return p.State == state }), string(state))
		}
	}),
	gauge("tortie_bgp_held_down_peers", "Peers whose sessions are kept closed for what they did, such as announcing too many prefixes.",
		func(s *sample) float64 {
			return s.count(func(p bgp.PeerStatus) bool { return p.HeldUntil.After(s.now) })
		}),
	gauge("tortie_bgp_last_change_timestamp_seconds", "When a session was last established, lost or configured; 0 without sessions.",
		func(s *sample) (last float64) {
			for _, p := range s.peers {
				last = max(last, seconds(p.Since))
			}
			return last
		}),
	gauge("tortie_bgp_received_prefixes", "Prefixes that all peers together have announced, usable or not.", func(s *sample) float64 {
		return s.sum(func(p bgp.PeerStatus) float64 { return number(p.Received) })
	}),
	gauge("tortie_bgp_sent_prefixes", "Prefixes that were announced to all peers together.", func(s *sample) float64 {
		return s.sum(func(p bgp.PeerStatus) float64 { return number(p.Sent) })
	}),
	gauge("tortie_bgp_learned_prefixes", "Prefixes inside the pools that BGP has learned.",
		func(s *sample) float64 { return number(len(s.learned)) }),
	gauge("tortie_bgp_refused_prefixes",
		"Of these, those that must not become routes, as the next hop does not own them or they fit no pool's blocks.",
		func(s *sample) float64 { return number(desired.Objections(s.routes.refused)) }),
	gauge("tortie_bgp_originated_prefixes", "Prefixes that this node announces.", func(s *sample) float64 {
		return truth(s.bgp) * number(len(s.snapshot.Originated()))
	}),
	gauge("tortie_bgp_whole_tables", "Established sessions on which the peer has sent the whole of its table.", func(s *sample) float64 {
		return s.count(func(p bgp.PeerStatus) bool { return p.State == bgp.Established && p.EndOfTable() })
	}),
	gauges("tortie_bgp_reflector_role",
		"1 for this node's part in route reflection: none, client, reflector, or configured if an operator has made it a reflector.",
		[]string{"role"}, func(s *sample, set func(float64, ...string)) {
			for _, role := range []string{"none", "client", "reflector", "configured"} {
				set(truth(role == s.role), role)
			}
		}),
	gauge("tortie_bgp_reflector_sessions", "Established sessions with reflectors that kube-controllers has made.", func(s *sample) float64 {
		reflectors := s.snapshot.Reflectors()
		return s.count(func(p bgp.PeerStatus) bool {
			return p.State == bgp.Established && slices.Contains(reflectors, s.sessions[p.Addr].Source.Node)
		})
	}),
	gauge("tortie_services_announced_prefixes", "Prefixes that this node announces for services: ranges and single addresses.",
		func(s *sample) float64 {
			return truth(s.bgp) * number(len(s.snapshot.Services))
		}),
	counter("tortie_tcp_md5_failures_total", "TCP segments that the kernel has dropped for their "+
		"password (MD5 signature): none, another, or one where there is to be none. They are of the whole host, as the kernel counts no others.",
		func() float64 { return number(netlinkx.WrongPasswords()) }),

	counters("tortie_tcp_ao_segments_total", "TCP segments that TCP-AO had the kernel judge, of the whole host, by result: good, or "+
		"dropped: bad (another secret or algorithm), key-not-found (no key with the ID), unsigned (from a peer with keys).", []string{"result"},
		func(set func(float64, ...string)) {
			n := netlinkx.ReadAO()
			set(number(n.Good), "good")
			set(number(n.Bad), "bad")
			set(number(n.KeyNotFound), "key-not-found")
			set(number(n.Unsigned), "unsigned")
		}),

	peerGauge("tortie_bgp_peer_up", "1 if the session is established. There are tortie_bgp_peer_* for peers of "+
		"BGPPeers, 100 at most, and with TORTIE_METRICS_PER_PEER=true for all.", []string{"peer", "node", "object"},
		func(p bgp.PeerStatus) float64 { return truth(p.State == bgp.Established) }),
	peerGauge("tortie_bgp_peer_received_prefixes", "Prefixes that the peer has announced.", []string{"peer", "node", "object"},
		func(p bgp.PeerStatus) float64 { return number(p.Received) }),
	peerGauge("tortie_bgp_peer_sent_prefixes", "Prefixes that were announced to the peer.", []string{"peer", "node", "object"},
		func(p bgp.PeerStatus) float64 { return number(p.Sent) }),
	peerGauge("tortie_bgp_peer_since_timestamp_seconds",
		"When the session was established or, if it is not, when it was lost or first configured.", []string{"peer", "node", "object"},
		func(p bgp.PeerStatus) float64 { return seconds(p.Since) }),
	peerGauge("tortie_bgp_peer_refused_prefixes",
		"Of the prefixes that the peer has announced, those that are not taken, by BGP's rules or a BGPFilter.",
		[]string{"peer", "node", "object"}, func(p bgp.PeerStatus) (refused float64) {
			for _, r := range p.Refused {
				refused += number(r.Prefixes)
			}
			return refused
		}),

	gauges("tortie_bgp_peer_removed_tcp_ao_keys", "TCP-AO keys that were removed for more than a minute and that "+
		"the peer goes on using: the session ends a week after the removal. Peers without TCP-AO have none.", []string{"peer", "node", "object"},
		func(s *sample, set func(float64, ...string)) {
			for i, p := range s.shown {
				if s.sessions[p.Addr].Peer.AO != "" {
					set(number(len(strings.Fields(p.OldKeys))), s.labels[i][:]...)
				}
			}
		}),
	gauges("tortie_bgp_peer_bfd_up", "1 if the peer's BFD session is up; peers without BFD have none.", []string{"peer", "node", "object"},
		func(s *sample, set func(float64, ...string)) {
			for i, p := range s.shown {
				if p.BFD != nil {
					set(truth(p.BFD.State == bfd.Up), s.labels[i][:]...)
				}
			}
		}),
	gauges("tortie_bfd_sessions", "BFD sessions by state.", []string{"state"}, func(s *sample, set func(float64, ...string)) {
		for _, state := range []bfd.State{bfd.Down, bfd.Init, bfd.Up} {
			set(s.count(func(p bgp.PeerStatus) bool { return p.BFD != nil && p.BFD.State == state }), state.String())
		}
	}),
	gauge("tortie_bfd_missing_peers", "Peers whose BGP session is established and whose BFD session is not up: only the hold timer finds a "+
		"failure. Peers without BFD do not count.", func(s *sample) float64 {
		return s.count(func(p bgp.PeerStatus) bool {
			return p.State == bgp.Established && p.BFD != nil && p.BFD.State != bfd.Up
		})
	}),

	gauge("tortie_routes_desired", "Routes that this node should have in the kernel.",
		func(s *sample) float64 { return number(s.routes.desired) }),
	gauge("tortie_routes_programmed", "Of these, those that the last pass found or made right.",
		func(s *sample) float64 { return number(s.routes.programmed()) }),
	gauge("tortie_routes_held", "Routes of an earlier agent that are kept although no peer has announced them yet.",
		func(s *sample) float64 { return number(s.routes.stats.Held) }),
	gauges("tortie_tunnel_ends", "Other ends that a tunnel device of this node should know: one for each other node, of VXLAN; 0 of tunl0, "+
		"which asks the routes.", []string{"device"}, func(s *sample, set func(float64, ...string)) {
		for _, t := range tunnelReports(s.snapshot) {
			set(number(t.Ends), t.Device)
		}
	}),
	gauges("tortie_wireguard_unencrypted_nodes", "Other nodes to which a device of WireGuard sends nothing: what their pods are sent goes "+
		"in the clear, or with TORTIE_REQUIRE_ENCRYPTION nowhere.", []string{"device"}, func(s *sample, set func(float64, ...string)) {
		for _, t := range tunnelReports(s.snapshot) {
			if t.Kind == "WireGuard" {
				set(number(t.Unencrypted), t.Device)
			}
		}
	}),
	gauges("tortie_wireguard_key_timestamp_seconds", "When a device of WireGuard got its key.", []string{"device"},
		ofKeys(func(t nodestatus.Tunnel) float64 { return seconds(t.KeySince) })),
	gauges("tortie_wireguard_key_changing", "1 while a device's key is being changed, which takes about a minute.", []string{"device"},
		ofKeys(func(t nodestatus.Tunnel) float64 { return truth(t.KeyChanging) })),

	gauge("tortie_facts_bytes", "Size of the file of facts that saves the plugins requests.", func(s *sample) float64 {
		if s.facts == nil {
			return 0
		}
		return number(s.facts.Bytes)
	}),
	gauge("tortie_facts_age_seconds", "Time since the facts were last known to hold; over 30 the plugins ask the API server instead.",
		func(s *sample) float64 {
			if s.facts == nil {
				return s.now.Sub(s.started).Seconds()
			}
			return s.now.Sub(s.facts.Written).Seconds()
		}),
	gauge("tortie_journal_entries", "Containers whose addresses are still to be released because the API server was away.",
		func(s *sample) float64 { return number(s.journal.Entries) }),

	gauges("felix_host", "Always 1; the label has the node's name.", []string{"host"},
		func(s *sample, set func(float64, ...string)) { set(1, s.node) }),
	gauges("felix_route_table_num_routes", "Routes of the agent in the kernel, held ones among them; the table is always main.",
		[]string{"table"}, func(s *sample, set func(float64, ...string)) {
			set(number(s.routes.programmed()+s.routes.stats.Held), "main")
		}),
	gauge("felix_cluster_num_hosts", "Nodes of the cluster that have announced an address, this one among them.", func(s *sample) float64 {
		if s.snapshot == &noSnapshot {
			return 0
		}
		return number(len(s.snapshot.Others) + 1)
	}),
	gauge("felix_active_local_endpoints", "Pods of this node, by the kernel's routes to them.",
		func(s *sample) float64 { return number(pods(s.snapshot.Self.Pods)) }),
}

// noSnapshot is used before the first pass that found the node's address.
var noSnapshot desired.Snapshot

func newMetrics(s *Status) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), up: map[peerLabels]time.Time{}, reasons: map[string]bool{}}
	m.passes = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "tortie_node_pass_seconds", Help: "Time of one comparison of this node with what it should be.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
	})
	m.failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tortie_node_pass_failures_total", Help: "Passes that did not bring this node to its desired state.",
	})
	m.changes = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tortie_bgp_session_changes_total", Help: "How often a session was established or lost.",
	})
	m.notTaken = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tortie_bgp_not_taken_prefixes", Help: "Prefixes that peers announce and that are not taken, by reason: BGP's own rules, or a " +
			"BGPFilter. Series for 30 reasons at most, the rest as other.",
	}, []string{"reason"})
	m.losses = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tortie_bgp_peer_losses_total", Help: "How often the session was lost.",
	}, []string{"peer", "node", "object"})
	m.routeWrites = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tortie_route_writes_total", Help: "Routes written to the kernel by what was done.",
	}, []string{"op"})
	m.factsWrites = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tortie_facts_writes_total", Help: "How often the file of facts was written.",
	})
	m.finished = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tortie_journal_finished_total", Help: "Containers whose addresses the agent has released for the plugins.",
	})
	m.felixApply = prometheus.NewSummary(prometheus.SummaryOpts{
		Name: "felix_int_dataplane_apply_time_seconds", Help: "As tortie_node_pass_seconds, under Felix's name.",
		Objectives: map[float64]float64{0.5: 0.05, 0.9: 0.01, 0.99: 0.001},
	})
	m.felixFailures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "felix_int_dataplane_failures", Help: "As tortie_node_pass_failures_total, under Felix's name.",
	})
	m.registry.MustRegister(m.passes, m.failures, m.changes, m.notTaken, m.losses, m.routeWrites, m.factsWrites, m.finished, m.felixApply,
		m.felixFailures, table{s.scrape, rows}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// scrape computes the input of the rows.
func (s *Status) scrape() *sample {
	known := s.now()
	out := &sample{seen: &known, now: time.Now(), role: "none"}
	if known.snapshot == nil {
		known.snapshot = &noSnapshot
	}
	out.sessions = known.snapshot.Sessions()
	if r := reflectionReport(known.snapshot); r != nil {
		out.role = r.Role
	}
	out.shown = shown(known.peers, out.sessions, s.metrics.allPeers)
	for _, p := range out.shown {
		out.labels = append(out.labels, known.labels(p, out.sessions))
	}
	return out
}

func (k *seen) labels(p bgp.PeerStatus, sessions map[netip.Addr]desired.Session) peerLabels {
	return peerLabels{p.Addr.String(), k.peerName(p), sessions[p.Addr].Source.Peer}
}

var allStates = []bgp.State{bgp.Idle, bgp.Active, bgp.OpenSent, bgp.OpenConfirm, bgp.Established}

// seconds returns a time as Prometheus uses it.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// changesOf counts the sessions that were established or lost between two states, both in the order of addresses. A
// session that was lost and is back counts twice: its time differs.
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

// countSessions counts changes since before, the sessions' earlier states.
func (m *metrics) countSessions(before []bgp.PeerStatus, k *seen) {
	m.changes.Add(number(changesOf(before, k.peers)))
	refused := map[string]int{}
	for _, p := range k.peers {
		for _, r := range p.Refused {
			refused[r.Reason] += r.Prefixes
		}
	}
	m.setReasons(refused)
	sessions := k.snapshot.Sessions()
	now := map[peerLabels]time.Time{}
	for _, p := range shown(k.peers, sessions, m.allPeers) {
		labels := k.labels(p, sessions)
		now[labels] = time.Time{}
		if p.State == bgp.Established {
			now[labels] = p.Since
		}
		lost := m.losses.WithLabelValues(labels[:]...) // exists from the first call
		if since := m.up[labels]; !since.IsZero() && !since.Equal(now[labels]) {
			lost.Inc()
		}
	}
	for labels := range m.up {
		if _, still := now[labels]; !still {
			m.losses.DeleteLabelValues(labels[:]...)
		}
	}
	m.up = now
}

// mostReasons bounds the series of reasons for which prefixes are not accepted: operators name filters as they like.
// Further reasons share one series.
const (
	mostReasons  = 30
	otherReasons = "other"
)

// setReasons replaces the series of reasons. A reason that is gone stays at 0, so that rates and alerts see its end.
func (m *metrics) setReasons(refused map[string]int) {
	other := 0
	for reason, n := range refused {
		if !m.reasons[reason] && len(m.reasons) < mostReasons {
			m.reasons[reason] = true
		}
		if !m.reasons[reason] {
			other += n
		}
	}
	for reason := range m.reasons {
		m.notTaken.WithLabelValues(reason).Set(number(refused[reason]))
	}
	m.notTaken.WithLabelValues(otherReasons).Set(number(other))
}

// mostShown bounds the sessions of BGPPeers with series unless all are requested: a reflector made by a BGPPeer may
// have thousands of clients. Series for the mesh would grow with the square of the nodes: only on request.
const mostShown = 100

// shown returns the peers with series: all, or the peers of BGPPeers, routers before nodes.
func shown(peers []bgp.PeerStatus, sessions map[netip.Addr]desired.Session, all bool) []bgp.PeerStatus {
	if all {
		return peers
	}
	var out []bgp.PeerStatus
	for _, p := range peers {
		if k := sessions[p.Addr].Kind; k == desired.KindNode || k == desired.KindGlobal {
			out = append(out, p)
		}
	}
	if len(out) > mostShown {
		slices.SortStableFunc(out, func(a, b bgp.PeerStatus) int {
			return cmp.Compare(min(1, len(sessions[a.Addr].Source.Node)), min(1, len(sessions[b.Addr].Source.Node)))
		})
		out = out[:mostShown]
	}
	return out
}

// loopTime bounds how long a scrape waits for BGP's loop.
const loopTime = time.Second

// addSpeaker makes the metric of the BGP speaker's loop.
func (m *metrics) addSpeaker(healthy func(context.Context) error) {
	m.add(gauge("tortie_bgp_loop_seconds",
		"How long BGP's loop took to answer when this was asked for; infinite if it was more than a second.", func(*sample) float64 {
			ctx, cancel := context.WithTimeout(context.Background(), loopTime)
			defer cancel()
			asked := time.Now()
			if healthy(ctx) != nil {
				return math.Inf(1)
			}
			return time.Since(asked).Seconds()
		}))
}

// addEvents makes the metrics of Events.
func (m *metrics) addEvents(counts func() (written, dropped uint64)) {
	m.add(
		counter("tortie_events_written_total",
			"Kubernetes Events that were written, or counted on.", func() float64 { n, _ := counts(); return number(n) }),
		counter("tortie_events_dropped_total", "Kubernetes Events that were not written: the API server was away, or they were too many.",
			func() float64 { _, n := counts(); return number(n) }),
	)
}

// addDatastore makes the metric of the API group of Calico's objects.
func (m *metrics) addDatastore(read func() (in groups.Group, locked bool)) {
	m.add(gauges("tortie_datastore_locked", "1 while nothing may be written in the API group that is in use, which the label names: its "+
		"ClusterInformation is locked or missing, or a move to it has not ended; 0 else.", []string{"group"},
		func(_ *sample, set func(float64, ...string)) {
			if in, locked := read(); in != "" {
				set(truth(locked), string(in))
			}
		}))
}

// addPaths makes the metric of paths to other nodes.
func (m *metrics) addPaths(report func() [2]paths.Report) {
	m.add(gauges("tortie_path_up", "1 if a node sends back what pods of this node send through it, 0 if it did and does not now; of 16 "+
		"nodes of each family at most, those first that do not. A node that never has is missing.",
		[]string{"peer", "family", "kind"}, func(_ *sample, set func(float64, ...string)) {
			for i, r := range report() {
				for _, p := range r.Paths {
					set(truth(p.Up), p.Node, [...]string{"IPv4", "IPv6"}[i], string(p.Kind))
				}
			}
		}))
}

// addTraffic makes the metrics of messages on all BGP sessions.
func (m *metrics) addTraffic(totals func() bgp.Totals) {
	m.add(
		counter("tortie_bgp_received_messages_total", "BGP messages that all peers together have sent.",
			func() float64 { return number(totals().Received) }), counter("tortie_bgp_sent_messages_total",
			"BGP messages that were sent to all peers together.", func() float64 { return number(totals().Sent) }),
		counter("tortie_bgp_flawed_messages_total", "Of the received ones, those that were malformed and did not end "+
			"the session: what they announce is not taken, or attributes of it are left out.", func() float64 { return number(totals().Flawed) }),
		counter("tortie_bgp_strangers_total", "Connections to the BGP port that were refused as they came from no peer's address.",
			func() float64 { return number(totals().Strangers) }),
	)
}

// guardTime bounds how long a scrape waits for the kernel's counters.
const guardTime = 2 * time.Second

// kernelCounters are packets that rules have dropped, by K, read from the kernel at a scrape. A rule made anew starts
// its counter again; the metric goes on.
type kernelCounters[K comparable] struct {
	read    func(context.Context) (map[K]nft.Counter, error)
	labels  func(K) []string
	dropped *prometheus.CounterVec

	mu   sync.Mutex
	last map[K]uint64
}

// addKernelCounters makes a metric of rules' counters.
func addKernelCounters[K comparable](m *metrics, dropped *prometheus.CounterVec, labels func(K) []string,
	read func(context.Context) (map[K]nft.Counter, error)) {
	m.registry.MustRegister(&kernelCounters[K]{read: read, labels: labels, dropped: dropped, last: map[K]uint64{}})
}

// addGuard makes the metric of packets that the guard has dropped.
func (m *metrics) addGuard(read func(context.Context) (map[string]nft.Counter, error)) {
	dropped := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tortie_guard_dropped_packets_total", Help: "Packets that the packet guard dropped, by reason: tunnel packets whose sender is no " +
			"node of the cluster, and what pods must not send.",
	}, []string{"reason"})
	addKernelCounters(m, dropped, func(reason string) []string { return []string{reason} }, read)
}

// Describe implements prometheus.Collector.
func (k *kernelCounters[K]) Describe(ch chan<- *prometheus.Desc) { k.dropped.Describe(ch) }

// Collect implements prometheus.Collector. Values that cannot be read now keep their last value.
func (k *kernelCounters[K]) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), guardTime)
	defer cancel()
	k.mu.Lock()
	defer k.mu.Unlock()
	if counters, err := k.read(ctx); err == nil {
		for by, c := range counters {
			k.dropped.WithLabelValues(k.labels(by)...).Add(float64(grown(k.last[by], c.Packets)))
			k.last[by] = c.Packets
		}
		k.forget(counters)
	}
	k.dropped.Collect(ch)
}

// mostGone bounds the series of counters that are gone: tenants may make and delete policies for ever.
const mostGone = 2000

// forget drops the series without a counter in the kernel, if there are many.
func (k *kernelCounters[K]) forget(counters map[K]nft.Counter) {
	if len(k.last)-len(counters) <= mostGone {
		return
	}
	for by := range k.last {
		if _, there := counters[by]; !there {
			k.dropped.DeleteLabelValues(k.labels(by)...)
			delete(k.last, by)
		}
	}
}

// grown returns the increase of a counter that may have started again at zero.
func grown(before, now uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}
