// Package objects reads and writes a few of Kubernetes' own objects for the installer, the chart's hooks and its test.
// It makes no decisions, and has only the kinds that they need. Watches are in internal/cluster.
//
// It uses client-go's dynamic client and the types of k8s.io/api: the typed client would link every group of
// Kubernetes.
package objects

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Definitions are the CustomResourceDefinitions.
var Definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

var (
	accounts   = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	nodes      = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	pods       = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	daemonSets = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
)

// Client makes requests as one user. Its errors are the API server's, for apierrors.
type Client struct{ dynamic dynamic.Interface }

// New returns a client. It makes no request.
func New(cfg *rest.Config) (*Client, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Burst = 50, 100 // for programs that run once, with some requests per node
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("API server: %w", err)
	}
	return &Client{client}, nil
}

// Resource gives access to the unstructured objects of a kind, for kinds with fields unknown to this program.
func (c *Client) Resource(of schema.GroupVersionResource) dynamic.ResourceInterface {
	return c.dynamic.Resource(of)
}

// CreateToken requests a token of a ServiceAccount.
func (c *Client) CreateToken(ctx context.Context, namespace, account string,
	spec authv1.TokenRequestSpec) (authv1.TokenRequestStatus, error) {
	request := authv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{Name: account}, Spec: spec}
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&request)
	if err != nil {
		return request.Status, err
	}
	obj := &unstructured.Unstructured{Object: tree}
	obj.SetAPIVersion("authentication.k8s.io/v1")
	obj.SetKind("TokenRequest")
	answer, err := c.dynamic.Resource(accounts).Namespace(namespace).Create(ctx, obj, metav1.CreateOptions{}, "token")
	if err != nil {
		return request.Status, err
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(answer.Object, &request)
	return request.Status, err
}

// Nodes lists the Nodes that match a selector of labels.
func (c *Client) Nodes(ctx context.Context, selector string) ([]corev1.Node, error) {
	return list[corev1.Node](ctx, c.dynamic.Resource(nodes), selector)
}

// Pods lists the Pods of a namespace, or of all if that is empty, that match a selector of labels.
func (c *Client) Pods(ctx context.Context, namespace, selector string) ([]corev1.Pod, error) {
	return list[corev1.Pod](ctx, c.dynamic.Resource(pods).Namespace(namespace), selector)
}

func list[T any](ctx context.Context, from dynamic.ResourceInterface, selector string) ([]T, error) {
	answer, err := from.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	all := make([]T, len(answer.Items))
	for i := range answer.Items {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(answer.Items[i].Object, &all[i]); err != nil {
			return nil, fmt.Errorf("read %s %s: %w", answer.Items[i].GetKind(), answer.Items[i].GetName(), err)
		}
	}
	return all, nil
}

// CreatePod creates a Pod.
func (c *Client) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	tree, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		return err
	}
	delete(tree, "status")
	obj := &unstructured.Unstructured{Object: tree}
	obj.SetAPIVersion("v1")
	obj.SetKind("Pod")
	_, err = c.dynamic.Resource(pods).Namespace(pod.Namespace).Create(ctx, obj, metav1.CreateOptions{})
	return err
}

// DeletePod deletes a Pod.
func (c *Client) DeletePod(ctx context.Context, namespace, name string) error {
	return c.dynamic.Resource(pods).Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{})
}

// DeleteDaemonSet deletes a DaemonSet; the control plane deletes its pods after it.
func (c *Client) DeleteDaemonSet(ctx context.Context, namespace, name string) error {
	background := metav1.DeletePropagationBackground
	return c.dynamic.Resource(daemonSets).Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &background})
}

// PatchNode changes the metadata and the status of a Node by a strategic merge patch.
func (c *Client) PatchNode(ctx context.Context, name string, patch []byte) error {
	_, err := c.dynamic.Resource(nodes).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// maxName is the maximum length of a label's value; a controller may use a pod's name as one.
const maxName = 63

// NameFor returns the name of a pod for a task on a node: the same each time, so that it is made once.
func NameFor(what, node string) string {
	name := what + "-" + strings.ReplaceAll(node, ".", "-")
	if len(name) <= maxName && !strings.Contains(node, ".") {
		return name
	}
	h := fnv.New32a()
	h.Write([]byte(node))
	return fmt.Sprintf("%s-%08x", strings.Trim(name[:min(len(name), maxName-9)], "-"), h.Sum32())
}
