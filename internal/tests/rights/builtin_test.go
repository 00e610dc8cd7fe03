package rights

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

const builtinTiers = "tortie-builtin-tiers"

// tierSpecs are tiers, of which all but the last one are built in.
var tierSpecs = map[string]string{
	"default": "{order: 1000000, defaultAction: Deny}", "kube-admin": "{order: 1000, defaultAction: Pass}",
	"kube-baseline": "{order: 10000000, defaultAction: Pass}", "platform": "{order: 7}",
}

// A built-in tier of projectcalico.org/v3 cannot be deleted while the objects of that group are in use, except by a
// move to the other group, and by a deletion of the definitions. Tiers of crd.projectcalico.org/v1 are not concerned.
func testBuiltinTiers(t *testing.T, server *labtest.Server, admin *user) {
	server.Define(t, groups.V1)
	tiers := map[groups.Group]dynamic.ResourceInterface{}
	for _, in := range groups.All {
		tiers[in] = admin.any.Resource(labtest.KindIn(in, "tiers"))
		for name, spec := range tierSpecs {
			obj := object(t, `{apiVersion: %s, kind: Tier, metadata: {name: %s}, spec: %s}`, in, name, spec)
			_, err := tiers[in].Create(t.Context(), obj, metav1.CreateOptions{})
			errtest.Must(t, err)
		}
	}
	var chart []*unstructured.Unstructured
	for _, obj := range labtest.Chart(t) {
		if obj.GetName() == builtinTiers {
			chart = append(chart, obj)
		}
	}
	if len(chart) != 2 {
		t.Fatalf("%d objects of the chart, want the policy and its binding", len(chart))
	}
	labtest.FenceWith(t, restConfig(t, server), chart)
	dry := metav1.DeleteOptions{DryRun: dryRun}
	// refuses wants this answer to deletions of v3 tiers, once admission has observed the ClusterInformation.
	refuses := func(when string, refused bool) {
		t.Helper()
		answer := func(name string, err error) error {
			if apierrors.IsForbidden(err) != (refused && name != "platform") || err != nil && !strings.Contains(err.Error(), "Tier "+name) {
				return fmt.Errorf("%s: tier %s: %w", when, name, err)
			}
			return nil
		}
		waittest.For(t, time.Minute, func() error { return answer("default", tiers[groups.V3].Delete(t.Context(), "default", dry)) })
		for name := range tierSpecs {
			if err := answer(name, tiers[groups.V3].Delete(t.Context(), name, dry)); err != nil {
				t.Error(err)
			}
			byName := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
			if err := answer(name, tiers[groups.V3].DeleteCollection(t.Context(), dry, byName)); err != nil {
				t.Errorf("with others: %v", err)
			}
			if err := tiers[groups.V1].Delete(t.Context(), name, dry); err != nil {
				t.Errorf("%s: tier %s of %s: %v", when, name, groups.V1, err)
			}
		}
	}
	info := admin.any.Resource(labtest.KindIn(groups.V3, "clusterinformations"))
	says := func(ready bool) {
		patch := fmt.Appendf(nil, `{"spec":{"datastoreReady":%t}}`, ready)
		_, err := info.Patch(t.Context(), "default", types.MergePatchType, patch, metav1.PatchOptions{})
		errtest.Must(t, err)
	}
	refuses("without a ClusterInformation", false)
	obj := object(t, `{apiVersion: projectcalico.org/v3, kind: ClusterInformation, metadata: {name: default}, spec: {datastoreReady: true}}`)
	_, err := info.Create(t.Context(), obj, metav1.CreateOptions{})
	errtest.Must(t, err)
	refuses("in use", true)
	says(false)
	refuses("locked", false)
	says(true)
	refuses("in use again", true)

	definition := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	errtest.Must(t, admin.any.Resource(definition).Delete(t.Context(), "tiers.projectcalico.org", metav1.DeleteOptions{}))
	waittest.For(t, time.Minute, func() error {
		if _, err := tiers[groups.V3].Get(t.Context(), "default", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("a tier whose definition is deleted: %w", err)
		}
		return nil
	})
}
