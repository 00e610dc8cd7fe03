package policy

import (
	"cmp"
	"slices"
)

// networkSets finds the network sets and host endpoints that a selection selects without trying all, and computes their
// labels once.
type networkSets struct {
	all      []setNetworks        // by namespace
	every    []int32              // indexes of all
	labelled map[setLabel][]int32 // by labels, as Calico shows them
	unsure   []int32              // sets with unknown inherited labels, which are not in labelled
	selected map[selectionKey]*selectedNetworks
	private  map[string]bool // namespaces with networks that count for their own policies only
}

type setNetworks struct {
	selectable
	nets  func() ranges
	count int    // number of its networks
	owned bool   // nets count for policies of its namespace only
	wide  bool   // nets count for policies of others, where ignoring them would open something
	known ranges // cached result of nets
}

type setLabel struct{ key, value string }

// selectedNetworks holds the addresses of the selected network sets and host endpoints, and how many ranges are from
// each namespace.
type selectedNetworks struct {
	nets ranges
	by   map[string]int
}

// of returns how many ranges count for a namespace.
func (s *selectedNetworks) of(namespace string) int {
	all := 0
	for _, n := range s.by {
		all += n
	}
	return bounded(s.by[namespace], all-s.by[namespace])
}

func newNetworkSets(state State) *networkSets {
	x := &networkSets{labelled: map[setLabel][]int32{}, selected: map[selectionKey]*selectedNetworks{}, private: map[string]bool{}}
	d := state.directory()
	for i := range state.Sets {
		s := &state.Sets[i]
		shown := d.set(s)
		x.all = append(x.all, setNetworks{selectable: shown, nets: func() ranges { return rangesOf(s.Nets) }, count: len(s.Nets)})
		if len(s.Private) > 0 {
			x.private[s.Namespace] = true
			x.all = append(x.all,
				setNetworks{selectable: shown, nets: func() ranges { return rangesOf(s.Private) }, count: len(s.Private), owned: true})
			x.all = append(x.all, setNetworks{selectable: shown, nets: s.wide, count: s.Wide, wide: true})
		}
	}
	for i := range state.HostEndpoints {
		h := &state.HostEndpoints[i]
		x.all = append(x.all,
			setNetworks{selectable: d.host(h), nets: func() ranges { return rangesOfAddresses(h.Addresses) }, count: len(h.Addresses)})
	}
	slices.SortStableFunc(x.all, func(a, b setNetworks) int { return cmp.Compare(a.namespace, b.namespace) })
	for i := range x.all {
		x.index(int32(i))
	}
	return x
}

func (x *networkSets) index(i int32) {
	x.every = append(x.every, i)
	if s := &x.all[i]; !s.knownNamespace || !s.knownAccount {
		x.unsure = append(x.unsure, i)
		return
	}
	for key, value := range x.all[i].calico {
		x.labelled[setLabel{key, value}] = append(x.labelled[setLabel{key, value}], i)
	}
}

// candidates returns the sets to try with a selection, in order: sets of its namespace, with the needed label that the
// fewest have.
func (x *networkSets) candidates(p *Pods) []int32 {
	best := x.within(x.every, p)
	if !p.Calico {
		return best
	}
	unsure := x.within(x.unsure, p)
	for _, need := range p.Labels.Needs() {
		found := slices.Clone(unsure)
		for _, value := range need.Values {
			if found = append(found, x.within(x.labelled[setLabel{need.Key, value}], p)...); len(found) >= len(best) {
				break
			}
		}
		if len(found) < len(best) {
			slices.Sort(found)
			best = found
		}
	}
	return best
}

// within returns the sets that the selection may select by their namespace.
func (x *networkSets) within(ids []int32, p *Pods) []int32 {
	if p.Namespace == "" && p.Scope != Global {
		return ids
	}
	return x.of(ids, p.Namespace)
}

// of returns the sets of a namespace; ids are sorted by it.
func (x *networkSets) of(ids []int32, namespace string) []int32 {
	first, _ := slices.BinarySearchFunc(ids, namespace, func(i int32, n string) int { return cmp.Compare(x.all[i].namespace, n) })
	behind, _ := slices.BinarySearchFunc(ids, namespace, func(i int32, n string) int { return cmp.Or(cmp.Compare(x.all[i].namespace, n), -1) })
	return ids[first:behind]
}

// counts reports whether the networks count for a policy of a namespace.
func (s *setNetworks) counts(owner string, unknown bool) bool {
	switch own := s.namespace == owner; {
	case s.owned:
		return own
	case s.wide:
		return !own && unknown
	}
	return true
}

// selects returns the selected networks, cached by selection.
func (x *networkSets) selects(p *Pods, unknown bool) *selectedNetworks {
	key := selectionKey{pods: p.identity(), unknown: unknown}
	if x.private[p.Owner] {
		key.owner = p.Owner
	}
	if x.selected[key] != nil {
		return x.selected[key]
	}
	found := &selectedNetworks{by: map[string]int{}}
	for _, i := range x.candidates(p) {
		if s := &x.all[i]; s.counts(p.Owner, unknown) && p.has(&s.selectable, unknown) {
			if s.known == nil {
				s.known = s.nets()
			}
			found.nets = append(found.nets, s.known...)
			found.by[s.namespace] += len(s.known)
		}
	}
	found.nets = normal(found.nets)
	x.selected[key] = found
	return found
}
