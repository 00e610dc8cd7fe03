package cluster

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// TestSpeed measures, for hack/bench, the time until nodes are ready and pods run. Without -figures there is nothing to
// measure: TestCorpus shows that its parts work.
func TestSpeed(t *testing.T) {
	if !meshtest.Measuring() {
		t.Skip("left to hack/bench, which measures by it")
	}
	archive := labtest.BuildImage(t, labtest.Root(), "dev")
	const rounds = 3
	for i := range rounds {
		t.Run(fmt.Sprintf("fresh nodes %d", i+1), func(t *testing.T) {
			w := newWorld(t, "-image", archive)
			w.rollout(t)
			if i == rounds-1 {
				w.compare(t, netip.MustParsePrefix("192.168.0.0/16"))
			}
		})
	}
}

// rollout installs Tortie with Helm's flags, and measures the time from the DaemonSet to ready nodes. The image is on
// the nodes already.
func (w *world) rollout(t *testing.T, flags ...string) {
	sets, err := w.client.AppsV1().DaemonSets("kube-system").Watch(t.Context(), metav1.ListOptions{})
	errtest.Must(t, err)
	machines, err := w.client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{})
	errtest.Must(t, err)
	created, serving, usable := make(chan time.Time, 1), make(chan time.Time, 1), make(chan time.Time, 1)
	go func() {
		created <- when(sets, func(runtime.Object) bool { return true })
		serving <- when(sets, func(obj runtime.Object) bool { return int(obj.(*appsv1.DaemonSet).Status.NumberReady) == len(nodes) })
	}()
	go func() { usable <- when(machines, allReady()) }()
	w.Release(t, "install", "dev", flags...)
	began := <-created
	meshtest.RecordTimes("a DaemonSet on three fresh nodes: from its creation until all its pods are ready", (<-serving).Sub(began))
	meshtest.RecordTimes("a DaemonSet on three fresh nodes: from its creation until all nodes are Ready", (<-usable).Sub(began))
	for _, node := range nodes {
		w.installer(t, node)
	}
}

// when returns the time of the first object of a watch that matches, or the zero time if the watch ends.
func when(w watch.Interface, so func(runtime.Object) bool) time.Time {
	for event := range w.ResultChan() {
		if event.Type != watch.Error && so(event.Object) {
			return time.Now()
		}
	}
	return time.Time{}
}

// allReady matches once every node has been seen ready.
func allReady() func(runtime.Object) bool {
	seen := map[string]bool{}
	return func(obj runtime.Object) bool {
		n := obj.(*corev1.Node)
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				seen[n.Name] = true
			}
		}
		return len(seen) == len(nodes)
	}
}

// startOf prints the start time of a process on a node, in seconds since 1970, computed from its start time since boot
// and the uptime.
const startOf = `awk -v now=$(date +%%s.%%N) -v up=$(cut -d" " -f1 /proc/uptime) '{printf "%%.3f", now - up + $22/100}' ` +
	`/proc/$(pgrep -xo %s)/stat`

var logLine = regexp.MustCompile(`time=(\S+) level=INFO msg="(plugins are in place|kubeconfig is in place and works|conflist is in place)"`)

// installer measures the steps of the installer by the process' start time and the timestamps in its log. Between
// kubeconfig and conflist it waits for the agent.
func (w *world) installer(t *testing.T, node string) {
	t.Helper()
	seconds, err := strconv.ParseFloat(w.On(t, node, fmt.Sprintf(startOf, "install")), 64)
	errtest.Must(t, err)
	start := time.UnixMilli(int64(seconds * 1000))
	log := w.Kubectl(t, "logs", "-n", "kube-system", w.agents(t)[node].Name, "-c", "install")
	at := map[string]time.Time{}
	for _, m := range logLine.FindAllStringSubmatch(log, -1) {
		if at[m[2]], err = time.Parse(time.RFC3339Nano, m[1]); err != nil {
			t.Fatal(err)
		}
	}
	if len(at) != 3 {
		t.Fatalf("the installer of %s has logged only %v:\n%s", node, at, log)
	}
	proven := at["kubeconfig is in place and works"]
	meshtest.RecordTimes("install: from its start until plugins and kubeconfig are in place and proven", proven.Sub(start))
	meshtest.RecordTimes("install: then, until the agent serves and the conflist is in place", at["conflist is in place"].Sub(proven))
}

// trivial is the smallest configuration that gives a pod an address.
const trivial = `{"name": "trivial", "cniVersion": "1.0.0", "plugins": [
  {"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.99.0.0/24"}}
]}`

// compare measures pods that are created at once on one node, alternating between our plugins, which take addresses of
// own, and trivial ones.
func (w *world) compare(t *testing.T, own netip.Prefix) {
	const node, conflist = "node1", "/etc/cni/net.d/00-trivial.conflist"
	w.trivialPlugins(t, node)
	count := meshtest.Repeat(10, 60)
	for range meshtest.Repeat(1, 3) {
		w.burst(t, node, count, own, "Tortie")
		w.Put(t, node, conflist, 0o644, []byte(trivial))
		w.burst(t, node, count, netip.MustParsePrefix("10.99.0.0/24"), "ptp + host-local")
		w.On(t, node, "rm "+conflist)
	}
}

// trivialPlugins builds the CNI project's reference plugins and copies them to a node.
func (w *world) trivialPlugins(t *testing.T, node string) {
	t.Helper()
	dir := t.TempDir()
	const plugins = "github.com/containernetworking/plugins/plugins/"
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir+"/", plugins+"main/ptp",
		plugins+"ipam/host-local")
	cmd.Dir, cmd.Env = labtest.Root(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the trivial plugins: %v: %s", err, out)
	}
	for _, name := range []string{"ptp", "host-local"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		errtest.Must(t, err)
		w.Put(t, node, "/opt/cni/bin/"+name, 0o755, content)
	}
}

// burst creates pods on a node, measures the time until all run, and deletes them. Their addresses show which plugins
// they use.
func (w *world) burst(t *testing.T, node string, count int, from netip.Prefix, plugins string) {
	t.Helper()
	w.uses(t, node, from)
	pods := w.client.CoreV1().Pods(namespace)
	events, err := pods.Watch(t.Context(), metav1.ListOptions{LabelSelector: "app=burst"})
	errtest.Must(t, err)
	defer events.Stop()
	running := make(chan time.Time, 1)
	go func() { running <- when(events, allRun(count)) }()
	began := time.Now()
	w.create(t, "burst", node, count)
	select {
	case end := <-running:
		meshtest.RecordTimes(fmt.Sprintf("%d pods at once on one node, until all run: %s", count, plugins), end.Sub(began))
	case <-time.After(patience):
		t.Fatalf("%d pods with %s are not running", count, plugins)
	}
	for _, p := range w.pods(t, "burst") {
		if addr, err := netip.ParseAddr(p.Status.PodIP); err != nil || !from.Contains(addr) {
			t.Fatalf("a pod with %s has the address %q, want one of %s", plugins, p.Status.PodIP, from)
		}
	}
	w.remove(t, "burst", node)
}

// allRun matches once this number of pods has been seen running.
func allRun(count int) func(runtime.Object) bool {
	seen := map[string]bool{}
	return func(obj runtime.Object) bool {
		if p := obj.(*corev1.Pod); p.Status.Phase == corev1.PodRunning && p.Status.PodIP != "" {
			seen[p.Name] = true
		}
		return len(seen) == count
	}
}

// uses waits until the runtime of a node uses the configuration with this range.
func (w *world) uses(t *testing.T, node string, from netip.Prefix) {
	t.Helper()
	meshtest.Eventually(t, func() error {
		w.create(t, "probe", node, 1)
		var address string
		meshtest.Eventually(t, func() error {
			p := w.pods(t, "probe")[0]
			if address = p.Status.PodIP; address == "" {
				return fmt.Errorf("pod %s has no address", p.Name)
			}
			return nil
		})
		w.remove(t, "probe", node)
		if !from.Contains(netip.MustParseAddr(address)) {
			return fmt.Errorf("a pod on %s has the address %s, want one of %s", node, address, from)
		}
		return nil
	})
}

// create creates idle pods on a node, bypassing the scheduler.
func (w *world) create(t *testing.T, app, node string, count int) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(16)
	for i := range count {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", app, i), Labels: map[string]string{"app": app}},
			Spec: corev1.PodSpec{
				NodeName: node, TerminationGracePeriodSeconds: new(int64),
				Containers: []corev1.Container{
					{Name: "sleep", Image: labtest.DebugImage, ImagePullPolicy: corev1.PullNever, Command: []string{"sleep", "infinity"}},
				},
			},
		}
		g.Go(func() error {
			_, err := w.client.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
			return err
		})
	}
	errtest.Must(t, g.Wait())
}

// remove deletes an app's pods, and waits until the node has none left.
func (w *world) remove(t *testing.T, app, node string) {
	t.Helper()
	w.Kubectl(t, "delete", "pods", "-l", "app="+app)
	meshtest.Within(t, patience, func() error {
		if left := w.On(t, node, "ls /run/netns"); left != "" {
			return fmt.Errorf("%s still has %s", node, left)
		}
		return nil
	})
}
