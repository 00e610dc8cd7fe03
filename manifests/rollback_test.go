package manifests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// TestHelmAfterAMove runs what docs/apigroups.md says of Helm where a release has a BGPConfiguration and the definitions of
// the group before are deleted: without an upgrade before, Helm fails until they are back; after it, a rollback to an
// earlier revision fails and leaves the release locked, until the revision that it has begun is removed. The first change of
// the BGPConfiguration has to take its fields from the move.
func TestHelmAfterAMove(t *testing.T) {
	tier.All(t)
	server := labtest.NewServerOf(t, groups.V1)
	server.Define(t, groups.V3)
	cfg, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig())
	errtest.Must(t, err)
	objects, err := dynamic.NewForConfig(cfg)
	errtest.Must(t, err)
	of := func(in groups.Group, plural string) dynamic.ResourceInterface {
		return objects.Resource(labtest.KindIn(in, plural))
	}
	inform := func(in groups.Group, ready bool) {
		t.Helper()
		info := &unstructured.Unstructured{Object: map[string]any{"apiVersion": string(in), "kind": "ClusterInformation",
			"metadata": map[string]any{"name": "default"}, "spec": map[string]any{"datastoreReady": ready}}}
		_, err := of(in, "clusterinformations").Apply(t.Context(), "default", info, metav1.ApplyOptions{FieldManager: "test"})
		errtest.Must(t, err)
	}
	k := kubelet{t, server.Kubeconfig(), nil}
	fails := func(words, verb string, args ...string) {
		t.Helper()
		if out, err := k.helm(verb, append(args, "--no-hooks")...); err == nil || !errtest.Has(out, words) {
			t.Fatalf("helm %s: %v, want an error that names %s: %s", verb, err, words, out)
		}
	}
	// asWritten runs a command of the page.
	page, err := os.ReadFile("../docs/apigroups.md")
	errtest.Must(t, err)
	asWritten := func(command string) {
		t.Helper()
		if !strings.Contains(string(page), "kubectl "+command) {
			t.Errorf("docs/apigroups.md lacks: kubectl %s", command)
		}
		cmd := exec.Command(labtest.Program(t, "kubectl"), append(strings.Fields(command), "--kubeconfig", server.Kubeconfig())...)
		cmd.Dir = filepath.Dir("../docs")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("kubectl %s: %v: %s", command, err, out)
		}
	}
	const undefine = "delete -f charts/tortie/definitions/v1/"

	inform(groups.V1, true)
	k.alone("install", chart, "--no-hooks", "--set", "bgp.asNumber=64600")
	made, err := of(groups.V1, "bgpconfigurations").Get(t.Context(), "default", metav1.GetOptions{})
	errtest.Must(t, err)
	moved := &unstructured.Unstructured{Object: map[string]any{"spec": made.Object["spec"]}} // as the move copies it
	moved.SetAPIVersion(string(groups.V3))
	moved.SetKind(made.GetKind())
	moved.SetName("default")
	moved.SetLabels(made.GetLabels())
	moved.SetAnnotations(made.GetAnnotations())
	_, err = of(groups.V3, "bgpconfigurations").Create(t.Context(), moved, metav1.CreateOptions{})
	errtest.Must(t, err)
	inform(groups.V1, false)
	inform(groups.V3, true)

	asWritten(undefine)
	fails("BGPConfiguration crd.projectcalico.org/v1", "upgrade", chart)
	asWritten("apply --server-side -f charts/tortie/definitions/v1/")
	k.alone("upgrade", chart, "--no-hooks")
	asWritten(undefine)
	k.alone("upgrade", chart, "--no-hooks")

	fails("BGPConfiguration crd.projectcalico.org/v1", "rollback", "1")
	fails("BGPConfiguration crd.projectcalico.org/v1", "rollback", "2")
	fails("progress", "upgrade", chart)
	asWritten("-n kube-system delete secrets -l owner=helm,name=tortie,status=pending-rollback")
	fails("conflict .spec.asNumber", "upgrade", chart, "--set", "bgp.asNumber=64601")
	k.alone("upgrade", chart, "--no-hooks", "--set", "bgp.asNumber=64601", "--force-conflicts")
	is, err := of(groups.V3, "bgpconfigurations").Get(t.Context(), "default", metav1.GetOptions{})
	errtest.Must(t, err)
	if as, _, err := unstructured.NestedInt64(is.Object, "spec", "asNumber"); err != nil || as != 64601 {
		t.Errorf("spec.asNumber is %d (%v), want 64601", as, err)
	}
	k.alone("rollback", "--no-hooks") // to the revision before, which is of after the move
}
