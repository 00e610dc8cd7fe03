package labtest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// Chart renders the chart as a release in the namespace of As, with further arguments of `helm template`, and returns its objects.
func Chart(t testing.TB, args ...string) []*unstructured.Unstructured {
	t.Helper()
	command := append([]string{"template", "tortie", filepath.Join(Root(), "charts", "tortie"), "--namespace", chartNamespace}, args...)
	out, err := exec.CommandContext(t.Context(), Program(t, "helm"), command...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("helm %s: %s", strings.Join(command, " "), exit.Stderr)
		}
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for doc := range strings.SplitSeq(string(out), "\n---\n") {
		obj := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &obj.Object); err != nil {
			t.Fatalf("what the chart renders: %v\n%s", err, doc)
		}
		if obj.GetKind() != "" {
			objects = append(objects, obj)
		}
	}
	return objects
}

// resources are those of kinds that the chart makes and tests apply.
var resources = map[string]string{
	"ClusterRole":                      "clusterroles",
	"ClusterRoleBinding":               "clusterrolebindings",
	"Role":                             "roles",
	"RoleBinding":                      "rolebindings",
	"ValidatingAdmissionPolicy":        "validatingadmissionpolicies",
	"ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}

// apply creates or replaces objects of the chart.
func apply(ctx context.Context, admin *rest.Config, objects ...*unstructured.Unstructured) error {
	client, err := dynamic.NewForConfig(admin)
	if err != nil {
		return err
	}
	for _, obj := range objects {
		gv := obj.GroupVersionKind().GroupVersion()
		kind := client.Resource(gv.WithResource(resources[obj.GetKind()]))
		var where dynamic.ResourceInterface = kind
		if ns := obj.GetNamespace(); ns != "" {
			where = kind.Namespace(ns)
		}
		if _, err := where.Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: "labtest", Force: true}); err != nil {
			return fmt.Errorf("%s %s: %w", obj.GetKind(), obj.GetName(), err)
		}
	}
	return nil
}

// Fence puts the chart's fencing on a server, in a mode of the chart's value and with further arguments of `helm template`, and
// returns when it is in force. In a server that tests share it stays: it is about the chart's accounts only.
func Fence(t testing.TB, admin *rest.Config, mode string, args ...string) {
	t.Helper()
	accounts.Lock()
	defer accounts.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := apply(ctx, admin, Chart(t, append(args, "--show-only", "templates/fencing.yaml", "--set", "fencing="+mode)...)...); err != nil {
		t.Fatal(err)
	}
	if err := awaitFence(ctx, admin); err != nil {
		t.Fatalf("the API server does not take up the chart's fencing: %v", err)
	}
}

// awaitFence waits until the API server's admission has heard of all of the policies: it compiles them one by one, and a probe of
// its own shows when that which was made last is in force.
func awaitFence(ctx context.Context, admin *rest.Config) error {
	core, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return err
	}
	policies := core.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	bindings := core.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	fail := admissionv1.Fail
	name := fmt.Sprintf("probe-%d", time.Now().UnixNano())
	probe := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}}}},
			Validations: []admissionv1.Validation{{Expression: "object.metadata.name != '" + name + "'"}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}
	_, errPolicy := policies.Create(ctx, probe, metav1.CreateOptions{})
	_, errBinding := bindings.Create(ctx, binding, metav1.CreateOptions{})
	defer func() {
		_ = bindings.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{})
		_ = policies.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{})
	}()
	if err := errors.Join(errPolicy, errBinding); err != nil {
		return err
	}
	for {
		_, err := core.CoreV1().ConfigMaps(chartNamespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		switch {
		case apierrors.IsInvalid(err) || apierrors.IsForbidden(err):
			return nil
		case err != nil:
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
