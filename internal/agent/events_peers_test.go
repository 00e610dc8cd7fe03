package agent

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// Sessions of BGPPeers are reported when they have been down for a while, once per object, and when they are up again.
func TestPeersAreTold(t *testing.T) {
	begin := time.Date(2026, 11, 20, 14, 30, 0, 0, time.UTC)
	s, _ := desired.Build(desired.Self{Name: "n1"}, state.Cluster{Peers: []api.BGPPeer{{Meta: api.Meta{Name: "racks", UID: "7"}}}})
	s.Peering.Sources = map[netip.Addr]peering.Source{}
	k := seen{node: "n1", snapshot: &s}
	session := func(i int, state bgp.State, since time.Duration, why string) bgp.PeerStatus {
		return bgp.PeerStatus{Addr: addr(fmt.Sprintf("10.9.0.%d", i)), State: state, Since: begin.Add(since), LastError: why}
	}
	for i := range 8 {
		k.snapshot.Peering.Sources[addr(fmt.Sprintf("10.9.0.%d", i))] = peering.Source{Peer: "racks"}
	}
	k.snapshot.Peering.Sources[addr("10.9.0.100")] = peering.Source{Node: "n2"} // the mesh's
	if o := k.snapshot.PeerObject("racks"); o.UID != "7" || o.Kind != "BGPPeer" {
		t.Errorf("%+v", o)
	}
	mesh := session(100, bgp.Active, -time.Hour, "gone")
	down := []bgp.PeerStatus{mesh}
	for i := range 8 {
		down = append(down, session(i, bgp.Active, 0, "TCP refused\nand more"))
	}
	var got told
	reporter := eventReporter{to: &got}
	for _, step := range []struct {
		what  string
		at    time.Duration
		peers []bgp.PeerStatus
		want  []string
	}{
		{"all is well", 0, []bgp.PeerStatus{mesh, session(1, bgp.Established, 0, "")}, nil},
		{"down just now", peerPatience, down, nil},
		{"down for long", peerPatience + 1, down, []string{
			"BGPPeer racks: PeerDown: n1 has no BGP session with 10.9.0.0, 10.9.0.1, 10.9.0.2, 10.9.0.3, 10.9.0.4 and 3 more: TCP refused",
		}},
		{"one is back", 2 * peerPatience, []bgp.PeerStatus{session(1, bgp.Established, 0, ""), session(2, bgp.OpenSent, 0, "")},
			[]string{"BGPPeer racks: PeerDown: n1 has no BGP session with 10.9.0.2: connecting"}},
		{"up and lost at once", 2 * peerPatience, []bgp.PeerStatus{session(2, bgp.Active, 2*peerPatience, "")}, nil},
		{"up again", 3 * peerPatience, []bgp.PeerStatus{session(2, bgp.Established, 0, "before")},
			[]string{"BGPPeer racks: PeerUp, which is normal: n1 has its BGP sessions again"}},
		{"said once", 4 * peerPatience, []bgp.PeerStatus{session(2, bgp.Established, 0, "before")}, nil},
		{"down again", 5 * peerPatience, []bgp.PeerStatus{{Addr: addr("10.9.0.2"), Passive: true, Since: begin}},
			[]string{"BGPPeer racks: PeerDown: n1 has no BGP session with 10.9.0.2: it has not connected: this end is passive and waits for it"}},
		{"the object is gone", 6 * peerPatience, []bgp.PeerStatus{mesh}, nil},
	} {
		k.peers, got.lines = step.peers, nil
		reporter.reportPeers(begin.Add(step.at), &k)
		difftest.Want(t, step.what, step.want, got.lines)
	}
	reporter.reportPeers(begin, &seen{}) // before the first pass
}

// Sessions of the mesh are reported by one text from all nodes, about the node at the other end; a node without any
// session is reported as at fault itself.
func TestMeshIsTold(t *testing.T) {
	begin := time.Date(2026, 11, 20, 14, 30, 0, 0, time.UTC)
	var w state.Cluster
	for i := 2; i < 5; i++ {
		w.Nodes = append(w.Nodes, api.Node{Meta: api.Meta{Name: fmt.Sprint("n", i), Annotations: map[string]string{
			api.AnnotationIPv4Address: fmt.Sprintf("10.9.0.%d/24", i), api.AnnotationIPv6Address: fmt.Sprintf("fd09::%d/64", i),
		}}})
	}
	s, _ := desired.Build(desired.Self{Name: "n1"}, w)
	s.Peering.Sources = map[netip.Addr]peering.Source{}
	k := seen{node: "n1", snapshot: &s}
	sessions := func(up ...string) (all []bgp.PeerStatus) {
		for i := 2; i < 5; i++ {
			for _, form := range []string{"10.9.0.%d", "fd09::%d"} {
				p := bgp.PeerStatus{Addr: addr(fmt.Sprintf(form, i)), State: bgp.Active, Since: begin,
					LastError: "no answer: the peer says " + fmt.Sprint(i), Failure: "no answer"}
				k.snapshot.Peering.Sources[p.Addr] = peering.Source{Node: fmt.Sprint("n", i)}
				for _, a := range up {
					if p.Addr == addr(a) {
						p.State = bgp.Established
					}
				}
				all = append(all, p)
			}
		}
		return all
	}
	var got told
	reporter := eventReporter{to: &got}
	for _, step := range []struct {
		what  string
		at    time.Duration
		peers []bgp.PeerStatus
		want  []string
	}{
		{"down just now", meshPatience, sessions(), nil},
		{"one node", meshPatience + 1, sessions("10.9.0.3", "fd09::3", "10.9.0.4", "fd09::4"),
			[]string{"Node n2: PeerDown, of all nodes: other nodes have no BGP session with n2 at 10.9.0.2 and fd09::2: no answer"}},
		{"one family of two nodes", meshPatience + 1, sessions("fd09::2", "10.9.0.3", "fd09::3", "10.9.0.4"), []string{
			"Node n2: PeerDown, of all nodes: other nodes have no BGP session with n2 at 10.9.0.2: no answer",
			"Node n4: PeerDown, of all nodes: other nodes have no BGP session with n4 at fd09::4: no answer",
		}},
		{"this node", meshPatience + 1, sessions(), []string{"Node n1: PeerDown: n1 has no BGP session with any of 3 nodes, with n2: no answer"}},
		{"up again", meshPatience + 1, sessions("10.9.0.2", "fd09::2", "10.9.0.3", "fd09::3", "10.9.0.4", "fd09::4"),
			[]string{"Node n1: PeerUp, which is normal: n1 has BGP sessions with other nodes again"}},
		{"all is well", meshPatience + 1, sessions("10.9.0.2", "fd09::2", "10.9.0.3", "fd09::3", "10.9.0.4", "fd09::4"), nil},
	} {
		k.peers, got.lines = step.peers, nil
		reporter.reportPeers(begin.Add(step.at), &k)
		difftest.Want(t, step.what, step.want, got.lines)
	}
}
