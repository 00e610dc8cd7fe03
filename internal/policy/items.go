package policy

import (
	"cmp"
	"slices"
)

// item is a rule of a subject's policies with resolved ports. A rule becomes several items if a port's name narrows its
// peers.
type item struct {
	clause  *clause
	verdict Verdict
	pass    bool
	bounded bool // its size counts: its author is a user of one namespace
	ports   portSet
	sources portSet
}

// variant is a set of ports with the ports that the peers must declare, and must not.
type variant struct {
	portSet
	declared, absent int32
}

// itemsOnce is items with a cache for rules that are the same for all subjects.
func (c *compiler) itemsOnce(k ruleKey, subject *Pod) []item {
	if found, known := c.ofAll[k]; known {
		return found
	}
	found := c.items(k, subject)
	if !slices.Contains(c.tells(k.policy, k.direction), k.rule) {
		c.ofAll[k] = found
	}
	return found
}

// items resolves a rule for a subject.
func (c *compiler) items(k ruleKey, subject *Pod) (found []item) {
	p, r := &c.policies[k.policy], c.rule(k)
	it := item{pass: r.Action == Pass, verdict: Verdict{Allow: r.Action == Allow}, bounded: p.Namespace != ""}
	if r.Action == Deny {
		it.verdict.By = p.ID
	}
	destination, source := named{ports: r.Ports, except: r.Except}, named{r.Sources == nil, r.Sources, r.ExceptSources}
	if r.AnyPort {
		destination = named{any: true, except: r.Except}
	}
	for _, family := range c.families(r, subject) {
		key := clauseKey{ruleKey: k, family: family, declared: none, absent: none}
		if k.direction == Ingress {
			it.ports = destination.of(subject)
			for _, v := range c.variants(key, source) {
				it.sources = v.portSet
				found = append(found, c.item(key, it, v))
			}
			continue
		}
		it.sources = source.of(subject)
		for _, v := range c.variants(key, destination) {
			it.ports = v.portSet
			found = append(found, c.item(key, it, v))
			for _, at := range c.servicePorts(r) {
				key.service = at
				it.ports = v.only(span{at.Protocol, at.Port, at.Port})
				found = append(found, c.item(key, it, v))
			}
			key.service = Packet{}
		}
	}
	return slices.DeleteFunc(found, func(it item) bool { return it.ports.empty() || it.sources.empty() })
}

func (c *compiler) item(k clauseKey, it item, v variant) item {
	k.declared, k.absent = v.declared, v.absent
	it.clause = c.clause(k)
	return it
}

// servicePorts returns the protocols and ports of the services among the peers, ascending.
func (c *compiler) servicePorts(r *Rule) (all []Packet) {
	for _, p := range r.Peers {
		if p.Service == nil {
			continue
		}
		for _, e := range c.state.Services[*p.Service] {
			if e.Protocol != 0 {
				all = append(all, Packet{Protocol: e.Protocol, Port: e.Port})
			}
		}
	}
	slices.SortFunc(all, func(a, b Packet) int { return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port)) })
	return slices.Compact(all)
}

// families returns the families in which a rule may match packets of the subject, or 0 for both together.
func (c *compiler) families(r *Rule, subject *Pod) (found []uint8) {
	all := []uint8{4, 6}
	if r.Family != 0 {
		all = []uint8{r.Family}
	}
	for _, f := range all {
		if r.Own == nil || subject.host != nil || c.own(r, subject, f) {
			found = append(found, f)
		}
	}
	if len(found) == 2 {
		return []uint8{0}
	}
	return found
}

// own reports whether the subject's own end matches in a family, as Match.ofOwn does.
func (c *compiler) own(r *Rule, subject *Pod, family uint8) bool {
	m, deny := r.Own, r.Action == Deny
	all := subject.addresses()
	selected, nets, sets := false, m.networks(), ranges(nil)
	if m.Select != nil {
		selected = m.Select.selects(c.directory, subject, deny != m.Not)
		sets = c.selectedNets(m.Select, deny != m.Not)
	}
	if len(all) == 0 && m.readsAddresses(sets) {
		return deny
	}
	matches := func(inside, ofSets bool) bool { return inside && (m.Select == nil || (selected || ofSets) != m.Not) }
	known, matching := 0, 0
	for _, a := range all {
		if familyOf(a) != family {
			continue
		}
		if known++; matches(nets.contains(a), sets.contains(a)) {
			matching++
		}
	}
	switch {
	case known == 0:
		return matches(m.Nets == nil, false)
	case deny:
		return matching > 0
	}
	return matching == known
}

// readsAddresses reports whether more than labels decides; selected are the networks that m selects.
func (m *Match) readsAddresses(selected ranges) bool {
	return m.Nets != nil || len(m.NotNets)+len(selected) > 0
}

// named are ports of one end of a rule.
type named struct {
	any           bool
	ports, except []Port
}

// of resolves the ports for a pod.
func (n named) of(pod *Pod) portSet {
	return newPortSet(n.any, resolved(n.ports, pod), resolved(n.except, pod))
}

// resolved returns the spans of numbered ports, and of the named ports that the pod declares, unless it is nil.
func resolved(ports []Port, pod *Pod) (spans []span) {
	for _, p := range ports {
		switch {
		case p.Name == "":
			spans = append(spans, span{p.Protocol, p.First, p.Last})
		case pod != nil:
			spans = append(spans, pod.named(p)...)
		}
	}
	return spans
}

// named returns the ports that the pod declares under the name.
func (p *Pod) named(port Port) (spans []span) {
	for _, d := range p.Ports {
		if d.matches(port) {
			spans = append(spans, span{d.Protocol, d.Port, d.Port})
		}
	}
	return spans
}

func (p NamedPort) matches(port Port) bool {
	return p.Name == port.Name && (port.Protocol == 0 || p.Protocol == port.Protocol)
}

// variants resolves ports of the peers' end. First come named ports, a set for each number that a peer may declare
// under the name, then the others. Declarations of pods that are no peers, which may be thousands of numbers, must not
// enlarge the program. A number that peers may declare under an excepted name has a set of its own, for peers that do
// not declare it.
func (c *compiler) variants(k clauseKey, n named) (found []variant) {
	r := c.rule(k.ruleKey)
	excepted := c.declaredAs(r, n.except)
	slices.SortFunc(excepted, declaredPort.compare)
	excepted = slices.Compact(excepted)
	apart := make([]span, len(excepted))
	for i, d := range excepted {
		apart[i] = span{d.protocol, d.port, d.port}
	}
	numbers := newPortSet(n.any, resolved(n.ports, nil), resolved(n.except, nil))
	except := newPortSet(true, nil, resolved(n.except, nil))
	for _, d := range c.declaredAs(r, n.ports) {
		set := except.only(span{d.protocol, d.port, d.port})
		found = append(found, variant{set, c.terms.addDeclared(d), c.absent(excepted, d)})
	}
	found = append(found, variant{numbers.without(normalSpans(slices.Clone(apart))), none, none})
	for i, d := range excepted {
		if i == 0 || apart[i] != apart[i-1] {
			found = append(found, variant{numbers.only(apart[i]), none, c.absent(excepted, d)})
		}
	}
	return slices.DeleteFunc(found, func(v variant) bool { return v.empty() })
}

// declaredAs returns the ports that peers may declare under the names of ports.
func (c *compiler) declaredAs(r *Rule, ports []Port) (found []declaredPort) {
	for _, p := range ports {
		var last declaredPort
		for _, d := range c.declared[p.Name] {
			if (p.Protocol == 0 || p.Protocol == d.protocol) && d.declaredPort != last && c.mayBeIn(r, d.namespace) {
				last = d.declaredPort
				found = append(found, last)
			}
		}
	}
	return found
}

func (d declaredPort) compare(other declaredPort) int {
	return cmp.Or(cmp.Compare(d.protocol, other.protocol), cmp.Compare(d.port, other.port), cmp.Compare(d.name, other.name))
}

// absent returns the number of the set of excepted ports with the protocol and port of at.
func (c *compiler) absent(excepted []declaredPort, at declaredPort) int32 {
	var same []declaredPort
	for _, d := range excepted {
		if d.protocol == at.protocol && d.port == at.port {
			same = append(same, d)
		}
	}
	return c.terms.addAbsent(same)
}

// mayBeIn reports whether peers may be pods of the namespace, or host endpoints, which have none.
func (c *compiler) mayBeIn(r *Rule, namespace string) bool {
	if namespace == "" && !r.HostPorts {
		return false
	}
	return r.AnyPeer || slices.ContainsFunc(r.Peers, func(p Peer) bool {
		of := p.namespace()
		return of == "" || of == namespace || p.Match != nil && len(c.selectedNets(p.Match.Select, r.Action == Deny)) > 0
	})
}

// namespace returns the one namespace of all pods that the peer selects, or "". Network sets may have addresses of
// other pods.
func (p *Peer) namespace() string {
	switch {
	case p.Pods != nil:
		return p.Pods.Namespace
	case p.Match != nil && p.Match.Select != nil && !p.Match.Not:
		return p.Match.Select.Namespace
	}
	return ""
}
