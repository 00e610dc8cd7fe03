package labtest

import (
	"context"
	"maps"
	"testing"

	authzv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// A server that is handed on has what it had before: no objects, no rights, no request in its audit log, also by what
// its caches have.
func TestHandedOnServerIsAsBefore(t *testing.T) {
	k := Kind{Group: Group(t), Audited: true}
	var first *Server
	var before map[string]string
	t.Run("first", func(t *testing.T) {
		first = TakeServer(t, k)
		before = maps.Clone(first.own.objects)
		soil(t, first)
		if left, err := first.own.left(t.Context()); err != nil || len(left) < 8 {
			t.Fatalf("%d kinds are left before the wipe, %v", len(left), err)
		}
		if len(first.AuditedRequests(t)) == 0 {
			t.Error("no audited request of the first test")
		}
	})
	t.Run("second", func(t *testing.T) {
		s := TakeServer(t, k)
		if s != first {
			t.Fatal("the server was not handed on")
		}
		admin, core := clientOf(t, s)
		left, err := s.own.left(t.Context())
		errtest.Must(t, err)
		if len(left) > 0 || !maps.Equal(before, s.own.objects) {
			t.Errorf("left: %v", left)
		}
		for _, r := range s.own.resources { // what a client sees that begins with the cache, as informers do
			all, err := s.own.list(t.Context(), r, "0")
			errtest.Must(t, err)
			for _, o := range all {
				if before[key(r, o)] == "" && !stays(r, o) {
					t.Errorf("the cache has %s", key(r, o))
				}
			}
		}
		if got := s.AuditedRequests(t); len(got) > 0 {
			t.Errorf("requests of the test before: %v", got)
		}
		if may(t, core, agentAccount, "list", "ippools") || may(t, core, "thief", "delete", "ippools") {
			t.Error("rights of the test before are in force")
		}
		AsOn(t, admin, agentAccount)
		if !may(t, core, agentAccount, "list", "ippools") || may(t, core, agentAccount, "delete", "ippools") {
			t.Error("the chart's rights are not those of the account")
		}
		s.make(t, "203.0.113.0/24") // what the test before had made, under the same names
		errtest.Must(t, s.own.restore(t.Context()))
		becomesAnother(t, s)
	})
	if s := takeIdle(k); s != nil {
		t.Error("a server with a changed definition was handed on")
	}
}

// becomesAnother checks that restore refuses what a server follows in a way of its own, and changes of its own objects.
func becomesAnother(t *testing.T, s *Server) {
	t.Helper()
	admin, core := clientOf(t, s)
	client, err := dynamic.NewForConfig(admin)
	errtest.Must(t, err)
	refuses := func(want string) {
		t.Helper()
		if err := s.own.restore(t.Context()); !errtest.Names(err, want) {
			t.Errorf("%v, want an error that names %s", err, want)
		}
	}
	policy, _ := refusing("left")
	policies := core.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	_, err = policies.Create(t.Context(), policy, metav1.CreateOptions{})
	errtest.Must(t, err)
	refuses("validatingadmissionpolicies.admissionregistration.k8s.io left created")
	errtest.Must(t, policies.Delete(t.Context(), "left", metav1.DeleteOptions{}))
	errtest.Must(t, s.own.restore(t.Context()))

	errtest.Must(t, core.RbacV1().ClusterRoles().Delete(t.Context(), "view", metav1.DeleteOptions{}))
	refuses("deleted")
	name := KindOf(t, "ippools").GroupResource().String()
	_, err = client.Resource(definitions).Patch(t.Context(), name, "application/merge-patch+json",
		[]byte(`{"spec":{"names":{"shortNames":["pool"]}}}`), metav1.PatchOptions{})
	errtest.Must(t, err)
	refuses(name + " changed")
}

// soil leaves on a server what tests leave.
func soil(t *testing.T, s *Server) {
	t.Helper()
	ctx := t.Context()
	admin, core := clientOf(t, s)
	s.make(t, "198.51.100.0/24")
	_, err := core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
	errtest.Must(t, err)
	_, err = core.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	errtest.Must(t, err)
	_, err = core.CoreV1().Pods("n").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: corev1.PodSpec{NodeName: "a", Containers: []corev1.Container{{Name: "c", Image: "none"}}}}, metav1.CreateOptions{})
	errtest.Must(t, err)
	_, err = core.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec: corev1.ServiceSpec{Type: "NodePort", ClusterIP: "10.96.0.99", Ports: []corev1.ServicePort{{Port: 80, NodePort: 30099}}}},
		metav1.CreateOptions{})
	errtest.Must(t, err)
	_, err = core.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "thief"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "thief", Namespace: chartNamespace}}}, metav1.CreateOptions{})
	errtest.Must(t, err)
	agent, err := dynamic.NewForConfig(OnNode(t, admin, agentAccount, "a"))
	errtest.Must(t, err)
	_, err = agent.Resource(KindOf(t, "ippools")).List(ctx, metav1.ListOptions{})
	errtest.Must(t, err)
}

// make creates a pool with a finalizer.
func (s *Server) make(t *testing.T, cidr string) {
	t.Helper()
	admin, _ := clientOf(t, s)
	client, err := dynamic.NewForConfig(admin)
	errtest.Must(t, err)
	pool := object(t, "IPPool", "pool", `{"cidr":"`+cidr+`"}`)
	pool.SetFinalizers([]string{"example.net/finalizer"})
	_, err = client.Resource(KindOf(t, "ippools")).Create(t.Context(), pool, metav1.CreateOptions{})
	errtest.Must(t, err)
}

func clientOf(t *testing.T, s *Server) (*rest.Config, kubernetes.Interface) {
	t.Helper()
	admin, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	errtest.Must(t, err)
	core, err := kubernetes.NewForConfig(admin)
	errtest.Must(t, err)
	return admin, core
}

func may(t *testing.T, core kubernetes.Interface, account, verb, plural string) bool {
	t.Helper()
	kind := KindOf(t, plural)
	answer, err := core.AuthorizationV1().SubjectAccessReviews().Create(context.WithoutCancel(t.Context()), &authzv1.SubjectAccessReview{
		Spec: authzv1.SubjectAccessReviewSpec{User: "system:serviceaccount:" + chartNamespace + ":" + account,
			ResourceAttributes: &authzv1.ResourceAttributes{Group: kind.Group, Resource: kind.Resource, Verb: verb}}}, metav1.CreateOptions{})
	errtest.Must(t, err)
	return answer.Status.Allowed
}
