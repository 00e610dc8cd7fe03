package cluster

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// deployment tests pods with init containers that use the network, behind a Service.
func (w *world) deployment(t *testing.T) {
	w.apply(t, "web.yaml")
	w.rolledOut(t, "deployment/web")
	pods := w.readyPods(t, "web", 6)
	traffic := w.readyPods(t, "traffic", len(nodes))
	service, err := w.client.CoreV1().Services(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	errtest.Must(t, err)
	for _, p := range traffic {
		from := w.inside(t, &p)
		for _, to := range pods {
			serves(t, from.NS, to.Status.PodIP+":80", to.Name)
		}
		serves(t, from.NS, service.Spec.ClusterIP+":80", names(pods)...)
		// By the node port of another node, which masquerades, and of the pod's own node.
		for _, node := range nodes {
			serves(t, from.NS, w.address(t, node)+":30080", names(pods)...)
		}
	}
	// Hairpin: a pod reaches itself by its Service. kube-proxy masquerades, and the reply comes back to the same veth.
	own := w.inside(t, &pods[0])
	serves(t, own.NS, service.Spec.ClusterIP+":80", names(pods)...)
	serves(t, w.Node(t, "node1"), service.Spec.ClusterIP+":80", names(pods)...)
	w.named(t, traffic, service, pods)
	w.called(t, service, pods)
}

// address returns a node's address.
func (w *world) address(t *testing.T, node string) string {
	t.Helper()
	n, err := w.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	errtest.Must(t, err)
	return n.Status.Addresses[0].Address
}

// hostPort tests a host port of portmap, which is closed when the pod is deleted.
func (w *world) hostPort(t *testing.T) {
	w.apply(t, "hostport.yaml")
	w.readyPods(t, "hostport", 1)
	door := w.address(t, "node2") + ":8081"
	serves(t, w.Node(t, "node1"), door, "hostport")
	serves(t, w.Node(t, "node2"), door, "hostport")
	for _, p := range w.readyPods(t, "traffic", len(nodes)) {
		serves(t, w.inside(t, &p).NS, door, "hostport")
	}
	w.Kubectl(t, "delete", "pod", "hostport")
	meshtest.Within(t, patience, func() error {
		if page, err := get(t.Context(), w.Node(t, "node1"), door); err == nil {
			return fmt.Errorf("the port of a deleted pod serves %q", page)
		}
		if rules := w.On(t, "node2", "nft list ruleset | grep -w 8081; true"); rules != "" {
			return fmt.Errorf("rules of a deleted pod: %s", rules)
		}
		return nil
	})
}

// statefulSet tests pods that keep their names while their nodes and addresses change.
func (w *world) statefulSet(t *testing.T) {
	w.apply(t, "set.yaml")
	before := w.readyPods(t, "set", 3)
	moved := before[1]
	w.Kubectl(t, "cordon", moved.Spec.NodeName)
	w.Kubectl(t, "delete", "pod", moved.Name)
	after := w.readyPods(t, "set", 3)
	w.Kubectl(t, "uncordon", moved.Spec.NodeName)
	if after[1].Spec.NodeName == moved.Spec.NodeName {
		t.Fatalf("%s was not moved from %s", moved.Name, moved.Spec.NodeName)
	}
	for _, p := range after {
		from := w.inside(t, &p)
		for _, to := range after {
			serves(t, from.NS, to.Status.PodIP+":80", to.Name)
		}
	}
	for _, i := range []int{0, 2} {
		if after[i].Status.PodIP != before[i].Status.PodIP {
			t.Errorf("the address of %s changed without a move: %s, before %s", after[i].Name, after[i].Status.PodIP, before[i].Status.PodIP)
		}
	}
	// A pod that is recreated on the same node gets a new address: peers may have cached the old one.
	w.Kubectl(t, "delete", "pod", after[0].Name)
	last := w.readyPods(t, "set", 3)
	serves(t, w.inside(t, &last[2]).NS, last[0].Status.PodIP+":80", last[0].Name)
}

// crowd starts many pods at once: the runtime runs plugins concurrently without a limit.
func (w *world) crowd(t *testing.T) {
	count := tier.Size(30, 60)
	w.apply(t, "crowd.yaml")
	start := time.Now()
	w.Kubectl(t, "scale", "deployment/crowd", fmt.Sprintf("--replicas=%d", count))
	pods := w.readyPods(t, "crowd", count)
	t.Logf("%d pods ready after %v", count, time.Since(start))
	blocks := map[netip.Prefix]int{}
	for _, p := range pods {
		addr := netip.MustParseAddr(p.Status.PodIP)
		blocks[netip.PrefixFrom(addr, 26).Masked()]++
	}
	if len(blocks) > 2 {
		t.Errorf("the pods of one node are in %d blocks: %v", len(blocks), blocks)
	}
	from := w.trafficOn(t, "node2")
	for _, p := range pods {
		reaches(t, from, p.Status.PodIP)
	}
	w.Kubectl(t, "scale", "deployment/crowd", "--replicas=0")
	meshtest.Within(t, patience, func() error { return gone(w.pods(t, "crowd")) })
}
