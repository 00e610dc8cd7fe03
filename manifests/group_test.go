package manifests

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// TestGroupAsProgramsFindIt: with apiGroup auto the chart and a program that starts choose the same group, whatever the
// ClusterInformation of each group has.
func TestGroupAsProgramsFindIt(t *testing.T) {
	server := labtest.NewServerOf(t, groups.V1)
	server.Define(t, groups.V3)
	rest, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig())
	errtest.Must(t, err)
	objects, err := dynamic.NewForConfig(rest)
	errtest.Must(t, err)
	cfg, err := kubernetes.LoadKubeconfig(server.Kubeconfig())
	errtest.Must(t, err)
	store, err := kubernetes.New(cfg)
	errtest.Must(t, err)
	become := func(in groups.Group, lock groups.Lock) {
		of := objects.Resource(labtest.KindIn(in, "clusterinformations"))
		if err := of.Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		if lock == groups.Absent {
			return
		}
		_, err := of.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": string(in), "kind": "ClusterInformation", "metadata": map[string]any{"name": "default"},
			"spec": map[string]any{"datastoreReady": lock == groups.Ready}}}, metav1.CreateOptions{})
		errtest.Must(t, err)
	}
	locks := map[groups.Lock]string{groups.Absent: "absent", groups.Locked: "locked", groups.Ready: "ready"}
	for v1, first := range locks {
		for v3, second := range locks {
			t.Run(fmt.Sprintf("v1 %s, v3 %s", first, second), func(t *testing.T) {
				become(groups.V1, v1)
				become(groups.V3, v3)
				want, err := store.FindGroup(t.Context(), "", "")
				errtest.Must(t, err)
				got := helm(t, "--dry-run=server", "--kubeconfig", server.Kubeconfig(), "--set", "bgp.asNumber=64600",
					"--show-only", "templates/bgpconfiguration.yaml")
				if !strings.Contains(got, "\napiVersion: "+string(want)+"\n") {
					t.Errorf("programs find %s, the chart has\n%s", want, got)
				}
			})
		}
	}
}
