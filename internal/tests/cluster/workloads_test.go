package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// deployment has pods whose init containers use the network, behind a Service that kube-proxy makes.
func (w *world) deployment(t *testing.T) {
	w.apply(t, "web.yaml")
	w.rolledOut(t, "deployment/web")
	pods := w.readyPods(t, "web", 6)
	traffic := w.readyPods(t, "traffic", len(nodes))
	service, err := w.client.CoreV1().Services(namespace).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range traffic {
		from := w.inside(t, &p)
		for _, to := range pods {
			serves(t, from.NS, to.Status.PodIP+":80", to.Name)
		}
		serves(t, from.NS, service.Spec.ClusterIP+":80", names(pods)...)
		// By the port of another node, masqueraded there, and of the pod's own.
		for _, node := range nodes {
			serves(t, from.NS, w.address(t, node)+":30080", names(pods)...)
		}
	}
	// A pod that reaches itself by its Service: kube-proxy masquerades, and the answer comes back to the same veth.
	own := w.inside(t, &pods[0])
	serves(t, own.NS, service.Spec.ClusterIP+":80", names(pods)...)
	serves(t, w.Node(t, "node1"), service.Spec.ClusterIP+":80", names(pods)...)
	w.named(t, traffic, service, pods)
	w.called(t, service, pods)
}

// address is a node's own.
func (w *world) address(t *testing.T, node string) string {
	t.Helper()
	n, err := w.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n.Status.Addresses[0].Address
}

// hostPort is a port of the node that portmap carries to the pod, and that is closed when the pod has gone.
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
			return fmt.Errorf("the port of a pod that is gone serves %q", page)
		}
		if rules := w.On(t, "node2", "nft list ruleset | grep -w 8081; true"); rules != "" {
			return fmt.Errorf("rules of a pod that is gone: %s", rules)
		}
		return nil
	})
}

// statefulSet has pods whose names stay while their nodes and addresses change.
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
			t.Errorf("%s was left alone and has another address: %s, %s before", after[i].Name, after[i].Status.PodIP, before[i].Status.PodIP)
		}
	}
	// A pod that is deleted where it may stay gets a fresh address: the old one may be remembered by others.
	w.Kubectl(t, "delete", "pod", after[0].Name)
	last := w.readyPods(t, "set", 3)
	serves(t, w.inside(t, &last[2]).NS, last[0].Status.PodIP+":80", last[0].Name)
}

// sixty pods at once: the runtime executes as many plugins side by side as it likes.
func (w *world) sixty(t *testing.T) {
	start := time.Now()
	w.apply(t, "sixty.yaml")
	pods := w.readyPods(t, "sixty", 60)
	t.Logf("sixty pods ready after %v", time.Since(start))
	blocks := map[netip.Prefix]int{}
	for _, p := range pods {
		addr := netip.MustParseAddr(p.Status.PodIP)
		blocks[netip.PrefixFrom(addr, 26).Masked()]++
	}
	if len(blocks) > 2 {
		t.Errorf("the pods of one node are in %d blocks: %v", len(blocks), blocks)
	}
	traffic := w.readyPods(t, "traffic", len(nodes))
	from := w.inside(t, &traffic[slices.IndexFunc(traffic, onNode("node2"))])
	for _, p := range pods {
		reaches(t, from, p.Status.PodIP)
	}
	w.Kubectl(t, "scale", "deployment/sixty", "--replicas=0")
	meshtest.Within(t, patience, func() error { return gone(w.pods(t, "sixty")) })
}
