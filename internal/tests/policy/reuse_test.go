package policy

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
)

// reuses is how often an address changes hands, half of them among pods of the node.
const reuses = 10_000

// handover is a cluster in which an address goes from a pod to another one, of opposite rights, again and again.
type handover struct {
	*node
	policytest.Cluster
	shared, server, client netip.Addr
	sent                   map[uint64]bool // whether the packet may arrive
	came                   map[uint64]string
}

// A pod that gets another one's address has its own rights from the first packet on, and not the other's.
func TestAddressReuse(t *testing.T) {
	// On one processor the kernel keeps the packets of one thread in order. The thread ends with the test.
	runtime.LockOSThread()
	if err := unix.SchedSetaffinity(0, oneProcessor()); err != nil {
		t.Fatal(err)
	}
	h := newHandover(t)
	compiled := policy.Compile(h.State())
	for i := range reuses {
		local, open := i >= reuses/2, i%2 == 0
		changed := []policy.PodKey{keyOf(&h.Pods[2]), h.settle(t, i, local, open)}
		if touched, ok := compiled.Update(h.State(), changed); ok && !local {
			h.sync(t, &compiled.Ruleset, touched)
		} else {
			compiled = policy.Compile(h.State())
			h.sync(t, &compiled.Ruleset, nil)
		}
		h.probe(t, local, open)
		if i%1000 == 999 {
			h.settleUp(t, i)
		}
	}
}

func oneProcessor() *unix.CPUSet {
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err == nil {
		for cpu := range 1024 {
			if all.IsSet(cpu) {
				one.Set(cpu)
				break
			}
		}
	}
	return &one
}

func newHandover(t *testing.T) *handover {
	h := &handover{node: newNode(t), sent: map[uint64]bool{}, came: map[uint64]string{}}
	h.shared, _ = policytest.PodAddress(0)
	h.server, _ = policytest.PodAddress(2)
	h.client, _ = policytest.PodAddress(3)
	role := func(role string) *api.LabelSelector {
		return &api.LabelSelector{MatchLabels: map[string]string{"role": role}}
	}
	h.Namespaces = []api.Namespace{{Meta: api.Meta{Name: "a"}}}
	h.Nodes = policytest.NewGenerator(0).Cluster().Nodes
	h.Pods = []api.Pod{pod("pod-2", "server", h.server, true), pod("pod-3", "client", h.client, true), pod("pod-0", "open", h.shared, false)}
	h.NetworkPolicies = []api.NetworkPolicy{
		{Meta: api.Meta{Namespace: "a", Name: "server"}, Spec: api.NetworkPolicySpec{
			PodSelector: *role("server"), PolicyTypes: []string{"Ingress", "Egress"},
			Ingress: []api.NetworkPolicyIngressRule{{From: []api.NetworkPolicyPeer{{PodSelector: role("open")}, {PodSelector: role("client")}}}},
			Egress:  []api.NetworkPolicyEgressRule{{To: []api.NetworkPolicyPeer{{PodSelector: role("open")}}}},
		}},
		{Meta: api.Meta{Namespace: "a", Name: "closed"}, Spec: api.NetworkPolicySpec{PodSelector: *role("closed")}},
	}
	for i := range 2 {
		h.Neighbours(t, policytest.Link(i), h.shared)
	}
	return h
}

func pod(name, role string, a netip.Addr, local bool) api.Pod {
	p := api.Pod{Meta: api.Meta{Namespace: "a", Name: name, UID: name, Labels: map[string]string{"role": role}}}
	p.Spec.NodeName, p.Status.PodIPs = "node-1", []api.PodIP{{IP: a.String()}}
	if local {
		p.Spec.NodeName = policytest.Node
	}
	return p
}

// settle gives the address to the next pod, with the name of the last but one, or the last, pod of its role.
func (h *handover) settle(t *testing.T, i int, local, open bool) policy.PodKey {
	t.Helper()
	name, role := "pod-1", "closed"
	if open {
		name, role = "pod-0", "open"
	}
	if i%4 >= 2 { // or under the same name and link as the last one's
		name = "pod-1"
	}
	h.Pods[2] = pod(name, role, h.shared, local)
	h.Pods[2].UID = fmt.Sprint(i)
	if i%(reuses/2) == 0 {
		h.Own(t, &h.Cluster)
	}
	if local {
		dev := h.Host.Link(t, policytest.LinkOf(&h.Pods[2])).Index
		if err := h.Host.Conn.ReplaceRoute(netlinkx.Route{Dst: netip.PrefixFrom(h.shared, 32), Dev: dev, Scope: netlinkx.ScopeLink}); err != nil {
			t.Fatal(err)
		}
	}
	return keyOf(&h.Pods[2])
}

// probe sends a packet to the address, one from it and, if the node has it, one by the link that no pod has now. The
// last packet is from a pod that is always allowed: when it has arrived, the others have as well, if they do.
func (h *handover) probe(t *testing.T, local, open bool) {
	t.Helper()
	from := policytest.Uplink
	if local {
		from = policytest.LinkOf(&h.Pods[2])
		other := policytest.Link(0)
		if from == other {
			other = policytest.Link(1)
		}
		h.note(t, other, h.shared, h.server, false)
	}
	h.note(t, policytest.Link(2), h.server, h.shared, open)
	h.note(t, from, h.shared, h.server, open)
	last := h.note(t, policytest.Link(3), h.client, h.server, true)
	for deadline := time.Now().Add(5 * time.Second); h.came[last] == "" && time.Now().Before(deadline); {
		h.Arrivals(h.came)
	}
}

func (h *handover) note(t *testing.T, link string, from, to netip.Addr, may bool) uint64 {
	t.Helper()
	number := h.send(t, link, policytest.Packet{From: from, To: to, Protocol: policytest.UDP, Port: 53})
	h.sent[number] = may
	return number
}

// settleUp compares what came with what may.
func (h *handover) settleUp(t *testing.T, i int) {
	t.Helper()
	h.Await(h.came, nil)
	wrong := 0
	for number, may := range h.sent {
		if (h.came[number] != "") != may {
			wrong++
		}
	}
	if wrong > 0 {
		t.Fatalf("after %d changes of hands %d of %d packets came though they may not, or did not though they may", i+1, wrong, len(h.sent))
	}
	h.Forget(t)
	clear(h.sent)
	clear(h.came)
}
