package labtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	authzv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// chartNamespace is the namespace of the chart's service accounts in tests.
const chartNamespace = "kube-system"

// agentAccount is the service account of agents and installers.
const agentAccount = "tortie-node"

// granted holds the accounts with rights in force, by the administrator's token, which is unique per server, and the
// name. accounts lets one test at a time create them.
var (
	accounts sync.Mutex
	granted  = map[string]bool{}
)

// As returns a configuration for the API server with one of the chart's service accounts and exactly the permissions
// that the chart grants it, so that a test of the product fails if one is missing.
func As(t testing.TB, account string) *rest.Config {
	t.Helper()
	return AsOn(t, RESTConfig(t), account)
}

// AsOn is As for another server.
func AsOn(t testing.TB, admin *rest.Config, account string) *rest.Config {
	t.Helper()
	return asOn(t, admin, account, "")
}

// OnNode is AsOn with a token that names a Node, which must exist. The agent's token is bound to its pod on that Node,
// which is created, like a token from the kubelet; the plugins' token is bound to the Node, like one from the
// installer, and is revoked with it.
func OnNode(t testing.TB, admin *rest.Config, account, node string) *rest.Config {
	t.Helper()
	return asOn(t, admin, account, node)
}

func asOn(t testing.TB, admin *rest.Config, account, node string) *rest.Config {
	t.Helper()
	accounts.Lock()
	defer accounts.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	core, err := kubernetes.NewForConfig(admin)
	errtest.Must(t, err)
	if key := admin.BearerToken + account; !granted[key] {
		if err := grant(ctx, admin, core, account, chartRights(t, account)); err != nil {
			t.Fatalf("grant %s the chart's roles: %v", account, err)
		}
		granted[key] = true
	}
	request := &authv1.TokenRequest{}
	if node != "" {
		if request.Spec.BoundObjectRef, err = boundTo(ctx, core, account, node); err != nil {
			t.Fatal(err)
		}
	}
	answer, err := core.CoreV1().ServiceAccounts(chartNamespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	errtest.Must(t, err)
	cfg := rest.AnonymousClientConfig(admin)
	cfg.BearerToken = answer.Status.Token
	return cfg
}

// boundTo returns the object that a token of the account on a node is bound to.
func boundTo(ctx context.Context, core kubernetes.Interface, account, node string) (*authv1.BoundObjectReference, error) {
	obj, err := core.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if account != agentAccount {
		return &authv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: node, UID: obj.UID}, nil
	}
	name := account + "-" + node
	pods := core.CoreV1().Pods(chartNamespace)
	pod, err := pods.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		pod, err = pods.Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				NodeName: node, HostNetwork: true, ServiceAccountName: account, Containers: []corev1.Container{{Name: "node", Image: "none"}},
			},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		return nil, err
	}
	return &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: name, UID: pod.UID}, nil
}

// GrantAll applies the RBAC objects of a rendered chart, in addition to the objects of the default values.
func GrantAll(t testing.TB, admin *rest.Config, chart []*unstructured.Unstructured) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	rights := slices.DeleteFunc(slices.Clone(chart), func(o *unstructured.Unstructured) bool {
		return o.GroupVersionKind().Group != rbacv1.GroupName
	})
	errtest.Must(t, apply(ctx, admin, rights...))
}

// grant creates the account and its RBAC objects, and waits until the authorizer has observed them.
func grant(ctx context.Context, admin *rest.Config, core kubernetes.Interface, account string, rights []right) error {
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}
	_, err := core.CoreV1().ServiceAccounts(chartNamespace).Create(ctx, sa, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	for _, r := range rights {
		if err := apply(ctx, admin, r.role, r.binding); err != nil {
			return err
		}
	}
	for _, r := range rights {
		if err := r.await(ctx, core, account); err != nil {
			return err
		}
	}
	return nil
}

// right is a role and its binding, cluster-wide or in a namespace, from the chart.
type right struct {
	role, binding *unstructured.Unstructured
	rule          rbacv1.PolicyRule // the first rule of the role
}

// await sends access reviews until the authorizer has observed the role.
func (r right) await(ctx context.Context, core kubernetes.Interface, account string) error {
	asked := &authzv1.ResourceAttributes{
		Namespace: r.role.GetNamespace(), Group: r.rule.APIGroups[0], Resource: r.rule.Resources[0], Verb: r.rule.Verbs[0],
	}
	asked.Resource, asked.Subresource, _ = strings.Cut(asked.Resource, "/")
	if len(r.rule.ResourceNames) > 0 {
		asked.Name = r.rule.ResourceNames[0]
	}
	review := &authzv1.SubjectAccessReview{Spec: authzv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + chartNamespace + ":" + account, ResourceAttributes: asked,
	}}
	for {
		answer, err := core.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if answer.Status.Allowed {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s %s is not in force: %w", r.role.GetKind(), r.role.GetName(), ctx.Err())
		}
	}
}

// rendered is the chart with its default values, rendered once for a test binary.
var rendered struct {
	sync.Once
	objects []*unstructured.Unstructured
}

// chartRights returns the roles that the chart binds to the account.
func chartRights(t testing.TB, account string) []right {
	t.Helper()
	rendered.Do(func() { rendered.objects = Manifest(t) })
	var rights []right
	for _, obj := range rendered.objects {
		var binding rbacv1.RoleBinding // has the same fields as ClusterRoleBinding
		if !slices.Contains([]string{"ClusterRoleBinding", "RoleBinding"}, obj.GetKind()) {
			continue
		}
		errtest.Must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &binding))
		bound := slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool { return s.Kind == "ServiceAccount" && s.Name == account })
		if bound {
			rights = append(rights, right{binding: obj, role: chartRole(t, obj, binding.RoleRef)})
		}
	}
	if len(rights) == 0 {
		t.Fatalf("the chart binds nothing to ServiceAccount %s", account)
	}
	for i, r := range rights {
		var role rbacv1.Role
		errtest.Must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(r.role.Object, &role))
		rights[i].rule = role.Rules[0]
	}
	return rights
}

// chartRole returns the role that a binding of the chart refers to.
func chartRole(t testing.TB, binding *unstructured.Unstructured, ref rbacv1.RoleRef) *unstructured.Unstructured {
	t.Helper()
	for _, obj := range rendered.objects {
		if obj.GetKind() == ref.Kind && obj.GetName() == ref.Name && (ref.Kind == "ClusterRole" || obj.GetNamespace() == binding.GetNamespace()) {
			return obj
		}
	}
	t.Fatalf("the chart's %s %s refers to %s %s, which it does not make", binding.GetKind(), binding.GetName(), ref.Kind, ref.Name)
	return nil
}
