package rights

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// plain is a policy as an operator writes it, and the directions and the tier that are stored of it.
type plain struct {
	kind, spec string
	labels     map[string]string
	types      string
	tier       string
}

var plainPolicies = []plain{
	{"GlobalNetworkPolicy", `{}`, nil, "Ingress", "default"},
	{"GlobalNetworkPolicy", `{"ingress":[{"action":"Allow"}]}`, map[string]string{"own": "1"}, "Ingress", "default"},
	{"GlobalNetworkPolicy", `{"egress":[{"action":"Allow"}]}`, nil, "Egress", "default"},
	{"GlobalNetworkPolicy", `{"ingress":[],"egress":[]}`, nil, "Ingress Egress", "default"},
	{"GlobalNetworkPolicy", `{"egress":[]}`, nil, "Egress", "default"},
	{"GlobalNetworkPolicy", `{"types":["Egress"],"ingress":[{"action":"Deny"}]}`, nil, "Egress", "default"},
	{"GlobalNetworkPolicy", `{"tier":"platform"}`, map[string]string{tierLabel: "other"}, "Ingress", "platform"},
	{"NetworkPolicy", `{"egress":[{"action":"Deny"}],"ingress":[{"action":"Deny"}]}`, nil, "Ingress Egress", "default"},
	{"NetworkPolicy", `{"tier":"","egress":[{"action":"Deny"}]}`, nil, "Egress", "default"},
	{"StagedGlobalNetworkPolicy", `{"egress":[{"action":"Deny"}]}`, nil, "Egress", "default"},
	{"StagedNetworkPolicy", `{"tier":"platform"}`, nil, "Ingress", "platform"},
	{"StagedKubernetesNetworkPolicy", `{"podSelector":{},"egress":[{}]}`, nil, "Ingress Egress", ""},
	{"StagedKubernetesNetworkPolicy", `{"podSelector":{}}`, nil, "Ingress", ""},
	{"StagedKubernetesNetworkPolicy", `{"podSelector":{},"policyTypes":["Egress"]}`, nil, "Egress", ""},
}

const tierLabel = "projectcalico.org/tier"

// object is the policy under a name.
func (p *plain) object(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	obj := object(t, `{apiVersion: projectcalico.org/v3, kind: %s, metadata: {name: %s}, spec: %s}`, p.kind, name, p.spec)
	obj.SetLabels(p.labels)
	if !strings.Contains(p.kind, "Global") {
		obj.SetNamespace("default")
	}
	return obj
}

// kindOf has the requests about policies, and admission policies, by the kind of an object.
func kindOf(u *user, obj *unstructured.Unstructured) dynamic.ResourceInterface {
	plural := strings.TrimSuffix(strings.ToLower(obj.GetKind()), "y") + "ies"
	if strings.HasSuffix(obj.GetKind(), "Binding") {
		plural = strings.ToLower(obj.GetKind()) + "s"
	}
	of := u.any.Resource(obj.GroupVersionKind().GroupVersion().WithResource(plural))
	if obj.GetNamespace() != "" {
		return of.Namespace(obj.GetNamespace())
	}
	return of
}

// stored returns an error unless an object has the directions, tier and labels that are wanted.
func (p *plain) stored(obj *unstructured.Unstructured) error {
	types, _, _ := unstructured.NestedStringSlice(obj.Object, "spec", "types")
	if p.tier == "" {
		types, _, _ = unstructured.NestedStringSlice(obj.Object, "spec", "policyTypes")
	}
	tier, _, _ := unstructured.NestedString(obj.Object, "spec", "tier")
	labels := obj.GetLabels()
	if got := strings.Join(types, " "); got != p.types || tier != p.tier || labels[tierLabel] != p.tier || labels["own"] != p.labels["own"] {
		return fmt.Errorf("%s %s: types %q, tier %q, labels %v, want %q, %q", p.kind, p.spec, got, tier, labels, p.types, p.tier)
	}
	return nil
}

// applies returns the directions that a node enforces of a stored policy that is not staged.
func applies(t *testing.T, obj *unstructured.Unstructured) string {
	t.Helper()
	data, err := obj.MarshalJSON()
	errtest.Must(t, err)
	var p policy.Policy
	switch obj.GetKind() {
	case "NetworkPolicy":
		var o api.CalicoNetworkPolicy
		errtest.Must(t, json.Unmarshal(data, &o))
		p, err = policy.FromCalicoNetworkPolicy(&o, nil)
	case "GlobalNetworkPolicy":
		var o api.CalicoGlobalNetworkPolicy
		errtest.Must(t, json.Unmarshal(data, &o))
		p, err = policy.FromCalicoGlobalNetworkPolicy(&o, nil)
	}
	errtest.Must(t, err)
	var names []string
	for d, name := range [2]string{policy.Ingress: "Ingress", policy.Egress: "Egress"} {
		if p.Applies[d] {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// A policy of projectcalico.org/v3 that names neither directions nor a tier is stored, and enforced, as with Calico's
// admission policies; one that was stored before the chart's are there counts for both directions until it is written.
func testPolicyDefaults(t *testing.T, server *labtest.Server) {
	admin := newUser(t, restConfig(t, server))
	create := func(obj *unstructured.Unstructured, dry ...string) (*unstructured.Unstructured, error) {
		return kindOf(admin, obj).Create(t.Context(), obj, metav1.CreateOptions{DryRun: dry, FieldValidation: "Strict"})
	}
	earlier := &plain{kind: "NetworkPolicy", spec: `{"ingress":[{"action":"Allow"}]}`, types: "Ingress", tier: "default"}
	before, err := create(earlier.object(t, "earlier"))
	errtest.Must(t, err)
	if got := applies(t, before); got != "Ingress Egress" {
		t.Errorf("without types a policy is for %q, want both directions", got)
	}
	for _, obj := range labtest.Chart(t) {
		if strings.HasPrefix(obj.GetKind(), "MutatingAdmissionPolicy") {
			_, err := create(obj)
			errtest.Must(t, err)
		}
	}
	meshtest.Eventually(t, func() error { // until admission has observed it
		made, err := create(plainPolicies[0].object(t, "probe"), metav1.DryRunAll)
		if err != nil {
			return err
		}
		return plainPolicies[0].stored(made)
	})
	for i := range plainPolicies {
		p := &plainPolicies[i]
		made, err := create(p.object(t, fmt.Sprintf("p%d", i)))
		errtest.Must(t, err)
		errtest.Must(t, p.stored(made))
		if got := applies(t, made); !strings.HasPrefix(p.kind, "Staged") && got != p.types {
			t.Errorf("%s %s is for %q, want %q", p.kind, p.spec, got, p.types)
		}
	}
	before.SetAnnotations(map[string]string{"touched": "yes"})
	after, err := kindOf(admin, before).Update(t.Context(), before, metav1.UpdateOptions{})
	errtest.Must(t, err)
	errtest.Must(t, earlier.stored(after))

	// What depends on it: policies of a tier are found by field and by label.
	of := admin.any.Resource(schema.GroupVersionResource{Group: "projectcalico.org", Version: "v3", Resource: "globalnetworkpolicies"})
	for _, by := range []metav1.ListOptions{{FieldSelector: "spec.tier=platform"}, {LabelSelector: tierLabel + "=platform"}} {
		list, err := of.List(t.Context(), by)
		if errtest.Must(t, err); len(list.Items) != 1 || list.Items[0].GetName() != "p6" {
			t.Errorf("%v finds %d policies, want p6", by, len(list.Items))
		}
	}
	invalid := object(t, `{apiVersion: projectcalico.org/v3, kind: GlobalNetworkPolicy, metadata: {name: none}}`)
	if _, err := create(invalid); err == nil || !strings.Contains(err.Error(), "spec: Required value") {
		t.Errorf("a policy without a spec: %v, want it refused for that", err)
	}
	testBuiltinTiers(t, server, admin)
}
