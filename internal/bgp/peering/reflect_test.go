package peering

import (
	"net/netip"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
)

// A reflector of the AS announces the prefixes of all nodes: the bound on one node's prefixes does not apply.
func TestReflectorsPrefixes(t *testing.T) {
	in := Input{
		Self: Node{Name: "a", Addr: netip.MustParseAddr("10.0.0.1")}, ASN: 64512, Port: 179,
		Others: []Node{{Name: "b", Addr: netip.MustParseAddr("10.0.0.2"), Reflector: true}, {Name: "c", Addr: netip.MustParseAddr("10.0.0.3")},
			{Name: "d", Addr: netip.MustParseAddr("10.0.0.4"), Reflector: true, ASN: 64999}},
		Peers: []api.BGPPeer{{Meta: api.Meta{Name: "all"}, Spec: api.BGPPeerSpec{NodeSelector: "all()", PeerSelector: "all()"}}},
	}
	for _, limit := range []int{0, 50} {
		in.MaxPrefixes = limit
		d, _ := Decide(in, State{})
		if len(d.Peers) != 3 {
			t.Fatalf("%+v", d.Peers)
		}
		want := reflectedPrefixes * max(limit, bgp.DefaultMaxPrefixes*(1-min(limit, 1)))
		if d.Peers[0].MaxPrefixes != want || d.Peers[1].MaxPrefixes >= want || d.Peers[2].MaxPrefixes >= want {
			t.Errorf("limit %d: a reflector has %d, another node %d, one of another AS %d", limit, d.Peers[0].MaxPrefixes, d.Peers[1].MaxPrefixes,
				d.Peers[2].MaxPrefixes)
		}
	}
}
