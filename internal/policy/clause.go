package policy

import (
	"iter"
	"net/netip"
	"slices"
)

// clause is the peers that a rule matches.
type clause struct {
	any   bool
	terms []int32 // ascending
	nets  int32   // they match any address
	outer int32   // nets, and networks that match only addresses of no pod
	// counted is how many ranges count into the limits of a namespace: all of its own policies and network sets, and few
	// of others.
	counted int
}

// clauseKey names a rule and what narrows its peers.
type clauseKey struct {
	ruleKey
	family   uint8
	declared int32 // the port that the peers must declare
	absent   int32 // the ports that they must not declare
	service  Packet
	own      bool // the clause of the rule's Own
}

// peers are a rule's matches before narrow.
type peers struct {
	any   bool
	terms []term
	// nets match any address, foreign only addresses that no pod has.
	nets, foreign ranges
	counted       int
}

// clause returns a rule's peers, resolved once for all subjects.
func (c *compiler) clause(k clauseKey) *clause {
	if cl := c.clauses[k]; cl != nil {
		return cl
	}
	rule := c.rule(k.ruleKey)
	p := peers{any: rule.AnyPeer && k.service == (Packet{}) && !k.own}
	if k.own {
		c.addMatch(&p, rule.Own, k)
	}
	for i := range rule.Peers {
		if peer := &rule.Peers[i]; !p.any && !k.own && (k.service == (Packet{}) || peer.Service != nil) {
			c.addPeer(&p, peer, k)
		}
	}
	p.nets, p.foreign = normal(p.nets), normal(p.foreign)
	c.narrow(&p, k)
	cl := &clause{any: p.any, nets: c.terms.addNets(p.nets)}
	for _, t := range p.terms {
		t.unsure = rule.Action.countsUnsure()
		cl.terms = append(cl.terms, c.terms.add(t))
	}
	slices.Sort(cl.terms)
	cl.terms = slices.Compact(cl.terms)
	if cl.outer = cl.nets; len(p.foreign) > 0 {
		cl.outer = c.terms.addNets(union(p.nets, p.foreign))
	}
	cl.counted = min(p.counted, c.rangesIn(cl.outer))
	c.clauses[k] = cl
	return cl
}

func (c *compiler) rule(k ruleKey) *Rule {
	r := &c.policies[k.policy].Rules[k.direction][k.rule]
	if k.doubt {
		return r.denying()
	}
	return r
}

// keys yields the keys of the first rules of a policy, with the Deny after each doubtful Pass. alone: each rule has a
// segment.
func (c *compiler) keys(d Direction, policy, rules int, alone bool) iter.Seq[ruleKey] {
	return func(yield func(ruleKey) bool) {
		for i := range rules {
			k := ruleKey{policy: policy, direction: d, rule: i}
			if !yield(k) {
				return
			}
			if k.doubt = c.rule(k).doubtful(alone); k.doubt && !yield(k) {
				return
			}
		}
	}
}

// doubtful reports whether r is a Pass that reads labels, or the pod's own addresses, which may not be known yet. Rules
// later in the tier could allow what it would have passed on, so a Deny of what may match by the unknown part follows
// it. alone: also if it may match only some of the pods that may have an address.
func (r *Rule) doubtful(alone bool) bool {
	reads := func(p *Pods) bool {
		return p != nil && (alone || p.readsNamespaces() || p.readsUnknown(&selectable{}))
	}
	// A selection of several namespaces includes their network sets, of which not all may count.
	match := func(m *Match) bool {
		return m != nil && m.Select != nil && (reads(m.Select) || m.Select.Namespace == "")
	}
	if r.Action != Pass {
		return false
	}
	named := alone && slices.ContainsFunc(slices.Concat(r.Ports, r.Except, r.Sources, r.ExceptSources), Port.named)
	return named || r.Own != nil || slices.ContainsFunc(r.Peers, func(p Peer) bool { return reads(p.Pods) || match(p.Match) })
}

// denying returns the rule as a Deny.
func (r *Rule) denying() *Rule {
	deny := *r
	deny.Action = Deny
	return &deny
}

// addPeer adds a peer. While labels are not known, pods that they might select match a Deny, and no other rule.
func (c *compiler) addPeer(p *peers, peer *Peer, k clauseKey) {
	before := len(p.nets)
	switch {
	case peer.Pods != nil:
		p.terms = append(p.terms, c.selection(peer.Pods, c.rule(k.ruleKey).Action == Deny))
	case peer.Match != nil:
		c.addMatch(p, peer.Match, k)
		return
	case peer.Service != nil:
		p.nets = append(p.nets, c.service(*peer.Service, k)...)
	default:
		p.nets = append(p.nets, c.networks(peer)...)
	}
	p.counted += len(p.nets) - before
}

// selection returns the term of a selection of pods.
func (c *compiler) selection(pods *Pods, unknown bool) term {
	t := anyPod
	t.pods = c.terms.pods.add(*pods, unknown)
	return t
}

func (c *compiler) addMatch(p *peers, m *Match, k clauseKey) {
	p.counted += len(m.Nets) + len(m.NotNets)
	nets := m.networks()
	if m.Select == nil {
		p.nets = append(p.nets, nets...)
		p.any = p.any || slices.Equal(nets, everywhere)
		return
	}
	action := c.rule(k.ruleKey).Action
	t := c.selection(m.Select, (action == Deny) != m.Not)
	t.negated = m.Not
	from := c.selectedBy(m, action)
	p.counted += from.of(c.policies[k.policy].Namespace)
	selected := from.nets
	if m.Not {
		nets = minus(nets, selected)
		p.foreign = append(p.foreign, nets...)
	} else {
		p.nets = append(p.nets, intersection(nets, selected)...)
	}
	if t, ok := c.inside(t, nets); ok {
		p.terms = append(p.terms, t)
	}
}

// inside narrows a term to networks; ok is false if nothing is left.
func (c *compiler) inside(t term, nets ranges) (term, bool) {
	if t.nets != none {
		nets = intersection(c.terms.nets[t.nets], nets)
	}
	if !slices.Equal(nets, everywhere) {
		t.nets = c.terms.addNets(nets)
	}
	return t, len(nets) > 0
}

// networks returns the addresses in Nets and not in NotNets.
func (m *Match) networks() ranges {
	nets := everywhere
	if m.Nets != nil {
		nets = rangesOf(m.Nets)
	}
	return minus(nets, rangesOf(m.NotNets))
}

// selectedNets returns the addresses of the selected network sets and host endpoints.
func (c *compiler) selectedNets(pods *Pods, unknown bool) ranges {
	return c.networkSets().selects(pods, unknown).nets
}

// selectedBy returns the network sets and host endpoints that a rule's end selects.
func (c *compiler) selectedBy(m *Match, action Action) *selectedNetworks {
	return c.networkSets().selects(m.Select, (action == Deny) != m.Not)
}

// service returns the addresses of a service's endpoints; for egress only endpoints at the protocol and port.
func (c *compiler) service(s Service, k clauseKey) ranges {
	var all []netip.Addr
	for _, e := range c.state.Services[s] {
		if k.direction == Ingress || k.service == (Packet{Protocol: e.Protocol, Port: e.Port}) && e.Protocol != 0 {
			all = append(all, e.Address)
		}
	}
	return rangesOfAddresses(all)
}

func (c *compiler) networks(peer *Peer) ranges {
	if peer.Nodes == nil && !peer.Net.IsValid() {
		return nil
	}
	if peer.Nodes == nil {
		return minus(ranges{rangeOf(peer.Net)}, rangesOf(peer.Except))
	}
	var nets ranges
	for _, node := range c.state.Nodes {
		if peer.Nodes.Matches(node.Labels) {
			nets = append(nets, rangesOfAddresses(node.Addresses)...)
		}
	}
	return nets
}

func rangesOfAddresses(addresses []netip.Addr) (nets ranges) {
	for _, a := range addresses {
		if a.IsValid() {
			a = a.Unmap().WithZone("")
			nets = append(nets, Range{a, a})
		}
	}
	return normal(nets)
}

// narrow restricts the peers to a family, and to those that declare a port and do not declare others. A peer that is no
// pod may be a host endpoint.
func (c *compiler) narrow(p *peers, k clauseKey) {
	if p.any && (k.declared != none || k.absent != none || k.family != 0) {
		p.any, p.nets, p.foreign, p.terms = false, everywhere, nil, nil
	}
	if k.declared != none || k.absent != none {
		p.byPorts(c, k)
	}
	if within := families[k.family]; within != nil {
		p.nets, p.foreign = intersection(p.nets, within), intersection(p.foreign, within)
		var terms []term
		for _, t := range p.terms {
			if t, ok := c.inside(t, within); ok {
				terms = append(terms, t)
			}
		}
		p.terms = terms
	}
}

// byPorts turns all that pods match by into terms.
func (p *peers) byPorts(c *compiler, k clauseKey) {
	p.foreign = union(p.foreign, p.nets)
	if k.declared != none {
		p.foreign = intersection(p.foreign, c.hostsDeclaring(k, c.terms.declared[k.declared]))
	}
	if k.absent != none {
		p.foreign = minus(p.foreign, c.hostsDeclaring(k, c.terms.absent[k.absent]...))
	}
	if len(p.nets) > 0 {
		t, _ := c.inside(anyPod, p.nets)
		p.terms, p.nets = append(p.terms, t), nil
	}
	for i := range p.terms {
		p.terms[i].declared, p.terms[i].absent = k.declared, k.absent
	}
}

// hostsDeclaring returns the addresses of host endpoints that declare one of the ports, if host endpoints' ports count
// for the rule.
func (c *compiler) hostsDeclaring(k clauseKey, ports ...declaredPort) ranges {
	var all []netip.Addr
	if !c.rule(k.ruleKey).HostPorts {
		return nil
	}
	for _, h := range c.state.HostEndpoints {
		if slices.ContainsFunc(ports, func(d declaredPort) bool { return slices.Contains(h.Ports, NamedPort{d.name, d.protocol, d.port}) }) {
			all = append(all, h.Addresses...)
		}
	}
	return rangesOfAddresses(all)
}
