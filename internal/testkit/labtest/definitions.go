package labtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// Group returns the API group of the definitions on test servers, except for NewServerOf: crd.projectcalico.org/v1, or
// projectcalico.org/v3 by the variable APIGROUP=v3. No other place decides. Any other value of APIGROUP ends the test.
func Group(t testing.TB) groups.Group {
	t.Helper()
	g, err := defaultGroup(config.OS())
	errtest.Must(t, err)
	return g
}

func defaultGroup(env config.Env) (groups.Group, error) {
	switch name, _ := env("APIGROUP"); name {
	case "", "v1":
		return groups.V1, nil
	case "v3":
		return groups.V3, nil
	default:
		return "", fmt.Errorf("APIGROUP=%s: set it to v1 or v3, or leave it out", name)
	}
}

// DefinitionsDir returns the directory of the chart with this project's definitions of an API group.
func DefinitionsDir(g groups.Group) string {
	return filepath.Join(ChartDir(), "definitions", path.Base(string(g)))
}

// ClusterNetworkPolicyDefinition returns the path of the definition of ClusterNetworkPolicy with all fields, from the
// release of the conformance tests in the lab. It belongs to no chart of this project.
func ClusterNetworkPolicyDefinition(t testing.TB) string {
	t.Helper()
	const module = "sigs.k8s.io/network-policy-api"
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module) // it may not be here yet
	cmd.Dir = filepath.Join(Root(), "lab", "conformance")
	out, err := cmd.Output()
	var of struct{ Dir string }
	if err := errors.Join(err, json.Unmarshal(out, &of)); err != nil {
		t.Fatalf("download module %s: %v: %s", module, err, out)
	}
	return filepath.Join(of.Dir, "config", "crd", "experimental", "policy.networking.k8s.io_clusternetworkpolicies.yaml")
}

// DefineClusterNetworkPolicy creates that definition on a server.
func (s *Server) DefineClusterNetworkPolicy(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	errtest.Must(t, applyDefinitions(ctx, s.kubeconfig, ClusterNetworkPolicyDefinition(t)))
}

// defineGroup creates this project's definitions of an API group.
func defineGroup(ctx context.Context, kubeconfig string, g groups.Group) error {
	return applyDefinitions(ctx, kubeconfig, filepath.Join(DefinitionsDir(g), "*.yaml"))
}

// Define creates this project's definitions of some kinds, by their plurals in an API group, on the server of API,
// beside its existing ones.
func Define(t testing.TB, g groups.Group, plurals ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), definePatience)
	defer cancel()
	for _, plural := range plurals {
		file := path.Dir(string(g)) + "_" + plural + ".yaml"
		errtest.Must(t, applyDefinitions(ctx, API(t), filepath.Join(DefinitionsDir(g), file)))
	}
}

// definePatience bounds applyDefinitions: in an emulated machine the API server takes minutes for the rules of Calico's
// policies.
const definePatience = 10 * time.Minute

// applyDefinitions creates every definition of the files that match a pattern, and returns when the API server serves
// them.
func applyDefinitions(ctx context.Context, kubeconfig, pattern string) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read the lab's kubeconfig: %w", err)
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("build a client of the lab: %w", err)
	}
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no definitions in %s (run `make generate`): %v", pattern, err)
	}
	var created []*unstructured.Unstructured
	for _, file := range files {
		def, err := createDefinition(ctx, client, file)
		if err != nil {
			return err
		}
		created = append(created, def)
	}
	for _, def := range created {
		if err := waitServed(ctx, client, def); err != nil {
			return err
		}
	}
	return nil
}

func createDefinition(ctx context.Context, client dynamic.Interface, file string) (*unstructured.Unstructured, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read definition: %w", err)
	}
	def := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &def.Object); err != nil {
		return nil, fmt.Errorf("decode %s: %w", file, err)
	}
	if _, err := client.Resource(definitions).Create(ctx, def, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create definition %s: %w", def.GetName(), err)
	}
	return def, nil
}

// waitServed lists the new kind until that succeeds: the condition Established is true before the resource is served.
func waitServed(ctx context.Context, client dynamic.Interface, def *unstructured.Unstructured) error {
	group, _, _ := unstructured.NestedString(def.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(def.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(def.Object, "spec", "versions")
	first, _ := versions[0].(map[string]any)
	version, _, _ := unstructured.NestedString(first, "name")
	kind := schema.GroupVersionResource{Group: group, Version: version, Resource: plural}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := client.Resource(kind).List(ctx, metav1.ListOptions{Limit: 1})
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s is served: %w", def.GetName(), err)
		case <-tick.C:
		}
	}
}
