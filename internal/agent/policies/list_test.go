package policies_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/agent/policies"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// heldFeed withholds Want until it is released, so that a list of pods takes as long as the test needs.
type heldFeed struct {
	policies.Feed
	mu     sync.Mutex
	held   bool
	wanted policy.Interest
}

func (f *heldFeed) Want(i policy.Interest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wanted = i; !f.held {
		f.Feed.Want(i)
	}
}

func (f *heldFeed) hold(held bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held = held; !held {
		f.Feed.Want(f.wanted)
	}
}

// A policy that names unlisted pods does not deny them meanwhile, but not for ever either.
func TestPolicyAwaitsTheFirstListOfItsPeers(t *testing.T) {
	n := newNode(t)
	server := n.start(t, "server", "10.90.0.1")
	server.EchoUDP(t, "10.90.0.1:53")
	const at = "10.90.0.1:53"
	var feed *heldFeed
	n.configure = func(o *policies.Options) {
		feed = &heldFeed{Feed: o.Feed}
		o.Feed = feed
	}
	peer := n.elsewhere(t, "peer", "10.91.0.9")
	w, _ := n.work(t)
	eventually(t, soon, "in force", func() bool { return w.Seen().Enforcing && reaches(t, peer, at) })

	feed.hold(true)
	n.policy(t, "allow",
		fmt.Sprintf(`{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":%q}}}]}]}`,
			n.name+"-elsewhere"))
	for begun := time.Now(); time.Since(begun) < time.Second; {
		if !reaches(t, peer, at) {
			t.Fatalf("denied %v after the policy, without a list of the pods that it allows", time.Since(begun))
		}
	}
	feed.hold(false)
	eventually(t, soon, "the policy is in force", func() bool { s := w.Seen(); return s.Policed == 1 && s.Policies == 1 })
	if !reaches(t, peer, at) {
		t.Error("denied although the policy allows it")
	}

	n.remove(t, n.policyPath(), "allow")
	eventually(t, soon, "no policy is in force", func() bool { return w.Seen().Policed == 0 })
	feed.hold(true)
	n.policy(t, "wide", `{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{}, "podSelector":{"matchLabels":{"app":"none"}}}]}]}`)
	begun := time.Now()
	eventually(t, 3*soon, "without a list the policy is in force all the same", func() bool { return !reaches(t, peer, at) })
	if took := time.Since(begun); took < time.Second {
		t.Errorf("in force after %v, before there was a list", took)
	}
}

// A policy that allows all but some pods allows nothing until there is a list of these: not to new pods, nor, after a
// while, to those that run.
func TestAllowOfAllButAwaitsTheList(t *testing.T) {
	n := newNode(t)
	server := n.start(t, "server", "10.90.8.1")
	server.EchoUDP(t, "10.90.8.1:53")
	var feed *heldFeed
	n.configure = func(o *policies.Options) {
		feed = &heldFeed{Feed: o.Feed}
		o.Feed = feed
	}
	peer := n.elsewhere(t, "peer", "10.91.0.9")
	peer.Route(t, "10.90.8.0/24", "10.91.0.1", "")
	w, _ := n.work(t)
	eventually(t, soon, "in force", func() bool { return w.Seen().Enforcing && reaches(t, peer, "10.90.8.1:53") })

	feed.hold(true)
	n.calico(t, "GlobalNetworkPolicy", "globalnetworkpolicies", n.name,
		fmt.Sprintf(`"spec":{"namespaceSelector":"projectcalico.org/name == '%[1]s'","types":["Ingress"],
		"ingress":[{"action":"Allow","source":{"notSelector":"projectcalico.org/namespace == '%[1]s-elsewhere'"}}]}`, n.name))
	eventually(t, soon, "the policy is known", func() bool { return w.Seen().Policies == 1 })
	fresh := n.start(t, "fresh", "10.90.8.2")
	fresh.EchoUDP(t, "10.90.8.2:53")
	eventually(t, soon, "the new pod has it", func() bool { return w.Seen().Policed > 0 && !reaches(t, peer, "10.90.8.2:53") })
	eventually(t, 3*soon, "the pod that runs has it", func() bool { return w.Seen().Policed == 2 })
	if reaches(t, peer, "10.90.8.1:53") || reaches(t, peer, "10.90.8.2:53") {
		t.Error("a pod that the policy excludes reaches what it protects while pods are not listed")
	}
	eventually(t, soon, "it is told", func() bool {
		return slices.ContainsFunc(w.Seen().Unlisted, func(id policy.ID) bool { return id.Name == n.name })
	})
	feed.hold(false)
	other := n.start(t, "other", "10.90.8.3")
	eventually(t, soon, "once listed, all others are allowed", func() bool { return reaches(t, other, "10.90.8.1:53") })
	if reaches(t, peer, "10.90.8.1:53") {
		t.Error("the excluded pod reaches the server")
	}
}

// elsewhere is a pod of another node, in a namespace of its own, with an address of 10.91.0.0/24.
func (n *node) elsewhere(t *testing.T, name, addr string) *pod {
	t.Helper()
	namespace := n.name + "-elsewhere"
	n.put(t, "/api/v1/namespaces", namespace, fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, namespace))
	n.put(t, "/api/v1/namespaces/"+namespace+"/pods", name, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,
		"annotations":{"cni.projectcalico.org/podIP":"%s/32","cni.projectcalico.org/podIPs":"%s/32"}},
		"spec":{"nodeName":"another","containers":[{"name":"c","image":"none"}]}}`, name, addr, addr))
	p := &pod{NS: netnstest.New(t), name: name}
	netnstest.Cable(t, n.ns, "eth1", p.NS, "eth0")
	n.ns.Addr(t, "eth1", "10.91.0.1/24")
	p.Addr(t, "eth0", addr+"/24")
	p.Route(t, "10.90.0.0/24", "10.91.0.1", "")
	return p
}
