package policy

import (
	"net/netip"
	"slices"
	"strings"
)

// selects reports whether the pod is one of p. While the labels of its namespace are not known, a selector that reads them has the answer unknown.
func (p *Pods) selects(namespaces map[string]map[string]string, pod *Pod, unknown bool) bool {
	if p.Namespace != "" && p.Namespace != pod.Namespace {
		return false
	}
	if p.Namespace == "" {
		labels, known := namespaces[pod.Namespace]
		if !known && len(p.Namespaces.Keys()) > 0 {
			return unknown && p.Labels.Matches(pod.Labels)
		}
		if !p.Namespaces.Matches(labels) {
			return false
		}
	}
	return p.Labels.Matches(pod.Labels)
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
	ids   map[string]int32 // by text
	all   []selection
	fixed map[string]*podBucket // by namespace
	free  podBucket             // of any namespace
	keys  map[string]bool       // the labels that selections read
}

type selection struct {
	pods    Pods
	unknown bool // the answer while the namespace is not known
}

// podBucket has selections by a label which they need, and those that need none.
type podBucket struct {
	byLabel map[[2]string][]int32
	rest    []int32
}

func newPodIndex() *podIndex {
	return &podIndex{ids: map[string]int32{}, fixed: map[string]*podBucket{}, keys: map[string]bool{}}
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
	x.all = append(x.all, selection{pods, unknown})
	for _, key := range pods.Labels.Keys() {
		x.keys[key] = true
	}
	x.bucket(pods.Namespace).add(pods, id)
	return id
}

func (x *podIndex) bucket(namespace string) *podBucket {
	if namespace == "" {
		return &x.free
	}
	if x.fixed[namespace] == nil {
		x.fixed[namespace] = &podBucket{}
	}
	return x.fixed[namespace]
}

func (b *podBucket) add(pods Pods, id int32) {
	key, values := pods.Labels.Needs()
	if key == "" {
		b.rest = append(b.rest, id)
		return
	}
	if b.byLabel == nil {
		b.byLabel = map[[2]string][]int32{}
	}
	for _, value := range values {
		b.byLabel[[2]string{key, value}] = append(b.byLabel[[2]string{key, value}], id)
	}
}

// of returns the selections that the pod is in, in no particular order.
func (x *podIndex) of(namespaces map[string]map[string]string, pod *Pod) (found []int32) {
	try := func(ids []int32) {
		for _, id := range ids {
			if s := &x.all[id]; s.pods.selects(namespaces, pod, s.unknown) {
				found = append(found, id)
			}
		}
	}
	buckets := []*podBucket{&x.free}
	if b := x.fixed[pod.Namespace]; b != nil {
		buckets = append(buckets, b)
	}
	for _, b := range buckets {
		try(b.rest)
		if len(b.byLabel) == 0 {
			continue
		}
		for key, value := range pod.Labels {
			try(b.byLabel[[2]string{key, value}])
		}
	}
	return found
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
