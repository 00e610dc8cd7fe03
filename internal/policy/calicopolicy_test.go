package policy

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

var someTiers = map[string]Tier{"security": {Name: "security", Order: 5, End: Pass}}

// Policies of namespace x, or of none: tier, order, directions, the selection of pods and the number of rules of each
// direction; then parts of all problems.
func TestCalicoPolicies(t *testing.T) {
	for _, c := range []struct{ spec, want, problems string }{
		{`{"types":["Ingress"]}`, "default +Inf [true false] (in x) 0 0", ""},
		{`{"types":["egress","INGRESS"],"order":-1.5,"tier":"default"}`, "default -1.5 [true true] (in x) 0 0", ""},
		{`{"types":["Ingress"],"ingress":[{"action":"Deny"}],"egress":[{"action":"Deny"},{"action":"Deny"}]}`,
			"default +Inf [true false] (in x) 1 0", ""},
		{`{"ingress":[{"action":"Deny"}],"egress":[{"action":"Deny"},{"action":"Deny"}]}`, "default +Inf [true true] (in x) 1 2", ""},
		{`{"ingress":[{"action":"Deny"}]}`, "default +Inf [true true] (in x) 1 0", `spec.types "" Ingress Egress`},
		{`{}`, "default +Inf [true true] (in x) 0 0", `spec.types "" Ingress Egress`},
		{`{"types":["Both"]}`, "default +Inf [true true] (in x) 0 0", `spec.types[0] "Both" Ingress Egress`},
		{`{"types":["Egress"],"selector":"has(a)","serviceAccountSelector":"has(s)"}`,
			"default +Inf [false true] (in x; with has(a); accounts with has(s)) 0 0", ""},
		{`{"types":["Egress"],"tier":"security","performanceHints":["AssumeNeededOnEveryNode"]}`, "security +Inf [false true] (in x) 0 0", ""},
		{`{"types":["Egress"],"tier":"kube-admin"}`, "default +Inf [false true] (in x) 0 0", `spec.tier "kube-admin" GlobalNetworkPolicy`},
		{`{"types":["Egress"],"tier":"adminnetworkpolicy"}`, "default +Inf [false true] (in x) 0 0",
			`spec.tier "adminnetworkpolicy" GlobalNetworkPolicy`},
		{`{"types":["Egress"],"tier":"kube-baseline"}`, "kube-baseline +Inf [false true] (in x) 0 0", ""},
		{`{"types":["Egress"],"tier":"baselineadminnetworkpolicy"}`, "kube-baseline +Inf [false true] (in x) 0 0", ""},
		{`{"types":["Egress"],"tier":"gone"}`, "gone missing +Inf [false true] (in x) 0 0", `spec.tier "gone" create`},
		{`{"types":["Egress"],"selector":"global()"}`, "default +Inf [false true] (in x; with global()) 0 0",
			`spec.selector "global()" namespaceSelector`},
	} {
		n := &api.CalicoNetworkPolicy{Meta: api.Meta{Namespace: "x", Name: "default.p"}}
		decode(t, c.spec, &n.Spec)
		p, err := FromCalicoNetworkPolicy(n, someTiers)
		errtest.Must(t, err)
		checkPolicy(t, c.spec, p, c.want, c.problems)
		if p.ID != (ID{"CalicoNetworkPolicy", "x", "default.p"}) {
			t.Errorf("%s: %s", c.spec, p.ID)
		}
	}
	for _, c := range []struct{ spec, want, problems string }{
		{`{"types":["Ingress"],"order":10}`, "default 10 [true false] () 0 0", ""},
		{`{"types":["Ingress"],"namespaceSelector":"has(n)","selector":"has(a)"}`, "default +Inf [true false] (of has(n); with has(a)) 0 0", ""},
		{`{"types":["Ingress"],"namespaceSelector":"n not in {'a'}"}`, "default +Inf [true false] (of n not in {'a'}) 0 0", ""},
		{`{"types":["Ingress"],"namespaceSelector":"n not in {'a'}","selector":"all() && a != 'b'"}`,
			"default +Inf [true false] (of n not in {'a'}; with has(projectcalico.org/namespace) && a != 'b') 0 0", ""},
		{`{"types":["Ingress"],"serviceAccountSelector":"s != 'a'"}`, "default +Inf [true false] (accounts with s != 'a'; by account) 0 0", ""},
		{`{"types":["Ingress"],"serviceAccountSelector":"all()","selector":"all()"}`,
			"default +Inf [true false] (with has(projectcalico.org/serviceaccount); accounts with all(); by account) 0 0", ""},
		{`{"types":["Ingress"],"namespaceSelector":"global()"}`, "default +Inf [true false] (global) 0 0", ""},
		{`{"types":["Ingress"],"applyOnForward":true}`, "default +Inf [true false] () 0 0", ""},
		{`{"types":["Ingress"],"applyOnForward":true,"preDNAT":true,"ingress":[{"action":"Deny"}]}`, "default +Inf [true false] () 1 0", ""},
		{`{"types":["Egress"],"applyOnForward":true,"preDNAT":true,"egress":[{"action":"Deny"}]}`, "default +Inf [false false] () 0 0",
			`spec.egress "1" preDNAT`},
		{`{"types":["Ingress"],"applyOnForward":true,"doNotTrack":true,"ingress":[{"action":"Deny"}]}`, "default +Inf [true false] () 1 0", ""},
		{`{"types":["Ingress"],"applyOnForward":true,"doNotTrack":true,"preDNAT":true}`, "default +Inf [false false] () 0 0",
			`spec.doNotTrack "true" leave`},
	} {
		g := &api.CalicoGlobalNetworkPolicy{Meta: api.Meta{Name: "p"}}
		decode(t, c.spec, &g.Spec)
		p, err := FromCalicoGlobalNetworkPolicy(g, someTiers)
		errtest.Must(t, err)
		checkPolicy(t, c.spec, p, c.want, c.problems)
	}
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatal(err)
	}
}

func checkPolicy(t *testing.T, spec string, p Policy, want, problems string) {
	t.Helper()
	tier := p.Tier.Name
	if p.Tier.Missing && p.Tier.End == Deny {
		tier += " missing"
	}
	got := fmt.Sprintf("%s %v %v (%s) %d %d", tier, p.Order, p.Applies, saidPods(&p.Subject), len(p.Rules[Ingress]), len(p.Rules[Egress]))
	if got != want {
		t.Errorf("%s: %q, want %q", spec, got, want)
	}
	if text := strings.Join(p.Problems, "\n"); (text == "") != (problems == "") || !errtest.Has(text, problems) {
		t.Errorf("%s: problems %q, want %q", spec, text, problems)
	}
}

// A condition on requests is not dropped, which would open the port: the rule allows nothing, has a problem, and the
// pod is closed except for other rules.
func TestHTTPIsRefused(t *testing.T) {
	n := &api.CalicoNetworkPolicy{Meta: api.Meta{Namespace: "x", Name: "p"}}
	decode(t, `{"types":["Ingress"],"ingress":[
		{"action":"Allow","protocol":"TCP","http":{"methods":["GET"],"paths":[{"exact":"/a"},{"prefix":"/b"}]},"destination":{"ports":[80]}},
		{"action":"Allow","protocol":"TCP","destination":{"ports":[443]}}]}`, &n.Spec)
	p, err := FromCalicoNetworkPolicy(n, nil)
	errtest.Must(t, err)
	if want := `spec.ingress[0].http "GET /a /b*": is not supported, so that Allow matches nothing: leave it out`; len(p.Problems) != 1 ||
		!strings.HasPrefix(p.Problems[0], want) {
		t.Errorf("problems %q, want %q", p.Problems, want)
	}
	pod := &Pod{PodKey: PodKey{"x", "a"}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	compiled := Compile(State{
		Policies: []Policy{p}, Namespaces: map[string]map[string]string{"x": {}}, Local: map[string]PodKey{"cali1": pod.PodKey},
		Pods: map[PodKey]*Pod{pod.PodKey: pod},
	})
	for port, want := range map[uint16]bool{80: false, 443: true} {
		if got := compiled.Decide("cali1", Ingress, netip.MustParseAddr("192.0.2.1"), Packet{Protocol: TCP, Port: port}); got.Allow != want {
			t.Errorf("port %d: %+v", port, got)
		}
	}
}

func TestCalicoSubjects(t *testing.T) {
	for field, spec := range map[string]string{
		"spec.selector": `{"selector":"a ="}`, "spec.serviceAccountSelector": `{"serviceAccountSelector":"a ="}`,
		"spec.namespaceSelector": `{"namespaceSelector":"a ="}`,
	} {
		g := &api.CalicoGlobalNetworkPolicy{}
		decode(t, spec, &g.Spec)
		if _, err := FromCalicoGlobalNetworkPolicy(g, nil); !errtest.Names(err, field+` "a =" correct`) {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

// Of what cannot be decoded the place and the pods are known: everything is denied there. If the pods are not known it
// is left out.
func TestCalicoUnreadable(t *testing.T) {
	data := []byte(`{"spec":{"order":7,"selector":"has(a)","types":["Egress"],"egress":[{"action":1}]}}`)
	n := &api.CalicoNetworkPolicy{}
	n.Salvage(data, fmt.Errorf("egress"))
	n.Namespace = "x"
	p, err := FromCalicoNetworkPolicy(n, nil)
	errtest.Must(t, err)
	checkPolicy(t, string(data), p, "default 7 [false true] (in x; with has(a)) 0 1", "egress correct")
	if got := said(p.Rules[Egress][0]); got != "deny" {
		t.Errorf("rule %q", got)
	}
	g := &api.CalicoGlobalNetworkPolicy{}
	g.Salvage([]byte(`{"spec":{"selector":7,"types":1}}`), fmt.Errorf("types"))
	if p, err := FromCalicoGlobalNetworkPolicy(g, nil); !errtest.Names(err, `spec.selector "7"`) {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestCalicoTiers(t *testing.T) {
	var all []*api.CalicoTier
	for name, spec := range map[string]string{
		"none": `{}`, "a": `{"order":-1,"defaultAction":"Pass"}`, "b": `{"order":2.5,"defaultAction":"Deny"}`,
		"odd":     `{"order":3,"defaultAction":"Allow"}`,
		"default": `{"order":5,"defaultAction":"Pass"}`, "adminnetworkpolicy": `{"order":1000}`,
		"kube-baseline": `{"order":1e7,"defaultAction":"Pass"}`,
	} {
		tier := &api.CalicoTier{Meta: api.Meta{Name: name}}
		decode(t, spec, &tier.Spec)
		all = append(all, tier)
	}
	tiers, problems := FromCalicoTiers(all)
	if d := cmp.Diff(map[string]Tier{
		"none": {Name: "none", Order: math.Inf(1), End: Deny}, "a": {Name: "a", Order: -1, End: Pass}, "b": {Name: "b", Order: 2.5, End: Deny},
		"odd": {Name: "odd", Order: 3, End: Deny}, "default": TierDefault, "adminnetworkpolicy": TierAdmin, "kube-baseline": TierBaseline,
	}, tiers); d != "" {
		t.Errorf("tiers (-want +got):\n%s", d)
	}
	for name, want := range map[string]string{"odd": `spec.defaultAction "Allow" Deny Pass`,
		"default": `spec.order "5" 1e+06 spec.defaultAction "Pass" Deny`} {
		if !errtest.Has(strings.Join(problems[name], "\n"), want) {
			t.Errorf("%s: %q, want %q", name, problems[name], want)
		}
	}
	if len(problems) != 2 {
		t.Errorf("problems %q, want two tiers", problems)
	}
}

func TestCalicoSets(t *testing.T) {
	meta := api.Meta{Namespace: "x", Name: "s", Labels: map[string]string{"a": "1"},
		Annotations: map[string]string{"projectcalico.org/metadata": `{"labels":{"b":"2"}}`}}
	labels := map[string]string{"a": "1", "b": "2"}
	set, problems := FromCalicoNetworkSet(&api.CalicoNetworkSet{Meta: meta,
		Spec: api.CalicoNetworkSetSpec{Nets: []string{"192.0.2.77/24", "x", "fd00::1"}}})
	if d := cmp.Diff(labels, set.Labels); d != "" || fmt.Sprint(set.Namespace, set.Name, set.Nets) != "xs[192.0.2.0/24 fd00::1/128]" ||
		!errtest.Has(strings.Join(problems, "\n"), `spec.nets[1] "x"`) {
		t.Errorf("%+v, problems %q", set, problems)
	}
	meta.Namespace = ""
	set, problems = FromCalicoGlobalNetworkSet(&api.CalicoGlobalNetworkSet{Meta: meta,
		Spec: api.CalicoGlobalNetworkSetSpec{Nets: []string{"::/0"}}})
	if fmt.Sprint(set.Namespace, set.Name, set.Nets) != "s[::/0]" || len(problems) > 0 {
		t.Errorf("%+v, problems %q", set, problems)
	}
	host, problems := FromCalicoHostEndpoint(&api.CalicoHostEndpoint{Meta: meta, Spec: api.CalicoHostEndpointSpec{
		ExpectedIPs: []string{"192.0.2.1", "192.0.2.0/24", "x"},
		Ports: []api.CalicoEndpointPort{{Name: "ssh", Protocol: "TCP", Port: 22}, {Name: "dns", Protocol: "17", Port: 53},
			{Name: "a", Protocol: "ICMP"}, {Name: "b", Protocol: "TCP", Port: 65536}, {Name: "1", Protocol: "TCP"}},
	}})
	if d := cmp.Diff(labels, host.Labels); d != "" ||
		fmt.Sprint(host.Name, host.Addresses, host.Ports) != "s[192.0.2.1] [{ssh 6 22} {dns 17 53}]" {
		t.Errorf("%+v", host)
	}
	const want = `spec.expectedIPs[1] "192.0.2.0/24" spec.expectedIPs[2] "x" spec.ports[2].protocol "ICMP" spec.ports[3].port ` +
		`"65536" spec.ports[4].name "1"`
	if !errtest.Has(strings.Join(problems, "\n"), want) || len(problems) != 5 {
		t.Errorf("problems %q", problems)
	}
}

// problemForm is what each problem has: field, value and remedy.
var problemForm = regexp.MustCompile(
	`^spec(\.[a-zA-Z]+(\[\d+\])?)+ "(?s:.*)": \S(?s:.*)[:,] \S|^spec cannot be read, (?s:.*): correct it: `)

// FuzzCalicoPolicy: any object is read or refused with problems, and what cannot be read allows nothing.
func FuzzCalicoPolicy(f *testing.F) {
	for _, c := range ruleTable {
		f.Add(`{"ingress":[`+c.rule+`],"egress":[`+c.rule+`]}`, "")
	}
	f.Add(`{"selector":7,"types":["x"],"tier":"t","order":"1"}`, `{"order":1}`)
	f.Fuzz(func(t *testing.T, spec, tier string) {
		n, g := &api.CalicoNetworkPolicy{}, &api.CalicoGlobalNetworkPolicy{}
		data := []byte(`{"spec":` + spec + `}`)
		if err := json.Unmarshal(data, n); err != nil {
			n.Salvage(data, err)
		}
		if err := json.Unmarshal(data, g); err != nil {
			g.Salvage(data, err)
		}
		one := &api.CalicoTier{Meta: api.Meta{Name: "t"}}
		if json.Unmarshal([]byte(tier), &one.Spec) != nil {
			one.Spec = api.CalicoTierSpec{}
		}
		tiers, _ := FromCalicoTiers([]*api.CalicoTier{one})
		n.Namespace = "x"
		checkRead(t, n.Spec.CalicoPolicySpec, func() (Policy, error) { return FromCalicoNetworkPolicy(n, tiers) })
		checkRead(t, g.Spec.CalicoPolicySpec, func() (Policy, error) { return FromCalicoGlobalNetworkPolicy(g, tiers) })
	})
}

func checkRead(t *testing.T, spec api.CalicoPolicySpec, convert func() (Policy, error)) {
	t.Helper()
	p, err := convert()
	if err != nil {
		if !problemForm.MatchString(err.Error()) {
			t.Errorf("error %q names no field, value or remedy", err)
		}
		return
	}
	for _, problem := range p.Problems {
		if !problemForm.MatchString(problem) {
			t.Errorf("problem %q names no field, value or remedy", problem)
		}
	}
	for d, stored := range [2][]api.CalicoRule{spec.Ingress, spec.Egress} {
		if p.Applies[d] && spec.Unreadable == "" && len(p.Rules[d]) != len(stored) {
			t.Errorf("%d rules of %d: none may be lost, as reports count them", len(p.Rules[d]), len(stored))
		}
	}
}

// Labels of service accounts may be read by a selector for them, or by name in any other.
func TestPolicyNeedsLabelsOfAccounts(t *testing.T) {
	for spec, want := range map[string]bool{
		`"serviceAccountSelector":"x == 'y'"`: true,
		`"selector":"!has(pcsa.x)"`:           true,
		`"ingress":[{"action":"Allow","source":{"serviceAccounts":{"selector":"has(x)"}}}]`:                 true,
		`"ingress":[{"action":"Allow","source":{"selector":"a == 'b' || pcsa.x != 'y'"}}]`:                  true,
		`"egress":[{"action":"Deny","destination":{"notSelector":"pcsa.x in {'y'}"}}]`:                      true,
		`"egress":[{"action":"Deny","source":{"selector":"pcsa.projectcalico.org/name contains 'x'"}}]`:     true,
		`"selector":"projectcalico.org/serviceaccount == 'x'"`:                                              false,
		`"serviceAccountSelector":"all()"`:                                                                  false,
		`"ingress":[{"action":"Allow","source":{"serviceAccounts":{"names":["x"]},"selector":"has(pcs)"}}]`: false,
	} {
		var n api.CalicoNetworkPolicy
		errtest.Must(t, json.Unmarshal([]byte(`{"metadata":{"namespace":"x","name":"n"},"spec":{`+spec+`}}`), &n))
		p, err := FromCalicoNetworkPolicy(&n, nil)
		errtest.Must(t, err)
		if got := p.Needs().Accounts; got != want {
			t.Errorf("%s: needs labels of service accounts: %v, want %v", spec, got, want)
		}
	}
}
