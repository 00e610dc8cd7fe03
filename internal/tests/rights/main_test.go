// Package rights tests the permissions of the chart's accounts and pods on a real API server: each permission is used
// and none is missing, and a node's token cannot harm other nodes.
package rights

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// kinds maps the kinds that tests write to resources.
var kinds = map[string]schema.GroupVersionResource{
	"Node":          {Version: "v1", Resource: "nodes"},
	"Pod":           {Version: "v1", Resource: "pods"},
	"IPAMBlock":     custom("ipamblocks"),
	"IPAMHandle":    custom("ipamhandles"),
	"BlockAffinity": custom("blockaffinities"),
	"IPPool":        custom("ippools"),
	"IPAMConfig":    custom("ipamconfigs"),

	"IPAMConfiguration":   custom("ipamconfigurations"), // in the second group
	"ClusterInformation":  custom("clusterinformations"),
	"FelixConfiguration":  custom("felixconfigurations"),
	"CalicoNodeStatus":    custom("caliconodestatuses"),
	"Event":               {Version: "v1", Resource: "events"},
	"Secret":              {Version: "v1", Resource: "secrets"},
	"Role":                {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	"RoleBinding":         {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
	"BGPConfiguration":    custom("bgpconfigurations"),
	"GlobalNetworkPolicy": custom("globalnetworkpolicies"),
	"NetworkPolicy":       custom("networkpolicies"),
	"ClusterRole":         {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	"ClusterRoleBinding":  {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
}

func custom(plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: api.Group, Version: "v1", Resource: plural}
}

// in converts an object of Calico's first group to what it is in a group, in place. Other objects stay as they are.
func in(group groups.Group, obj *unstructured.Unstructured) *unstructured.Unstructured {
	gvk := obj.GroupVersionKind()
	at := group.Type(api.Type{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Plural: kinds[gvk.Kind].Resource})
	if at.Group == gvk.Group {
		return obj
	}
	obj.SetAPIVersion(at.APIVersion())
	obj.SetKind(at.Kind)
	unstructured.RemoveNestedField(obj.Object, "metadata", "annotations", names.AnnotationMetadata)
	if at.Kind == "BlockAffinity" {
		spec := obj.Object["spec"].(map[string]any)
		spec["deleted"] = spec["deleted"] == "true"
	}
	return obj
}

// inEachGroup runs a test in each of Calico's groups.
func inEachGroup(t *testing.T, test func(t *testing.T, group groups.Group)) {
	t.Helper()
	t.Run("v1", func(t *testing.T) { test(t, groups.V1) })
	t.Run("v3", func(t *testing.T) { test(t, groups.V3) })
}

// object decodes one object of YAML. The default apiVersion is crd.projectcalico.org/v1.
func object(t testing.TB, text string, args ...any) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSON(fmt.Appendf(nil, text, args...))
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	obj := &unstructured.Unstructured{Object: map[string]any{}}
	if !strings.Contains(string(data), `"apiVersion"`) {
		data = append([]byte(`{"apiVersion":"crd.projectcalico.org/v1",`), data[1:]...)
	}
	if err := obj.UnmarshalJSON(data); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return obj
}

// user is a client of the API server with some credentials.
type user struct {
	any  dynamic.Interface
	core kubernetes.Interface
}

func newUser(t testing.TB, cfg *rest.Config) *user {
	t.Helper()
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.Timeout = -1, time.Minute
	if cfg.WarningHandler == nil {
		cfg.WarningHandler = rest.NoWarnings{}
	}
	dyn, err := dynamic.NewForConfig(cfg)
	errtest.Must(t, err)
	core, err := kubernetes.NewForConfig(cfg)
	errtest.Must(t, err)
	return &user{any: dyn, core: core}
}

func (u *user) of(obj *unstructured.Unstructured) dynamic.ResourceInterface {
	kind, ok := kinds[obj.GetKind()]
	if !ok {
		panic("no resource of kind " + obj.GetKind())
	}
	if gv := obj.GroupVersionKind().GroupVersion(); gv.String() == string(groups.V3) {
		kind = gv.WithResource(kind.Resource)
	}
	if ns := obj.GetNamespace(); ns != "" {
		return u.any.Resource(kind).Namespace(ns)
	}
	return u.any.Resource(kind)
}

// create creates an object that is deleted with the test.
func (u *user) create(t testing.TB, obj *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	made, err := u.of(obj).Create(t.Context(), obj, metav1.CreateOptions{})
	errtest.Must(t, err)
	t.Cleanup(func() {
		err := u.of(made).Delete(context.Background(), made.GetName(), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("clean up: %v", err)
		}
	})
	return made
}

// fenced are the kinds of Calico that nodes may write, and pools.
var fenced = []string{"ipamconfigs", "blockaffinities", "ipamblocks", "ipamhandles", "ippools", "clusterinformations",
	"felixconfigurations", "caliconodestatuses"}

// defined makes their definitions of both groups on the shared server.
var defined sync.Once

// inForce is the fencing mode of the shared server. Its tests run in sequence.
var inForce string

// server returns the shared API server, with the chart's admission policies in a mode, and more arguments of `helm
// template`.
func server(t testing.TB, mode string, args ...string) (admin *rest.Config) {
	t.Helper()
	admin = labtest.RESTConfig(t)
	wantRelease(t, admin)
	defined.Do(func() {
		labtest.Define(t, groups.V1, fenced...)
		labtest.Define(t, groups.V3, append(fenced[1:], "ipamconfigurations")...)
	})
	if want := fmt.Sprint(mode, args); inForce != want {
		labtest.FenceWith(t, admin, labtest.Chart(t, append(args, "--set", "fencing="+mode)...))
		inForce = want
	}
	return admin
}

// declare creates a Node.
func (u *user) declare(t testing.TB, name string) *corev1.Node {
	t.Helper()
	node, err := u.core.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"zone": "z1"}, Annotations: map[string]string{"other": "x"},
	}}, metav1.CreateOptions{})
	errtest.Must(t, err)
	return node
}

// restConfig returns the administrator's configuration of a test's own server.
func restConfig(t testing.TB, server *labtest.Server) *rest.Config {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig())
	errtest.Must(t, err)
	return cfg
}
