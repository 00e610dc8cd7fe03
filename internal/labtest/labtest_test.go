package labtest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

func TestMissingLabSaysWhatToDo(t *testing.T) {
	env := func(string) (string, bool) { return filepath.Join(t.TempDir(), "lab"), true }
	_, err := labBinary(env)
	if err == nil || !strings.Contains(err.Error(), "make bin/lab") {
		t.Errorf("error %v does not say `make bin/lab`", err)
	}
}

func TestLabThatDiesShowsItsError(t *testing.T) {
	lab := filepath.Join(t.TempDir(), "lab")
	if err := os.WriteFile(lab, []byte("#!/bin/sh\necho port 2379 is taken >&2; exit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := start(lab)
	if err == nil || !strings.Contains(err.Error(), "port 2379 is taken") {
		t.Errorf("error %v does not show what the lab said", err)
	}
}

var plurals = map[string]string{
	"IPPool": "ippools", "IPAMBlock": "ipamblocks", "BlockAffinity": "blockaffinities", "IPAMHandle": "ipamhandles",
	"ClusterInformation": "clusterinformations",
}

// What a real Calico wrote must pass the definitions unchanged: a field that is refused breaks its writes, one that is pruned
// is lost.
func TestDefinitionsAcceptCalicosObjects(t *testing.T) {
	client, err := dynamic.NewForConfig(RESTConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/calico/*.yaml")
	if err != nil || len(files) < 6 {
		t.Fatalf("golden objects: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			obj := golden(t, file)
			want, _, _ := unstructured.NestedMap(obj.Object, "spec")
			kind := client.Resource(resource(plurals[obj.GetKind()]))
			got, err := kind.Create(t.Context(), obj, metav1.CreateOptions{FieldValidation: "Strict"})
			if err != nil {
				t.Fatalf("refused: %v", err)
			}
			t.Cleanup(func() {
				if err := kind.Delete(context.Background(), obj.GetName(), metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			})
			spec, _, _ := unstructured.NestedMap(got.Object, "spec")
			wantText, _ := yaml.Marshal(want)
			gotText, _ := yaml.Marshal(spec)
			if string(wantText) != string(gotText) {
				t.Errorf("spec was changed\nwant:\n%s\ngot:\n%s", wantText, gotText)
			}
		})
	}
}

func TestDefinitionsRefuseMistakes(t *testing.T) {
	client, err := dynamic.NewForConfig(RESTConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct{ name, kind, plural, spec, want string }{
		{"pool without range", "IPPool", "ippools", `{"blockSize":26}`, "spec.cidr"},
		{"unknown encapsulation", "IPPool", "ippools", `{"cidr":"10.0.0.0/16","ipipMode":"Sometimes"}`, "spec.ipipMode"},
		{"typing error", "IPPool", "ippools", `{"cidr":"10.0.0.0/16","natOutgiong":true}`, "natOutgiong"},
		{"affinity without state", "BlockAffinity", "blockaffinities", `{"node":"n","cidr":"10.0.0.0/26","deleted":"false"}`, "spec.state"},
		{"affinity, deleted as a boolean", "BlockAffinity", "blockaffinities", `{"state":"pending","node":"n","cidr":"10.0.0.0/26","deleted":false}`, "spec.deleted"},
		{"block without attributes", "IPAMBlock", "ipamblocks", `{"cidr":"10.0.0.0/30","allocations":[null],"unallocated":[0],"strictAffinity":false}`, "spec.attributes"},
		{"AS number out of range", "BGPConfiguration", "bgpconfigurations", `{"asNumber":4294967296}`, "spec.asNumber"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			obj := object(t, c.kind, "wrong", c.spec)
			_, err := client.Resource(resource(c.plural)).Create(t.Context(), obj, metav1.CreateOptions{FieldValidation: "Strict"})
			if (!apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err)) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v does not refuse %s", err, c.want)
			}
		})
	}
}

func TestDefinitionsKeepWhatNewerCalicosAdd(t *testing.T) {
	client, err := dynamic.NewForConfig(RESTConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	obj := object(t, "BGPConfiguration", "future", `{"asNumber":4200000000,"serviceClusterIPs":[{"cidr":"10.96.0.0/16"}]}`)
	got, err := client.Resource(resource("bgpconfigurations")).Create(t.Context(), obj, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, _ := unstructured.NestedSlice(got.Object, "spec", "serviceClusterIPs"); !ok {
		t.Errorf("serviceClusterIPs was pruned: %v", got.Object)
	}
}

func golden(t *testing.T, file string) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	obj := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &obj.Object); err != nil {
		t.Fatal(err)
	}
	obj.SetResourceVersion("")
	return obj
}

func object(t *testing.T, kind, name, spec string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	text := `{"apiVersion":"crd.projectcalico.org/v1","kind":"` + kind + `","metadata":{"name":"` + name + `"},"spec":` + spec + `}`
	if err := yaml.Unmarshal([]byte(text), &obj.Object); err != nil {
		t.Fatal(err)
	}
	return obj
}

func resource(plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1", Resource: plural}
}

func TestServerSurvivesItsKill(t *testing.T) {
	s := NewServer(t)
	if s.Kubeconfig() == API(t) {
		t.Fatal("the server of this test is that of all tests")
	}
	for _, do := range []func() error{s.Kill, s.Start} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Resource(definitions).Get(t.Context(), "ippools.crd.projectcalico.org", metav1.GetOptions{}); err != nil {
		t.Errorf("what was stored before: %v", err)
	}
}
