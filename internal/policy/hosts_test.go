package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// A link has the host endpoint that names it or one of its addresses, of several the first by name; host endpoints of
// other nodes have no links.
func TestLinksOfHostEndpoints(t *testing.T) {
	at := func(a string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(a)} }
	state := State{
		Node:       "n",
		Interfaces: map[string][]netip.Addr{"eth0": at("192.0.2.1"), "eth1": at("192.0.2.2"), "eth2": at("192.0.2.3")},
		HostEndpoints: []HostEndpoint{
			{Name: "e", Node: "n", Interface: "*"}, {Name: "d", Node: "n", Interface: "*"}, {Name: "a", Node: "o", Interface: "*"},
			{Name: "b", Addresses: at("192.0.2.3")},
			{Name: "f", Node: "n", Interface: "eth0", Addresses: at("192.0.2.2")}, {Name: "g", Node: "n", Addresses: at("192.0.2.1")},
			{Name: "h", Node: "n", Interface: "eth1"}, {Name: "c", Node: "n", Addresses: at("::ffff:192.0.2.2")},
			{Name: "i", Node: "n", Addresses: at("192.0.2.9")},
		},
	}
	got := map[string]string{}
	for link, h := range Compile(state).Hosts {
		got[link] = h.Name
	}
	if want := map[string]string{"*": "d", "eth0": "f", "eth1": "c"}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if state.Node = ""; state.HasHosts() || Compile(state).Hosts != nil {
		t.Error("endpoints of no node are found on one without a name")
	}
}

// The first profile decides what no policy decides: a namespace's profile does so while the namespace exists.
func TestProfilesOfHostEndpoints(t *testing.T) {
	for _, c := range []struct {
		spec     api.CalicoHostEndpointSpec
		allows   bool
		node     string
		problems []string
	}{
		{api.CalicoHostEndpointSpec{Node: "n", InterfaceName: "*"}, false, "n", nil},
		{api.CalicoHostEndpointSpec{Node: "n", Profiles: []string{"projectcalico-default-allow", "x"}}, true, "n", nil},
		{api.CalicoHostEndpointSpec{Node: "n", Profiles: []string{"x", "projectcalico-default-allow"}}, false, "n",
			[]string{`spec.profiles[0] "x"`}},
		{api.CalicoHostEndpointSpec{Node: "n", Profiles: []string{"kns.there"}}, true, "n", nil},
		{api.CalicoHostEndpointSpec{Node: "n", Profiles: []string{"kns.gone", "projectcalico-default-allow"}}, false, "n", nil},
		{api.CalicoHostEndpointSpec{Node: "n", Profiles: []string{"kns."}}, false, "n", []string{`spec.profiles[0] "kns."`}},
		{api.CalicoHostEndpointSpec{Node: "n", Profiles: []string{"ksa.there.default", "kns.there"}}, false, "n",
			[]string{`spec.profiles[0] "ksa.there.default"`}},
		{api.CalicoHostEndpointSpec{Node: "n", InterfaceName: "abcdefghijklmnop"}, false, "",
			[]string{`spec.interfaceName "abcdefghijklmnop" 15`}},
	} {
		h, problems := FromCalicoHostEndpoint(&api.CalicoHostEndpoint{Spec: c.spec})
		node := h.Node
		h.Node, h.Interface = "n", "eth0"
		compiled := Compile(State{Node: "n", HostEndpoints: []HostEndpoint{h}, Namespaces: map[string]map[string]string{"there": {}, "": {}}})
		allows := compiled.DecideHost("eth0", Terminal, Ingress, netip.Addr{}, netip.Addr{}, Packet{Protocol: TCP, Port: 1}).Allow
		if allows != c.allows || node != c.node || !slices.EqualFunc(problems, c.problems, errtest.Has) {
			t.Errorf("%+v: %+v, allows %v, %q", c.spec, h, allows, problems)
		}
	}
}

// A host endpoint has the labels of its profiles' namespaces and service accounts, of several the first one's, but is
// in no namespace.
func TestInheritedLabelsOfHostEndpoints(t *testing.T) {
	h, _ := FromCalicoHostEndpoint(&api.CalicoHostEndpoint{Spec: api.CalicoHostEndpointSpec{
		Node: "n", Profiles: []string{"x", "kns.a", "kns.b", "ksa.a.robot.v2", "ksa.a"},
	}})
	state := State{
		Namespaces: map[string]map[string]string{"a": {"env": "prod"}, "b": {"env": "dev", "zone": "1"}},
		Accounts:   map[Account]map[string]string{{"a", "robot.v2"}: {"team": "red"}},
	}
	for spec, want := range map[string]bool{
		`{"namespaceSelector":"env == 'prod' && zone == '1'"}`:                        true,
		`{"namespaceSelector":"env == 'dev'"}`:                                        false,
		`{"namespaceSelector":"projectcalico.org/name == 'a'"}`:                       true,
		`{"namespaceSelector":"all()"}`:                                               false,
		`{"namespaceSelector":"all() || zone == '1'"}`:                                true,
		`{"namespaceSelector":"global()"}`:                                            true,
		`{"namespaceSelector":"zone != '1'"}`:                                         false,
		`{"selector":"pcns.env == 'prod' && pcsa.team == 'red'"}`:                     true,
		`{"selector":"has(projectcalico.org/namespace)"}`:                             false,
		`{"selector":"has(projectcalico.org/serviceaccount)"}`:                        false,
		`{"serviceAccountSelector":"team == 'red'"}`:                                  true,
		`{"serviceAccountSelector":"projectcalico.org/name == 'robot.v2'"}`:           true,
		`{"serviceAccountSelector":"team != 'red'"}`:                                  false,
		`{"serviceAccountSelector":"all()"}`:                                          false,
		`{"namespaceSelector":"has(env)","serviceAccountSelector":"team in {'red'}"}`: true,
	} {
		g := &api.CalicoGlobalNetworkPolicy{}
		decode(t, spec, &g.Spec)
		p, err := FromCalicoGlobalNetworkPolicy(g, nil)
		errtest.Must(t, err)
		if got := state.SelectsHost(&p, &h); got != want {
			t.Errorf("%s selects it: %v, want %v", spec, got, want)
		}
	}
}

// The host endpoint of all links judges before translation where a link's own has no policy for it, and where there is
// no other.
func TestGovernor(t *testing.T) {
	policies := Policy{ID: ID{Kind: KindCalicoGlobalNetworkPolicy, Name: "early"}, Tier: TierDefault, PreDNAT: true, Forward: true,
		Applies: [2]bool{true, false},
		Subject: Pods{Calico: true, Labels: parsed("has(early)")}, Rules: [2][]Rule{Ingress: {{Action: Deny, AnyPeer: true, AnyPort: true}}}}
	early := map[string]string{"early": ""}
	state := State{Node: "n", Policies: []Policy{policies}, HostEndpoints: []HostEndpoint{
		{Name: "all", Node: "n", Interface: AllInterfaces, Labels: early}, {Name: "plain", Node: "n", Interface: "eth0"},
		{Name: "own", Node: "n", Interface: "eth1", Labels: early},
	}}
	c, j := Compile(state), NewJudge(Select(state), nil)
	for link, want := range map[string][Stages]string{
		"eth0": {"eth0", "eth0", "*", "eth0"}, "eth1": {"eth1", "eth1", "eth1", "eth1"}, "eth2": {"*", "*", "*", "*"},
	} {
		for stage := range Stages {
			if got := c.Governor(link, stage); got != want[stage] {
				t.Errorf("%s, stage %d: %q governs, want %q", link, stage, got, want[stage])
			}
		}
		if v := c.DecideHost(link, Untranslated, Ingress, netip.Addr{}, netip.Addr{}, Packet{Protocol: TCP, Port: 1}); v.Allow {
			t.Errorf("%s: allowed before translation", link)
		}
		if v, _ := j.JudgeHost(link, Untranslated, Ingress, netip.Addr{}, netip.Addr{}, Packet{Protocol: TCP, Port: 1}); v.Verdict.Allow {
			t.Errorf("%s: explained as allowed before translation", link)
		}
	}
}

// A host endpoint with too many rules is closed where they would be, and the policy is named.
func TestSequencesAreBounded(t *testing.T) {
	own := &Match{Nets: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}
	p := Policy{ID: ID{Kind: KindCalicoGlobalNetworkPolicy, Name: "large"}, Tier: TierDefault, Applies: [2]bool{true, false},
		Subject: Pods{Calico: true}}
	for i := range 720 {
		labels := parsed(fmt.Sprintf("a not in {'%d'}", i))
		p.Rules[Ingress] = append(p.Rules[Ingress],
			Rule{AnyPort: true, Own: own, Peers: []Peer{{Match: &Match{Select: &Pods{Calico: true, Labels: labels}}}}})
	}
	c := Compile(State{Node: "n", Policies: []Policy{p}, HostEndpoints: []HostEndpoint{{Name: "h", Node: "n", Interface: "*"}}})
	a := netip.MustParseAddr("192.0.2.1")
	if v := c.DecideHost("eth0", Terminal, Ingress, a, a, Packet{Protocol: TCP, Port: 1}); v.By != p.ID ||
		!slices.Equal(c.TooLarge, []ID{p.ID}) {
		t.Errorf("%+v, too large: %v", v, c.TooLarge)
	}
	if v := c.DecideHost("eth0", Forwarded, Ingress, a, a, Packet{Protocol: TCP, Port: 1}); !v.Allow {
		t.Errorf("what is forwarded: %+v", v)
	}
}

// Host endpoints keep the policies and failsafe ports of another State, and pods have those of their own.
func TestKeepHosts(t *testing.T) {
	state := func(order float64, action Action, endpoint string, failsafes []Failsafe) State {
		p := Policy{ID: ID{Kind: KindCalicoGlobalNetworkPolicy, Name: "p"}, Tier: TierDefault, Order: order, Subject: Pods{Calico: true},
			Applies: [2]bool{true, true},
			Rules:   [2][]Rule{Egress: {{Action: action, AnyPeer: true, AnyPort: true}}}}
		key := PodKey{"a", "pod"}
		return State{Node: "n", HostEndpoints: []HostEndpoint{{Name: endpoint, Node: "n", Interface: endpoint}},
			Namespaces: map[string]map[string]string{"a": {}},
			Local:      map[string]PodKey{"cali0": key}, Pods: map[PodKey]*Pod{key: {PodKey: key}}, Policies: []Policy{p},
			Host: HostRules{Inbound: failsafes, Outbound: failsafes}}
	}
	before, after := Select(state(1, Allow, "eth0", DefaultInbound())), Select(state(2, Deny, "eth1", nil))
	was, is := before.Compile(), after.Compile()
	kept := before.HostPolicies()
	for p := range before.Counting() {
		p.Rules[Egress] = nil // as policies wait for a list
	}
	after.KeepHosts(kept)
	got := after.Compile()
	if !reflect.DeepEqual(got.Hosts, was.Hosts) || !reflect.DeepEqual(got.Endpoints, is.Endpoints) ||
		reflect.DeepEqual(was.Endpoints, is.Endpoints) {
		t.Errorf("%+v and %+v, want %+v and %+v", got.Hosts, got.Endpoints, was.Hosts, is.Endpoints)
	}
	if !reflect.DeepEqual(got.HostRules, was.HostRules) {
		t.Errorf("%+v, want %+v", got.HostRules, was.HostRules)
	}
	if after.KeepHosts(&HostPolicies{}); after.Compile().Hosts != nil {
		t.Error("there are host endpoints where there were none")
	}
}

// A host endpoint as a peer has the labels of its profiles, and is explained so.
func TestPeersHaveProfilesLabels(t *testing.T) {
	state := cluster(policyIn(t,
		`{"spec":{"types":["Egress"],"egress":[{"action":"Allow","destination":{"namespaceSelector":"team == 'red'"}}]}}`, ""))
	state.HostEndpoints = []HostEndpoint{
		{Name: "one", Addresses: []netip.Addr{netip.MustParseAddr(outside)}, Inherits: []Account{{Namespace: "y"}}},
		{Name: "other", Addresses: []netip.Addr{netip.MustParseAddr(node)}, Inherits: []Account{{Namespace: "x"}}},
	}
	check(t, state, flow{Egress, outside, TCP, 80, true}, flow{Egress, node, TCP, 80, false})
}

// While the namespace of a host endpoint's profile is missing, a policy that may select it, or its address, by the
// labels closes and opens nothing. Where another host endpoint would judge before translation if the policy does not
// select it, nothing passes.
func TestUnknownLabelsOfHostEndpoints(t *testing.T) {
	own, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.9")
	for _, c := range []struct {
		spec                   string
		missing, there, spared bool // what the link passes while labels are missing, when they match, and when they do not
	}{
		{`{"namespaceSelector":"env == 'prod'","ingress":[{"action":"Deny"}]}`, false, false, true},
		{`{"namespaceSelector":"env == 'prod'","ingress":[{"action":"Allow"}]}`, false, true, true},
		{`{"namespaceSelector":"env == 'prod'","ingress":[{"action":"Pass"}]}`, false, true, true},
		{`{"selector":"pcns.env == 'dev'","ingress":[{"action":"Deny"}]}`, false, true, false},
		{`{"selector":"!has(pcns.env)","ingress":[{"action":"Deny"}]}`, false, true, true},
		{`{"selector":"all()","ingress":[{"action":"Deny","source":{"namespaceSelector":"env == 'prod'"}},{"action":"Allow"}]}`,
			false, false, true},
		{`{"selector":"all()","ingress":[{"action":"Allow","source":{"selector":"pcns.env == 'prod'"}}]}`, false, true, false},
		{`{"selector":"all()","ingress":[{"action":"Allow","source":{"notSelector":"pcns.env == 'prod'"}}]}`, false, false, true},
		{`{"namespaceSelector":"env == 'prod'","preDNAT":true,"applyOnForward":true,"ingress":[{"action":"Allow"}]}`, false, true, false},
	} {
		g := &api.CalicoGlobalNetworkPolicy{Meta: api.Meta{Name: "p"}}
		decode(t, c.spec, &g.Spec)
		p, err := FromCalicoGlobalNetworkPolicy(g, nil)
		errtest.Must(t, err)
		state := State{Node: "n", HostEndpoints: []HostEndpoint{
			{Name: "own", Node: "n", Interface: "eth0", Addresses: []netip.Addr{other}, Allows: true, Inherits: []Account{{Namespace: "a"}}},
			{Name: "all", Node: "n", Interface: AllInterfaces, Labels: map[string]string{"all": ""}},
		}, Policies: []Policy{p,
			{ID: ID{Kind: KindCalicoGlobalNetworkPolicy, Name: "q"}, Tier: TierDefault, PreDNAT: true, Forward: true, Applies: [2]bool{true, false},
				Subject: Pods{Calico: true, Labels: parsed("has(all)")}, Rules: [2][]Rule{Ingress: {{Action: Deny, AnyPeer: true, AnyPort: true}}}}}}
		stage := Terminal
		if p.PreDNAT {
			stage = Untranslated
		}
		for namespaces, want := range map[string]bool{"": c.missing, "prod": c.there, "dev": c.spared} {
			if state.Namespaces = nil; namespaces != "" {
				state.Namespaces = map[string]map[string]string{"a": {"env": namespaces}}
			}
			selection, packet := Select(state), Packet{Protocol: TCP, Port: 1}
			judged, _ := NewJudge(selection, nil).JudgeHost("eth0", stage, Ingress, own, other, packet)
			if got := selection.Compile().DecideHost("eth0", stage, Ingress, own, other, packet).Allow; got != want || judged.Verdict.Allow != want {
				t.Errorf("%s, namespace %q: allowed %v, judged %v, want %v", c.spec, namespaces, got, judged.Verdict.Allow, want)
			}
		}
	}
}
