package policy

import (
	"iter"
	"slices"
)

// Selection holds the policies of each local pod of a State, from which its Interest and its Ruleset are made: finding
// the policies takes a good part of the time of both.
type Selection struct {
	state     State
	policies  []Policy            // in the order of evaluation, then what Keep added
	byLink    map[string][2][]int // indexes of policies, in the order of evaluation; without links of unknown pods
	hosts     map[string]ofHost   // by link
	versions  map[ID][]int        // indexes of policies, for Keep
	crowded   map[string]int      // by namespace: the policy with the subject that exceeds the limit for its pods
	subjects  *podIndex
	bySubject map[int32][]int // policies
}

// Tier returns the name of a policy's tier; empty: no such policy.
func (s *Selection) Tier(id ID) string {
	for i := range s.policies {
		if s.policies[i].ID == id {
			return s.policies[i].Tier.Name
		}
	}
	return ""
}

// Select returns the Selection of a State.
func Select(state State) *Selection {
	s := &Selection{state: state, policies: ordered(state.Policies), crowded: map[string]int{}}
	s.byLink, s.hosts = s.selected(), s.ofHosts()
	return s
}

// Of returns the policies of the local pod behind the link, by direction, in the order of evaluation. ok is false while
// they are not known.
func (s *Selection) Of(link string) (policies [2][]*Policy, ok bool) {
	indexes, ok := s.byLink[link]
	for d := range indexes {
		policies[d] = s.all(indexes[d])
	}
	return policies, ok
}

// Counting yields the policies that select a local pod, or a host endpoint of this node. The caller may replace their
// rules, but not in the same backing array.
func (s *Selection) Counting() iter.Seq[*Policy] {
	return func(yield func(*Policy) bool) {
		for _, i := range s.counting() {
			if !yield(&s.policies[i]) {
				return
			}
		}
	}
}

func (s *Selection) counting() []int {
	var all []int
	seen := make([]bool, len(s.policies))
	note := func(policies [2][]int) {
		for _, i := range slices.Concat(policies[Ingress], policies[Egress]) {
			if !seen[i] {
				seen[i] = true
				all = append(all, i)
			}
		}
	}
	for _, policies := range s.byLink {
		note(policies)
	}
	for _, host := range s.hosts {
		for _, policies := range host.policies {
			note(policies)
		}
	}
	slices.Sort(all)
	return all
}

// Keep replaces the policies of the local pod behind a link, for example by its policies in another State. They are in
// the order of evaluation.
func (s *Selection) Keep(link string, policies [2][]*Policy) {
	s.byLink[link] = s.kept(policies)
}

func (s *Selection) kept(policies [2][]*Policy) (indexes [2][]int) {
	if s.versions == nil {
		s.versions = map[ID][]int{}
		for i := range s.policies {
			s.versions[s.policies[i].ID] = append(s.versions[s.policies[i].ID], i)
		}
	}
	for d := range policies {
		for _, p := range policies[d] {
			indexes[d] = append(indexes[d], s.version(p))
		}
	}
	return indexes
}

// version returns the index of exactly this policy; it adds the policy if it is new.
func (s *Selection) version(p *Policy) int {
	for _, i := range s.versions[p.ID] {
		if s.policies[i].decidesAs(p) {
			return i
		}
	}
	s.policies = append(s.policies, *p)
	i := len(s.policies) - 1
	s.versions[p.ID] = append(s.versions[p.ID], i)
	return i
}

// decidesAs reports whether both decide the same for pods that they select; false may be wrong.
func (p *Policy) decidesAs(o *Policy) bool {
	same := p.ID == o.ID && p.Tier == o.Tier && p.Order == o.Order && p.Applies == o.Applies
	for d := range p.Rules {
		a, b := p.Rules[d], o.Rules[d]
		same = same && len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
	}
	return same
}

// selected returns the policies of each local pod. A pod of a crowded namespace has one policy, for which Compile
// closes it.
func (s *Selection) selected() map[string][2][]int {
	s.indexSubjects()
	found := map[string][2][]int{}
	for link, key := range s.state.Local {
		pod := s.state.Pods[key]
		if pod == nil || s.undecided(pod) {
			continue
		}
		found[link] = s.policiesOf(pod)
	}
	return found
}

func (s *Selection) indexSubjects() {
	s.subjects, s.bySubject = newPodIndex(s.state.directory()), map[int32][]int{}
	tried := map[string]int{}
	for i := range s.policies {
		p := &s.policies[i]
		namespace := p.Subject.Namespace
		if _, crowded := s.crowded[namespace]; crowded || p.HostsOnly() {
			continue
		}
		known := len(s.subjects.all)
		id := s.subjects.add(p.Subject, true)
		s.bySubject[id] = append(s.bySubject[id], i)
		if namespace != "" && len(s.subjects.all) > known {
			tried[namespace] += s.subjects.all[id].tried
		}
		if tried[namespace] > mostElements {
			s.crowded[namespace] = i
		}
	}
}

// policiesOf returns a pod's policies in the order of evaluation.
func (s *Selection) policiesOf(pod *Pod) (policies [2][]int) {
	if i, crowded := s.crowded[pod.Namespace]; crowded {
		return [2][]int{{i}, {i}}
	}
	for _, id := range s.subjects.of(pod) {
		for _, i := range s.bySubject[id] {
			for d := range policies {
				if s.policies[i].Applies[d] {
					policies[d] = append(policies[d], i)
				}
			}
		}
	}
	slices.Sort(policies[Ingress])
	slices.Sort(policies[Egress])
	return policies
}

// undecided reports whether unknown labels of the pod's namespace, or service account, decide if a policy selects it.
func (s *Selection) undecided(pod *Pod) bool {
	d := s.state.directory()
	if namespace, account := d.knows(pod); namespace && (account || !s.subjects.accounts) {
		return false
	}
	return slices.ContainsFunc(s.policies, func(p Policy) bool {
		return !p.HostsOnly() && p.Subject.selects(d, pod, true) != p.Subject.selects(d, pod, false)
	})
}
