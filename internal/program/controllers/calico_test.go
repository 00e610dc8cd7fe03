package controllers

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// calicoControllers makes Calico's kube-controllers, as its operator does, with a number of pods that are ready.
func (w *world) calicoControllers(ready int32) {
	w.t.Helper()
	w.controllersIn(calicoSystem, ready)
}

// controllersIn makes a Deployment of that name in a new namespace.
func (w *world) controllersIn(namespace string, ready int32) {
	w.t.Helper()
	labels := map[string]string{"k8s-app": "calico-kube-controllers"}
	_, err := w.core.CoreV1().Namespaces().Create(w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{})
	errtest.Must(w.t, err)
	of := w.core.AppsV1().Deployments(namespace)
	d, err := of.Create(w.t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "calico-kube-controllers"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}}},
		},
	}, metav1.CreateOptions{})
	errtest.Must(w.t, err)
	d.Status.Replicas, d.Status.ReadyReplicas = ready, ready
	_, err = of.UpdateStatus(w.t.Context(), d, metav1.UpdateOptions{})
	errtest.Must(w.t, err)
}

const calicoSystem = "calico-system"

// Pools and tiers of projectcalico.org/v3 are left to Calico's kube-controllers while these run, and are kept by ours
// afterwards.
func TestCalicosControllersKeepPoolsAndTiers(t *testing.T) {
	t.Parallel()
	w, server := newWorldV3(t)
	w.calicoControllers(1)
	w.controllersIn("tenant", 1) // counts for nothing
	order := 7.0
	w.create(&api.CalicoTier{Meta: api.Meta{Name: "platform"}, Spec: api.CalicoTierSpec{Order: &order}})

	p := w.start("one", "", "RECONCILER_PERIOD=1s", "TORTIE_POLICY=on")
	eventually(t, func() error {
		if s, err := p.status(); err != nil || s.LeftToCalico != calicoSystem+"/calico-kube-controllers" {
			return fmt.Errorf("left to %q, %w", s.LeftToCalico, err)
		}
		return p.has("tortie_controllers_left_to_calico 1")
	})
	p.passes(3)
	if n := writes(t, server, "update ippools/status", "patch ippools", "patch tiers", "patch tiers/status"); n != 0 {
		t.Errorf("%d writes of what Calico's controllers keep", n)
	}
	if n := strings.Count(p.log.String(), "Calico's kube-controllers run: leaving them"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
	s, err := p.status()
	errtest.Must(t, err)
	for request, most := range map[string]int{
		"list deployments": 1, "list validatingwebhookconfigurations": 1, "list mutatingwebhookconfigurations": 1, "list endpointslices": 0,
	} { // the last pass may be under way
		if n := writes(t, server, request); n > most*(s.Passes+1) {
			t.Errorf("%s: %d requests in %d passes", request, n, s.Passes)
		}
	}

	errtest.Must(t, w.core.AppsV1().Deployments(calicoSystem).Delete(t.Context(), "calico-kube-controllers", metav1.DeleteOptions{}))
	eventually(t, w.poolIs("v4", "True OK "+ofPools))
	eventually(t, w.tierIs("platform", ofTiers))
	eventually(t, func() error { return p.has("tortie_controllers_left_to_calico 0") })
	w.calicoGone(p)
}

// calicoGone requires exactly one log entry that Calico's controllers are gone.
func (w *world) calicoGone(p *process) {
	w.t.Helper()
	if n := strings.Count(p.log.String(), "no longer to Calico's kube-controllers"); n != 1 {
		w.t.Errorf("the log says %d times that they are gone", n)
	}
}

// has returns an error unless a line is among the metrics.
func (p *process) has(metric string) error {
	text, err := p.get("/metrics")
	if err == nil && !strings.Contains(text, "\n"+metric+"\n") {
		err = errors.New("no metric " + metric)
	}
	return err
}

// In crd.projectcalico.org/v1 Calico has neither: no request is made.
func TestNoLookForCalicoInTheFirstGroup(t *testing.T) {
	t.Parallel()
	server := auditedOf(t, groups.V1)
	w := newWorldOf(t, server, groups.In(groups.V1))
	p := w.start("one", "", "RECONCILER_PERIOD=1s")
	leads(t, p)
	p.passes(3)
	if n := writes(t, server, "list deployments", "list validatingwebhookconfigurations", "list mutatingwebhookconfigurations"); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// calicoWebhooks makes Calico's webhooks as its operator does.
func (w *world) calicoWebhooks() {
	w.t.Helper()
	hook := func(name, path string, policy admissionv1.FailurePolicyType, resource string) admissionv1.ValidatingWebhook {
		none := admissionv1.SideEffectClassNone
		return admissionv1.ValidatingWebhook{
			Name: name, FailurePolicy: &policy, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionv1.WebhookClientConfig{
				Service: &admissionv1.ServiceReference{Namespace: calicoSystem, Name: "calico-webhooks", Path: &path},
			},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.OperationAll},
				Rule:       admissionv1.Rule{APIGroups: []string{"projectcalico.org"}, APIVersions: []string{"v3"}, Resources: []string{resource}},
			}},
		}
	}
	_, err := w.core.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(w.t.Context(),
		&admissionv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "api.projectcalico.org"},
			Webhooks: []admissionv1.ValidatingWebhook{
				hook("cluster-info.api.projectcalico.org", "/cluster-info", admissionv1.Ignore, "clusterinformations"),
				hook("rbac.api.projectcalico.org", "/rbac", admissionv1.Fail, "globalnetworkpolicies"),
			},
		}, metav1.CreateOptions{})
	errtest.Must(w.t, err)
}

// Calico's webhooks that outlive their pods are named, with the command that makes policies writable again.
func TestWebhooksWithoutEndpointAreNamed(t *testing.T) {
	t.Parallel()
	w, _ := newWorldV3(t)
	_, err := w.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: calicoSystem}},
		metav1.CreateOptions{})
	errtest.Must(t, err)
	slices := w.core.DiscoveryV1().EndpointSlices(calicoSystem)
	slice, err := slices.Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "w", Labels: map[string]string{discoveryv1.LabelServiceName: "calico-webhooks"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.44.0.9"}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}},
	}, metav1.CreateOptions{})
	errtest.Must(t, err)
	w.calicoWebhooks()
	write := func(name string) error {
		return w.store.Create(t.Context(), &api.CalicoGlobalNetworkPolicy{Meta: api.Meta{Name: name}})
	}

	p := w.start("one", "", "RECONCILER_PERIOD=1s")
	leads(t, p)
	p.passes(2)
	if s, err := p.status(); err != nil || len(s.DeadWebhooks) != 0 {
		t.Fatalf("%v of webhooks with an endpoint, %v", s.DeadWebhooks, err)
	}
	slice.Endpoints[0].Conditions.Ready = new(false)
	_, err = slices.Update(t.Context(), slice, metav1.UpdateOptions{})
	errtest.Must(t, err)
	eventually(t, func() error {
		list, err := w.core.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=WebhookWithoutEndpoint"})
		if err != nil || len(list.Items) != 1 {
			return fmt.Errorf("%d Events, %w", len(list.Items), err)
		}
		e := list.Items[0]
		for _, want := range []string{"webhook rbac.api.projectcalico.org ", "Service calico-system/calico-webhooks ",
			"kubectl delete validatingwebhookconfiguration api.projectcalico.org"} {
			if !strings.Contains(e.Message, want) {
				t.Errorf("the Event %q lacks %q", e.Message, want)
			}
		}
		if e.InvolvedObject.Kind != "ValidatingWebhookConfiguration" || e.InvolvedObject.APIVersion != "admissionregistration.k8s.io/v1" {
			t.Errorf("the Event is about %+v", e.InvolvedObject)
		}
		return p.has("tortie_policy_webhooks_without_endpoint 1")
	})
	p.passes(2)
	if n := strings.Count(p.log.String(), "Calico's policies cannot be written"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
	if err := write("a"); err == nil || !strings.Contains(err.Error(), "rbac.api.projectcalico.org") {
		t.Errorf("a policy is written although its webhook has no endpoint: %v", err)
	}

	// The remedy.
	errtest.Must(t, w.core.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "api.projectcalico.org",
		metav1.DeleteOptions{}))
	eventually(t, func() error { return p.has("tortie_policy_webhooks_without_endpoint 0") })
	eventually(t, func() error { return write("a") })
	w.guardsAll(p)
}

// guardsAll has configurations of a policy engine that is gone: one asks it about all kinds, the other about Pods.
func (w *world) guardsAll(p *process) {
	w.t.Helper()
	none := admissionv1.SideEffectClassNone
	of := w.core.AdmissionregistrationV1().MutatingWebhookConfigurations()
	configure := func(name, resource string) {
		_, err := of.Create(w.t.Context(), &admissionv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Webhooks: []admissionv1.MutatingWebhook{{
				Name: name + ".example.com", SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
				ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "engine", Name: name}},
				Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Delete},
					Rule: admissionv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{resource}}}},
			}},
		}, metav1.CreateOptions{})
		errtest.Must(w.t, err)
	}
	configure("pods", "pods")
	configure("engine", "*/*")
	eventually(w.t, func() error {
		s, err := p.status()
		if text := strings.Join(s.DeadWebhooks, "; "); err != nil || len(s.DeadWebhooks) != 1 ||
			!errtest.Has(text, "engine.example.com engine/engine mutatingwebhookconfiguration") {
			return fmt.Errorf("%q, %w", text, err)
		}
		return nil
	})
	for _, name := range []string{"engine", "pods"} {
		errtest.Must(w.t, of.Delete(w.t.Context(), name, metav1.DeleteOptions{}))
	}
}
