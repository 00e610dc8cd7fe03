package definitions_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// TestDelete runs the commands of docs/chart.md, in projectcalico.org/v3 after an uninstallation: nothing takes off
// finalizers. A definition of somebody else's stays, with its object.
func TestDelete(t *testing.T) {
	t.Parallel()
	server := labtest.NewServerOf(t, groups.V3) // its definitions go
	cfg, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig())
	errtest.Must(t, err)
	client := dynamic.NewForConfigOrDie(cfg)
	definitions := (&cluster{client: client}).definitions()
	create := func(plural, namespace, text string) {
		t.Helper()
		obj := &unstructured.Unstructured{}
		errtest.Must(t, yaml.Unmarshal([]byte("{apiVersion: projectcalico.org/v3, "+text+"}"), &obj.Object))
		_, err := client.Resource(labtest.KindIn(groups.V3, plural)).Namespace(namespace).Create(t.Context(), obj, metav1.CreateOptions{})
		errtest.Must(t, err)
	}
	create("ippools", "", "kind: IPPool, metadata: {name: kept, finalizers: [projectcalico.org/ippool-finalizer]}, spec: {cidr: 10.7.0.0/16}")
	create("ippools", "", "kind: IPPool, metadata: {name: free}, spec: {cidr: 10.8.0.0/16}")
	for _, name := range []string{"one", "two"} {
		create("tiers", "", "kind: Tier, metadata: {name: "+name+", finalizers: [projectcalico.org/tier-controller]}, spec: {order: 7}")
	}
	create("networksets", "default", "kind: NetworkSet, metadata: {name: set, finalizers: [example.org/keep]}, spec: {nets: [10.9.0.0/16]}")
	create("hostendpoints", "", "kind: HostEndpoint, metadata: {name: theirs, finalizers: [example.org/keep]}, "+
		"spec: {node: one, interfaceName: eth0}")
	const theirs = "hostendpoints.projectcalico.org"
	_, err = definitions.Patch(t.Context(), theirs, types.JSONPatchType,
		[]byte(`[{"op": "remove", "path": "/metadata/labels/app.kubernetes.io~1part-of"}]`), metav1.PatchOptions{})
	errtest.Must(t, err)

	labtest.FollowPage(t, "chart.md", "Delete the data", labtest.Program(t, "kubectl")+" --kubeconfig "+server.Kubeconfig())
	left, err := definitions.List(t.Context(), metav1.ListOptions{})
	errtest.Must(t, err)
	var names []string
	for i := range left.Items {
		names = append(names, left.Items[i].GetName())
	}
	difftest.Want(t, "definitions that are left", theirs, strings.Join(names, " "))
	kept, err := client.Resource(labtest.KindIn(groups.V3, "hostendpoints")).Get(t.Context(), "theirs", metav1.GetOptions{})
	errtest.Must(t, err)
	difftest.Want(t, "finalizers of somebody else's", []string{"example.org/keep"}, kept.GetFinalizers())
}
