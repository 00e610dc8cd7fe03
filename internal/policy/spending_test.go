package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
)

// nested is a policy of rules whose ranges of ports are each inside of the one before, with other peers in each: every port has a list of its own.
func nested(rules int, peer func(i int) api.NetworkPolicyPeer) *api.NetworkPolicy {
	n := &api.NetworkPolicy{Meta: api.Meta{Namespace: "a", Name: "nested"}}
	for i := range rules {
		last := int32(lastPort - i)
		n.Spec.Ingress = append(n.Spec.Ingress, api.NetworkPolicyIngressRule{
			From:  []api.NetworkPolicyPeer{peer(i)},
			Ports: []api.NetworkPolicyPort{{Port: &api.IntOrString{Number: int32(i + 1)}, EndPort: &last}},
		})
	}
	return n
}

// One object that a user of a namespace may write does not take the memory of agent and kernel, which grew as the square of its rules. It closes what
// it selects, and nobody else's pods.
func TestHugePoliciesAreClosed(t *testing.T) {
	big, other := PodKey{"a", "big"}, PodKey{"b", "other"}
	peer := netip.MustParseAddr("10.9.0.1")
	state := State{Local: map[string]PodKey{"cali1": big, "cali2": other}, Namespaces: map[string]map[string]string{"a": nil, "b": nil}, Pods: map[PodKey]*Pod{}}
	for i, k := range []PodKey{big, other} {
		state.Pods[k] = &Pod{PodKey: k, UID: k.Name, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}}
	}
	anybody := FromNetworkPolicy(&api.NetworkPolicy{Meta: api.Meta{Namespace: "b", Name: "any"}, Spec: api.NetworkPolicySpec{Ingress: []api.NetworkPolicyIngressRule{{}}}})
	for name, c := range map[string]struct {
		peer  func(int) api.NetworkPolicyPeer
		rules int
		large bool
	}{
		"networks": {func(i int) api.NetworkPolicyPeer {
			return api.NetworkPolicyPeer{IPBlock: &api.IPBlock{CIDR: fmt.Sprintf("10.%d.%d.0/24", i>>7, i<<1&0xff)}}
		}, 3000, true},
		"pods": {func(i int) api.NetworkPolicyPeer {
			return api.NetworkPolicyPeer{PodSelector: &api.LabelSelector{MatchLabels: map[string]string{"x": fmt.Sprint(i)}}}
		}, 3000, true},
		"of a size that occurs": {func(i int) api.NetworkPolicyPeer {
			return api.NetworkPolicyPeer{IPBlock: &api.IPBlock{CIDR: fmt.Sprintf("10.%d.%d.0/24", i>>7, i<<1&0xff)}}
		}, 300, false},
	} {
		t.Run(name, func(t *testing.T) {
			huge := FromNetworkPolicy(nested(c.rules, c.peer))
			state.Policies = []Policy{huge, anybody}
			got := Compile(state)
			elements := 0
			for _, n := range got.Nets {
				elements += len(n)
			}
			for _, m := range got.Members {
				elements += len(m)
			}
			if elements > mostElements {
				t.Errorf("%d elements", elements)
			}
			if v := got.Decide("cali1", Ingress, peer, TCP, 80); c.large && (v.Allow || v.By != huge.ID) {
				t.Errorf("the pod of the huge policy: %+v", v)
			}
			if v := got.Decide("cali1", Egress, peer, TCP, 80); !v.Allow {
				t.Errorf("the direction that no policy is about: %+v", v)
			}
			if v := got.Decide("cali2", Ingress, peer, TCP, 80); !v.Allow {
				t.Errorf("a pod of another namespace: %+v", v)
			}
			if slices.Contains(got.TooLarge, huge.ID) != c.large {
				t.Errorf("too large: %v", got.TooLarge)
			}
		})
	}
}
