package policy

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
)

// rules is the spec of a ClusterNetworkPolicy for all pods.
func rules(tier, direction, rules string) string {
	return `{"tier":"` + tier + `","priority":5,"subject":{"namespaces":{}},"` + direction + `":[` + rules + `]}`
}

const (
	everyPod = `{"namespaces":{}}`
	appB     = `{"pods":{"podSelector":{"matchLabels":{"app":"b"}}}}`
)

// Unreadable parts close a rule: Accept then matches nothing, Deny and Pass deny everything at their place.
func TestClusterNetworkPolicies(t *testing.T) {
	for name, c := range map[string]struct {
		spec, problem string
		flows         []flow
	}{
		"deny": {rules("Admin", "ingress", `{"action":"Deny","from":[`+appB+`]}`), "",
			[]flow{{Ingress, xb, TCP, 80, false}, {Ingress, yb, 1, 0, false}, {Ingress, ya, TCP, 80, true}, {Ingress, outside, TCP, 80, true}}},
		"first matches": {rules("Admin", "ingress", `{"action":"Accept","from":[`+appB+`]},{"action":"Deny","from":[`+everyPod+`]}`), "",
			[]flow{{Ingress, xb, TCP, 80, true}, {Ingress, ya, TCP, 80, false}, {Ingress, outside, TCP, 80, true}}},
		"pass": {rules("Admin", "ingress", `{"action":"Pass","from":[`+appB+`]},{"action":"Deny","from":[`+everyPod+`]}`), "",
			[]flow{{Ingress, xb, TCP, 80, true}, {Ingress, ya, TCP, 80, false}}},
		"pass, networks": {rules("Admin", "egress", `{"action":"Pass","to":[`+appB+`]},{"action":"Deny","to":[{"networks":["0.0.0.0/0"]}]}`), "",
			[]flow{{Egress, xb, TCP, 80, true}, {Egress, ya, TCP, 80, false}, {Egress, outside, TCP, 80, false}, {Egress, outside6, TCP, 80, true}}},
		"networks": {rules("Admin", "egress", `{"action":"Deny","to":[{"networks":["10.0.0.2/31","203.0.113.0/24"]}]}`), "",
			[]flow{{Egress, xb, TCP, 80, false}, {Egress, ya, TCP, 80, false}, {Egress, xa, TCP, 80, true}, {Egress, outside, 1, 0, false}}},
		"nodes": {rules("Admin", "egress", `{"action":"Deny","to":[{"nodes":{"matchLabels":{"role":"edge"}}}]}`), "",
			[]flow{{Egress, node, TCP, 80, false}, {Egress, outside, TCP, 80, true}}},
		"other nodes": {rules("Admin", "egress", `{"action":"Deny","to":[{"nodes":{"matchLabels":{"role":"core"}}}]}`), "",
			[]flow{{Egress, node, TCP, 80, true}}},
		"number": {
			rules("Admin", "ingress", `{"action":"Deny","from":[`+everyPod+`],"protocols":[{"udp":{"destinationPort":{"number":53}}}]}`), "",
			[]flow{{Ingress, xb, UDP, 53, false}, {Ingress, xb, TCP, 53, true}, {Ingress, xb, UDP, 54, true}},
		},
		"range": {rules("Admin", "ingress",
			`{"action":"Deny","from":[`+everyPod+`],"protocols":[{"sctp":{"destinationPort":{"range":{"start":5,"end":7}}}}]}`), "",
			[]flow{{Ingress, xb, SCTP, 4, true}, {Ingress, xb, SCTP, 5, false}, {Ingress, xb, SCTP, 7, false}, {Ingress, xb, SCTP, 8, true}}},
		"named ingress": {rules("Admin", "ingress", `{"action":"Deny","from":[`+everyPod+`],"protocols":[{"destinationNamedPort":"dns"}]}`), "",
			[]flow{{Ingress, xb, UDP, 53, false}, {Ingress, xb, TCP, 53, true}}},
		"named egress": {rules("Admin", "egress", `{"action":"Deny","to":[`+everyPod+`],"protocols":[{"destinationNamedPort":"http"}]}`),
			"", []flow{{Egress, xb, TCP, 9090, false}, {Egress, xb, TCP, 8080, true}, {Egress, xa, TCP, 8080, false},
				{Egress, outside, TCP, 8080, true}}},
		"other subject": {`{"tier":"Admin","subject":{"pods":{"podSelector":{"matchLabels":{"app":"b"}}}},"ingress":[{"action":"Deny","from":[` +
			everyPod + `]}]}`, "", []flow{{Ingress, xb, TCP, 80, true}}},

		"closed: unknown peer, Accept": {
			rules("Admin", "ingress", `{"action":"Accept","from":[{}]},{"action":"Deny","from":[`+everyPod+`]}`), "ingress[0].from[0]",
			[]flow{{Ingress, xb, TCP, 80, false}, {Ingress, outside, TCP, 80, true}},
		},
		"closed: unknown peer, Deny": {
			rules("Admin", "ingress", `{"action":"Deny","from":[{}],"protocols":[{"tcp":{"destinationPort":{"number":1}}}]}`), "ingress[0].from[0]",
			[]flow{{Ingress, xb, TCP, 80, false}, {Ingress, outside, 1, 0, false}},
		},
		"closed: unknown peer, Pass": {rules("Admin", "ingress", `{"action":"Pass","from":[{}]}`), "ingress[0].from[0]",
			[]flow{{Ingress, xb, TCP, 80, false}, {Ingress, outside, 1, 0, false}}},
		"closed: one of two peers, Accept": {
			rules("Admin", "ingress", `{"action":"Accept","from":[{},`+appB+`]},{"action":"Deny","from":[`+everyPod+`]}`), "ingress[0].from[0]",
			[]flow{{Ingress, xb, TCP, 80, false}, {Ingress, ya, TCP, 80, false}},
		},
		"closed: one of two peers, Deny": {rules("Admin", "ingress", `{"action":"Deny","from":[{},`+appB+`]}`), "ingress[0].from[0]",
			[]flow{{Ingress, ya, TCP, 80, false}}},
		"closed: after what is before it": {rules("Admin", "ingress", `{"action":"Accept","from":[`+appB+`]},{"action":"Deny","from":[{}]}`),
			"ingress[1].from[0]", []flow{{Ingress, xb, TCP, 80, true}, {Ingress, ya, TCP, 80, false}}},
		"closed: passed before it": {rules("Admin", "ingress", `{"action":"Pass","from":[`+appB+`]},{"action":"Deny","from":[{}]}`),
			"ingress[1].from[0]", []flow{{Ingress, xb, TCP, 80, true}, {Ingress, ya, TCP, 80, false}, {Ingress, outside, TCP, 80, false}}},
		"closed: no peers, Deny": {rules("Admin", "ingress", `{"action":"Deny"}`), "ingress[0].from",
			[]flow{{Ingress, xb, TCP, 80, false}}},
		"closed: no peers, Accept": {rules("Admin", "ingress", `{"action":"Accept"},{"action":"Deny","from":[`+everyPod+`]}`),
			"ingress[0].from", []flow{{Ingress, xb, TCP, 80, false}}},
		"closed: two kinds of peer": {
			rules("Admin", "ingress", `{"action":"Deny","from":[{"namespaces":{"matchLabels":{"no":"no"}},"pods":{"podSelector":{}}}]}`), "from[0]",
			[]flow{{Ingress, outside, TCP, 80, false}},
		},
		"closed: networks of ingress": {rules("Admin", "ingress", `{"action":"Deny","from":[{"networks":["10.9.0.0/16"]}]}`), "from[0]",
			[]flow{{Ingress, outside, TCP, 80, false}}},
		"closed: selector of a peer": {
			rules("Admin", "ingress", `{"action":"Deny","from":[{"namespaces":{"matchExpressions":[{"key":"a","operator":"Gt"}]}}]}`),
			"from[0].namespaces.matchExpressions[0]", []flow{{Ingress, outside, TCP, 80, false}},
		},
		"closed: domain names, Accept": {
			rules("Admin", "egress", `{"action":"Accept","to":[{"domainNames":["a.example"]}]},{"action":"Deny","to":[{"networks":["0.0.0.0/0"]}]}`),
			`domainNames "a.example"`, []flow{{Egress, outside, TCP, 80, false}},
		},
		"closed: domain names, Deny": {rules("Admin", "egress", `{"action":"Deny","to":[{"domainNames":["a.example"]}]}`), "domainNames",
			[]flow{{Egress, outside, TCP, 80, false}}},
		"closed: one of two networks": {rules("Admin", "egress", `{"action":"Deny","to":[{"networks":["x","10.9.0.0/16"]}]}`),
			`to[0].networks[0] "x"`, []flow{{Egress, outside, TCP, 80, false}}},
		"closed: one of two, Accept": {rules("Admin", "egress",
			`{"action":"Accept","to":[{"networks":["x","10.0.0.2/32"]}]},{"action":"Deny","to":[{"networks":["0.0.0.0/0"]}]}`), "networks[0]",
			[]flow{{Egress, xb, TCP, 80, false}, {Egress, outside, TCP, 80, false}}},
		"closed: unknown protocol, Accept": {
			rules("Admin", "ingress", `{"action":"Accept","from":[`+everyPod+`],"protocols":[{}]},{"action":"Deny","from":[`+everyPod+`]}`),
			"protocols[0]", []flow{{Ingress, xb, TCP, 80, false}, {Ingress, xb, 1, 0, false}},
		},
		"closed: unknown protocol, Deny": {rules("Admin", "ingress", `{"action":"Deny","from":[`+appB+`],"protocols":[{}]}`), "protocols[0]",
			[]flow{{Ingress, xb, 1, 0, false}}},
		"closed: no destinationPort": {
			rules("Admin", "ingress", `{"action":"Accept","from":[`+everyPod+`],"protocols":[{"tcp":{}}]},{"action":"Deny","from":[`+everyPod+`]}`),
			"protocols[0]", []flow{{Ingress, xb, TCP, 80, false}},
		},
		"closed: an empty destinationPort": {rules("Admin", "ingress",
			`{"action":"Accept","from":[`+everyPod+`],"protocols":[{"tcp":{"destinationPort":{}}}]},{"action":"Deny","from":[`+everyPod+`]}`),
			"destinationPort", []flow{{Ingress, xb, TCP, 80, false}}},
		"closed: port 65616, Deny": {
			rules("Admin", "ingress", `{"action":"Deny","from":[`+everyPod+`],"protocols":[{"tcp":{"destinationPort":{"number":65616}}}]}`), "65616",
			[]flow{{Ingress, xb, TCP, 443, false}},
		},
		"closed: two protocols in one": {rules("Admin", "ingress", `{"action":"Accept","from":[`+everyPod+
			`],"protocols":[{"tcp":{"destinationPort":{"number":80}},"udp":{"destinationPort":{"number":80}}}]},{"action":"Deny","from":[`+everyPod+
			`]}`), "protocols[0]", []flow{{Ingress, xb, TCP, 80, false}}},
		"closed: unknown action": {rules("Admin", "ingress", `{"action":"Log","from":[`+appB+`]}`), `action "Log"`,
			[]flow{{Ingress, xb, TCP, 80, false}, {Ingress, ya, TCP, 80, true}}},
		"closed: name of a port is no name": {
			rules("Admin", "ingress", `{"action":"Deny","from":[`+appB+`],"protocols":[{"destinationNamedPort":"80"}]}`), "without quotes",
			[]flow{{Ingress, xb, TCP, 80, false}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := clusterPolicy(t, c.spec)
			if err != nil {
				t.Fatal(err)
			}
			if text := strings.Join(p.Problems, "\n"); (c.problem == "") != (text == "") || !strings.Contains(text, c.problem) {
				t.Errorf("problems %q, want %q", text, c.problem)
			}
			check(t, cluster(p), c.flows...)
		})
	}
}

func TestClusterNetworkPolicyErrors(t *testing.T) {
	for spec, want := range map[string]string{
		`{"tier":"Admin"}`: "spec.subject",
		`{"tier":"Admin","subject":{"namespaces":{},"pods":{}}}`:                                       "spec.subject",
		`{"tier":"Admin","subject":{"namespaces":{"matchExpressions":[{"key":"a","operator":"Gt"}]}}}`: "spec.subject.namespaces",
		`{"tier":"Admin","subject":{"pods":{"podSelector":{"matchExpressions":[{"key":"a",` +
			`"operator":"Gt"}]}}}}`: "spec.subject.pods.podSelector",
		`{"tier":"Admin","subject":{"pods":{"namespaceSelector":{"matchExpressions":[{"key":"",` +
			`"operator":"In"}]}}}}`: "spec.subject.pods.namespaceSelector",
	} {
		if p, err := clusterPolicy(t, spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v, want an error with %q", spec, p, err, want)
		}
	}
}

// A policy with an unknown tier or unreadable rules closes all that it selects, and nothing else.
func TestClusterNetworkPolicyWithoutRulesIsClosed(t *testing.T) {
	const ofA = `"subject":{"pods":{"podSelector":{"matchLabels":{"app":"a"}}}}`
	for name, c := range map[string]struct {
		spec, unreadable string
		tier             Tier
		applies          [2]bool
		want             string
	}{
		"another tier": {`{"tier":"Default","priority":3,` + ofA + `,"ingress":[{"action":"Accept","from":[` + everyPod + `]}]}`, "",
			TierAdmin, [2]bool{Ingress: true}, `spec.tier "Default"`},
		"another tier, no rules": {`{"tier":"Default",` + ofA + `}`, "", TierAdmin, [2]bool{}, `spec.tier "Default"`},
		"unreadable": {`{"tier":"Baseline","priority":3,` + ofA + `}`, "a number is missing", TierBaseline,
			[2]bool{true, true}, "a number is missing"},
		"unreadable, and tier": {`{` + ofA + `}`, "a number is missing", TierAdmin, [2]bool{true, true}, "a number is missing"},
	} {
		o := api.ClusterNetworkPolicy{Meta: api.Meta{Name: "c"}}
		if err := json.Unmarshal([]byte(c.spec), &o.Spec); err != nil {
			t.Fatal(err)
		}
		o.Spec.Unreadable = c.unreadable
		p, err := FromClusterNetworkPolicy(&o)
		if err != nil || p.Tier != c.tier || p.Applies != c.applies || len(p.Problems) != 1 || !strings.Contains(p.Problems[0], c.want) {
			t.Errorf("%s: %+v, %v", name, p, err)
			continue
		}
		check(t, cluster(p), flow{Ingress, ya, TCP, 80, !p.Applies[Ingress]}, flow{Egress, yb, UDP, 53, !p.Applies[Egress]})
	}
	for spec, unreadable := range map[string]string{`{"tier":"Default"}`: "", `{"tier":"Admin"}`: "subject is a number"} {
		o := api.ClusterNetworkPolicy{}
		if err := json.Unmarshal([]byte(spec), &o.Spec); err != nil {
			t.Fatal(err)
		}
		o.Spec.Unreadable = unreadable
		if p, err := FromClusterNetworkPolicy(&o); err == nil || !strings.Contains(err.Error(), "spec.subject") ||
			!strings.Contains(err.Error(), unreadable) {
			t.Errorf("%s: %+v, %v", spec, p, err)
		}
	}
}

// Admin decides before NetworkPolicies, and Baseline counts only for pods that none of them isolates.
func TestTiers(t *testing.T) {
	cnp := func(name, spec string) Policy {
		p, err := clusterPolicy(t, spec)
		if err != nil {
			t.Fatal(err)
		}
		p.Name = name
		return p
	}
	deny := cnp("deny", rules("Admin", "ingress", `{"action":"Deny","from":[`+everyPod+`]}`))
	accept := cnp("accept", rules("Admin", "ingress", `{"action":"Accept","from":[`+everyPod+`]}`))
	pass := cnp("before", rules("Admin", "ingress", `{"name":"red","action":"Pass","from":[`+appB+`]}`))
	pass.Order = 4
	base := cnp("base", rules("Baseline", "ingress", `{"action":"Deny","from":[`+everyPod+`]}`))
	baseAccept := cnp("baseAccept", rules("Baseline", "ingress", `{"action":"Accept","from":[`+everyPod+`]}`))
	isolate := networkPolicy(t, `{}`)
	open := networkPolicy(t, `{"ingress":[{}]}`)
	for name, c := range map[string]struct {
		policies []Policy
		flows    []flow
	}{
		"admin before NetworkPolicy":     {[]Policy{open, deny}, []flow{{Ingress, ya, TCP, 80, false}, {Ingress, outside, TCP, 80, true}}},
		"accepted in spite of isolation": {[]Policy{isolate, accept}, []flow{{Ingress, ya, TCP, 80, true}, {Ingress, outside, TCP, 80, false}}},
		"passed to NetworkPolicy": {[]Policy{isolate, pass, accept},
			[]flow{{Ingress, xb, TCP, 80, false}, {Ingress, ya, TCP, 80, true}}},
		"passed to an open NetworkPolicy": {[]Policy{open, pass, deny}, []flow{{Ingress, xb, TCP, 80, true}, {Ingress, ya, TCP, 80, false}}},
		"passed to baseline": {[]Policy{base, pass, accept},
			[]flow{{Ingress, xb, TCP, 80, false}, {Ingress, ya, TCP, 80, true}, {Ingress, outside, TCP, 80, true}}},
		"baseline":                         {[]Policy{base}, []flow{{Ingress, xb, TCP, 80, false}, {Ingress, outside, TCP, 80, true}}},
		"NetworkPolicy before baseline":    {[]Policy{base, open}, []flow{{Ingress, xb, TCP, 80, true}}},
		"isolation is final":               {[]Policy{baseAccept, isolate}, []flow{{Ingress, xb, TCP, 80, false}}},
		"equal priorities by name":         {[]Policy{deny, accept}, []flow{{Ingress, xb, TCP, 80, true}}},
		"nothing for the other directions": {[]Policy{deny, base}, []flow{{Egress, xb, TCP, 80, true}}},
	} {
		t.Run(name, func(t *testing.T) { check(t, cluster(c.policies...), c.flows...) })
	}
	e := Explain(cluster(isolate, pass, deny), Party{Address: netip.MustParseAddr(xb)}, Party{Pod: PodKey{"x", "a"}},
		Packet{Protocol: TCP, Port: 80})
	if j := e.Ingress; e.Allow || e.Egress == nil || !e.Egress.Verdict.Allow || j.Tier != "default" || j.Rule != -1 ||
		j.Policy != isolate.ID || len(j.Selecting) != 3 {
		t.Errorf("explained as %+v, %+v", e, j)
	}
	e = Explain(cluster(deny), Party{Address: netip.MustParseAddr(ya)}, Party{Pod: PodKey{"x", "a"}}, Packet{Protocol: TCP, Port: 80})
	if j := e.Ingress; e.Allow || j.Tier != "kube-admin" || j.Rule != 0 || j.Policy != deny.ID || j.Verdict.By != deny.ID {
		t.Errorf("explained as %+v, %+v", e, j)
	}
}

// A pod of a namespace with unknown labels has no rights by them, and is denied what they might deny.
func TestUnknownNamespace(t *testing.T) {
	allow := networkPolicy(t,
		`{"ingress":[{"from":[{"namespaceSelector":{"matchExpressions":[{"key":"team","operator":"NotIn","values":["red"]}]}}]}]}`)
	s := cluster(allow)
	delete(s.Namespaces, "y")
	check(t, s, flow{Ingress, yb, TCP, 80, false}, flow{Ingress, xb, TCP, 80, true})
	deny, err := clusterPolicy(t, rules("Admin", "ingress", `{"action":"Deny","from":[{"namespaces":{"matchLabels":{"team":"red"}}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	s = cluster(deny)
	delete(s.Namespaces, "y")
	check(t, s, flow{Ingress, yb, TCP, 80, false}, flow{Ingress, xb, TCP, 80, true})
	deny.Subject.Namespaces = deny.Rules[Ingress][0].Peers[0].Pods.Namespaces
	s = cluster(deny)
	delete(s.Namespaces, "x")
	if c := Compile(s); len(c.Endpoints) > 0 ||
		c.Decide("calia", Ingress, netip.MustParseAddr(outside), Packet{Protocol: TCP, Port: 80}).Allow {
		t.Errorf("a pod that might be selected passes: %+v", c.Endpoints)
	}
}

// Pods that a tier passes on are not caught by its networks, and the next tier decides on them: by selector, by
// network, or by its end.
func TestPassedBeforeNetworks(t *testing.T) {
	c, err := clusterPolicy(t,
		rules("Admin", "egress", `{"action":"Pass","to":[`+everyPod+`]},{"action":"Deny","to":[{"networks":["0.0.0.0/0"]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	n := networkPolicy(t, `{"policyTypes":["Egress"],"egress":[{"to":[{"podSelector":{"matchLabels":{"app":"b"}}},`+
		`{"ipBlock":{"cidr":"10.0.0.3/32"}},{"ipBlock":{"cidr":"203.0.113.0/24"}}]}]}`)
	check(t, cluster(c, n), flow{Egress, xb, TCP, 80, true}, flow{Egress, ya, TCP, 80, true}, flow{Egress, yb, TCP, 80, false},
		flow{Egress, outside, TCP, 80, false})
}
