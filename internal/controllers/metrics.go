package controllers

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/version"
	"github.com/tortie-net/tortie/internal/ipam/gc"
)

// metrics are the controllers' metrics. Where Calico has one, its name and labels are used: its dashboards keep
// working.
type metrics struct {
	registry *prometheus.Registry

	passes      prometheus.Histogram
	failures    prometheus.Counter
	leading     prometheus.Gauge
	behind      prometheus.Gauge
	waiting     prometheus.Gauge
	reclaimed   *prometheus.CounterVec
	removed     *prometheus.CounterVec
	spared      prometheus.Counter
	reclamation prometheus.Counter
	policies    prometheus.Gauge
	services    prometheus.Gauge

	leftToCalico, deadWebhooks prometheus.Gauge

	datastore func() (in groups.Group, locked bool) // nil: addresses are not in the Kubernetes API

	mu         sync.Mutex // guards all below
	usage      Usage
	candidates map[string]int
}

// Series per node or pool, computed at each scrape.
var (
	inUseDesc = prometheus.NewDesc("ipam_allocations_in_use", "Addresses that are assigned, by the node that uses them.",
		[]string{"ippool", "node"}, nil)
	borrowedDesc = prometheus.NewDesc("ipam_allocations_borrowed", "Of these, those that lie in a block of another node.",
		[]string{"ippool", "node"}, nil)
	blocksDesc = prometheus.NewDesc("ipam_blocks", "Blocks, by the node that owns them; those without an owner have an empty label.",
		[]string{"ippool", "node"}, nil)
	coolingDesc = prometheus.NewDesc("tortie_ipam_allocations_cooling_down",
		"Addresses that were released and are not free yet, by the node that owns the block.", []string{"ippool", "node"}, nil)
	candidateDesc = prometheus.NewDesc("ipam_allocations_gc_candidates",
		"Addresses that look unused and are still in their grace period, by the node that they were assigned on.", []string{"node"}, nil)
	sizeDesc     = prometheus.NewDesc("ipam_ippool_size", "Addresses that a pool has.", []string{"ippool"}, nil)
	reservedDesc = prometheus.NewDesc("ipam_ippool_reserved", "Of these, those that an IPReservation keeps and no holder has.",
		[]string{"ippool"}, nil)
	usedDesc = prometheus.NewDesc("tortie_ippool_in_use", "Addresses of a pool that cannot be assigned: taken, or cooling down.",
		[]string{"ippool"}, nil)
	roomDesc    = prometheus.NewDesc("tortie_ippool_free_blocks", "Blocks that nodes can still claim in a pool.", []string{"ippool"}, nil)
	damagedDesc = prometheus.NewDesc("tortie_ipam_damaged_blocks",
		"Blocks that contradict themselves: nothing is assigned from them or collected in them.", nil, nil)
	lockedDesc = prometheus.NewDesc("tortie_datastore_locked",
		"1 while nothing may be written in the API group that is in use, which the label names: its ClusterInformation is locked or "+
			"missing, or a move to it has not ended; 0 else.", []string{"group"}, nil)
	oldInUseDesc = prometheus.NewDesc("ipam_allocations_per_node",
		"As ipam_allocations_in_use without the pool, as Calico had it before 3.23.", []string{"node"}, nil)
	oldBorrowed = prometheus.NewDesc("ipam_allocations_borrowed_per_node",
		"As ipam_allocations_borrowed without the pool.", []string{"node"}, nil)
	oldBlocksDesc = prometheus.NewDesc("ipam_blocks_per_node", "As ipam_blocks without the pool.", []string{"node"}, nil)
)

func newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	m.passes = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "tortie_controllers_pass_seconds", Help: "Time of one look at all addresses, without what it led to.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
	})
	m.failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tortie_controllers_failures_total", Help: "Looks after which something could not be done; it is done later.",
	})
	m.leading = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_controllers_leading", Help: "1 on the one that writes.",
	})
	m.behind = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_controllers_behind_seconds", Help: "How long ago all watches were last known to miss nothing, at the last look.",
	})
	m.waiting = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_ipam_gc_waiting", Help: "Handles, blocks and affinities that look superfluous and are still in their grace period.",
	})
	m.reclamation = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "ipam_allocations_gc_reclamations", Help: "Addresses that were freed because they were unused.",
	})
	m.reclaimed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tortie_ipam_gc_freed_total", Help: "The same, by the node that they were assigned on.",
	}, []string{"node"})
	m.removed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tortie_ipam_gc_removed_total",
		Help: "What else was put in order, by kind: handle, block, affinity (removed) or claim (completed).",
	}, []string{"kind"})
	m.spared = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "tortie_ipam_gc_spared_total",
		Help: "Holders of addresses who looked dead and turned out not to be, right before their addresses would have been freed.",
	})
	m.policies = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_network_policies_not_enforced", Help: "NetworkPolicies that exist and restrict nothing, as TORTIE_POLICY is off; else 0.",
	})
	m.services = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_services_without_address",
		Help: "Services of type LoadBalancer that lack an address which they ask for; on the one that writes.",
	})
	m.leftToCalico = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_controllers_left_to_calico",
		Help: "1 while Calico's kube-controllers keep pools and tiers of projectcalico.org/v3; on the one that writes.",
	})
	m.deadWebhooks = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_policy_webhooks_without_endpoint",
		Help: "Webhook configurations that refuse writes of Calico's objects, as they have no endpoint; on the one that writes.",
	})
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tortie_build_info", Help: "Always 1; the label has the program's version.",
	}, []string{"version"})
	build.WithLabelValues(version.Version).Set(1)
	m.registry.MustRegister(m.passes, m.failures, m.leading, m.behind, m.waiting, m.reclamation, m.reclaimed, m.removed, m.spared, m.policies,
		m.services, m.leftToCalico, m.deadWebhooks, build, m, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// saw records a pass.
func (m *metrics) saw(u Usage, d *gc.Decision, took, behind time.Duration) {
	m.passes.Observe(took.Seconds())
	m.behind.Set(behind.Seconds())
	m.waiting.Set(float64(d.Waiting))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.usage, m.candidates = u, d.Candidates
}

// did records a sweep.
func (m *metrics) did(r *gc.Report) {
	for node, n := range r.Freed {
		m.reclaimed.WithLabelValues(node).Add(float64(n))
	}
	m.reclamation.Add(float64(r.Addresses()))
	m.spared.Add(float64(r.Spared))
	for kind, n := range map[string]int{"handle": r.Handles, "block": r.Blocks, "affinity": r.Affinities, "claim": r.Confirmed} {
		m.removed.WithLabelValues(kind).Add(float64(n))
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{inUseDesc, borrowedDesc, blocksDesc, coolingDesc, candidateDesc, sizeDesc, reservedDesc, usedDesc,
		roomDesc, damagedDesc, lockedDesc, oldInUseDesc, oldBorrowed, oldBlocksDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, s := range []struct {
		desc, old *prometheus.Desc
		of        map[share]int
	}{{inUseDesc, oldInUseDesc, m.usage.InUse}, {borrowedDesc, oldBorrowed, m.usage.Borrowed}, {blocksDesc, oldBlocksDesc, m.usage.Blocks},
		{coolingDesc, nil, m.usage.Cooling}} {
		byNode := map[string]int{}
		for of, n := range s.of {
			gauge(s.desc, float64(n), of.pool, of.node)
			byNode[of.node] += n
		}
		for node, n := range byNode {
			if s.old != nil {
				gauge(s.old, float64(n), node)
			}
		}
	}
	for node, n := range m.candidates {
		gauge(candidateDesc, float64(n), node)
	}
	for _, p := range m.usage.Pools {
		gauge(sizeDesc, p.Size, p.Name)
		gauge(reservedDesc, p.Reserved, p.Name)
		gauge(usedDesc, float64(p.InUse), p.Name)
		gauge(roomDesc, p.Room, p.Name)
	}
	gauge(damagedDesc, float64(m.usage.Damaged))
	if m.datastore == nil {
		return
	}
	if in, locked := m.datastore(); in != "" {
		gauge(lockedDesc, map[bool]float64{true: 1}[locked], string(in))
	}
}
