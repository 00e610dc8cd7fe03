package migrate

import (
	"path"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// TestOwnersOfFields: who has applied fields before a move, as Helm does, changes and removes them after it without a
// conflict. Fields of others stay theirs.
func TestOwnersOfFields(t *testing.T) {
	server := both(t)
	cfg, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig())
	errtest.Must(t, err)
	client := dynamic.NewForConfigOrDie(cfg)
	apply := func(in groups.Group, by string, spec map[string]any) (*unstructured.Unstructured, error) {
		of := schema.GroupVersionResource{Group: path.Dir(string(in)), Version: path.Base(string(in)), Resource: "bgpconfigurations"}
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": string(in), "kind": "BGPConfiguration",
			"metadata": map[string]any{"name": "default"}, "spec": spec}}
		return client.Resource(of).Apply(t.Context(), "default", o, metav1.ApplyOptions{FieldManager: by})
	}
	m := mover(t, server.Kubeconfig())
	ready := true
	errtest.Must(t, m.Stores[groups.V1].Create(t.Context(), &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName},
		Spec: api.ClusterInformationSpec{DatastoreReady: &ready}}))
	_, err = apply(groups.V1, "helm", map[string]any{"asNumber": int64(64512), "listenPort": int64(179)})
	errtest.Must(t, err)
	_, err = apply(groups.V1, "admin", map[string]any{"nodeToNodeMeshEnabled": true})
	errtest.Must(t, err)

	errtest.Must(t, m.Start(t.Context(), groups.V3))
	_, err = apply(groups.V3, "helm", map[string]any{"asNumber": int64(64512), "nodeToNodeMeshEnabled": false})
	if !apierrors.IsConflict(err) {
		t.Errorf("a field of another owner: %v, want a conflict", err)
	}
	got, err := apply(groups.V3, "helm", map[string]any{"asNumber": int64(64513)})
	errtest.Must(t, err)
	spec := got.Object["spec"].(map[string]any)
	if spec["asNumber"] != int64(64513) || spec["listenPort"] != nil || spec["nodeToNodeMeshEnabled"] != true {
		t.Errorf("after its owner has changed a field and removed another: %v", spec)
	}
}
