package cluster

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/policy"
)

// podTable assigns each address to the newest pod that claims it, of those of which a kubelet has reported it if there are any, and collects the
// pods that changed since the last take.
type podTable struct {
	pods   map[policy.PodKey]*podClaim
	claims map[netip.Addr][]*podClaim
	// changed are pods whose shown state differs from that of the last take; true: of this node, now or before.
	changed map[policy.PodKey]bool
}

// podClaim is a pod with the addresses that it claims.
type podClaim struct {
	pod     *policy.Pod
	created int64
	firm    bool
	local   bool
	// shown is the pod with the addresses that it owns; nil: it is not in the view.
	shown *policy.Pod
}

func newPodTable() *podTable {
	return &podTable{pods: map[policy.PodKey]*podClaim{}, claims: map[netip.Addr][]*podClaim{}, changed: map[policy.PodKey]bool{}}
}

// set replaces the state of a pod; nil removes it. It reports whether take would return a change.
func (t *podTable) set(key policy.PodKey, now *policyPod, local bool) bool {
	before := t.pods[key]
	if before.is(now, local) {
		return len(t.changed) > 0
	}
	var touched []netip.Addr
	if before != nil {
		touched = before.pod.Addresses
		t.release(before)
		delete(t.pods, key)
	}
	after := t.enter(key, now, local)
	if after != nil {
		touched = slices.Concat(touched, after.pod.Addresses)
	}
	t.compare(key, before, after)
	for _, a := range touched {
		for _, rival := range t.claims[a] {
			t.show(rival)
		}
	}
	return len(t.changed) > 0
}

// is reports whether a claim, or its absence, equals a state.
func (c *podClaim) is(now *policyPod, local bool) bool {
	if c == nil || now == nil {
		return c == nil && now == nil
	}
	return c.local == local && c.created == now.created && c.firm == now.firm && samePodOf(c.pod, now.pod)
}

func (t *podTable) enter(key policy.PodKey, now *policyPod, local bool) *podClaim {
	if now == nil {
		return nil
	}
	c := &podClaim{pod: now.pod, created: now.created, firm: now.firm, local: local}
	t.pods[key] = c
	for _, a := range c.pod.Addresses {
		t.claims[a] = append(t.claims[a], c)
	}
	c.shown = t.allowed(c)
	return c
}

func (t *podTable) release(c *podClaim) {
	for _, a := range c.pod.Addresses {
		left := slices.DeleteFunc(t.claims[a], func(other *podClaim) bool { return other == c })
		if t.claims[a] = left; len(left) == 0 {
			delete(t.claims, a)
		}
	}
}

// compare records the change of the pod that set replaced.
func (t *podTable) compare(key policy.PodKey, before, after *podClaim) {
	was, is, local := (*policy.Pod)(nil), (*policy.Pod)(nil), false
	if before != nil {
		was, local = before.shown, before.local
	}
	if after != nil {
		is, local = after.shown, local || after.local
	}
	if !samePodOf(was, is) || before != nil && after != nil && before.local != after.local {
		t.changed[key] = t.changed[key] || local
	}
}

// show updates the shown state of a pod after another pod claimed or released one of its addresses.
func (t *podTable) show(c *podClaim) {
	if next := t.allowed(c); !samePodOf(c.shown, next) {
		c.shown = next
		t.changed[c.pod.PodKey] = t.changed[c.pod.PodKey] || c.local
	}
}

// allowed returns the pod with the addresses that no other pod precedes it in; nil for a pod of another node without an address, which no rule can match.
func (t *podTable) allowed(c *podClaim) *policy.Pod {
	lost := func(a netip.Addr) bool {
		return slices.ContainsFunc(t.claims[a], func(other *podClaim) bool { return other.precedes(c) })
	}
	pod := c.pod
	if slices.ContainsFunc(pod.Addresses, lost) {
		less := *pod
		less.Addresses = slices.DeleteFunc(slices.Clone(pod.Addresses), lost)
		pod = &less
	}
	if len(pod.Addresses) == 0 && !c.local {
		return nil
	}
	return pod
}

// precedes: who may write pods could else take an address away by naming it in the annotations of a newer pod.
func (c *podClaim) precedes(other *podClaim) bool {
	if c.firm != other.firm {
		return c.firm
	}
	return cmp.Or(cmp.Compare(c.created, other.created), cmp.Compare(c.pod.UID, other.pod.UID)) > 0
}

// take updates a map of the shown pods. It returns the changed pods, ascending, and whether one of them is of this node, now or before.
func (t *podTable) take(into map[policy.PodKey]*policy.Pod) (changed []policy.PodKey, local bool) {
	for key, own := range t.changed {
		if c := t.pods[key]; c != nil && c.shown != nil {
			into[key] = c.shown
		} else {
			delete(into, key)
		}
		local, changed = local || own, append(changed, key)
	}
	t.changed = map[policy.PodKey]bool{} // a cleared one would keep room for the first list
	slices.SortFunc(changed, comparePodKeys)
	return changed, local
}

// local returns the keys of this node's pods, ascending.
func (t *podTable) local() []policy.PodKey {
	var own []policy.PodKey
	for key, c := range t.pods {
		if c.local {
			own = append(own, key)
		}
	}
	slices.SortFunc(own, comparePodKeys)
	return own
}

func comparePodKeys(a, b policy.PodKey) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
