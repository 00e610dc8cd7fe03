package agent

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/agent/flows"
	"github.com/tortie-net/tortie/internal/agent/paths"
	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/bfd"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/plugin/facts"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// metric describes a metric.
type metric struct {
	kind, help string
	labels     []string
}

// everything returns a Status with all its metrics: none is missing for want of a value.
func everything(t *testing.T) *Status {
	t.Helper()
	s := NewStatus("n1", time.Now(), func(context.Context) error { return nil })
	s.ShowPeers()
	s.ShowEvents(func() (uint64, uint64) { return 3, 1 })
	s.ShowGuard(func(context.Context) (map[string]nft.Counter, error) {
		return map[string]nft.Counter{guard.IPIPFromStranger: {Packets: 7}}, nil
	})
	s.ShowPolicies(policies.New(policies.Options{Mode: config.PolicyAuto}), func(context.Context) (map[netpol.Denied]nft.Counter, error) {
		return map[netpol.Denied]nft.Counter{{By: policy.ID{Kind: "NetworkPolicy", Namespace: "default", Name: "web"}}: {Packets: 5}}, nil
	})
	s.ShowFlows(recorded())
	s.showDatastore(func() (groups.Group, bool) { return groups.V3, true })
	s.showPaths(func() [2]paths.Report { return [2]paths.Report{{Paths: []paths.Path{{Node: "n2", Kind: paths.VXLAN}}}} })
	s.ShowTraffic(nil, func() bgp.Totals { return bgp.Totals{Received: 1, Sent: 2, Flawed: 3, Strangers: 4} }, nil)
	s.SetNode(&desired.Snapshot{
		Self:    desired.Self{Addr: prefix("10.0.0.5/24"), KeySince: [2]time.Time{time.Now()}},
		Felix:   desired.Felix{WireGuard: desired.WireGuard{On: [2]bool{true}}},
		Pools:   []desired.Pool{{Pool: ipam.Pool{CIDR: prefix("10.1.0.0/16"), Enabled: true}, IPIP: api.EncapAlways}},
		Peering: peering.Decision{Peers: []bgp.Peer{{Addr: addr("10.0.0.7"), AO: "1/1 hmac-sha1-96 x\n"}}},
	})
	s.SetBGP([]bgp.PeerStatus{{Addr: addr("10.0.0.7"), State: bgp.Established, Since: time.Now(), BFD: &bfd.Status{State: bfd.Up}}}, nil)
	s.SetRoutes(routesSeen{desired: 1, stats: routes.Stats{Added: 1}})
	s.SetProblems("object", []string{"odd"})
	s.SetFacts(facts.Facts{Written: time.Now()}, 10)
	s.SetJournal(1, 1, nil)
	s.Passed(nil, time.Millisecond)
	return s
}

// recorded returns a Recorder with a denied packet, and a staged policy that would deny it too.
func recorded() *flows.Recorder {
	pod := policy.PodKey{Namespace: "default", Name: "web"}
	deny := policy.Policy{ID: policy.ID{Kind: policy.KindNetworkPolicy, Namespace: "default", Name: "web"},
		Subject: policy.Pods{Namespace: "default"}, Applies: [2]bool{true, true}}
	state := policy.State{
		Local:      map[string]policy.PodKey{"cali1": pod},
		Pods:       map[policy.PodKey]*policy.Pod{pod: {PodKey: pod, Addresses: []netip.Addr{addr("10.1.0.1")}}},
		Namespaces: map[string]map[string]string{"default": nil}, Policies: []policy.Policy{deny},
	}
	pending, by := policy.WithStaged(state,
		[]policy.Staged{{By: policy.ID{Kind: "StagedKubernetesNetworkPolicy", Namespace: "default", Name: "web"}, Policy: deny}})
	r := flows.New(flows.Options{})
	r.InForce(policy.Select(state), state.Pods, policy.Select(pending), by)
	r.Denied(netpol.Drop{Why: "ingress NetworkPolicy default/web", Src: addr("10.1.0.2"), Dst: addr("10.1.0.1"),
		Protocol: policy.TCP, DstPort: 80})
	return r
}

// registered lists the agent's own metrics as a scrape sees them.
func registered(t *testing.T, s *Status) map[string]metric {
	t.Helper()
	families, err := s.metrics.registry.Gather()
	errtest.Must(t, err)
	all := map[string]metric{}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "go_") || strings.HasPrefix(f.GetName(), "process_") {
			continue
		}
		m := metric{kind: strings.ToLower(f.GetType().String()), help: f.GetHelp()}
		for _, l := range f.GetMetric()[0].GetLabel() {
			m.labels = append(m.labels, l.GetName())
		}
		slices.Sort(m.labels)
		all[f.GetName()] = m
	}
	return all
}

// docs/metrics.csv describes all metrics, and only them.
func TestMetricsAreDocumented(t *testing.T) {
	file, err := os.Open(filepath.Join(labtest.Root(), "docs", "metrics.csv"))
	errtest.Must(t, err)
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	errtest.Must(t, err)
	documented := map[string]metric{}
	for _, row := range rows {
		if row[0] != "node" {
			continue
		}
		m := metric{kind: row[2], labels: strings.Fields(row[3]), help: row[4]}
		slices.Sort(m.labels)
		documented[row[1]] = m
	}
	served := registered(t, everything(t))
	if len(served) < 30 {
		t.Errorf("only %d metrics are served", len(served))
	}
	for name, m := range served {
		d, ok := documented[name]
		if !ok || d.kind != m.kind || d.help != m.help || !slices.Equal(d.labels, m.labels) {
			t.Errorf("%s: served as %+v, documented as %+v: run `make generate`", name, m, d)
		}
		if !strings.HasPrefix(name, "tortie_") && !strings.HasPrefix(name, "felix_") {
			t.Errorf("%s has no prefix of ours or Felix's", name)
		}
	}
	for name := range documented {
		if _, ok := served[name]; !ok {
			t.Errorf("%s is documented and not served", name)
		}
	}
}

// By default there are no series per peer: they grow with the square of the nodes.
func TestSeriesDoNotGrowWithPeers(t *testing.T) {
	count := func(peers int, each bool) int {
		s := NewStatus("n1", time.Now(), func(context.Context) error { return nil })
		if each {
			s.ShowPeers()
		}
		s.SetNode(&desired.Snapshot{})
		all := make([]bgp.PeerStatus, peers)
		for i := range all {
			all[i] = bgp.PeerStatus{Addr: addr(fmt.Sprintf("10.0.%d.%d", i/250, i%250)), State: bgp.Established}
		}
		s.SetBGP(all, nil)
		families, err := s.metrics.registry.Gather()
		errtest.Must(t, err)
		n := 0
		for _, f := range families {
			n += len(f.GetMetric())
		}
		return n
	}
	if few, many := count(1, false), count(500, false); few != many {
		t.Errorf("%d series with one peer, %d with 500", few, many)
	}
	if few, many := count(1, true), count(500, true); many-few != 6*499 {
		t.Errorf("%d series with one peer, %d with 500", few, many)
	}
}

func TestSessionChanges(t *testing.T) {
	early, late := time.Unix(100, 0), time.Unix(200, 0)
	a, b, c := addr("10.0.0.1"), addr("10.0.0.2"), addr("10.0.0.3")
	before := []bgp.PeerStatus{{Addr: a, State: bgp.Established, Since: early}, {Addr: b, State: bgp.Active, Since: early}}
	for name, tt := range map[string]struct {
		now  []bgp.PeerStatus
		want int
	}{
		"nothing":           {before, 0},
		"lost":              {[]bgp.PeerStatus{{Addr: a, State: bgp.Active, Since: late}, before[1]}, 1},
		"established":       {[]bgp.PeerStatus{before[0], {Addr: b, State: bgp.Established, Since: late}}, 1},
		"lost and back":     {[]bgp.PeerStatus{{Addr: a, State: bgp.Established, Since: late}, before[1]}, 2},
		"another handshake": {[]bgp.PeerStatus{before[0], {Addr: b, State: bgp.OpenSent, Since: early}}, 0},
		"a new one":         {[]bgp.PeerStatus{before[0], before[1], {Addr: c, State: bgp.Active, Since: late}}, 0},
		"a new one, up":     {[]bgp.PeerStatus{before[1], {Addr: c, State: bgp.Established, Since: late}}, 1},
		"all are gone":      {nil, 0},
	} {
		if got := changesOf(before, tt.now); got != tt.want {
			t.Errorf("%s: %d changes, want %d", name, got, tt.want)
		}
	}
}

// The values follow from the state.
func TestValues(t *testing.T) {
	s := everything(t)
	s.SetNode(&desired.Snapshot{Services: rangesOf("10.96.0.0/12", "10.96.0.7/32"), Others: make([]desired.Member, 2),
		Blocks: rangesOf("10.0.0.0/26"), Self: desired.Self{Pods: addrsOf("10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2")},
		Peering: peering.Decision{Peers: []bgp.Peer{{Addr: addr("10.0.0.8"), AO: "1/1 hmac-sha1-96 x\n"}}}})
	s.SetBGP([]bgp.PeerStatus{
		{Addr: addr("10.0.0.7"), State: bgp.Established, Received: 3, Sent: 2, Since: time.Unix(50, 0), TableEnded: time.Unix(51, 0),
			BFD: &bfd.Status{State: bfd.Init}, Refused: []bgp.Refusal{{Reason: "martian", Prefixes: 2}}},
		{Addr: addr("10.0.0.8"), State: bgp.Active, Received: 1, Since: time.Unix(70, 0), HeldUntil: time.Now().Add(time.Hour),
			OldKeys: "1/11 2/12", BFD: &bfd.Status{State: bfd.Down}, Refused: []bgp.Refusal{{Reason: "martian", Prefixes: 1}}},
	}, nil)
	s.Passed(errors.New("odd"), time.Second)
	text := scraped(t, s)
	s.SetBGP(nil, nil)
	if gone := scraped(t, s); strings.Contains(gone, "tortie_bgp_peer_up{") ||
		!strings.Contains(gone, `tortie_bgp_peers{state="Established"} 0`) {
		t.Errorf("peers that are gone are still there:\n%s", gone)
	}
	for _, want := range []string{
		`tortie_bgp_peers{state="Established"} 1`, `tortie_bgp_peers{state="Active"} 1`, `tortie_bgp_peers{state="Idle"} 0`,
		"tortie_bgp_received_prefixes 4",
		"tortie_bgp_sent_prefixes 2", "tortie_bgp_held_down_peers 1", "tortie_bgp_last_change_timestamp_seconds 70",
		`tortie_bgp_peer_up{node="",object="",peer="10.0.0.7"} 1`, `tortie_bgp_peer_refused_prefixes{node="",object="",peer="10.0.0.7"} 2`,
		`tortie_bgp_not_taken_prefixes{reason="martian"} 3`, `tortie_bgp_not_taken_prefixes{reason="other"} 0`, "tortie_bgp_whole_tables 1",
		`tortie_bgp_reflector_role{role="none"} 1`, `tortie_bgp_reflector_role{role="client"} 0`, "tortie_services_announced_prefixes 2",
		"tortie_tcp_md5_failures_total ", `tortie_tcp_ao_segments_total{result="bad"} `, `tortie_tcp_ao_segments_total{result="good"} `,
		`tortie_tcp_ao_segments_total{result="key-not-found"} `, `tortie_tcp_ao_segments_total{result="unsigned"} `,
		`tortie_bgp_peer_removed_tcp_ao_keys{node="",object="",peer="10.0.0.8"} 2`,
		"tortie_bfd_missing_peers 1", `tortie_bfd_sessions{state="Down"} 1`, `tortie_bfd_sessions{state="Up"} 0`,
		`tortie_bgp_peer_bfd_up{node="",object="",peer="10.0.0.7"} 0`, `tortie_node_problems{about="object"} 1`, "tortie_node_blocks 1",
		"felix_active_local_endpoints 2", "felix_cluster_num_hosts 3", `felix_host{host="n1"} 1`, "felix_int_dataplane_failures 1",
		`felix_route_table_num_routes{table="main"} 1`, `tortie_guard_dropped_packets_total{reason="ipip-from-stranger"} 7`,
		"tortie_events_written_total 3", "tortie_events_dropped_total 1", "go_goroutines ", "process_resident_memory_bytes ",
	} {
		if !strings.Contains(text, "\n"+want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
}

func scraped(t *testing.T, s *Status) string {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

// The port of the metrics serves the metrics, and nothing else.
func TestMetricsPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- everything(t).ServeMetrics(ctx, l.Addr().String(), slog.New(slog.DiscardHandler)) }()
	get := func(path string) (code int, text string) {
		waittest.Until(t, 10*time.Second, "an answer", func() bool {
			response, err := http.Get("http://" + l.Addr().String() + path)
			if err != nil {
				return false
			}
			defer response.Body.Close()
			body, _ := io.ReadAll(response.Body)
			code, text = response.StatusCode, string(body)
			return true
		})
		return code, text
	}
	if code, text := get("/metrics"); code != http.StatusOK || !strings.Contains(text, "tortie_node_ready 1") {
		t.Errorf("%d: %s", code, text)
	}
	if code, _ := get("/status"); code != http.StatusNotFound {
		t.Errorf("/status on the port of the metrics: %d", code)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// hangs is a speaker with calls that can be made to hang, despite their context.
type hangs struct {
	*peers
	mu              sync.Mutex
	calls, liveness chan struct{} // nil: answers
}

func (h *hangs) wait(of *chan struct{}) {
	h.mu.Lock()
	c := *of
	h.mu.Unlock()
	if c != nil {
		<-c
	}
}

func (h *hangs) stop(of *chan struct{}) (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := make(chan struct{})
	*of = c
	return sync.OnceFunc(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		*of = nil
		close(c)
	})
}

func (h *hangs) SetOriginated(ctx context.Context, p []bgp.Path) error {
	h.wait(&h.calls)
	return h.peers.SetOriginated(ctx, p)
}

func (h *hangs) Healthy(ctx context.Context) error {
	h.mu.Lock()
	c := h.liveness
	h.mu.Unlock()
	if c == nil {
		return nil
	}
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A loop that hangs makes the agent not live: its own, and the speaker's. Both recover when it turns again.
func TestLivenessProvesTheLoops(t *testing.T) {
	r := newRig(t)
	speaker := &hangs{peers: newPeers()}
	status, _ := r.agent(t, speaker)
	status.mu.Lock()
	status.stuckAfter = 2 * time.Second
	status.mu.Unlock()
	live := func() (int, string) {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) // less than speakerTime: a test does not wait for it
		defer cancel()
		w := httptest.NewRecorder()
		status.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/livez", nil).WithContext(ctx))
		return w.Code, w.Body.String()
	}
	// While nothing wakes the loop its passes are further apart than this test's patience.
	turn := func() { speaker.tell(false) }
	waittest.Until(t, 20*time.Second, "ready", func() bool { return status.Report().Ready })
	waittest.Until(t, 10*time.Second, "live", func() bool { turn(); code, _ := live(); return code == http.StatusOK })

	release := speaker.stop(&speaker.calls)
	t.Cleanup(release)
	turn()
	waittest.Until(t, 20*time.Second, "the pass loop hangs", func() bool {
		code, text := live()
		return code == http.StatusServiceUnavailable && strings.Contains(text, "has not ended")
	})
	release()
	waittest.Until(t, 20*time.Second, "live again", func() bool { turn(); code, _ := live(); return code == http.StatusOK })

	release = speaker.stop(&speaker.liveness)
	t.Cleanup(release)
	waittest.Until(t, 20*time.Second, "the speaker hangs", func() bool {
		turn()
		code, text := live()
		return code == http.StatusServiceUnavailable && strings.Contains(text, "BGP speaker")
	})
	release()
	waittest.Until(t, 20*time.Second, "live again", func() bool { turn(); code, _ := live(); return code == http.StatusOK })
}

// An agent is not live if its first pass hangs; an agent that waits for its API server is.
func TestLivenessBeforeTheFirstPass(t *testing.T) {
	s := NewStatus("n1", time.Now().Add(-time.Hour), func(context.Context) error { return nil })
	if err := s.alive(t.Context()); err != nil {
		t.Errorf("waiting for the API server: %v", err)
	}
	s.Begin()
	if err := s.alive(t.Context()); err != nil {
		t.Errorf("in its first pass: %v", err)
	}
	s.stuckAfter = 0
	if err := s.alive(t.Context()); err == nil {
		t.Error("a first pass that does not end")
	}
}

func rangesOf(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, prefix(t))
	}
	return all
}

func addrsOf(texts ...string) (all []netip.Addr) {
	for _, t := range texts {
		all = append(all, addr(t))
	}
	return all
}

// The kernel's counters start again with a rule; the metric loses nothing, and an error changes nothing.
func TestGuardCountsOn(t *testing.T) {
	values := []uint64{5, 8, 2, 0, 4}
	s := NewStatus("n1", time.Now(), func(context.Context) error { return nil })
	next := 0
	s.ShowGuard(func(context.Context) (map[string]nft.Counter, error) {
		defer func() { next++ }()
		if next == 3 {
			return nil, errors.New("odd")
		}
		return map[string]nft.Counter{"x": {Packets: values[next]}}, nil
	})
	for _, want := range []int{5, 8, 10, 10, 12} {
		if text := scraped(t, s); !strings.Contains(text, fmt.Sprintf("tortie_guard_dropped_packets_total{reason=\"x\"} %d\n", want)) {
			t.Errorf("%d is missing after %d scrapes", want, next)
		}
	}
}
