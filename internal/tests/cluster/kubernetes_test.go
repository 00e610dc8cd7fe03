package cluster

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// dualStack are Helm's flags for dual-stack pods, with the lab's IPv6 range.
var dualStack = []string{"--set", "ipFamilies={IPv4,IPv6},ipv6Pool.cidr=fd00:192:168::/48"}

// TestKubernetes is the life of one cluster, from an installation on definitions of somebody else to the
// uninstallation, which leaves the hosts as they were. Each part between restores the state that it found, without a
// leak.
func TestKubernetes(t *testing.T) {
	// containerd 2 calls STATUS and GC, which containerd 1.6 of the other suites' labs does not.
	w := newWorld(t, "-containerd", "2", "-ipv6", "-dns", "-image", labtest.BuildImage(t, labtest.Root(), "dev"), "-image",
		labtest.BuildImage(t, labtest.Root(), "next"))
	for _, node := range nodes {
		w.On(t, node, prepare)
	}
	before := w.Hosts(t, nodes...)
	w.theirDefinition(t)
	w.installed(t)
	w.completed(t)
	w.exclusive(t)
	w.apply(t, "traffic.yaml")
	passed := w.parts(t)
	// After a failure the last part would fail for the same reason.
	if passed && t.Run("the chart's own test", w.helmTest) {
		w.Kubectl(t, "delete", "daemonset", "traffic", "--cascade=foreground")
		t.Run("the release is uninstalled", func(t *testing.T) { w.uninstalled(t, before) })
	}
	w.explain(t)
}

// parts runs the parts that restore the state that they found, up to the first one that fails.
func (w *world) parts(t *testing.T) (passed bool) {
	for _, part := range []struct {
		name string
		run  func(*world, *testing.T)
	}{
		{"a deployment with init containers behind a service", (*world).deployment},
		{"a policy", (*world).policy},
		{"a host port", (*world).hostPort},
		{"a stateful set is rescheduled", (*world).statefulSet},
		{"many pods at once on one node", (*world).crowd},
		{"containerd restarts", (*world).containerd},
		{"the runtime asks whether pods can be added", (*world).status},
		{"helm upgrade and rollback", (*world).upgrade},
		{"a node is drained", (*world).drain},
		{"a node reboots", (*world).reboot},
	} {
		passed = t.Run(part.name, func(t *testing.T) {
			w.ends = map[string]*meshtest.Pod{}
			w.rolledOut(t, "daemonset/traffic")
			part.run(w, t)
		})
		passed = passed && t.Run(part.name+": nothing is left", w.clean)
		if !passed {
			return false // the next parts would fail for the same reason, after their deadlines
		}
	}
	return true
}

// installed installs Tortie, and waits until the nodes are ready.
func (w *world) installed(t *testing.T) {
	t.Helper()
	start := time.Now()
	w.Release(t, "install", "dev", dualStack...)
	w.rolledOut(t, "daemonset/tortie-node", "-n", "kube-system")
	t.Logf("helm install to a DaemonSet that is ready on %d nodes: %v", len(nodes), time.Since(start))
	w.Kubectl(t, "wait", "--for=condition=Ready", "node", "--all", "--timeout="+patience.String())
}

// exclusive fails the test if the API ever shows two pods with one address, until the test ends.
func (w *world) exclusive(t *testing.T) {
	t.Helper()
	events, err := w.client.CoreV1().Pods(metav1.NamespaceAll).Watch(t.Context(), metav1.ListOptions{})
	errtest.Must(t, err)
	var watching sync.WaitGroup
	watching.Go(func() {
		holders := map[string]*corev1.Pod{} // by address
		for event := range events.ResultChan() {
			p, ok := event.Object.(*corev1.Pod)
			if !ok || p.Spec.HostNetwork {
				continue
			}
			maps.DeleteFunc(holders, func(_ string, h *corev1.Pod) bool { return h.UID == p.UID })
			if event.Type == watch.Deleted || p.Status.Phase != corev1.PodRunning || p.Status.PodIP == "" {
				continue
			}
			if h := holders[p.Status.PodIP]; h != nil {
				t.Errorf("pods %s on %s and %s on %s have the address %s", h.Name, h.Spec.NodeName, p.Name, p.Spec.NodeName, p.Status.PodIP)
			}
			holders[p.Status.PodIP] = p
		}
	})
	t.Cleanup(func() { events.Stop(); watching.Wait() })
}

// clean waits until IPAM has no record of the part, and the nodes have only the links, routes and journal entries of
// running pods.
func (w *world) clean(t *testing.T) {
	meshtest.Within(t, patience, func() error {
		view, err := inventory.Read(t.Context(), inventory.Source{IPAM: w.store, Cluster: w.store}, time.Now)
		if err != nil {
			return err
		}
		var errs []error
		for _, f := range audit.Check(&view) {
			if f.Grade > audit.Note {
				errs = append(errs, fmt.Errorf("%s %s: %s", f.Kind, f.Object, f.Detail))
			}
		}
		return errors.Join(errs...)
	})
	for _, node := range nodes {
		meshtest.Within(t, patience, func() error { return w.tidy(t, node) })
	}
}

// tidy returns an error if a node has links, routes or namespaces of other things than its pods, or journal entries.
func (w *world) tidy(t *testing.T, node string) error {
	t.Helper()
	pods := 0
	for _, p := range w.podsOf(t, metav1.NamespaceAll, "") {
		if p.Spec.NodeName == node && !p.Spec.HostNetwork {
			pods++
		}
	}
	out := w.On(t, node, "ip -o link | grep -c ': cali'; ip -4 route | grep -c ' dev cali'; ls /run/netns | wc -l; find /var/lib/calico "+
		"-path '*journal*' -type f | wc -l; true")
	want := fmt.Sprintf("%[1]d %[1]d %[1]d 0", pods)
	if got := strings.Join(strings.Fields(out), " "); got != want {
		return fmt.Errorf("%s has %s links, routes, namespaces of pods and journal entries, want %s", node, got, want)
	}
	return nil
}

// explain logs the state of Kubernetes, and the logs of agents and plugins.
func (w *world) explain(t *testing.T) {
	var plugins [][]string
	for _, node := range nodes {
		plugins = append(plugins,
			[]string{"exec", node, "sh", "-c", "grep -v level=INFO /var/log/calico/cni/cni.log | tail -20; ip -4 route; ls /run/netns"})
	}
	w.LogDiagnostics(t, plugins...)
}
