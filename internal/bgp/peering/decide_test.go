package peering

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/bfd"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func ptr[T any](v T) *T { return &v }

// nodeN returns node number n of both families.
func nodeN(n int, labels ...string) Node {
	node := Node{Name: fmt.Sprintf("node%d", n), Addr: addr(fmt.Sprintf("10.0.0.%d", n)), Addr6: addr(fmt.Sprintf("fd00::%d", n)),
		Labels: map[string]string{}}
	for _, l := range labels {
		k, v, _ := strings.Cut(l, "=")
		node.Labels[k] = v
	}
	return node
}

// three returns the input of node1 among three nodes, of which node3 is a reflector by its label.
func three(peers ...api.BGPPeer) Input {
	return Input{
		Self: nodeN(1, "rack=a"), Others: []Node{nodeN(2, "rack=a"), nodeN(3, "rack=b", "rr=true")},
		ASN: 64512, Port: 179, Mesh: Mesh{On: true}, Peers: peers,
	}
}

func bgpPeer(name string, spec api.BGPPeerSpec) api.BGPPeer {
	return api.BGPPeer{Meta: api.Meta{Name: name}, Spec: spec}
}

// text describes a session: address, AS number, and the settings that are not the default of a session of node1.
func text(d Decision, p bgp.Peer) string {
	s := fmt.Sprintf("%s as%d", p.Addr, p.ASN)
	for _, part := range []struct {
		on  bool
		say string
	}{
		{p.Port != 179, fmt.Sprintf("port%d", p.Port)},
		{p.LocalASN != 0, fmt.Sprintf("local%d", p.LocalASN)},
		{p.Passive, "passive"},
		{p.Client, "client"},
		{!p.From.IsValid(), "unbound"},
		{p.Password != "", "password=" + p.Password},
		{p.AO != "", "ao=" + strings.ReplaceAll(strings.TrimSpace(string(p.AO)), "\n", ",")},
		{p.NextHop != bgp.NextHopAuto, p.NextHop.String()},
		{p.AllowOwnASN != 0, fmt.Sprintf("own%d", p.AllowOwnASN)},
		{p.TTLSecurity != 0, fmt.Sprintf("ttl%d", p.TTLSecurity)},
		{p.RestartTime != 0, "restart" + p.RestartTime.String()},
		{p.Keepalive != 0, "keepalive" + p.Keepalive.String()},
		{p.HoldTime != 0, "hold" + p.HoldTime.String()},
		{p.BFD.Interval != 0, fmt.Sprintf("bfd%dx%s%s", p.BFD.Multiplier, p.BFD.Interval, p.BFD.Auth.Key)},
		{d.Sources[p.Addr].Peer != "", "by:" + d.Sources[p.Addr].Peer},
		{d.Sources[p.Addr].Reverse, "reverse"},
	} {
		if part.on {
			s += " " + part.say
		}
	}
	return s
}

func texts(d Decision) []string {
	var all []string
	for _, p := range d.Peers {
		all = append(all, text(d, p))
	}
	return all
}

// only4 returns the sessions of IPv4.
func only4(d Decision) []string {
	return slices.DeleteFunc(texts(d), func(s string) bool { return strings.Contains(strings.Fields(s)[0], ":") })
}

func said(d Decision) string {
	var all []string
	for _, err := range d.Problems {
		all = append(all, err.Error())
	}
	return strings.Join(all, "\n")
}

func TestMesh(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Input)
		want   []string
	}{
		{"both families, who has the greater text is waited for", func(_ *Input) {},
			[]string{"10.0.0.2 as64512 passive", "10.0.0.3 as64512 passive", "fd00::2 as64512 passive", "fd00::3 as64512 passive"}},
		{"text, not number", func(in *Input) {
			in.Self.Addr, in.Self.Addr6 = addr("10.0.0.9"), netip.Addr{}
			in.Others[0].Addr = addr("10.0.0.10")
		},
			[]string{"10.0.0.3 as64512", "10.0.0.10 as64512"}},
		{"off", func(in *Input) { in.Mesh.On = false }, nil},
		{"no password yet", func(in *Input) { in.Mesh.Unknown = true }, nil},
		{"password and restart time", func(in *Input) { in.Mesh.Password, in.Mesh.Restart, in.Self.Addr6 = "x", time.Minute, netip.Addr{} },
			[]string{"10.0.0.2 as64512 passive password=x restart1m0s", "10.0.0.3 as64512 passive password=x restart1m0s"}},
		{"a reflector is no part of it", func(in *Input) { in.Others[1].Reflector, in.Self.Addr6 = true, netip.Addr{} },
			[]string{"10.0.0.2 as64512 passive"}},
		{"nor is this node if it is one", func(in *Input) { in.Self.Reflector = true }, nil},
		{"AS numbers and ports of nodes", func(in *Input) {
			in.ASN, in.Port, in.Others[0].ASN, in.Others[1].Port, in.Self.Addr6 = 65000, 180, 65002, 181, netip.Addr{}
		}, []string{"10.0.0.2 as65002 port180 passive", "10.0.0.3 as65000 port181 passive"}},
		{"of several nodes with one address the first counts, and this one's own is nobody's", func(in *Input) {
			in.Others[1].Addr, in.Others[1].Addr6, in.Others[0].Addr6 = addr("10.0.0.2"), addr("fd00::1"), netip.Addr{}
		}, []string{"10.0.0.2 as64512 passive"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := three()
			c.change(&in)
			d, _ := Decide(in, State{})
			if diff := cmp.Diff(c.want, texts(d)); diff != "" || len(d.Problems) > 0 {
				t.Errorf("(-want +got):\n%s%s", diff, said(d))
			}
		})
	}
}

func TestPeers(t *testing.T) {
	tor := api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 65000}
	with := func(change func(*api.BGPPeerSpec)) api.BGPPeer {
		s := tor
		change(&s)
		return bgpPeer("tor", s)
	}
	for _, c := range []struct {
		name string
		peer api.BGPPeer
		want []string // without the mesh
	}{
		{"global", with(func(*api.BGPPeerSpec) {}), []string{"172.16.0.1 as65000 by:tor"}},
		{"of this node", with(func(s *api.BGPPeerSpec) { s.Node = "node1" }), []string{"172.16.0.1 as65000 by:tor"}},
		{"of another node", with(func(s *api.BGPPeerSpec) { s.Node = "node2" }), nil},
		{"of a rack", with(func(s *api.BGPPeerSpec) { s.NodeSelector = "rack == 'a'" }), []string{"172.16.0.1 as65000 by:tor"}},
		{"of another rack", with(func(s *api.BGPPeerSpec) { s.NodeSelector = "rack == 'b'" }), nil},
		{"with a port", with(func(s *api.BGPPeerSpec) { s.PeerIP = "172.16.0.1:1179" }), []string{"172.16.0.1 as65000 port1179 by:tor"}},
		{"IPv6", with(func(s *api.BGPPeerSpec) { s.PeerIP = "fd01::1" }), []string{"fd01::1 as65000 by:tor"}},
		{"IPv6 with a port", with(func(s *api.BGPPeerSpec) { s.PeerIP = "[fd01::1]:1179" }), []string{"fd01::1 as65000 port1179 by:tor"}},
		{"this node itself", with(func(s *api.BGPPeerSpec) { s.PeerIP, s.ASNumber = "10.0.0.1", 64512 }),
			[]string{"10.0.0.2 as64512 by:tor reverse", "10.0.0.3 as64512 by:tor reverse"}},
		{"local AS", with(func(s *api.BGPPeerSpec) { s.LocalASNumber = ptr(uint32(65111)) }), []string{"172.16.0.1 as65000 local65111 by:tor"}},
		{"own AS in paths", with(func(s *api.BGPPeerSpec) { s.NumAllowedLocalASNumbers = ptr(2) }), []string{"172.16.0.1 as65000 own2 by:tor"}},
		{"next hop self", with(func(s *api.BGPPeerSpec) { s.NextHopMode = "Self" }), []string{"172.16.0.1 as65000 Self by:tor"}},
		{"next hop keep", with(func(s *api.BGPPeerSpec) { s.NextHopMode = "Keep" }), []string{"172.16.0.1 as65000 Keep by:tor"}},
		{"next hop auto", with(func(s *api.BGPPeerSpec) { s.NextHopMode = "Auto" }), []string{"172.16.0.1 as65000 by:tor"}},
		{"next hop kept, the old way", with(func(s *api.BGPPeerSpec) { s.KeepOriginalNextHop = true }),
			[]string{"172.16.0.1 as65000 Keep by:tor"}},
		{"which has no effect in one AS", with(func(s *api.BGPPeerSpec) { s.KeepOriginalNextHop, s.ASNumber = true, 64512 }),
			[]string{"172.16.0.1 as64512 by:tor"}},
		{"but does if the AS is another for this peer", with(func(s *api.BGPPeerSpec) {
			s.KeepOriginalNextHop, s.ASNumber, s.LocalASNumber = true, 64512, ptr(uint32(65111))
		}), []string{"172.16.0.1 as64512 local65111 Keep by:tor"}},
		{"any source address", with(func(s *api.BGPPeerSpec) { s.SourceAddress = "None" }), []string{"172.16.0.1 as65000 unbound by:tor"}},
		{"TTL security", with(func(s *api.BGPPeerSpec) { s.TTLSecurity = ptr(1) }), []string{"172.16.0.1 as65000 ttl1 by:tor"}},
		{"timers", with(func(s *api.BGPPeerSpec) { s.MaxRestartTime, s.KeepaliveTime = "300s", "10s" }),
			[]string{"172.16.0.1 as65000 restart5m0s keepalive10s by:tor"}},
		{"a long keepalive needs a longer hold time", with(func(s *api.BGPPeerSpec) { s.KeepaliveTime = "1m" }),
			[]string{"172.16.0.1 as65000 keepalive1m0s hold3m0s by:tor"}},
		{"password", with(func(s *api.BGPPeerSpec) {
			s.Password = &api.BGPPassword{SecretKeyRef: &api.SecretKeyRef{Name: "tor", Key: "rr"}}
		}),
			[]string{"172.16.0.1 as65000 password=secret by:tor"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := three(c.peer)
			in.Mesh.On = false
			in.Secrets = map[api.Place]Secret{{Name: "tor", Key: "rr"}: {Text: "secret"}}
			d, _ := Decide(in, State{})
			if diff := cmp.Diff(c.want, texts(d)); diff != "" || len(d.Problems) > 0 {
				t.Errorf("(-want +got):\n%s%s", diff, said(d))
			}
		})
	}
}

// An annotation, which calicoctl may write into another one, turns on BFD; a faulty one leaves the earlier settings in
// force.
func TestBFD(t *testing.T) {
	peer := bgpPeer("tor", api.BGPPeerSpec{
		PeerIP: "172.16.0.1", ASNumber: 65000, Password: &api.BGPPassword{SecretKeyRef: &api.SecretKeyRef{Name: "tor", Key: "rr"}},
	})
	in := three()
	in.Mesh, in.Self.Addr6 = Mesh{On: true, BFD: bfd.Config{Interval: time.Second, Multiplier: 5}}, netip.Addr{}
	in.Secrets = map[api.Place]Secret{{Name: "tor", Key: "rr"}: {Text: "secret"}}
	mesh := []string{"10.0.0.2 as64512 passive bfd5x1s", "10.0.0.3 as64512 passive bfd5x1s"}
	state := State{}
	for _, c := range []struct{ key, text, want, say string }{
		{api.AnnotationBFD, "3x300ms", "bfd3x300ms ", ""},
		{api.AnnotationBFD, "3x300", "bfd3x300ms ", `tortie.io/bfd "3x300"`},
		{names.AnnotationMetadata, `{"annotations":{"tortie.io/bfd":"3x50ms keyed-sha1 1"}}`, "bfd3x50mssecret ", ""},
		{names.AnnotationMetadata, "{}", "", ""},
	} {
		peer.Annotations = map[string]string{c.key: c.text}
		in.Peers = []api.BGPPeer{peer}
		var d Decision
		d, state = Decide(in, Recall(state.Past()))
		want := append(slices.Clone(mesh), "172.16.0.1 as65000 password=secret "+c.want+"by:tor")
		if diff := cmp.Diff(want, texts(d)); diff != "" || !errtest.Has(said(d), c.say) || (c.say == "") != (said(d) == "") {
			t.Errorf("%s: (-want +got):\n%s%s", c.text, diff, said(d))
		}
	}
}

// The TCP-AO keys are in a Secret that an annotation names; a fault of either leaves the earlier keys in force.
func TestTCPAO(t *testing.T) {
	tor := api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 65000}
	both := tor
	both.Password = &api.BGPPassword{SecretKeyRef: &api.SecretKeyRef{Name: "tor", Key: "rr"}}
	nodes := api.BGPPeerSpec{PeerSelector: "has(rr)"}
	place := func(key string) api.Place { return api.Place{Name: "tor", Key: key, TCPAO: true} }
	in := three()
	in.Mesh.On, in.Self.Addr6 = false, netip.Addr{}
	in.Secrets = map[api.Place]Secret{
		{Name: "tor", Key: "rr"}: {Text: "secret"}, place("one"): {Text: "1 hmac-sha1-96 a"}, place("two"): {Text: "1/2 hmac-sha1-96 a"},
		place("bad"): {Text: "hidden"}, place("gone"): {Err: errors.New("not there")}, place("soon"): {Pending: true},
	}
	const first, other = "172.16.0.1 as65000 ao=1/2 hmac-sha1-96 a by:tor", "172.16.0.1 as65000 ao=1/1 hmac-sha1-96 a by:tor"
	state := State{}
	for _, c := range []struct {
		key, text string
		spec      api.BGPPeerSpec
		want, say string
	}{
		{api.AnnotationTCPAO, "tor/gone", tor, "", `annotation tortie.io/tcp-ao "tor/gone": not there`},
		{api.AnnotationTCPAO, "tor/two", tor, first, ""},
		{api.AnnotationTCPAO, "tor/bad", tor, first, "line 1: it does not begin with an ID"},
		{api.AnnotationTCPAO, "tor/gone", tor, first, "not there"},
		{api.AnnotationTCPAO, "tor/soon", tor, first, ""},
		{api.AnnotationTCPAO, "tor", tor, first, "use SECRET/KEY"},
		{api.AnnotationTCPAO, "tor/one", both, first, "there is spec.password, too"},
		{names.AnnotationMetadata, `{"annotations":{"tortie.io/tcp-ao":"tor/one"}}`, tor, other, ""},
		{api.AnnotationTCPAO, "tor/two", nodes, other, "give each the same send and receive ID"},
		{api.AnnotationTCPAO, "tor/one", nodes, "10.0.0.3 as64512 passive ao=1/1 hmac-sha1-96 a by:tor", ""},
	} {
		peer := bgpPeer("tor", c.spec)
		peer.Annotations = map[string]string{c.key: c.text}
		in.Peers = []api.BGPPeer{peer}
		var d Decision
		d, state = Decide(in, Recall(state.Past()))
		if got := strings.Join(texts(d), "; "); got != c.want || !errtest.Has(said(d), c.say) || (c.say == "") != (said(d) == "") ||
			strings.Contains(said(d), "hidden") {
			t.Errorf("%s: %s, want %s; said %q", c.text, got, c.want, said(d))
		}
	}
}

// An annotation turns on aggregates, never for nodes; a faulty one leaves the earlier setting in force.
func TestAggregations(t *testing.T) {
	router, node := netip.MustParseAddr("172.16.0.1"), netip.MustParseAddr("10.0.0.3")
	state := State{}
	for _, c := range []struct {
		text   string
		router Aggregation
		say    string
	}{
		{"pools", ByPool, ""},
		{"Pools", ByPool, `tortie.io/aggregate "Pools": use pools or prefixAdvertisements: what it was before stays in force`},
		{"prefixAdvertisements", ByAdvertisement, ""},
		{"", "", ""},
	} {
		in := three()
		for name, spec := range map[string]api.BGPPeerSpec{
			"tor": {PeerIP: router.String(), ASNumber: 65000}, "rr": {PeerSelector: "has(rr)"}, "two": {PeerIP: "10.0.0.2", ASNumber: 64512},
		} {
			peer := bgpPeer(name, spec)
			peer.Annotations = map[string]string{api.AnnotationAggregate: c.text}
			in.Peers = append(in.Peers, peer)
		}
		var d Decision
		d, state = Decide(in, Recall(state.Past()))
		want := map[netip.Addr]Aggregation{router: c.router}
		if c.router == "" {
			want = map[netip.Addr]Aggregation{}
		}
		if diff := cmp.Diff(want, d.Aggregations); diff != "" || d.Sources[node].Node == "" {
			t.Errorf("%s: (-want +got):\n%s%v", c.text, diff, d.Sources)
		}
		if !errtest.Has(said(d), c.say) || strings.Count(said(d), "has no effect on nodes") != 2*len(d.Aggregations) {
			t.Errorf("%s: %s", c.text, said(d))
		}
	}
}

// Sessions between nodes, as node1 sees them in IPv4, beside the mesh.
func TestPeersThatAreNodes(t *testing.T) {
	reflectors := api.BGPPeerSpec{PeerSelector: "has(rr)"}
	with := func(s api.BGPPeerSpec, change func(*api.BGPPeerSpec)) api.BGPPeerSpec {
		change(&s)
		return s
	}
	for _, c := range []struct {
		name  string
		peers []api.BGPPeer
		want  []string
	}{
		{"all have one with those selected", []api.BGPPeer{bgpPeer("rr", reflectors)},
			[]string{"10.0.0.2 as64512 passive", "10.0.0.3 as64512 passive by:rr"}},
		{"those of one rack have, and both ends connect",
			[]api.BGPPeer{bgpPeer("rr", with(reflectors, func(s *api.BGPPeerSpec) { s.NodeSelector = "rack == 'a'" }))},
			[]string{"10.0.0.2 as64512 passive", "10.0.0.3 as64512 by:rr"}},
		{"back from those selected", []api.BGPPeer{bgpPeer("rr", api.BGPPeerSpec{NodeSelector: "has(rr)", PeerSelector: "rack == 'a'"})},
			[]string{"10.0.0.2 as64512 passive", "10.0.0.3 as64512 by:rr reverse"}},
		{"not if that is left to others",
			[]api.BGPPeer{bgpPeer("rr", api.BGPPeerSpec{NodeSelector: "has(rr)", PeerSelector: "rack == 'a'", ReversePeering: "Manual"})},
			[]string{"10.0.0.2 as64512 passive", "10.0.0.3 as64512 passive"}},
		{"back from a node by its address", []api.BGPPeer{bgpPeer("one", api.BGPPeerSpec{Node: "node3", PeerIP: "10.0.0.1", ASNumber: 64512})},
			[]string{"10.0.0.2 as64512 passive", "10.0.0.3 as64512 by:one reverse"}},
		{"and its port", []api.BGPPeer{bgpPeer("one", api.BGPPeerSpec{Node: "node3", PeerIP: "10.0.0.1:179", ASNumber: 64512})},
			[]string{"10.0.0.2 as64512 passive", "10.0.0.3 as64512 by:one reverse"}},
		{"not if the AS number is another's", []api.BGPPeer{bgpPeer("one", api.BGPPeerSpec{Node: "node3", PeerIP: "10.0.0.1", ASNumber: 65000})},
			[]string{"10.0.0.2 as64512 passive", "10.0.0.3 as64512 passive"}},
		{"nor if the port is", []api.BGPPeer{bgpPeer("one", api.BGPPeerSpec{Node: "node3", PeerIP: "10.0.0.1:1790", ASNumber: 64512})},
			[]string{"10.0.0.2 as64512 passive", "10.0.0.3 as64512 passive"}},
		{"what is explicit counts before what follows", []api.BGPPeer{
			bgpPeer("a", api.BGPPeerSpec{NodeSelector: "has(rr)", PeerSelector: "rack == 'a'", MaxRestartTime: "10s"}),
			bgpPeer("b", api.BGPPeerSpec{NodeSelector: "rack == 'a'", PeerSelector: "has(rr)", MaxRestartTime: "20s"}),
		}, []string{"10.0.0.2 as64512 passive", "10.0.0.3 as64512 restart20s by:b"}},
		{"what is for all counts before what is for some", []api.BGPPeer{
			bgpPeer("a", api.BGPPeerSpec{NodeSelector: "rack == 'a'", PeerSelector: "has(rr)"}), bgpPeer("b", reflectors),
		}, []string{"10.0.0.2 as64512 passive", "10.0.0.3 as64512 passive by:b"}},
		{"local AS of the other end", []api.BGPPeer{
			bgpPeer("rr", api.BGPPeerSpec{NodeSelector: "has(rr)", PeerSelector: "rack == 'a'", LocalASNumber: ptr(uint32(65001))}),
		}, []string{"10.0.0.2 as64512 passive", "10.0.0.3 as65001 by:rr reverse"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, _ := Decide(three(c.peers...), State{})
			if diff := cmp.Diff(c.want, only4(d)); diff != "" {
				t.Errorf("(-want +got):\n%s%s", diff, said(d))
			}
		})
	}
}

func TestReflectors(t *testing.T) {
	all := bgpPeer("rr", api.BGPPeerSpec{PeerSelector: "all()"})
	tor := bgpPeer("tor", api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 64512})
	in := three(all, tor)
	in.Self.Reflector, in.Self.ClusterID = true, addr("1.0.0.1")
	in.Others[1].Reflector, in.Others[1].ClusterID = true, addr("1.0.0.1")
	d, _ := Decide(in, State{})
	want := []string{"10.0.0.2 as64512 passive client by:rr", "10.0.0.3 as64512 passive by:rr", "172.16.0.1 as64512 client by:tor"}
	if diff := cmp.Diff(want, only4(d)); diff != "" || d.ClusterID != addr("1.0.0.1") {
		t.Errorf("cluster ID %s (-want +got):\n%s", d.ClusterID, diff)
	}
	in.Others[1].ClusterID, in.Others[0].ASN = addr("1.0.0.2"), 65002
	d, _ = Decide(in, State{})
	want = []string{"10.0.0.2 as65002 passive by:rr", "10.0.0.3 as64512 passive client by:rr", "172.16.0.1 as64512 client by:tor"}
	difftest.Want(t, "another cluster, another AS", want, only4(d))
}

func TestReachableBy(t *testing.T) {
	d, _ := Decide(three(
		bgpPeer("tor", api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 65000, ReachableBy: "10.0.0.254"}),
		bgpPeer("rr", api.BGPPeerSpec{NodeSelector: "has(rr)", PeerSelector: "rack == 'a'", ReachableBy: "10.0.0.253"}),
		bgpPeer("six", api.BGPPeerSpec{PeerSelector: "has(rr)", Node: "node1", ReachableBy: "fd00::ff"}),
	), State{})
	want := []Static{{addr("172.16.0.1"), addr("10.0.0.254")}, {addr("fd00::3"), addr("fd00::ff")}}
	if !slices.Equal(d.Static, want) {
		t.Errorf("static routes %v, want %v: none for the session back, nor of another family", d.Static, want)
	}
}

func TestWhatIsWrongIsSaid(t *testing.T) {
	for name, c := range map[string]struct {
		spec api.BGPPeerSpec
		say  string
		up   bool // there is a session nevertheless
	}{
		"no peer":    {api.BGPPeerSpec{}, "spec.peerIP spec.peerSelector", false},
		"no AS":      {api.BGPPeerSpec{PeerIP: "172.16.0.1"}, "spec.asNumber 172.16.0.1", false},
		"no address": {api.BGPPeerSpec{PeerIP: "tor.example", ASNumber: 1}, `spec.peerIP "tor.example"`, false},
		"port 0":     {api.BGPPeerSpec{PeerIP: "172.16.0.1:0", ASNumber: 1}, `spec.peerIP "172.16.0.1:0" 1 65535`, false},
		"link-local": {api.BGPPeerSpec{PeerIP: "fe80::1", ASNumber: 1}, `spec.peerIP "fe80::1" fe80::1%eth0`, false},
		"any router": {api.BGPPeerSpec{PeerIP: "[fe80::]:179", ASNumber: 1}, `spec.peerIP "[fe80::]:179" fe80::%eth0`, false},
		"long zone": {api.BGPPeerSpec{PeerIP: "fe80::1%eth0123456789abc", ASNumber: 1},
			`spec.peerIP "fe80::1%eth0123456789abc" interface 15`, false},
		"zone with a slash": {api.BGPPeerSpec{PeerIP: "fe80::1%../eth0", ASNumber: 1}, `spec.peerIP "fe80::1%../eth0" interface '/'`, false},
		"zone with a space": {api.BGPPeerSpec{PeerIP: "[fe80::1%eth 0]:179", ASNumber: 1},
			`spec.peerIP "[fe80::1%eth 0]:179" interface ' '`, false},
		"no zone":         {api.BGPPeerSpec{PeerIP: "fe80::1%", ASNumber: 1}, `spec.peerIP "fe80::1%" address`, false},
		"useless zone":    {api.BGPPeerSpec{PeerIP: "fd01::1%eth0", ASNumber: 1}, `spec.peerIP "fd01::1%eth0" remove %eth0`, false},
		"group's zone":    {api.BGPPeerSpec{PeerIP: "ff02::1%eth0", ASNumber: 1}, `spec.peerIP "ff02::1%eth0" remove %eth0`, false},
		"IPv4 link-local": {api.BGPPeerSpec{PeerIP: "169.254.0.1", ASNumber: 1}, `spec.peerIP "169.254.0.1" link-local`, false},
		"way to the link": {api.BGPPeerSpec{PeerIP: "fe80::1%eth0", ASNumber: 1, ReachableBy: "10.0.0.254"},
			`spec.reachableBy "10.0.0.254" fe80::1%eth0 remove`, true},
		"source on a link": {api.BGPPeerSpec{PeerIP: "fe80::%eth0", ASNumber: 1, SourceAddress: "UseNodeIP"},
			"spec.sourceAddress UseNodeIP eth0 remove", true},
		"hops on a link": {api.BGPPeerSpec{PeerIP: "fe80::%eth0", ASNumber: 1, TTLSecurity: ptr(2)}, "spec.ttlSecurity 2 fe80::%eth0 1", true},
		"workloads":      {api.BGPPeerSpec{LocalWorkloadSelector: "all()", ASNumber: 1}, "spec.localWorkloadSelector", false},
		"peer selector":  {api.BGPPeerSpec{PeerSelector: "has("}, `spec.peerSelector "has("`, false},
		"node selector":  {api.BGPPeerSpec{NodeSelector: "(", PeerIP: "172.16.0.1", ASNumber: 1}, "spec.nodeSelector", false},
		"hops":           {api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 1, TTLSecurity: ptr(256)}, "spec.ttlSecurity 256", false},
		"restart": {api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 1, MaxRestartTime: "2h"},
			`spec.maxRestartTime "2h" 1s 1h8m15s`, false},
		"keepalive": {api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 1, KeepaliveTime: "soon"}, `spec.keepaliveTime "soon"`, false},
		"mode": {api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 1, NextHopMode: "Me"},
			`spec.nextHopMode "Me" Auto Self Keep`, false},
		"source":           {api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 1, SourceAddress: "eth0"}, `spec.sourceAddress "eth0"`, false},
		"reverse":          {api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 1, ReversePeering: "No"}, `spec.reversePeering "No"`, false},
		"gateway":          {api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 1, ReachableBy: "eth0"}, `spec.reachableBy "eth0"`, false},
		"gateway's family": {api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 1, ReachableBy: "fd00::5"}, "spec.reachableBy family", false},
		"filter":           {api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 1, Filters: []string{"f"}}, "spec.filters BGPFilter f", false},
		"Secret": {api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 1,
			Password: &api.BGPPassword{SecretKeyRef: &api.SecretKeyRef{Name: "gone"}}}, "spec.password gone", false},
		"own AS": {api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 1, NumAllowedLocalASNumbers: ptr(11)},
			"spec.numAllowedLocalASNumbers 11 0 10", true},
		"two kinds of node": {api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 1, Node: "node9", NodeSelector: "all()"},
			`spec.node "node9"`, true},
		"two kinds of peer": {api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 1, PeerSelector: "has(rr)"}, `spec.peerIP "172.16.0.1"`, true},
		"family":            {api.BGPPeerSpec{PeerIP: "fd01::1", ASNumber: 1, Node: "node1"}, "peer fd01::1 family", false},
		"a node's AS": {api.BGPPeerSpec{PeerIP: "10.0.0.2", ASNumber: 65000},
			"10.0.0.2 spec.asNumber 65000 node2 set 64512", true},
	} {
		t.Run(name, func(t *testing.T) {
			in := three(bgpPeer("x", c.spec))
			in.Mesh.On, in.Self.Addr6 = false, netip.Addr{}
			in.Secrets = map[api.Place]Secret{{Name: "gone"}: {Err: errors.New("it is gone")}}
			d, _ := Decide(in, State{})
			if got := said(d); !errtest.Has(got, c.say) || !strings.HasPrefix(got, "BGPPeer x: ") {
				t.Errorf("said %q, want %q", got, c.say)
			}
			if up := len(d.Peers) > 0; up != c.up {
				t.Errorf("sessions %v", texts(d))
			}
		})
	}
}

func TestOneSessionWithAnAddress(t *testing.T) {
	spec := api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 65000, Node: "node1"}
	other := spec
	d, _ := Decide(three(bgpPeer("a", spec), bgpPeer("b", other)), State{})
	if len(d.Problems) > 0 {
		t.Errorf("two that say the same: %s", said(d))
	}
	other.PeerIP += ":1179"
	d, _ = Decide(three(bgpPeer("a", spec), bgpPeer("b", other)), State{})
	if got := said(d); !errtest.Has(got, "BGPPeer b 172.16.0.1 a 179") || strings.Contains(got, "\n") {
		t.Errorf("two ports: %q", got)
	}
	other = spec
	other.MaxRestartTime = "10s"
	d, _ = Decide(three(bgpPeer("b", spec), bgpPeer("a", other)), State{})
	if got := said(d); !errtest.Has(got, "BGPPeer b 172.16.0.1 a settings") || strings.Contains(got, "\n") {
		t.Errorf("two settings: %q", got)
	}
	all := api.BGPPeerSpec{PeerSelector: "all()", Node: "node1"}
	more := all
	more.MaxRestartTime = "10s"
	d, _ = Decide(three(bgpPeer("a", all), bgpPeer("b", more)), State{})
	if got := said(d); !errtest.Has(got, "BGPPeer b 10.0.0.2 3 a") || strings.Contains(got, "\n") {
		t.Errorf("what is true of many is said once: %q", got)
	}
}

// A BGPPeer with a lost reference keeps its settings, and follows the nodes.
func TestLastGoodFormStays(t *testing.T) {
	place := api.Place{Name: "tor", Key: "rr"}
	good := bgpPeer("tor", api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 65000,
		Password: &api.BGPPassword{SecretKeyRef: &api.SecretKeyRef{Name: "tor", Key: "rr"}}})
	in := three(good, bgpPeer("rr", api.BGPPeerSpec{PeerSelector: "has(rr)"}))
	in.Mesh.On, in.Self.Addr6 = false, netip.Addr{}
	in.Secrets = map[api.Place]Secret{place: {Text: "one"}}
	want := []string{"10.0.0.3 as64512 passive by:rr", "172.16.0.1 as65000 password=one by:tor"}
	d, state := Decide(in, State{})
	if diff := cmp.Diff(want, texts(d)); diff != "" || len(d.Problems) > 0 {
		t.Fatalf("(-want +got):\n%s%s", diff, said(d))
	}
	in.Secrets = map[api.Place]Secret{place: {Err: errors.New("key \"rr\" of Secret x/tor: the Secret does not exist")}}
	d, state = Decide(in, state)
	if diff := cmp.Diff(want, texts(d)); diff != "" || !strings.Contains(said(d), "does not exist: what it was before stays in force") {
		t.Errorf("without the Secret (-want +got):\n%s%s", diff, said(d))
	}
	in.Secrets = map[api.Place]Secret{place: {Pending: true}}
	d, state = Decide(in, state)
	if diff := cmp.Diff(want, texts(d)); diff != "" || len(d.Problems) > 0 {
		t.Errorf("a Secret that is being read is no problem (-want +got):\n%s%s", diff, said(d))
	}
	in.Peers[1].Spec.PeerSelector = "has("
	in.Others = append(in.Others, nodeN(4, "rr=true"))
	d, state = Decide(in, state)
	want = slices.Insert(want, 1, "10.0.0.4 as64512 passive by:rr")
	if diff := cmp.Diff(want, texts(d)); diff != "" || !strings.Contains(said(d), "BGPPeer rr: spec.peerSelector") {
		t.Errorf("with a broken selector and another node (-want +got):\n%s%s", diff, said(d))
	}
	in.Peers = in.Peers[:1]
	d, state = Decide(in, state)
	difftest.Want(t, "a removed object is gone", want[2:], texts(d))
	in.Peers = nil
	if d, _ = Decide(in, state); len(d.Peers) > 0 {
		t.Errorf("all removed: %v", texts(d))
	}
}

func TestFilters(t *testing.T) {
	reject := []api.BGPFilterRule{{Action: "Reject", CIDR: "0.0.0.0/0", MatchOperator: "Equal"}}
	f := api.BGPFilter{Meta: api.Meta{Name: "f"}, Spec: api.BGPFilterSpec{ImportV4: reject, ExportV6: []api.BGPFilterRule{{Action: "Reject"}}}}
	in := three(
		bgpPeer("four", api.BGPPeerSpec{PeerIP: "172.16.0.1", ASNumber: 65000, Filters: []string{"f"}}),
		bgpPeer("six", api.BGPPeerSpec{PeerIP: "fd01::1", ASNumber: 65000, Filters: []string{"f"}}),
		bgpPeer("none", api.BGPPeerSpec{PeerIP: "172.16.0.2", ASNumber: 65000}),
	)
	in.Filters = []api.BGPFilter{f}
	d, state := Decide(in, State{})
	four, six := addr("172.16.0.1"), addr("fd01::1")
	if len(d.Import) != 1 || d.Import[four] == nil || len(d.Export) != 1 || d.Export[six] == nil || len(d.Problems) > 0 {
		t.Fatalf("import %v, export %v, %s", d.Import, d.Export, said(d))
	}
	before := d.Import[four]
	in.Filters = []api.BGPFilter{{Meta: f.Meta, Spec: api.BGPFilterSpec{ImportV4: []api.BGPFilterRule{{Action: "Maybe"}}}}}
	d, state = Decide(in, state)
	if !d.Import[four].Equal(before) || d.Export[six] == nil {
		t.Errorf("a broken filter: import %v, export %v", d.Import, d.Export)
	}
	difftest.Contains(t, said(d), "BGPFilter f: ", "BGPPeer four: spec.filters: BGPFilter f cannot be used", "stays in force")
	in.Filters = nil
	if d, _ = Decide(in, state); !d.Import[four].Equal(before) || !strings.Contains(said(d), "BGPFilter f does not exist") {
		t.Errorf("a removed filter: import %v, %s", d.Import, said(d))
	}
}

// Another process continues with the last usable forms, once it has the passwords, which are in no file.
func TestRecalledFormsStay(t *testing.T) {
	place := api.Place{Name: "tor", Key: "rr"}
	good := bgpPeer("tor", api.BGPPeerSpec{
		PeerIP: "172.16.0.1", ASNumber: 65000, Filters: []string{"f"},
		Password: &api.BGPPassword{SecretKeyRef: &api.SecretKeyRef{Name: "tor", Key: "rr"}},
	})
	in := three(good)
	in.Mesh.On = false
	in.Secrets = map[api.Place]Secret{place: {Text: "secret"}}
	in.Filters = []api.BGPFilter{{Meta: api.Meta{Name: "f"}, Spec: api.BGPFilterSpec{ImportV4: []api.BGPFilterRule{{Action: "Reject"}}}}}
	_, state := Decide(in, State{})
	file, err := json.Marshal(state.Past())
	if err != nil || strings.Contains(string(file), "secret\"") {
		t.Fatalf("%s, %v", file, err)
	}
	var past []Past
	errtest.Must(t, json.Unmarshal(file, &past))
	// The next process finds the filter gone, and has to wait for the Secret.
	in.Filters, in.Secrets = nil, nil
	d, state := Decide(in, Recall(past))
	if len(d.Peers) > 0 || len(state.Past()) != 1 {
		t.Fatalf("without the password: %v; %v stays known", texts(d), state.Past())
	}
	in.Secrets = map[api.Place]Secret{place: {Text: "secret"}}
	d, state = Decide(in, state)
	if diff := cmp.Diff([]string{"172.16.0.1 as65000 password=secret by:tor"}, texts(d)); diff != "" || d.Import[addr("172.16.0.1")] == nil {
		t.Errorf("(-want +got):\n%s%v", diff, d.Import)
	}
	if got := said(d); !strings.Contains(got, "BGPFilter f does not exist") || !strings.Contains(got, "stays in force") {
		t.Errorf("said %q", got)
	}
	in.Peers = nil
	if d, state = Decide(in, state); len(d.Peers) > 0 || len(state.Past()) > 0 {
		t.Errorf("the object is gone, and left %v, %v", texts(d), state.Past())
	}
}

func TestTags(t *testing.T) {
	in := three()
	in.Config.Communities = []api.Community{{Name: "bgp-large", Value: "64512:300:100"}}
	in.Config.PrefixAdvertisements = []api.PrefixAdvertisement{{CIDR: "10.1.0.0/16", Communities: []string{"bgp-large", "64512:120"}}}
	show := func(d Decision) string { return fmt.Sprint(d.Tags) }
	d, state := Decide(in, State{})
	want := "[{10.1.0.0/16 [64512:300:100 64512:120]}]"
	if show(d) != want || len(d.Problems) > 0 {
		t.Errorf("tags %s, want %s; %s", show(d), want, said(d))
	}
	in.Config.PrefixAdvertisements = append(in.Config.PrefixAdvertisements,
		api.PrefixAdvertisement{CIDR: "10.2.0.0/16", Communities: []string{"unknown"}})
	d, state = Decide(in, state)
	if show(d) != want || !errtest.Has(said(d), `BGPConfiguration default spec.prefixAdvertisements[1] communities "unknown"`) {
		t.Errorf("with a mistake: tags %s, want %s; %s", show(d), want, said(d))
	}
	if d, _ = Decide(in, State{}); show(d) != want || !strings.Contains(said(d), "it is left out") {
		t.Errorf("with a mistake from the start: tags %s, want %s; %s", show(d), want, said(d))
	}
	in.OwnConfig.PrefixAdvertisements = []api.PrefixAdvertisement{{CIDR: "fd01::/64", Communities: []string{"bgp-large"}}}
	if d, _ = Decide(in, state); show(d) != "[{fd01::/64 [64512:300:100]}]" || len(d.Problems) > 0 {
		t.Errorf("the node's own: tags %s; %s", show(d), said(d))
	}
	in.OwnConfig.PrefixAdvertisements[0].CIDR = "fd01::1/64"
	if d, _ = Decide(in, state); !strings.Contains(said(d), "BGPConfiguration node.node1: spec.prefixAdvertisements[0]: cidr") {
		t.Errorf("the node's own mistake: %s", said(d))
	}
	in.OwnConfig.PrefixAdvertisements = []api.PrefixAdvertisement{}
	if d, _ = Decide(in, state); len(d.Tags) > 0 || len(d.Problems) > 0 {
		t.Errorf("an empty list of the node's own: tags %s; %s", show(d), said(d))
	}
}
