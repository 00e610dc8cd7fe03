package policy

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
)

// networkPolicy converts the spec of a NetworkPolicy in namespace x.
func networkPolicy(t *testing.T, spec string) Policy {
	t.Helper()
	n := api.NetworkPolicy{Meta: api.Meta{Namespace: "x", Name: "p"}}
	if err := json.Unmarshal([]byte(spec), &n.Spec); err != nil {
		t.Fatal(err)
	}
	return FromNetworkPolicy(&n)
}

func clusterPolicy(t *testing.T, spec string) (Policy, error) {
	t.Helper()
	c := api.ClusterNetworkPolicy{Meta: api.Meta{Name: "c"}}
	if err := json.Unmarshal([]byte(spec), &c.Spec); err != nil {
		t.Fatal(err)
	}
	return FromClusterNetworkPolicy(&c)
}

func TestDirections(t *testing.T) {
	for spec, want := range map[string][2]bool{
		`{}`:                          {true, false},
		`{"egress":[]}`:               {true, false},
		`{"egress":[{}]}`:             {true, true},
		`{"policyTypes":["Egress"]}`:  {false, true},
		`{"policyTypes":["Ingress"]}`: {true, false},
		`{"policyTypes":["ingress"]}`: {true, true}, // closed: the direction is unknown
		`{"policyTypes":["Ingress"],"egress":[{}],"ingress":[{}]}`: {true, false},
	} {
		p := networkPolicy(t, spec)
		if p.Applies != want {
			t.Errorf("%s counts for %v, want %v", spec, p.Applies, want)
		}
		if !p.Applies[Egress] && len(p.Rules[Egress]) > 0 {
			t.Errorf("%s has rules for a direction that it does not count for", spec)
		}
	}
}

// cluster is a State with pods a and b in namespaces x and y, local in x; a declares http for 8080, b for 9090.
func cluster(policies ...Policy) State {
	s := State{Local: map[string]PodKey{"calia": {"x", "a"}, "calib": {"x", "b"}}, Pods: map[PodKey]*Pod{}, Policies: policies,
		Namespaces: map[string]map[string]string{"x": {"kubernetes.io/metadata.name": "x"},
			"y": {"kubernetes.io/metadata.name": "y", "team": "red"}},
		Nodes: map[string]Node{"n": {map[string]string{"role": "edge"}, []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}}
	for i, key := range []PodKey{{"x", "a"}, {"x", "b"}, {"y", "a"}, {"y", "b"}} {
		port := map[string]uint16{"a": 8080, "b": 9090}[key.Name]
		s.Pods[key] = &Pod{PodKey: key, UID: key.String(), Labels: map[string]string{"app": key.Name},
			Ports:     []NamedPort{{"http", TCP, port}, {"dns", UDP, 53}},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(i + 1)})}}
	}
	return s
}

// The addresses of cluster's pods and others.
const xa, xb, ya, yb, node, outside, outside6 = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "192.0.2.1", "203.0.113.1", "2001:db8::1"

// flow is a connection of pod x/a and what should become of it.
type flow struct {
	d        Direction
	peer     string
	protocol uint8
	port     uint16
	allow    bool
}

// check asserts what becomes of flows by the kernel's programs, and that Explain agrees.
func check(t *testing.T, s State, flows ...flow) {
	t.Helper()
	c := Compile(s)
	for _, f := range flows {
		peer := netip.MustParseAddr(f.peer)
		got := c.Decide("calia", f.d, peer, Packet{Protocol: f.protocol, Port: f.port})
		if got.Allow != f.allow {
			t.Errorf("%s %s protocol %d port %d: allowed %v, want %v", f.d, f.peer, f.protocol, f.port, got.Allow, f.allow)
		}
		own := Party{Pod: PodKey{"x", "a"}}
		other := Party{Address: peer}
		j := Explain(s, other, own, Packet{Protocol: f.protocol, Port: f.port}).Ingress
		if f.d == Egress {
			j = Explain(s, own, other, Packet{Protocol: f.protocol, Port: f.port}).Egress
		}
		if j.Verdict != got {
			t.Errorf("%s %s protocol %d port %d: explained as %+v, decided as %+v", f.d, f.peer, f.protocol, f.port, j.Verdict, got)
		}
	}
}

// The corners of what a NetworkPolicy means; a problem is a part of what must be in Problems.
func TestNetworkPolicies(t *testing.T) {
	const icmp = 1
	for name, c := range map[string]struct {
		spec, problem string
		flows         []flow
	}{
		"no policy type selects egress": {`{"podSelector":{}}`, "",
			[]flow{{Ingress, xb, TCP, 80, false}, {Ingress, outside, icmp, 0, false}, {Egress, xb, TCP, 80, true}}},
		"another pod is selected":  {`{"podSelector":{"matchLabels":{"app":"b"}}}`, "", []flow{{Ingress, xb, TCP, 80, true}}},
		"an empty rule allows all": {`{"ingress":[{}]}`, "", []flow{{Ingress, outside, icmp, 0, true}, {Ingress, outside6, SCTP, 9, true}}},
		"no peers, a port": {`{"ingress":[{"ports":[{"port":80}]}]}`, "", []flow{{Ingress, outside, TCP, 80, true},
			{Ingress, outside, UDP, 80, false}, {Ingress, outside, TCP, 81, false}, {Ingress, outside, icmp, 0, false}}},
		"no ports: every protocol": {`{"ingress":[{"from":[{"podSelector":{}}]}]}`, "",
			[]flow{{Ingress, xb, icmp, 0, true}, {Ingress, ya, TCP, 80, false}, {Ingress, outside, TCP, 80, false}}},
		"a protocol without port": {`{"ingress":[{"ports":[{"protocol":"UDP"}]}]}`, "",
			[]flow{{Ingress, xb, UDP, 0, true}, {Ingress, xb, UDP, 65535, true}, {Ingress, xb, TCP, 80, false}}},
		"SCTP is not TCP": {`{"ingress":[{"ports":[{"protocol":"SCTP","port":80}]}]}`, "",
			[]flow{{Ingress, xb, SCTP, 80, true}, {Ingress, xb, TCP, 80, false}}},
		"endPort": {`{"ingress":[{"ports":[{"port":80,"endPort":82}]}]}`, "",
			[]flow{{Ingress, xb, TCP, 79, false}, {Ingress, xb, TCP, 80, true}, {Ingress, xb, TCP, 82, true}, {Ingress, xb, TCP, 83, false}}},
		"namespace alone": {`{"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"team":"red"}}}]}]}`, "",
			[]flow{{Ingress, ya, TCP, 80, true}, {Ingress, xb, TCP, 80, false}}},
		"namespace and pod": {
			`{"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"team":"red"}},"podSelector":{"matchLabels":{"app":"b"}}}]}]}`, "",
			[]flow{{Ingress, yb, TCP, 80, true}, {Ingress, ya, TCP, 80, false}, {Ingress, xb, TCP, 80, false}},
		},
		"namespace or pod": {
			`{"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"team":"red"}}},{"podSelector":{"matchLabels":{"app":"b"}}}]}]}`, "",
			[]flow{{Ingress, ya, TCP, 80, true}, {Ingress, xb, TCP, 80, true}, {Ingress, xa, TCP, 80, false}},
		},
		"a label that is not there": {
			`{"ingress":[{"from":[{"namespaceSelector":{"matchExpressions":[{"key":"team","operator":"NotIn","values":["red"]}]}}]}]}`, "",
			[]flow{{Ingress, xb, TCP, 80, true}, {Ingress, ya, TCP, 80, false}},
		},
		"both families": {`{"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"b"}}}]}]}`, "",
			[]flow{{Ingress, "fd00::2", TCP, 80, true}, {Ingress, "fd00::1", TCP, 80, false}}},
		"ipBlock has pods, too": {`{"egress":[{"to":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.0.0.2/32"]}}]}]}`, "",
			[]flow{{Egress, xa, TCP, 80, true}, {Egress, xb, TCP, 80, false}, {Egress, ya, TCP, 80, true}, {Egress, outside, TCP, 80, false}}},
		"allowed by another rule": {
			`{"egress":[{"to":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.0.0.2/32"]}}]},{"to":[{"ipBlock":{"cidr":"10.0.0.2/31"}}]}]}`, "",
			[]flow{{Egress, xb, TCP, 80, true}, {Egress, ya, TCP, 80, true}},
		},
		"leading zeros and host bits": {`{"egress":[{"to":[{"ipBlock":{"cidr":"010.000.0.7/08","except":["10.0.0.003/32"]}}]}]}`, "",
			[]flow{{Egress, xb, TCP, 80, true}, {Egress, ya, TCP, 80, false}}},
		"IPv4 written as IPv6": {`{"egress":[{"to":[{"ipBlock":{"cidr":"::ffff:10.0.0.0/104"}}]}]}`, "",
			[]flow{{Egress, xb, TCP, 80, true}, {Egress, outside, TCP, 80, false}}},
		"named port of the subject": {`{"ingress":[{"ports":[{"port":"http"}]}]}`, "",
			[]flow{{Ingress, xb, TCP, 8080, true}, {Ingress, xb, TCP, 9090, false}, {Ingress, xb, UDP, 8080, false}}},
		"named port of the peer": {`{"egress":[{"ports":[{"port":"http"}]}]}`, "", []flow{{Egress, xa, TCP, 8080, true},
			{Egress, xb, TCP, 8080, false}, {Egress, xb, TCP, 9090, true}, {Egress, outside, TCP, 9090, false}, {Egress, ya, TCP, 8080, true}}},
		"named port, peers": {`{"egress":[{"ports":[{"port":"http"}],"to":[{"podSelector":{}}]}]}`, "",
			[]flow{{Egress, xb, TCP, 9090, true}, {Egress, ya, TCP, 8080, false}, {Egress, yb, TCP, 9090, false}}},
		"named port, network": {`{"egress":[{"ports":[{"port":"http"}],"to":[{"ipBlock":{"cidr":"0.0.0.0/0"}}]}]}`, "",
			[]flow{{Egress, xb, TCP, 9090, true}, {Egress, xb, TCP, 8080, false}, {Egress, outside, TCP, 8080, false}}},
		"named port is TCP": {`{"egress":[{"ports":[{"port":"dns"}]}]}`, "", []flow{{Egress, xb, UDP, 53, false}}},
		"named UDP port": {`{"egress":[{"ports":[{"protocol":"UDP","port":"dns"}]}]}`, "",
			[]flow{{Egress, xb, UDP, 53, true}, {Egress, xb, TCP, 53, false}}},

		"closed: CIDR": {`{"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.0.0"}}]}]}`,
			`spec.ingress[0].from[0].ipBlock.cidr "10.0.0.0"`, []flow{{Ingress, xb, TCP, 80, false}}},
		"closed: except": {`{"ingress":[{"from":[{"ipBlock":{"cidr":"0.0.0.0/0","except":["x"]}}]}]}`,
			`from[0].ipBlock.except[0] "x"`, []flow{{Ingress, xb, TCP, 80, false}, {Ingress, outside, TCP, 80, false}}},
		"closed: empty peer": {`{"ingress":[{"from":[{}]}]}`, "spec.ingress[0].from[0]",
			[]flow{{Ingress, xb, TCP, 80, false}, {Ingress, outside, TCP, 80, false}}},
		"closed: two kinds of peer": {`{"ingress":[{"from":[{"podSelector":{},"ipBlock":{"cidr":"0.0.0.0/0"}}]}]}`, "spec.ingress[0].from[0]",
			[]flow{{Ingress, xb, TCP, 80, false}, {Ingress, outside, TCP, 80, false}}},
		"closed: peer's pods": {`{"ingress":[{"from":[{"podSelector":{"matchExpressions":[{"key":"a","operator":"Gt"}]}}]}]}`,
			"from[0].podSelector.matchExpressions[0]", []flow{{Ingress, xb, TCP, 80, false}}},
		"closed: peer's namespaces": {`{"ingress":[{"from":[{"namespaceSelector":{"matchExpressions":[{"key":"a","operator":"Gt"}]}}]}]}`,
			"from[0].namespaceSelector", []flow{{Ingress, xb, TCP, 80, false}, {Ingress, ya, TCP, 80, false}}},
		"closed: protocol": {`{"ingress":[{"ports":[{"protocol":"ICMP"}]}]}`, `ports[0].protocol "ICMP"`,
			[]flow{{Ingress, xb, TCP, 80, false}, {Ingress, xb, icmp, 0, false}}},
		"closed: port 0": {`{"ingress":[{"ports":[{"port":0}]}]}`, `ports[0].port "0"`,
			[]flow{{Ingress, xb, TCP, 80, false}, {Ingress, xb, TCP, 0, false}}},
		"closed: port 65616": {`{"ingress":[{"ports":[{"port":65616}]}]}`, `ports[0].port "65616"`,
			[]flow{{Ingress, xb, TCP, 80, false}}},
		"closed: endPort is lower": {`{"ingress":[{"ports":[{"port":80,"endPort":79}]}]}`, "ends before",
			[]flow{{Ingress, xb, TCP, 80, false}, {Ingress, xb, TCP, 79, false}}},
		"closed: endPort is no port": {`{"ingress":[{"ports":[{"port":80,"endPort":65537}]}]}`, "65537",
			[]flow{{Ingress, xb, TCP, 80, false}, {Ingress, xb, TCP, 81, false}}},
		"closed: endPort alone": {`{"ingress":[{"ports":[{"endPort":80}]}]}`, "endPort", []flow{{Ingress, xb, TCP, 80, false}}},
		"closed: endPort of a name": {`{"ingress":[{"ports":[{"port":"http","endPort":9000}]}]}`, "endPort",
			[]flow{{Ingress, xb, TCP, 8080, false}}},
		"closed: a number as a name": {`{"ingress":[{"ports":[{"port":"80"}]}]}`, "without quotes", []flow{{Ingress, xb, TCP, 80, false}}},
		"closed: subject": {`{"podSelector":{"matchExpressions":[{"key":"app","operator":"Gt"}]},"ingress":[{}]}`,
			"spec.podSelector.matchExpressions[0]", []flow{{Ingress, xb, TCP, 80, false}}},
		"closed: direction": {`{"policyTypes":["egress"]}`, "spec.policyTypes[0]",
			[]flow{{Egress, xb, TCP, 80, false}, {Ingress, xb, TCP, 80, false}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := networkPolicy(t, c.spec)
			if text := strings.Join(p.Problems, "\n"); (c.problem == "") != (text == "") || !strings.Contains(text, c.problem) {
				t.Errorf("problems %q, want %q", text, c.problem)
			}
			check(t, cluster(p), c.flows...)
		})
	}
}

// Each policy that isolates a pod adds what it allows; an unreadable part of one does not close another.
func TestUnion(t *testing.T) {
	a := networkPolicy(t, `{"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"b"}}}],"ports":[{"port":80}]}]}`)
	b := networkPolicy(t, `{"ingress":[{"from":[{"namespaceSelector":{}}],"ports":[{"port":81}]},{"from":[{}]}]}`)
	b.Name = "q"
	check(t, cluster(a, b), flow{Ingress, xb, TCP, 80, true}, flow{Ingress, yb, TCP, 80, false}, flow{Ingress, yb, TCP, 81, true},
		flow{Ingress, outside, TCP, 81, false}, flow{Ingress, xb, TCP, 82, false})
	got := Compile(cluster(a, b)).Decide("calia", Ingress, netip.MustParseAddr(outside), Packet{Protocol: TCP, Port: 82})
	if got.By != a.ID {
		t.Errorf("denied by %v, want the first that isolates, %v", got.By, a.ID)
	}
}

// A policy with only a readable selector isolates its pods.
func TestUnreadableNetworkPolicyIsClosed(t *testing.T) {
	n := api.NetworkPolicy{Meta: api.Meta{Namespace: "x", Name: "p"},
		Spec: api.NetworkPolicySpec{PolicyTypes: []string{"Egress"}, Unreadable: "a number is missing"}}
	p := FromNetworkPolicy(&n)
	if len(p.Problems) != 1 || !strings.Contains(p.Problems[0], "a number is missing") {
		t.Errorf("problems %q", p.Problems)
	}
	check(t, cluster(p), flow{Egress, xb, TCP, 80, false}, flow{Ingress, xb, TCP, 80, true})
}

// An object has room for 300,000 unreadable entries: only a bounded part is kept.
func TestProblemsOfAnObjectAreBounded(t *testing.T) {
	for n, want := range map[int]int{1: 1, mostProblems: mostProblems, mostProblems + 1: mostProblems + 1, 1000: mostProblems + 1} {
		_, problems := FromCalicoNetworkSet(&api.CalicoNetworkSet{Spec: api.CalicoNetworkSetSpec{Nets: slices.Repeat([]string{":"}, n)}})
		if len(problems) != want {
			t.Errorf("%d entries: %q, want %d problems", n, problems, want)
		}
		if last := problems[len(problems)-1]; n == 1000 && !strings.Contains(last, "990") {
			t.Errorf("%d entries: the last is %q", n, last)
		}
	}
}
