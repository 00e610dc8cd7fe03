package policy

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api/selector"
)

// selects reports whether p includes the pod. While the labels of its namespace, or of its service account, are not
// known, it returns unknown for a selector that reads them.
func (p *Pods) selects(d directory, pod *Pod, unknown bool) bool {
	x := d.pod(pod, p.Calico)
	return p.has(&x, unknown)
}

// hasSet is has for a network set; a set of another namespace is refused before its labels are computed.
func (p *Pods) hasSet(d directory, s *NetworkSet, unknown bool) bool {
	if p.Namespace != "" && p.Namespace != s.Namespace {
		return false
	}
	x := d.set(s)
	return p.has(&x, unknown)
}

// hasHost is has for a host endpoint, with the labels of its profiles.
func (p *Pods) hasHost(d directory, h *HostEndpoint, unknown bool) bool {
	x := d.host(h)
	return p.has(&x, unknown)
}

func (p *Pods) has(x *selectable, unknown bool) bool {
	namespace := func() bool {
		if p.Calico {
			return p.Namespaces.Matches(x.calicoNamespace)
		}
		return p.Namespaces.Matches(x.ofNamespace)
	}
	return p.within(x, unknown, namespace) && p.matches(x, unknown)
}

// within reports whether the namespace fits; matches tests its labels, if they are known.
func (p *Pods) within(x *selectable, unknown bool, matches func() bool) bool {
	switch {
	case p.Namespace != "":
		return p.Namespace == x.namespace
	case !x.knownNamespace && p.readsNamespaces():
		return unknown
	}
	return matches()
}

// matches tests all conditions but the namespace.
func (p *Pods) matches(x *selectable, unknown bool) bool {
	if p.Scope == Global && x.namespace != "" {
		return false
	}
	if !p.Calico {
		return p.Labels.Matches(x.labels)
	}
	if len(p.Accounts) > 0 && (x.pod == nil || !slices.Contains(p.Accounts, x.pod.Account)) {
		return false
	}
	if p.readsUnknown(x) {
		return unknown
	}
	return p.Labels.Matches(x.calico) && p.AccountLabels.Matches(x.ofAccount)
}

// readsUnknown reports whether the selection depends on labels that x does not know; the zero selectable knows none.
func (p *Pods) readsUnknown(x *selectable) bool {
	return !x.knownNamespace && p.reads(ofNamespacePrefix) || !x.knownAccount && p.readsAccountLabels()
}

// reads reports whether the selector on labels reads keys with the prefix.
func (p *Pods) reads(prefix string) bool {
	return slices.ContainsFunc(p.Labels.Keys(), func(key string) bool { return strings.HasPrefix(key, prefix) })
}

// readsNamespaces reports whether the selection depends on labels of namespaces.
func (p *Pods) readsNamespaces() bool {
	return slices.ContainsFunc(p.Namespaces.Keys(), func(key string) bool { return key != hasNamespace })
}

// readsAccountLabels reports whether the selection depends on labels of service accounts.
func (p *Pods) readsAccountLabels() bool {
	return p.Calico && (len(p.AccountLabels.Keys()) > 0 || p.reads(ofAccountPrefix))
}

// identity returns a key that is equal for equal selections only. Each part is preceded by its length, so names of
// users cannot produce the key of another selection.
func (p *Pods) identity() string {
	namespaces := p.Namespaces.String()
	if p.Namespace != "" {
		namespaces = ""
	}
	b := []byte{byte(p.Scope), boolByte(p.Calico), boolByte(p.ByAccount)}
	for _, part := range [...]string{p.Namespace, namespaces, p.Labels.String(), p.AccountLabels.String()} {
		b = appendText(b, part)
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(p.Accounts))) {
		b = appendText(b, name)
	}
	return string(b)
}

// selectionKey identifies a selection with its answer.
type selectionKey struct {
	pods    string // the identity
	unknown bool   // the answer while labels are not known
	owner   string // namespace of the private networks that count; empty: none
}

// size returns the number of conditions in the selection.
func (p *Pods) size() int {
	if !p.readsNamespaces() {
		return max(1, p.Labels.Size())
	}
	return max(1, p.Labels.Size()+p.Namespaces.Size())
}

// readsAccount reports whether the selection depends on the pod's service account.
func (p *Pods) readsAccount() bool {
	return p.readsAccountLabels() ||
		p.Calico && (len(p.Accounts) > 0 || p.AccountLabels.String() != "" || slices.Contains(p.Labels.Keys(), labelAccount))
}

// podIndex finds the selections of a pod without trying all.
type podIndex struct {
	directory
	ids      map[selectionKey]int32
	all      []selection
	placed   map[place][]int32
	unsure   []int32         // selections that include pods of an unknown namespace or service account
	keys     map[string]bool // labels of pods that selections read
	accounts bool            // service accounts are read
	calico   bool            // labels are read as Calico shows them
	ofNames  selectors
}

type selection struct {
	pods       Pods
	unknown    bool // the answer while labels are not known
	namespaces int  // the number of the selector on namespaces
	tried      int  // bound of the conditions that its places make a pod try
}

// place is a bucket of selections that need one label, or none, of a pod or of its namespace.
type place struct {
	namespace   string // named by the selections; empty: none
	ofNamespace bool   // the label is the namespace's
	key, value  string // empty: no label is needed
	calico      bool   // as Calico shows it
}

func newPodIndex(d directory) *podIndex {
	return &podIndex{directory: d, ids: map[selectionKey]int32{}, placed: map[place][]int32{},
		keys: map[string]bool{}, ofNames: newSelectors()}
}

// add returns the number of the selection.
func (x *podIndex) add(pods Pods, unknown bool) int32 {
	key := selectionKey{pods: pods.identity(), unknown: unknown}
	if id, ok := x.ids[key]; ok {
		return id
	}
	id := int32(len(x.all))
	x.ids[key] = id
	x.calico, x.accounts = x.calico || pods.Calico, x.accounts || pods.readsAccount()
	for _, key := range pods.Labels.Keys() {
		x.keys[key] = true
	}
	places, _ := pods.places(func(p place) int { return len(x.placed[p]) })
	most := 0
	for _, p := range places {
		x.placed[p] = append(x.placed[p], id)
		most = max(most, len(x.placed[p]))
	}
	size := pods.size()
	x.all = append(x.all, selection{pods, unknown, x.ofNames.add(pods.Namespaces, pods.Calico), most * size})
	if unknown && (places[0].ofNamespace || pods.readsUnknown(&selectable{})) {
		x.unsure = append(x.unsure, id)
	}
	return id
}

// places returns the buckets for a selection: by the label that the fewest others need, so that a pod is tried with
// few. tries is the number of the buckets and of the selections in them, with all of which a pod may have to be tried.
func (p *Pods) places(filled func(place) int) (best []place, tries int) {
	consider := func(ofNamespace bool, needs []selector.Need) {
		for _, need := range needs {
			places, sum := make([]place, len(need.Values)), 0
			for i, value := range need.Values {
				places[i] = place{p.Namespace, ofNamespace, need.Key, value, p.Calico}
				sum += 1 + filled(places[i])
			}
			if best == nil || sum < tries {
				best, tries = places, sum
			}
		}
	}
	consider(false, p.Labels.Needs())
	if p.Namespace == "" && p.readsNamespaces() {
		consider(true, p.Namespaces.Needs())
	}
	if best == nil {
		anywhere := place{namespace: p.Namespace, calico: p.Calico}
		return []place{anywhere}, 1 + filled(anywhere)
	}
	return best, tries
}

// of returns the selections that the pod is in, in no particular order.
func (x *podIndex) of(pod *Pod) (found []int32) {
	seen := x.directory.pod(pod, x.calico)
	try := func(ids []int32) {
		for _, id := range ids {
			if x.selects(&x.all[id], &seen) {
				found = append(found, id)
			}
		}
	}
	views := func(calico bool, labels, ofNamespace map[string]string) {
		try(x.placed[place{calico: calico}])
		try(x.placed[place{namespace: pod.Namespace, calico: calico}])
		for key, value := range labels {
			if x.keys[key] {
				try(x.placed[place{"", false, key, value, calico}])
				try(x.placed[place{pod.Namespace, false, key, value, calico}])
			}
		}
		for key, value := range ofNamespace {
			try(x.placed[place{"", true, key, value, calico}])
		}
	}
	views(false, seen.labels, seen.ofNamespace)
	if x.calico {
		views(true, seen.calico, seen.calicoNamespace)
	}
	if !seen.knownNamespace || x.accounts && !seen.knownAccount {
		try(x.unsure)
		slices.Sort(found)
		found = slices.Compact(found)
	}
	return found
}

func (x *podIndex) selects(s *selection, seen *selectable) bool {
	namespace := func() bool { return x.ofNames.match(s.namespaces, seen) }
	return s.pods.within(seen, s.unknown, namespace) && s.pods.matches(seen, s.unknown)
}

// selectors holds the selectors on labels of namespaces. Each is evaluated once per namespace, however many pods and
// selections there are.
type selectors struct {
	numbers map[namespaceText]int
	all     []namespaceSelector
	answers map[string][]answer // by namespace, then number
}

type namespaceText struct {
	calico bool
	text   string
}

type namespaceSelector struct {
	selector.Selector
	calico bool
}

type answer uint8

const (
	notAsked answer = iota
	no
	yes
)

func newSelectors() selectors {
	return selectors{numbers: map[namespaceText]int{}, answers: map[string][]answer{}}
}

// add returns the number of the selector.
func (x *selectors) add(s selector.Selector, calico bool) int {
	text := namespaceText{calico, s.String()}
	n, ok := x.numbers[text]
	if !ok {
		n = len(x.all)
		x.numbers[text] = n
		x.all = append(x.all, namespaceSelector{s, calico})
	}
	return n
}

// match reports whether the selector matches the namespace.
func (x *selectors) match(number int, seen *selectable) bool {
	s := x.all[number]
	labels := seen.ofNamespace
	if s.calico {
		labels = seen.calicoNamespace
	}
	namespace := seen.namespace
	if namespace == "" { // a host endpoint has the labels of its profiles
		return s.Matches(labels)
	}
	if x.answers[namespace] == nil || len(x.answers[namespace]) <= number {
		x.answers[namespace] = append(x.answers[namespace], make([]answer, len(x.all)-len(x.answers[namespace]))...)
	}
	a := &x.answers[namespace][number]
	if *a == notAsked {
		if *a = no; s.Matches(labels) {
			*a = yes
		}
	}
	return *a == yes
}

// key returns a key that is equal only for pods that selections cannot distinguish.
func (x *podIndex) key(pod *Pod) []byte {
	b := appendText(nil, pod.Namespace)
	if x.accounts {
		b = appendText(b, pod.Account)
	}
	for _, key := range slices.Sorted(maps.Keys(pod.Labels)) {
		if x.keys[key] {
			b = appendText(appendText(append(b, 'l'), key), pod.Labels[key])
		}
	}
	return b
}

// owner returns the pod for which an address of several pods counts: the local one, else the first by name. The maker
// of the State ensures that an address has one pod, or is certain for none: then it counts for all, see Pod.Unsure.
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

// addresses returns the certain addresses of the pod, each once, IPv4 unmapped.
func (p *Pod) addresses() []netip.Addr { return each(p.Addresses) }

// claimed returns all addresses that may be the pod's.
func (p *Pod) claimed() []netip.Addr {
	if len(p.Unsure) == 0 {
		return p.addresses()
	}
	return each(slices.Concat(p.Addresses, p.Unsure))
}

// mayHave reports whether an address may be the pod's without being certain.
func (p *Pod) mayHave(a netip.Addr) bool {
	return slices.ContainsFunc(p.Unsure, func(u netip.Addr) bool { return u.Unmap() == a }) && !slices.Contains(p.addresses(), a)
}

func each(addresses []netip.Addr) []netip.Addr {
	var all []netip.Addr
	for _, a := range addresses {
		if a = a.Unmap(); a.IsValid() && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}
