package policy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api/selector"
)

// selects reports whether the pod is one of p; see within.
func (p *Pods) selects(namespaces map[string]map[string]string, pod *Pod, unknown bool) bool {
	labels, known := namespaces[pod.Namespace]
	return p.within(pod.Namespace, known, unknown, func() bool { return p.Namespaces.Matches(labels) }) && p.Labels.Matches(pod.Labels)
}

// within reports whether pods of a namespace may be of p. While the labels of the namespace are not known, a selector that reads them has the
// answer unknown; else it is asked by matches.
func (p *Pods) within(namespace string, known, unknown bool, matches func() bool) bool {
	switch {
	case p.Namespace != "":
		return p.Namespace == namespace
	case !known && len(p.Namespaces.Keys()) > 0:
		return unknown
	}
	return matches()
}

// text is equal for equal selections.
func (p *Pods) text() string {
	if p.Namespace != "" {
		return "in " + p.Namespace + ": " + p.Labels.String()
	}
	return "of " + p.Namespaces.String() + ": " + p.Labels.String()
}

// podIndex finds the selections that a pod is in without trying all of them.
type podIndex struct {
	namespaces map[string]map[string]string // their labels
	ids        map[string]int32             // by text
	all        []selection
	placed     map[place][]int32
	unsure     []int32         // those that a pod may be in because its namespace is not known
	keys       map[string]bool // the labels of pods that selections read
	ofNames    selectors
}

type selection struct {
	pods       Pods
	unknown    bool // the answer while the namespace is not known
	namespaces int  // the number of the selector on these
	tried      int  // how many conditions a pod may have to be tried with because of it, if those before it have as many
}

// place is where the selections are that need a label, or none, of a pod or of its namespace.
type place struct {
	namespace   string // that the selections name; empty: none
	ofNamespace bool   // the label is one of the namespace
	key, value  string // empty: no label is needed
}

func newPodIndex(namespaces map[string]map[string]string) *podIndex {
	return &podIndex{namespaces: namespaces, ids: map[string]int32{}, placed: map[place][]int32{}, keys: map[string]bool{}, ofNames: newSelectors()}
}

// add returns the number of the selection.
func (x *podIndex) add(pods Pods, unknown bool) int32 {
	text := pods.text()
	if unknown {
		text = "unknown " + text
	}
	if id, ok := x.ids[text]; ok {
		return id
	}
	id := int32(len(x.all))
	x.ids[text] = id
	for _, key := range pods.Labels.Keys() {
		x.keys[key] = true
	}
	places, _ := pods.places(func(p place) int { return len(x.placed[p]) })
	most := 0
	for _, p := range places {
		x.placed[p] = append(x.placed[p], id)
		most = max(most, len(x.placed[p]))
	}
	size := max(1, pods.Labels.Size()+pods.Namespaces.Size())
	x.all = append(x.all, selection{pods, unknown, x.ofNames.add(pods.Namespaces), most * size})
	if unknown && places[0].ofNamespace {
		x.unsure = append(x.unsure, id)
	}
	return id
}

// places are where a selection is looked for: by the label that the fewest others need, so that a pod is tried with few. tries grows by one for each
// that is there already, as a pod may have to be tried with all of them.
func (p *Pods) places(filled func(place) int) (best []place, tries int) {
	consider := func(ofNamespace bool, needs []selector.Need) {
		for _, need := range needs {
			places, sum := make([]place, len(need.Values)), 0
			for i, value := range need.Values {
				places[i] = place{p.Namespace, ofNamespace, need.Key, value}
				sum += 1 + filled(places[i])
			}
			if best == nil || sum < tries {
				best, tries = places, sum
			}
		}
	}
	consider(false, p.Labels.Needs())
	consider(true, p.Namespaces.Needs())
	if best == nil {
		anywhere := place{namespace: p.Namespace}
		return []place{anywhere}, 1 + filled(anywhere)
	}
	return best, tries
}

// of returns the selections that the pod is in, in no particular order.
func (x *podIndex) of(pod *Pod) (found []int32) {
	labels, known := x.namespaces[pod.Namespace]
	try := func(ids []int32) {
		for _, id := range ids {
			s := &x.all[id]
			in := s.pods.within(pod.Namespace, known, s.unknown, func() bool { return x.ofNames.match(s.namespaces, pod.Namespace, labels) })
			if in && s.pods.Labels.Matches(pod.Labels) {
				found = append(found, id)
			}
		}
	}
	try(x.placed[place{}])
	try(x.placed[place{namespace: pod.Namespace}])
	for key, value := range pod.Labels {
		if x.keys[key] {
			try(x.placed[place{"", false, key, value}])
			try(x.placed[place{pod.Namespace, false, key, value}])
		}
	}
	for key, value := range labels {
		try(x.placed[place{"", true, key, value}])
	}
	if !known {
		try(x.unsure)
	}
	return found
}

// selectors are those on labels of namespaces. Each is evaluated once for a namespace, however many pods and selections there are.
type selectors struct {
	numbers map[string]int // by text
	all     []selector.Selector
	answers map[string][]answer // by namespace, then number
}

type answer uint8

const (
	notAsked answer = iota
	no
	yes
)

func newSelectors() selectors {
	return selectors{numbers: map[string]int{}, answers: map[string][]answer{}}
}

// add returns the number of the selector.
func (x *selectors) add(s selector.Selector) int {
	n, ok := x.numbers[s.String()]
	if !ok {
		n = len(x.all)
		x.numbers[s.String()] = n
		x.all = append(x.all, s)
	}
	return n
}

// match reports whether the selector matches a namespace with these labels.
func (x *selectors) match(number int, namespace string, labels map[string]string) bool {
	if x.answers[namespace] == nil || len(x.answers[namespace]) <= number {
		x.answers[namespace] = append(x.answers[namespace], make([]answer, len(x.all)-len(x.answers[namespace]))...)
	}
	a := &x.answers[namespace][number]
	if *a == notAsked {
		if *a = no; x.all[number].Matches(labels) {
			*a = yes
		}
	}
	return *a == yes
}

// key is equal for pods of a namespace that selections cannot tell apart.
func (x *podIndex) key(pod *Pod) string {
	var labels []string
	for key, value := range pod.Labels {
		if x.keys[key] {
			labels = append(labels, key+"="+value)
		}
	}
	slices.Sort(labels)
	return pod.Namespace + "\n" + strings.Join(labels, "\n")
}

// owner is the pod that an address of several counts for: the local one, else the first by name. Whoever makes the State sees to it that there is only one.
func owner(keys []PodKey, local func(PodKey) bool) PodKey {
	best := keys[0]
	for _, k := range keys[1:] {
		if local(k) != local(best) && local(k) || local(k) == local(best) && k.compare(best) < 0 {
			best = k
		}
	}
	return best
}

func (k PodKey) compare(other PodKey) int {
	if c := strings.Compare(k.Namespace, other.Namespace); c != 0 {
		return c
	}
	return strings.Compare(k.Name, other.Name)
}

// addresses are those of the pod, each once, IPv4 in its own form.
func (p *Pod) addresses() []netip.Addr {
	var all []netip.Addr
	for _, a := range p.Addresses {
		if a = a.Unmap(); a.IsValid() && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}
