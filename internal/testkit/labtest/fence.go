package labtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Chart renders the chart as a release in the namespace of As, with arguments of `helm template`, and returns its
// objects.
func Chart(t testing.TB, args ...string) []*unstructured.Unstructured {
	t.Helper()
	command := []string{"template", "tortie", ChartDir(), "--namespace", chartNamespace}
	if Kubernetes != "" {
		command = append(command, "--kube-version", Kubernetes+".0")
	}
	command = append(command, args...)
	out, err := exec.CommandContext(t.Context(), Program(t, "helm"), command...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("helm %s: %s", strings.Join(command, " "), exit.Stderr)
		}
		t.Fatal(err)
	}
	return decode(t, string(out))
}

// Manifest returns the objects of the chart's default values from the generated manifest: Helm may not be installed
// where a test runs.
func Manifest(t testing.TB) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(Root(), "manifests", "tortie.yaml"))
	errtest.Must(t, err)
	return decode(t, string(text))
}

func decode(t testing.TB, text string) (objects []*unstructured.Unstructured) {
	t.Helper()
	for doc := range strings.SplitSeq(text, "\n---\n") {
		obj := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &obj.Object); err != nil {
			t.Fatalf("decode the rendered chart: %v\n%s", err, doc)
		}
		if obj.GetKind() != "" {
			objects = append(objects, obj)
		}
	}
	return objects
}

// resources maps the kinds of the chart that tests apply to resource names.
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

// Fence applies the chart's default admission policies to a server and returns when they are enforced. They stay on a
// shared server, as they match the chart's accounts, and changes of the plugins' annotations of pods, only.
func Fence(t testing.TB, admin *rest.Config) {
	t.Helper()
	FenceWith(t, admin, Manifest(t))
}

// FenceWith is Fence with a rendered chart.
func FenceWith(t testing.TB, admin *rest.Config, chart []*unstructured.Unstructured) {
	t.Helper()
	accounts.Lock()
	defer accounts.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	fences := slices.DeleteFunc(slices.Clone(chart), func(o *unstructured.Unstructured) bool {
		return !strings.HasPrefix(o.GetKind(), "ValidatingAdmissionPolicy")
	})
	errtest.Must(t, apply(ctx, admin, fences...))
	if err := awaitFence(ctx, admin); err != nil {
		t.Fatalf("the API server does not enforce the chart's admission policies: %v", err)
	}
}

// Unfence deletes the admission policies among objects from a server.
func Unfence(t testing.TB, admin *rest.Config, objects []*unstructured.Unstructured) {
	t.Helper()
	client, err := dynamic.NewForConfig(admin)
	errtest.Must(t, err)
	for _, obj := range objects {
		if !strings.HasPrefix(obj.GetKind(), "ValidatingAdmissionPolicy") {
			continue
		}
		of := client.Resource(obj.GroupVersionKind().GroupVersion().WithResource(resources[obj.GetKind()]))
		if err := of.Delete(context.WithoutCancel(t.Context()), obj.GetName(), metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete %s %s: %v", obj.GetKind(), obj.GetName(), err)
		}
	}
}

// awaitFence waits until the API server enforces all of the policies. It compiles them one by one, so a probe policy
// that was created last shows when the others are in force.
func awaitFence(ctx context.Context, admin *rest.Config) error {
	core, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return err
	}
	policies := core.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	bindings := core.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	name := fmt.Sprintf("probe-%d", time.Now().UnixNano())
	policy, binding := refusing(name)
	_, errPolicy := policies.Create(ctx, policy, metav1.CreateOptions{})
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

// refusing returns a policy with a binding that denies ConfigMaps with the policy's own name.
func refusing(name string) (*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding) {
	fail, meta := admissionv1.Fail, metav1.ObjectMeta{Name: name}
	rule := admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
	}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy:    &fail,
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: rule}}},
		Validations:      []admissionv1.Validation{{Expression: "object.metadata.name != '" + name + "'"}},
	}}
	return policy, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
}
