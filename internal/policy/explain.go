package policy

import (
	"net/netip"
	"slices"
)

// Party is an end of a connection: a pod, or an address. The address of a pod stands for the pod.
type Party struct {
	Pod     PodKey     // zero: none
	Address netip.Addr // may be missing for a pod: then its first address of the other party's family counts
}

// Explanation is the verdict on a connection, with the reasons. A connection between two addresses of no pod is
// allowed.
type Explanation struct {
	Allow   bool
	Egress  *Judgement // nil: the source is no pod
	Ingress *Judgement // nil: the destination is no pod
}

// Judgement is the outcome for one pod and direction.
type Judgement struct {
	Pod       PodKey
	Direction Direction
	Verdict   Verdict
	// Tier and Policy decided, by the rule with index Rule. Rule is -1 if no rule matched: then the tier's policies
	// isolate the pod, and Policy is the first of them. Without a Tier no rule matched and nothing isolates the pod; if it
	// is denied then, the labels of its namespace are not known yet.
	Tier     string
	Policy   ID
	Rule     int
	RuleName string
	// Logs are the Log rules that matched before the deciding rule, in the order of evaluation.
	Logs []LogRule
	// Selecting are the policies that select the pod in this direction, in the order of evaluation.
	Selecting []ID
}

// Explain judges a connection by the policies themselves: the egress of the source pod and the ingress of the
// destination pod.
func Explain(state State, from, to Party, packet Packet) Explanation {
	state.Policies = ordered(state.Policies)
	from, to = from.known(state), to.known(state)
	from.Address, to.Address = from.address(state, to), to.address(state, from)
	e := Explanation{Allow: true}
	if pod := state.Pods[from.Pod]; pod != nil {
		e.Egress = judge(state, pod, connection{Egress, to, state.Pods[to.Pod], state.others(to), packet, nil})
		e.Allow = e.Egress.Verdict.Allow
	}
	if pod := state.Pods[to.Pod]; pod != nil {
		e.Ingress = judge(state, pod, connection{Ingress, from, state.Pods[from.Pod], state.others(from), packet, nil})
		e.Allow = e.Allow && e.Ingress.Verdict.Allow
	}
	return e
}

// known adds the pod to a party that is only an address.
func (p Party) known(state State) Party {
	p.Address = p.Address.Unmap()
	if p.Pod != (PodKey{}) || !p.Address.IsValid() {
		return p
	}
	var owners []PodKey
	for key, pod := range state.Pods {
		if slices.Contains(pod.claimed(), p.Address) {
			owners = append(owners, key)
		}
	}
	if len(owners) > 0 {
		local := map[PodKey]bool{}
		for _, key := range state.Local {
			local[key] = true
		}
		p.Pod = owner(owners, func(key PodKey) bool { return local[key] })
	}
	return p
}

func (p Party) address(state State, other Party) netip.Addr {
	pod := state.Pods[p.Pod]
	if p.Address.IsValid() || pod == nil {
		return p.Address
	}
	families := []netip.Addr{other.Address}
	if peer := state.Pods[other.Pod]; peer != nil && !other.Address.IsValid() {
		families = peer.addresses()
	}
	own := pod.addresses()
	for _, a := range own {
		if slices.ContainsFunc(families, func(f netip.Addr) bool { return f.BitLen() == a.BitLen() }) {
			return a
		}
	}
	return netip.Addr{}
}

// connection is a connection as a pod or host endpoint sees it.
type connection struct {
	direction Direction
	peer      Party
	pod       *Pod // of the peer; nil: the peer is no pod
	// others are further pods that may have the peer's address, if it is certain for no pod; a nil element stands for no
	// pod.
	others []*Pod
	Packet
	host *hostEnd // nil: the subject is a pod
}

// judge returns the judgement of a subject; it expects State.Policies in the order of evaluation.
func judge(state State, subject *Pod, c connection) *Judgement {
	j := &Judgement{Pod: subject.PodKey, Direction: c.direction, Rule: -1, Verdict: Verdict{Allow: true}}
	var selecting []*Policy
	for i := range state.Policies {
		p := &state.Policies[i]
		if p.HostsOnly() {
			continue
		}
		yes := p.Subject.selects(state.directory(), subject, true)
		if yes != p.Subject.selects(state.directory(), subject, false) {
			j.Verdict = Verdict{}
			return j
		}
		if yes && p.Applies[c.direction] {
			selecting = append(selecting, p)
			j.Selecting = append(j.Selecting, p.ID)
		}
	}
	j.decide(state, subject, selecting, c)
	return j
}

// decide fills in the judgement; it expects the policies that select the pod, in the order of evaluation.
func (j *Judgement) decide(state State, subject *Pod, selecting []*Policy, c connection) {
	split := false // an earlier tier decided for one of the peer's possible pods, so nothing more is logged
	for len(selecting) > 0 {
		n, logs := 1, j.Logs
		for n < len(selecting) && selecting[n].Tier == selecting[0].Tier {
			n++
		}
		decided, one := j.tier(state, subject, selecting[:n], c)
		if split {
			j.Logs = logs
		}
		if decided {
			return
		}
		split = split || one
		selecting = selecting[n:]
	}
}

// others returns the other pods that may have the party's address, and nil for no pod, if the address is not certain
// for its pod.
func (state State) others(p Party) (found []*Pod) {
	pod := state.Pods[p.Pod]
	if pod == nil || !pod.mayHave(p.Address) {
		return nil
	}
	for key, other := range state.Pods {
		if key != p.Pod && other.mayHave(p.Address) {
			found = append(found, other)
		}
	}
	return append(found, nil)
}

// tier reports whether the policies of a tier decide. If several pods may have the peer's address a denial of one
// counts first, then one that the tier leaves to the next tier. one: the tier decides for one of them at least.
func (j *Judgement) tier(state State, subject *Pod, policies []*Policy, c connection) (decided, one bool) {
	before := *j
	j.Logs = nil
	decided = j.tierOf(state, subject, policies, c)
	one = decided
	for _, pod := range c.others {
		c.pod = pod
		k := before
		k.Logs = nil
		is := k.tierOf(state, subject, policies, c)
		one = one || is
		logs := slices.DeleteFunc(j.Logs, func(l LogRule) bool { return !slices.Contains(k.Logs, l) })
		if is && !k.Verdict.Allow && (!decided || j.Verdict.Allow) || !is && decided && j.Verdict.Allow {
			*j, decided = k, is
		}
		j.Logs = logs
	}
	j.Logs = append(before.Logs, j.Logs...)
	return decided, one
}

// tierOf is tier for one possible pod of the peer.
func (j *Judgement) tierOf(state State, subject *Pod, policies []*Policy, c connection) bool {
	for _, p := range policies {
		for i, rule := range p.Rules[c.direction] {
			if !rule.matches(state, subject, c) {
				if !rule.doubtful(c.alone()) {
					continue
				}
				if rule = *rule.denying(); !rule.matches(state, subject, c) {
					continue
				}
			}
			if rule.Action == Log {
				j.Logs = append(j.Logs, LogRule{p.ID, i})
				continue
			}
			if rule.Action == Pass {
				return false
			}
			j.Tier, j.Policy, j.Rule, j.RuleName = p.Tier.Name, p.ID, i, rule.Name
			if j.Verdict = (Verdict{Allow: rule.Action == Allow}); rule.Action == Deny {
				j.Verdict.By = p.ID
			}
			return true
		}
	}
	first := policies[0]
	if first.Tier.End == Pass || c.host != nil && c.host.passes {
		return false
	}
	j.Tier, j.Policy, j.Verdict = first.Tier.Name, first.ID, Verdict{By: first.ID}
	return true
}

// alone reports whether each rule is a segment of its own.
func (c connection) alone() bool { return c.host != nil && c.host.peers != nil }

// matches reports whether the rule matches. In a segment a Deny matches an end of several possible pods if it matches
// one of them, another rule if it matches all.
func (r *Rule) matches(state State, subject *Pod, c connection) bool {
	if !c.alone() {
		return r.matchesOne(state, subject, c)
	}
	deny, host := r.Action == Deny, *c.host
	for _, c.pod = range c.host.peers {
		for _, host.pod = range c.host.pods {
			if r.matchesOne(state, subject, connection{c.direction, c.peer, c.pod, nil, c.Packet, &host}) == deny {
				return deny
			}
		}
	}
	return !deny
}

func (r *Rule) matchesOne(state State, subject *Pod, c connection) bool {
	family := familyOf(c.peer.Address)
	if r.Family != 0 && r.Family != family || !r.ownMatches(state, subject, c) {
		return false
	}
	peer := r.AnyPeer || slices.ContainsFunc(r.Peers, func(p Peer) bool { return p.matches(state, c, r.Action) })
	own, other := end{pod: subject}, end{pod: c.pod, addr: c.peer.Address}
	if c.pod != nil && c.pod.mayHave(c.peer.Address) && !r.Action.countsUnsure() {
		other.anyOf = state.Pods
	}
	if r.HostPorts {
		other.hosts = state.HostEndpoints
	}
	source, destination := other, own
	if c.direction == Egress {
		source, destination = own, other
	}
	return peer && (r.AnyPort || destination.matches(r.Ports, c.Protocol, c.Port)) && !destination.mayMatch(r.Except, c.Protocol, c.Port) &&
		(r.Sources == nil || source.matches(r.Sources, c.Protocol, c.SourcePort)) && !source.mayMatch(r.ExceptSources, c.Protocol, c.SourcePort)
}

// ownMatches reports whether the subject's end matches.
func (r *Rule) ownMatches(state State, subject *Pod, c connection) bool {
	switch {
	case r.Own == nil:
		return true
	case c.host != nil:
		return r.Own.matches(state, c.host.addr, c.host.pod, r.Action)
	}
	return r.Own.ofOwn(state, subject, familyOf(c.peer.Address), r.Action)
}

func (p *Peer) matches(state State, c connection, action Action) bool {
	addr := c.peer.Address
	switch {
	case p.Pods != nil:
		return c.pod != nil && (action.countsUnsure() || !c.pod.mayHave(addr)) && p.Pods.selects(state.directory(), c.pod, action == Deny)
	case p.Nodes != nil:
		for _, node := range state.Nodes {
			if p.Nodes.Matches(node.Labels) && slices.ContainsFunc(node.Addresses, func(a netip.Addr) bool { return a.Unmap() == addr }) {
				return true
			}
		}
		return false
	case p.Service != nil:
		return slices.ContainsFunc(state.Services[*p.Service], func(e ServiceEndpoint) bool {
			at := e.Protocol != 0 && e.Protocol == c.Protocol && e.Port == c.Port
			return e.Address.Unmap() == addr && (at || c.direction == Ingress)
		})
	case p.Match != nil:
		return p.Match.matches(state, addr, c.pod, action)
	}
	return contains([]netip.Prefix{p.Net}, addr) && !contains(p.Except, addr)
}

func contains(nets []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(nets, func(n netip.Prefix) bool { return n.Contains(addr) })
}

// matches reports whether an address matches; pod has the address, or may have it, or is nil. While labels are not
// known, a Deny matches what they might select.
func (m *Match) matches(state State, addr netip.Addr, pod *Pod, action Action) bool {
	if m.Nets != nil && !contains(m.Nets, addr) || contains(m.NotNets, addr) {
		return false
	}
	if m.Select == nil {
		return true
	}
	d, unknown := state.directory(), (action == Deny) != m.Not
	selected := pod != nil && m.Select.selects(d, pod, unknown)
	if pod != nil && pod.mayHave(addr) && !action.countsUnsure() {
		selected = m.Not
	}
	for i := 0; i < len(state.Sets) && !selected; i++ {
		s := &state.Sets[i]
		selected = m.Select.hasSet(d, s, unknown) && s.contains(addr, m.Select.Owner, unknown)
	}
	for i := 0; i < len(state.HostEndpoints) && !selected; i++ {
		h := &state.HostEndpoints[i]
		selected = h.has(addr) && m.Select.hasHost(d, h, unknown)
	}
	return selected != m.Not
}

// contains reports whether the set has an address, for a policy of the namespace owner.
func (s *NetworkSet) contains(addr netip.Addr, owner string, unknown bool) bool {
	if s.Namespace == owner {
		return contains(s.Nets, addr) || contains(s.Private, addr)
	}
	return contains(s.Nets, addr) || unknown && s.wide().contains(addr)
}

// ofOwn reports whether the pod's own addresses of a family match, or all if family is 0. Without an address of the
// family the pod's labels decide.
func (m *Match) ofOwn(state State, pod *Pod, family uint8, action Action) bool {
	deny := action == Deny
	all := pod.addresses()
	if len(all) == 0 {
		var selected ranges
		if m.Select != nil {
			selected = newNetworkSets(state).selects(m.Select, deny != m.Not).nets
		}
		if m.readsAddresses(selected) {
			return deny
		}
	}
	if all = slices.DeleteFunc(all, func(a netip.Addr) bool { return family != 0 && familyOf(a) != family }); len(all) == 0 {
		all = []netip.Addr{{}}
	}
	for _, a := range all {
		if m.matches(state, a, pod, action) == deny {
			return deny
		}
	}
	return !deny
}

// familyOf returns 4 or 6, or 0 for an invalid address.
func familyOf(a netip.Addr) uint8 {
	switch {
	case a.Is4():
		return 4
	case a.IsValid():
		return 6
	}
	return 0
}

// end is one end of a connection, for matching its ports: a pod, or an address that host endpoints may have, too.
type end struct {
	pod   *Pod
	addr  netip.Addr
	hosts []HostEndpoint
	// anyOf are the pods of which the end may be any; nil: the end is certainly pod, or counts as it.
	anyOf map[PodKey]*Pod
}

// matches reports whether a number is one of the ports.
func (e end) matches(ports []Port, protocol uint8, number uint16) bool {
	return slices.ContainsFunc(ports, func(p Port) bool {
		if p.Name == "" {
			return p.Protocol == protocol && p.First <= number && number <= p.Last
		}
		return e.declares(func(d NamedPort) bool { return d.matches(p) && d.Protocol == protocol && d.Port == number })
	})
}

// mayMatch is matches, but an end that may be any of several pods declares the ports of all.
func (e end) mayMatch(ports []Port, protocol uint8, number uint16) bool {
	for _, pod := range e.anyOf {
		if (end{pod: pod}).matches(ports, protocol, number) {
			return true
		}
	}
	return e.matches(ports, protocol, number)
}

func (e end) declares(port func(NamedPort) bool) bool {
	if e.anyOf != nil {
		return false
	}
	if e.pod != nil {
		return slices.ContainsFunc(e.pod.Ports, port)
	}
	return slices.ContainsFunc(e.hosts, func(h HostEndpoint) bool { return h.has(e.addr) && slices.ContainsFunc(h.Ports, port) })
}

func (h *HostEndpoint) has(addr netip.Addr) bool {
	return slices.ContainsFunc(h.Addresses, func(a netip.Addr) bool { return a.IsValid() && a.Unmap() == addr })
}
