package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/datastoretest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// realStore returns a Store of the test binary's API server.
func realStore(t *testing.T) *Store {
	t.Helper()
	cfg, err := LoadKubeconfig(labtest.API(t))
	errtest.Must(t, err)
	cfg.Group = labtest.Current(t)
	s, err := New(cfg)
	errtest.Must(t, err)
	return s
}

func TestStorePassesTheCases(t *testing.T) {
	labtest.API(t)
	datastoretest.Run(t, func() datastore.Store { return realStore(t) })
}

// admin returns client-go's client of the same API server, as an independent check of the Store.
func admin(t *testing.T) dynamic.Interface {
	t.Helper()
	c, err := dynamic.NewForConfig(labtest.RESTConfig(t))
	errtest.Must(t, err)
	return c
}

var (
	pods     = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	accounts = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
)

// Objects that a real Calico wrote are accepted by our definitions as they are, and come back from the server whole:
// read by the Store, written back by it, and read by another client.
func TestCalicosObjectsSurviveTheServer(t *testing.T) {
	s := realStore(t)
	for file, obj := range map[string]api.Resource{
		"ipamblock-192-168-154-0-26.yaml":               &api.IPAMBlock{},
		"blockaffinity-gold-node-192-168-154-0-26.yaml": &api.BlockAffinity{},
		"ipamhandle.yaml":                               &api.IPAMHandle{},
		"ippool.yaml":                                   &api.IPPool{},
	} {
		t.Run(file, func(t *testing.T) {
			golden := readGolden(t, file)
			kind := admin(t).Resource(labtest.KindOf(t, obj.ResourceType().Plural))
			want, err := kind.Create(t.Context(), golden, metav1.CreateOptions{FieldValidation: "Strict"})
			errtest.Must(t, err)
			t.Cleanup(func() {
				if err := kind.Delete(context.Background(), golden.GetName(), metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			})
			obj.GetMeta().Name = golden.GetName()
			errtest.Must(t, s.Get(t.Context(), obj))
			errtest.Must(t, s.Update(t.Context(), obj))
			got, err := kind.Get(t.Context(), golden.GetName(), metav1.GetOptions{})
			errtest.Must(t, err)
			for _, o := range []*unstructured.Unstructured{want, got} {
				o.SetManagedFields(nil)
				o.SetResourceVersion("")
				o.SetGeneration(0)
			}
			if d := cmp.Diff(want.Object, got.Object); d != "" {
				t.Errorf("object (-calico's +written back):\n%s", d)
			}
		})
	}
}

func readGolden(t *testing.T, file string) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "ipam", "testdata", file))
	errtest.Must(t, err)
	obj := &unstructured.Unstructured{}
	errtest.Must(t, yaml.Unmarshal(text, &obj.Object))
	obj.SetResourceVersion("")
	labtest.InGroup(t, obj)
	return obj
}

func resourceOf(t api.Type) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: t.Group, Version: t.Version, Resource: t.Plural}
}

// A consistent list comes in pages of 500 and is complete; a stale one comes at once and is complete too.
func TestLongListsAreComplete(t *testing.T) {
	proxy := labtest.NewProxy(t)
	cfg, err := LoadKubeconfig(proxy.Kubeconfig())
	errtest.Must(t, err)
	cfg.Group = labtest.Current(t)
	s := open(t, cfg)
	const n = 520
	g, ctx := errgroup.WithContext(t.Context())
	g.SetLimit(50)
	for i := range n {
		g.Go(func() error {
			name := fmt.Sprintf("long-list-%d", i)
			return s.Create(ctx, &api.IPAMHandle{Meta: api.Meta{Name: name}, Spec: api.IPAMHandleSpec{HandleID: name, Block: map[string]int{}}})
		})
	}
	t.Cleanup(func() {
		handles := admin(t).Resource(labtest.KindOf(t, "ipamhandles"))
		err := handles.DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
		if err != nil {
			t.Error(err)
		}
	})
	errtest.Must(t, g.Wait())
	for _, c := range []struct {
		opts  datastore.ListOptions
		pages int
	}{{datastore.ListOptions{}, 2}, {datastore.ListOptions{Stale: true}, 1}} {
		// The watch cache is not long behind: poll it until it has the write.
		for deadline := time.Now().Add(10 * time.Second); ; {
			proxy.Reset()
			var list api.IPAMHandleList
			errtest.Must(t, s.List(t.Context(), &list, c.opts))
			if pages := proxy.Requests()["list ipamhandles"]; pages != c.pages {
				t.Errorf("stale=%v: %d requests, want %d", c.opts.Stale, pages, c.pages)
			}
			if distinct(list) == n {
				break
			}
			if !c.opts.Stale || time.Now().After(deadline) {
				t.Fatalf("stale=%v: %d handles, want %d", c.opts.Stale, distinct(list), n)
			}
		}
	}
}

func distinct(list api.IPAMHandleList) int {
	names := map[string]bool{}
	for _, h := range list.Items {
		if strings.HasPrefix(h.Name, "long-list-") {
			names[h.Name] = true
		}
	}
	return len(names)
}

// The plugin writes a pod's address through its status, which may change annotations too. If guarded, it does not touch
// a pod other than the one read.
func TestPatchStatus(t *testing.T) {
	s := realStore(t)
	createPod(t, "patched")
	read := &api.Pod{Meta: api.Meta{Name: "patched", Namespace: "default"}}
	errtest.Must(t, s.Get(t.Context(), read))
	old := *read
	patch := func(ip string) Patch {
		return Patch{Metadata: PatchMeta{Annotations: map[string]*string{api.AnnotationPodIP: &ip}}}
	}
	errtest.Must(t, s.PatchStatus(t.Context(), read, patch("10.0.0.1/32"), true))
	if read.Annotations[api.AnnotationPodIP] != "10.0.0.1/32" || read.Annotations["kept"] != "yes" ||
		read.ResourceVersion == old.ResourceVersion {
		t.Errorf("after the patch: %+v", read.Meta)
	}
	if err := s.PatchStatus(t.Context(), &old, patch("10.0.0.2/32"), true); !errors.Is(err, datastore.ErrConflict) {
		t.Errorf("guarded patch of an old revision: error %v, want %v", err, datastore.ErrConflict)
	}
	if err := s.PatchStatus(t.Context(), &old, patch(""), false); err != nil {
		t.Errorf("unguarded patch of an old revision: %v", err)
	}
	if ip, there := old.Annotations[api.AnnotationPodIP]; !there || ip != "" {
		t.Errorf("annotation %q, there %v, want an empty one: that is how a release is told", ip, there)
	}
	remove := Patch{Metadata: PatchMeta{Annotations: map[string]*string{api.AnnotationPodIP: nil}}}
	errtest.Must(t, s.PatchStatus(t.Context(), &old, remove, false))
	if _, there := old.Annotations[api.AnnotationPodIP]; there {
		t.Error("the removed annotation is there, or was merged into what was read before")
	}
	gone := &api.Pod{Meta: api.Meta{Name: "patched-never", Namespace: "default"}}
	if err := s.PatchStatus(t.Context(), gone, patch("10.0.0.1/32"), false); !errors.Is(err, datastore.ErrNotFound) {
		t.Errorf("patch of a pod that is gone: error %v, want %v", err, datastore.ErrNotFound)
	}
	// A pod of the same name that is another one, as a StatefulSet makes it.
	errtest.Must(t,
		admin(t).Resource(pods).Namespace("default").Delete(t.Context(), "patched", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	createPod(t, "patched")
	if err := s.PatchStatus(t.Context(), read, patch("10.0.0.1/32"), true); !errors.Is(err, datastore.ErrConflict) {
		t.Errorf("guarded patch of a pod's successor: error %v, want %v", err, datastore.ErrConflict)
	}
	ofEarlier := patch("10.0.0.1/32")
	ofEarlier.Metadata.UID = read.UID
	if err := s.PatchStatus(t.Context(), read, ofEarlier, false); !errors.Is(err, datastore.ErrConflict) {
		t.Errorf("patch of a pod's successor by the UID: error %v, want %v", err, datastore.ErrConflict)
	}
}

func TestListPodsOfHost(t *testing.T) {
	s := realStore(t)
	for name, node := range map[string]string{"hosted-a": "host-a", "hosted-b": "host-b", "hosted-none": ""} {
		pod := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "namespace": "default"},
			"spec": map[string]any{"nodeName": node, "containers": []any{map[string]any{"name": "c", "image": "none"}}},
		}}
		all := admin(t).Resource(pods).Namespace("default")
		if _, err := all.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := all.Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
				t.Error(err)
			}
		})
	}
	var list api.List[api.Pod, *api.Pod]
	errtest.Must(t, s.List(t.Context(), &list, datastore.ListOptions{Host: "host-a"}))
	if len(list.Items) != 1 || list.Items[0].Name != "hosted-a" {
		t.Errorf("pods of host-a: %+v", list.Items)
	}
}

// DEL clears its annotations on a pod without reading it, if they are of the sandbox that is deleted.
func TestPatchTested(t *testing.T) {
	s := realStore(t)
	createPod(t, "tested")
	pod := &api.Pod{Meta: api.Meta{Name: "tested", Namespace: "default"}}
	const key = api.AnnotationContainerID
	clear := func(id string) []Operation {
		return []Operation{
			{Op: "test", Path: AnnotationPath(key), Value: id},
			{Op: "add", Path: AnnotationPath(api.AnnotationPodIP), Value: ""},
			{Op: "remove", Path: AnnotationPath(key)},
		}
	}
	wantConflict := func(what string, ops []Operation) {
		t.Helper()
		if err := s.PatchTested(t.Context(), pod, ops); !errors.Is(err, datastore.ErrConflict) {
			t.Errorf("%s: error %v, want %v", what, err, datastore.ErrConflict)
		}
	}
	wantConflict("a pod that was never annotated", clear("one"))
	id := "two"
	err := s.PatchStatus(t.Context(), pod, Patch{Metadata: PatchMeta{Annotations: map[string]*string{key: &id}}}, false)
	errtest.Must(t, err)
	errtest.Must(t, s.Get(t.Context(), pod))
	before := *pod
	wantConflict("a pod with another sandbox", clear("one"))
	errtest.Must(t, s.Get(t.Context(), pod))
	if d := cmp.Diff(before, *pod); d != "" {
		t.Errorf("a refused patch changed the pod (-before +after):\n%s", d)
	}
	errtest.Must(t, s.PatchTested(t.Context(), pod, clear("two")))
	if d := cmp.Diff(before, *pod); d != "" {
		t.Errorf("the patch filled in the object (-before +after):\n%s", d)
	}
	errtest.Must(t, s.Get(t.Context(), pod))
	difftest.Want(t, "annotations", map[string]string{"kept": "yes", api.AnnotationPodIP: ""}, pod.Annotations)
	gone := &api.Pod{Meta: api.Meta{Name: "tested-never", Namespace: "default"}}
	if err := s.PatchTested(t.Context(), gone, clear("one")); !errors.Is(err, datastore.ErrNotFound) {
		t.Errorf("a pod that is gone: error %v, want %v", err, datastore.ErrNotFound)
	}
	// A refusal by the API server for another reason is not taken for another sandbox.
	err = s.PatchTested(t.Context(), pod, []Operation{{Op: "add", Path: AnnotationPath("a/b/c"), Value: ""}})
	if err == nil || datastore.Contended(err) {
		t.Errorf("an invalid annotation: error %v, want one that is no conflict", err)
	}
}

func createPod(t *testing.T, name string) {
	t.Helper()
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": name, "annotations": map[string]any{"kept": "yes"}},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "pause"}}},
	}}
	kind := admin(t).Resource(pods).Namespace("default")
	if _, err := kind.Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := kind.Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
}

// The server's two refusals, of a token that it does not know and of an account that may not, are the same to callers.
func TestRefusedCredentials(t *testing.T) {
	cfg, err := LoadKubeconfig(labtest.API(t))
	errtest.Must(t, err)
	for name, token := range map[string]string{"unknown token": secret, "account without rights": accountToken(t)} {
		cfg.Token = token
		s := open(t, cfg)
		for verb, err := range map[string]error{
			"get": get(t.Context(), s), "create": create(t.Context(), s), "update": update(t.Context(), s),
			"list": s.List(t.Context(), &api.IPPoolList{}, datastore.ListOptions{}), "delete": s.Delete(t.Context(), handle()),
		} {
			if !errors.Is(err, datastore.ErrUnauthorized) {
				t.Errorf("%s, %s: error %v, want %v", name, verb, err, datastore.ErrUnauthorized)
			} else if strings.Contains(err.Error(), token) {
				t.Errorf("%s, %s: error %q repeats the token", name, verb, err)
			}
		}
	}
}

// accountToken returns a token of a ServiceAccount without rights.
func accountToken(t *testing.T) string {
	t.Helper()
	kind := admin(t).Resource(accounts).Namespace("default")
	account := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ServiceAccount", "metadata": map[string]any{"name": "without-rights"},
	}}
	if _, err := kind.Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kind.Delete(context.Background(), "without-rights", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	request := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": map[string]any{"name": "without-rights"},
	}}
	got, err := kind.Create(t.Context(), request, metav1.CreateOptions{}, "token")
	errtest.Must(t, err)
	token, _, err := unstructured.NestedString(got.Object, "status", "token")
	if err != nil || token == "" {
		t.Fatalf("no token in %v: %v", got.Object, err)
	}
	return token
}

// A refusal by the definitions is not taken for contention or for an absent server.
func TestInvalidObjectIsItsOwnError(t *testing.T) {
	s := realStore(t)
	err := s.Create(t.Context(),
		&api.IPPool{Meta: api.Meta{Name: "invalid"}, Spec: api.IPPoolSpec{CIDR: "10.0.0.0/16", IPIPMode: "Sometimes"}})
	if err == nil || !strings.Contains(err.Error(), "spec.ipipMode") {
		t.Errorf("error %v, want one that names spec.ipipMode", err)
	}
	for _, kind := range []error{datastore.ErrConflict, datastore.ErrExists, datastore.ErrUnavailable,
		datastore.ErrUnauthorized, datastore.ErrNotFound} {
		if errors.Is(err, kind) {
			t.Errorf("error %v is %v", err, kind)
		}
	}
}
