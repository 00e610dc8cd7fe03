package uninstall

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/install/objects"
)

// Settings are the settings of an uninstallation.
type Settings struct {
	// Namespace is the namespace of the agents, and of the pods that clean.
	Namespace string
	// DaemonSet is the name of the agents' DaemonSet, and Agents the selector of its pods.
	DaemonSet, Agents string
	// Pod is the template of the pod on each node. The node, a name and labels are added.
	Pod *corev1.Pod
	// Timeout bounds the work on all nodes together.
	Timeout time.Duration
}

const (
	// cleanerLabel is the label of the pods that clean.
	cleanerLabel = "tortie.io/uninstall"
	// calicoNodes are the pods of Calico's agent, however Calico was installed.
	calicoNodes = "k8s-app=calico-node"
	allFlag     = "-all"

	pollEvery = time.Second
	tellEvery = 5 * time.Second
	// patience bounds the wait for nodes without an answering kubelet when all others are clean.
	patience = 30 * time.Second
)

// Uninstaller cleans a cluster's nodes. A second run continues with the nodes that are not clean.
type Uninstaller struct {
	Settings
	cluster *objects.Client
	tell    func(line string)
	run     string // distinguishes its pods from an earlier run's, which may have failed
}

// New returns an uninstaller; it calls tell with lines of progress.
func New(cfg *rest.Config, s Settings, tell func(line string)) (*Uninstaller, error) {
	cluster, err := objects.New(cfg)
	if err != nil {
		return nil, err
	}
	return &Uninstaller{Settings: s, cluster: cluster, tell: tell, run: fmt.Sprintf("%06x", rand.N(1<<24))}, nil
}

// Run returns nil when every node that could be reached is clean. The error names the others, and what to do about
// them.
func (u *Uninstaller) Run(ctx context.Context) error {
	deadline := time.Now().Add(u.Timeout)
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, fmt.Errorf("it took longer than %v (value uninstall.timeoutSeconds)", u.Timeout))
	defer cancel()
	targets, err := u.begin(ctx)
	for ; err != nil && !apierrors.IsForbidden(err); targets, err = u.begin(ctx) {
		u.tell("trying again: " + err.Error())
		if !wait.Sleep(ctx, wait.Jitter(pollEvery)) {
			break
		}
	}
	if err != nil {
		return err
	}
	round, err := u.clean(ctx, targets, deadline)
	after := context.WithoutCancel(ctx)
	if err == nil || errors.Is(err, context.DeadlineExceeded) {
		err = u.verdict(round)
	}
	return errors.Join(err, u.takeBack(after, round.Done), u.sweepDone(after))
}

// begin returns the nodes to clean, and ends their agents. It may be repeated, as the marks on a Node stay until it is
// clean.
func (u *Uninstaller) begin(ctx context.Context) (targets []string, err error) {
	if err := u.sweep(ctx); err != nil {
		return nil, err
	}
	view, err := u.view(ctx)
	if err != nil {
		return nil, err
	}
	targets = view.Targets()
	u.tell(fmt.Sprintf("uninstalling from %d nodes; the agents end first", len(targets)))
	if err := u.cluster.DeleteDaemonSet(ctx, u.Namespace, u.DaemonSet); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("delete DaemonSet %s: %w", u.DaemonSet, err)
	}
	return targets, nil
}

// clean works until all targets are clean, only unreachable ones have been left for patience, or ctx ends, and returns
// the last round.
func (u *Uninstaller) clean(ctx context.Context, targets []string, deadline time.Time) (round Round, err error) {
	round.Waiting = map[string]string{}
	for _, name := range targets {
		round.Waiting[name] = "the API server has not been heard since its agent was told to end"
	}
	var told, hopeless time.Time
	for ; ; wait.Sleep(ctx, wait.Jitter(pollEvery)) {
		if ctx.Err() != nil {
			u.progress(round, len(targets), deadline, err) // the final state: the last line may be seconds old
			return round, errors.Join(ctx.Err(), err)
		}
		if round, err = u.turn(ctx, targets, round); err == nil && len(round.Waiting) == 0 {
			break
		}
		if failed, _ := round.failed(); err != nil || len(failed) > 0 {
			hopeless = time.Time{}
		} else if hopeless.IsZero() {
			hopeless = time.Now()
		} else if time.Since(hopeless) > patience {
			break
		}
		if time.Since(told) >= tellEvery {
			told = time.Now()
			u.progress(round, len(targets), deadline, err)
		}
	}
	u.progress(round, len(targets), deadline, nil)
	return round, nil
}

// turn reads the cluster's state and makes missing pods. If it cannot read it, it returns the round before: the API
// server may be unavailable for a while.
func (u *Uninstaller) turn(ctx context.Context, targets []string, before Round) (Round, error) {
	view, err := u.view(ctx)
	if err != nil {
		return before, err
	}
	round := view.Next(targets)
	return round, u.create(ctx, round.Create)
}

func (u *Uninstaller) progress(round Round, total int, deadline time.Time, err error) {
	u.tell(round.progress(total, max(0, time.Until(deadline))))
	if err != nil {
		u.tell("trying again: " + err.Error())
	}
}

// verdict returns the error about the nodes that were not cleaned in time. It only reports unreachable nodes: they may
// be gone for good, and an error would prevent the release from ever being uninstalled.
func (u *Uninstaller) verdict(round Round) error {
	failed, unreachable := round.failed()
	if len(unreachable) > 0 {
		u.tell(fmt.Sprintf("NOT CLEANED, as their kubelets do not answer: %s. When one comes back, run there: install uninstall; node cleanup "+
			"-all (docs/chart.md, Uninstalling)", strings.Join(unreachable, ", ")))
	}
	if len(failed) == 0 {
		return nil
	}
	return fmt.Errorf("not cleaned within %v: %s: look at the pods labelled %s in namespace %s, then run helm uninstall again, or with "+
		"--no-hooks to leave the nodes as they are", u.Timeout, strings.Join(failed, ", "), cleanerLabel, u.Namespace)
}

// view reads the cluster's state.
func (u *Uninstaller) view(ctx context.Context) (View, error) {
	nodes, errNodes := u.cluster.Nodes(ctx, "kubernetes.io/os=linux")
	agents, errAgents := u.cluster.Pods(ctx, u.Namespace, u.Agents)
	calico, errCalico := u.cluster.Pods(ctx, "", calicoNodes)
	cleaners, errCleaners := u.cluster.Pods(ctx, u.Namespace, cleanerLabel+"="+u.run)
	if err := errors.Join(errNodes, errAgents, errCalico, errCleaners); err != nil {
		return View{}, fmt.Errorf("look at the cluster: %w", err)
	}
	v := View{Agents: placed(agents), Calico: placed(calico), Cleaners: map[string]Cleaner{}}
	for i := range nodes {
		n := &nodes[i]
		v.Nodes = append(v.Nodes, Node{Name: n.Name, Ready: answers(n), Ours: isOurs(n)})
	}
	for i := range cleaners {
		pod := &cleaners[i]
		v.Cleaners[pod.Spec.NodeName] = Cleaner{Done: pod.Status.Phase == corev1.PodSucceeded, Message: complaint(pod)}
	}
	return v, nil
}

func placed(pods []corev1.Pod) map[string]bool {
	nodes := map[string]bool{}
	for i := range pods {
		nodes[pods[i].Spec.NodeName] = true
	}
	return nodes
}

// answers reports whether the kubelet answers. A node without a conflist is not Ready either, but still runs pods in
// its own network. So answers uses the control plane's detection, which sets the conditions of a silent kubelet to
// Unknown.
func answers(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status != corev1.ConditionUnknown
		}
	}
	return false
}

// complaint returns the message of a pod's failed container, or why a container does not run.
func complaint(pod *corev1.Pod) string {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		for _, ended := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if ended != nil && ended.ExitCode != 0 {
				return fmt.Sprintf("%s failed: %s", s.Name, strings.TrimSpace(ended.Message))
			}
		}
		if w := s.State.Waiting; w != nil && w.Message != "" {
			return fmt.Sprintf("%s: %s: %s", s.Name, w.Reason, w.Message)
		}
	}
	return ""
}

// create makes the pods that clean. A pod that exists already was made by a request with a lost answer.
func (u *Uninstaller) create(ctx context.Context, orders []Order) error {
	var errs []error
	for _, o := range orders {
		err := u.cluster.CreatePod(ctx, u.cleaner(o))
		if err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, fmt.Errorf("make a pod on node %s: %w", o.Node, err))
		}
	}
	return errors.Join(errs...)
}

// cleaner returns the pod for one node.
func (u *Uninstaller) cleaner(o Order) *corev1.Pod {
	pod := u.Pod.DeepCopy()
	pod.Name, pod.Namespace = objects.NameFor("tortie-uninstall-"+u.run, o.Node), u.Namespace
	pod.Labels = maps.Clone(pod.Labels)
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[cleanerLabel] = u.run
	pod.Spec.NodeName = o.Node
	if o.HandOver {
		for i := range pod.Spec.Containers {
			c := &pod.Spec.Containers[i]
			c.Args = slices.DeleteFunc(c.Args, func(arg string) bool { return arg == allFlag })
		}
	}
	return pod
}

// sweep deletes the pods of earlier runs.
func (u *Uninstaller) sweep(ctx context.Context) error {
	return u.deletePods(ctx, func(pod *corev1.Pod) bool { return pod.Labels[cleanerLabel] != u.run })
}

// sweepDone deletes the pods that have succeeded. Others stay: they show why they failed.
func (u *Uninstaller) sweepDone(ctx context.Context) error {
	return u.deletePods(ctx, func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })
}

func (u *Uninstaller) deletePods(ctx context.Context, which func(*corev1.Pod) bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	pods, err := u.cluster.Pods(ctx, u.Namespace, cleanerLabel)
	if err != nil {
		return fmt.Errorf("look for pods that have cleaned: %w", err)
	}
	var errs []error
	for i := range pods {
		if !which(&pods[i]) {
			continue
		}
		if err := u.cluster.DeletePod(ctx, u.Namespace, pods[i].Name); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete pod %s: %w", pods[i].Name, err))
		}
	}
	return errors.Join(errs...)
}

// retryPatch bounds the writes of a Node after conflicts, mostly with its kubelet.
const retryPatch = 5

// takeBack removes the annotations and the condition of agents, and kube-controllers' label, from the Nodes of cleaned
// nodes, except where Calico runs.
func (u *Uninstaller) takeBack(ctx context.Context, done []string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	nodes, errNodes := u.cluster.Nodes(ctx, "")
	calico, errCalico := u.cluster.Pods(ctx, "", calicoNodes)
	if err := errors.Join(errNodes, errCalico); err != nil {
		return fmt.Errorf("take back what agents wrote on Nodes: %w", err)
	}
	theirs := placed(calico)
	var errs []error
	for i := range nodes {
		n := &nodes[i]
		patch, err := undo(n)
		if err == nil && patch != nil && slices.Contains(done, n.Name) && !theirs[n.Name] {
			err = u.patch(ctx, n.Name, patch)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("take back what the agent wrote on Node %s: %w", n.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (u *Uninstaller) patch(ctx context.Context, node string, patch []byte) (err error) {
	for range retryPatch {
		err = u.cluster.PatchNode(ctx, node, patch)
		if err == nil || apierrors.IsNotFound(err) {
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsServerTimeout(err) && !apierrors.IsTooManyRequests(err) {
			return err
		}
		if !wait.Sleep(ctx, pollEvery) {
			return errors.Join(ctx.Err(), err)
		}
	}
	return err
}
