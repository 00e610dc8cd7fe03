package peering

import (
	"net/netip"
	"testing"

	"github.com/tortie-net/tortie/internal/bgp"
)

// A reflector that the nodes have agreed on announces what all of them do: the bound on one peer's prefixes is not its.
func TestReflectorsPrefixes(t *testing.T) {
	in := Input{
		Self: Node{Name: "a", Addr: netip.MustParseAddr("10.0.0.1")}, ASN: 64512, Port: 179, Mesh: Mesh{On: true},
		Others: []Node{{Name: "b", Addr: netip.MustParseAddr("10.0.0.2")}, {Name: "c", Addr: netip.MustParseAddr("10.0.0.3")}},
		Automatic: &Automatic{Role: Client, Reflectors: map[string]bool{"b": true}, Clients: map[string]bool{"c": true},
			KeepMesh: func(string) bool { return true }},
	}
	for _, limit := range []int{0, 50} {
		in.MaxPrefixes = limit
		d, _ := Decide(in, State{})
		if len(d.Peers) != 2 {
			t.Fatalf("%+v", d.Peers)
		}
		want := reflectedPrefixes * max(limit, bgp.DefaultMaxPrefixes*(1-min(limit, 1)))
		if d.Peers[0].MaxPrefixes != want || d.Peers[1].MaxPrefixes >= want {
			t.Errorf("limit %d: a reflector has %d, another node %d", limit, d.Peers[0].MaxPrefixes, d.Peers[1].MaxPrefixes)
		}
	}
}
