package peering

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// A session with a peer on a link is between link-local addresses, also on a node without an IPv6 address of its own.
func TestPeersOnLinks(t *testing.T) {
	in := three(
		bgpPeer("fixed", api.BGPPeerSpec{PeerIP: "[fe80::1%eth0]:1790", ASNumber: 65000, TTLSecurity: ptr(1)}),
		bgpPeer("learned", api.BGPPeerSpec{PeerIP: "fe80::%eth1", ASNumber: 65001}),
		bgpPeer("port", api.BGPPeerSpec{PeerIP: "[fe80::%eth2]:1790", ASNumber: 65002, SourceAddress: "None"}),
	)
	in.Mesh.On, in.Self.Addr6 = false, netip.Addr{}
	d, _ := Decide(in, State{})
	want := []string{
		"fe80::%eth1 as65001 unbound by:learned",
		"fe80::%eth2 as65002 port1790 unbound by:port",
		"fe80::1%eth0 as65000 port1790 unbound ttl1 by:fixed",
	}
	if got := texts(d); !slices.Equal(got, want) || len(d.Problems) > 0 {
		t.Errorf("sessions (-got +want):\n%s%s", cmp.Diff(got, want), said(d))
	}
	if got, want := d.Interfaces(), map[string]bool{"eth0": false, "eth1": true, "eth2": true}; !cmp.Equal(got, want) {
		t.Errorf("interfaces %v, want %v", got, want)
	}
	if d, _ := Decide(three(), State{}); d.Interfaces() != nil {
		t.Error("a node without such peers looks for routers")
	}
}

func TestOn(t *testing.T) {
	router := Link{Router: addr("fe80::9%eth0")}
	learned := bgpPeer("learned", api.BGPPeerSpec{PeerIP: "fe80::%eth0", ASNumber: 65000, Filters: []string{"f"}})
	learned.Annotations = map[string]string{api.AnnotationAggregate: string(ByPool)}
	own := learned
	own.Spec.Node = "node1"
	fixed := func(ip, node string) api.BGPPeer {
		return bgpPeer("fixed", api.BGPPeerSpec{PeerIP: ip, ASNumber: 65001, Node: node})
	}
	for name, c := range map[string]struct {
		peers      []api.BGPPeer
		links      map[string]Link
		want       []string
		unresolved string
		say        string
	}{
		"learned": {[]api.BGPPeer{learned}, map[string]Link{"eth0": router},
			[]string{"fe80::9%eth0 as65000 unbound by:learned"}, "", ""},
		"one of two": {[]api.BGPPeer{learned}, map[string]Link{"eth0": {router.Router, "fe80::2, too"}},
			[]string{"fe80::9%eth0 as65000 unbound by:learned"}, "", "BGPPeer learned fe80::2, too"},
		"not learned yet":   {[]api.BGPPeer{learned}, map[string]Link{"eth0": {Why: "nothing came"}}, nil, "fe80::%eth0 nothing came", ""},
		"no such interface": {[]api.BGPPeer{own}, nil, nil, "fe80::%eth0 no interface eth0", ""},
		"not on all nodes":  {[]api.BGPPeer{learned, fixed("fe80::1%eth1", "")}, nil, nil, "", ""},
		"fixed": {[]api.BGPPeer{fixed("fe80::1%eth0", "")}, map[string]Link{"eth0": {}},
			[]string{"fe80::1%eth0 as65001 unbound by:fixed"}, "", ""},
		"fixed on no link": {[]api.BGPPeer{fixed("fe80::1%eth1", "node1")}, map[string]Link{"eth0": {}}, nil,
			"fe80::1%eth1 no interface eth1", ""},
		"both, the same": {[]api.BGPPeer{learned, fixed("fe80::9%eth0", "node1")}, map[string]Link{"eth0": router},
			[]string{"fe80::9%eth0 as65001 unbound by:fixed"}, "", "BGPPeer learned fe80::%eth0 fe80::9%eth0 fixed remove"},
		"both, of one link": {[]api.BGPPeer{learned, fixed("fe80::1%eth0", "")}, map[string]Link{"eth0": router},
			[]string{"fe80::1%eth0 as65001 unbound by:fixed", "fe80::9%eth0 as65000 unbound by:learned"}, "", ""},
		"beside one elsewhere": {[]api.BGPPeer{learned, fixed("172.16.0.1", "")}, map[string]Link{"eth0": router},
			[]string{"172.16.0.1 as65001 by:fixed", "fe80::9%eth0 as65000 unbound by:learned"}, "", ""},
	} {
		in := three(c.peers...)
		in.Mesh.On = false
		in.Filters = []api.BGPFilter{{Meta: api.Meta{Name: "f"}, Spec: api.BGPFilterSpec{ImportV6: []api.BGPFilterRule{{Action: "Reject"}}}}}
		before, _ := Decide(in, State{})
		sources := len(before.Sources)
		d := before.On(c.links)
		if got := texts(d); !slices.Equal(got, c.want) {
			t.Errorf("%s: sessions (-got +want):\n%s", name, cmp.Diff(got, c.want))
		}
		var unresolved strings.Builder
		for _, u := range d.Unresolved {
			unresolved.WriteString(u.Peer.Addr.String() + " " + u.Why + "\n")
		}
		if got := unresolved.String(); (got == "") != (c.unresolved == "") || !errtest.Has(got, c.unresolved) {
			t.Errorf("%s: unresolved %q, want %q", name, got, c.unresolved)
		}
		if got := said(d); (got == "") != (c.say == "") || !errtest.Has(got, c.say) {
			t.Errorf("%s: said %q, want %q", name, got, c.say)
		}
		if len(d.Sources) != len(d.Peers)+len(d.Unresolved) || len(before.Sources) != sources || before.Unresolved != nil {
			t.Errorf("%s: %d sources, and of the decision that it is of %d, before that %d", name, len(d.Sources), len(before.Sources), sources)
		}
		if at := router.Router; d.Sources[at].Peer == "learned" && (d.Import[at] == nil || d.Aggregations[at] != ByPool) {
			t.Errorf("%s: the filters of what was learned are %v, its aggregates %q", name, d.Import[at], d.Aggregations[at])
		}
	}
}

// FuzzParsePeer reads peers' addresses: the accepted ones have zones where these have a meaning.
func FuzzParsePeer(f *testing.F) {
	for _, text := range []string{"10.0.0.1", "[fd00::1]:179", "fe80::%eth0", "[fe80::1%eth0]:1790", "fe80::1%../..",
		"::ffff:10.0.0.1%x", "fe80::1%\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, _, err := parsePeer(text)
		if err != nil {
			return
		}
		if zone := a.Zone(); (zone != "") != a.IsLinkLocalUnicast() || len(zone) > 15 || strings.ContainsAny(zone, "/: \x00\n") || a.Is4In6() ||
			a.IsLoopback() || a.IsMulticast() {
			t.Errorf("%q is taken for %s", text, a)
		}
	})
}
