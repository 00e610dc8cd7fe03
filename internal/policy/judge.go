package policy

import (
	"net/netip"
	"slices"
)

// Judge gives Explain's verdict on connections of local pods, fast enough for each new connection: selections and
// address owners are precomputed. It is for one goroutine at a time.
type Judge struct {
	state     State // with its own copy of Pods
	selection *Selection
	links     map[PodKey]string
	owners    map[netip.Addr][]PodKey
}

// NewJudge returns a Judge of a Selection. It copies the map of pods, which may change later.
func NewJudge(selection *Selection, pods map[PodKey]*Pod) *Judge {
	j := &Judge{state: selection.state, selection: selection, links: linksOf(selection.state.Local), owners: map[netip.Addr][]PodKey{}}
	j.state.Pods, j.state.Policies = make(map[PodKey]*Pod, len(pods)), nil
	for key, pod := range pods {
		j.enter(key, pod)
	}
	return j
}

// With returns a Judge by another Selection of the same State with other policies. It shares its pods with j, also
// later.
func (j *Judge) With(selection *Selection) *Judge {
	other := *j
	other.selection = selection
	return &other
}

// Replace updates pods that are not local; a nil pod is removed.
func (j *Judge) Replace(changed map[PodKey]*Pod) {
	for key, pod := range changed {
		if old := j.state.Pods[key]; old != nil {
			j.leave(key, old)
		}
		if pod != nil {
			j.enter(key, pod)
		}
	}
}

func (j *Judge) enter(key PodKey, pod *Pod) {
	j.state.Pods[key] = pod
	for _, a := range pod.claimed() {
		j.owners[a] = append(j.owners[a], key)
	}
}

func (j *Judge) leave(key PodKey, pod *Pod) {
	delete(j.state.Pods, key)
	for _, a := range pod.claimed() {
		if left := slices.DeleteFunc(j.owners[a], func(k PodKey) bool { return k == key }); len(left) > 0 {
			j.owners[a] = left
		} else {
			delete(j.owners, a)
		}
	}
}

// Pod returns the pod for which an address counts, and its link if it is local; nil: no pod.
func (j *Judge) Pod(a netip.Addr) (pod *Pod, link string) {
	owners := j.owners[a.Unmap()]
	if len(owners) == 0 {
		return nil, ""
	}
	key := owner(owners, func(key PodKey) bool { return j.links[key] != "" })
	return j.state.Pods[key], j.links[key]
}

// others returns the other pods that may have the address, and nil for no pod, if it is not certain for this pod.
func (j *Judge) others(pod *Pod, a netip.Addr) (found []*Pod) {
	a = a.Unmap()
	if pod == nil || !pod.mayHave(a) {
		return nil
	}
	for _, key := range j.owners[a] {
		if other := j.state.Pods[key]; other != pod && other.mayHave(a) {
			found = append(found, other)
		}
	}
	return append(found, nil)
}

// Set returns the name of the network set with the longest network that has an address; of equal ones the first by
// namespace and name.
func (j *Judge) Set(a netip.Addr) (set PodKey, ok bool) {
	best := -1
	for i := range j.state.Sets {
		s := &j.state.Sets[i]
		key := PodKey{s.Namespace, s.Name}
		for _, n := range s.Nets {
			if n.Contains(a) && (n.Bits() > best || n.Bits() == best && key.compare(set) < 0) {
				best, set = n.Bits(), key
			}
		}
	}
	return set, best >= 0
}

// Judge judges a connection in the direction, as seen by the pod behind the link. known is false if the pod, or its
// policies, are not known: then nothing is allowed.
func (j *Judge) Judge(link string, d Direction, peer netip.Addr, packet Packet) (judged *Judgement, known bool) {
	pod := j.state.Pods[j.state.Local[link]]
	policies, known := j.selection.Of(link)
	if pod == nil || !known {
		return &Judgement{Pod: j.state.Local[link], Direction: d, Rule: -1}, false
	}
	other, _ := j.Pod(peer)
	party := Party{Address: peer.Unmap()}
	if other != nil {
		party.Pod = other.PodKey
	}
	judged = &Judgement{Pod: pod.PodKey, Direction: d, Rule: -1, Verdict: Verdict{Allow: true}}
	judged.decide(j.state, pod, policies[d], connection{d, party, other, j.others(other, peer), packet, nil})
	return judged, true
}

// ReadsSources reports whether source ports may decide.
func (j *Judge) ReadsSources() bool {
	for p := range j.selection.Counting() {
		for _, rules := range p.Rules {
			if slices.ContainsFunc(rules, func(r Rule) bool { return r.Sources != nil || len(r.ExceptSources) > 0 }) {
				return true
			}
		}
	}
	return false
}
