package api

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// Every field comes back byte for byte, so that none is lost or misnamed.
func TestCalicoPolicyJSON(t *testing.T) {
	const entity = `{"nets":["10.0.0.0/8"],"notNets":["10.1.0.0/16"],"selector":"a == 'b'","notSelector":"has(c)",` +
		`"namespaceSelector":"global()",` +
		`"serviceAccounts":{"names":["sa"],"selector":"all()"},"services":{"name":"web","namespace":"shop"},"ports":["80","1:2",` +
		`"http"],"notPorts":["81"]}`
	const rule = `{"action":"Allow","ipVersion":4,"protocol":"TCP","notProtocol":"17","icmp":{"type":8,"code":0},` +
		`"notICMP":{"type":0},"source":` + entity +
		`,"destination":` + entity + `,"http":{"methods":["GET"],"paths":[{"exact":"/a"},{"prefix":"/b"}]},"metadata":{"annotations":{"k":"v"}}}`
	const policy = `"tier":"security","order":10.5,"selector":"all()","serviceAccountSelector":"has(x)","types":["Ingress","Egress"],` +
		`"ingress":[` + rule + `],"egress":[` + rule + `],"performanceHints":["AssumeNeededOnEveryNode"]`
	const global = policy + `,"namespaceSelector":"all()","doNotTrack":true,"preDNAT":true,"applyOnForward":true`
	for spec, obj := range map[string]Resource{
		policy:                           &CalicoNetworkPolicy{},
		global:                           &CalicoGlobalNetworkPolicy{},
		`"stagedAction":"Set",` + policy: &CalicoStagedNetworkPolicy{},
		`"stagedAction":"Set",` + global: &CalicoStagedGlobalNetworkPolicy{},
		`"stagedAction":"Delete","podSelector":{},"policyTypes":["Ingress"]`: &CalicoStagedKubernetesNetworkPolicy{},
		`"order":100,"defaultAction":"Pass"`:                                 &CalicoTier{},
		`"nets":["10.0.0.1"]`:                                                &CalicoNetworkSet{},
		`"nets":["fd00::/8"]`:                                                &CalicoGlobalNetworkSet{},
		`"node":"n","interfaceName":"*","expectedIPs":["10.0.0.1"],"profiles":["p"],"ports":[{"name":"ssh","protocol":"TCP",` +
			`"port":22}]`: &CalicoHostEndpoint{},
	} {
		want := `{"metadata":{"name":"x"},"spec":{` + spec + `}}`
		if err := json.Unmarshal([]byte(want), obj); err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		difftest.Want(t, fmt.Sprintf("%T", obj), want, string(got))
	}
}

// Calico's schema takes ports and protocols as numbers, too.
func TestCalicoNumbers(t *testing.T) {
	var rule CalicoRule
	if err := json.Unmarshal([]byte(`{"action":"Allow","protocol":6,"destination":{"ports":[80,"8080:8090"]}}`), &rule); err != nil {
		t.Fatal(err)
	}
	tcp := CalicoProtocol("6")
	want := CalicoRule{Action: "Allow", Protocol: &tcp, Destination: CalicoEntityRule{Ports: []CalicoPort{"80", "8080:8090"}}}
	difftest.Want(t, "rule", want, rule)
}

// Of what cannot be read as a whole the place and the subject are read. A selector that is no text must not become an
// empty one, which selects all.
func TestCalicoSalvage(t *testing.T) {
	order, first := 7.0, math.Inf(-1)
	for text, want := range map[string]CalicoGlobalNetworkPolicySpec{
		`{"spec":{"tier":"a","order":7,"selector":"has(x)","namespaceSelector":"has(y)","serviceAccountSelector":"has(z)","types":["Egress"],` +
			`"preDNAT":true,"ingress":7}}`: {
			CalicoPolicySpec: CalicoPolicySpec{Tier: "a", Order: &order, Selector: "has(x)", ServiceAccountSelector: "has(z)",
				Types: []string{"Egress"}},
			NamespaceSelector: "has(y)", PreDNAT: true,
		},
		`{"spec":{"order":"7","selector":["x"],"namespaceSelector":1,"serviceAccountSelector":{},"types":7,"doNotTrack":7}}`: {
			CalicoPolicySpec:  CalicoPolicySpec{Order: &first, Selector: `["x"]`, ServiceAccountSelector: "{}"},
			NamespaceSelector: "1",
		},
		`{"spec":{"order":null,"selector":null,"ingress":[{"action":1}]}}`: {},
		`{"spec":7}`: {CalicoPolicySpec: CalicoPolicySpec{Selector: "7"}},
	} {
		p := CalicoGlobalNetworkPolicy{}
		cause := json.Unmarshal([]byte(text), &p)
		if cause == nil {
			t.Fatalf("%s can be read", text)
		}
		p.Salvage([]byte(text), cause)
		want.Unreadable = cause.Error()
		difftest.Want(t, text, want, p.Spec, cmpopts.EquateEmpty())
		n := CalicoNetworkPolicy{}
		n.Salvage([]byte(text), cause)
		difftest.Want(t, fmt.Sprintf("NetworkPolicy %s", text), want.CalicoPolicySpec, n.Spec.CalicoPolicySpec)
	}
}
