package labtest

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func TestNamedLabIsMissing(t *testing.T) {
	env := func(string) (string, bool) { return filepath.Join(t.TempDir(), "lab"), true }
	if _, err := findProgram(env, t.TempDir()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "TORTIE_LAB") {
		t.Errorf("error %v does not name TORTIE_LAB", err)
	}
}

// Without a built lab, a clone's lab is built, and it is rebuilt when the sources change.
func TestLabIsBuilt(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		errtest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		errtest.Must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	write("lab/go.mod", "module example.net/lab\n\ngo 1.26\n")
	for _, word := range []string{"one", "two"} {
		write("lab/cmd/lab/main.go", "package main\n\nfunc main() { print(\""+word+"\") }\n")
		program, err := findProgram(func(string) (string, bool) { return "", false }, root)
		errtest.Must(t, err)
		if out, err := exec.Command(program).CombinedOutput(); err != nil || string(out) != word {
			t.Errorf("the program printed %q, %v, want %q", out, err, word)
		}
	}
	write("lab/cmd/lab/main.go", "package main\n\nfunc main() { missing() }\n")
	if _, err := findProgram(func(string) (string, bool) { return "", false }, root); err == nil ||
		!strings.Contains(err.Error(), "undefined: missing") {
		t.Errorf("error %v does not contain the compiler's message", err)
	}
}

func TestLabThatDiesShowsItsError(t *testing.T) {
	lab := filepath.Join(t.TempDir(), "lab")
	errtest.Must(t, os.WriteFile(lab, []byte("#!/bin/sh\necho port 2379 is taken >&2; exit 3\n"), 0o755))
	_, err := start(lab)
	if err == nil || !strings.Contains(err.Error(), "port 2379 is taken") {
		t.Errorf("error %v does not contain the lab's message", err)
	}
}

var plurals = map[string]string{
	"IPPool": "ippools", "IPAMBlock": "ipamblocks", "BlockAffinity": "blockaffinities", "IPAMHandle": "ipamhandles",
	"ClusterInformation": "clusterinformations",
}

// Objects of a real Calico must pass the definitions unchanged: a rejected field breaks Calico's writes, a pruned one
// is lost.
func TestDefinitionsAcceptCalicosObjects(t *testing.T) {
	client, err := dynamic.NewForConfig(RESTConfig(t))
	errtest.Must(t, err)
	files, err := filepath.Glob("testdata/calico/*.yaml")
	if err != nil || len(files) < 6 {
		t.Fatalf("golden objects: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			obj := golden(t, file)
			want, _, _ := unstructured.NestedMap(obj.Object, "spec")
			kind := client.Resource(KindOf(t, plurals[obj.GetKind()]))
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
	errtest.Must(t, err)
	cases := []struct{ name, kind, plural, spec, want string }{
		{"pool without range", "IPPool", "ippools", `{"blockSize":26}`, "spec.cidr"},
		{"unknown encapsulation", "IPPool", "ippools", `{"cidr":"10.0.0.0/16","ipipMode":"Sometimes"}`, "spec.ipipMode"},
		{"typing error", "IPPool", "ippools", `{"cidr":"10.0.0.0/16","natOutgiong":true}`, "natOutgiong"},
		{"peer's misspelt filters", "BGPPeer", "bgppeers", `{"peerIP":"10.0.0.1","asNumber":1,"fliters":["out"]}`,
			`unknown field "spec.fliters"`},
		{"peer's field in other case", "BGPPeer", "bgppeers", `{"peerIP":"10.0.0.1","asNumber":1,"keepalivetime":"10s"}`,
			`unknown field "spec.keepalivetime"`},
		{"misspelt mesh", "BGPConfiguration", "bgpconfigurations", `{"nodeToNodeMeshEnable":false}`, `unknown field "spec.nodeToNodeMeshEnable"`},
		{"misspelt encryption", "FelixConfiguration", "felixconfigurations", `{"wireguardEnbled":true}`, `unknown field "spec.wireguardEnbled"`},
		{"Felix's field in other case", "FelixConfiguration", "felixconfigurations", `{"FailsafeInboundHostPorts":[]}`,
			`unknown field "spec.FailsafeInboundHostPorts"`},
		{"misspelt period", "KubeControllersConfiguration", "kubecontrollersconfigurations", `{"controllers":{"node":{"leakGracePeriode":"1m"}}}`,
			`unknown field "spec.controllers.node.leakGracePeriode"`},
		{"affinity without state", "BlockAffinity", "blockaffinities", `{"node":"n","cidr":"10.0.0.0/26","deleted":"false"}`, "spec.state"},
		{"affinity, deleted as a number", "BlockAffinity", "blockaffinities",
			`{"state":"pending","node":"n","cidr":"10.0.0.0/26","deleted":1}`, "spec.deleted"},
		{"block without attributes", "IPAMBlock", "ipamblocks",
			`{"cidr":"10.0.0.0/30","allocations":[null],"unallocated":[0],"strictAffinity":false}`, "spec.attributes"},
		{"peer with a mode that is none", "BGPPeer", "bgppeers", `{"peerIP":"10.0.0.1","asNumber":1,"nextHopMode":"Me"}`, "spec.nextHopMode"},
		{"peer's AS number as a text", "BGPPeer", "bgppeers", `{"peerIP":"10.0.0.1","asNumber":"64512"}`, "spec.asNumber"},
		{"AS number out of range", "BGPConfiguration", "bgpconfigurations", `{"asNumber":4294967296}`, "spec.asNumber"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			obj := object(t, c.kind, "wrong", c.spec)
			_, err := client.Resource(KindOf(t, c.plural)).Create(t.Context(), obj, metav1.CreateOptions{FieldValidation: "Strict"})
			if (!apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err)) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v does not refuse %s", err, c.want)
			}
		})
	}
}

// Every field of Calico's BGP objects is known to the definitions and to the Go types they are generated from.
func TestDefinitionsKnowBGP(t *testing.T) {
	client, err := dynamic.NewForConfig(RESTConfig(t))
	errtest.Must(t, err)
	for _, c := range []struct {
		kind, plural, spec string
		into               any
	}{
		{"BGPConfiguration", "bgpconfigurations", `{"asNumber":64512,"nodeToNodeMeshEnabled":true,"listenPort":178,"bindMode":"NodeIP",
			"ignoredInterfaces":["docker*"],"communities":[{"name":"c","value":"64512:300:100"}],
			"prefixAdvertisements":[{"cidr":"172.218.4.0/26","communities":["c","64512:120"]}],"serviceClusterIPs":[{"cidr":"10.96.0.0/12"}],
			"serviceExternalIPs":[{"cidr":"104.244.42.129/32"}],"serviceLoadBalancerIPs":[{"cidr":"172.217.3.0/24"}],
			"serviceLoadBalancerAggregation":"Disabled","nodeMeshPassword":{"secretKeyRef":{"name":"s","key":"k","optional":true}},
			"nodeMeshMaxRestartTime":"120s","logSeverityScreen":"Info","localWorkloadPeeringIPV4":"10.1.1.1","localWorkloadPeeringIPV6":"fd00::1",
			"ipv4NormalRoutePriority":1024,"ipv6NormalRoutePriority":1024,"programClusterRoutes":"Enabled"}`, &api.BGPConfigurationSpec{}},
		{"BGPPeer", "bgppeers",
			`{"nodeSelector":"rack == 'a'","peerIP":"[fd00::1]:1179","asNumber":4200000000,"localASNumber":65001,"filters":["f"],
			"nextHopMode":"Keep","password":{"secretKeyRef":{"name":"s","key":"k"}},"sourceAddress":"None",
			"maxRestartTime":"300s","keepaliveTime":"30s","numAllowedLocalASNumbers":1,"ttlSecurity":1,"reachableBy":"fd00::2",
				"reversePeering":"Manual"}`,
			&api.BGPPeerSpec{}},
		{"BGPPeer", "bgppeers", `{"node":"n","peerSelector":"has(rr)","keepOriginalNextHop":true}`, &api.BGPPeerSpec{}},
		{"BGPPeer", "bgppeers", `{"localWorkloadSelector":"all()","asNumber":65401}`, &api.BGPPeerSpec{}},
		{"BGPConfiguration", "bgpconfigurations", `{"nodeToNodeMeshEnabled":false}`, &api.BGPConfigurationSpec{}}, // v3 has no password with it
	} {
		obj := object(t, c.kind, "known", c.spec)
		kind := client.Resource(KindOf(t, c.plural))
		if _, err := kind.Create(t.Context(), obj, metav1.CreateOptions{FieldValidation: "Strict"}); err != nil {
			t.Errorf("%s: %v", c.spec, err)
			continue
		}
		if err := kind.Delete(t.Context(), "known", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := json.Unmarshal([]byte(c.spec), c.into); err != nil {
			t.Errorf("%s: %v", c.spec, err)
		}
		var want, got map[string]any
		text, _ := json.Marshal(c.into)
		err := errors.Join(json.Unmarshal([]byte(c.spec), &want), json.Unmarshal(text, &got))
		for _, field := range api.Unacted[c.kind] {
			delete(want, field)
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s became %s, %v", c.spec, text, err)
		}
	}
}

// "deleted" of a BlockAffinity has the type that Calico's programs of the group read, and no other.
func TestDefinitionsRefuseDeletedOfTheOtherGroup(t *testing.T) {
	client, err := dynamic.NewForConfig(RESTConfig(t))
	errtest.Must(t, err)
	for value, of := range map[any]groups.Group{"false": groups.V1, false: groups.V3} {
		obj := object(t, "BlockAffinity", "wrong", `{"state":"pending","node":"n","cidr":"10.0.0.0/26"}`)
		errtest.Must(t, unstructured.SetNestedField(obj.Object, value, "spec", "deleted"))
		option := metav1.CreateOptions{FieldValidation: "Strict", DryRun: []string{metav1.DryRunAll}}
		_, err := client.Resource(KindOf(t, "blockaffinities")).Create(t.Context(), obj, option)
		if in := Group(t); of == in && err != nil || of != in && !(apierrors.IsInvalid(err) && errtest.Names(err, "spec.deleted")) {
			t.Errorf("%s: deleted %#v: %v", in, value, err)
		}
	}
}

// defaultsOfV3 are the defaults that the definitions of projectcalico.org/v3 add to the objects of the next test, by
// kind and field of the spec. The definitions of crd.projectcalico.org/v1 add none.
var defaultsOfV3 = map[string]map[string]any{
	"BGPConfiguration":             {"logSeverityScreen": "Info", "serviceLoadBalancerAggregation": "Enabled"},
	"KubeControllersConfiguration": {"healthChecks": "Enabled", "prometheusMetricsPort": int64(9094)},
}

// What Calico has and Tortie does not act on is taken and kept, whatever its form. Kinds that programs write keep all
// fields.
func TestDefinitionsKeepUnactedFields(t *testing.T) {
	client, err := dynamic.NewForConfig(RESTConfig(t))
	errtest.Must(t, err)
	for kind, plural := range map[string]string{
		"BGPConfiguration": "bgpconfigurations", "FelixConfiguration": "felixconfigurations",
		"KubeControllersConfiguration": "kubecontrollersconfigurations",
		"ClusterInformation":           "clusterinformations",
	} {
		obj := object(t, kind, "kept", `{"controllers":{}}`)
		if kind != "KubeControllersConfiguration" {
			delete(obj.Object, "spec")
		}
		paths := api.Unacted[kind]
		if kind == "ClusterInformation" {
			paths = []string{"ofTheFuture"}
		}
		for i, path := range paths {
			value := []any{"text", int64(1), true, []any{map[string]any{"min": int64(1)}}, map[string]any{"all": "x"}}[i%5]
			errtest.Must(t, unstructured.SetNestedField(obj.Object, value, append([]string{"spec"}, strings.Split(path, ".")...)...))
		}
		option := metav1.CreateOptions{FieldValidation: "Strict", DryRun: []string{metav1.DryRunAll}}
		got, err := client.Resource(KindOf(t, plural)).Create(t.Context(), obj, option)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if Group(t) == groups.V3 {
			for path, value := range defaultsOfV3[kind] {
				errtest.Must(t, unstructured.SetNestedField(obj.Object, value, append([]string{"spec"}, strings.Split(path, ".")...)...))
			}
		}
		if !reflect.DeepEqual(got.Object["spec"], obj.Object["spec"]) {
			t.Errorf("%s: the spec became %v, want %v", kind, got.Object["spec"], obj.Object["spec"])
		}
	}
}

func golden(t *testing.T, file string) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(file)
	errtest.Must(t, err)
	obj := &unstructured.Unstructured{}
	errtest.Must(t, yaml.Unmarshal(text, &obj.Object))
	obj.SetResourceVersion("")
	InGroup(t, obj)
	return obj
}

func object(t *testing.T, kind, name, spec string) *unstructured.Unstructured {
	t.Helper()
	obj := &unstructured.Unstructured{}
	text := `{"apiVersion":"crd.projectcalico.org/v1","kind":"` + kind + `","metadata":{"name":"` + name + `"},"spec":` + spec + `}`
	errtest.Must(t, yaml.Unmarshal([]byte(text), &obj.Object))
	InGroup(t, obj)
	return obj
}

func TestGroupOfServers(t *testing.T) {
	for name, want := range map[string]groups.Group{"": groups.V1, "v1": groups.V1, "v3": groups.V3} {
		if g, err := defaultGroup(func(string) (string, bool) { return name, true }); g != want || err != nil {
			t.Errorf("APIGROUP=%s: %s (%v), want %s", name, g, err, want)
		}
	}
	if g, err := defaultGroup(func(string) (string, bool) { return "v2", true }); !errtest.Names(err, "APIGROUP=v2 v1 v3") {
		t.Errorf("APIGROUP=v2: %s, %v", g, err)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", TakeServer(t, Kind{Group: groups.V3}).Kubeconfig())
	errtest.Must(t, err)
	client, err := dynamic.NewForConfig(cfg)
	errtest.Must(t, err)
	list, err := client.Resource(definitions).List(t.Context(), metav1.ListOptions{})
	errtest.Must(t, err)
	for _, d := range list.Items {
		if group, _, _ := unstructured.NestedString(d.Object, "spec", "group"); group != "projectcalico.org" {
			t.Errorf("a server of %s has the definition %s", groups.V3, d.GetName())
		}
	}
	if len(list.Items) == 0 {
		t.Errorf("a server of %s has no definitions", groups.V3)
	}
}

func TestServerSurvivesItsKill(t *testing.T) {
	k := Kind{Group: groups.V3} // TestGroupOfServers has handed on such a server
	t.Run("kill", func(t *testing.T) { killAndStart(t, TakeServer(t, k)) })
	if s := takeIdle(k); s != nil {
		t.Error("a killed server was handed on")
	}
}

func killAndStart(t *testing.T, s *Server) {
	if s.Kubeconfig() == API(t) {
		t.Fatal("TakeServer returned the shared server")
	}
	for _, do := range []func() error{s.Kill, s.Start} {
		errtest.Must(t, do())
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	errtest.Must(t, err)
	client, err := dynamic.NewForConfig(cfg)
	errtest.Must(t, err)
	if _, err := client.Resource(definitions).Get(t.Context(), "ippools.projectcalico.org", metav1.GetOptions{}); err != nil {
		t.Errorf("object stored before the kill: %v", err)
	}
}

func TestTwin(t *testing.T) {
	for rule, want := range map[string]string{
		"tortie-node get nodes.":                                          "tortie-node get nodes.",
		"tortie-node list networkpolicies.networking.k8s.io":              "tortie-node list networkpolicies.networking.k8s.io",
		"tortie-node get ipamblocks.crd.projectcalico.org":                "tortie-node get ipamblocks.crd.projectcalico.org",
		"tortie-node get ipamblocks.projectcalico.org":                    "tortie-node get ipamblocks.crd.projectcalico.org",
		"tortie-cni get ipamconfigurations.projectcalico.org":             "tortie-cni get ipamconfigs.crd.projectcalico.org",
		"tortie-node patch caliconodestatuses/status.projectcalico.org":   "tortie-node patch caliconodestatuses.crd.projectcalico.org",
		"tortie-kube-controllers update ippools/status.projectcalico.org": "tortie-kube-controllers update ippools/status.crd.projectcalico.org",
	} {
		if got := Twin(rule); got != want {
			t.Errorf("%s: %s, want %s", rule, got, want)
		}
	}
}

// Objects that tests write for crd.projectcalico.org/v1 get the other group's form on a server of that group, and stay
// on one of the first.
func TestFormOfAnObject(t *testing.T) {
	const commands = "get ippools.crd.projectcalico.org; get /apis/crd.projectcalico.org/v1/tiers -l projectcalico.org/tier; " +
		"apply -f /x/charts/tortie/definitions/v1/crd.projectcalico.org_tiers.yaml"
	for in, want := range map[groups.Group]string{groups.V1: commands,
		groups.V3: "get ippools.projectcalico.org; get /apis/projectcalico.org/v3/tiers -l projectcalico.org/tier; " +
			"apply -f /x/charts/tortie/definitions/v3/projectcalico.org_tiers.yaml"} {
		if got := textIn(in, commands); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
	affinity := func() *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": string(groups.V1), "kind": "BlockAffinity", "metadata": map[string]any{
				"name": "a", "annotations": map[string]any{"projectcalico.org/metadata": `{"labels":{"a":"b"}}`},
			}, "spec": map[string]any{"deleted": "true"},
		}}
	}
	first, second := affinity(), affinity()
	InGroupOf(groups.V1, first)
	InGroupOf(groups.V3, second)
	if !reflect.DeepEqual(first, affinity()) {
		t.Errorf("%v", first)
	}
	want := map[string]any{
		"apiVersion": string(groups.V3), "kind": "BlockAffinity",
		"metadata": map[string]any{"name": "a", "labels": map[string]any{"a": "b"}}, "spec": map[string]any{"deleted": true},
	}
	if !reflect.DeepEqual(second.Object, want) {
		t.Errorf("%v, want %v", second.Object, want)
	}
}
