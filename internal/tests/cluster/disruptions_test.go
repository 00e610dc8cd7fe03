package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

func onNode(name string) func(corev1.Pod) bool {
	return func(p corev1.Pod) bool { return p.Spec.NodeName == name }
}

// reaches retransmits a packet until it is answered.
func reaches(t testing.TB, from *meshtest.Pod, address string) {
	t.Helper()
	from.Run(t, "busybox", "ping", "-c", "1", "-w", "20", address)
}

// trafficOn opens the traffic pod of a node.
func (w *world) trafficOn(t *testing.T, node string) *meshtest.Pod {
	t.Helper()
	pods := w.readyPods(t, "traffic", len(nodes))
	return w.inside(t, &pods[slices.IndexFunc(pods, onNode(node))])
}

func gone(pods []corev1.Pod) error {
	if len(pods) > 0 {
		return fmt.Errorf("%d pods still exist, e.g. %s", len(pods), pods[0].Name)
	}
	return nil
}

// between starts traffic in both directions between the traffic pods of each pair of nodes.
func (w *world) between(t *testing.T, pairs ...[2]string) meshtest.Traffic {
	t.Helper()
	ends := map[string]*meshtest.Pod{}
	for _, p := range w.readyPods(t, "traffic", len(nodes)) {
		ends[p.Spec.NodeName] = w.inside(t, &p)
	}
	var all meshtest.Traffic
	for _, pair := range pairs {
		all = append(all, meshtest.StartTraffic(t, ends[pair[0]], ends[pair[1]])...)
	}
	return all
}

// containerd restarts the runtime: running pods keep their containers, and new pods get a network.
func (w *world) containerd(t *testing.T) {
	traffic := w.between(t, [2]string{"node1", "node2"})
	before := w.identities(t, "traffic")
	w.Run(t, "restart", "-containerd", "node1")
	w.apply(t, "web.yaml")
	w.rolledOut(t, "deployment/web")
	traffic.Intact(t)
	if after := w.identities(t, "traffic"); !slices.Equal(before, after) {
		t.Errorf("the restart of containerd recreated pods: %v, before %v", after, before)
	}
}

// identities returns UIDs and container IDs, which change when a pod or its containers are recreated.
func (w *world) identities(t *testing.T, app string) []string {
	t.Helper()
	var all []string
	for _, p := range w.readyPods(t, app, len(nodes)) {
		all = append(all, fmt.Sprint(p.UID, p.Status.PodIP, p.Status.ContainerStatuses[0].ContainerID))
	}
	return all
}

// upgrade upgrades the image and rolls back, while packets are counted and pods start.
func (w *world) upgrade(t *testing.T) {
	streams := w.between(t, [2]string{"node1", "node2"}, [2]string{"master", "node1"})
	agents := w.agents(t)
	w.apply(t, "web.yaml") // its pods start while plugins and agents are replaced
	w.Kubectl(t, "delete", "crd", "bgpfilters.crd.projectcalico.org")
	w.Release(t, "upgrade", "next", dualStack...)
	w.Kubectl(t, "get", "bgpfilters.crd.projectcalico.org") // the upgrade has created what was missing
	w.replaced(t, agents, "next")
	w.plugins(t, "next")
	agents = w.agents(t)
	w.Kubectl(t, "rollout", "restart", "deployment/web")
	w.Run(t, "helm", "rollback", "tortie", "1", "--namespace", "kube-system", "--wait", "--timeout", patience.String())
	w.replaced(t, agents, "dev")
	w.plugins(t, "dev")
	w.rolledOut(t, "deployment/web")
	streams.Intact(t)
	w.readyPods(t, "web", 6)
	w.noSandboxErrors(t)
}

// noSandboxErrors fails the test if the runtime has failed to set up or tear down a pod's network, even if a retry
// succeeded.
func (w *world) noSandboxErrors(t *testing.T) {
	t.Helper()
	for _, reason := range []string{"FailedCreatePodSandBox", "FailedKillPod"} {
		list, err := w.client.CoreV1().Events(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + reason})
		errtest.Must(t, err)
		for _, e := range list.Items {
			t.Errorf("%s of %s, %d times: %s", reason, e.InvolvedObject.Name, e.Count, e.Message)
		}
	}
}

// plugins fails the test unless the nodes have the plugins of that image, which carry its tag as their version.
func (w *world) plugins(t *testing.T, version string) {
	t.Helper()
	for _, node := range nodes {
		if out := w.On(t, node, "/opt/cni/bin/calico -v"); !strings.Contains(out, version) {
			t.Errorf("%s has the plugins of %s, want %s", node, out, version)
		}
	}
}

// status tests STATUS, which containerd executes for each runtime status request of the kubelet: a node where ADD would
// fail is not ready and reports the reason, while its pods keep running.
func (w *world) status(t *testing.T) {
	streams := w.between(t, [2]string{"node1", "node2"})
	disable := func(all bool) {
		for _, pool := range strings.Fields(w.Kubectl(t, "get", "ippools", "-o", "name")) {
			w.Kubectl(t, "patch", pool, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"disabled":%v}}`, all))
		}
		meshtest.Within(t, patience, func() error { return w.nodeConditions(t, all, "IPPool") })
	}
	disable(true)
	disable(false)
	streams.Intact(t)
}

// nodeConditions returns an error unless all nodes are ready, or not ready for a reason that contains words.
func (w *world) nodeConditions(t *testing.T, unready bool, words string) error {
	t.Helper()
	list, err := w.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range list.Items {
		i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
		c := n.Status.Conditions[i]
		if got := c.Status != corev1.ConditionTrue; got != unready || unready && !strings.Contains(c.Message, words) {
			return fmt.Errorf("%s: ready is %s: %s", n.Name, c.Status, c.Message)
		}
	}
	return nil
}

// agents returns the pods of the DaemonSet by node.
func (w *world) agents(t *testing.T) map[string]*corev1.Pod {
	t.Helper()
	byNode := map[string]*corev1.Pod{}
	for _, p := range w.podsOf(t, "kube-system", "app.kubernetes.io/name=tortie") {
		if owner := metav1.GetControllerOf(&p); owner != nil && owner.Kind == "DaemonSet" && p.DeletionTimestamp == nil {
			byNode[p.Spec.NodeName] = &p
		}
	}
	return byNode
}

// replaced waits until every node has a new ready agent with this tag. Helm 3 waits for all but maxUnavailable of a
// DaemonSet's pods.
func (w *world) replaced(t *testing.T, before map[string]*corev1.Pod, tag string) {
	t.Helper()
	w.rolledOut(t, "daemonset/tortie-node", "--namespace=kube-system")
	after := w.agents(t)
	for _, node := range nodes {
		p := after[node]
		if p == nil || p.UID == before[node].UID {
			t.Errorf("%s has no new agent", node)
		} else if image := p.Spec.Containers[0].Image; image != labtest.ImageRepository+":"+tag || ready(p) != nil {
			t.Errorf("the agent on %s has image %s, want %s: %v", node, image, tag, ready(p))
		}
	}
}

// drain evicts all pods of a node; the agent stays, and traffic of other nodes continues.
func (w *world) drain(t *testing.T) {
	w.apply(t, "web.yaml")
	w.rolledOut(t, "deployment/web")
	streams := w.between(t, [2]string{"master", "node1"})
	w.Kubectl(t, "drain", "node2", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout="+patience.String())
	pods := w.readyPods(t, "web", 6)
	if slices.ContainsFunc(pods, onNode("node2")) {
		t.Errorf("a drained node has a pod: %v", names(pods))
	}
	from := w.trafficOn(t, "node2")
	for _, p := range pods {
		serves(t, from.NS, p.Status.PodIP+":80", p.Name)
	}
	w.Kubectl(t, "uncordon", "node2")
	w.Kubectl(t, "rollout", "restart", "deployment/web")
	w.rolledOut(t, "deployment/web")
	streams.Intact(t)
	w.readyPods(t, "web", 6)
}

// reboot kills every process of a node and starts it again, as a power cut does. Its pods come back with unused
// addresses, other nodes lose no packet, and no pod gets what a policy denies, not even one that starts before its
// node's agent.
func (w *world) reboot(t *testing.T) {
	w.apply(t, "web.yaml")
	w.apply(t, "set.yaml")
	w.apply(t, "policy.yaml")
	w.rolledOut(t, "deployment/web")
	w.rolledOut(t, "deployment/guarded")
	w.readyPods(t, "set", 3)
	denied := w.deniedTo(t, "master", "node2")
	elsewhere := w.between(t, [2]string{"master", "node2"})
	restarts := w.restarts(t, "node1")
	w.Run(t, "restart", "node1")
	meshtest.Within(t, patience, func() error {
		for uid, count := range w.restarts(t, "node1") {
			if count == restarts[uid] {
				return fmt.Errorf("a container of pod %s has not restarted", uid)
			}
		}
		return nil
	})
	w.rolledOut(t, "daemonset/tortie-node", "-n", "kube-system")
	again := w.between(t, [2]string{"node1", "node2"})
	all := slices.Concat(w.readyPods(t, "web", 6), w.readyPods(t, "set", 3), w.readyPods(t, "traffic", len(nodes)))
	distinct(t, all)
	for _, node := range nodes {
		from := w.trafficOn(t, node)
		for _, p := range all {
			reaches(t, from, p.Status.PodIP)
		}
	}
	w.allowed(t)
	denied.none(t)
	elsewhere.Intact(t)
	again.Intact(t)
}

// restarts returns the restart counts of the pods of a node by UID.
func (w *world) restarts(t *testing.T, node string) map[types.UID]int32 {
	t.Helper()
	counts := map[types.UID]int32{}
	for _, p := range w.podsOf(t, namespace, "") {
		if p.Spec.NodeName == node && len(p.Status.ContainerStatuses) > 0 {
			counts[p.UID] = p.Status.ContainerStatuses[0].RestartCount
		}
	}
	return counts
}
