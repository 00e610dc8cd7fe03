package uninstall

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// world is a real API server with Nodes; the test acts as their kubelets.
type world struct {
	t      *testing.T
	client kubernetes.Interface
	u      *Uninstaller

	mu   sync.Mutex // guards told
	told []string
	said func(line string) // called with each printed line, if set
}

// newWorld makes a cluster with nodes that have an agent's marks; on nodes with names that begin with "silent" no
// kubelet answers.
func newWorld(t *testing.T, nodes ...string) *world {
	t.Helper()
	cfg := labtest.RESTConfig(t)
	client, err := kubernetes.NewForConfig(cfg)
	errtest.Must(t, err)
	w := &world{t: t, client: client}
	for _, name := range nodes {
		w.addNode(name)
	}
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "kernel", Image: "none", Args: []string{"cleanup", allFlag}}}},
	}
	settings := Settings{Namespace: "kube-system", DaemonSet: "none", Agents: "of=" + nodes[0], Pod: pod, Timeout: limit}
	w.u, err = New(cfg, settings, func(line string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.told = append(w.told, line)
		if w.said != nil {
			w.said(line)
		}
	})
	errtest.Must(t, err)
	return w
}

func (w *world) addNode(name string) {
	w.t.Helper()
	status := corev1.ConditionTrue
	if strings.HasPrefix(name, "silent") {
		status = corev1.ConditionUnknown
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux"},
		Annotations: map[string]string{api.AnnotationIPv4Address: "10.0.0.1/24", "other": "stays"}}}
	n, err := w.client.CoreV1().Nodes().Create(w.t.Context(), n, metav1.CreateOptions{})
	errtest.Must(w.t, err)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status},
		{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Message: "Tortie is running on this node"}}
	if _, err := w.client.CoreV1().Nodes().UpdateStatus(w.t.Context(), n, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := w.client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			w.t.Error(err)
		}
	})
}

// kubelet sets the status of each pod that cleans the node as soon as it appears, until the test ends.
func (w *world) kubelet(node string, status corev1.PodStatus) {
	w.t.Helper()
	pods := w.client.CoreV1().Pods("kube-system")
	events, err := pods.Watch(w.t.Context(), metav1.ListOptions{LabelSelector: cleanerLabel})
	errtest.Must(w.t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for event := range events.ResultChan() {
			if p, ok := event.Object.(*corev1.Pod); ok && event.Type != watch.Deleted && p.Spec.NodeName == node && p.Status.Phase != status.Phase {
				p.Status = status
				_, _ = pods.UpdateStatus(w.t.Context(), p, metav1.UpdateOptions{}) // a pod that has changed meanwhile comes again
			}
		}
	})
	w.t.Cleanup(func() { events.Stop(); serving.Wait() })
}

// marks returns the agent's annotations and condition on a Node.
func (w *world) marks(name string) (left []string) {
	w.t.Helper()
	n, err := w.client.CoreV1().Nodes().Get(w.t.Context(), name, metav1.GetOptions{})
	errtest.Must(w.t, err)
	if n.Annotations["other"] != "stays" ||
		!slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }) {
		w.t.Errorf("Node %s lost what is not the agent's: %v, %v", name, n.Annotations, n.Status.Conditions)
	}
	if n.Annotations[api.AnnotationIPv4Address] != "" {
		left = append(left, "annotation")
	}
	if condition(n) != nil {
		left = append(left, "condition")
	}
	return left
}

var failure = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: "kernel",
	State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "it takes CAP_NET_ADMIN\n"}}}}}

// deadline is a context that reaches its deadline when passed is closed.
type deadline struct {
	context.Context
	passed chan struct{}
}

func (d deadline) Done() <-chan struct{} { return d.passed }

func (d deadline) Err() error {
	select {
	case <-d.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// limit is the timeout of an uninstallation in these tests, which none reaches.
const limit = 5 * time.Minute

// TestDeadline: a cleaned node has no marks; a failing one is named with the reason, keeps its marks, and so is cleaned
// by the next run; a node with a silent kubelet is named too.
func TestDeadline(t *testing.T) {
	w := newWorld(t, "well", "fails", "silent")
	end := deadline{t.Context(), make(chan struct{})}
	expire := sync.OnceFunc(func() { close(end.passed) })
	w.said = func(line string) {
		if strings.Contains(line, "1 of 3 nodes are clean") && strings.Contains(line, "CAP_NET_ADMIN") {
			expire()
		}
	}
	w.kubelet("well", corev1.PodStatus{Phase: corev1.PodSucceeded})
	failing := failure
	failing.Phase = corev1.PodRunning
	w.kubelet("fails", failing)
	err := w.u.Run(end)
	for _, want := range []string{limit.String(), "fails (kernel failed: it takes CAP_NET_ADMIN)", "--no-hooks"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if told := strings.Join(w.told, "\n"); !strings.Contains(told, "1 of 3 nodes are clean") ||
		!strings.Contains(told, "NOT CLEANED, as their kubelets do not answer: silent.") {
		t.Errorf("told:\n%s", told)
	}
	if left := w.marks("well"); len(left) > 0 {
		t.Errorf("a clean node still has %v", left)
	}
	if len(w.marks("fails")) != 2 || len(w.marks("silent")) != 2 {
		t.Error("the next run would not know the nodes that are not clean")
	}
	w.next("fails")
}

// next runs it once more, without the failure: the pod that failed before is no obstacle.
func (w *world) next(node string) {
	w.t.Helper()
	again := newWorld(w.t, "new")
	again.kubelet("new", corev1.PodStatus{Phase: corev1.PodSucceeded})
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	finished := make(chan error, 1)
	go func() { finished <- again.u.Run(ctx) }()
	waittest.For(w.t, time.Minute, func() error {
		view, err := again.u.view(ctx)
		if _, ok := view.Cleaners[node]; err == nil && !ok {
			err = errors.New("the next run has made no new pod on the node that failed")
		}
		return err
	})
	cancel()
	<-finished
}
