package cni_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What the API server is asked for, with Calico's numbers (master after v3.32.1) for the same: 25 for the first pod of a node,
// 20 for any other, 18 for DEL. 30 nodes that boot with 30 pods each are 900 times the second list.
var (
	requestsOfCalico = []string{
		"calico GET clusterinformations",
		"calico GET namespaces",
		"calico GET pods",
		"calico PATCH pods/status",
	}
	requestsOfFirstAdd = []string{ // 15: as below, and the claim of a block in place of reading it
		"calico-ipam GET ipamconfigs",
		"calico-ipam GET namespaces",
		"calico-ipam GET nodes",
		"calico-ipam LIST blockaffinities",
		"calico-ipam LIST ipamblocks",
		"calico-ipam LIST ippools",
		"calico-ipam LIST ipreservations",
		"calico-ipam POST blockaffinities",
		"calico-ipam POST ipamblocks",
		"calico-ipam POST ipamhandles",
		"calico-ipam PUT blockaffinities",
	}
	requestsOfAdd = []string{ // 13
		"calico-ipam GET ipamblocks",
		"calico-ipam GET ipamconfigs",
		"calico-ipam GET namespaces",
		"calico-ipam GET nodes",
		"calico-ipam LIST blockaffinities",
		"calico-ipam LIST ippools",
		"calico-ipam LIST ipreservations",
		"calico-ipam POST ipamhandles",
		"calico-ipam PUT ipamblocks",
	}
	requestsOfDel = []string{ // 9: Calico's two-step deletion of the handle, and the look for a handle of Calico 2
		"calico GET clusterinformations",
		"calico GET pods",
		"calico PATCH pods/status",
		"calico-ipam DELETE ipamhandles",
		"calico-ipam GET ipamblocks",
		"calico-ipam GET ipamhandles",
		"calico-ipam GET ipamhandles",
		"calico-ipam PUT ipamblocks",
		"calico-ipam PUT ipamhandles",
	}
	requestsOfDelAgain = []string{ // 5
		"calico GET clusterinformations",
		"calico GET pods",
		"calico PATCH pods/status",
		"calico-ipam GET ipamhandles",
		"calico-ipam GET ipamhandles",
	}
)

func TestRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, s := w.newPod(t, "first"), w.newPod(t, "web")
	asked := func(verb string, a answer, want []string) answer {
		t.Helper()
		a.ok(t)
		if diff := cmp.Diff(want, w.proxy.take()); diff != "" {
			t.Errorf("requests of %s (-want +got):\n%s", verb, diff)
		}
		w.api.settle(t)
		return a
	}
	asked("the first ADD on a node", first.add(t), slices.Concat(requestsOfCalico, requestsOfFirstAdd))
	added := asked("ADD", s.add(t), slices.Concat(requestsOfCalico, requestsOfAdd))
	asked("CHECK", s.check(t, added), nil) // the kernel has all that CHECK looks at
	asked("DEL", s.del(t), requestsOfDel)
	asked("DEL again", s.del(t), requestsOfDelAgain)
	w.api.delete(t, "Pod", w.name, "web")
	asked("DEL of a pod that is gone", s.del(t), slices.DeleteFunc(slices.Clone(requestsOfDelAgain), func(r string) bool { return r == patchPod }))
}
