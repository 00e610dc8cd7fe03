package labtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// chartNamespace is where the chart's service accounts are in tests.
const chartNamespace = "kube-system"

var accounts sync.Mutex // one test at a time makes them

// As returns how to reach the API server as one of the chart's service accounts, with exactly the rights that the chart gives
// it: a test that runs the product so fails if a right is missing.
func As(t testing.TB, account string) *rest.Config {
	t.Helper()
	return AsOn(t, RESTConfig(t), account)
}

// AsOn is As for another server than that of API.
func AsOn(t testing.TB, admin *rest.Config, account string) *rest.Config {
	t.Helper()
	accounts.Lock()
	defer accounts.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	core, err := kubernetes.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	if err := grant(ctx, core, account); err != nil {
		t.Fatalf("the chart's role of %s: %v", account, err)
	}
	request, err := core.CoreV1().ServiceAccounts(chartNamespace).CreateToken(ctx, account, &authv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := rest.AnonymousClientConfig(admin)
	cfg.BearerToken = request.Status.Token
	return cfg
}

// grant creates the account, its ClusterRole and the binding, and waits until the authorizer has heard of them.
func grant(ctx context.Context, core kubernetes.Interface, account string) error {
	role, binding, err := chartRole(account)
	if err != nil {
		return err
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}
	_, errAccount := core.CoreV1().ServiceAccounts(chartNamespace).Create(ctx, sa, metav1.CreateOptions{})
	_, errRole := core.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	_, errBinding := core.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{})
	for _, err := range []error{errAccount, errRole, errBinding} {
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	rule := role.Rules[0]
	review := &authzv1.SubjectAccessReview{Spec: authzv1.SubjectAccessReviewSpec{
		User:               "system:serviceaccount:" + chartNamespace + ":" + account,
		ResourceAttributes: &authzv1.ResourceAttributes{Group: rule.APIGroups[0], Resource: rule.Resources[0], Verb: rule.Verbs[0]},
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
			return ctx.Err()
		}
	}
}

// chartRole reads the ClusterRole of that name, and its binding, from the chart.
func chartRole(name string) (*rbacv1.ClusterRole, *rbacv1.ClusterRoleBinding, error) {
	text, err := os.ReadFile(filepath.Join(Root(), "charts", "tortie", "templates", "rbac.yaml"))
	if err != nil {
		return nil, nil, err
	}
	// What is templated besides the namespace, labels, has no meaning here.
	plain := strings.ReplaceAll(string(text), "{{ .Release.Namespace }}", chartNamespace)
	plain = regexp.MustCompile(`(?m)^.*\{\{.*\n`).ReplaceAllString(plain, "")
	var role rbacv1.ClusterRole
	var binding rbacv1.ClusterRoleBinding
	for doc := range strings.SplitSeq(plain, "\n---\n") {
		var head metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			return nil, nil, err
		}
		switch head.Kind + " " + head.Name {
		case "ClusterRole " + name:
			err = yaml.UnmarshalStrict([]byte(doc), &role)
		case "ClusterRoleBinding " + name:
			err = yaml.UnmarshalStrict([]byte(doc), &binding)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if len(role.Rules) == 0 || len(binding.Subjects) == 0 {
		return nil, nil, fmt.Errorf("rbac.yaml has no ClusterRole %s with a binding", name)
	}
	return &role, &binding, nil
}
