package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

const (
	// patience is the limit for reports: more than the three minutes in which a joining node answers no probe, and than a
	// session's hold time and the time until it counts as down.
	patience = 8 * time.Minute
	// commandTime bounds one command on a node, which a fault may block.
	commandTime = 40 * time.Second
)

var nodes = []string{"master", "node1", "node2"}

// world is the cluster, with a pod on each node.
type world struct {
	*labtest.Lab
	client *kubernetes.Clientset
	pods   map[string]*meshtest.Pod // by node
}

func newWorld(t *testing.T) *world {
	t.Helper()
	l := labtest.NewLab(t, len(nodes), "-dns", "-image", labtest.Image(t))
	client, err := kubernetes.NewForConfig(l.RESTConfig(t))
	errtest.Must(t, err)
	w := &world{Lab: l, client: client, pods: map[string]*meshtest.Pod{}}
	l.Release(t, "install", labtest.ImageTag, "--set", "ipPool.vxlanMode=Always")
	l.Kubectl(t, "wait", "--for=condition=Ready", "node", "--all", "--timeout="+patience.String())
	for _, node := range nodes {
		l.StartPod(t, "on-"+node, node)
		p, err := client.CoreV1().Pods(metav1.NamespaceDefault).Get(t.Context(), "on-"+node, metav1.GetOptions{})
		errtest.Must(t, err)
		w.pods[node] = &meshtest.Pod{NS: l.Pod(t, string(p.UID)), V4: netip.MustParseAddr(p.Status.PodIP)}
	}
	// kube-proxy writes its rules anew a few minutes after another program has removed them.
	for _, node := range nodes {
		l.On(t, node, "(nft list table ip kube-proxy; nft list table ip6 kube-proxy) > /lab/state/kube-proxy.nft")
	}
	return w
}

// do makes a step, which is written for crd.projectcalico.org/v1.
func (w *world) do(ctx context.Context, s step) error {
	switch s.where {
	case "kubectl", "helm":
		out, err := exec.CommandContext(ctx, "sh", "-c", w.Command(s.where)+" "+w.InGroupText(s.line)).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s: %w: %s", s, err, out)
		}
		return err
	}
	_, err := w.Do(ctx, "exec", s.where, "sh", "-c", s.line)
	return err
}

// ask runs a command of the agent's program in its pod on a node.
func (w *world) ask(ctx context.Context, node string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime*meshtest.TimeScale)
	defer cancel()
	pods, err := w.client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=node", FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil {
		return "", err
	}
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil {
			return w.Do(ctx, "kubectl", append([]string{"-n", p.Namespace, "exec", p.Name, "-c", "node", "--", "node"}, args...)...)
		}
	}
	return "", errors.New("no agent's pod on " + node)
}

// diagnose returns what `node diagnose` finds on a node. Its exit code must be 1 if there is a problem, else 0.
func (w *world) diagnose(ctx context.Context, node string) (d nodestatus.Diagnosis, err error) {
	out, failed := w.ask(ctx, node, "diagnose", "-o", "json")
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		return d, fmt.Errorf("node diagnose on %s: %w: %w", node, err, failed)
	}
	if (failed != nil) != (d.Count(nodestatus.Problem) > 0) {
		return d, fmt.Errorf("node diagnose on %s: %d problems, and %w", node, d.Count(nodestatus.Problem), failed)
	}
	return d, nil
}

// status returns the agent's report of a node.
func (w *world) status(ctx context.Context, node string) (r nodestatus.Report, err error) {
	out, err := w.ask(ctx, node, "status", "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &r)
	}
	return r, err
}

// events returns all Events since a time.
func (w *world) events(ctx context.Context, since time.Time) (all []corev1.Event, err error) {
	list, err := w.client.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return e.LastTimestamp.Time.Before(since.Truncate(time.Second)) }), nil
}

// well returns nil if every node has its sessions and reaches the others, and `node diagnose` finds nothing on any.
func (w *world) well(ctx context.Context) error {
	for _, node := range nodes {
		r, err := w.status(ctx, node)
		if err != nil {
			return err
		}
		for _, p := range r.Peers {
			if p.State != "Established" {
				return fmt.Errorf("%s: the session with %s is %s", node, p.Node, p.State)
			}
		}
		if !r.Ready || r.LastError != "" || len(r.Problems) > 0 || len(r.Peers) != 2 || r.Paths == nil || r.Paths.Up != 2 {
			return fmt.Errorf("%s: ready is %v, last error %q, problems %q, %d peers, paths %+v", node, r.Ready, r.LastError,
				r.Problems, len(r.Peers), r.Paths)
		}
		d, err := w.diagnose(ctx, node)
		if err != nil {
			return err
		}
		for _, f := range d.Findings {
			if f.Level != nodestatus.OK && f.Check != "denials" { // which are shown for 5 minutes
				return fmt.Errorf("%s: %s", node, inWords(f))
			}
		}
	}
	return nil
}

func inWords(f nodestatus.Finding) string {
	return fmt.Sprintf("%s: %s %s: %s (%s: %s)", f.Level, f.Check, f.About, f.Seen, f.Why, f.Do)
}

// contains reports whether a text has all of these in their order, which " ... " separates.
func contains(text, words string) bool {
	for part := range strings.SplitSeq(words, " ... ") {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return true
}
