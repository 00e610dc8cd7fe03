package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
)

// nested returns a policy of rules with ranges of ports, each inside the one before, with other peers in each: every
// port has a list of its own.
func nested(rules int, peer func(i int) api.NetworkPolicyPeer) *api.NetworkPolicy {
	n := &api.NetworkPolicy{Meta: api.Meta{Namespace: "a", Name: "nested"}}
	for i := range rules {
		last := int32(lastPort - i)
		n.Spec.Ingress = append(n.Spec.Ingress, api.NetworkPolicyIngressRule{
			From:  []api.NetworkPolicyPeer{peer(i)},
			Ports: []api.NetworkPolicyPort{{Port: &api.IntOrString{Number: int32(i + 1)}, EndPort: &last}},
		})
	}
	return n
}

// One object that a user of a namespace may write does not take the memory of agent and kernel, which grew as the
// square of its rules. It closes the pods that it selects, and no others.
func TestHugePoliciesAreClosed(t *testing.T) {
	big, other := PodKey{"a", "big"}, PodKey{"b", "other"}
	peer := netip.MustParseAddr("10.9.0.1")
	state := State{Local: map[string]PodKey{"cali1": big, "cali2": other},
		Namespaces: map[string]map[string]string{"a": nil, "b": nil}, Pods: map[PodKey]*Pod{}}
	for i, k := range []PodKey{big, other} {
		state.Pods[k] = &Pod{PodKey: k, UID: k.Name, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}}
	}
	anybody := FromNetworkPolicy(&api.NetworkPolicy{Meta: api.Meta{Namespace: "b", Name: "any"},
		Spec: api.NetworkPolicySpec{Ingress: []api.NetworkPolicyIngressRule{{}}}})
	for name, c := range map[string]struct {
		peer  func(int) api.NetworkPolicyPeer
		rules int
		large bool
	}{
		"networks": {func(i int) api.NetworkPolicyPeer {
			return api.NetworkPolicyPeer{IPBlock: &api.IPBlock{CIDR: fmt.Sprintf("10.%d.%d.0/24", i>>7, i<<1&0xff)}}
		}, 3000, true},
		"pods": {func(i int) api.NetworkPolicyPeer {
			return api.NetworkPolicyPeer{PodSelector: &api.LabelSelector{MatchLabels: map[string]string{"x": fmt.Sprint(i)}}}
		}, 3000, true},
		"of a size that occurs": {func(i int) api.NetworkPolicyPeer {
			return api.NetworkPolicyPeer{IPBlock: &api.IPBlock{CIDR: fmt.Sprintf("10.%d.%d.0/24", i>>7, i<<1&0xff)}}
		}, 300, false},
	} {
		t.Run(name, func(t *testing.T) {
			huge := FromNetworkPolicy(nested(c.rules, c.peer))
			state.Policies = []Policy{huge, anybody}
			got := Compile(state)
			elements := 0
			for _, n := range got.Nets {
				elements += len(n)
			}
			for _, m := range got.Members {
				elements += len(m)
			}
			if elements > mostElements {
				t.Errorf("%d elements", elements)
			}
			if v := got.Decide("cali1", Ingress, peer, Packet{Protocol: TCP, Port: 80}); c.large && (v.Allow || v.By != huge.ID) {
				t.Errorf("the pod of the huge policy: %+v", v)
			}
			if v := got.Decide("cali1", Egress, peer, Packet{Protocol: TCP, Port: 80}); !v.Allow {
				t.Errorf("the direction that no policy is about: %+v", v)
			}
			if v := got.Decide("cali2", Ingress, peer, Packet{Protocol: TCP, Port: 80}); !v.Allow {
				t.Errorf("a pod of another namespace: %+v", v)
			}
			if slices.Contains(got.TooLarge, huge.ID) != c.large {
				t.Errorf("too large: %v", got.TooLarge)
			}
		})
	}
}

// So it is with rules that deny, which only Calico's policies of a namespace have.
func TestHugeOrderedPoliciesAreClosed(t *testing.T) {
	key := PodKey{"a", "big"}
	state := State{Local: map[string]PodKey{"cali1": key}, Namespaces: map[string]map[string]string{"a": nil},
		Pods: map[PodKey]*Pod{key: {PodKey: key, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}}
	for rules, large := range map[int]bool{100: false, 3000: true} {
		huge := Policy{ID: ID{KindCalicoNetworkPolicy, "a", "huge"}, Tier: TierDefault, Subject: Pods{Namespace: "a"},
			Applies: [2]bool{true, true}}
		for i := range rules {
			net := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 7), byte(i << 1)}), 24)
			r := Rule{Action: []Action{Allow, Deny, Log}[i%3], Ports: []Port{{Protocol: TCP, First: uint16(i), Last: uint16(lastPort - i)}},
				Peers: []Peer{{Match: &Match{Nets: []netip.Prefix{net}}}}}
			huge.Rules[Ingress] = append(huge.Rules[Ingress], r)
		}
		state.Policies = []Policy{huge}
		got := Compile(state)
		if slices.Contains(got.TooLarge, huge.ID) != large {
			t.Errorf("%d rules: too large: %v", rules, got.TooLarge)
		}
		if v := got.Decide("cali1", Ingress, netip.MustParseAddr("10.0.0.9"), Packet{Protocol: TCP, Port: 9000}); large && v.Allow {
			t.Errorf("%d rules: %+v", rules, v)
		}
	}
}

// Selectors without a distinguishing label have to be tried on every pod, which took 10 s for one namespace's on a node
// that knows 3,000 pods. Equal selectors are tried once; selectors that need different labels are not tried on others'
// pods.
func TestManySelectorsAreClosed(t *testing.T) {
	not := func(i int) *api.LabelSelector {
		return &api.LabelSelector{MatchExpressions: []api.LabelSelectorRequirement{
			{Key: "a", Operator: api.SelectorNotIn, Values: []string{fmt.Sprint(i)}},
		}}
	}
	is := func(key string, i int) *api.LabelSelector {
		return &api.LabelSelector{MatchLabels: map[string]string{key: fmt.Sprint(i)}}
	}
	long := func(i int) *api.LabelSelector {
		s := &api.LabelSelector{}
		for j := range 800 {
			s.MatchExpressions = append(s.MatchExpressions, not(i+j).MatchExpressions...)
		}
		return s
	}
	for name, c := range map[string]struct {
		peer  func(i int) api.NetworkPolicyPeer
		peers int
		large bool
	}{
		"of pods":       {func(i int) api.NetworkPolicyPeer { return api.NetworkPolicyPeer{PodSelector: not(i)} }, 3000, true},
		"of namespaces": {func(i int) api.NetworkPolicyPeer { return api.NetworkPolicyPeer{NamespaceSelector: not(i)} }, 3000, true},
		"of both": {func(i int) api.NetworkPolicyPeer {
			return api.NetworkPolicyPeer{NamespaceSelector: is("b", 1), PodSelector: not(i)}
		}, 3000, true},
		"of many conditions": {func(i int) api.NetworkPolicyPeer { return api.NetworkPolicyPeer{PodSelector: long(i)} }, 1, true},
		"equal": {func(i int) api.NetworkPolicyPeer {
			return api.NetworkPolicyPeer{NamespaceSelector: not(i % 3), PodSelector: not(i % 5)}
		}, 3000, false},
		"by labels of pods": {func(i int) api.NetworkPolicyPeer { return api.NetworkPolicyPeer{PodSelector: is("a", i)} }, 3000, false},
		"by labels of namespaces": {func(i int) api.NetworkPolicyPeer {
			return api.NetworkPolicyPeer{NamespaceSelector: is("a", i), PodSelector: is("b", 1)}
		}, 3000, false},
		"by one of several labels": {func(i int) api.NetworkPolicyPeer {
			s := is("b", i)
			s.MatchLabels["a"] = "1"
			return api.NetworkPolicyPeer{PodSelector: s}
		}, 3000, false},
		"so many as may well be used": {func(i int) api.NetworkPolicyPeer { return api.NetworkPolicyPeer{PodSelector: not(i)} }, 500, false},
	} {
		t.Run(name, func(t *testing.T) {
			big, other := PodKey{"a", "big"}, PodKey{"b", "other"}
			state := State{Local: map[string]PodKey{"cali1": big, "cali2": other}, Namespaces: map[string]map[string]string{"a": nil, "b": nil},
				Pods: map[PodKey]*Pod{big: {PodKey: big, Labels: map[string]string{"a": "0"}}, other: {PodKey: other}}}
			object := &api.NetworkPolicy{Meta: api.Meta{Namespace: "a", Name: "many"},
				Spec: api.NetworkPolicySpec{Ingress: []api.NetworkPolicyIngressRule{{}}}}
			for i := range c.peers {
				object.Spec.Ingress[0].From = append(object.Spec.Ingress[0].From, c.peer(i))
			}
			many := FromNetworkPolicy(object)
			all := Policy{ID: ID{Kind: KindClusterNetworkPolicy, Name: "all"}, Tier: TierAdmin, Applies: [2]bool{Egress: true},
				Rules: [2][]Rule{Egress: {{Action: Deny, AnyPeer: true, Ports: []Port{{Protocol: TCP, First: 25, Last: 25}}}}}}
			state.Policies = []Policy{many, all}
			got := Compile(state)
			if slices.Contains(got.TooLarge, many.ID) != c.large {
				t.Errorf("too large: %v", got.TooLarge)
			}
			if by, closed := got.ClosedBy("cali1", Ingress); closed != c.large || closed && by != many.ID {
				t.Errorf("closed %v by %v", closed, by)
			}
			peer := netip.MustParseAddr("10.9.0.1")
			if _, closed := got.ClosedBy("cali2", Egress); closed || !got.Decide("cali2", Egress, peer, Packet{Protocol: TCP, Port: 80}).Allow {
				t.Error("a pod of another namespace is closed, which shares a policy")
			}
			if v := got.Decide("cali1", Ingress, peer, Packet{Protocol: TCP, Port: 80}); v.Allow || v.By != many.ID {
				t.Errorf("a stranger: %+v", v)
			}
			if v := got.Decide("cali2", Ingress, peer, Packet{Protocol: TCP, Port: 80}); !v.Allow {
				t.Errorf("a pod of another namespace: %+v", v)
			}
			if tried := len(got.sets.terms.pods.placed[place{namespace: "a"}]); tried > 710 {
				t.Errorf("each pod of the namespace is tried with %d selections", tried)
			}
		})
	}
}

// So are the subjects of a namespace's policies that each of its pods has to be tried with. Both directions are closed:
// what the others select is not known.
func TestManySubjectsAreClosed(t *testing.T) {
	for name, c := range map[string]struct {
		subject  func(i int) api.LabelSelector
		policies int
		large    bool
	}{
		"that differ": {func(i int) api.LabelSelector {
			return api.LabelSelector{MatchExpressions: []api.LabelSelectorRequirement{
				{Key: "a", Operator: api.SelectorNotIn, Values: []string{fmt.Sprint(i)}},
			}}
		}, 1000, true},
		"by a label": {func(i int) api.LabelSelector {
			return api.LabelSelector{MatchLabels: map[string]string{"a": fmt.Sprint(i)}}
		}, 3000, false},
		"equal": {func(int) api.LabelSelector { return api.LabelSelector{} }, 3000, false},
	} {
		t.Run(name, func(t *testing.T) {
			big, other := PodKey{"a", "big"}, PodKey{"b", "other"}
			state := State{Local: map[string]PodKey{"cali1": big, "cali2": other}, Namespaces: map[string]map[string]string{"a": nil, "b": nil},
				Pods: map[PodKey]*Pod{big: {PodKey: big, Labels: map[string]string{"a": "0"}}, other: {PodKey: other}}}
			for i := range c.policies {
				state.Policies = append(state.Policies, FromNetworkPolicy(&api.NetworkPolicy{Meta: api.Meta{Namespace: "a", Name: fmt.Sprint(i)},
					Spec: api.NetworkPolicySpec{PodSelector: c.subject(i), Ingress: []api.NetworkPolicyIngressRule{{}}}}))
			}
			got := Compile(state)
			if (len(got.TooLarge) > 0) != c.large {
				t.Errorf("too large: %v", got.TooLarge)
			}
			for _, d := range []Direction{Ingress, Egress} {
				if v := got.Decide("cali1", d, netip.MustParseAddr("10.9.0.1"), Packet{Protocol: TCP, Port: 80}); v.Allow == c.large {
					t.Errorf("%s of a pod of the namespace: %+v", d, v)
				}
				if v := got.Decide("cali2", d, netip.MustParseAddr("10.9.0.1"), Packet{Protocol: TCP, Port: 80}); !v.Allow {
					t.Errorf("%s of a pod of another namespace: %+v", d, v)
				}
			}
		})
	}
}

// Whose pods matter does not take long to find out either.
func TestInterestOfManySelectors(t *testing.T) {
	state := State{Namespaces: map[string]map[string]string{}}
	for i := range 1000 {
		state.Namespaces[fmt.Sprint(i)] = map[string]string{"a": "b"}
	}
	rule := func(values int) (r Rule) {
		for i := range 1000 {
			p := FromNetworkPolicy(
				&api.NetworkPolicy{Spec: api.NetworkPolicySpec{Ingress: []api.NetworkPolicyIngressRule{{From: []api.NetworkPolicyPeer{
					{NamespaceSelector: &api.LabelSelector{MatchLabels: map[string]string{"a": fmt.Sprint(i % values)}}}}}}}})
			r.Peers = append(r.Peers, p.Rules[Ingress][0].Peers...)
		}
		return r
	}
	if got := state.InterestOf(Ingress, rule(200)); got.All || len(got.Namespaces) > 0 {
		t.Errorf("selectors that match nothing: %+v", got)
	}
	if got := state.InterestOf(Ingress, rule(1000)); !got.All {
		t.Errorf("a million evaluations: %+v", got)
	}
}

// Network sets are tried with selectors of their own namespace only, and with selectors that need a label if they have
// it. What is tried nevertheless is counted; selectors of other users close nothing.
func TestSelectorsOfNetworkSets(t *testing.T) {
	for name, c := range map[string]struct {
		entity string // of rule i
		rules  int
		of     string // the namespace of the sets
		sets   int
		tried  int
		large  bool
		nets   int
	}{
		"that need a label":    {entity: `"selector":"l%d == '1'"`, rules: 2000, of: "a", sets: 500, tried: 1},
		"in another namespace": {entity: `"selector":"l%d != '1'"`, rules: 400, of: "b", sets: 500},
		"by any label":         {entity: `"selector":"l%d != '1'"`, rules: 400, of: "a", sets: 15_000, large: true},
		"by any label in all namespaces": {entity: `"selector":"l%d != '1'","namespaceSelector":"all()"`, rules: 400, of: "b",
			sets: 15_000, tried: 400 * 15_000},
		"as many as may well be used": {entity: `"selector":"l%d != '1'"`, rules: 400, of: "a", sets: 100, tried: 400 * 100},
		"of few that have many networks": {entity: `"selector":"a == '1' && l%d != '1'"`, rules: 100, of: "a", sets: 1,
			nets: 15_000, large: true},
	} {
		t.Run(name, func(t *testing.T) {
			key := PodKey{"a", "p"}
			state := State{Local: map[string]PodKey{"cali1": key}, Namespaces: map[string]map[string]string{"a": nil, "b": nil},
				Pods: map[PodKey]*Pod{key: {PodKey: key, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}}
			for i := range c.sets {
				set := NetworkSet{Namespace: c.of, Name: fmt.Sprint(i), Labels: map[string]string{"a": "1"}}
				if i == 0 {
					set.Labels["l0"] = "1"
				}
				for j := range c.nets {
					set.Nets = append(set.Nets, host(j))
				}
				state.Sets = append(state.Sets, set)
			}
			object := &api.CalicoNetworkPolicy{Meta: api.Meta{Namespace: "a", Name: "many"}}
			object.Spec.Types = []string{"Ingress"}
			for i := range c.rules {
				var r api.CalicoRule
				if err := json.Unmarshal(fmt.Appendf(nil, `{"action":"Allow","source":{`+c.entity+`}}`, i), &r); err != nil {
					t.Fatal(err)
				}
				object.Spec.Ingress = append(object.Spec.Ingress, r)
			}
			many, err := FromCalicoNetworkPolicy(object, nil)
			if err != nil || len(many.Problems) > 0 {
				t.Fatal(err, many.Problems)
			}
			state.Policies = []Policy{many}
			got := Compile(state)
			if slices.Contains(got.TooLarge, many.ID) != c.large {
				t.Errorf("too large: %v", got.TooLarge)
			}
			tried, x := 0, newNetworkSets(state)
			for _, r := range many.Rules[Ingress] {
				tried += len(x.candidates(r.Peers[0].Match.Select))
			}
			if !c.large && tried != c.tried {
				t.Errorf("%d tries, want %d", tried, c.tried)
			}
		})
	}
}

// host is the network of an address; no two are adjacent.
func host(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 15), byte(i >> 7), byte(i << 1)}), 32)
}

// What others have written closes no pods: network sets of other namespaces, and policies of administrators, whatever
// their size.
func TestOthersNetworksCloseNothing(t *testing.T) {
	all := make([]netip.Prefix, mostElements+1000)
	for i := range all {
		all[i] = host(i)
	}
	for name, c := range map[string]struct {
		global bool
		of     string // the namespace of the set
		rules  string // before that which selects it
		large  bool
	}{
		"of a tenant in a global policy":                {global: true, of: "b"},
		"of the administrator in a global policy":       {global: true},
		"of another namespace in a policy":              {of: "b"},
		"of another namespace in one that denies":       {of: "b", rules: `{"action":"Deny","source":{"nets":["198.51.100.0/24"]}},`},
		"of the policy's own namespace, which do count": {of: "a", large: true},
	} {
		t.Run(name, func(t *testing.T) {
			key := PodKey{"a", "p"}
			state := State{Local: map[string]PodKey{"cali1": key}, Namespaces: map[string]map[string]string{"a": nil, "b": nil},
				Pods: map[PodKey]*Pod{key: {PodKey: key, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}},
				Sets: []NetworkSet{{Namespace: c.of, Name: "big", Labels: map[string]string{"role": "mon"}, Nets: all}}}
			namespaces := `,"namespaceSelector":"all()"`
			if c.global {
				namespaces = ""
			}
			spec := `{"spec":{"types":["Ingress"],"ingress":[` + c.rules +
				`{"action":"Allow","source":{"selector":"role == 'mon'"` + namespaces + `}}]}}`
			state.Policies = []Policy{policyOf(t, spec, c.global)}
			got := Compile(state)
			if (len(got.TooLarge) > 0) != c.large {
				t.Errorf("too large: %v", got.TooLarge)
			}
			if v := got.Decide("cali1", Ingress, all[len(all)-1].Addr(), Packet{Protocol: TCP, Port: 80}); v.Allow == c.large {
				t.Errorf("an address of the set: %+v", v)
			}
		})
	}
}

// Selectors of administrators' policies close no tenant's pods, and do not count into what the tenant's own may be.
func TestAdministratorsSelectorsCloseNothing(t *testing.T) {
	key, peer := PodKey{"a", "p"}, PodKey{"b", "peer"}
	address := netip.MustParseAddr("10.0.0.2")
	state := State{Local: map[string]PodKey{"cali1": key}, Namespaces: map[string]map[string]string{"a": nil, "b": nil},
		Pods: map[PodKey]*Pod{key: {PodKey: key}, peer: {PodKey: peer, Labels: map[string]string{"x": "1"}, Addresses: []netip.Addr{address}}}}
	rules := func(n int, value string) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(`{"action":"Allow","source":{"selector":"x != '%s%d'","namespaceSelector":"all()"}}`, value, i))
		}
		return `{"spec":{"types":["Ingress"],"ingress":[` + strings.Join(all, ",") + `]}}`
	}
	for name, c := range map[string]struct {
		administrators, own int
		large               bool
	}{
		"an administrator's":     {3000, 0, false},
		"both":                   {3000, 500, false},
		"too many of the tenant": {3000, 800, true},
	} {
		t.Run(name, func(t *testing.T) {
			global := policyOf(t, rules(c.administrators, "g"), true)
			state.Policies = []Policy{global}
			if c.own > 0 {
				state.Policies = append(state.Policies, policyOf(t, rules(c.own, "o"), false))
			}
			got := Compile(state)
			if v := got.Decide("cali1", Ingress, address, Packet{Protocol: TCP, Port: 80}); v.Allow == c.large ||
				(len(got.TooLarge) > 0) != c.large {
				t.Errorf("%+v, too large: %v", v, got.TooLarge)
			}
			if slices.Contains(got.TooLarge, global.ID) {
				t.Errorf("the administrator's policy is blamed: %v", got.TooLarge)
			}
		})
	}
}

// A tenant's ranges of ports do not multiply the cost of networks in an administrator's tier.
func TestPortsDoNotMultiplyOthersNetworks(t *testing.T) {
	const rules, networks, ports = 40, 500, 250
	key := PodKey{"a", "p"}
	state := State{Local: map[string]PodKey{"cali1": key}, Namespaces: map[string]map[string]string{"a": nil},
		Pods: map[PodKey]*Pod{key: {PodKey: key}}}
	admin := Policy{ID: ID{Kind: KindCalicoGlobalNetworkPolicy, Name: "admin"}, Tier: Tier{Name: "first", Order: 1, End: Pass},
		Subject: Pods{Calico: true}, Applies: [2]bool{true, false}}
	for i := range rules {
		m := &Match{}
		for j := range networks {
			m.Nets = append(m.Nets, host(j*rules+i))
		}
		admin.Rules[Ingress] = append(admin.Rules[Ingress], Rule{Action: []Action{Allow, Deny}[i%2], AnyPort: true, Peers: []Peer{{Match: m}}})
	}
	tenant := FromNetworkPolicy(nested(ports, func(i int) api.NetworkPolicyPeer {
		return api.NetworkPolicyPeer{IPBlock: &api.IPBlock{CIDR: fmt.Sprintf("192.0.%d.0/24", i)}}
	}))
	allocated := func(policies ...Policy) (bytes int) {
		state.Policies = policies
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if got := Compile(state); len(got.TooLarge) > 0 {
			t.Fatalf("too large: %v", got.TooLarge)
		}
		runtime.ReadMemStats(&after)
		return int(after.TotalAlloc - before.TotalAlloc)
	}
	apart, together := allocated(admin)+allocated(tenant), allocated(admin, tenant)
	if together > 10*apart {
		t.Errorf("%d bytes apart, %d together", apart, together)
	}
	t.Logf("%d bytes apart, %d together", apart, together)
}

// A condition without a label costs as any other does.
func TestConditionsWithoutLabelsCount(t *testing.T) {
	key := PodKey{"a", "p"}
	state := State{Local: map[string]PodKey{"cali1": key}, Namespaces: map[string]map[string]string{"a": nil},
		Pods: map[PodKey]*Pod{key: {PodKey: key}}}
	for conditions, large := range map[int]bool{100: false, 800: true} {
		selector := strings.Repeat("!all() || ", conditions) + "x == 'q'"
		p := policyOf(t,
			`{"spec":{"types":["Ingress"],"ingress":[{"action":"Allow","source":{"selector":"`+selector+`","namespaceSelector":"all()"}}]}}`, false)
		state.Policies = []Policy{p}
		if got := Compile(state).TooLarge; slices.Contains(got, p.ID) != large {
			t.Errorf("%d conditions: too large: %v", conditions, got)
		}
	}
}

// policyOf reads a policy of namespace a, or a global one.
func policyOf(t *testing.T, text string, global bool) Policy {
	t.Helper()
	if global {
		return policyIn(t, text, "")
	}
	return policyIn(t, text, "a")
}

// policyIn reads a policy of a namespace; empty: a global one.
func policyIn(t *testing.T, text, namespace string) (p Policy) {
	t.Helper()
	var own api.CalicoNetworkPolicy
	var of api.CalicoGlobalNetworkPolicy
	err := errors.Join(json.Unmarshal([]byte(text), &own), json.Unmarshal([]byte(text), &of))
	own.Meta, of.Meta = api.Meta{Namespace: namespace, Name: "p"}, api.Meta{Name: "p"}
	var unread error
	if p, unread = FromCalicoNetworkPolicy(&own, nil); namespace == "" {
		p, unread = FromCalicoGlobalNetworkPolicy(&of, nil)
	}
	if err = errors.Join(err, unread); err != nil || len(p.Problems) > 0 {
		t.Fatal(err, p.Problems)
	}
	return p
}
