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
	"github.com/tortie-net/tortie/internal/testkit/cnitest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// TestHelmAfterAMove runs what docs/apigroups.md says of Helm where a release has a BGPConfiguration and the definitions of
// the group before are deleted: without an upgrade before, Helm fails until they are back; after it, a rollback to an
// earlier revision fails and leaves the release locked, until the revision that it has begun is removed. The
// BGPConfiguration is still the release's: a change of it is no conflict.
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

	info := &unstructured.Unstructured{Object: map[string]any{"apiVersion": string(groups.V1), "kind": "ClusterInformation",
		"metadata": map[string]any{"name": "default"}, "spec": map[string]any{"datastoreReady": true}}}
	_, err = of(groups.V1, "clusterinformations").Create(t.Context(), info, metav1.CreateOptions{})
	errtest.Must(t, err)
	k.alone("install", chart, "--no-hooks", "--set", "bgp.asNumber=64600")
	programs := cnitest.NewPrograms("./cmd/tortie").Link("tortie", "kube-controllers").Replacing( // no plugin writes
		"internal/controllers/migrate/move.go", "drainTime = 160 * time.Second", "drainTime = time.Duration(0)")
	defer programs.Remove()
	move := exec.Command(filepath.Join(programs.Dir(t), "kube-controllers"), "migrate", "start", "--to", "v3")
	move.Env = append(os.Environ(), "KUBECONFIG="+server.Kubeconfig())
	if out, err := move.CombinedOutput(); err != nil {
		t.Fatalf("migrate: %v: %s", err, out)
	}

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
	k.alone("upgrade", chart, "--no-hooks", "--set", "bgp.asNumber=64601")
	is, err := of(groups.V3, "bgpconfigurations").Get(t.Context(), "default", metav1.GetOptions{})
	errtest.Must(t, err)
	if as, _, err := unstructured.NestedInt64(is.Object, "spec", "asNumber"); err != nil || as != 64601 {
		t.Errorf("spec.asNumber is %d (%v), want 64601", as, err)
	}
	k.alone("rollback", "--no-hooks") // to the revision before, which is of after the move
}
