package chaos

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cnitest"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/labtest"
)

// cluster is what the plugins of all nodes share: an API server, and what an installed Tortie has put there.
type cluster struct {
	admin *rest.Config
	core  clientset.Interface
	store datastore.Store // the administrator's
	token string          // the plugins'
}

// namespace is that of all pods.
const namespace = "chaos"

var theCluster struct {
	once sync.Once
	*cluster
	err error
}

// shared returns the cluster of the test binary, without any of IPAM's objects, now and when the test has ended.
func shared(t *testing.T) *cluster {
	t.Helper()
	theCluster.once.Do(func() { theCluster.cluster, theCluster.err = prepare(t.Context(), labtest.API(t)) })
	if theCluster.err != nil {
		t.Fatal(theCluster.err)
	}
	theCluster.wipe(t)
	t.Cleanup(func() { theCluster.wipe(t) })
	return theCluster.cluster
}

// wipe removes what plugins have made.
func (c *cluster) wipe(t testing.TB) {
	t.Helper()
	all, err := c.contents(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for i := range all.blocks.Items {
		c.remove(t, &all.blocks.Items[i])
	}
	for i := range all.handles.Items {
		c.remove(t, &all.handles.Items[i])
	}
	for i := range all.affinities.Items {
		c.remove(t, &all.affinities.Items[i])
	}
}

// prepare puts into a fresh API server what the plugins need.
func prepare(ctx context.Context, kubeconfig string) (*cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c := &cluster{}
	var err error
	if c.admin, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return nil, err
	}
	c.admin.QPS = -1 // the client's own limit would be most of what the tests take
	if c.core, err = clientset.NewForConfig(c.admin); err != nil {
		return nil, err
	}
	cfg, err := kubernetes.LoadKubeconfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	if c.store, err = kubernetes.New(cfg); err != nil {
		return nil, err
	}
	if c.token, err = cnitest.Authorize(ctx, c.admin); err != nil {
		return nil, err
	}
	ready := true
	info := &api.ClusterInformation{Meta: api.Meta{Name: api.DefaultName}, Spec: api.ClusterInformationSpec{DatastoreReady: &ready}}
	if err := c.store.Create(ctx, info); err != nil {
		return nil, err
	}
	_, err = c.core.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	return c, err
}

// create creates objects, which end with the test.
func (c *cluster) create(t testing.TB, objs ...api.Resource) {
	t.Helper()
	for _, obj := range objs {
		if err := c.store.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.remove(t, obj) })
	}
}

func (c *cluster) remove(t testing.TB, obj api.Resource) {
	t.Helper()
	ctx := context.Background()
	err := c.store.Get(ctx, obj)
	if err == nil {
		err = c.store.Delete(ctx, obj)
	}
	if err != nil && !errors.Is(err, datastore.ErrNotFound) {
		t.Errorf("clean up: %v", err)
	}
}

// createPod creates a pod and returns its UID.
func (c *cluster) createPod(t testing.TB, node, name string) string {
	t.Helper()
	pods := c.core.CoreV1().Pods(namespace)
	created, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		now := int64(0)
		if err := pods.Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return string(created.UID)
}

// kubeconfig is one as the install container writes it, for a server at an address with a certificate of ca.
func (c *cluster) kubeconfig(address string, ca []byte) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: local, cluster: {server: "https://%s", certificate-authority-data: %q}}]
users: [{name: calico, user: {token: %q}}]
contexts: [{name: calico-context, context: {cluster: local, user: calico}}]
current-context: calico-context
`, address, base64.StdEncoding.EncodeToString(ca), c.token)
}

// forward lets a node, which has a network of its own, reach the API server through a socket on the node's loopback. Bytes
// and ends of connections pass as they are: what a killed server does to its clients, it does to the plugins.
func (c *cluster) forward(t testing.TB, l net.Listener) {
	t.Helper()
	upstream, err := url.Parse(c.admin.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go splice(conn.(*net.TCPConn), upstream.Host)
		}
	}()
}

func splice(down *net.TCPConn, address string) {
	defer down.Close()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		_ = down.SetLinger(0) // a reset, as from a host on which nobody listens
		return
	}
	up := conn.(*net.TCPConn)
	defer up.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(up, down)
		_ = up.CloseWrite()
	}()
	_, _ = io.Copy(down, up)
	_ = down.CloseWrite()
	<-done
}

var conflictMetric = regexp.MustCompile(`(?m)^apiserver_request_total\{code="409",.*resource="(?:ipamblocks|ipamhandles|blockaffinities)".*\} (\d+)$`)

// conflicts returns how many writes of IPAM's objects the API server has refused since it started, because somebody else was
// faster.
func (c *cluster) conflicts(t testing.TB) int {
	t.Helper()
	text, err := c.core.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, m := range conflictMetric.FindAllSubmatch(text, -1) {
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}
