package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tortie-net/tortie/internal/datastore"
	ownstore "github.com/tortie-net/tortie/internal/datastore/kubernetes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

const (
	namespace = "default"
	// patience is the limit for operations of many containers on a busy machine.
	patience = 10 * time.Minute
)

var nodes = []string{"master", "node1", "node2"}

// world is the cluster of a test.
type world struct {
	*labtest.Lab
	client *kubernetes.Clientset
	store  datastore.Store
	// ends are the opened network namespaces of pods by UID: a receiver of streams counts its ports.
	ends map[string]*meshtest.Pod
}

func newWorld(t *testing.T, options ...string) *world {
	t.Helper()
	l := labtest.NewLab(t, len(nodes), options...)
	cfg := l.RESTConfig(t)
	cfg.QPS, cfg.Burst = 1000, 1000 // many pods at once
	client, err := kubernetes.NewForConfig(cfg)
	errtest.Must(t, err)
	store, err := ownstore.New(ownstore.Config{Server: cfg.Host, CAData: cfg.CAData, Token: cfg.BearerToken, Group: labtest.Current(t)})
	errtest.Must(t, err)
	return &world{Lab: l, client: client, store: store}
}

// apply creates the objects of a file of testdata, which are deleted with the test.
func (w *world) apply(t testing.TB, file string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	errtest.Must(t, err)
	path := w.Manifest(t, string(text))
	w.Kubectl(t, "apply", "-f", path)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if _, err := w.Do(ctx, "kubectl", "delete", "--ignore-not-found", "--cascade=foreground", "-f", path); err != nil {
			t.Error(err)
		}
	})
}

// rolledOut waits until all pods of a Deployment, StatefulSet or DaemonSet are ready.
func (w *world) rolledOut(t testing.TB, workload string, options ...string) {
	t.Helper()
	w.Kubectl(t, append([]string{"rollout", "status", workload, "--timeout=" + patience.String()}, options...)...)
}

// pods returns the pods of an app, ordered by name.
func (w *world) pods(t testing.TB, app string) []corev1.Pod {
	t.Helper()
	return w.podsOf(t, namespace, "app="+app)
}

func (w *world) podsOf(t testing.TB, namespace, selector string) []corev1.Pod {
	t.Helper()
	list, err := w.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	errtest.Must(t, err)
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return list.Items
}

// inside opens a running pod's network namespace.
func (w *world) inside(t testing.TB, p *corev1.Pod) *meshtest.Pod {
	t.Helper()
	key := fmt.Sprint(p.UID, p.Status.ContainerStatuses[0].RestartCount)
	if end := w.ends[key]; end != nil {
		return end
	}
	addr, err := netip.ParseAddr(p.Status.PodIP)
	if err != nil {
		t.Fatalf("pod %s: %v", p.Name, err)
	}
	w.ends[key] = &meshtest.Pod{NS: w.Pod(t, string(p.UID)), V4: addr}
	return w.ends[key]
}

// get requests the first page of a server from inside a namespace, over a new connection.
func get(ctx context.Context, from *netnstest.NS, address string) (string, error) {
	return page(ctx, from, address, "/")
}

func page(ctx context.Context, from *netnstest.NS, address, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	dial := func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = from.Do(func() error {
			var d net.Dialer
			conn, err = d.DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return strings.TrimSpace(string(body)), err
}

// serves waits until the response is one of want.
func serves(t testing.TB, from *netnstest.NS, address string, want ...string) {
	t.Helper()
	meshtest.Eventually(t, func() error {
		got, err := get(t.Context(), from, address)
		if err == nil && !slices.Contains(want, got) {
			err = fmt.Errorf("http://%s returned %q, want one of %q", address, got, want)
		}
		return err
	})
}

// names returns the names of pods, which are also the content that they serve.
func names(pods []corev1.Pod) []string {
	var all []string
	for _, p := range pods {
		all = append(all, p.Name)
	}
	return all
}

// ready returns an error unless a pod is ready.
func ready(p *corev1.Pod) error {
	if p.DeletionTimestamp != nil {
		return fmt.Errorf("pod %s is being deleted", p.Name)
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("pod %s on %s is %s and not ready", p.Name, p.Spec.NodeName, p.Status.Phase)
}

// readyPods waits until an app has exactly this number of pods, all ready and with an address each, and returns them.
func (w *world) readyPods(t testing.TB, app string, count int) []corev1.Pod {
	t.Helper()
	var pods []corev1.Pod
	meshtest.Within(t, patience, func() error {
		pods = w.pods(t, app)
		var errs []error
		for i := range pods {
			errs = append(errs, ready(&pods[i]))
		}
		if len(pods) != count {
			errs = append(errs, fmt.Errorf("%d pods of %s, want %d", len(pods), app, count))
		}
		return errors.Join(errs...)
	})
	distinct(t, pods)
	return pods
}

// distinct fails the test if two pods have the same address.
func distinct(t testing.TB, pods []corev1.Pod) {
	t.Helper()
	owners := map[string]string{}
	for _, p := range pods {
		if other, taken := owners[p.Status.PodIP]; taken || p.Status.PodIP == "" {
			t.Errorf("pods %s and %s both have the address %q", other, p.Name, p.Status.PodIP)
		}
		owners[p.Status.PodIP] = p.Name
	}
}
