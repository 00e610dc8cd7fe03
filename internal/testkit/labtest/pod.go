package labtest

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// CreatePod creates a Pod object that no kubelet runs and that is deleted with the test.
func CreatePod(t testing.TB, namespace, name string) {
	t.Helper()
	CreatePodOn(t, "", namespace, name)
}

// CreatePodOn creates such a Pod on a node.
func CreatePodOn(t testing.TB, node, namespace, name string) {
	t.Helper()
	client, err := dynamic.NewForConfig(RESTConfig(t))
	errtest.Must(t, err)
	pods := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace(namespace)
	pod := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"nodeName": node, "containers": []any{map[string]any{"name": "c", "image": "pause"}}},
	}}
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := pods.Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
}
