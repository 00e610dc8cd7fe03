package agent

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// routers returns a snapshot and the state of sessions with n routers in BGPPeers, beside one of the mesh.
func routers(n int) (*desired.Snapshot, []bgp.PeerStatus) {
	var w state.Cluster
	for i := range n {
		w.Peers = append(w.Peers, api.BGPPeer{Meta: api.Meta{Name: fmt.Sprintf("tor-%d", i)}})
	}
	built, _ := desired.Build(desired.Self{}, w)
	s := &built
	s.Peering.Sources = map[netip.Addr]peering.Source{}
	var all []bgp.PeerStatus
	for i := range n {
		a := netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)})
		s.Peering.Peers = append(s.Peering.Peers, bgp.Peer{Addr: a})
		s.Peering.Sources[a] = peering.Source{Peer: w.Peers[i].Name, Global: true}
		all = append(all, bgp.PeerStatus{Addr: a, State: bgp.Established, Since: time.Unix(50, 0)})
	}
	mesh := addr("10.0.0.7")
	s.Peering.Peers = append(s.Peering.Peers, bgp.Peer{Addr: mesh})
	return s, append(all, bgp.PeerStatus{Addr: mesh, State: bgp.Established, Since: time.Unix(50, 0)})
}

// By default only configured peers have series, and not too many of them.
func TestSeriesOfConfiguredPeers(t *testing.T) {
	status := NewStatus("n1", time.Now(), func(context.Context) error { return nil })
	snapshot, peers := routers(3)
	status.SetNode(snapshot)
	status.SetBGP(peers, nil)
	text := scraped(t, status)
	if n := strings.Count(text, "tortie_bgp_peer_up{"); n != 3 ||
		!strings.Contains(text, `tortie_bgp_peer_up{node="",object="tor-2",peer="10.9.0.2"} 1`) {
		t.Errorf("%d series in\n%s", n, text)
	}
	// A loss is counted, be it seen or only its end.
	peers[0].State, peers[1].Since = bgp.Active, time.Unix(60, 0)
	status.SetBGP(peers, nil)
	peers[0].State, peers[0].Since = bgp.Established, time.Unix(70, 0)
	status.SetBGP(peers, nil)
	text = scraped(t, status)
	for i, want := range []int{1, 1, 0} {
		if line := fmt.Sprintf(`tortie_bgp_peer_losses_total{node="",object="tor-%d",peer="10.9.0.%d"} %d`, i, i,
			want); !strings.Contains(text, line) {
			t.Errorf("%s is missing in\n%s", line, text)
		}
	}
	status.SetNode(&desired.Snapshot{})
	status.SetBGP(nil, nil)
	if text = scraped(t, status); strings.Contains(text, "tortie_bgp_peer_up{") {
		t.Errorf("peers that are gone:\n%s", text)
	}
	snapshot, peers = routers(1000)
	status.SetNode(snapshot)
	status.SetBGP(peers, nil)
	if n := strings.Count(scraped(t, status), "tortie_bgp_peer_up{"); n != mostShown {
		t.Errorf("%d series for 1000 peers", n)
	}
}

func TestReasonsAreBounded(t *testing.T) {
	m := newMetrics(NewStatus("n1", time.Now(), func(context.Context) error { return nil }))
	refused := map[string]int{}
	for i := range 100 {
		refused[fmt.Sprint("filter ", i)] = 1
	}
	m.setReasons(refused)
	m.setReasons(map[string]int{"a new one": 5})
	families, err := m.registry.Gather()
	errtest.Must(t, err)
	for _, f := range families {
		if f.GetName() != "tortie_bgp_not_taken_prefixes" {
			continue
		}
		sum := 0.0
		for _, series := range f.GetMetric() {
			sum += series.GetGauge().GetValue()
		}
		if len(f.GetMetric()) != mostReasons+1 || sum != 5 {
			t.Errorf("%d series, together %v", len(f.GetMetric()), sum)
		}
	}
}
