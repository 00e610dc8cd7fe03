package rights

import (
	"flag"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

func init() {
	flag.StringVar(&labtest.Kubernetes, "kubernetes", "",
		"minor release of the API servers, of those that lab/versions has; empty is the lab's own")
}

// oldestFenced is the first release with IP address functions in CEL.
var oldestFenced = version.MajorMinor(1, 31)

// release returns the release of the API server.
func release(t testing.TB, admin *rest.Config) *version.Version {
	t.Helper()
	info, err := newUser(t, admin).core.Discovery().ServerVersion()
	errtest.Must(t, err)
	v, err := version.ParseGeneric(info.GitVersion)
	errtest.Must(t, err)
	return v
}

// wantRelease fails the test unless the API server has the release of -kubernetes.
func wantRelease(t testing.TB, admin *rest.Config) {
	t.Helper()
	if v := release(t, admin); labtest.Kubernetes != "" && v.WithPatch(0).String() != labtest.Kubernetes+".0" {
		t.Fatalf("the API server is %s, want %s (-kubernetes)", v, labtest.Kubernetes)
	}
}

// TestPoliciesOfRelease: the API server accepts each of the chart's policies, from the first release for which the
// chart renders them; the release before rejects some, and gets none.
func TestPoliciesOfRelease(t *testing.T) {
	cfg := labtest.RESTConfig(t)
	wantRelease(t, cfg)
	fenced := release(t, cfg).AtLeast(oldestFenced)
	if got := len(fences(labtest.Chart(t))) > 0; got != fenced {
		t.Errorf("the chart makes policies: %v, want %v", got, fenced)
	}
	kind := newUser(t, cfg).any.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1",
		Resource: "validatingadmissionpolicies"})
	var refusals []string
	for _, obj := range labtest.Chart(t, "--kube-version", oldestFenced.String()+".0") {
		if obj.GetKind() != "ValidatingAdmissionPolicy" {
			continue
		}
		text, err := obj.MarshalJSON()
		errtest.Must(t, err)
		if strings.Contains(string(text), "containsCIDR") {
			t.Errorf("%s uses containsCIDR, which is wrong in Kubernetes 1.31: use containsIP", obj.GetName())
		}
		obj.SetName("dry-" + obj.GetName())
		_, err = kind.Create(t.Context(), obj, metav1.CreateOptions{DryRun: dryRun})
		switch {
		case err == nil:
		case apierrors.IsInvalid(err) && strings.Contains(err.Error(), "undeclared reference"):
			refusals = append(refusals, obj.GetName())
		default:
			t.Errorf("%s: %v", obj.GetName(), err)
		}
	}
	if (len(refusals) == 0) != fenced {
		t.Errorf("the API server does not compile %q; the chart makes policies for it: %v", refusals, fenced)
	}
}
