package definitions_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

var plurals = map[string]string{
	"Tier": "tiers", "NetworkPolicy": "networkpolicies", "GlobalNetworkPolicy": "globalnetworkpolicies", "NetworkSet": "networksets",
	"GlobalNetworkSet": "globalnetworksets", "HostEndpoint": "hostendpoints", "StagedNetworkPolicy": "stagednetworkpolicies",
	"StagedGlobalNetworkPolicy": "stagedglobalnetworkpolicies", "StagedKubernetesNetworkPolicy": "stagedkubernetesnetworkpolicies",
}

// TestPolicyDefinitions has a real API server with the chart's definitions of Calico's policy kinds. It accepts what
// Calico's clients store, without losing a field; it refuses what they refuse, with the field and the remedy.
func TestPolicyDefinitions(t *testing.T) {
	c := newCluster(t)
	c.apply(t, read(t, current))
	// a number or text, as ports
	c.create(t, "felixconfigurations", "{kind: FelixConfiguration, metadata: {name: default}, spec: {natPortRange: 5000}}")
	kinds := map[string]bool{}
	for _, obj := range stored(t) {
		kinds[obj.GetKind()] = true
		if err := c.keeps(t, obj); err != nil {
			t.Errorf("%s %s: %v", obj.GetKind(), obj.GetName(), err)
		}
	}
	for kind := range plurals {
		if !kinds[kind] {
			t.Errorf("the corpus has no %s", kind)
		}
	}
	for i, r := range refused {
		obj := fromYAML(t,
			fmt.Sprintf("{apiVersion: crd.projectcalico.org/v1, kind: %s, metadata: {name: r%d, namespace: default}, spec: %s}", r.kind, i, r.spec))
		if err := c.keeps(t, obj); !errtest.Names(err, r.want) {
			t.Errorf("%s with %s: %v, want an error with %q", r.kind, r.spec, err, r.want)
		}
	}
	for text, want := range map[string]string{
		"{kind: Tier, metadata: {name: a.b}, spec: {}}":                                              "name dot",
		"{kind: Tier, metadata: {name: default}, spec: {order: 5}}":                                  "spec.order 1000000",
		"{kind: Tier, metadata: {name: default}, spec: {order: 1000000, defaultAction: Pass}}":       "spec.defaultAction Deny",
		"{kind: NetworkPolicy, metadata: {name: typing, namespace: default}, spec: {selecter: 'a'}}": `unknown "spec.selecter"`,
	} {
		obj := fromYAML(t, "{apiVersion: crd.projectcalico.org/v1, "+text[1:])
		if err := c.keeps(t, obj); !errtest.Names(err, want) {
			t.Errorf("%s: %v, want an error with %q", text, err, want)
		}
	}
}

// stored returns the corpus.
func stored(t *testing.T) (all []*unstructured.Unstructured) {
	t.Helper()
	text, err := os.ReadFile("testdata/calico-policies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range strings.Split(string(text), "\n---\n")[1:] {
		all = append(all, fromYAML(t, one))
	}
	return all
}

func fromYAML(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	json, err := yaml.YAMLToJSON([]byte(text))
	if err == nil {
		err = obj.UnmarshalJSON(json)
	}
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return obj
}

// keeps creates an object, and fails the test if the API server keeps another one.
func (c *cluster) keeps(t *testing.T, obj *unstructured.Unstructured) error {
	t.Helper()
	kind := c.client.Resource(gvr(plurals[obj.GetKind()]))
	client := kind.Namespace(obj.GetNamespace())
	if obj.GetKind() == "Tier" || strings.Contains(obj.GetKind(), "Global") || obj.GetKind() == "HostEndpoint" {
		obj.SetNamespace("")
		client = kind
	}
	made, err := client.Create(t.Context(), obj, metav1.CreateOptions{FieldValidation: "Strict"})
	if err != nil {
		return err
	}
	want := obj.DeepCopy()
	if _, policy := plurals["Staged"+strings.TrimPrefix(obj.GetKind(), "Staged")]; policy && !strings.Contains(obj.GetKind(), "Kubernetes") {
		if _, found, _ := unstructured.NestedString(want.Object, "spec", "tier"); !found {
			set(t, want.Object, "default", "spec", "tier")
		}
	}
	if d := cmp.Diff(want.Object["spec"], made.Object["spec"]); d != "" {
		t.Errorf("%s %s (-want +got):\n%s", obj.GetKind(), obj.GetName(), d)
	}
	return nil
}

const (
	anyNP  = "NetworkPolicy"
	anyGNP = "GlobalNetworkPolicy"
)

// refused are specs that Calico's clients refuse, too, and parts of the error: the field, often the value, and the
// remedy.
var refused = []struct{ kind, spec, want string }{
	{anyNP, "{types: [ingress]}", `spec.types[0] "ingress" "Ingress" "Egress"`},
	{anyNP, "{order: first}", "spec.order number"},
	{anyNP, "{selector: 'global()'}", "spec.selector has() all()"},
	{anyNP, "{serviceAccountSelector: 'global()'}", "spec.serviceAccountSelector has() all()"},
	{anyGNP, "{namespaceSelector: 'global()'}", "spec.namespaceSelector has() all()"},
	{anyNP, "{ingress: [{}]}", "spec.ingress[0].action Required"},
	{anyNP, "{ingress: [{action: Accept}]}", `spec.ingress[0].action "Accept" "Allow" "Deny" "Log" "Pass"`},
	{anyNP, "{ingress: [{action: Allow, ipVersion: 5}]}", `spec.ingress[0].ipVersion 5 "4" "6"`},
	{anyNP, "{ingress: [{action: Allow, protocol: TPC}]}", `spec.ingress[0].protocol "TPC"`},
	{anyNP, "{ingress: [{action: Allow, notProtocol: 256}]}", `spec.ingress[0].notProtocol 256 255`},
	{anyNP, "{ingress: [{action: Allow, destination: {ports: [80]}}]}", `spec.ingress[0].protocol ports TCP UDP SCTP`},
	{anyNP, "{ingress: [{action: Allow, source: {notPorts: [80]}}]}", `spec.ingress[0].protocol notPorts TCP UDP SCTP`},
	{anyNP, "{egress: [{action: Allow, protocol: ICMP, destination: {ports: [http]}}]}", `spec.egress[0].protocol ports TCP UDP SCTP`},
	{anyNP, "{egress: [{action: Allow, protocol: TCP, destination: {ports: [70000]}}]}", `spec.egress[0].destination.ports[0] 70000 65535`},
	{anyNP,
		"{egress: [{action: Allow, protocol: TCP, destination: {ports: ['80-90']}}, {action: Allow, protocol: TCP, source: {ports: ['a b']}}]}",
		`spec.egress[1].source.ports[0] "a b"`},
	{anyNP, "{ingress: [{action: Allow, icmp: {type: 8}}]}", "spec.ingress[0].icmp protocol ICMP ICMPv6"},
	{anyNP, "{ingress: [{action: Allow, protocol: ICMP, icmp: {code: 0}}]}", "spec.ingress[0].icmp.code type"},
	{anyNP, "{ingress: [{action: Allow, protocol: ICMP, icmp: {type: 255}}]}", "spec.ingress[0].icmp.type 255 254"},
	{anyNP, "{ingress: [{action: Allow, protocol: ICMP, ipVersion: 6}]}", "spec.ingress[0].ipVersion ICMPv6"},
	{anyNP, "{ingress: [{action: Allow, notProtocol: 58, ipVersion: 4}]}", "spec.ingress[0].ipVersion notProtocol ICMP"},
	{anyNP, "{ingress: [{action: Allow, protocol: icmpv6, ipVersion: 4}]}", "spec.ingress[0].ipVersion ICMPv6"},
	{anyNP, "{ingress: [{action: Allow, notProtocol: icmp, ipVersion: 6}]}", "spec.ingress[0].ipVersion ICMP"},
	{anyNP, "{ingress: [{action: Deny, http: {methods: [GET]}}]}", "spec.ingress[0].http Allow"},
	{anyNP, "{ingress: [{action: Allow, protocol: UDP, http: {methods: [GET]}}]}", "spec.ingress[0].http TCP"},
	{anyNP, "{egress: [{action: Allow, http: {methods: [GET]}}]}", "spec.egress http ingress"},
	{anyNP, "{ingress: [{action: Allow, source: {nets: [10.0.0.0/8, example.com]}}]}", `spec.ingress[0].source.nets[1] "example.com"`},
	{anyNP, "{ingress: [{action: Allow, source: {notNets: ['*']}}]}", `spec.ingress[0].source.notNets[0] "*"`},
	{anyNP, "{ingress: [{action: Allow, source: {services: {namespace: a}}}]}", "spec.ingress[0].source.services name"},
	{anyNP, "{ingress: [{action: Allow, source: {services: {name: a}, selector: 'all()'}}]}", "spec.ingress[0].source.services selector"},
	{anyNP, "{ingress: [{action: Allow, source: {services: {name: a}, notSelector: 'all()'}}]}",
		"spec.ingress[0].source.services notSelector"},
	{anyNP, "{ingress: [{action: Allow, source: {services: {name: a}, namespaceSelector: 'all()'}}]}",
		"spec.ingress[0].source.services namespaceSelector"},
	{anyNP, "{ingress: [{action: Allow, source: {services: {name: a}, nets: [10.0.0.0/8]}}]}", "spec.ingress[0].source.services nets"},
	{anyNP, "{ingress: [{action: Allow, source: {services: {name: a}, notNets: [10.0.0.0/8]}}]}", "spec.ingress[0].source.services notNets"},
	{anyNP, "{ingress: [{action: Allow, source: {services: {name: a}, serviceAccounts: {names: [b]}}}]}",
		"spec.ingress[0].source.services serviceAccounts"},
	{anyNP, "{egress: [{action: Allow, protocol: TCP, destination: {services: {name: a}, ports: [80]}}]}",
		"spec.egress[0].destination.services ports"},
	{anyNP, "{ingress: [{action: Allow, destination: {services: {name: a}}}]}", "spec.ingress destination.services egress"},
	{anyNP, "{egress: [{action: Allow, source: {services: {name: a}}}]}", "spec.egress source.services ingress"},
	{anyGNP, "{egress: [{action: Allow, destination: {services: {name: a}}}]}", "spec.egress destination.services namespace"},
	{anyGNP, "{ingress: [{action: Allow, source: {services: {name: a}}}]}", "spec.ingress source.services namespace"},
	{anyGNP, "{doNotTrack: true, preDNAT: true, applyOnForward: true}", "spec.preDNAT doNotTrack"},
	{anyGNP, "{preDNAT: true, applyOnForward: true, egress: [{action: Deny}]}", "spec.egress preDNAT"},
	{anyGNP, "{preDNAT: true, applyOnForward: true, types: [Egress]}", "spec.types preDNAT Ingress"},
	{anyGNP, "{doNotTrack: true}", "spec.applyOnForward true"},
	{"Tier", "{defaultAction: Allow}", `spec.defaultAction "Allow" "Deny" "Pass"`},
	{"NetworkSet", "{nets: [example.com]}", `spec.nets[0] "example.com"`},
	{"GlobalNetworkSet", "{nets: ['10.0.0.0/8 ']}", `spec.nets[0] "10.0.0.0/8 "`},
	{"HostEndpoint", "{interfaceName: eth0}", "spec node"},
	{"HostEndpoint", "{node: n1}", "spec interfaceName expectedIPs"},
	{"HostEndpoint", "{node: n1, expectedIPs: [10.0.0.0/8]}", `spec.expectedIPs[0] "10.0.0.0/8"`},
	{"HostEndpoint", "{node: n1, interfaceName: 'eth0 '}", `spec.interfaceName "eth0 "`},
	{"HostEndpoint", "{node: n1, interfaceName: eth0, ports: [{name: a, protocol: TCP, port: 70000}]}", "spec.ports[0].port 70000 65535"},
	{"StagedNetworkPolicy", "{stagedAction: Add}", `spec.stagedAction "Add" "Set" "Delete" "Learn" "Ignore"`},
	{"StagedKubernetesNetworkPolicy", "{stagedAction: Add}", `spec.stagedAction "Add"`},
}
