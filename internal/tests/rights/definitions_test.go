package rights

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/tests/rights/fence"
)

var crds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// define adds to a server the second group's definitions of the kinds that nodes may write, converted from the first's.
func define(t testing.TB, admin *rest.Config) {
	t.Helper()
	u := newUser(t, admin)
	for _, plural := range []string{"blockaffinities", "ipamblocks", "ipamhandles", "ippools", "ipamconfigs", "clusterinformations",
		"felixconfigurations", "caliconodestatuses"} {
		def, err := u.any.Resource(crds).Get(t.Context(), plural+"."+fence.V1, metav1.GetOptions{})
		errtest.Must(t, err)
		made := converted(t, def)
		if _, err = u.any.Resource(crds).Create(t.Context(), made, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			errtest.Must(t, err)
		}
		name, _, _ := unstructured.NestedString(made.Object, "spec", "names", "plural")
		meshtest.Eventually(t, func() error {
			_, err := u.any.Resource(schema.GroupVersionResource{Group: fence.V3, Version: "v3", Resource: name}).
				List(t.Context(), metav1.ListOptions{})
			return err
		})
	}
}

// converted returns the second group's definition of a kind of the first.
func converted(t testing.TB, def *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	spec := def.DeepCopy().Object["spec"].(map[string]any)
	spec["group"] = fence.V3
	names := spec["names"].(map[string]any)
	delete(names, "shortNames")
	if names["kind"] == "IPAMConfig" {
		spec["names"] = map[string]any{"kind": "IPAMConfiguration", "listKind": "IPAMConfigurationList", "plural": "ipamconfigurations",
			"singular": "ipamconfiguration"}
	}
	version := spec["versions"].([]any)[0].(map[string]any)
	version["name"] = "v3"
	switch names["kind"] {
	case "BlockAffinity":
		errtest.Must(t, unstructured.SetNestedMap(version, map[string]any{"type": "boolean", "default": false},
			"schema", "openAPIV3Schema", "properties", "spec", "properties", "deleted"))
	case "CalicoNodeStatus", "IPPool":
		version["subresources"] = map[string]any{"status": map[string]any{}}
	}
	plural := spec["names"].(map[string]any)["plural"].(string)
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": plural + "." + fence.V3},
		"spec": spec,
	}}
}
