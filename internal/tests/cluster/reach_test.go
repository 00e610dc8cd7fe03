package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	admission "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// named tests that pods resolve a Service by DNS and reach it over both families.
func (w *world) named(t *testing.T, from []corev1.Pod, service *corev1.Service, pods []corev1.Pod) {
	t.Helper()
	for _, p := range from {
		meshtest.Eventually(t, func() error {
			page, err := w.Do(t.Context(), "kubectl", "exec", p.Name, "--", "wget", "-qO-", "http://"+service.Name+"/")
			if page = strings.TrimSpace(page); err == nil && !slices.Contains(names(pods), page) {
				err = fmt.Errorf("%s got %q", p.Name, page)
			}
			return err
		})
		serves(t, w.inside(t, &p).NS, "["+service.Spec.ClusterIPs[1]+"]:80", names(pods)...)
		for _, to := range pods {
			serves(t, w.inside(t, &p).NS, "["+to.Status.PodIPs[1].IP+"]:80", to.Name)
		}
	}
}

// called tests that the API server, which runs on no node, reaches pods of all nodes, without encapsulation and with
// VXLAN.
func (w *world) called(t *testing.T, service *corev1.Service, pods []corev1.Pod) {
	t.Helper()
	w.proxied(t, pods)
	w.webhook(t, service)
	w.vxlan(t, "Always", len(nodes)-1)
	w.proxied(t, pods)
	w.vxlan(t, "Never", 0)
}

// proxied requests the page of each pod through the API server's proxy.
func (w *world) proxied(t *testing.T, pods []corev1.Pod) {
	t.Helper()
	for _, p := range pods {
		meshtest.Eventually(t, func() error {
			page, err := w.client.CoreV1().Pods(namespace).ProxyGet("http", p.Name, "80", "/", nil).DoRaw(t.Context())
			if got := strings.TrimSpace(string(page)); err == nil && got != p.Name {
				err = fmt.Errorf("the API server's proxy returned %[2]q from %[1]s", p.Name, got)
			}
			return err
		})
	}
}

// vxlan changes the pool, and waits until the first node has this number of routes to other nodes' blocks through the
// tunnel.
func (w *world) vxlan(t *testing.T, mode string, routes int) {
	t.Helper()
	w.Kubectl(t, "patch", "ippools.crd.projectcalico.org", "default-ipv4-ippool", "--type=merge", "-p", `{"spec":{"vxlanMode":"`+mode+`"}}`)
	meshtest.Eventually(t, func() error {
		table := w.On(t, nodes[0], "ip -4 route")
		if got := strings.Count(table, "/26 via"); got < len(nodes)-1 || strings.Count(table, "dev vxlan.calico") != routes {
			return fmt.Errorf("want %d routes through the tunnel: %s", routes, table)
		}
		return nil
	})
}

// webhook makes the API server call an admission webhook in a pod. The pod serves HTTP instead of HTTPS, so the error
// shows that it was reached.
func (w *world) webhook(t *testing.T, service *corev1.Service) {
	t.Helper()
	path, port, effects, fail := "/", int32(80), admission.SideEffectClassNone, admission.Fail
	hooks := w.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := hooks.Create(t.Context(), &admission.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Webhooks: []admission.ValidatingWebhook{{
			Name: "web.example.net",
			ClientConfig: admission.WebhookClientConfig{Service: &admission.ServiceReference{Namespace: namespace, Name: service.Name,
				Path: &path, Port: &port}},
			AdmissionReviewVersions: []string{"v1"}, SideEffects: &effects, FailurePolicy: &fail,
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"ask": service.Name}},
			Rules: []admission.RuleWithOperations{{
				Operations: []admission.OperationType{admission.Create},
				Rule:       admission.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
		}},
	}, metav1.CreateOptions{})
	errtest.Must(t, err)
	asking := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "ask", Labels: map[string]string{"ask": service.Name}}}
	meshtest.Eventually(t, func() error {
		_, err := w.client.CoreV1().ConfigMaps(namespace).Create(t.Context(), asking, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		switch {
		case err == nil:
			return errors.New("the API server does not call the webhook yet")
		case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
			return nil
		}
		return err
	})
	errtest.Must(t, hooks.Delete(t.Context(), "web", metav1.DeleteOptions{}))
}
