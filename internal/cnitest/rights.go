package cnitest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/tortie-net/tortie/internal/labtest"
)

const accountNamespace = "kube-system"

// Authorize gives the plugins the rights that the chart gives them, and returns a token that has them. It may be called once
// for a cluster.
func Authorize(ctx context.Context, admin *rest.Config) (token string, err error) {
	core, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return "", err
	}
	if err := createRole(ctx, core); err != nil {
		return "", fmt.Errorf("give the plugins the chart's role: %w", err)
	}
	if token, err = Account(ctx, core, "tortie-cni"); err != nil {
		return "", err
	}
	return token, awaitRights(ctx, admin, token)
}

// Account creates a ServiceAccount and returns a token of it.
func Account(ctx context.Context, core kubernetes.Interface, name string) (token string, err error) {
	accounts := core.CoreV1().ServiceAccounts(accountNamespace)
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		return "", err
	}
	request, err := accounts.CreateToken(ctx, name, &authv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return request.Status.Token, nil
}

// createRole creates the ClusterRole tortie-cni and its binding as they are in the chart.
func createRole(ctx context.Context, core kubernetes.Interface) error {
	text, err := os.ReadFile(filepath.Join(labtest.Root(), "charts", "tortie", "templates", "rbac.yaml"))
	if err != nil {
		return err
	}
	// Helm's namespace is the plugins'; what else is templated, labels, has no meaning here.
	plain := strings.ReplaceAll(string(text), "{{ .Release.Namespace }}", accountNamespace)
	plain = regexp.MustCompile(`(?m)^.*\{\{.*\n`).ReplaceAllString(plain, "")
	var role rbacv1.ClusterRole
	var binding rbacv1.ClusterRoleBinding
	for _, doc := range strings.Split(plain, "\n---\n") {
		var head metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			return err
		}
		switch head.Kind + " " + head.Name {
		case "ClusterRole tortie-cni":
			err = yaml.UnmarshalStrict([]byte(doc), &role)
		case "ClusterRoleBinding tortie-cni":
			err = yaml.UnmarshalStrict([]byte(doc), &binding)
		}
		if err != nil {
			return err
		}
	}
	if _, err := core.RbacV1().ClusterRoles().Create(ctx, &role, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err = core.RbacV1().ClusterRoleBindings().Create(ctx, &binding, metav1.CreateOptions{})
	return err
}

// awaitRights waits until the API server's authorizer has heard of the role.
func awaitRights(ctx context.Context, admin *rest.Config, token string) error {
	cfg := rest.AnonymousClientConfig(admin)
	cfg.BearerToken = token
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	for {
		_, err := client.CoreV1().Nodes().Get(ctx, "none", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the plugins' token has no rights: %w", err)
		}
	}
}
