package api

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// What a user writes comes back byte for byte, so that no field is lost or misnamed.
func TestPolicyJSON(t *testing.T) {
	for want, obj := range map[string]Resource{
		`{"metadata":{"name":"web"},"spec":{"podSelector":{"matchLabels":{"app":"web"},"matchExpressions":[{"key":"t",` +
			`"operator":"In","values":["a"]}]},` +
			`"ingress":[{"ports":[{"protocol":"UDP","port":53,"endPort":60},{"port":"http"}],` +
			`"from":[{"podSelector":{},"namespaceSelector":{}},{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}]}],` +
			`"egress":[{"to":[{"podSelector":{}}]}],"policyTypes":["Ingress","Egress"]}}`: &NetworkPolicy{},
		`{"metadata":{"name":"a"},"spec":{"tier":"Admin","priority":7,"subject":{"namespaces":{}},` +
			`"ingress":[{"name":"r","action":"Pass","from":[{"namespaces":{}},{"pods":{"namespaceSelector":{},"podSelector":{}}}],` +
			`"protocols":[{"tcp":{"destinationPort":{"number":80}}},{"udp":{"destinationPort":{"range":{"start":1,"end":2}}}},{"sctp":{}},` +
			`{"destinationNamedPort":"x"}]}],` +
			`"egress":[{"action":"Deny","to":[{"nodes":{}},{"networks":["::/0"]},{"domainNames":["a.b"]}]}]}}`: &ClusterNetworkPolicy{},
	} {
		errtest.Must(t, json.Unmarshal([]byte(want), obj))
		got, err := json.Marshal(obj)
		errtest.Must(t, err)
		difftest.Want(t, fmt.Sprintf("%T", obj), want, string(got))
	}
}

func TestIntOrString(t *testing.T) {
	for text, want := range map[string]IntOrString{`80`: {Number: 80}, `"80"`: {Name: "80"}, `""`: {}} {
		got := IntOrString{Number: 1, Name: "old"}
		if err := json.Unmarshal([]byte(text), &got); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, want)
		}
	}
	if err := json.Unmarshal([]byte(`1.5`), &IntOrString{}); err == nil {
		t.Error("a fraction was taken")
	}
}

// From an object that cannot be read as a whole the pods are read, if possible; else a NetworkPolicy selects its
// namespace.
func TestSalvage(t *testing.T) {
	web := LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	both := []string{"Ingress", "Egress"}
	for text, want := range map[string]NetworkPolicySpec{
		`{"spec":{"podSelector":{"matchLabels":{"app":"web"}},"policyTypes":["Egress"],"egress":[{"ports":[{"endPort":"x"}]}]}}`: {
			PodSelector: web, PolicyTypes: []string{"Egress"},
		},
		`{"spec":{"podSelector":{"matchLabels":{"app":"web"}},"policyTypes":7}}`: {
			PodSelector: web, PolicyTypes: both,
		},
		`{"spec":{"podSelector":["web"],"policyTypes":["Ingress"]}}`: {
			PolicyTypes: []string{"Ingress"},
		},
		`{"spec":7}`: {PolicyTypes: both},
	} {
		p := NetworkPolicy{}
		cause := json.Unmarshal([]byte(text), &p)
		if cause == nil {
			t.Fatalf("%s can be read", text)
		}
		want.Unreadable = cause.Error()
		p.Salvage([]byte(text), cause)
		difftest.Want(t, text, want, p.Spec)
	}
	all := ClusterNetworkPolicySubject{Namespaces: &LabelSelector{}}
	for text, want := range map[string]ClusterNetworkPolicySpec{
		`{"spec":{"tier":"Admin","priority":7,"subject":{"namespaces":{}},"ingress":{}}}`:           {Tier: "Admin", Priority: 7, Subject: all},
		`{"spec":{"tier":1,"priority":1.5,"subject":{"namespaces":{}}}}`:                            {Subject: all},
		`{"spec":{"tier":"Baseline","priority":7,"subject":{"pods":7},"egress":[{"to":[],"n":7}]}}`: {Tier: "Baseline", Priority: 7},
	} {
		p := ClusterNetworkPolicy{}
		cause := json.Unmarshal([]byte(text), &p)
		if cause == nil {
			t.Fatalf("%s can be read", text)
		}
		want.Unreadable = cause.Error()
		p.Salvage([]byte(text), cause)
		difftest.Want(t, text, want, p.Spec)
	}
}
