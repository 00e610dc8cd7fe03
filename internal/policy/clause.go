package policy

import (
	"cmp"
	"slices"
)

// clause is what a rule matches peers by.
type clause struct {
	any   bool
	terms []int32 // ascending
	nets  int32   // of any address
}

// span is a range of ports of a protocol, both inclusive.
type span struct {
	protocol    uint8
	first, last uint16
}

func (s span) whole() bool { return s.first == 0 && s.last == lastPort }

// item is a rule of a subject's policies with ports that are resolved. One rule becomes several if a port's name narrows its peers.
type item struct {
	clause  *clause
	verdict Verdict
	pass    bool
	anyPort bool
	spans   []span // ascending
}

// clauseKey names a rule with the port that its peers must declare.
type clauseKey struct {
	policy    int
	direction Direction
	rule      int
	declared  int32
}

// clause resolves a rule's peers, once for all subjects.
func (c *compiler) clause(k clauseKey) *clause {
	if cl := c.clauses[k]; cl != nil {
		return cl
	}
	rule := &c.policies[k.policy].Rules[k.direction][k.rule]
	cl := &clause{nets: none}
	var nets ranges
	for _, peer := range rule.Peers {
		if peer.Pods == nil {
			nets = append(nets, c.networks(peer)...)
			continue
		}
		// Of a namespace that is not known the pods have no rights, and nothing that is denied.
		selection := c.terms.pods.add(*peer.Pods, rule.Action == Deny)
		cl.terms = append(cl.terms, c.terms.add(term{selection, none, k.declared}))
	}
	id := c.terms.addNets(normal(nets))
	switch {
	case k.declared == none:
		cl.any, cl.nets = rule.AnyPeer, id
	case rule.AnyPeer:
		cl.terms = []int32{c.terms.add(term{none, none, k.declared})}
	case id != none:
		cl.terms = append(cl.terms, c.terms.add(term{none, id, k.declared}))
	}
	slices.Sort(cl.terms)
	cl.terms = slices.Compact(cl.terms)
	c.clauses[k] = cl
	return cl
}

func (c *compiler) networks(peer Peer) ranges {
	if peer.Nodes == nil && !peer.Net.IsValid() {
		return nil
	}
	if peer.Nodes == nil {
		return minus(ranges{rangeOf(peer.Net)}, rangesOf(peer.Except))
	}
	var nets ranges
	for _, node := range c.state.Nodes {
		for _, a := range node.Addresses {
			if peer.Nodes.Matches(node.Labels) && a.IsValid() {
				nets = append(nets, Range{a.Unmap().WithZone(""), a.Unmap().WithZone("")})
			}
		}
	}
	return nets
}

// items resolves a rule for a subject.
func (c *compiler) items(policy int, d Direction, rule int, subject *Pod) []item {
	p := c.policies[policy]
	r := &p.Rules[d][rule]
	it := item{clause: c.clause(clauseKey{policy, d, rule, none}), pass: r.Action == Pass, verdict: Verdict{Allow: r.Action == Allow}}
	if r.Action == Deny {
		it.verdict.By = p.ID
	}
	if r.AnyPort {
		it.anyPort = true
		return []item{it}
	}
	var found []item
	for _, port := range r.Ports {
		switch {
		case port.Name == "":
			it.spans = append(it.spans, span{port.Protocol, port.First, port.Last})
		case d == Ingress:
			it.spans = append(it.spans, named(subject, port)...)
		default:
			found = append(found, c.narrowed(clauseKey{policy, d, rule, none}, it, port)...)
		}
	}
	if len(it.spans) > 0 {
		it.spans = normalSpans(it.spans)
		found = append(found, it)
	}
	return found
}

// named are the ports that the pod declares under the name.
func named(pod *Pod, port Port) (spans []span) {
	for _, p := range pod.Ports {
		if p.matches(port) {
			spans = append(spans, span{p.Protocol, p.Port, p.Port})
		}
	}
	return spans
}

func (p NamedPort) matches(port Port) bool {
	return p.Name == port.Name && (port.Protocol == 0 || p.Protocol == port.Protocol)
}

// narrowed has an item for each number that a pod declares under the name whose namespace a peer may be in: the peers are those that declare it.
// What pods of other namespaces declare, which may be thousands of numbers, must not make the program any larger.
func (c *compiler) narrowed(k clauseKey, it item, port Port) (found []item) {
	rule := &c.policies[k.policy].Rules[k.direction][k.rule]
	var last declaredPort
	for _, d := range c.declared[port.Name] {
		if port.Protocol != 0 && port.Protocol != d.protocol || d.declaredPort == last || !rule.mayBeIn(d.namespace) {
			continue
		}
		last = d.declaredPort
		k.declared = c.terms.addDeclared(d.declaredPort)
		it.clause, it.spans = c.clause(k), []span{{d.protocol, d.port, d.port}}
		found = append(found, it)
	}
	return found
}

// mayBeIn reports that peers may be pods of the namespace.
func (r *Rule) mayBeIn(namespace string) bool {
	return r.AnyPeer || slices.ContainsFunc(r.Peers, func(p Peer) bool {
		return p.Pods == nil || p.Pods.Namespace == "" || p.Pods.Namespace == namespace
	})
}

// normalSpans puts spans in order and joins those that touch. It changes its argument.
func normalSpans(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.first, b.first), cmp.Compare(a.last, b.last))
	})
	joined := spans[:0]
	for _, s := range spans {
		if n := len(joined) - 1; n >= 0 && joined[n].protocol == s.protocol && int(s.first) <= int(joined[n].last)+1 {
			joined[n].last = max(joined[n].last, s.last)
			continue
		}
		joined = append(joined, s)
	}
	return joined
}
