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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/definitions"
	"github.com/tortie-net/tortie/internal/mesh/meshtest"
	"github.com/tortie-net/tortie/internal/objects"
	"github.com/tortie-net/tortie/internal/traffic"
	"github.com/tortie-net/tortie/internal/uninstall"
)

// hooks are the end of life: definitions are brought up to date, packets are sent between pods, and the first node is left, each by its own
// account. No kubelet runs here; the test plays the part of the first node's.
func (l *life) hooks(t *testing.T) {
	admin := newUser(t, l.Admin)
	l.upgrade(t, admin)
	patchNode(t, admin, `{"metadata":{"labels":{"kubernetes.io/os":"linux"}}}`)
	patchNode(t, admin, `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, "status")
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}}}
	cluster, err := objects.New(l.as(t, "tortie-test"))
	must(t, err)
	test := traffic.New(cluster, traffic.Settings{Namespace: "kube-system", Pod: pod, Timeout: time.Second}, func(string) {})
	if err := test.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "it took longer than 1s: waiting for pod") {
		t.Errorf("helm test, whose pods nobody runs: %v", err)
	}
	settings := uninstall.Settings{Namespace: "kube-system", DaemonSet: "tortie-node", Agents: "none=none", Pod: pod, Timeout: meshtest.Patience}
	u, err := uninstall.New(l.as(t, "tortie-uninstall"), settings, func(string) {})
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan struct{})
	go func() { defer close(served); endPods(ctx, admin) }()
	must(t, u.Run(t.Context()))
	stop()
	<-served
}

// as is the API server as one of the hooks' accounts, which have had the chart's rights since the beginning.
func (l *life) as(t *testing.T, account string) *rest.Config {
	t.Helper()
	accounts := newUser(t, l.Admin).core.CoreV1().ServiceAccounts("kube-system")
	_, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	must(t, err)
	answer, err := accounts.CreateToken(t.Context(), account, &authv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	cfg := rest.AnonymousClientConfig(l.Admin)
	cfg.BearerToken = answer.Status.Token
	return cfg
}

// upgrade creates a definition that is missing, and completes one that somebody else has made.
func (l *life) upgrade(t *testing.T, admin *user) {
	t.Helper()
	kind := admin.any.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	must(t, kind.Delete(t.Context(), "bgpfilters.crd.projectcalico.org", metav1.DeleteOptions{}))
	_, err := kind.Patch(t.Context(), "ipreservations.crd.projectcalico.org", types.JSONPatchType, []byte(`[
		{"op": "remove", "path": "/metadata/labels/app.kubernetes.io~1part-of"},
		{"op": "remove", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec"}]`), metav1.PatchOptions{})
	must(t, err)
	all, err := definitions.Read(os.DirFS("../../charts/tortie/crds"))
	must(t, err)
	told := ""
	applier, err := definitions.NewApplier(l.as(t, "tortie-upgrade"), func(line string) { told += line + "\n" })
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), meshtest.Patience)
	defer cancel()
	must(t, applier.Apply(ctx, all))
	for _, want := range []string{"bgpfilters.crd.projectcalico.org: " + string(definitions.Create), "ipreservations.crd.projectcalico.org: " + string(definitions.Extend)} {
		if !strings.Contains(told, want) {
			t.Errorf("the upgrade says\n%swant %s", told, want)
		}
	}
}

func patchNode(t *testing.T, admin *user, change string, sub ...string) {
	t.Helper()
	_, err := admin.core.CoreV1().Nodes().Patch(t.Context(), "first", types.StrategicMergePatchType, []byte(change), metav1.PatchOptions{}, sub...)
	must(t, err)
}

// endPods says of the pods that clean the first node that they have, until ctx ends.
func endPods(ctx context.Context, admin *user) {
	pods := admin.core.CoreV1().Pods("kube-system")
	for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		all, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "tortie.io/uninstall"})
		if err != nil {
			continue // the uninstallation says that nobody has cleaned
		}
		for i := range all.Items {
			all.Items[i].Status.Phase = corev1.PodSucceeded
			_, _ = pods.UpdateStatus(ctx, &all.Items[i], metav1.UpdateOptions{}) // else at the next turn
		}
	}
}
