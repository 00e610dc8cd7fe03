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
	requestsOfFirstAdd = []string{ // 14: as below, and the claim of a block in place of reading it
		"calico GET ipamconfigs",
		"calico GET nodes",
		"calico LIST blockaffinities",
		"calico LIST ipamblocks",
		"calico LIST ippools",
		"calico LIST ipreservations",
		"calico POST blockaffinities",
		"calico POST ipamblocks",
		"calico POST ipamhandles",
		"calico PUT blockaffinities",
	}
	requestsOfAdd = []string{ // 12
		"calico GET ipamblocks",
		"calico GET ipamconfigs",
		"calico GET nodes",
		"calico LIST blockaffinities",
		"calico LIST ippools",
		"calico LIST ipreservations",
		"calico POST ipamhandles",
		"calico PUT ipamblocks",
	}
	requestsOfDel = []string{ // 6
		"calico DELETE ipamhandles",
		"calico GET clusterinformations",
		"calico GET ipamblocks",
		"calico GET ipamhandles",
		"calico PATCH pods/status",
		"calico PUT ipamblocks",
	}
	requestsOfDelAgain = []string{ // 4: among them the look for a handle of Calico 2
		"calico GET clusterinformations",
		"calico GET ipamhandles",
		"calico GET ipamhandles",
		"calico PATCH pods/status",
	}
)

func TestRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, s := w.newPod(t, "first"), w.newPod(t, "web")
	asked := func(verb string, a answer, want []string) answer {
		t.Helper()
		a.ok(t)
		slices.Sort(want)
		if diff := cmp.Diff(want, w.proxy.take()); diff != "" {
			t.Errorf("requests of %s (-want +got):\n%s", verb, diff)
		}
		w.api.settle(t)
		return a
	}
	asked("the first ADD on a node", first.add(t), slices.Concat(requestsOfCalico, requestsOfFirstAdd))
	added := asked("ADD", s.add(t), slices.Concat(requestsOfCalico, requestsOfAdd))
	asked("CHECK", s.check(t, added), []string{"calico GET ipamhandles", "calico GET ipamblocks"}) // the kernel knows all else
	asked("DEL", s.del(t), requestsOfDel)
	asked("DEL again", s.del(t), requestsOfDelAgain)
	w.api.delete(t, "Pod", w.name, "web")
	asked("DEL of a pod that is gone", s.del(t), requestsOfDelAgain)
}
