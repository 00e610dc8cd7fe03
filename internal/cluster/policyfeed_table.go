package cluster

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/policy"
)

// podTable decides which pod has which address, and collects what changed since it was last asked.
type podTable struct {
	pods   map[policy.PodKey]*podClaim
	claims map[netip.Addr][]*podClaim
	// changed are the pods that are shown otherwise than before; true: now or before as one of this node.
	changed map[policy.PodKey]bool
}

// podClaim is a pod with the addresses that it says it has.
type podClaim struct {
	pod     *policy.Pod
	created int64
	local   bool
	// shown is the pod with the addresses that it has indeed; nil: it is not shown.
	shown *policy.Pod
}

func newPodTable() *podTable {
	return &podTable{pods: map[policy.PodKey]*podClaim{}, claims: map[netip.Addr][]*podClaim{}, changed: map[policy.PodKey]bool{}}
}

// set notes what is known of a pod now: its state, or nil if there is none. It reports whether there is something to take.
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

// is reports that a claim says what is known now; nil says that there is no pod.
func (c *podClaim) is(now *policyPod, local bool) bool {
	if c == nil || now == nil {
		return c == nil && now == nil
	}
	return c.local == local && c.created == now.created && samePodOf(c.pod, now.pod)
}

func (t *podTable) enter(key policy.PodKey, now *policyPod, local bool) *podClaim {
	if now == nil {
		return nil
	}
	c := &podClaim{pod: now.pod, created: now.created, local: local}
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

// compare notes a change of one pod.
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

// show corrects how a pod is shown whose addresses others have claimed or given up.
func (t *podTable) show(c *podClaim) {
	if next := t.allowed(c); !samePodOf(c.shown, next) {
		c.shown = next
		t.changed[c.pod.PodKey] = t.changed[c.pod.PodKey] || c.local
	}
}

// allowed returns the pod with the addresses that no newer one claims. Another node's pod without an address matters to nobody.
func (t *podTable) allowed(c *podClaim) *policy.Pod {
	lost := func(a netip.Addr) bool {
		return slices.ContainsFunc(t.claims[a], func(other *podClaim) bool { return other.newer(c) })
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

func (c *podClaim) newer(than *podClaim) bool {
	return cmp.Or(cmp.Compare(c.created, than.created), cmp.Compare(c.pod.UID, than.pod.UID)) > 0
}

// take brings a map of the pods that are shown up to date. It returns the pods that changed and are and were other nodes', in order, and
// whether any of this node did.
func (t *podTable) take(into map[policy.PodKey]*policy.Pod) (changed []policy.PodKey, local bool) {
	for key, own := range t.changed {
		if c := t.pods[key]; c != nil && c.shown != nil {
			into[key] = c.shown
		} else {
			delete(into, key)
		}
		if local = local || own; !own {
			changed = append(changed, key)
		}
	}
	clear(t.changed)
	slices.SortFunc(changed, comparePodKeys)
	return changed, local
}

// local returns the keys of this node's pods, in order.
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
