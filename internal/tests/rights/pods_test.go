package rights

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/tests/rights/fence"
)

// templates returns the pods of the chart by workload, with every value enabled. The pods of hooks may be in a
// ConfigMap.
func templates(t *testing.T) map[string]corev1.PodSpec {
	t.Helper()
	objects := labtest.Chart(t, "--set", "migrateFromHostLocal=true,monitoring.metrics.enabled=true,bgp.passwordSecret=bgp,"+
		"policy.flows.enabled=true,policy.flows.file=true,wireguard.threaded=true")
	for _, obj := range objects {
		data, _, _ := unstructured.NestedStringMap(obj.Object, "data")
		for key, text := range data {
			inner := &unstructured.Unstructured{}
			if yaml.Unmarshal([]byte(text), &inner.Object) == nil && inner.GetKind() == "Pod" {
				inner.SetName(obj.GetName() + "/" + key)
				objects = append(objects, inner)
			}
		}
	}
	pods := map[string]corev1.PodSpec{}
	for _, obj := range objects {
		spec, ok, _ := unstructured.NestedMap(obj.Object, "spec", "template", "spec")
		if obj.GetKind() == "Pod" {
			spec, ok, _ = unstructured.NestedMap(obj.Object, "spec")
		}
		if !ok {
			continue
		}
		var pod corev1.PodSpec
		errtest.Must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &pod))
		pods[obj.GetKind()+" "+obj.GetName()] = pod
	}
	return pods
}

// TestHost: each container has exactly the host access of the model: user, network, capabilities and directories.
func TestHost(t *testing.T) {
	got, want := map[string][]string{}, map[string][]string{}
	for _, pod := range templates(t) {
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			has := &fence.Container{Name: c.Name, Root: isRoot(&pod, &c), HostNetwork: pod.HostNetwork}
			for _, capability := range c.SecurityContext.Capabilities.Add {
				has.Capabilities = append(has.Capabilities, fence.Capability{Name: string(capability)})
			}
			for _, m := range c.VolumeMounts {
				i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
				if host := pod.Volumes[i].HostPath; host != nil {
					has.Paths = append(has.Paths, fence.Path{Path: filepath.Join(host.Path, m.SubPath), Write: !m.ReadOnly})
				}
			}
			got[c.Name] = slices.Sorted(slices.Values(has.Has()))
		}
	}
	for _, c := range fence.Containers {
		want[c.Name] = slices.Sorted(slices.Values(c.Has()))
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("host access, by the model (-) and by the chart (+):\n%s", d)
	}
}

// isRoot reports whether a container runs as user 0, or may.
func isRoot(pod *corev1.PodSpec, c *corev1.Container) bool {
	user := c.SecurityContext.RunAsUser
	if user == nil && pod.SecurityContext != nil {
		user = pod.SecurityContext.RunAsUser
	}
	return user == nil || *user == 0
}

// TestTemplates checks the security context of each container.
func TestTemplates(t *testing.T) {
	pods := templates(t)
	if len(pods) < 2 {
		t.Fatalf("the chart makes the pods %v", pods)
	}
	for name, pod := range pods {
		if pod.HostPID || pod.HostIPC {
			t.Errorf("%s uses the host's PID namespace", name)
		}
		if s := pod.SecurityContext; s == nil || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s has no seccomp profile RuntimeDefault", name)
		}
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			for _, fault := range faults(c) {
				t.Errorf("%s, container %s: %s", name, c.Name, fault)
			}
		}
	}
}

func faults(c corev1.Container) (found []string) {
	s := c.SecurityContext
	if s == nil || s.Capabilities == nil {
		return []string{"no securityContext with capabilities"}
	}
	if s.Privileged != nil && *s.Privileged {
		found = append(found, "it is privileged")
	}
	if s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
		found = append(found, "it may gain privileges")
	}
	if s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem {
		found = append(found, "its root is writable")
	}
	if !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		found = append(found, "it does not drop all capabilities")
	}
	return found
}

// violations are the checks of the level restricted that each pod fails: what a cluster must allow it.
var violations = map[string][]string{
	"DaemonSet tortie-node": {
		"host namespaces", "hostPort", "probe or lifecycle host", "restricted volume types", "runAsNonRoot != true", "runAsUser=0",
		"unrestricted capabilities",
	},
	// These run before the pod network is ready, or without it.
	"Deployment tortie-kube-controllers": {"host namespaces", "hostPort", "probe or lifecycle host"},
	"Pod tortie-test":                    {"host namespaces"},
	"Job tortie-uninstall":               {"host namespaces"},
	"Job tortie-definitions":             {"host namespaces"},
	"Pod tortie-uninstall/pod.yaml": {"host namespaces", "restricted volume types", "runAsNonRoot != true", "runAsUser=0",
		"unrestricted capabilities"},
}

// TestPodSecurity sends each pod through the API server's PodSecurity admission.
func TestPodSecurity(t *testing.T) {
	cfg := labtest.RESTConfig(t)
	admin, checksProbes := newUser(t, cfg), release(t, cfg).AtLeast(version.MajorMinor(1, 34))
	const strict = "restricted"
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: strict,
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": strict}}}
	if _, err := admin.core.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	known := func(checks []string) []string {
		return slices.DeleteFunc(slices.Clone(checks), func(check string) bool { return check == "probe or lifecycle host" && !checksProbes })
	}
	for name, spec := range templates(t) {
		spec.PriorityClassName = "" // other namespaces may not use the system classes
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"}, Spec: spec}
		_, err := admin.core.CoreV1().Pods(strict).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if diff := cmp.Diff(known(violations[name]), violated(err)); diff != "" {
			t.Errorf("%s (-want +got):\n%s\n%v", name, diff, err)
		}
	}
}

// violated returns the names of the failed checks.
func violated(err error) (checks []string) {
	if err == nil {
		return nil
	}
	_, list, _ := strings.Cut(err.Error(), `violates PodSecurity "restricted:latest": `)
	depth, start := 0, 0
	for i, c := range list + "," {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			name, _, _ := strings.Cut(strings.TrimSpace(list[start:i]), " (")
			checks, start = append(checks, name), i+1
		}
	}
	slices.Sort(checks)
	return checks
}
