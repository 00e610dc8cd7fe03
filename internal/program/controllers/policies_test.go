package controllers

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// policy creates a NetworkPolicy that denies all ingress, and returns its UID.
func (w *world) policy(namespace, name string) (uid string) {
	w.t.Helper()
	return w.apply(namespace, name, networkingv1.NetworkPolicySpec{})
}

// apply creates a NetworkPolicy, and returns its UID.
func (w *world) apply(namespace, name string, spec networkingv1.NetworkPolicySpec) (uid string) {
	w.t.Helper()
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	p, err := w.core.NetworkingV1().NetworkPolicies(namespace).Create(w.t.Context(), p, metav1.CreateOptions{})
	errtest.Must(w.t, err)
	return string(p.UID)
}

// notEnforced are the Events about NetworkPolicies, by the policy's UID.
func (w *world) notEnforced() (found map[string][]corev1.Event, err error) {
	list, err := w.core.CoreV1().Events("").List(w.t.Context(), metav1.ListOptions{FieldSelector: "reason=PolicyNotEnforced,type=Warning"})
	if err != nil {
		return nil, err
	}
	found = map[string][]corev1.Event{}
	for _, e := range list.Items {
		found[string(e.InvolvedObject.UID)] = append(found[string(e.InvolvedObject.UID)], e)
	}
	return found, nil
}

// toldOf waits until there is an Event about each of so many policies, and about these among them.
func (w *world) toldOf(n int, uids ...string) map[string][]corev1.Event {
	w.t.Helper()
	var found map[string][]corev1.Event
	eventually(w.t, func() (err error) {
		if found, err = w.notEnforced(); err != nil {
			return err
		}
		for _, uid := range uids {
			if len(found[uid]) == 0 {
				return fmt.Errorf("no event about the policy %s", uid)
			}
		}
		return nil
	})
	if len(found) != n {
		w.t.Errorf("events about %d policies, want %d: %+v", len(found), n, found)
	}
	return found
}

// With TORTIE_POLICY=off a NetworkPolicy has an Event that nothing enforces it: once, also after a change of the
// leader, and again if it is made anew.
func TestPoliciesAreToldOf(t *testing.T) {
	tier.All(t)
	t.Parallel()
	w := newWorld(t, audited(t))
	first, second := w.policy("default", "deny"), w.policy("kube-system", "deny")
	one := w.start("one", "", "TORTIE_POLICY=off")
	w.toldOf(2, first, second)
	one.kill()
	two := w.start("two", "", "TORTIE_POLICY=off")
	leads(t, two)
	third := w.policy("default", "late")
	w.toldOf(3, third)
	errtest.Must(t, w.core.NetworkingV1().NetworkPolicies("default").Delete(t.Context(), "deny", metav1.DeleteOptions{}))
	anew := w.policy("default", "deny")
	found := w.toldOf(4, anew)
	for uid, by := range map[string]string{first: "one", second: "one", third: "two", anew: "two"} {
		if e := found[uid]; len(e) != 1 || e[0].Count != 1 || e[0].ReportingInstance != by || e[0].InvolvedObject.Kind != "NetworkPolicy" {
			t.Errorf("events about one policy, of which there is to be one by %s: %+v", by, e)
		}
	}
	eventually(t, func() error {
		text, err := two.get("/metrics")
		if want := "\ntortie_network_policies_not_enforced 3\n"; err == nil && !strings.Contains(text, want) {
			err = fmt.Errorf("the metrics do not have %q", want)
		}
		return err
	})
}

// An invalid part of a policy has an Event at once, before the Events that depend on pods: that it selects none, or
// that none declares a port. A correct policy has no Event.
func TestPoliciesAreReviewed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, audited(t))
	w.node("n")
	w.run("web", "n")
	named := intstr.FromString("http")
	rule := networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: &named}}}
	nobody := metav1.LabelSelector{MatchLabels: map[string]string{"app": "nobody"}}
	want := map[string][]string{
		w.policy("default", "well"): nil,
		w.apply("default", "selects",
			networkingv1.NetworkPolicySpec{PodSelector: nobody}): {"PolicySelectsNoPod"},
		w.apply("default", "port", networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{rule}}): {"PolicyPortUnknown"},
		w.policy("kube-system", "empty"): {"PolicySelectsNoPod"},
	}
	calico := &api.CalicoNetworkPolicy{Meta: api.Meta{Namespace: "default", Name: "calico"},
		Spec: api.CalicoNetworkPolicySpec{CalicoPolicySpec: api.CalicoPolicySpec{
			ServiceAccountSelector: "team == 'nobody'", Types: []string{"Egress"},
			Egress: []api.CalicoRule{{Action: "Allow", Destination: api.CalicoEntityRule{Services: &api.CalicoServiceMatch{Name: "web"}}}},
		}}}
	w.create(calico)
	want[calico.UID] = []string{"PolicySelectsNoPod"}
	staged := &api.CalicoStagedNetworkPolicy{Meta: api.Meta{Namespace: "default", Name: "staged"},
		Spec: api.CalicoStagedNetworkPolicySpec{CalicoPolicySpec: api.CalicoPolicySpec{
			Types: []string{"Ingress"}, Ingress: []api.CalicoRule{{Action: "Allow", Source: api.CalicoEntityRule{Selector: "team =="}}},
		}}}
	w.create(staged)
	want[staged.UID] = []string{"InvalidPolicy"}
	selector := &api.CalicoGlobalNetworkPolicy{Meta: api.Meta{Name: "selector"},
		Spec: api.CalicoGlobalNetworkPolicySpec{CalicoPolicySpec: api.CalicoPolicySpec{
			Selector: "kubernetes.io/hostname='n'", Types: []string{"Ingress"},
		}}}
	w.create(selector)
	want[selector.UID] = []string{"InvalidPolicy"}
	w.create(&api.CalicoHostEndpoint{Meta: api.Meta{Name: "n", Labels: map[string]string{"host": "all"}},
		Spec: api.CalicoHostEndpointSpec{Node: "n", InterfaceName: "*"}})
	untracked := &api.CalicoGlobalNetworkPolicy{Meta: api.Meta{Name: "untracked"}, Spec: api.CalicoGlobalNetworkPolicySpec{
		CalicoPolicySpec: api.CalicoPolicySpec{Selector: "has(host)", Types: []string{"Ingress"}}, ApplyOnForward: true, DoNotTrack: true,
	}}
	w.create(untracked)
	want[untracked.UID] = []string{"PolicySelectsNoHost"}
	w.start("one", "", "TORTIE_POLICY=auto")
	eventually(t, func() error {
		list, err := w.core.CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=InvalidPolicy"})
		if err == nil && len(list.Items) < 2 {
			err = fmt.Errorf("%d Events about invalid policies", len(list.Items))
		}
		return err
	})
	late := &api.CalicoGlobalNetworkPolicy{Meta: api.Meta{Name: "late"}, Spec: selector.Spec}
	w.create(late)
	want[late.UID] = []string{"InvalidPolicy"}
	var events []corev1.Event
	eventually(t, func() error {
		list, err := w.core.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		got := map[string][]string{}
		events = list.Items
		for _, e := range events {
			got[string(e.InvolvedObject.UID)] = append(got[string(e.InvolvedObject.UID)], e.Reason)
		}
		for uid, reasons := range want {
			if !slices.Equal(got[uid], reasons) {
				return fmt.Errorf("policy %s has the Events %q, want %q", uid, got[uid], reasons)
			}
		}
		return nil
	})
	at := func(name string) time.Time {
		i := slices.IndexFunc(events, func(e corev1.Event) bool { return e.InvolvedObject.Name == name })
		return events[i].FirstTimestamp.Time
	}
	if !at("late").Before(at("selects")) {
		t.Errorf("what is invalid in a policy is said at %s, and of one that was there before that it selects no pod at %s",
			at("late"), at("selects"))
	}
}
