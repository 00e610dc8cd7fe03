package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Compiled is a Ruleset with an index to follow changes of pods. It is for one goroutine.
type Compiled struct {
	Ruleset
	// TooLarge are policies that make the programs of their namespace's pods too large for a node: programs over
	// mostElements pass nothing.
	TooLarge []ID
	closed   map[string][2]*ID // by link, if the program is too large
	subjects
	index
}

// compiler makes a Ruleset from a State.
type compiler struct {
	directory
	state       State
	policies    []Policy // in the order of evaluation
	terms       *terms
	sets        *sets
	clauses     map[clauseKey]*clause
	networkSets func() *networkSets
	spent       map[string]*spending // by namespace of the subjects
	tooLarge    map[*Program]ID
	ofAll       map[ruleKey][]item      // of rules that are the same for all subjects
	telling     map[ruleKey][]int       // rules that read the subject's ports or addresses, by policy and direction
	listings    map[string]*listing     // by key: programs share their steps, here and in the kernel
	finished    map[*Step][]Step        // by the first step
	declared    map[string][]declaredAt // by the name of a peer's port in rules
}

// Compile decides what the node's kernel must enforce. Equal states give equal Rulesets, in other processes too. A
// local pod gets no endpoint, so nothing passes, while it is not in Pods, or while labels of its namespace are not
// known that a policy reads.
func Compile(state State) *Compiled { return Select(state).Compile() }

// Compile compiles the State with the changes by Counting and Keep.
func (s *Selection) Compile() *Compiled {
	state := s.state
	t := newTerms(state.directory())
	c := &compiler{directory: state.directory(), state: state, policies: s.policies, terms: t, sets: newSets(t),
		clauses:     map[clauseKey]*clause{},
		networkSets: sync.OnceValue(func() *networkSets { return newNetworkSets(state) }), spent: map[string]*spending{},
		tooLarge: map[*Program]ID{},
		ofAll:    map[ruleKey][]item{}, telling: map[ruleKey][]int{}, listings: map[string]*listing{}, finished: map[*Step][]Step{}}
	for namespace, i := range s.crowded {
		c.spendingOf(namespace).exhaust(s.policies[i].ID)
	}
	names := c.peersNames(s.counting())
	c.declared = declaredPorts(state, names)
	r := Ruleset{Closed: len(state.Policies) > 0, Endpoints: map[string]Endpoint{}, Programs: map[string]Program{}, Nets: map[string][]Range{}}
	subjects, hosts := c.programs(s), c.hostPrograms(s.hosts)
	c.sets.assign()
	keys, closed := map[*Program]string{}, map[string][2]*ID{}
	key := func(p *Program) string {
		if _, done := keys[p]; !done {
			keys[p] = c.finish(&r, p)
		}
		return keys[p]
	}
	for _, link := range slices.Sorted(maps.Keys(subjects.byLink)) {
		e := Endpoint{UID: state.Pods[state.Local[link]].UID}
		for d, of := range subjects.byLink[link] {
			of.key = key(of.program)
			e.Programs[d] = of.key
			if id, tooLarge := c.tooLarge[of.program]; tooLarge {
				by := closed[link]
				by[d] = &id
				closed[link] = by
			}
		}
		r.Endpoints[link] = e
	}
	r.Hosts, r.HostRules = hostsOf(s.hosts, hosts, key), state.Host
	r.Handling = state.Handling
	x := newIndex(c, names)
	r.Members = x.fill(state)
	return &Compiled{r, slices.Compact(slices.SortedFunc(maps.Values(c.tooLarge), ID.compare)), closed, subjects, x}
}

// ClosedBy reports whether nothing passes a link in a direction because its pod's program would be too large for a
// node, and returns the policy responsible.
func (c *Compiled) ClosedBy(link string, d Direction) (by ID, closed bool) {
	if id := c.closed[link][d]; id != nil {
		return *id, true
	}
	return ID{}, false
}

// Closes reports whether ClosedBy holds for one direction at least.
func (c *Compiled) Closes(link string) bool { return c.closed[link] != [2]*ID{} }

// ordered puts policies in the order of evaluation.
func ordered(policies []Policy) []Policy {
	order := make([]*Policy, len(policies)) // pointers are cheaper to move
	for i := range policies {
		order[i] = &policies[i]
	}
	slices.SortFunc(order, func(a, b *Policy) int {
		if c := cmp.Or(a.Tier.compare(b.Tier), cmp.Compare(a.Order, b.Order)); c != 0 {
			return c
		}
		return a.precedes(b)
	})
	sorted := make([]Policy, len(order))
	for i, p := range order {
		sorted[i] = *p
	}
	return sorted
}

func (id ID) compare(other ID) int {
	return cmp.Or(cmp.Compare(id.Kind, other.Kind), cmp.Compare(id.Namespace, other.Namespace), cmp.Compare(id.Name, other.Name))
}

func (t Tier) compare(other Tier) int {
	if t.Missing != other.Missing {
		return int(boolByte(t.Missing)) - int(boolByte(other.Missing))
	}
	return cmp.Or(cmp.Compare(t.Order, other.Order), cmp.Compare(t.Name, other.Name))
}

// precedes orders policies of the same Order.
func (p *Policy) precedes(other *Policy) int {
	a, b := p.Shown(), other.Shown()
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind),
		cmp.Compare(p.Name, other.Name))
}

// Shown returns the ID under which Calico's clients show the policy. A policy and its staged one have the same.
func (p *Policy) Shown() ID { return ID{p.Kind, p.Namespace, cmp.Or(p.Called, p.Name)} }

// peersNames returns the names of peers' ports in rules that count for local pods or host endpoints. A value is true if
// a rule's peers are pods of one namespace: then the namespace that declares a number matters.
func (c *compiler) peersNames(policies []int) map[string]bool {
	names := map[string]bool{}
	for _, i := range policies {
		for d, rules := range c.policies[i].Rules {
			for _, rule := range rules {
				rule.namePeersPorts(Direction(d), names)
			}
		}
	}
	return names
}

func (r *Rule) namePeersPorts(d Direction, names map[string]bool) {
	ports, except := r.peersPorts(d)
	for _, port := range slices.Concat(ports, except) {
		if port.Name != "" {
			names[port.Name] = names[port.Name] || slices.ContainsFunc(r.Peers, func(p Peer) bool { return p.namespace() != "" })
		}
	}
}

// peersPorts returns the rule's ports at the peer: the destination of egress, the source of ingress.
func (r *Rule) peersPorts(d Direction) (ports, except []Port) {
	if d == Egress {
		return r.Ports, r.Except
	}
	return r.Sources, r.ExceptSources
}

// AllBut reports whether the rule matches more the less is known of peers: it excludes what a selector selects, or
// ports that peers declare.
func (r *Rule) AllBut(d Direction) bool {
	_, except := r.peersPorts(d)
	excludes := func(m *Match) bool { return m != nil && m.Not }
	return slices.ContainsFunc(except, func(p Port) bool { return p.Name != "" }) || excludes(r.Own) ||
		slices.ContainsFunc(r.Peers, func(p Peer) bool { return excludes(p.Match) })
}

// ownPorts returns the rule's ports at the subject.
func (r *Rule) ownPorts(d Direction) (ports, except []Port) { return r.peersPorts(1 - d) }

// declaredPorts returns the ports that pods and host endpoints declare under the names, ascending.
func declaredPorts(state State, names map[string]bool) map[string][]declaredAt {
	found := map[string][]declaredAt{}
	if len(names) == 0 {
		return found
	}
	add := func(ports []NamedPort, namespace string) {
		for _, p := range ports {
			if _, used := names[p.Name]; used {
				found[p.Name] = append(found[p.Name], declaredAt{declaredPort{p.Name, p.Protocol, p.Port}, namespace})
			}
		}
	}
	for _, pod := range state.Pods {
		add(pod.Ports, pod.Namespace)
	}
	for _, h := range state.HostEndpoints {
		add(h.Ports, "")
	}
	for name, all := range found {
		slices.SortFunc(all, func(a, b declaredAt) int {
			return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.port, b.port), cmp.Compare(a.namespace, b.namespace))
		})
		found[name] = slices.Compact(all)
	}
	return found
}

// subjects are the local pods with their programs.
type subjects struct {
	selection *Selection
	compiler  *compiler         // reduced to what profile needs
	local     map[string]PodKey // by link, as in the State
	byLink    map[string][2]*shared
	known     map[string]*shared // by profile, without programs that are too large
	unused    bool
}

// shared is a program of subjects with one profile.
type shared struct {
	program  *Program
	key      string // in the Ruleset
	pods     int
	tooLarge bool
}

func (c *compiler) programs(selection *Selection) subjects {
	s := subjects{selection: selection, local: maps.Clone(c.state.Local), byLink: map[string][2]*shared{}, known: map[string]*shared{},
		compiler: &compiler{directory: c.directory, state: c.state, policies: c.policies, networkSets: c.networkSets, telling: c.telling}}
	for _, link := range slices.Sorted(maps.Keys(selection.byLink)) {
		pod := c.state.Pods[c.state.Local[link]]
		var programs [2]*shared
		for d, policies := range selection.byLink[link] {
			profile := c.profile(Direction(d), policies, pod)
			p := s.known[profile]
			if p == nil {
				p = &shared{program: c.build(Direction(d), policies, pod, ending{Verdict: Verdict{Allow: true}})}
			}
			if _, p.tooLarge = c.tooLarge[p.program]; !p.tooLarge { // too large is per namespace, and the profile is not
				s.known[profile] = p
			}
			p.pods++
			programs[d] = p
		}
		s.byLink[link] = programs
	}
	return s
}

// profile returns a key that is equal for subjects with the same program.
func (c *compiler) profile(d Direction, policies []int, pod *Pod) string {
	var b strings.Builder
	b.WriteString(d.String())
	for _, i := range policies {
		b.WriteString(" " + strconv.Itoa(i))
		for _, r := range c.tells(i, d) {
			rule := &c.policies[i].Rules[d][r]
			ports, except := rule.ownPorts(d)
			for _, port := range ports {
				writeNamed(&b, pod, port)
			}
			for _, port := range except {
				writeNamed(&b, pod, port)
			}
			if rule.Own != nil {
				b.WriteString(";" + fmt.Sprint(c.families(rule, pod)))
				if rule.doubtful(false) {
					b.WriteString(fmt.Sprint(c.families(rule.denying(), pod)))
				}
			}
		}
		b.WriteString(";")
	}
	return b.String()
}

// tells returns the rules of a policy that read the subject's named ports, addresses or labels.
func (c *compiler) tells(policy int, d Direction) []int {
	key := ruleKey{policy: policy, direction: d}
	found, known := c.telling[key]
	if known {
		return found
	}
	for i := range c.policies[policy].Rules[d] {
		rule := &c.policies[policy].Rules[d][i]
		ports, except := rule.ownPorts(d)
		if rule.Own != nil || slices.ContainsFunc(ports, Port.named) || slices.ContainsFunc(except, Port.named) {
			found = append(found, i)
		}
	}
	c.telling[key] = found
	return found
}

func (p Port) named() bool { return p.Name != "" }

// writeNamed writes the numbers that the pod declares, if the port has a name.
func writeNamed(b *strings.Builder, pod *Pod, port Port) {
	if port.Name == "" {
		return
	}
	for _, s := range append(pod.named(port), span{}) { // span{} ends this port's numbers
		b.WriteString("," + strconv.Itoa(int(s.protocol)) + ":" + strconv.Itoa(int(s.first)))
	}
}

// finish adds a program to the Ruleset, with the ids of its sets, and returns its key.
func (c *compiler) finish(r *Ruleset, p *Program) string {
	p.lists(func(l *List) { l.Steps = c.finishSteps(r, l.Steps) })
	if len(p.Ports) == 0 && len(p.Protocols) == 0 && len(p.Rest.Steps) == 0 && p.Rest.Else.Allow && len(p.Logs) == 0 && len(p.Sequence) == 0 {
		return ""
	}
	k := programKey(*p)
	r.Programs[k] = *p
	return k
}

func (c *compiler) finishSteps(r *Ruleset, of []Step) []Step {
	if len(of) == 0 {
		return nil
	}
	steps, done := c.finished[&of[0]]
	if done {
		return steps
	}
	steps = slices.Clone(of)
	for i := range steps {
		s := &steps[i]
		if s.Set != 0 {
			s.Set = c.sets.ids[s.Set-1]
		}
		if s.Nets != "" {
			r.Nets[s.Nets] = c.terms.nets[c.terms.netIDs[s.Nets]]
		}
	}
	c.finished[&of[0]] = steps
	return steps
}

// index finds the sets of a pod's addresses.
type index struct {
	directory
	sets      *sets
	names     map[string]bool // of peers' ports in rules
	declaring map[declaredAt]int
	links     map[PodKey]string // of local pods
	nets      []int32           // networks that sets depend on
	cuts      []netip.Addr
	inside    map[int][]bool // by the position of the address among the cuts
	classes   map[string]*class
	pods      map[PodKey]*known
	owners    map[netip.Addr][]PodKey
}

// class groups the pods that policies distinguish by their addresses only.
type class struct {
	key   string
	pods  int
	terms []int32
	// ids are by the position of the address among the cuts: [0] for pods' certain addresses, [1] for unsure ones.
	ids [2]map[int][]SetID
}

// known is a pod in the index.
type known struct {
	pod       *Pod
	class     *class
	addresses []netip.Addr
}

func newIndex(c *compiler, names map[string]bool) index {
	x := index{directory: c.directory, sets: c.sets, names: names, nets: c.sets.networks(), links: linksOf(c.state.Local)}
	x.cuts, x.inside = c.terms.cuts(x.nets), map[int][]bool{}
	x.declaring, x.classes = map[declaredAt]int{}, map[string]*class{}
	x.pods, x.owners = make(map[PodKey]*known, len(c.state.Pods)), make(map[netip.Addr][]PodKey, len(c.state.Pods))
	return x
}

// fill adds all pods and returns the sets of their addresses.
func (x *index) fill(state State) map[netip.Addr][]SetID {
	for key, pod := range state.Pods {
		x.add(key, pod)
	}
	members := make(map[netip.Addr][]SetID, len(x.owners))
	for addr := range x.owners {
		if ids := x.of(addr); len(ids) > 0 {
			members[addr] = ids
		}
	}
	return members
}

func (x *index) add(key PodKey, pod *Pod) {
	k := &known{pod: pod, addresses: pod.claimed()}
	name := x.classKey(pod)
	if k.class = x.classes[name]; k.class == nil {
		k.class = &class{key: name, terms: x.sets.terms.ofPod(pod), ids: [2]map[int][]SetID{{}, {}}}
		x.classes[name] = k.class
	}
	k.class.pods++
	x.pods[key] = k
	for _, d := range x.declares(pod) {
		x.declaring[x.declaredAt(d, pod)]++
	}
	for _, a := range k.addresses {
		x.owners[a] = append(x.owners[a], key)
	}
}

func (x *index) remove(key PodKey) {
	k := x.pods[key]
	delete(x.pods, key)
	if k.class.pods--; k.class.pods == 0 {
		delete(x.classes, k.class.key)
	}
	for _, port := range x.declares(k.pod) {
		d := x.declaredAt(port, k.pod)
		if x.declaring[d]--; x.declaring[d] == 0 {
			delete(x.declaring, d)
		}
	}
	for _, a := range k.addresses {
		if x.owners[a] = slices.DeleteFunc(x.owners[a], func(o PodKey) bool { return o == key }); len(x.owners[a]) == 0 {
			delete(x.owners, a)
		}
	}
}

// declares returns the pod's ports with names that rules use.
func (x *index) declares(pod *Pod) (found []declaredPort) {
	if len(x.names) == 0 {
		return nil
	}
	for _, p := range pod.Ports {
		if _, used := x.names[p.Name]; used {
			found = append(found, declaredPort{p.Name, p.Protocol, p.Port})
		}
	}
	return found
}

// declaredAt leaves out the namespace if no rule depends on it.
func (x *index) declaredAt(port declaredPort, pod *Pod) declaredAt {
	if !x.names[port.name] {
		return declaredAt{port, ""}
	}
	return declaredAt{port, pod.Namespace}
}

func (x *index) classKey(pod *Pod) string {
	key := x.sets.terms.pods.key(pod)
	for _, d := range x.declares(pod) {
		key = d.append(append(key, 'd'))
	}
	return string(key)
}

// of returns the sets that an address is in.
func (x *index) of(addr netip.Addr) []SetID {
	owners := x.owners[addr]
	if len(owners) == 0 {
		return nil
	}
	k := x.pods[owner(owners, func(key PodKey) bool { return x.links[key] != "" })]
	at, exact := slices.BinarySearchFunc(x.cuts, addr, netip.Addr.Compare)
	if exact {
		at++
	}
	unsure := k.pod.mayHave(addr)
	if unsure && len(owners) > 1 {
		return x.ofSeveral(addr, at, k, owners)
	}
	found := k.class.ids[boolByte(unsure)]
	ids, done := found[at]
	if !done {
		inside := x.insideOf(addr, at)
		ids = x.sets.of(inside, unsure, x.match(k, inside, unsure))
		found[at] = ids
	}
	return ids
}

// ofSeveral is of for an address that several pods may have, and none certainly. Pods of one class count once.
func (x *index) ofSeveral(addr netip.Addr, at int, first *known, owners []PodKey) []SetID {
	inside, seen := x.insideOf(addr, at), map[*class]bool{first.class: true}
	matches := []match{x.match(first, inside, true)}
	for _, key := range owners {
		if k := x.pods[key]; !seen[k.class] && k.pod.mayHave(addr) {
			seen[k.class] = true
			matches = append(matches, x.match(k, inside, true))
		}
	}
	return x.sets.of(inside, true, matches...)
}

// insideOf reports, by network number, whether addr is inside; at is its position among the cuts.
func (x *index) insideOf(addr netip.Addr, at int) []bool {
	if x.inside[at] == nil {
		x.inside[at] = x.sets.terms.inside(x.nets, addr)
	}
	return x.inside[at]
}

func (x *index) match(k *known, inside []bool, unsure bool) match {
	byLabels := k.class.terms
	if unsure {
		byLabels = x.sets.terms.unsure(byLabels)
	}
	return x.sets.terms.match(k.pod, byLabels, inside, unsure)
}
