package traffic

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/install/objects"
)

// Settings are the settings of a test.
type Settings struct {
	// Namespace is the namespace of the test's pods.
	Namespace string
	// Pod is their template. Its container gets a further argument: -listen, or -to=ADDRESSES.
	Pod *corev1.Pod
	// Owner is the owner of the pods, which are deleted with it if the test is killed; nil: none.
	Owner *metav1.OwnerReference
	// Timeout bounds the whole test.
	Timeout time.Duration
}

const (
	// runLabel is the label of a test's pods; its value identifies the test.
	runLabel  = "tortie.io/test"
	pollEvery = 300 * time.Millisecond
	tellEvery = 2 * time.Second
)

// Test is one test.
type Test struct {
	Settings
	cluster *objects.Client
	tell    func(line string)
	run     string
}

// New returns a test; it calls tell with a line for each result and for each wait.
func New(cluster *objects.Client, s Settings, tell func(line string)) *Test {
	return &Test{Settings: s, cluster: cluster, tell: tell, run: fmt.Sprintf("%06x", rand.N(1<<24))}
}

// Run returns nil if all packets arrived, in both directions and all families.
func (t *Test) Run(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, t.Timeout, fmt.Errorf("it took longer than %v", t.Timeout))
	defer cancel()
	all, err := t.cluster.Nodes(ctx, "kubernetes.io/os=linux")
	if err != nil {
		return fmt.Errorf("look for two nodes: %w", err)
	}
	pair, err := choose(all)
	if err != nil {
		return err
	}
	if pair[0] == pair[1] {
		t.tell(fmt.Sprintf("only node %s is Ready and not cordoned: two pods on it are all that can be tested", pair[0]))
	}
	defer func() { err = errors.Join(err, t.remove(context.WithoutCancel(ctx))) }()
	addresses, err := t.listen(ctx, pair)
	if err != nil {
		return err
	}
	return t.measure(ctx, pair, addresses)
}

// choose returns two random nodes, or the only one twice: a test with the same two each time would cover little of a
// cluster.
func choose(all []corev1.Node) ([2]string, error) {
	var names []string
	for i := range all {
		ready := slices.ContainsFunc(all[i].Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		if ready && !all[i].Spec.Unschedulable {
			names = append(names, all[i].Name)
		}
	}
	if len(names) == 0 {
		return [2]string{},
			errors.New("no node is Ready and not cordoned: see kubectl get nodes, and kubectl -n kube-system get pods -o wide for the agents")
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	if len(names) == 1 {
		names = append(names, names[0])
	}
	return [2]string{names[0], names[1]}, nil
}

// listen starts an echo on each node, and returns their addresses.
func (t *Test) listen(ctx context.Context, pair [2]string) (addresses [2][]netip.Addr, err error) {
	for i, node := range pair {
		if err := t.start(ctx, fmt.Sprintf("echo-%d", i), node, "-listen"); err != nil {
			return addresses, err
		}
	}
	pods, err := t.await(ctx, "echo-",
		func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning && len(pod.Status.PodIPs) > 0 })
	if err != nil {
		return addresses, err
	}
	for i := range pods {
		for _, ip := range pods[i].Status.PodIPs {
			addr, err := netip.ParseAddr(ip.IP)
			if err != nil {
				return addresses, fmt.Errorf("pod %s: %w", pods[i].Name, err)
			}
			addresses[i] = append(addresses[i], addr)
		}
	}
	return addresses, nil
}

// measure makes a pod on each node that measures against the other's echo, both at once.
func (t *Test) measure(ctx context.Context, pair [2]string, addresses [2][]netip.Addr) error {
	for i, node := range pair {
		var to []string
		for _, a := range addresses[1-i] {
			to = append(to, a.String())
		}
		if err := t.start(ctx, fmt.Sprintf("ask-%d", i), node, "-to="+strings.Join(to, ",")); err != nil {
			return err
		}
	}
	pods, err := t.await(ctx, "ask-", func(pod *corev1.Pod) bool { return ended(pod) != nil })
	if err != nil {
		return err
	}
	var errs []error
	for i := range pods {
		from, to := pair[i], pair[1-i]
		results, err := parse(ended(&pods[i]).Message)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s to %s: %w", from, to, err))
		}
		for _, r := range results {
			t.tell(fmt.Sprintf("%s -> %s %s", from, to, r))
			if r.Problem != "" {
				errs = append(errs, fmt.Errorf("from a pod on %s to one on %s, %s: %s", from, to, r.To, r.Problem))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w\nask the agents: kubectl -n %s exec NAME-OF-THE-POD -c node -- node diagnose", err, t.Namespace)
	}
	return nil
}

func ended(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	if len(pod.Status.ContainerStatuses) == 0 {
		return nil
	}
	return pod.Status.ContainerStatuses[0].State.Terminated
}

func parse(message string) (results []Result, err error) {
	if err := json.Unmarshal([]byte(message), &results); err != nil {
		return nil, fmt.Errorf("the pod printed no result but %q", message)
	}
	return results, nil
}

func (t *Test) name(part string) string { return "tortie-test-" + t.run + "-" + part }

func (t *Test) start(ctx context.Context, part, node string, args ...string) error {
	pod := t.Pod.DeepCopy()
	pod.Name, pod.Namespace = t.name(part), t.Namespace
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[runLabel] = t.run
	if t.Owner != nil {
		pod.OwnerReferences = []metav1.OwnerReference{*t.Owner}
	}
	pod.Spec.NodeName = node
	pod.Spec.Containers[0].Args = append(pod.Spec.Containers[0].Args, args...)
	if err := t.cluster.CreatePod(ctx, pod); err != nil {
		return fmt.Errorf("make pod %s on node %s: %w", pod.Name, node, err)
	}
	return nil
}

// await returns the two pods with a name for part, in order, when done holds for both.
func (t *Test) await(ctx context.Context, part string, done func(*corev1.Pod) bool) ([]corev1.Pod, error) {
	told, why := time.Now(), "" // of the last look that the end of ctx did not cut off
	for {
		pods, err := t.cluster.Pods(ctx, t.Namespace, runLabel+"="+t.run)
		pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !strings.HasPrefix(p.Name, t.name(part)) })
		slices.SortFunc(pods, func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
		waiting := slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return done(&p) })
		if err == nil && len(pods) == 2 && len(waiting) == 0 {
			return pods, nil
		}
		if why == "" || !wait.Over(ctx) {
			why = describe(waiting, err)
		}
		if time.Since(told) > tellEvery {
			told = time.Now()
			t.tell("waiting for " + why)
		}
		if !wait.Sleep(ctx, wait.Jitter(pollEvery)) {
			return nil, fmt.Errorf("%w: waiting for %s", context.Cause(ctx), why)
		}
	}
}

func describe(waiting []corev1.Pod, err error) string {
	if err != nil {
		return "the API server: " + err.Error()
	}
	var texts []string
	for i := range waiting {
		p := &waiting[i]
		text := fmt.Sprintf("pod %s on node %s (%s", p.Name, p.Spec.NodeName, p.Status.Phase)
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Waiting != nil {
				text += ", " + s.State.Waiting.Reason
			}
		}
		texts = append(texts, text+"; see kubectl describe pod)")
	}
	return strings.Join(texts, ", ")
}

// remove deletes the pods.
func (t *Test) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var errs []error
	for _, part := range []string{"echo-0", "echo-1", "ask-0", "ask-1"} {
		if err := t.cluster.DeletePod(ctx, t.Namespace, t.name(part)); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete pod %s: %w", t.name(part), err))
		}
	}
	return errors.Join(errs...)
}
