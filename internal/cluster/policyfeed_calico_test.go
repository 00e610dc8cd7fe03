package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

const calicoPath = "/apis/crd.projectcalico.org/v1/"

// calicoObject is of a kind of Calico's.
func calicoObject(kind, name, annotations, spec string) string {
	return fmt.Sprintf(
		`{"apiVersion":"crd.projectcalico.org/v1","kind":%q,"metadata":{"name":%q,"labels":{"own":"label"},"annotations":{%s}},"spec":{%s}}`,
		kind, name, annotations, spec)
}

func TestPolicyFeedFollowsCalicosKinds(t *testing.T) {
	cfg := labtest.RESTConfig(t)
	aNamespace(t, cfg, "calico")
	r := feedAt(t, labtest.As(t, "tortie-node")) // the chart's rights are enough
	r.want(t, policy.Interest{})
	const labels = `"projectcalico.org/metadata":"{\"labels\":{\"a\":\"b\"}}","left":"out"`
	in := calicoPath + "namespaces/calico/"
	put(t, cfg, in+"networkpolicies", "default.one", calicoObject("NetworkPolicy", "default.one", "", `"order":5`))
	put(t, cfg, calicoPath+"globalnetworkpolicies", "feed.all",
		calicoObject("GlobalNetworkPolicy", "feed.all", "", `"tier":"feed","selector":"has(x)"`))
	put(t, cfg, calicoPath+"tiers", "feed", calicoObject("Tier", "feed", "", `"order":7`))
	put(t, cfg, in+"networksets", "set", calicoObject("NetworkSet", "set", labels, `"nets":["192.0.2.0/24"]`))
	put(t, cfg, calicoPath+"globalnetworksets", "feed-set", calicoObject("GlobalNetworkSet", "feed-set", labels, `"nets":["2001:db8::/64"]`))
	put(t, cfg, calicoPath+"hostendpoints", "feed-host",
		calicoObject("HostEndpoint", "feed-host", "", `"node":"n","interfaceName":"*","expectedIPs":["192.0.2.1"]`))
	r.await(t, "all kinds", func(v *PolicyView) bool {
		c := &v.Calico
		return len(c.NetworkPolicies)*len(c.GlobalNetworkPolicies)*len(c.NetworkSets)*len(c.GlobalNetworkSets)*len(c.HostEndpoints) == 1 &&
			slices.ContainsFunc(c.Tiers, func(t *api.CalicoTier) bool { return t.Name == "feed" && *t.Spec.Order == 7 })
	})
	c := r.view.Calico
	if p := c.NetworkPolicies[0]; p.Namespace != "calico" || p.Name != "default.one" || *p.Spec.Order != 5 {
		t.Errorf("%+v", p)
	}
	want := map[string]string{"own": "label"} // in projectcalico.org/v3 the annotation is what an exported file has left
	if labtest.Group(t) == groups.V1 {
		want["a"] = "b"
	}
	if s := c.NetworkSets[0]; !maps.Equal(names.Labels(&s.Meta), want) || s.Annotations["left"] != "" || s.Spec.Nets[0] != "192.0.2.0/24" {
		t.Errorf("%+v, want labels %v", s, want)
	}
	for _, p := range []string{in + "networkpolicies/default.one", in + "networksets/set"} {
		if err := raw(t, cfg, http.MethodDelete, p, ""); err != nil {
			t.Fatal(err)
		}
	}
	r.await(t, "their end", func(v *PolicyView) bool { return len(v.Calico.NetworkPolicies)+len(v.Calico.NetworkSets) == 0 })
}

// Service accounts and endpoints of Services are followed while policies name any.
func TestPolicyFeedFollowsWhatCalicosPoliciesName(t *testing.T) {
	cfg, _, asked := recorded(t)
	aNamespace(t, cfg, "named")
	slice := `{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice",
		"metadata":{"name":"web-1","labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4",
		"endpoints":[{"addresses":["10.0.0.7"],"conditions":{"ready":false}}],
			"ports":[{"name":"http","port":80,"protocol":"TCP"},{"name":"any"}]}`
	put(t, cfg, "/apis/discovery.k8s.io/v1/namespaces/named/endpointslices", "web-1", slice)
	put(t, cfg, "/api/v1/namespaces/named/serviceaccounts", "robot",
		`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"robot","labels":{"team":"red"}}}`)
	r := feedAt(t, cfg)
	r.want(t, policy.Interest{})
	if len(r.view.MissingServices) > 0 || r.view.AccountsMissing {
		t.Errorf("without policies: services missing %v, accounts missing %v", r.view.MissingServices, r.view.AccountsMissing)
	}
	asked.take()
	p := calicoPath + "namespaces/named/networkpolicies"
	put(t, cfg, p, "one", calicoObject("NetworkPolicy", "one", "", `"egress":[{"action":"Allow","destination":{"services":{"name":"web"}}}]`))
	of := policy.Service{Namespace: "named", Name: "web"}
	r.await(t, "a Service", func(v *PolicyView) bool { return len(v.MissingServices) == 0 && len(v.Calico.Services[of]) > 0 })
	if got := fmt.Sprint(r.view.Calico.Services[of]); got != "[{10.0.0.7 0 0} {10.0.0.7 6 80}]" {
		t.Errorf("endpoints %s", got)
	}
	put(t, cfg, p, "two", calicoObject("NetworkPolicy", "two", "",
		`"selector":"pcsa.team == 'red'","egress":[{"action":"Allow","destination":{"services":{"name":"dns","namespace":"kube-system"}}}]`))
	r.await(t, "service accounts", func(v *PolicyView) bool {
		if v.AccountsMissing && v.Calico.Accounts != nil {
			t.Error("an incomplete list of service accounts says that those missing do not exist")
		}
		return len(v.MissingServices) == 0 && !v.AccountsMissing &&
			v.Calico.Accounts[policy.Account{Namespace: "named", Name: "robot"}]["team"] == "red"
	})
	want := []string{"watch endpointslices with kubernetes.io/service-name in (dns,web)",
		"watch endpointslices with kubernetes.io/service-name in (web)", "watch serviceaccounts metadata"}
	if got := slices.DeleteFunc(asked.take(), func(r string) bool { return !strings.HasPrefix(r, "watch") }); !slices.Equal(got, want) {
		t.Errorf("asked %q, want %q", got, want)
	}
	if len(r.view.Calico.Services[of]) == 0 {
		t.Error("the endpoints went with the selector")
	}
}

// The API server refuses a selector with a name that no Service can have: one policy would keep each agent from all
// Services. Policies name too many Services for a selector, or one after the other: then there are few watches, all the
// same.
func TestPolicyFeedAsksForFewServices(t *testing.T) {
	cfg, _, asked := recorded(t)
	aNamespace(t, cfg, "few")
	path := calicoPath + "namespaces/few/networkpolicies"
	naming := func(name string, services ...string) string {
		for i, s := range services {
			services[i] = fmt.Sprintf(`{"action":"Allow","destination":{"services":{"name":%q}}}`, s)
		}
		return calicoObject("NetworkPolicy", name, "", `"egress":[`+strings.Join(services, ",")+`]`)
	}
	illegal := []string{" ", "a b", "Web", "web,", "web)", "-web", "web.", "a_b", "wéb", strings.Repeat("w", 64)}
	put(t, cfg, path, "illegal", naming("illegal", append(illegal, "web")...))
	inNamespace := `"egress":[{"action":"Deny","destination":{"services":{"name":"dns","namespace":"A,b"}}}]`
	put(t, cfg, calicoPath+"globalnetworkpolicies", "few-illegal", calicoObject("GlobalNetworkPolicy", "few-illegal", "", inNamespace))
	r := feedAt(t, cfg)
	r.want(t, policy.Interest{})
	watches := func() []string {
		return slices.DeleteFunc(asked.take(), func(r string) bool { return !strings.HasPrefix(r, "watch endpointslices") })
	}
	if got, want := watches(), []string{"watch endpointslices with kubernetes.io/service-name in (web)"}; !slices.Equal(got, want) {
		t.Errorf("asked %q, want %q", got, want)
	}
	numbered := make([]string, mostServices+1)
	for i := range numbered {
		numbered[i] = fmt.Sprintf("web-%d", i)
		put(t, cfg, path, numbered[i], naming(numbered[i], numbered[i]))
	}
	r.await(t, "the Services", func(v *PolicyView) bool {
		r.feed.mu.Lock()
		defer r.feed.mu.Unlock()
		open := len(r.feed.calicoWatches.slices)
		if open > 2 {
			t.Fatalf("%d watches of EndpointSlices", open)
		}
		return len(v.Calico.NetworkPolicies) == len(numbered)+1 && len(v.MissingServices) == 0 && open == 1
	})
	if got, want := watches(), "watch endpointslices with kubernetes.io/service-name"; len(got) == 0 || !slices.Contains(got, want) {
		t.Errorf("asked %q, want %q", got, want)
	}
}

// However often and at whatever time the wanted Services change, there are two watches at most, and what has been
// listed stays known.
func TestFewWatchesOfServices(t *testing.T) {
	f, err := NewPolicyFeed(Server{Config: &rest.Config{Host: "127.0.0.1:1"}}, "node", slog.New(slog.DiscardHandler))
	errtest.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	w := &f.calicoWatches
	for i := range 20 {
		w.wantSlices = slicesOf([]string{"always", fmt.Sprintf("web-%d", i)})
		f.keepSlices(ctx, time.Now())
		if len(w.slices) > 2 || w.slices[len(w.slices)-1].selector != w.wantSlices || w.knows("always") != (i > 0) {
			t.Errorf("change %d: %d watches", i, len(w.slices))
		}
		w.slices[len(w.slices)-1].listed = i%3 == 0
	}
	w.slices[1].listed = true
	f.keepSlices(ctx, time.Now())
	if len(w.slices) != 1 || !w.knows("web-19") {
		t.Errorf("%d watches after the list", len(w.slices))
	}
	w.wantSlices = ""
	for _, after := range []time.Duration{0, linger - 1, linger} {
		f.keepSlices(ctx, time.Unix(0, 0).Add(after))
		if open := len(w.slices); open != 1 != (after == linger) {
			t.Errorf("%d watches %s after the last policy", open, after)
		}
	}
}

// While the list for a new Service is awaited those that were listed before are known.
func TestMissingServicesHaveNames(t *testing.T) {
	w := calicoWatches{wantServices: []string{"dns", "web"}, slices: []sliceWatch{
		{&tempWatch[policySlice]{listed: true}, slicesOf([]string{"web", "web-2"})},
		{&tempWatch[policySlice]{}, slicesOf([]string{"dns", "web"})},
	}}
	if got, _ := w.missing(); !maps.Equal(got, map[string]bool{"dns": true}) {
		t.Errorf("missing %v, want dns", got)
	}
	w.slices = append(w.slices, sliceWatch{&tempWatch[policySlice]{listed: true}, slicesOf(make([]string, mostServices+1))})
	if got, _ := w.missing(); len(got) > 0 {
		t.Errorf("missing %v after a list of all", got)
	}
}

// The contents of one list are known, and no more.
func TestKnowsWhatIsListed(t *testing.T) {
	a, b := policy.Interest{Namespaces: []string{"a"}}, policy.Interest{Namespaces: []string{"a", "b"}}
	for _, c := range []struct {
		known           []PodScope
		one, both, each bool
	}{
		{nil, false, false, false}, {[]PodScope{"a"}, true, false, false}, {[]PodScope{"b"}, false, false, false},
		{[]PodScope{"a", "b"}, true, true, false}, {[]PodScope{""}, true, true, true},
	} {
		v := PolicyView{Known: c.known, NodesKnown: true}
		if v.Knows(a) != c.one || v.Knows(b) != c.both || v.Knows(policy.Interest{All: true}) != c.each || v.KnowsAll(b) != c.both ||
			!v.Knows(policy.Interest{}) {
			t.Errorf("%q: knows a %v, both %v", c.known, v.Knows(a), v.Knows(b))
		}
	}
	for lacks, v := range map[string]PolicyView{"nodes": {}, "a Service": {NodesKnown: true, MissingServices: map[string]bool{"web": true}},
		"accounts": {NodesKnown: true, AccountsMissing: true}} {
		if v.KnowsAll(policy.Interest{}) {
			t.Errorf("knows all without %s", lacks)
		}
	}
	w := calicoWatches{}
	for _, c := range []struct{ wants, opened, listed, missing bool }{{false, false, false, false}, {true, false, false, true},
		{true, true, false, true}, {true, true, true, false}} {
		if w.wantAccounts, w.accounts = c.wants, nil; c.opened {
			w.accounts = &tempWatch[policyAccount]{listed: c.listed}
		}
		if _, missing := w.missing(); missing != c.missing {
			t.Errorf("service accounts %+v: missing %v", c, missing)
		}
	}
}
