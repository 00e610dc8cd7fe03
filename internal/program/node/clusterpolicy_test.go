package node

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/agent/policyview"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

const quarantine = `
apiVersion: policy.networking.k8s.io/%s
kind: ClusterNetworkPolicy
metadata: {name: quarantine}
spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, ingress: [{name: all, action: %s, from: [{namespaces: {}}]}]}
`

// clusterPolicies makes the definition of ClusterNetworkPolicy serve one version, the other, and both. The agent,
// explain and diff support the policies in each of them, whatever version a file of diff has.
func clusterPolicies(t *testing.T, m *machine) {
	t.Helper()
	client := dynamic.NewForConfigOrDie(labtest.RESTConfig(t))
	of := func(group, version, plural string) dynamic.NamespaceableResourceInterface {
		return client.Resource(schema.GroupVersionResource{Group: group, Version: version, Resource: plural})
	}
	definitions := of("apiextensions.k8s.io", "v1", "customresourcedefinitions")
	versions := []string{"v1beta1", "v1alpha2"}
	for _, served := range [][]string{versions[:1], versions[1:], versions} {
		definition := definitionServing(t, served)
		if was, err := definitions.Get(t.Context(), definition.GetName(), metav1.GetOptions{}); err == nil {
			definition.SetResourceVersion(was.GetResourceVersion())
			_, err = definitions.Update(t.Context(), definition, metav1.UpdateOptions{})
			errtest.Must(t, err)
		} else {
			_, err := definitions.Create(t.Context(), definition, metav1.CreateOptions{})
			errtest.Must(t, err)
		}
		kind := of("policy.networking.k8s.io", served[0], "clusternetworkpolicies")
		policy := &unstructured.Unstructured{}
		errtest.Must(t, yaml.Unmarshal(fmt.Appendf(nil, quarantine, served[0], "Deny"), &policy.Object))
		eventually(t, func() error { // the version may not be served yet
			_, err := kind.Create(t.Context(), policy, metav1.CreateOptions{})
			return err
		})
		eventually(t, func() error {
			var x policyview.Explained
			text := m.try("policy", "explain", "-o", "json", "shop/client", "shop/web:80/TCP")
			if err := json.Unmarshal([]byte(text), &x); err != nil || x.Allowed || x.Ingress == nil ||
				x.Ingress.Policy != "ClusterNetworkPolicy quarantine" || x.Ingress.Kernel != "agrees" {
				return fmt.Errorf("%v served: %w\n%s", served, err, text)
			}
			return nil
		})
		difftest.Contains(t, m.node(t, "policy", "shop/web"), "ClusterNetworkPolicy quarantine")
		for _, version := range versions {
			file := filepath.Join(t.TempDir(), version)
			errtest.Must(t, os.WriteFile(file, fmt.Appendf(nil, quarantine, version, "Deny"), 0o600))
			if out := m.node(t, "policy", "diff", "-f", file); strings.Contains(out, "allowed ") || strings.Contains(out, "denied ") {
				t.Errorf("%v served: the policy as it is changes, in a file of %s:\n%s", served, version, out)
			}
			errtest.Must(t, os.WriteFile(file, fmt.Appendf(nil, quarantine, version, "Accept"), 0o600))
			difftest.Contains(t, m.node(t, "policy", "diff", "-f", file), "ClusterNetworkPolicy quarantine: changed",
				"0 lines will be denied", "allowed  shop/client (+4) ", "ingress ClusterNetworkPolicy quarantine")
		}
		errtest.Must(t, kind.Delete(t.Context(), "quarantine", metav1.DeleteOptions{}))
		eventually(t, func() error {
			if out := m.try("policy", "explain", "shop/client", "shop/web:80/TCP"); !strings.Contains(out, "80/TCP: allowed") {
				return fmt.Errorf("%v served: after the policy:\n%s", served, out)
			}
			return nil
		})
	}
}

// definitionServing returns the definition of network-policy-api's release with both versions, serving some of them.
func definitionServing(t *testing.T, served []string) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(labtest.ClusterNetworkPolicyDefinition(t))
	errtest.Must(t, err)
	of := &unstructured.Unstructured{}
	errtest.Must(t, yaml.Unmarshal(text, &of.Object))
	had, _, err := unstructured.NestedSlice(of.Object, "spec", "versions")
	errtest.Must(t, err)
	var all []any
	for _, name := range []string{"v1alpha2", "v1beta1"} {
		version := runtime.DeepCopyJSON(had[len(had)-1].(map[string]any))
		version["name"], version["served"], version["storage"] = name, slices.Contains(served, name), name == served[0]
		all = append(all, version)
	}
	errtest.Must(t, unstructured.SetNestedSlice(of.Object, all, "spec", "versions"))
	return of
}
