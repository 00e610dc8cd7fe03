package controllers

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/selector"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func reviewed(t *testing.T, p policy.Policy) (reasons []string, text string) {
	t.Helper()
	pods := map[policy.PodKey]*policy.Pod{}
	for _, pod := range []policy.Pod{
		{PodKey: policy.PodKey{Namespace: "a", Name: "web"}, Labels: map[string]string{"app": "web"},
			Ports: []policy.NamedPort{{Name: "http", Protocol: 6, Port: 80}}},
		{PodKey: policy.PodKey{Namespace: "b", Name: "dns"}, Labels: map[string]string{"app": "dns"},
			Ports: []policy.NamedPort{{Name: "dns", Protocol: 17, Port: 53}}},
	} {
		pods[pod.PodKey] = &pod
	}
	state := policy.State{HostEndpoints: []policy.HostEndpoint{
		{Node: "n", Interface: "eth0", Labels: map[string]string{"app": "node"}},
		{Node: "n", Interface: "*", Labels: map[string]string{"app": "all"}},
		{Labels: map[string]string{"app": "nowhere"}},
	}, Pods: pods, Namespaces: map[string]map[string]string{"a": {"team": "a"}, "b": {"team": "b"}}}
	for _, r := range slices.Concat(faults(p, nil), review(&p, &state)) {
		reasons, text = append(reasons, r.reason), text+r.text
	}
	return reasons, text
}

func sel(t *testing.T, text string) selector.Selector {
	t.Helper()
	s, err := selector.Parse(text)
	errtest.Must(t, err)
	return s
}

// A NetworkSet from which on a namespace has too many networks has an Event, once.
func TestSurplusOfNetworkSetsIsReviewed(t *testing.T) {
	set := func(name string, nets int) *api.CalicoNetworkSet {
		return &api.CalicoNetworkSet{Meta: api.Meta{Namespace: "a", Name: name, UID: name, ResourceVersion: "1"},
			Spec: api.CalicoNetworkSetSpec{Nets: make([]string, nets)}}
	}
	view := cluster.PolicyView{
		Calico: cluster.CalicoView{NetworkSets: []*api.CalicoNetworkSet{set("3", 5000), set("1", 5000), set("2", 5001)}},
	}
	all := editions(&view)
	if len(all) != 1 || all[0].about.Kind != "NetworkSet" || all[0].about.Name != "2" {
		t.Fatalf("%+v", all)
	}
	p, err := all[0].decode()
	errtest.Must(t, err)
	if reasons, text := reviewed(t, p); !slices.Equal(reasons, []string{reasonInvalid}) || !strings.Contains(text, "spec.nets[5000]") {
		t.Errorf("%q: %s", reasons, text)
	}
	view.Calico.NetworkSets[2].ResourceVersion = "2"
	if again := editions(&view); again[0].id != all[0].id {
		t.Errorf("%s and %s", all[0].id, again[0].id)
	}
}

func TestReview(t *testing.T) {
	web := policy.Pods{Namespace: "a", Labels: sel(t, "app == 'web'")}
	named := func(d policy.Direction, name string, protocol uint8, peers ...policy.Peer) (rules [2][]policy.Rule) {
		rules[d] = []policy.Rule{{AnyPeer: len(peers) == 0, Peers: peers, Ports: []policy.Port{{Name: name, Protocol: protocol}}}}
		return rules
	}
	teamB := policy.Peer{Pods: &policy.Pods{Namespaces: sel(t, "team == 'b'")}}
	teamA := policy.Peer{Pods: &policy.Pods{Namespaces: sel(t, "team == 'a'")}}
	for _, c := range []struct {
		what   string
		policy policy.Policy
		want   []string
		text   string
	}{
		{"well", policy.Policy{Subject: web, Rules: named(policy.Ingress, "http", 6)}, nil, ""},
		{"problems", policy.Policy{Subject: web, Problems: []string{"x", "y"}}, []string{reasonInvalid}, "x; y"},
		{"another namespace", policy.Policy{Subject: policy.Pods{Namespace: "b", Labels: sel(t, "app == 'web'")}}, []string{reasonNoPod}, ""},
		{"namespaces by labels", policy.Policy{Subject: policy.Pods{Namespaces: sel(t, "team == 'c'")}}, []string{reasonNoPod}, ""},
		{"all pods", policy.Policy{}, nil, ""},
		{"ingress port of a peer", policy.Policy{Subject: web, Rules: named(policy.Ingress, "dns", 17, teamB)}, []string{reasonNoPort}, `"dns"`},
		{"another protocol", policy.Policy{Subject: web, Rules: named(policy.Ingress, "http", 17)}, []string{reasonNoPort}, ""},
		{"any protocol", policy.Policy{Subject: web, Rules: named(policy.Ingress, "http", 0)}, nil, ""},
		{"egress port of a peer", policy.Policy{Subject: web, Rules: named(policy.Egress, "dns", 17, teamB)}, nil, ""},
		{"egress port of other pods", policy.Policy{Subject: web, Rules: named(policy.Egress, "dns", 17, teamA)}, []string{reasonNoPort}, ""},
		{"egress port of networks", policy.Policy{Subject: web, Rules: named(policy.Egress, "dns", 17, policy.Peer{})}, nil, ""},
		{"egress port of what Calico's rules match", policy.Policy{Subject: web,
			Rules: named(policy.Egress, "dns", 17, policy.Peer{Match: &policy.Match{Select: teamA.Pods}})}, []string{reasonNoPort}, ""},
		{"egress port of any peer", policy.Policy{Subject: web, Rules: named(policy.Egress, "dns", 17)}, nil, ""},
	} {
		c.policy.Applies = [2]bool{true, true}
		if got, text := reviewed(t, c.policy); !slices.Equal(got, c.want) || !strings.Contains(text, c.text) {
			t.Errorf("%s: %q %q, want %q", c.what, got, text, c.want)
		}
	}
}

// A policy of Calico's that counts for nothing, or for host endpoints, is about no pods.
func TestReviewOfHostPolicies(t *testing.T) {
	p := policy.Policy{ID: policy.ID{Kind: policy.KindCalicoGlobalNetworkPolicy, Name: "p"}, Applies: [2]bool{true, false},
		Subject: policy.Pods{Calico: true, Labels: sel(t, "app == 'node'")}}
	if got, text := reviewed(t, p); len(got) > 0 {
		t.Errorf("%q %q", got, text)
	}
	p.Namespace = "a"
	if got, text := reviewed(t, p); !slices.Equal(got, []string{reasonNoPod}) {
		t.Errorf("of a namespace: %q %q", got, text)
	}
	if got, text := reviewed(t, policy.Policy{Problems: []string{"x"}}); !slices.Equal(got, []string{reasonInvalid}) {
		t.Errorf("%q %q", got, text)
	}
}

// A policy for host endpoints only, which selects none that it applies to, is reported as without effect.
func TestReviewOfPoliciesWithoutHosts(t *testing.T) {
	for _, c := range []struct {
		selector string
		policy   policy.Policy
		want     []string
		text     string
	}{
		{"app == 'node'", policy.Policy{NoTrack: true, Forward: true}, nil, ""},
		{"app == 'all'", policy.Policy{NoTrack: true, Forward: true}, []string{reasonNoHost}, "spec.doNotTrack is true"},
		{"app == 'nowhere'", policy.Policy{NoTrack: true, Forward: true}, []string{reasonNoHost}, "spec.doNotTrack is true"},
		{"app == 'web'", policy.Policy{NoTrack: true, Forward: true}, []string{reasonNoHost}, "spec.doNotTrack is true"},
		{"app == 'all'", policy.Policy{PreDNAT: true, Forward: true}, nil, ""},
		{"app == 'web'", policy.Policy{PreDNAT: true, Forward: true}, []string{reasonNoHost}, "spec.preDNAT is true"},
		{"app in {'web', 'all'}", policy.Policy{PreDNAT: true, Forward: true}, nil, ""},
		{"app == 'all'", policy.Policy{Forward: true}, nil, ""},
		{"app == 'web'", policy.Policy{Forward: true}, []string{reasonNoHost}, "spec.applyOnForward is true"},
		{"app in {'web', 'all'}", policy.Policy{Forward: true}, nil, ""},
		{"app == 'web'", policy.Policy{}, nil, ""},
		{"app == 'nobody'", policy.Policy{Forward: true}, []string{reasonNoPod}, "no host endpoint"},
	} {
		p := c.policy
		p.ID, p.Applies = policy.ID{Kind: policy.KindCalicoGlobalNetworkPolicy, Name: "p"}, [2]bool{true, false}
		p.Subject = policy.Pods{Calico: true, Labels: sel(t, c.selector)}
		if got, text := reviewed(t, p); !slices.Equal(got, c.want) || !strings.Contains(text, c.text) {
			t.Errorf("%s: %q %q, want %q", c.selector, got, text, c.want)
		}
	}
}

// Pods are watched as far as the policies need them, which are few in a large cluster.
func TestInterestOfAReview(t *testing.T) {
	ingress := [2]bool{policy.Ingress: true}
	own := policy.Policy{Applies: ingress, Subject: policy.Pods{Namespace: "a"}}
	other := policy.Policy{Applies: ingress, Subject: policy.Pods{Namespace: "b"}}
	port := own
	port.Rules[policy.Ingress] = []policy.Rule{{Ports: []policy.Port{{Name: "http"}}}}
	egress := own
	egress.Rules[policy.Egress] = port.Rules[policy.Ingress]
	for _, c := range []struct {
		of  []policy.Policy
		all bool
		in  []string
	}{
		{nil, false, nil},
		{[]policy.Policy{own, other, own}, false, []string{"a", "b"}},
		{[]policy.Policy{port, other}, false, []string{"a", "b"}},
		{[]policy.Policy{egress}, true, nil},
		{[]policy.Policy{{Applies: ingress}, own}, true, nil},
		{[]policy.Policy{{}, own}, false, []string{"a"}},
	} {
		if i := interestOf(c.of); i.All != c.all || !slices.Equal(i.Namespaces, c.in) {
			t.Errorf("%+v: %+v", c, i)
		}
	}
}

// What could be read of a policy only in part, or not at all, is reviewed as well.
func TestReviewOfUnreadablePolicies(t *testing.T) {
	np, closed, lost := &api.NetworkPolicy{}, &api.ClusterNetworkPolicy{}, &api.ClusterNetworkPolicy{}
	np.Namespace = "a"
	cause := errors.New("ingress is a number")
	np.Salvage([]byte(`{"spec":{"podSelector":{},"ingress":7}}`), cause)
	closed.Salvage([]byte(`{"apiVersion":"policy.networking.k8s.io/v1alpha2",
		"spec":{"tier":"Admin","subject":{"namespaces":{}},"ingress":7}}`), cause)
	lost.Salvage([]byte(`{"spec":{"tier":"Admin","subject":7,"ingress":7}}`), cause)
	view := cluster.PolicyView{NetworkPolicies: []*api.NetworkPolicy{np}, ClusterNetworkPolicies: []*api.ClusterNetworkPolicy{closed, lost}}
	versions := []string{"networking.k8s.io/v1", "policy.networking.k8s.io/v1alpha2", "policy.networking.k8s.io/v1beta1"}
	for i, e := range editions(&view) {
		if e.about.APIVersion != versions[i] { // in which the object was read
			t.Errorf("Events are about an object of %s, want %s", e.about.APIVersion, versions[i])
		}
		p, err := e.decode()
		if i == 2 {
			if err == nil || !strings.Contains(err.Error(), cause.Error()) {
				t.Errorf("without a subject: %v", err)
			}
			continue
		}
		errtest.Must(t, err)
		if reasons, text := reviewed(t, p); len(reasons) != 1 || reasons[0] != reasonInvalid || !strings.Contains(text, cause.Error()) {
			t.Errorf("%s: %v %s", e.about.Kind, reasons, text)
		}
	}
}
