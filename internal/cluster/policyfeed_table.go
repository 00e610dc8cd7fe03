package cluster

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/policy"
)

// podTable assigns each address to the pod with the highest rank for it, and among equal ranks to the newest pod, or to
// all if it is certain for none. It collects the pods that changed since the last take.
type podTable struct {
	ground Ground // nil: not known yet
	pods   map[policy.PodKey]*podClaim
	claims map[netip.Addr]claims
	// changed are pods with a shown state that differs from the last take; true: of this node, now or before.
	changed map[policy.PodKey]bool
}

// claims are the claims of an address.
type claims struct {
	all          []*podClaim
	first        *podClaim // the newest claim of the highest rank
	best, second rank      // of first, and the highest of the others
}

// podClaim is a pod with the addresses that it claims.
type podClaim struct {
	*policyPod
	ranks []rank // by address of the pod
	local bool
	// shown is the pod with the addresses that count; nil: it is not in the view.
	shown *policy.Pod
}

func newPodTable() *podTable {
	return &podTable{pods: map[policy.PodKey]*podClaim{}, claims: map[netip.Addr]claims{}, changed: map[policy.PodKey]bool{}}
}

// set replaces the state of a pod; nil removes it. It reports whether take would return a change.
func (t *podTable) set(key policy.PodKey, now *policyPod, local bool) bool {
	before := t.pods[key]
	if before != nil && now != nil && before.local == local && samePolicyPod(before.policyPod, now) || before == nil && now == nil {
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
	touched = slices.DeleteFunc(slices.Clone(touched), func(a netip.Addr) bool { return !t.order(a) })
	if after != nil {
		after.shown = t.allowed(after)
	}
	t.compare(key, before, after)
	t.showAll(touched)
	return len(t.changed) > 0
}

func (t *podTable) enter(key policy.PodKey, now *policyPod, local bool) *podClaim {
	if now == nil {
		return nil
	}
	c := &podClaim{policyPod: now, local: local}
	c.judge(t.ground)
	t.pods[key] = c
	for _, a := range c.pod.Addresses {
		on := t.claims[a]
		on.all = append(on.all, c)
		t.claims[a] = on
	}
	return c
}

// order finds the first claim of an address, and reports whether the result of left may change for any.
func (t *podTable) order(a netip.Addr) (changed bool) {
	was, ok := t.claims[a]
	if !ok {
		return false
	}
	is := claims{all: was.all}
	for _, c := range is.all {
		own := c.at(a)
		switch {
		case is.first == nil || own > is.best || own == is.best && c.newer(is.first):
			is.second, is.first, is.best = is.best, c, own
		case own > is.second:
			is.second = own
		}
	}
	t.claims[a] = is
	return is.best != was.best || is.second != was.second || is.first != was.first && (is.best > is.second || is.best == athome)
}

// left returns the rank of the pod's address beside the others' claims. If the kubelets of several pods report it, the
// newest pod at home has it; away from home it is certain for none. An address that no kubelet reports is possible for
// all: else an author of pods could remove an address from the denials to another pod.
func (on *claims) left(c *podClaim, own rank) rank {
	rivals := on.best
	if c == on.first {
		rivals = on.second
	}
	switch {
	case own == athome && c != on.first, rivals >= reported && rivals > own:
		return nobodys
	case own == announced && rivals > nobodys, own == reported && rivals == reported:
		return possible
	}
	return own
}

// showAll updates the shown states of all pods that claim one of these addresses.
func (t *podTable) showAll(addresses []netip.Addr) {
	for _, a := range addresses {
		for _, c := range t.claims[a].all {
			t.show(c)
		}
	}
}

// judge ranks the pod's addresses again, and reports whether a rank has changed.
func (c *podClaim) judge(ground Ground) (changed bool) {
	ranks := make([]rank, len(c.pod.Addresses))
	for i, a := range c.pod.Addresses {
		ranks[i] = rankOf(ground, c.node, a, c.words[i])
	}
	changed = !slices.Equal(c.ranks, ranks)
	c.ranks = ranks
	return changed
}

// settle ranks all addresses by another ground. It reports whether take would return a change.
func (t *podTable) settle(ground Ground) bool {
	t.ground = ground
	var touched []netip.Addr
	for _, c := range t.pods {
		if c.judge(ground) {
			touched = append(touched, c.pod.Addresses...)
		}
	}
	slices.SortFunc(touched, netip.Addr.Compare)
	touched = slices.Compact(touched)
	for _, a := range touched {
		t.order(a)
	}
	t.showAll(touched)
	return len(t.changed) > 0
}

func (t *podTable) release(c *podClaim) {
	for _, a := range c.pod.Addresses {
		on := t.claims[a]
		on.all = slices.DeleteFunc(on.all, func(other *podClaim) bool { return other == c })
		if t.claims[a] = on; len(on.all) == 0 {
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

// allowed returns the pod with the addresses that count; nil for a pod of another node without one, which no rule can
// match.
func (t *podTable) allowed(c *podClaim) *policy.Pod {
	pod := c.pod
	verdicts := make([]rank, len(pod.Addresses))
	for i, a := range pod.Addresses {
		on := t.claims[a]
		verdicts[i] = on.left(c, c.ranks[i])
	}
	only := func(these func(rank) bool) (left []netip.Addr) {
		for i, a := range pod.Addresses {
			if these(verdicts[i]) {
				left = append(left, a)
			}
		}
		return left
	}
	sure := only(func(r rank) bool { return r > possible })
	if len(sure) < len(pod.Addresses) {
		less := *pod
		less.Addresses, less.Unsure = sure, only(func(r rank) bool { return r == possible })
		pod = &less
	}
	if len(pod.Addresses)+len(pod.Unsure) == 0 && !c.local {
		return nil
	}
	return pod
}

func (c *podClaim) at(a netip.Addr) rank { return c.ranks[slices.Index(c.pod.Addresses, a)] }

func (c *podClaim) newer(other *podClaim) bool {
	return cmp.Or(cmp.Compare(c.created, other.created), cmp.Compare(c.meta.UID, other.meta.UID)) > 0
}

// take updates a map of the shown pods. It returns the changed pods, ascending, and whether one of them is of this
// node, now or before.
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
