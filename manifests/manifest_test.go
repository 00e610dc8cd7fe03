// Package manifests checks tortie.yaml, and with it the chart that it is made from, on a real API server.
package manifests

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// objects reads the manifest.
func objects(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	return objectsOf(t, "tortie.yaml")
}

func objectsOf(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(file)
	errtest.Must(t, err)
	return decode(t, string(text))
}

// apply creates objects as `kubectl apply --server-side` with strict validation does, or only asks whether that could
// be done. The priority class and the namespace exist in every cluster, and so here.
func apply(t *testing.T, cfg *rest.Config, objects []*unstructured.Unstructured, dryRun ...string) {
	t.Helper()
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = 100, 200
	client, err := dynamic.NewForConfig(cfg)
	errtest.Must(t, err)
	clientset, err := kubernetes.NewForConfig(cfg)
	errtest.Must(t, err)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(clientset.Discovery()))
	for _, obj := range objects {
		gvk := obj.GroupVersionKind()
		mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
		if err != nil {
			t.Fatalf("%s %s: %v", gvk.Kind, obj.GetName(), err)
		}
		kind := client.Resource(mapping.Resource)
		var where dynamic.ResourceInterface = kind
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			where = kind.Namespace(obj.GetNamespace())
		}
		text, err := obj.MarshalJSON()
		errtest.Must(t, err)
		force := true
		_, err = where.Patch(t.Context(), obj.GetName(), "application/apply-patch+yaml", text,
			metav1.PatchOptions{FieldManager: "test", FieldValidation: "Strict", Force: &force, DryRun: dryRun})
		if err != nil {
			t.Errorf("%s %s: %v", gvk.Kind, obj.GetName(), err)
		}
	}
}

// operatorKinds are kinds of the Prometheus operator, by plural. The API server gets definitions without a schema for
// them.
var operatorKinds = map[string]string{"PodMonitor": "podmonitors", "ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"}

func operatorDefinitions(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	var text strings.Builder
	for kind, plural := range operatorKinds {
		fmt.Fprintf(&text, `---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]s.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: %[1]s, plural: %[2]s}
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, kind, plural)
	}
	return decode(t, text.String())
}

// TestDryRunOnARealServer asks the API server about every object that the chart can make, hooks and tests among them.
func TestDryRunOnARealServer(t *testing.T) {
	cfg := labtest.RESTConfig(t)
	apply(t, cfg, operatorDefinitions(t))
	sets := valueSets(t)
	sets["default"] = chart + "/values.yaml"
	for _, dir := range overlays(t) {
		sets[filepath.Base(dir)] = filepath.Join(dir, "values.yaml")
	}
	for name, values := range sets {
		t.Run(name, func(t *testing.T) {
			apply(t, cfg, decode(t, helm(t, append(inGroup(t), "--values", values)...)), metav1.DryRunAll)
		})
	}
}

// inGroup returns the flags of Helm for a chart of the group of the servers: without a cluster it is for
// crd.projectcalico.org/v1.
func inGroup(t *testing.T) []string {
	t.Helper()
	if in := labtest.Group(t); in != groups.V1 {
		return []string{"--set", "apiGroup=" + path.Base(string(in))}
	}
	return nil
}

// The API server accepts every object, without a field that it does not know; and its authorizer gives the two service
// accounts what they need, and no more where more would hurt.
func TestManifestOnARealServer(t *testing.T) {
	cfg := labtest.RESTConfig(t)
	apply(t, cfg, objects(t))
	client, err := kubernetes.NewForConfig(cfg)
	errtest.Must(t, err)
	const calico = "crd.projectcalico.org"
	cases := []struct {
		user, verb, group, resource, sub, name string
		allowed                                bool
	}{
		{"tortie-node", "watch", "", "nodes", "", "", true},
		{"tortie-node", "patch", "", "nodes", "status", "node1", true},
		{"tortie-node", "create", calico, "ippools", "", "", false},
		{"tortie-kube-controllers", "create", calico, "ippools", "", "", true},
		{"tortie-node", "watch", calico, "blockaffinities", "", "", true},
		{"tortie-node", "watch", "", "namespaces", "", "", true},
		{"tortie-node", "patch", "", "pods", "status", "web", true},
		{"tortie-node", "update", calico, "ipamblocks", "", "", true},
		{"tortie-node", "delete", calico, "ipamhandles", "", "", true},
		{"tortie-node", "watch", calico, "felixconfigurations", "", "", true},
		{"tortie-node", "create", calico, "felixconfigurations", "", "", true},
		{"tortie-node", "update", calico, "felixconfigurations", "", "default", false},
		{"tortie-node", "get", "", "configmaps", "", "kubeadm-config", true},
		{"tortie-node", "get", "", "configmaps", "", "other", false},
		{"tortie-node", "create", "", "default/events", "", "", true},
		{"tortie-node", "create", "", "events", "", "", false},
		{"tortie-node", "delete", "", "events", "", "", false},
		{"tortie-node", "get", "", "pods", "", "web", false},
		{"tortie-node", "watch", "", "pods", "", "", true},
		{"tortie-node", "update", "", "pods", "", "web", false},
		{"tortie-node", "watch", "networking.k8s.io", "networkpolicies", "", "", true},
		{"tortie-node", "update", "networking.k8s.io", "networkpolicies", "", "web", false},
		{"tortie-node", "watch", "policy.networking.k8s.io", "clusternetworkpolicies", "", "", true},
		{"tortie-node", "update", "policy.networking.k8s.io", "clusternetworkpolicies", "", "web", false},
		{"tortie-node", "watch", calico, "globalnetworkpolicies", "", "", true},
		{"tortie-node", "update", calico, "globalnetworkpolicies", "", "web", false},
		{"tortie-node", "watch", "", "serviceaccounts", "", "", true},
		{"tortie-node", "update", calico, "ipamconfigs", "", "default", false},
		{"tortie-node", "watch", calico, "ipamblocks", "", "", false},
		{"tortie-node", "create", "", "serviceaccounts", "token", "tortie-cni", true},
		{"tortie-node", "create", "", "serviceaccounts", "token", "default", false},
		{"tortie-node", "patch", "", "nodes", "", "node1", false},
		{"tortie-node", "get", "", "secrets", "", "", false},
		{"tortie-node", "delete", calico, "ippools", "", "", false},
		{"tortie-node", "update", calico, "ippools", "", "", false},
		{"tortie-cni", "get", "", "pods", "", "web", true},
		{"tortie-cni", "patch", "", "pods", "status", "web", true},
		{"tortie-cni", "update", calico, "ipamblocks", "", "", true},
		{"tortie-cni", "delete", calico, "ipamhandles", "", "", true},
		{"tortie-cni", "get", calico, "clusterinformations", "", "default", true},
		{"tortie-cni", "list", calico, "ipamblocks", "", "", true},
		{"tortie-cni", "list", calico, "ippools", "", "", true},
		{"tortie-cni", "list", calico, "ipamhandles", "", "", true},
		{"tortie-cni", "watch", calico, "ipamhandles", "", "", false},
		{"tortie-cni", "list", "", "pods", "", "", false},
		{"tortie-cni", "patch", "", "pods", "", "web", false},
		{"tortie-cni", "get", "", "secrets", "", "", false},
		{"tortie-cni", "create", calico, "ippools", "", "", false},
		{"tortie-cni", "patch", "", "nodes", "status", "", false},
		{"tortie-cni", "create", "", "serviceaccounts", "token", "tortie-cni", false},
	}
	for _, c := range cases {
		name := strings.Join([]string{c.user, c.verb, c.resource, c.sub, c.name}, " ")
		t.Run(name, func(t *testing.T) {
			// In the release's namespace, unless another one stands before the resource.
			namespace, resource, found := strings.Cut(c.resource, "/")
			if !found {
				namespace, resource = "kube-system", c.resource
			}
			group := c.group
			if group == calico {
				of := labtest.KindOf(t, resource)
				group, resource = of.Group, of.Resource
			}
			review := &authv1.SubjectAccessReview{Spec: authv1.SubjectAccessReviewSpec{
				User: "system:serviceaccount:kube-system:" + c.user,
				ResourceAttributes: &authv1.ResourceAttributes{
					Namespace: namespace, Verb: c.verb, Group: group, Resource: resource, Subresource: c.sub, Name: c.name,
				},
			}}
			if got := allowed(t, client, review, c.allowed); got != c.allowed {
				t.Errorf("allowed is %v, want %v", got, c.allowed)
			}
		})
	}
}

// allowed asks the authorizer. It learns of new roles a moment after they were created, so a missing right is waited
// for.
func allowed(t *testing.T, client *kubernetes.Clientset, review *authv1.SubjectAccessReview, wait bool) bool {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(50 * time.Millisecond) {
		answer, err := client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		errtest.Must(t, err)
		if answer.Status.Allowed || !wait || time.Now().After(deadline) {
			return answer.Status.Allowed
		}
	}
}

// Metadata of a Helm release, which a manifest for `kubectl apply` must not contain.
func TestManifestIsNotHelms(t *testing.T) {
	for _, obj := range append(objects(t), objectsOf(t, "uninstall.yaml")...) {
		if len(obj.GetAnnotations()) > 0 {
			t.Errorf("%s %s has annotations: %v", obj.GetKind(), obj.GetName(), obj.GetAnnotations())
		}
		for key, value := range obj.GetLabels() {
			if strings.HasPrefix(key, "helm.sh/") || value == "Helm" {
				t.Errorf("%s %s has the label %s=%s", obj.GetKind(), obj.GetName(), key, value)
			}
		}
	}
}

// The agent must not be privileged, and its rights are those that the README states.
func TestRightsOfThePods(t *testing.T) {
	for _, obj := range objects(t) {
		if obj.GetKind() != "DaemonSet" {
			continue
		}
		spec, _, _ := unstructured.NestedMap(obj.Object, "spec", "template", "spec")
		if _, found := spec["hostPID"]; found {
			t.Error("the pod sees the host's processes")
		}
		want := map[string]string{"install": "[DAC_OVERRIDE]", "node": "[NET_ADMIN NET_RAW NET_BIND_SERVICE]"}
		for _, list := range []string{"initContainers", "containers"} {
			containers, _, _ := unstructured.NestedSlice(spec, list)
			for _, item := range containers {
				checkContainer(t, item.(map[string]any), want)
			}
		}
		if len(want) > 0 {
			t.Errorf("containers missing: %v", want)
		}
	}
}

func checkContainer(t *testing.T, c map[string]any, want map[string]string) {
	t.Helper()
	name, _ := c["name"].(string)
	added, _, _ := unstructured.NestedStringSlice(c, "securityContext", "capabilities", "add")
	if got := "[" + strings.Join(added, " ") + "]"; got != want[name] {
		t.Errorf("container %s has the capabilities %s, want %s", name, got, want[name])
	}
	delete(want, name)
	dropped, _, _ := unstructured.NestedStringSlice(c, "securityContext", "capabilities", "drop")
	readOnly, _, _ := unstructured.NestedBool(c, "securityContext", "readOnlyRootFilesystem")
	escalates, found, _ := unstructured.NestedBool(c, "securityContext", "allowPrivilegeEscalation")
	privileged, _, _ := unstructured.NestedBool(c, "securityContext", "privileged")
	if len(dropped) != 1 || dropped[0] != "ALL" || !readOnly || escalates || !found || privileged {
		t.Errorf("container %s: %v", name, c["securityContext"])
	}
}
