package manifests

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/program/hook"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// kubelet runs the Job of the chart's definitions in this process, as no kubelet does here.
type kubelet struct {
	*testing.T
	kubeconfig string
	client     kubernetes.Interface
}

// TestInstall has Helm install the chart, with its hook, on a cluster without definitions and on one that has those of
// projectcalico.org/v3: there are definitions of one group then, and the release's BGPConfiguration in it. That stays
// the same object, with what the values say, through upgrades, a rollback, the removal and another installation.
func TestInstall(t *testing.T) {
	for name, c := range map[string]struct {
		server *labtest.Server
		of     groups.Group
	}{
		"new cluster": {labtest.NewBareServer(t), groups.V1},
		"v3 alone":    {labtest.NewServerOf(t, groups.V3), groups.V3},
	} {
		t.Run(name, func(t *testing.T) {
			kubeconfig := c.server.Kubeconfig()
			cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
			errtest.Must(t, err)
			client, err := kubernetes.NewForConfig(cfg)
			errtest.Must(t, err)
			objects, err := dynamic.NewForConfig(cfg)
			errtest.Must(t, err)
			k := kubelet{t, kubeconfig, client}
			as := func(number int64) types.UID {
				t.Helper()
				group, version, _ := strings.Cut(string(c.of), "/")
				of := schema.GroupVersionResource{Group: group, Version: version, Resource: "bgpconfigurations"}
				obj, err := objects.Resource(of).Get(t.Context(), "default", metav1.GetOptions{})
				errtest.Must(t, err)
				if is, _, err := unstructured.NestedInt64(obj.Object, "spec", "asNumber"); err != nil || is != number {
					t.Errorf("spec.asNumber is %d (%v), want %d", is, err, number)
				}
				return obj.GetUID()
			}
			k.release("install", "--set", "bgp.asNumber=64600")
			made := as(64600)
			for _, g := range groups.All {
				found, err := client.Discovery().ServerResourcesForGroupVersion(string(g))
				if there := err == nil && len(found.APIResources) > 0; there != (g == c.of) {
					t.Errorf("definitions of %s: %v (%v)", g, there, err)
				}
			}
			if c.of == groups.V3 {
				return // the rest is the same
			}
			same := func(did string, number int64) {
				t.Helper()
				if now := as(number); now != made {
					t.Errorf("%s made another BGPConfiguration", did)
				}
			}
			k.release("upgrade", "--set", "bgp.asNumber=64601")
			same("an upgrade", 64601)
			k.alone("rollback", "1", "--no-hooks")
			k.release("upgrade", "--reset-values")
			same("an upgrade to the default AS", 64512)
			k.alone("uninstall", "--no-hooks")
			same("the removal", 64512)
			k.release("install", "--set", "bgp.asNumber=64600")
			same("another installation", 64600)
			k.alone("uninstall", "--no-hooks")
		})
	}
}

func (k *kubelet) helm(verb string, args ...string) (string, error) {
	args = append([]string{verb, "tortie", "--namespace", "kube-system", "--kubeconfig", k.kubeconfig}, args...)
	out, err := exec.CommandContext(k.Context(), labtest.Program(k.T, "helm"), args...).CombinedOutput()
	return string(out), err
}

// alone runs Helm's verb without the chart's Job.
func (k *kubelet) alone(verb string, args ...string) {
	k.Helper()
	if out, err := k.helm(verb, args...); err != nil {
		k.Fatalf("helm %s: %v: %s", verb, err, out)
	}
}

// release runs Helm's verb, and the chart's Job while Helm waits for it.
func (k *kubelet) release(verb string, values ...string) {
	k.Helper()
	ctx, cancel := context.WithTimeout(k.Context(), meshtest.Patience)
	defer cancel()
	jobs, err := k.client.BatchV1().Jobs("kube-system").Watch(ctx, metav1.ListOptions{})
	errtest.Must(k.T, err)
	defer jobs.Stop()
	var out string
	done := make(chan error, 1)
	go func() {
		text, err := k.helm(verb, append([]string{chart}, values...)...)
		out = text
		done <- err
	}()
	for ran := false; ; {
		select {
		case event := <-jobs.ResultChan():
			if job, ok := event.Object.(*batchv1.Job); ok && !ran {
				k.run(ctx, job)
				ran = true
			}
		case err := <-done:
			if err != nil || !ran {
				k.Fatalf("helm %s: %v, the Job ran: %v: %s", verb, err, ran, out)
			}
			return
		}
	}
}

// run does what a Job's pod would, and says that it has ended.
func (k *kubelet) run(ctx context.Context, job *batchv1.Job) {
	k.Helper()
	container, dir := job.Spec.Template.Spec.Containers[0], k.TempDir()
	definitions, err := k.client.CoreV1().ConfigMaps(job.Namespace).Get(ctx, "tortie-definitions", metav1.GetOptions{})
	errtest.Must(k.T, err)
	for name, text := range definitions.Data {
		errtest.Must(k.T, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	args := append(append([]string{container.Command[2]}, container.Args...), "-dir", dir, "-kubeconfig", k.kubeconfig)
	if code := hook.Main(args); code != 0 {
		k.Errorf("hook %q: exit code %d", args, code)
	}
	now := metav1.NewTime(time.Now())
	job.Status.StartTime, job.Status.CompletionTime = &now, &now
	for _, condition := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
		job.Status.Conditions = append(job.Status.Conditions, batchv1.JobCondition{Type: condition, Status: corev1.ConditionTrue,
			LastTransitionTime: now})
	}
	_, err = k.client.BatchV1().Jobs(job.Namespace).UpdateStatus(ctx, job, metav1.UpdateOptions{})
	errtest.Must(k.T, err)
}
