package chaos

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// namespace is the namespace of all pods.
const namespace = "chaos"

// kube is an API server as the datastore. Each container is the sandbox of a pod.
type kube struct {
	admin *rest.Config
	core  clientset.Interface
}

func onKubernetes(t testing.TB, kubeconfig string) *cluster {
	t.Helper()
	admin, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	errtest.Must(t, err)
	admin.QPS = -1 // client-side throttling would take most of the tests' time
	labtest.Fence(t, admin)
	k := &kube{admin: admin}
	if k.core, err = clientset.NewForConfig(admin); err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err = k.core.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	return setUp(t, k, labstore.At(t, kubeconfig))
}

func (k *kube) equip(t testing.TB, n *node) map[string]any {
	t.Helper()
	n.create(t, &api.Node{Meta: api.Meta{Name: n.name}})
	n.Write(t, kubeconfigPath, k.kubeconfig(n.reach(t, k.admin.Host), k.admin.CAData, k.token(t, n)))
	return map[string]any{
		"datastore_type": "kubernetes", "policy": map[string]any{"type": "k8s"}, "kubernetes": map[string]any{"kubeconfig": kubeconfigPath},
	}
}

func (k *kube) newPod(t testing.TB, p *pod) (args string) {
	t.Helper()
	pods := k.core.CoreV1().Pods(namespace)
	created, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.name},
		Spec:       corev1.PodSpec{NodeName: p.node.name, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, metav1.CreateOptions{})
	errtest.Must(t, err)
	t.Cleanup(func() {
		if err := pods.Delete(context.Background(), p.name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return fmt.Sprintf("K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_UID=%s", namespace, p.name, created.UID)
}

func (k *kube) reported(t testing.TB, p *pod) string {
	t.Helper()
	obj, err := k.core.CoreV1().Pods(namespace).Get(t.Context(), p.name, metav1.GetOptions{})
	errtest.Must(t, err)
	return obj.Annotations[api.AnnotationPodIP]
}

// token returns a token for the plugins of a node.
func (k *kube) token(t testing.TB, n *node) string {
	t.Helper()
	return labtest.OnNode(t, k.admin, "tortie-cni", n.name).BearerToken
}

// kubeconfig returns the plugins' kubeconfig, as the install container writes it, for a server at an address with a
// certificate of ca.
func (k *kube) kubeconfig(address string, ca []byte, token string) string {
	return labtest.PluginKubeconfig("https://"+address, ca, token)
}

var conflictMetric = regexp.MustCompile(
	`(?m)^apiserver_request_total\{code="409",.*resource="(?:ipamblocks|ipamhandles|blockaffinities)".*\} (\d+)$`)

// countConflicts returns a function that returns the number of conflicts on IPAM objects since.
func (c *cluster) countConflicts(t testing.TB) (met func() int) {
	t.Helper()
	before := c.datastore.(*kube).conflicts(t)
	return func() int { return c.datastore.(*kube).conflicts(t) - before }
}

// conflicts reads the count from the API server's metrics.
func (k *kube) conflicts(t testing.TB) (sum int) {
	t.Helper()
	text, err := k.core.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	errtest.Must(t, err)
	for _, m := range conflictMetric.FindAllSubmatch(text, -1) {
		n, err := strconv.Atoi(string(m[1]))
		errtest.Must(t, err)
		sum += n
	}
	return sum
}
