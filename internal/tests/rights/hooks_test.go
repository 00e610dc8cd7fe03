package rights

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/install/definitions"
	"github.com/tortie-net/tortie/internal/install/objects"
	"github.com/tortie-net/tortie/internal/install/traffic"
	"github.com/tortie-net/tortie/internal/install/uninstall"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// hooks runs Helm's hooks, each with its own account: definitions are upgraded, packets are sent between pods, and the
// first node is cleaned. No kubelet runs here; the test updates the pods of the first node.
func (l *life) hooks(t *testing.T) {
	admin := newUser(t, l.Admin)
	l.upgrade(t, admin)
	patchNode(t, admin, `{"metadata":{"labels":{"kubernetes.io/os":"linux"}}}`)
	patchNode(t, admin, `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, "status")
	cluster, err := objects.New(l.as(t, "tortie-test"))
	errtest.Must(t, err)
	// Time for each request before the pods, which never come.
	settings := traffic.Settings{Namespace: "kube-system", Pod: chartPod(t, "tortie-test", chartArgs...),
		Timeout: 10 * time.Second * meshtest.TimeScale}
	if err := traffic.New(cluster, settings, func(string) {}).Run(t.Context()); err == nil ||
		!strings.Contains(err.Error(), ": waiting for pod") {
		t.Errorf("helm test without a kubelet: %v", err)
	}
	away := uninstall.Settings{Namespace: "kube-system", DaemonSet: "tortie-node", Agents: "none=none",
		Pod: chartPod(t, "tortie-uninstall", chartArgs...), Timeout: meshtest.Patience}
	u, err := uninstall.New(l.as(t, "tortie-uninstall"), away, func(string) {})
	errtest.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan struct{})
	go func() { defer close(served); endPods(ctx, admin) }()
	errtest.Must(t, u.Run(t.Context()))
	stop()
	<-served
}

// as returns a configuration with the account of a hook, which has had the chart's roles since the beginning.
func (l *life) as(t *testing.T, account string) *rest.Config { return asHook(t, l.Admin, account) }

func asHook(t *testing.T, admin *rest.Config, account string) *rest.Config {
	t.Helper()
	accounts := newUser(t, admin).core.CoreV1().ServiceAccounts("kube-system")
	_, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	errtest.Must(t, err)
	answer, err := accounts.CreateToken(t.Context(), account, &authv1.TokenRequest{}, metav1.CreateOptions{})
	errtest.Must(t, err)
	cfg := rest.AnonymousClientConfig(admin)
	cfg.BearerToken = answer.Status.Token
	return cfg
}

// upgrade creates a missing definition, and completes one that another installer has created.
func (l *life) upgrade(t *testing.T, admin *user) {
	t.Helper()
	kind := admin.any.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"})
	errtest.Must(t, kind.Delete(t.Context(), "bgpfilters.crd.projectcalico.org", metav1.DeleteOptions{}))
	_, err := kind.Patch(t.Context(), "ipreservations.crd.projectcalico.org", types.JSONPatchType, []byte(`[
		{"op": "remove", "path": "/metadata/labels/app.kubernetes.io~1part-of"},
		{"op": "remove", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec"}]`), metav1.PatchOptions{})
	errtest.Must(t, err)
	all, err := definitions.Read(os.DirFS(labtest.DefinitionsDir(groups.V1)))
	errtest.Must(t, err)
	told, account := "", l.as(t, "tortie-definitions")
	applier, err := definitions.NewApplier(account, func(line string) { told += line + "\n" })
	errtest.Must(t, err)
	store, err := cluster.OpenStore(cluster.Server{Config: account})
	errtest.Must(t, err)
	defer store.Close()
	ctx, cancel := context.WithTimeout(t.Context(), meshtest.Patience)
	defer cancel()
	errtest.Must(t, applier.Install(ctx, all, store, ""))
	difftest.Contains(t, told, "bgpfilters.crd.projectcalico.org: "+string(definitions.Create),
		"ipreservations.crd.projectcalico.org: "+string(definitions.Extend))
}

func patchNode(t *testing.T, admin *user, change string, sub ...string) {
	t.Helper()
	_, err := admin.core.CoreV1().Nodes().Patch(t.Context(), "first", types.StrategicMergePatchType, []byte(change),
		metav1.PatchOptions{}, sub...)
	errtest.Must(t, err)
}

// endPods sets the status of the pods that clean the first node to Succeeded, until ctx ends.
func endPods(ctx context.Context, admin *user) {
	pods := admin.core.CoreV1().Pods("kube-system")
	for tick := time.Tick(50 * time.Millisecond); ctx.Err() == nil; <-tick {
		all, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "tortie.io/uninstall"})
		if err != nil {
			continue // the uninstallation reports the node as not cleaned
		}
		for i := range all.Items {
			all.Items[i].Status.Phase = corev1.PodSucceeded
			_, _ = pods.UpdateStatus(ctx, &all.Items[i], metav1.UpdateOptions{}) // retried in the next round
		}
	}
}

// chartPod returns the pod that a hook of the chart creates, from its ConfigMap.
func chartPod(t *testing.T, hook string, args ...string) *corev1.Pod {
	t.Helper()
	for _, obj := range labtest.Chart(t, args...) {
		if obj.GetKind() != "ConfigMap" || obj.GetName() != hook {
			continue
		}
		text, _, _ := unstructured.NestedString(obj.Object, "data", "pod.yaml")
		pod := &corev1.Pod{}
		errtest.Must(t, yaml.Unmarshal([]byte(text), pod))
		return pod
	}
	t.Fatalf("the chart has no ConfigMap %s", hook)
	return nil
}

// TestHookPods: a hook may create the chart's pods and no others, on any node, and delete no others.
func TestHookPods(t *testing.T) {
	cfg := server(t, "auto", "--set", "extraEnv[0].name=A,extraEnv[0].value=b")
	admin := newUser(t, cfg)
	labtest.GrantAll(t, cfg, labtest.Chart(t))
	for _, hook := range []string{"tortie-uninstall", "tortie-test"} {
		pods := newUser(t, asHook(t, cfg, hook)).core.CoreV1().Pods("kube-system")
		label := map[string]string{"tortie-uninstall": "tortie.io/uninstall", "tortie-test": "tortie.io/test"}[hook]
		base := chartPod(t, hook, "--set", "extraEnv[0].name=A,extraEnv[0].value=b")
		base.Name, base.Spec.NodeName, base.Labels[label] = hook+"-pod", "any", "run"
		yes := true
		for name, c := range map[string]struct {
			change  func(*corev1.PodSpec)
			refused bool
		}{
			"as the chart has it":   {func(*corev1.PodSpec) {}, false},
			"with fewer arguments":  {func(p *corev1.PodSpec) { p.Containers[0].Args = nil }, false},
			"with an account":       {func(p *corev1.PodSpec) { p.ServiceAccountName = "tortie-kube-controllers" }, true},
			"with a token":          {func(p *corev1.PodSpec) { p.AutomountServiceAccountToken = &yes }, true},
			"with another image":    {func(p *corev1.PodSpec) { p.Containers[0].Image = "thief.example/x" }, true},
			"with another command":  {func(p *corev1.PodSpec) { p.Containers[0].Command = []string{"/bin/sh"} }, true},
			"with another argument": {func(p *corev1.PodSpec) { p.Containers[0].Args = []string{"-x"} }, true},
			"with more in its environment": {func(p *corev1.PodSpec) {
				p.Containers[0].Env = append(p.Containers[0].Env, corev1.EnvVar{Name: "LD_PRELOAD", Value: "x"})
			}, true},
			"with another container": {func(p *corev1.PodSpec) {
				p.Containers = append(p.Containers, p.Containers[0])
				p.Containers[1].Name = "other"
			}, true},
			"with another container first": {func(p *corev1.PodSpec) {
				p.InitContainers = append(p.InitContainers, corev1.Container{Name: "first", Image: "x"})
			}, true},
			"privileged": {func(p *corev1.PodSpec) {
				p.Containers[0].SecurityContext.AllowPrivilegeEscalation, p.Containers[0].SecurityContext.Privileged = &yes, &yes
			}, true},
			"with a capability": {func(p *corev1.PodSpec) {
				p.Containers[0].SecurityContext.Capabilities.Add = append(p.Containers[0].SecurityContext.Capabilities.Add, "SYS_ADMIN")
			}, true},
			"that sees the host's processes": {func(p *corev1.PodSpec) { p.HostPID = true }, true},
			"in the other network":           {func(p *corev1.PodSpec) { p.HostNetwork = !p.HostNetwork }, true},
			"with a directory of the host": {func(p *corev1.PodSpec) {
				p.Volumes = append(p.Volumes,
					corev1.Volume{Name: "root", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}})
			}, true},
			"with a probe": {func(p *corev1.PodSpec) {
				p.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/x"}}}}
			}, true},
			"with another profile": {func(p *corev1.PodSpec) { p.SecurityContext.SeccompProfile.Type = corev1.SeccompProfileTypeUnconfined }, true},
		} {
			pod := base.DeepCopy()
			c.change(&pod.Spec)
			_, err := pods.Create(t.Context(), pod, metav1.CreateOptions{DryRun: dryRun})
			check(t, hook+" makes a pod "+name, err, c.refused)
		}
		made := object(t, `{apiVersion: v1, kind: Pod, metadata: {name: %s-other, namespace: kube-system, labels: {app: x}}, spec: `+
			`{containers: [{name: c, image: none}]}}`, hook)
		admin.create(t, made)
		refused(t, hook+" deletes another's pod", pods.Delete(t.Context(), made.GetName(), metav1.DeleteOptions{DryRun: dryRun}))
		own, err := pods.Create(t.Context(), base, metav1.CreateOptions{})
		errtest.Must(t, err)
		passed(t, hook+" deletes its pod", pods.Delete(t.Context(), own.Name, *metav1.NewDeleteOptions(0)))
	}
}
