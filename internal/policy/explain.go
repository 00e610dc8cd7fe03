package policy

import (
	"net/netip"
	"slices"
)

// Party is an end of a connection: a pod, or an address. An address that a pod has stands for the pod.
type Party struct {
	Pod     PodKey     // zero: none
	Address netip.Addr // of a pod it may be missing: then it is the first that fits the other party
}

// Explanation says what becomes of a connection, and why. What neither party is a pod for is not decided by policies: allowed.
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
	// Tier and Policy decided, by the rule of that index, or, if it is -1, because the tier's policies isolate the pod, of which Policy is the
	// first. Without a Tier no rule matched and nothing isolates the pod; if it is denied then, the labels of its namespace are not known yet.
	Tier     string
	Policy   ID
	Rule     int
	RuleName string
	// Selecting are the policies that select the pod in this direction, in the order of evaluation.
	Selecting []ID
}

// Explain judges a connection by the policies themselves: the egress of the source, if it is a pod, and the ingress of the destination.
func Explain(state State, from, to Party, packet Packet) Explanation {
	from, to = from.known(state), to.known(state)
	from.Address, to.Address = from.address(state, to), to.address(state, from)
	e := Explanation{Allow: true}
	if pod := state.Pods[from.Pod]; pod != nil {
		e.Egress = judge(state, pod, connection{Egress, to, state.Pods[to.Pod], packet})
		e.Allow = e.Egress.Verdict.Allow
	}
	if pod := state.Pods[to.Pod]; pod != nil {
		e.Ingress = judge(state, pod, connection{Ingress, from, state.Pods[from.Pod], packet})
		e.Allow = e.Allow && e.Ingress.Verdict.Allow
	}
	return e
}

// known completes a party that is an address of a pod.
func (p Party) known(state State) Party {
	p.Address = p.Address.Unmap()
	if p.Pod != (PodKey{}) || !p.Address.IsValid() {
		return p
	}
	var owners []PodKey
	for key, pod := range state.Pods {
		if slices.Contains(pod.addresses(), p.Address) {
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

// connection is one as a pod sees it.
type connection struct {
	direction Direction
	peer      Party
	pod       *Pod // nil: the peer is none
	Packet
}

func judge(state State, subject *Pod, c connection) *Judgement {
	j := &Judgement{Pod: subject.PodKey, Direction: c.direction, Rule: -1, Verdict: Verdict{Allow: true}}
	var selecting []Policy
	for _, p := range ordered(state.Policies) {
		yes := p.Subject.selects(state.Namespaces, subject, true)
		if yes != p.Subject.selects(state.Namespaces, subject, false) {
			j.Verdict = Verdict{}
			return j
		}
		if yes && p.Applies[c.direction] {
			selecting = append(selecting, p)
			j.Selecting = append(j.Selecting, p.ID)
		}
	}
	for len(selecting) > 0 {
		n := 1
		for n < len(selecting) && selecting[n].Tier == selecting[0].Tier {
			n++
		}
		if j.tier(state, subject, selecting[:n], c) {
			break
		}
		selecting = selecting[n:]
	}
	return j
}

// tier reports whether the policies of a tier decide.
func (j *Judgement) tier(state State, subject *Pod, policies []Policy, c connection) bool {
	for _, p := range policies {
		for i, rule := range p.Rules[c.direction] {
			if !rule.matches(state, subject, c) {
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
	if first.Tier.End == Pass {
		return false
	}
	j.Tier, j.Policy, j.Verdict = first.Tier.Name, first.ID, Verdict{By: first.ID}
	return true
}

func (r *Rule) matches(state State, subject *Pod, c connection) bool {
	peer := r.AnyPeer || slices.ContainsFunc(r.Peers, func(p Peer) bool { return p.matches(state, c, r.Action == Deny) })
	return peer && (r.AnyPort || slices.ContainsFunc(r.Ports, func(p Port) bool { return p.matches(subject, c) }))
}

func (p *Peer) matches(state State, c connection, unknown bool) bool {
	addr := c.peer.Address
	switch {
	case p.Pods != nil:
		return c.pod != nil && p.Pods.selects(state.Namespaces, c.pod, unknown)
	case p.Nodes != nil:
		for _, node := range state.Nodes {
			if p.Nodes.Matches(node.Labels) && slices.ContainsFunc(node.Addresses, func(a netip.Addr) bool { return a.Unmap() == addr }) {
				return true
			}
		}
		return false
	}
	return p.Net.Contains(addr) && !slices.ContainsFunc(p.Except, func(e netip.Prefix) bool { return e.Contains(addr) })
}

func (p *Port) matches(subject *Pod, c connection) bool {
	if p.Name == "" {
		return p.Protocol == c.Protocol && p.First <= c.Port && c.Port <= p.Last
	}
	destination := subject
	if c.direction == Egress {
		destination = c.pod
	}
	return destination != nil && slices.ContainsFunc(destination.Ports, func(d NamedPort) bool {
		return d.matches(*p) && d.Protocol == c.Protocol && d.Port == c.Port
	})
}
