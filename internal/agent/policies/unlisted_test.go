package policies

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// nodePods are pods of one node; their policies are compiled but not programmed.
type nodePods struct {
	*Worker
	t *testing.T
}

// learn takes in a view, and has it in force.
func (n nodePods) learn(now time.Time, view cluster.PolicyView) {
	n.t.Helper()
	n.model.take(view)
	if err := n.compile(routed{}, now); err != nil {
		n.t.Fatal(err)
	}
	n.inForce = n.compiled
}

// passes expects what a pod may send to an address at port 80.
func (n nodePods) passes(when, pod, to string, want bool) {
	n.t.Helper()
	links, _ := Links(n.model.view.Local)
	for link, key := range links {
		if key.Name == pod {
			if v := n.compiled.rules.Decide(link, policy.Egress, netip.MustParseAddr(to),
				policy.Packet{Protocol: policy.TCP, Port: 80}); v.Allow != want {
				n.t.Errorf("%s: from %s to %s: %+v, want %v", when, pod, to, v, want)
			}
			return
		}
	}
	n.t.Errorf("%s: no pod %s", when, pod)
}

// denying is a ClusterNetworkPolicy for the pods of namespaces with a label.
func denying(name, label string, to api.ClusterNetworkPolicyPeer) *api.ClusterNetworkPolicy {
	return &api.ClusterNetworkPolicy{Meta: api.Meta{Name: name}, Spec: api.ClusterNetworkPolicySpec{
		Tier: "Admin", Subject: api.ClusterNetworkPolicySubject{Namespaces: &api.LabelSelector{MatchLabels: map[string]string{label: ""}}},
		Egress: []api.ClusterNetworkPolicyEgressRule{{Action: "Deny", To: []api.ClusterNetworkPolicyPeer{to}}},
	}}
}

// While a policy names what has not been listed, pods that it selects and that run keep all policies that they had, for
// a bounded time: what was denied stays denied. New pods, and pods that it does not select, have the new policies at
// once.
func TestRunningPodsKeepTheirPoliciesUntilTheList(t *testing.T) {
	const node, other, outside = "192.0.2.1", "192.0.2.2", "198.51.100.1"
	toOther := api.ClusterNetworkPolicyPeer{Networks: []string{other + "/32"}}
	toNodes := api.ClusterNetworkPolicyPeer{Nodes: &api.LabelSelector{}}
	old, apart, next := denying("old", "named", toOther), denying("apart", "apart", toOther), denying("next", "named", toNodes)
	view := func(policies []*api.ClusterNetworkPolicy, pods ...policy.PodKey) cluster.PolicyView {
		v := cluster.PolicyView{Complete: true, ClusterNetworkPolicies: policies, Local: pods, NodesKnown: true,
			Pods:       map[policy.PodKey]*policy.Pod{},
			Namespaces: map[string]map[string]string{"a": {"named": ""}, "b": {"apart": ""}}}
		for _, key := range pods {
			v.Pods[key] = &policy.Pod{PodKey: key, UID: key.Name}
		}
		return v
	}
	runs, stranger, fresh := policy.PodKey{Namespace: "a", Name: "runs"}, policy.PodKey{Namespace: "b",
		Name: "stranger"}, policy.PodKey{Namespace: "a", Name: "fresh"}
	n := nodePods{&Worker{Options: Options{Feed: noFeed{}}}, t}
	start := time.Now()
	n.learn(start, view([]*api.ClusterNetworkPolicy{old, apart}, runs, stranger))
	n.passes("at first", "runs", other, false)
	n.passes("at first", "runs", outside, true)

	unlisted := view([]*api.ClusterNetworkPolicy{old, apart, next}, runs, stranger, fresh)
	unlisted.NodesKnown = false
	n.learn(start, unlisted)
	n.passes("a new policy", "runs", other, false)
	n.passes("a new policy", "runs", outside, true)
	n.passes("a new policy", "fresh", outside, false)
	n.passes("a new policy", "stranger", outside, true)
	if !n.expires.Equal(start.Add(listTime)) {
		t.Errorf("to be compiled anew at %v, want %v", n.expires, start.Add(listTime))
	}

	unlisted.ClusterNetworkPolicies = []*api.ClusterNetworkPolicy{next} // which replaces the others
	for range 2 {
		n.learn(start.Add(time.Second), unlisted)
		n.passes("without the old policy", "runs", other, false)
		n.passes("without the old policy", "runs", outside, true)
		n.passes("without the old policy", "fresh", outside, false)
		n.passes("without the old policy", "stranger", other, true)
	}

	n.learn(start.Add(listTime), unlisted)
	n.passes("after too long", "runs", other, false)
	n.passes("after too long", "runs", outside, false)
	if !n.expires.IsZero() || !n.model.late(start.Add(listTime)) {
		t.Errorf("to be compiled anew at %v, told of %v", n.expires, n.model.since)
	}

	listed := view(unlisted.ClusterNetworkPolicies, runs, stranger, fresh)
	listed.Nodes = map[string]policy.Node{"n": {Addresses: []netip.Addr{netip.MustParseAddr(node)}}}
	n.learn(start.Add(2*listTime), listed)
	for _, pod := range []string{"runs", "fresh"} {
		n.passes("listed", pod, node, false)
		n.passes("listed", pod, other, true)
	}
	if len(n.model.closed) > 0 || n.model.late(start.Add(time.Hour)) {
		t.Errorf("still closed: %v", n.model.closed)
	}
}

// Labels of service accounts are awaited like pods, whichever end of a rule reads them.
func TestRunningPodsKeepTheirPoliciesUntilAccountsAreListed(t *testing.T) {
	const outside = "198.51.100.1"
	runs, fresh := policy.PodKey{Namespace: "a", Name: "runs"}, policy.PodKey{Namespace: "a", Name: "fresh"}
	for _, end := range []string{"source", "destination"} {
		t.Run(end, func(t *testing.T) {
			gnp := &api.CalicoGlobalNetworkPolicy{}
			errtest.Must(t, json.Unmarshal([]byte(`{"metadata":{"name":"g"},"spec":{"types":["Egress"],"egress":[
				{"action":"Allow","`+end+`":{"serviceAccounts":{"selector":"team == 'x'"}}}]}}`), gnp))
			view := func(pods ...policy.PodKey) cluster.PolicyView {
				v := cluster.PolicyView{Complete: true, NodesKnown: true, Known: []cluster.PodScope{""}, Local: pods,
					Pods:       map[policy.PodKey]*policy.Pod{},
					Namespaces: map[string]map[string]string{"a": {}}}
				for _, key := range pods {
					v.Pods[key] = &policy.Pod{PodKey: key, UID: key.Name, Account: "robot"}
				}
				return v
			}
			n := nodePods{&Worker{Options: Options{Feed: noFeed{}}}, t}
			n.learn(time.Now(), view(runs))
			unlisted := view(runs, fresh)
			unlisted.AccountsMissing, unlisted.Calico.GlobalNetworkPolicies = true, []*api.CalicoGlobalNetworkPolicy{gnp}
			n.learn(time.Now(), unlisted)
			n.passes("a new policy", "runs", outside, true)
			n.passes("a new policy", "fresh", outside, false)
		})
	}
}

// Running pods keep their former policies of both directions.
func TestRunningPodsKeepTheirPoliciesOfIngress(t *testing.T) {
	runs, fresh := policy.PodKey{Namespace: "a", Name: "runs"}, policy.PodKey{Namespace: "a", Name: "fresh"}
	gnp := &api.CalicoGlobalNetworkPolicy{}
	errtest.Must(t, json.Unmarshal([]byte(
		`{"metadata":{"name":"g"},"spec":{"types":["Ingress"],"ingress":[{"action":"Allow","source":{"selector":"role == 'x'"}}]}}`), gnp))
	view := func(pods ...policy.PodKey) cluster.PolicyView {
		v := cluster.PolicyView{Complete: true, NodesKnown: true, Local: pods, Pods: map[policy.PodKey]*policy.Pod{},
			Namespaces: map[string]map[string]string{"a": {}}}
		for _, key := range pods {
			v.Pods[key] = &policy.Pod{PodKey: key, UID: key.Name}
		}
		return v
	}
	n := nodePods{&Worker{Options: Options{Feed: noFeed{}}}, t}
	n.learn(time.Now(), view(runs))
	unlisted := view(runs, fresh)
	unlisted.Calico.GlobalNetworkPolicies = []*api.CalicoGlobalNetworkPolicy{gnp}
	n.learn(time.Now(), unlisted)
	for key, want := range map[policy.PodKey]bool{runs: true, fresh: false} {
		got := n.compiled.rules.Decide(LinkOf(key), policy.Ingress, netip.MustParseAddr("198.51.100.1"),
			policy.Packet{Protocol: policy.TCP, Port: 80})
		if got.Allow != want {
			t.Errorf("to %s: %+v, want %v", key, got, want)
		}
	}
}

// The last pod that keeps policies loses them on time, also after waiting policies have been reported.
func TestEachHoldEnds(t *testing.T) {
	start := time.Now()
	u := unlisted{since: start, holds: map[podHeld]hold{{uid: "early"}: {until: start.Add(listTime)},
		{uid: "late"}: {until: start.Add(listTime + time.Second)}, {uid: "new"}: {}}}
	for now, want := range map[time.Time]time.Time{start: start.Add(listTime), start.Add(listTime): start.Add(listTime + time.Second),
		start.Add(listTime + time.Second): {}} {
		if got := u.due(now); !got.Equal(want) {
			t.Errorf("due at %v, want %v", got, want)
		}
	}
}

// A Deny by a host endpoint's own end denies at both ends while the end may be of pods that are not listed.
func TestDenyOfAnUnlistedOwnEnd(t *testing.T) {
	for _, hosts := range []bool{false, true} {
		m := model{view: cluster.PolicyView{NodesKnown: true}}
		if m.Node = "n"; hosts {
			m.HostEndpoints = []policy.HostEndpoint{{Name: "h", Node: "n", Interface: "eth0"}}
		}
		r := policy.Rule{Action: policy.Deny, AnyPeer: true, AnyPort: true,
			Own: &policy.Match{Select: &policy.Pods{Calico: true, Namespace: "b"}}}
		if closed := m.closeRule(policy.Egress, &r); closed != hosts || (r.Own == nil) != hosts {
			t.Errorf("host endpoints %v: closed %v, the own end %v", hosts, closed, r.Own)
		}
	}
}

// A pod keeps no policies of another one of the same UID, or of the same name, and none at all if a user may have
// written its UID.
func TestPodsKeepTheirOwnPoliciesAlone(t *testing.T) {
	const other, outside = "192.0.2.2", "198.51.100.1"
	old := denying("old", "guarded", api.ClusterNetworkPolicyPeer{Networks: []string{other + "/32"}})
	next := denying("next", "named", api.ClusterNetworkPolicyPeer{Nodes: &api.LabelSelector{}})
	victim, lax, stated := policy.PodKey{Namespace: "a", Name: "victim"}, policy.PodKey{Namespace: "b",
		Name: "lax"}, policy.PodKey{Namespace: "b", Name: "stated"}
	view := cluster.PolicyView{Complete: true, ClusterNetworkPolicies: []*api.ClusterNetworkPolicy{old},
		Local: []policy.PodKey{victim, lax, stated}, NodesKnown: true,
		Namespaces: map[string]map[string]string{"a": {"guarded": "", "named": ""}, "b": {"named": ""}}, Pods: map[policy.PodKey]*policy.Pod{}}
	for _, key := range view.Local {
		view.Pods[key] = &policy.Pod{PodKey: key, UID: "one", Stated: key == stated}
	}
	n := nodePods{&Worker{Options: Options{Feed: noFeed{}}}, t}
	start := time.Now()
	n.learn(start, view)
	view.ClusterNetworkPolicies, view.NodesKnown = []*api.ClusterNetworkPolicy{old, next}, false
	for range 4 { // each in another order
		n.learn(start, view)
		n.passes("a new policy", "victim", other, false)
		n.passes("a new policy", "victim", outside, true)
		n.passes("a new policy", "lax", other, true)
		n.passes("a new policy", "stated", outside, false)
	}
	view.Pods[victim] = &policy.Pod{PodKey: victim, UID: "two"}
	n.learn(start, view)
	n.passes("another pod of the name", "victim", outside, false)
}

// A rule that allows all but selected pods allows nothing until these have been listed, in each form of such a rule.
func TestAllowOfAllButTheUnlisted(t *testing.T) {
	runs := policy.PodKey{Namespace: "a", Name: "runs"}
	for name, rule := range map[string]string{
		"notSelector alone":                `{"action":"Allow","destination":{"notSelector":"role == 'evil'"}}`,
		"notSelector within nets":          `{"action":"Allow","destination":{"notSelector":"role == 'evil'","nets":["0.0.0.0/0"]}}`,
		"notSelector beside a log":         `{"action":"Log"},{"action":"Allow","destination":{"notSelector":"role == 'evil'"}}`,
		"a named port in notPorts":         `{"action":"Allow","protocol":"TCP","destination":{"notPorts":["web"]}}`,
		"a named port of a selected peer":  `{"action":"Allow","protocol":"TCP","destination":{"selector":"all()","notPorts":["web"]}}`,
		"a named port of all but the nets": `{"action":"Allow","protocol":"TCP","destination":{"notNets":["203.0.113.0/24"],"notPorts":["web"]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			gnp := &api.CalicoGlobalNetworkPolicy{}
			errtest.Must(t, json.Unmarshal([]byte(
				`{"metadata":{"name":"g"},"spec":{"selector":"projectcalico.org/namespace == 'a'","types":["Egress"],"egress":[`+rule+`]}}`), gnp))
			view := cluster.PolicyView{Complete: true, NodesKnown: true, Local: []policy.PodKey{runs},
				Namespaces: map[string]map[string]string{"a": {}, "b": {}},
				Pods:       map[policy.PodKey]*policy.Pod{runs: {PodKey: runs, UID: "runs", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}}
			view.Calico.GlobalNetworkPolicies = []*api.CalicoGlobalNetworkPolicy{gnp}
			n := nodePods{&Worker{Options: Options{Feed: noFeed{}}}, t}
			n.learn(time.Now(), view)
			n.passes("not listed", "runs", "192.0.2.66", false)
			if len(n.model.closed) != 1 {
				t.Errorf("closed %v, want the policy", n.model.closed)
			}
		})
	}
}

// A Deny of pods by ports that these declare denies all ports until the pods have been listed, also where it is of the
// source's.
func TestDenyOfUnlistedPorts(t *testing.T) {
	runs := policy.PodKey{Namespace: "a", Name: "runs"}
	for d, rules := range []string{
		policy.Ingress: `"types":["Ingress"],"ingress":[{"action":"Deny","protocol":"TCP","source":{"selector":"all()",` +
			`"ports":["web"]}},{"action":"Allow"}]`,
		policy.Egress: `"types":["Egress"],"egress":[{"action":"Deny","protocol":"TCP","destination":{"selector":"all()",` +
			`"ports":["web"]}},{"action":"Allow"}]`,
	} {
		gnp := &api.CalicoGlobalNetworkPolicy{}
		errtest.Must(t,
			json.Unmarshal([]byte(`{"metadata":{"name":"g"},"spec":{"selector":"projectcalico.org/namespace == 'a'",`+rules+`}}`), gnp))
		view := cluster.PolicyView{Complete: true, NodesKnown: true, Local: []policy.PodKey{runs},
			Namespaces: map[string]map[string]string{"a": {}, "b": {}},
			Pods:       map[policy.PodKey]*policy.Pod{runs: {PodKey: runs, UID: "runs", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}}
		view.Calico.GlobalNetworkPolicies = []*api.CalicoGlobalNetworkPolicy{gnp}
		n := nodePods{&Worker{Options: Options{Feed: noFeed{}}}, t}
		n.learn(time.Now(), view)
		links, _ := Links(n.model.view.Local)
		for link := range links {
			packet := policy.Packet{Protocol: policy.TCP, Port: 80, SourcePort: 80}
			if n.compiled.rules.Decide(link, policy.Direction(d), netip.MustParseAddr("192.0.2.66"), packet).Allow {
				t.Errorf("%s: a pod that is not listed passes", policy.Direction(d))
			}
		}
	}
}

// What has been compiled but was never in force is not kept: it may be without policies, as before the first list of
// these.
func TestPodsKeepNothingThatWasNotInForce(t *testing.T) {
	key := policy.PodKey{Namespace: "a", Name: "runs"}
	view := cluster.PolicyView{Local: []policy.PodKey{key}, Pods: map[policy.PodKey]*policy.Pod{key: {PodKey: key, UID: "u"}},
		Namespaces: map[string]map[string]string{"a": {"named": ""}}}
	n := nodePods{&Worker{Options: Options{Feed: noFeed{}}}, t}
	n.learn(time.Now(), view)
	n.inForce = compiled{}
	view.ClusterNetworkPolicies = []*api.ClusterNetworkPolicy{
		denying("next", "named", api.ClusterNetworkPolicyPeer{Nodes: &api.LabelSelector{}}),
	}
	n.learn(time.Now(), view)
	n.passes("the first in force", "runs", "192.0.2.1", false)
}

// An agent that starts leaves what the kernel has until all is known, or for a bounded time if a list is missing for a
// policy that has just come.
func TestFirstRulesetAwaitsLists(t *testing.T) {
	now := time.Now()
	w := &Worker{host: &policy.HostRules{}}
	if w.begins(now) || w.begins(now.Add(time.Hour)) {
		t.Error("begins without a complete view")
	}
	w.model.view.Complete, w.model.since = true, now.Add(-time.Hour)
	if w.begins(now) || w.begins(now.Add(listTime-1)) || !w.begins(now.Add(listTime)) {
		t.Error("does not await a list")
	}
	w = &Worker{host: &policy.HostRules{}}
	if w.model.view.Complete = true; !w.begins(now) {
		t.Error("awaits a list, though all is known")
	}
}
