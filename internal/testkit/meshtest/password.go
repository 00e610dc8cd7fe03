package meshtest

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// SetPassword sets or replaces the BGP password of the mesh: the Secret, the right to read it, and the reference to it.
func (c *Cluster) SetPassword(t testing.TB, password string) {
	t.Helper()
	const name = "bgp-password"
	if !c.SetSecret(t, name, "mesh", "pass-"+password) {
		return
	}
	ref := &api.BGPPassword{SecretKeyRef: &api.SecretKeyRef{Name: name, Key: "mesh"}}
	c.Create(t, &api.BGPConfiguration{Meta: api.Meta{Name: api.DefaultName}, Spec: api.BGPConfigurationSpec{NodeMeshPassword: ref}})
}

// SetSecret creates or replaces a Secret with one key in the agents' namespace, which they may read, and reports
// whether it is new.
func (c *Cluster) SetSecret(t testing.TB, name, key, text string) (created bool) {
	t.Helper()
	core, err := kubernetes.NewForConfig(c.Admin)
	errtest.Must(t, err)
	secrets := core.CoreV1().Secrets("kube-system")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{key: text}}
	_, err = secrets.Create(t.Context(), secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
		errtest.Must(t, err)
		return false
	}
	errtest.Must(t, err)
	c.GrantSecret(t, name)
	return true
}

// GrantSecret lets the agents read a Secret in their namespace, as the chart does for bgp.passwordSecret and
// bgp.passwordSecrets.
func (c *Cluster) GrantSecret(t testing.TB, name string) {
	t.Helper()
	const namespace = "kube-system"
	core, err := kubernetes.NewForConfig(c.Admin)
	errtest.Must(t, err)
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{name}, Verbs: []string{"get", "list", "watch"}},
	}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "tortie-node", Namespace: namespace}},
	}
	_, errRole := core.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{})
	_, errBinding := core.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{})
	errtest.Must(t, errors.Join(errRole, errBinding))
}
