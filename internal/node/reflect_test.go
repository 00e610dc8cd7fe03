package node

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/kube"
	"github.com/tortie-net/tortie/internal/peering"
	"github.com/tortie-net/tortie/internal/reflectors"
)

// reflectingWorld is three nodes in two families, of which the last is an operator's reflector; n2 owns blocks.
func reflectingWorld() kube.World {
	node := func(name, v4, v6 string, more map[string]string) api.Node {
		n := api.Node{Meta: api.Meta{Name: name, Labels: map[string]string{api.LabelZone: "zone-" + name}, Annotations: map[string]string{
			api.AnnotationIPv4Address: v4, api.AnnotationIPv6Address: v6, api.AnnotationReflection: "client",
		}}}
		for key, value := range more {
			n.Annotations[key] = value
		}
		return n
	}
	block := func(owner, cidr string) api.BlockAffinity {
		return api.BlockAffinity{Meta: api.Meta{Name: owner + cidr}, Spec: api.BlockAffinitySpec{Node: owner, CIDR: cidr, State: api.AffinityConfirmed}}
	}
	pool := func(cidr string, size int) api.IPPool {
		return api.IPPool{Meta: api.Meta{Name: cidr}, Spec: api.IPPoolSpec{CIDR: cidr, BlockSize: size, NodeSelector: "all()"}}
	}
	return kube.World{
		Self: &api.Node{Meta: api.Meta{Name: "n1"}},
		Nodes: []api.Node{
			node("n1", "10.0.0.1/24", "fd00::1/64", map[string]string{api.AnnotationReflection: "reflector"}),
			node("n2", "10.0.0.2/24", "fd00::2/64", map[string]string{api.NoReflector: ""}),
			node("n3", "10.0.0.3/24", "", map[string]string{api.AnnotationReflector: "244.0.0.1"}),
			node("n4", "10.0.0.4/24", "", map[string]string{api.AnnotationASNumber: "65001"}),
			{Meta: api.Meta{Name: "n5"}}, // its agent has not come up yet
		},
		Pools:      []api.IPPool{pool("192.168.0.0/16", 26), pool("fd99::/64", 122)},
		Affinities: []api.BlockAffinity{block("n2", "192.168.2.0/26"), block("n2", "fd99::/122")},
	}
}

// Who takes part in the agreement on reflectors, and with what.
func TestRoll(t *testing.T) {
	w := reflectingWorld()
	s, problems := BuildSnapshot(Self{Name: "n1"}, w)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	r := s.roll(w.Nodes)
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
	w := reflectingWorld()
	s, _ := BuildSnapshot(Self{Name: "n1"}, w)
	s = s.as(Self{Name: "n1", Addr: netip.MustParsePrefix("10.0.0.1/24"), Addr6: netip.MustParsePrefix("fd00::1/64")})
	up := func(a string, whole bool) bgp.PeerStatus {
		return bgp.PeerStatus{Addr: addr(a), State: bgp.Established, EndOfTable: whole}
	}
	for name, c := range map[string]struct {
		peers []bgp.PeerStatus
		want  reflectors.Session
		whole int
	}{
		"nothing":              {nil, reflectors.Session{}, 0},
		"one family":           {[]bgp.PeerStatus{up("10.0.0.2", true)}, reflectors.Session{}, 1},
		"the other is down":    {[]bgp.PeerStatus{up("10.0.0.2", true), {Addr: addr("fd00::2"), State: bgp.Active}}, reflectors.Session{}, 1},
		"not all is told yet":  {[]bgp.PeerStatus{up("10.0.0.2", true), up("fd00::2", false)}, reflectors.Session{Established: true}, 1},
		"all, and a stranger":  {[]bgp.PeerStatus{up("10.0.0.2", true), up("fd00::2", true), {Addr: addr("10.9.9.9")}}, reflectors.Session{Established: true, Complete: true}, 2},
		"another node is down": {[]bgp.PeerStatus{up("10.0.0.2", true), up("fd00::2", true), {Addr: addr("10.0.0.3")}}, reflectors.Session{Established: true, Complete: true}, 2},
	} {
		sessions, whole := s.reflectorSessions([]string{"n2"}, c.peers)
		if diff := cmp.Diff(map[string]reflectors.Session{"n2": c.want}, sessions); diff != "" || len(whole) != c.whole {
			t.Errorf("%s: %d have told all, want %d; sessions (-want +got):\n%s", name, len(whole), c.whole, diff)
		}
	}
}

// A node that is about to leave, and a node that cannot take part.
func TestUnwillingAndRefused(t *testing.T) {
	for want, spec := range map[string]api.NodeSpec{
		"":           {Taints: []api.Taint{{Key: "node-role.kubernetes.io/control-plane"}}},
		"cordoned":   {Unschedulable: true},
		"ToBeDelete": {Taints: []api.Taint{{Key: "ToBeDeletedByClusterAutoscaler"}}},
	} {
		if got := unwilling(&api.Node{Spec: spec}); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%+v: %q, want %q", spec, got, want)
		}
	}
	for want, s := range map[string]Snapshot{
		"":                               {ASN: 64512, Mesh: true, Self: Self{ASN: 64512}},
		"nodeToNodeMeshEnabled":          {ASN: 64512},
		"in AS 65001":                    {ASN: 64512, Mesh: true, Self: Self{ASN: 65001}},
		"makes this node a route reflec": {ASN: 64512, Mesh: true, Self: Self{Reflector: true}},
	} {
		if got := s.refusal(); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// While no reflector is heard of, BGP's silence about a node without a session of its own means nothing.
func TestSilenceOfReflectors(t *testing.T) {
	w := reflectingWorld()
	s, _ := BuildSnapshot(Self{Name: "n1"}, w)
	now := time.Now()
	c := claim{node: "n4", addr: addr("192.168.4.4")}
	reflector := bgp.PeerStatus{Addr: addr("10.0.0.2"), State: bgp.Established, Since: now.Add(-time.Hour)}
	if sessionsDown(&s, nil, now)(c) {
		t.Error("without reflectors, a node that there is no session with is silent")
	}
	s.Automatic = &peering.Automatic{Role: peering.Client, Reflectors: map[string]bool{"n2": true}}
	if sessionsDown(&s, []bgp.PeerStatus{reflector}, now)(c) {
		t.Error("a reflector has told all, and its silence is not believed")
	}
	reflector.State = bgp.Active
	if !sessionsDown(&s, []bgp.PeerStatus{reflector}, now)(c) || !sessionsDown(&s, nil, now)(c) {
		t.Error("no reflector is heard of, and what they do not say is believed")
	}
	s.Automatic.Role = peering.Reflector
	if sessionsDown(&s, nil, now)(c) {
		t.Error("a reflector has sessions with all of its clients")
	}
	for _, gone := range []claim{{node: "no such node", addr: c.addr}, {node: "n1", addr: c.addr, elsewhere: true}} {
		if sessionsDown(&s, nil, now)(gone) {
			t.Errorf("%+v: there is no session that could be down", gone)
		}
	}
}

// The next pass comes when the plan is another, and at once only once.
func TestNextPlan(t *testing.T) {
	now := time.Now()
	r := reflecting{plan: reflectors.Plan{Again: now.Add(3 * time.Second)}}
	for i, c := range []struct {
		at   time.Duration
		want time.Duration
	}{{0, 3 * time.Second}, {2 * time.Second, time.Second}, {4 * time.Second, 0}, {4 * time.Second, fullPass}} {
		if got := r.again(now.Add(c.at), fullPass); got != c.want {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
	}
	r.stirred = true
	if first, second := r.again(now, fullPass), r.again(now, fullPass); first != 0 || second != fullPass {
		t.Errorf("what has changed is looked at after %v, and again after %v", first, second)
	}
	r.plan.Ask = []string{"n2"}
	if got := r.again(now, fullPass); got != missPause {
		t.Errorf("a Node is read again after %v", got)
	}
}
