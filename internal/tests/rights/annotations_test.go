package rights

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// tenancy is a namespace, named like the Node of its pods, with a tenant that may edit its objects.
type tenancy struct {
	name          string
	admin, tenant *user
	// writers write annotations of pods through their status.
	writers map[string]*user
}

func newTenancy(t *testing.T) *tenancy {
	t.Helper()
	cfg := server(t, "auto")
	n := &tenancy{name: strings.ToLower(t.Name()), admin: newUser(t, cfg)}
	n.admin.declare(t, n.name)
	_, err := n.admin.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.name}},
		metav1.CreateOptions{})
	errtest.Must(t, err)
	as := func(name string, groups []string, roles ...string) *user {
		for _, role := range roles {
			_, err := n.admin.core.RbacV1().RoleBindings(n.name).Create(t.Context(), &rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "of-"},
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
				Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}},
			}, metav1.CreateOptions{})
			errtest.Must(t, err)
		}
		other := rest.CopyConfig(cfg)
		other.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: groups}
		u := newUser(t, other)
		awaitRight(t, u, func(u *user) error {
			_, err := u.core.CoreV1().Pods(n.name).List(t.Context(), metav1.ListOptions{})
			return err
		})
		return u
	}
	// The roles admin and edit consist of these.
	n.tenant = as("tenant", nil, "system:aggregate-to-edit", "system:aggregate-to-view")
	n.writers = map[string]*user{
		"the plugins":      newUser(t, labtest.OnNode(t, cfg, "tortie-cni", n.name)),
		"the kubelet":      as("system:node:"+n.name, []string{"system:nodes"}, "system:node"),
		"Calico's plugins": as("system:serviceaccount:kube-system:calico-cni-plugin", nil, "system:node"),
	}
	return n
}

func (n *tenancy) pod(name string, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Spec: corev1.PodSpec{
		NodeName: n.name, Containers: []corev1.Container{{Name: "c", Image: "none"}},
	}}
}

// creates lets the tenant create a pod.
func (n *tenancy) creates(t *testing.T, name string, annotations map[string]string) {
	t.Helper()
	_, err := n.tenant.core.CoreV1().Pods(n.name).Create(t.Context(), n.pod(name, annotations), metav1.CreateOptions{})
	errtest.Must(t, err)
}

// patches sends a patch of a pod.
func (n *tenancy) patches(t *testing.T, u *user, pod string, kind types.PatchType, patch string, subresources ...string) error {
	t.Helper()
	options := metav1.PatchOptions{}
	if kind == types.ApplyPatchType {
		force := true
		options = metav1.PatchOptions{FieldManager: "tenant", Force: &force}
	}
	_, err := u.core.CoreV1().Pods(n.name).Patch(t.Context(), pod, kind, []byte(patch), options, subresources...)
	return err
}

func (n *tenancy) read(t *testing.T, pod string) *corev1.Pod {
	t.Helper()
	got, err := n.tenant.core.CoreV1().Pods(n.name).Get(t.Context(), pod, metav1.GetOptions{})
	errtest.Must(t, err)
	return got
}

// updates lets the tenant replace a pod by a changed one.
func (n *tenancy) updates(t *testing.T, pod string, change func(*corev1.Pod)) error {
	t.Helper()
	p := n.read(t, pod)
	change(p)
	_, err := n.tenant.core.CoreV1().Pods(n.name).Update(t.Context(), p, metav1.UpdateOptions{})
	return err
}

// ofPod is an annotation of the plugins'.
func ofPod(key string) string { return "cni.projectcalico.org/" + key }

// The plugins' annotations of a pod, which have its address before the kubelet reports it, can be changed by writers of
// its status, and not by writers of pods.
func TestTenantsLeaveTheAnnotationsOfPlugins(t *testing.T) {
	n := newTenancy(t)
	n.creates(t, "plain", nil)
	n.creates(t, "odd", map[string]string{ofPod("podIP"): "no address", ofPod("podIPs"): strings.Repeat("x", 10_000), "own": "x"})
	for who, u := range n.writers {
		for i, patch := range []string{
			`{"metadata":{"annotations":{"cni.projectcalico.org/podIP":"","cni.projectcalico.org/podIPs":""}}}`,
			`{"metadata":{"annotations":{"cni.projectcalico.org/podIP":"10.99.0.5/32","cni.projectcalico.org/podIPs":"10.99.0.5/32",` +
				`"cni.projectcalico.org/containerID":"c1"}}}`,
		} {
			passed(t, fmt.Sprint(who, " note ", i), n.patches(t, u, "plain", types.StrategicMergePatchType, patch, "status"))
		}
	}
	before := n.read(t, "plain").Annotations

	for _, key := range []string{ofPod("podIP"), ofPod("podIPs"), ofPod("containerID")} {
		was := before[key]
		for what, c := range map[string]struct {
			do func() error
			is string
		}{
			"empties it": {func() error {
				return n.patches(t, n.tenant, "plain", types.MergePatchType, fmt.Sprintf(`{"metadata":{"annotations":{%q:""}}}`, key))
			}, "empty"},
			"removes it": {func() error {
				return n.patches(t, n.tenant, "plain", types.JSONPatchType,
					fmt.Sprintf(`[{"op":"remove","path":"/metadata/annotations/%s"}]`, strings.ReplaceAll(key, "/", "~1")))
			}, "absent"},
			"changes it": {func() error {
				return n.patches(t, n.tenant, "plain", types.StrategicMergePatchType,
					fmt.Sprintf(`{"metadata":{"annotations":{%q:"10.99.0.6/32"}}}`, key))
			}, "10.99.0.6/32"},
			"applies another": {func() error {
				return n.patches(t, n.tenant, "plain", types.ApplyPatchType,
					fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{%q:"10.99.0.6/32"}}}`, key))
			}, "10.99.0.6/32"},
			"replaces the pod": {func() error {
				return n.updates(t, "plain", func(p *corev1.Pod) { p.Annotations[key] = strings.Repeat("long", 1000) })
			}, strings.Repeat("long", 63) + "l..."},
		} {
			want := fmt.Sprintf("tortie fences pods: annotation %s of pod %s/plain is %s, and stays so, not %s: only the CNI plugin changes it, "+
				"by pods/status: leave it as it is", key, n.name, was, c.is)
			if err := c.do(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
				t.Errorf("the tenant %s: error %v, want %q", what, err, want)
			}
		}
	}
	all := n.updates(t, "plain", func(p *corev1.Pod) { p.Annotations = nil })
	refused(t, "the tenant removes all annotations", all)
	first := n.patches(t, n.tenant, "odd", types.MergePatchType, `{"metadata":{"annotations":{"cni.projectcalico.org/containerID":"c1"}}}`)
	refused(t, "the tenant notes what has not been noted", first)

	// These change other parts of a pod. A server that has no such subresource does not find it.
	for _, sub := range []string{"ephemeralcontainers", "resize"} {
		err := n.patches(t, n.admin, "plain", types.StrategicMergePatchType,
			`{"metadata":{"annotations":{"cni.projectcalico.org/podIP":""}}}`, sub)
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", sub, err)
		}
	}
	if got := n.read(t, "plain").Annotations; !maps.Equal(got, before) {
		t.Errorf("annotations %v, want %v", got, before)
	}

	for _, pod := range []string{"plain", "odd"} {
		passed(t, pod+" gets a label", n.patches(t, n.tenant, pod, types.MergePatchType, `{"metadata":{"labels":{"app":"web"}}}`))
		passed(t, pod+" gets another annotation", n.patches(t, n.tenant, pod, types.MergePatchType, `{"metadata":{"annotations":{"own":"y"}}}`))
		passed(t, pod+" is replaced", n.updates(t, pod, func(p *corev1.Pod) { p.Labels["app"] = "db" }))
		passed(t, pod+" is applied with the same", n.patches(t, n.tenant, pod, types.ApplyPatchType,
			fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"app":"x"},"annotations":{"cni.projectcalico.org/podIP":%q}}}`,
				n.read(t, pod).Annotations[ofPod("podIP")])))
	}
	n.creates(t, "copy", n.read(t, "plain").Annotations)
}
