package desired

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/bgp/policy"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/testkit/desiredtest"
)

// sessions returns the sessions that a snapshot leads to.
func sessions(s *Snapshot) []bgp.Peer {
	new(Deciding).Decide(s)
	return s.Peering.Peers
}

// Peers are selected by Kubernetes' labels and by Calico's own; passwords, filters and cluster IDs arrive.
func TestPeersFromTheWorld(t *testing.T) {
	ref := &api.BGPPassword{SecretKeyRef: &api.SecretKeyRef{Name: "tor", Key: "rr"}}
	place, _ := ref.Place()
	s := snapshot(t, func(w *state.Cluster) {
		off := false
		w.BGP.NodeToNodeMeshEnabled = &off
		w.Nodes[0].Annotations[api.AnnotationLabels] = `{"rr":"true","zone":"calico"}`
		w.Nodes[0].Annotations[api.AnnotationReflector] = "1.0.0.1"
		w.Nodes[0].Labels = map[string]string{"zone": "kubernetes"}
		w.Peers = []api.BGPPeer{
			{Meta: api.Meta{Name: "rr"}, Spec: api.BGPPeerSpec{PeerSelector: "rr == 'true' && zone == 'kubernetes'"}},
			{Meta: api.Meta{Name: "tor"},
				Spec: api.BGPPeerSpec{PeerIP: "10.0.0.254", ASNumber: 65000, Password: ref, Filters: []string{"f"}, ReachableBy: "10.0.0.253"}},
		}
		w.Passwords = map[api.Place]state.Password{place: {Set: true, Text: "secret"}}
		w.Filters = []api.BGPFilter{{Meta: api.Meta{Name: "f"}, Spec: api.BGPFilterSpec{ImportV4: []api.BGPFilterRule{{Action: "Reject"}}}}}
	})
	peers := sessions(s)
	tor := addr("10.0.0.254")
	if len(peers) != 2 || peers[0].Addr != addr("10.0.0.2") || peers[1].Addr != tor || peers[1].Password != "secret" {
		t.Fatalf("peers %v", peers)
	}
	if got := fmt.Sprint(s.Peering.Sources[tor], s.Peering.Static); got != "BGPPeer tor [{10.0.0.254 10.0.0.253}]" ||
		s.Policy().Import[tor] == nil {
		t.Errorf("%s, rules %v", got, s.Policy().Import)
	}
	if m, _ := s.Member("node2"); !m.Reflector || m.ClusterID != addr("1.0.0.1") {
		t.Errorf("member %+v", m)
	}
}

// A decision is made once, and again when its input changes; other objects keep their last form.
func TestDecisionsAreKept(t *testing.T) {
	var d Deciding
	tor := api.BGPPeer{Meta: api.Meta{Name: "tor", UID: "u1"}, Spec: api.BGPPeerSpec{PeerIP: "10.0.0.254", ASNumber: 65000}}
	s := snapshot(t, func(w *state.Cluster) { w.Peers = []api.BGPPeer{tor} })
	d.Decide(s)
	same := &s.Peering.Peers[0]
	d.Decide(s)
	if &s.Peering.Peers[0] != same {
		t.Error("decided twice about the same")
	}
	tor.Spec.ASNumber = 0
	s = snapshot(t, func(w *state.Cluster) { w.Peers = []api.BGPPeer{tor} })
	s.build++
	d.Decide(s)
	if len(s.Peering.Peers) != 3 || len(d.Problems) != 1 || !strings.HasPrefix(d.Problems[0].Error(), "BGPPeer tor: spec.asNumber") {
		t.Errorf("peers %v, problems %v", s.Peering.Peers, d.Problems)
	}
	var p *Problem
	if !errors.As(d.Problems[0], &p) || p.Reason != "InvalidPeer" || p.About.Kind != "BGPPeer" || p.About.UID != "u1" {
		t.Errorf("problem %+v", p)
	}
	s.Self.Addr = prefix("10.0.0.2/24")
	if d.Decide(s); s.Peering.Peers[0].From != addr("10.0.0.2") {
		t.Errorf("with another address: %v", s.Peering.Peers)
	}
}

// A BGPPeer for a node that does not exist is named until it exists.
func TestPeersOfAbsentNodes(t *testing.T) {
	s := snapshot(t, func(w *state.Cluster) {
		w.Self = &api.Node{Meta: api.Meta{Name: "node1"}}
		for _, node := range []string{"node1", "node2", "nodd2"} {
			w.Peers = append(w.Peers,
				api.BGPPeer{Meta: api.Meta{Name: "of-" + node}, Spec: api.BGPPeerSpec{Node: node, PeerIP: "10.0.0.254", ASNumber: 65000}})
		}
	})
	var d Deciding
	d.Decide(s)
	if len(d.Problems) != 1 || !strings.Contains(d.Problems[0].Error(), `BGPPeer of-nodd2: spec.node "nodd2"`) {
		t.Errorf("problems %v", d.Problems)
	}
	if _, ok := s.Peering.Sources[addr("10.0.0.254")]; !ok {
		t.Error("this node's own is not in force")
	}
}

func TestAnnotationsThatCannotBeRead(t *testing.T) {
	for annotation, text := range map[string]string{api.AnnotationLabels: `["a"]`, api.AnnotationReflector: "one"} {
		s, problems := Build(Self{Name: "node1", Addr: prefix("10.0.0.1/24")}, desiredtest.World(func(w *state.Cluster) {
			w.Nodes[0].Annotations[annotation] = text
			w.Nodes[0].Labels = map[string]string{"a": "b"}
		}))
		if len(problems) != 1 || !strings.Contains(problems[0].Error(), "Node node2: annotation "+annotation) {
			t.Errorf("problems %v", problems)
		}
		m, _ := s.Member("node2")
		if !maps.Equal(m.Labels, map[string]string{"a": "b"}) || m.ClusterID.IsValid() || m.Reflector != (annotation == api.AnnotationReflector) {
			t.Errorf("member %+v", m)
		}
	}
}

func TestPolicy(t *testing.T) {
	priority := 900
	s := snapshot(t, func(w *state.Cluster) {
		w.Pools = append(w.Pools, api.IPPool{Meta: api.Meta{Name: "hidden"}, Spec: api.IPPoolSpec{CIDR: "10.1.0.0/16", DisableBGPExport: true}},
			api.IPPool{Meta: api.Meta{Name: "services"},
				Spec: api.IPPoolSpec{CIDR: "172.20.1.0/24", AllowedUses: []api.AllowedUse{api.UseLoadBalancer}}})
		w.BGP.IPv6NormalRoutePriority = &priority
		w.BGP.PrefixAdvertisements = []api.PrefixAdvertisement{{CIDR: "192.168.0.0/16", Communities: []string{"64512:7"}}}
		w.BGP.ServiceExternalIPs, w.BGP.ServiceClusterIPs = []api.ServiceRange{{CIDR: "172.20.0.0/16"}}, []api.ServiceRange{
			{CIDR: "10.96.0.0/12"},
		}
	})
	s.served, _ = serviceConfig(s.served, &s.peers.config, true)
	s.Self.Found = []nodeaddr.Candidate{{Addr: prefix("10.5.0.1/24"), Link: "eth1"}, {Addr: prefix("fe80::1/64"), Link: "eth0"},
		{Addr: prefix("10.0.0.1/24"), Link: "eth0"}, {Addr: prefix("10.96.0.1/32"), Link: "kube-ipvs0"}}
	sessions(s)
	p := s.Policy()
	list := func(want string, got []netip.Prefix) {
		t.Helper()
		if fmt.Sprint(got) != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
	list("[192.168.0.0/16]", p.Transit)
	list("[10.1.0.0/16]", p.Hidden)
	list("[10.0.0.1/32 10.5.0.1/32 192.168.1.1/32]", p.Refuse)
	list(fmt.Sprint(s.Blocks), p.Own)
	if fmt.Sprint(p.Tags) != "[{192.168.0.0/16 [64512:7]}]" || p.Normal6 != 900 {
		t.Errorf("tags %v, priority %d", p.Tags, p.Normal6)
	}
	if want := []policy.Link{{Prefix: prefix("10.0.0.0/24"), Interface: "eth0"},
		{Prefix: prefix("10.5.0.0/24"), Interface: "eth1"}}; !slices.Equal(p.Links, want) {
		t.Errorf("links %v", p.Links)
	}
	if !p.Equal(s.Policy()) {
		t.Error("the same is another")
	}
	s.Peering.ClusterID = addr("1.0.0.1")
	list("[192.168.0.0/16 172.20.0.0/16]", s.Policy().Transit)
	if p.Equal(s.Policy()) {
		t.Error("another is the same")
	}
}

func TestWhereBGPListens(t *testing.T) {
	s := snapshot(t, nil)
	s.Self.Addr6 = prefix("fd00::1/64")
	s.Peering.ClusterID = addr("1.0.0.1")
	local, err := s.Local()
	if err != nil || fmt.Sprint(local.Listen) != "[10.0.0.1 fd00::1]" || local.ClusterID != addr("1.0.0.1") {
		t.Errorf("%+v, %v", local, err)
	}
	s.peers.config.BindMode = "None"
	if local, err = s.Local(); err != nil || fmt.Sprint(local.Listen) != "[0.0.0.0 ::]" {
		t.Errorf("with bindMode None: %+v, %v", local, err)
	}
}

// The router on an interface has its session, its kind and its aggregates, of both families, under its learned address.
func TestRouterOnLink(t *testing.T) {
	s := snapshot(t, func(w *state.Cluster) {
		rack := api.BGPPeer{Meta: api.Meta{Name: "rack", Annotations: map[string]string{api.AnnotationAggregate: "pools"}},
			Spec: api.BGPPeerSpec{PeerIP: "fe80::%eth0", ASNumber: 65000}}
		w.Peers = append(w.Peers, rack)
	})
	unknown, router := addr("fe80::%eth0"), addr("fe80::9%eth0")
	var d Deciding
	for _, c := range []struct {
		links    map[string]peering.Link
		changed  bool
		sessions []netip.Addr // with the router
	}{
		{nil, false, nil},
		{map[string]peering.Link{"eth0": {Why: "nothing came"}}, true, []netip.Addr{unknown}},
		{map[string]peering.Link{"eth0": {Router: router}}, true, []netip.Addr{router}},
		{map[string]peering.Link{"eth0": {Router: router}}, false, []netip.Addr{router}},
	} {
		d.Decide(s)
		if changed := d.On(s, c.links); changed != c.changed {
			t.Errorf("%v: changed is %t", c.links, changed)
		}
		var found []netip.Addr
		for at, session := range s.Sessions() {
			if session.Source.Peer == "rack" && session.Kind == KindGlobal {
				found = append(found, at)
			}
		}
		if !slices.Equal(found, c.sessions) {
			t.Errorf("%v: sessions with %v, want %v", c.links, found, c.sessions)
		}
	}
	s.By(Grounds{}).Aggregate(nil)
	if !slices.Contains(told(s), "192.168.0.0/16 to fe80::9%eth0") {
		t.Errorf("told %q", told(s))
	}
}
