package desired

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/reflectors"
	"github.com/tortie-net/tortie/internal/testkit/desiredtest"
)

// Who takes part in the agreement on reflectors, and with what.
func TestRoll(t *testing.T) {
	w := desiredtest.Reflecting()
	s, problems := Build(Self{Name: "n1"}, w)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	r := s.Roll(w.Nodes)
	both := reflectors.IPv4 | reflectors.IPv6
	for name, want := range map[string]reflectors.Node{
		"n1": {Name: "n1", Zone: "zone-n1", Says: reflectors.Reflector, Families: both},
		"n2": {Name: "n2", Zone: "zone-n2", Says: reflectors.Client, Barred: true, Families: both, Announces: both},
	} {
		if got, _ := r.Get(name); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	if r.Len() != 2 {
		t.Errorf("%v take part: neither an operator's reflector can, nor a node in another AS, nor one that nobody has heard of", r.Names())
	}
}

// A session with a reflector is up when it is in each family that both have.
func TestReflectorSessions(t *testing.T) {
	w := desiredtest.Reflecting()
	s, _ := Build(Self{Name: "n1"}, w)
	s = s.As(Self{Name: "n1", Addr: netip.MustParsePrefix("10.0.0.1/24"), Addr6: netip.MustParsePrefix("fd00::1/64")})
	up := func(a string, whole bool) bgp.PeerStatus {
		p := bgp.PeerStatus{Addr: addr(a), State: bgp.Established}
		if whole {
			p.TableEnded = time.Unix(1, 0)
		}
		return p
	}
	for name, c := range map[string]struct {
		peers []bgp.PeerStatus
		want  reflectors.Session
		whole int
	}{
		"nothing":             {nil, reflectors.Session{}, 0},
		"one family":          {[]bgp.PeerStatus{up("10.0.0.2", true)}, reflectors.Session{}, 1},
		"the other is down":   {[]bgp.PeerStatus{up("10.0.0.2", true), {Addr: addr("fd00::2"), State: bgp.Active}}, reflectors.Session{}, 1},
		"not all is told yet": {[]bgp.PeerStatus{up("10.0.0.2", true), up("fd00::2", false)}, reflectors.Session{Established: true}, 1},
		"all, and a stranger": {[]bgp.PeerStatus{up("10.0.0.2", true), up("fd00::2", true), {Addr: addr("10.9.9.9")}},
			reflectors.Session{Established: true, Complete: true}, 2},
		"another node is down": {[]bgp.PeerStatus{up("10.0.0.2", true), up("fd00::2", true), {Addr: addr("10.0.0.3")}},
			reflectors.Session{Established: true, Complete: true}, 2},
	} {
		sessions, whole := s.ReflectorSessions([]string{"n2"}, c.peers)
		if diff := cmp.Diff(map[string]reflectors.Session{"n2": c.want}, sessions); diff != "" || len(whole) != c.whole {
			t.Errorf("%s: %d have told all, want %d; sessions (-want +got):\n%s", name, len(whole), c.whole, diff)
		}
	}
}

// A node that cannot take part.
func TestRefused(t *testing.T) {
	for want, s := range map[string]Snapshot{
		"":                               {ASN: 64512, Mesh: true, Self: Self{ASN: 64512}},
		"nodeToNodeMeshEnabled":          {ASN: 64512},
		"in AS 65001":                    {ASN: 64512, Mesh: true, Self: Self{ASN: 65001}},
		"makes this node a route reflec": {ASN: 64512, Mesh: true, Self: Self{Reflector: true}},
	} {
		if got := s.Refusal(); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
