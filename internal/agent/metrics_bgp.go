package agent

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// bgpMetrics are about what sessions are there for.
type bgpMetrics struct {
	notTaken   *prometheus.GaugeVec
	whole      prometheus.Gauge
	role       *prometheus.GaugeVec
	reflectors prometheus.Gauge
	services   prometheus.Gauge

	reasons map[string]bool // of which there are series
}

// mostReasons bounds the series of reasons for which prefixes are not taken: operators name filters as they like. The rest are one.
const (
	mostReasons  = 30
	otherReasons = "other"
)

// addSessions makes the metrics of what sessions are there for, and of this node's part in them.
func (m *metrics) addSessions() {
	b := &bgpMetrics{reasons: map[string]bool{}}
	b.notTaken = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tortie_bgp_not_taken_prefixes", Help: "Prefixes that peers announce and that are not taken, by reason: BGP's own rules, or a BGPFilter. Series for 30 reasons at most, the rest as other.",
	}, []string{"reason"})
	b.whole = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_bgp_whole_tables", Help: "Established sessions on which the peer has sent the whole of its table.",
	})
	b.role = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tortie_bgp_reflector_role", Help: "1 for this node's part in route reflection: none, client, reflector, or configured if an operator has made it a reflector.",
	}, []string{"role"})
	b.reflectors = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_bgp_reflector_sessions", Help: "Established sessions with automatic reflectors.",
	})
	b.services = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "tortie_services_announced_prefixes", Help: "Prefixes that this node announces for services: ranges and single addresses.",
	})
	m.bgp = b
	m.registry.MustRegister(b.notTaken, b.whole, b.role, b.reflectors, b.services)
}

// set takes what a look at BGP has found.
func (b *bgpMetrics) set(s *desired.Snapshot, peers []bgp.PeerStatus, sessions map[netip.Addr]desired.Session) {
	refused, whole, reflectors := map[string]int{}, 0, 0
	for _, p := range peers {
		for _, r := range p.Refused {
			refused[r.Reason] += r.Prefixes
		}
		if p.State != bgp.Established {
			continue
		}
		if p.EndOfTable() {
			whole++
		}
		if d := sessions[p.Addr]; d.Kind == desired.KindReflector && s.Automatic.Reflectors[d.Source.Node] {
			reflectors++
		}
	}
	b.setReasons(refused)
	b.whole.Set(float64(whole))
	b.reflectors.Set(float64(reflectors))
	role := "none"
	if r := reflectionReport(s); r != nil {
		role = r.Role
	}
	for _, known := range []string{"none", string(peering.Client), string(peering.Reflector), "configured"} {
		is := 0.0
		if known == role {
			is = 1
		}
		b.role.WithLabelValues(known).Set(is)
	}
	b.services.Set(float64(len(s.Services)))
}

// setReasons replaces the series of reasons. One that was there stays at 0, so that rates and alerts see its end.
func (b *bgpMetrics) setReasons(refused map[string]int) {
	other := 0
	for reason, n := range refused {
		if !b.reasons[reason] && len(b.reasons) < mostReasons {
			b.reasons[reason] = true
		}
		if !b.reasons[reason] {
			other += n
		}
	}
	for reason := range b.reasons {
		b.notTaken.WithLabelValues(reason).Set(float64(refused[reason]))
	}
	b.notTaken.WithLabelValues(otherReasons).Set(float64(other))
}

// tunnelGauges are about the tunnels' devices. They are looked for when they are asked for: VXLAN knows an end for each node.
type tunnelGauges struct {
	read func() []nodestatus.Tunnel
	ends *prometheus.GaugeVec
	mu   sync.Mutex
}

// addTunnels makes the metric of the tunnels that this node should have.
func (m *metrics) addTunnels(read func() []nodestatus.Tunnel) {
	t := &tunnelGauges{read: read}
	t.ends = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "tortie_tunnel_ends", Help: "Other ends that a tunnel device of this node should know: one for each other node, of VXLAN; 0 of tunl0, which asks the routes.",
	}, []string{"device"})
	m.registry.MustRegister(t)
}

// Describe implements prometheus.Collector.
func (t *tunnelGauges) Describe(ch chan<- *prometheus.Desc) { t.ends.Describe(ch) }

// Collect implements prometheus.Collector.
func (t *tunnelGauges) Collect(ch chan<- prometheus.Metric) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ends.Reset()
	for _, tunnel := range t.read() {
		t.ends.WithLabelValues(tunnel.Device).Set(float64(tunnel.Ends))
	}
	t.ends.Collect(ch)
}

// mostShown is of how many sessions with BGPPeers there are series unless all are asked for: a reflector that an operator has made by
// a BGPPeer may have thousands of clients.
const mostShown = 100

// shown returns the peers that there are series of: all, or those that BGPPeers are about, routers before nodes.
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

// addMD5 makes the metric of segments whose password was wrong, for all TCP of the host. Others than BGP seldom have passwords.
func (m *metrics) addMD5() {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "tortie_tcp_md5_failures_total", Help: "TCP segments that the kernel has dropped for their password (MD5 signature): none, another, or one where there is to be none. They are of the whole host, as the kernel counts no others.",
	}, func() float64 { return float64(netlinkx.WrongPasswords()) }))
}

// addTraffic makes the metrics of what passes on all BGP sessions.
func (m *metrics) addTraffic(totals func() bgp.Totals) {
	m.registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "tortie_bgp_received_messages_total", Help: "BGP messages that all peers together have sent.",
		}, func() float64 { return float64(totals().Received) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "tortie_bgp_sent_messages_total", Help: "BGP messages that were sent to all peers together.",
		}, func() float64 { return float64(totals().Sent) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "tortie_bgp_flawed_messages_total", Help: "Of the received ones, those that were malformed and did not end the session: what they announce is not taken, or attributes of it are left out.",
		}, func() float64 { return float64(totals().Flawed) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "tortie_bgp_strangers_total", Help: "Connections to the BGP port that were refused as they came from no peer's address.",
		}, func() float64 { return float64(totals().Strangers) }),
	)
}
