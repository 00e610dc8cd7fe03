package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

const chart, kustomize = "../charts/tortie", "kustomize"

// helm renders the chart; hooks and the test's pods are among the objects.
func helm(t *testing.T, args ...string) string {
	t.Helper()
	text, err := tryHelm(t, args...)
	errtest.Must(t, err)
	return text
}

func tryHelm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return output(labtest.Program(t, "helm"), append([]string{"template", "tortie", chart, "--namespace", "kube-system"}, args...)...)
}

func output(program string, args ...string) (string, error) {
	cmd := exec.Command(program, args...)
	var diag bytes.Buffer
	cmd.Stderr = &diag
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %q: %w: %s", filepath.Base(program), args, err, diag.Bytes())
	}
	return string(out), nil
}

// valueSets returns the files of values that the golden files are made with, by name.
func valueSets(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.values.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d sets of values: %v", len(files), err)
	}
	sets := map[string]string{}
	for _, file := range files {
		sets[strings.TrimSuffix(filepath.Base(file), ".values.yaml")] = file
	}
	return sets
}

// TestGolden compares what values change of the default objects, which manifests/tortie.yaml shows in full, with golden
// files:
//
//	go test ./manifests -run TestGolden -update
func TestGolden(t *testing.T) {
	defaults := write(t, "default", helm(t))
	for name, values := range valueSets(t) {
		t.Run(name, func(t *testing.T) {
			difftest.Golden(t, name+".golden", diff(t, defaults, write(t, name, helm(t, "--values", values))))
		})
	}
	t.Run("hooks", func(t *testing.T) { difftest.Golden(t, "hooks.golden", hooks(t)) })
}

func write(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	errtest.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// place is where in a file a difference is: by line, which any edit before it changes.
var place = regexp.MustCompile(`(?m)^@@ -[0-9,]+ \+[0-9,]+ @@`)

// diff returns the differences below the name of their object.
func diff(t *testing.T, from, to string) string {
	t.Helper()
	out, err := exec.Command("diff", "-U0", "-F", "^  name:", from, to).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		err = nil
	}
	errtest.Must(t, err)
	_, hunks, _ := bytes.Cut(out, []byte("\n@@")) // after the files' names
	return place.ReplaceAllString("@@"+string(hunks), "@@")
}

// hooks returns the objects that are Helm's to make and remove, in full, as tortie.yaml does not have them. The
// definitions are generated files of their own.
func hooks(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	for doc := range strings.SplitSeq(helm(t), "\n---\n") {
		if strings.Contains(doc, "helm.sh/hook:") && !strings.Contains(doc, "kind: ConfigMap\nmetadata:\n  name: tortie-definitions\n") {
			out.WriteString(strings.TrimSpace(doc) + "\n---\n")
		}
	}
	return out.String()
}

// TestLogsOfTheTestAreShownOnce: helm test --logs shows a pod's log for each hook of the test, by the hook's name.
func TestLogsOfTheTestAreShownOnce(t *testing.T) {
	var found []string
	for _, obj := range decode(t, helm(t)) {
		if obj.GetAnnotations()["helm.sh/hook"] == "test" {
			found = append(found, obj.GetKind()+" "+obj.GetName())
		}
	}
	if !slices.Equal(found, []string{"Pod tortie-test"}) {
		t.Errorf("hooks of helm test: %q, want one pod", found)
	}
}

// TestHookOfUninstallIsOptional: without it nothing is asked of the nodes.
func TestHookOfUninstallIsOptional(t *testing.T) {
	if text := helm(t, "--set", "uninstall.cleanHosts=false"); strings.Contains(text, "pre-delete") {
		t.Error("there is a hook before the release's end although uninstall.cleanHosts is false")
	}
}

// TestKustomize: base and overlays build, and are what Helm makes of the same values for the oldest Kubernetes that has
// all of their kinds, with the definitions of the group that new clusters get.
func TestKustomize(t *testing.T) {
	files, err := filepath.Glob(labtest.DefinitionsDir(groups.V1) + "/*.yaml")
	errtest.Must(t, err)
	definitions := ""
	for _, file := range files {
		text, err := os.ReadFile(file)
		errtest.Must(t, err)
		definitions += "\n---\n" + string(text)
	}
	for _, dir := range append(overlays(t), kustomize+"/base") {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			args := []string{"--no-hooks", "--kube-version", "1.31.0"}
			if values := filepath.Join(dir, "values.yaml"); dir != kustomize+"/base" {
				args = append(args, "--values", values)
			}
			built, err := output(labtest.Program(t, "kubectl"), "kustomize", dir)
			errtest.Must(t, err)
			want, got := byName(t, helm(t, args...)+definitions), byName(t, built)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("kustomize builds something else (-helm +kustomize):\n%s", d)
			}
		})
	}
}

func overlays(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob(kustomize + "/overlays/*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no overlays: %v", err)
	}
	return dirs
}

// byName reads objects, without what is true of a Helm release only, and with the variables of containers in the order
// of their names.
func byName(t *testing.T, text string) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for _, obj := range decode(t, text) {
		labels := obj.GetLabels()
		if labels["app.kubernetes.io/component"] == "test" {
			continue // helm test is Helm's
		}
		maps.DeleteFunc(labels, func(key, value string) bool { return key == "helm.sh/chart" || value == "Helm" })
		obj.SetLabels(labels)
		sortVariables(obj.Object)
		key := obj.GetKind() + " " + obj.GetName()
		if all[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		all[key] = obj.Object
	}
	return all
}

func decode(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	var all []*unstructured.Unstructured
	for {
		obj := &unstructured.Unstructured{}
		if err := decoder.Decode(&obj.Object); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if len(obj.Object) > 0 {
			all = append(all, obj)
		}
	}
}

func sortVariables(tree any) {
	switch t := tree.(type) {
	case map[string]any:
		for key, value := range t {
			if list, ok := value.([]any); ok && key == "env" {
				slices.SortFunc(list, func(a, b any) int { return strings.Compare(variable(a), variable(b)) })
			}
			sortVariables(value)
		}
	case []any:
		for _, value := range t {
			sortVariables(value)
		}
	}
}

func variable(item any) string {
	tree, _ := item.(map[string]any)
	name, _ := tree["name"].(string)
	return name
}

// TestWrongValues: invalid, out-of-range and contradictory values are rejected, and the error names the value.
func TestWrongValues(t *testing.T) {
	for _, c := range []struct{ set, want string }{
		{"imgae.tag=v1", "imgae"},
		{"bgp.prot=179", "prot"},
		{"image.repository=", "repository"},
		{"image.repository=tortie:v1", "repository"},
		{"image.pullPolicy=Sometimes", "pullPolicy"},
		{"image.digest=sha256:0123", "digest"},
		{"cni.extraEnv[0].nmae=x", "nmae"},
		{`podLabels.app\.kubernetes\.io/name=x`, "podLabels"},
		{"updateStrategy=Recreate", "updateStrategy"},
		{"seLinuxOptions.typ=spc_t", "typ"},
		{"ipPool.cidr=192.168.0.0", "cidr"},
		{"ipPool.blockSize=33", "blockSize"},
		{"ipv6Pool.cidr=10.0.0.0/8", "ipv6Pool"},
		{"ipFamilies={IPv5}", "ipFamilies"},
		{"ipFamilies={}", "ipFamilies"},
		{"ipPool.vxlanMode=Always", "ipPool.vxlanMode is Always and ipPool.ipipMode is Always: a pool has one encapsulation"},
		{"mtu=-1", "mtu"},
		{"nodeAddress.ipv4=eth0", "ipv4"},
		{"bgp.asNumber=0", "asNumber"},
		{"bgp.passwordSecret=Not_A_Name", "passwordSecret"},
		{"policy.enabled=auto", "enabled"},
		{"logLevel=verbose", "logLevel"},
		{"maxUnavailable=0", "maxUnavailable"},
		{"maxUnavailable=0%", "maxUnavailable"},
		{"tolerations[0].efect=NoSchedule", "efect"},
		{"monitoring.metrics.port=0", "port"},
		{"monitoring.podMonitor.enabled=true", "monitoring.podMonitor.enabled needs monitoring.metrics.enabled"},
		{"monitoring.serviceMonitor.enabled=true", "monitoring.serviceMonitor.enabled needs monitoring.metrics.enabled"},
		{"uninstall.timeoutSeconds=1", "timeoutSeconds"},
		{"apiServer.port=65536", "port"},
		{"extraEnv[0].value=x", "name"},
		{"extraEnv[0].nmae=x", "nmae"},
	} {
		if _, err := tryHelm(t, "--set", c.set); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.set, err, c.want)
		}
	}
}
