package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apitypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// cluster is the API server as an administrator sees it, with the objects of an installed Tortie.
type cluster struct {
	group  groups.Group // that it keeps Calico's objects in
	core   kubernetes.Interface
	any    dynamic.Interface
	token  string // of a ServiceAccount with the rights that the chart gives the plugins
	agent  string // of one with the agent's rights; the agent runs the migration too
	barred string // of one without rights
}

var theCluster = struct {
	once sync.Once
	*cluster
	err error
}{}

// theAPI returns the cluster of this test binary.
func theAPI(t testing.TB) *cluster {
	t.Helper()
	cfg := labtest.RESTConfig(t)
	theCluster.once.Do(func() {
		theCluster.err = errors.New("the test that was to set up the cluster has failed")
		token, agent := labtest.As(t, "tortie-cni").BearerToken, labtest.As(t, "tortie-node").BearerToken
		if theCluster.cluster, theCluster.err = setUpCluster(cfg, labtest.Group(t)); theCluster.err == nil {
			theCluster.token, theCluster.agent = token, agent
			// Definitions of the other group, too, as before a migration. They come before the fence's policies: the API
			// server looks for the kinds of their parameters only every 30 seconds, and refuses writes until then.
			other := theCluster.group.Other()
			labtest.Define(t, other, slices.AppendSeq([]string{labtest.KindIn(other, "ipamconfigs").Resource}, maps.Values(ofCalicos))...)
			// The migration from host-local needs more.
			chart := labtest.Chart(t, "--set", "migrateFromHostLocal=true")
			labtest.GrantAll(t, cfg, chart)
			labtest.FenceWith(t, cfg, chart)
		}
	})
	if theCluster.err != nil {
		t.Fatal(theCluster.err)
	}
	return theCluster.cluster
}

func setUpCluster(cfg *rest.Config, in groups.Group) (*cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1 // the client's own limit would be most of what the tests take
	cfg.Timeout = 30 * time.Second
	core, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	c := &cluster{group: in, core: core, any: dyn}
	if err := c.setReady(ctx, true); err != nil {
		return nil, fmt.Errorf("say that the datastore is ready: %w", err)
	}
	c.barred, err = c.account(ctx, "barred")
	return c, err
}

// setReady creates the ClusterInformation or replaces it.
func (c *cluster) setReady(ctx context.Context, ready bool) error {
	if err := c.setAbsent(ctx); err != nil {
		return err
	}
	_, err := c.of("ClusterInformation", "").Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": string(c.group), "kind": "ClusterInformation", "metadata": map[string]any{"name": "default"},
		"spec": map[string]any{"datastoreReady": ready},
	}}, metav1.CreateOptions{})
	return err
}

// setAbsent deletes the ClusterInformation, if there is one.
func (c *cluster) setAbsent(ctx context.Context) error {
	err := c.of("ClusterInformation", "").Delete(ctx, "default", metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

const accountNamespace = "kube-system"

// account creates a ServiceAccount and returns a token of it.
func (c *cluster) account(ctx context.Context, name string) (string, error) {
	accounts := c.core.CoreV1().ServiceAccounts(accountNamespace)
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	request, err := accounts.CreateToken(ctx, name, &authv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return request.Status.Token, nil
}

// The kinds that tests read and write, by plural; Calico's kinds by their plural in crd.projectcalico.org/v1.
var (
	plurals   = map[string]string{"Namespace": "namespaces", "Node": "nodes", "Pod": "pods"}
	ofCalicos = map[string]string{
		"ClusterInformation": "clusterinformations", "IPPool": "ippools", "IPReservation": "ipreservations", "IPAMBlock": "ipamblocks",
		"IPAMHandle": "ipamhandles", "BlockAffinity": "blockaffinities",
	}
)

// of is the client of a kind, one of Calico's in the cluster's group.
func (c *cluster) of(kind, namespace string) dynamic.ResourceInterface {
	at := schema.GroupVersionResource{Version: "v1", Resource: plurals[kind]}
	if plural, ok := ofCalicos[kind]; ok {
		at = labtest.KindIn(c.group, plural)
	}
	if namespace != "" {
		return c.any.Resource(at).Namespace(namespace)
	}
	return c.any.Resource(at)
}

// manifest decodes one object of YAML.
func manifest(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(text))
	obj := &unstructured.Unstructured{}
	if err == nil {
		err = obj.UnmarshalJSON(data) // which, unlike YAML's, keeps integers what they are
	}
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return obj
}

// create creates an object, which ends with the test, and returns its UID. One that is written for
// crd.projectcalico.org/v1 gets the form of the cluster's group.
func (c *cluster) create(t testing.TB, obj *unstructured.Unstructured) string {
	t.Helper()
	kind := c.of(obj.GetKind(), obj.GetNamespace())
	labtest.InGroupOf(c.group, obj)
	created, err := kind.Create(context.Background(), obj, metav1.CreateOptions{FieldValidation: "Strict"})
	if err != nil {
		t.Fatalf("create %s %s: %v", obj.GetKind(), obj.GetName(), err)
	}
	t.Cleanup(func() { c.delete(t, obj.GetKind(), obj.GetNamespace(), obj.GetName()) })
	return string(created.GetUID())
}

// delete deletes an object at once, if it is there.
func (c *cluster) delete(t testing.TB, kind, namespace, name string) {
	t.Helper()
	now := int64(0)
	err := c.of(kind, namespace).Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err == nil && kind == "Namespace" {
		// Without a controller manager nothing else removes the finalizer.
		ended := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		_, err = c.core.CoreV1().Namespaces().Finalize(context.Background(), ended, metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		t.Errorf("delete %s %s: %v", kind, name, err)
	}
}

func (c *cluster) get(t testing.TB, kind, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	obj, err := c.of(kind, namespace).Get(context.Background(), name, metav1.GetOptions{})
	errtest.Must(t, err)
	return obj
}

func (c *cluster) list(t testing.TB, kind, namespace string) []unstructured.Unstructured {
	t.Helper()
	list, err := c.of(kind, namespace).List(context.Background(), metav1.ListOptions{})
	errtest.Must(t, err)
	return list.Items
}

func (c *cluster) annotate(t testing.TB, kind, namespace, name, key, value string) {
	t.Helper()
	c.patch(t, kind, namespace, name, annotation(key, value))
}

func annotation(key, value string) string {
	return fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value)
}

// patch changes an object by a JSON merge patch.
func (c *cluster) patch(t testing.TB, kind, namespace, name, patch string, subresources ...string) {
	t.Helper()
	if _, err := c.of(kind, namespace).Patch(context.Background(), name, apitypes.MergePatchType, []byte(patch), metav1.PatchOptions{},
		subresources...); err != nil {
		t.Errorf("patch %s %s: %v", kind, name, err)
	}
}

// forgetNode deletes the blocks and affinities of a node and the handles that hold addresses of them.
func (c *cluster) forgetNode(t testing.TB, node string) {
	t.Helper()
	cidrs := map[string]bool{}
	for _, b := range c.list(t, "IPAMBlock", "") {
		if affinity, _, _ := unstructured.NestedString(b.Object, "spec", "affinity"); affinity == "host:"+node {
			cidr, _, _ := unstructured.NestedString(b.Object, "spec", "cidr")
			cidrs[cidr] = true
			c.delete(t, "IPAMBlock", "", b.GetName())
		}
	}
	for _, a := range c.list(t, "BlockAffinity", "") {
		if of, _, _ := unstructured.NestedString(a.Object, "spec", "node"); of == node {
			c.delete(t, "BlockAffinity", "", a.GetName())
		}
	}
	for _, h := range c.list(t, "IPAMHandle", "") {
		blocks, _, _ := unstructured.NestedMap(h.Object, "spec", "block")
		for cidr := range blocks {
			if cidrs[cidr] {
				c.delete(t, "IPAMHandle", "", h.GetName())
			}
		}
	}
}

// settle waits until lists from the API server's cache, as the plugins' first ones are, show all stored objects. Else a
// plugin may have to try a second time, which is right but not the subject of every test.
func (c *cluster) settle(t testing.TB) {
	t.Helper()
	for _, kind := range []string{"IPPool", "IPReservation", "BlockAffinity", "IPAMBlock"} {
		now, err := c.of(kind, "").List(context.Background(), metav1.ListOptions{})
		errtest.Must(t, err)
		fresh := metav1.ListOptions{ResourceVersion: now.GetResourceVersion(), ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
		if _, err := c.of(kind, "").List(context.Background(), fresh); err != nil {
			t.Fatal(err)
		}
	}
}
