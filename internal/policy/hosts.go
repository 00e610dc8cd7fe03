package policy

import (
	"maps"
	"net/netip"
	"slices"
)

// AllInterfaces is the Interface of a host endpoint for all links of a node.
const AllInterfaces = "*"

// KindHostEndpoint is the kind of the ID that denies what no policy of a host endpoint decides.
const KindHostEndpoint = "HostEndpoint"

// Stage is where packets of a host endpoint are judged.
type Stage uint8

// The stages.
const (
	// Terminal is for what programs of the node receive and send.
	Terminal Stage = iota
	// Forwarded is for what the node forwards.
	Forwarded
	// Untranslated is for what comes in, before its destination is translated.
	Untranslated
	// Untracked is for what comes in and what programs of the node send, before connections are tracked.
	Untracked
	Stages
)

// HostRules come before the policies of host endpoints.
type HostRules struct {
	// Inbound and Outbound are what the node's own programs always receive and send.
	Inbound, Outbound []Failsafe
	// Nodes send encapsulated packets to each other: by IPIP, and by VXLAN and WireGuard to ports, as far as these are in
	// use.
	Nodes          []netip.Addr
	IPIP           bool
	VXLANPort      uint16 // 0: none
	WireGuardPorts []uint16
	// Open: the node's own programs may connect to these, also where another address is put in their place, but for
	// sockets that ask to be judged.
	Open []netip.AddrPort
	// DropFromPods: pods of the node open no connections to its programs, whatever their policies allow.
	DropFromPods bool
}

// Failsafe is a port of the destination, for peers in Net, or for all if that is not valid.
type Failsafe struct {
	Protocol uint8
	Port     uint16
	Net      netip.Prefix
}

// DefaultInbound and DefaultOutbound are Calico's failsafes: DHCP, DNS, SSH, BGP, etcd, Typha, the API server, and etcd
// of older installations.
func DefaultInbound() []Failsafe {
	return failsafes([]uint16{68}, 22, 179, 2379, 2380, 5473, 6443, 6666, 6667)
}

// DefaultOutbound is described with DefaultInbound.
func DefaultOutbound() []Failsafe {
	return failsafes([]uint16{53, 67}, 179, 2379, 2380, 5473, 6443, 6666, 6667)
}

func failsafes(udp []uint16, tcp ...uint16) (all []Failsafe) {
	for _, port := range udp {
		all = append(all, Failsafe{Protocol: UDP, Port: port})
	}
	for _, port := range tcp {
		all = append(all, Failsafe{Protocol: TCP, Port: port})
	}
	return all
}

// hostLinks finds the host endpoint of each link as Felix does: one that names it, or names none and has one of its
// addresses; of several the first by name.
func (state State) hostLinks() map[string]*HostEndpoint {
	found := map[string]*HostEndpoint{}
	take := func(link string, h *HostEndpoint) {
		if have := found[link]; have == nil || h.Name < have.Name {
			found[link] = h
		}
	}
	for i := range state.HostEndpoints {
		h := &state.HostEndpoints[i]
		switch {
		case !state.isOwn(h):
		case h.Interface != "":
			take(h.Interface, h)
		default:
			for link, addresses := range state.Interfaces {
				if slices.ContainsFunc(addresses, h.has) {
					take(link, h)
				}
			}
		}
	}
	return found
}

func (state State) isOwn(h *HostEndpoint) bool { return h.Node != "" && h.Node == state.Node }

// HasHosts reports that there are host endpoints of this node.
func (state State) HasHosts() bool {
	return slices.ContainsFunc(state.HostEndpoints, func(h HostEndpoint) bool { return state.isOwn(&h) })
}

// subject makes of a host endpoint what rules are resolved for.
func (h *HostEndpoint) subject() *Pod {
	return &Pod{PodKey: PodKey{Name: h.Name}, Labels: h.Labels, Addresses: h.Addresses, Ports: h.Ports, host: h}
}

// ofHost are the policies of a host endpoint.
type ofHost struct {
	*HostEndpoint
	policies [Stages][2][]int
}

// HostsOnly reports whether the policy counts for host endpoints alone.
func (p *Policy) HostsOnly() bool { return p.PreDNAT || p.NoTrack }

// forHost reports whether it counts for host endpoints at a stage, if it selects them.
func (p *Policy) forHost(stage Stage) bool {
	switch stage {
	case Untracked:
		return p.NoTrack
	case Untranslated:
		return p.PreDNAT
	case Forwarded:
		return p.Forward && !p.HostsOnly()
	}
	return !p.HostsOnly()
}

// SelectsHost reports whether a policy selects a host endpoint, or may do so by labels that are not known.
func (state *State) SelectsHost(p *Policy, h *HostEndpoint) bool {
	x := state.directory().host(h)
	return p.selectsHost(&x, true)
}

// selectsHost: only Calico's policies that are of no namespace select any. unknown is the answer while labels are not
// known.
func (p *Policy) selectsHost(x *selectable, unknown bool) bool {
	return p.Subject.Calico && p.Namespace == "" && p.Subject.has(x, unknown)
}

// ofHosts finds the policies of each host endpoint of this node, by link. One that may not select it allows it nothing.
func (s *Selection) ofHosts() map[string]ofHost {
	found := map[string]ofHost{}
	d, links, policies := s.state.directory(), s.state.hostLinks(), s.policies
	for link, h := range links {
		x, host := d.host(h), ofHost{HostEndpoint: s.state.profiled(h)}
		for i, p := range policies {
			if !p.selectsHost(&x, true) {
				continue
			}
			if !p.selectsHost(&x, false) {
				i = len(s.policies)
				s.policies = append(s.policies, p.denying(link != AllInterfaces && links[AllInterfaces] != nil))
			}
			for stage := range Stages {
				for direction := range p.Applies {
					// Felix ignores policies without connection tracking at the host endpoint of all links.
					if p.Applies[direction] && p.forHost(stage) && (stage != Untracked || link != AllInterfaces) {
						host.policies[stage][direction] = append(host.policies[stage][direction], i)
					}
				}
			}
		}
		found[link] = host
	}
	return found
}

// denying is the policy for a host endpoint that it may not select: it denies what it denies or passes on, and allows
// nothing. before: if it does not, another host endpoint may judge before translation, so that nothing passes there.
func (p Policy) denying(before bool) Policy {
	for d := range p.Rules {
		p.Rules[d] = slices.Clone(p.Rules[d])
		for i := range p.Rules[d] {
			switch r := &p.Rules[d][i]; r.Action {
			case Pass:
				r.Action = Deny
			case Allow, Log:
				r.AnyPeer, r.Peers = false, nil
			}
		}
	}
	if before && p.PreDNAT {
		p.Rules[Ingress] = []Rule{{Action: Deny, AnyPeer: true, AnyPort: true}}
	}
	return p
}

// profiled is a host endpoint that Allows if its profiles do.
func (state State) profiled(h *HostEndpoint) *HostEndpoint {
	if _, there := state.Namespaces[h.AllowsWith]; !there || h.AllowsWith == "" {
		return h
	}
	allowing := *h
	allowing.Allows = true
	return &allowing
}

// OfHosts are the policies of the host endpoints of this node, by link, stage and direction, in the order of
// evaluation.
func (s *Selection) OfHosts() map[string][Stages][2][]ID {
	found := make(map[string][Stages][2][]ID, len(s.hosts))
	for link, host := range s.hosts {
		var ids [Stages][2][]ID
		for stage, both := range host.policies {
			for d, policies := range both {
				for _, i := range policies {
					ids[stage][d] = append(ids[stage][d], s.policies[i].ID)
				}
			}
		}
		found[link] = ids
	}
	return found
}

// HostPolicies are the policies of the host endpoints of a node, and its failsafe ports, as they were in a State.
type HostPolicies struct {
	hosts             map[string]keptHost // by link
	inbound, outbound []Failsafe
}

type keptHost struct {
	*HostEndpoint
	policies [Stages][2][]*Policy
}

// HostPolicies are those of the State.
func (s *Selection) HostPolicies() *HostPolicies {
	h := &HostPolicies{map[string]keptHost{}, s.state.Host.Inbound, s.state.Host.Outbound}
	for link, host := range s.hosts {
		kept := keptHost{HostEndpoint: host.HostEndpoint}
		for stage, both := range host.policies {
			for d, indexes := range both {
				for _, i := range indexes {
					p := s.policies[i] // which may be given other rules here
					kept.policies[stage][d] = append(kept.policies[stage][d], &p)
				}
			}
		}
		h.hosts[link] = kept
	}
	return h
}

// KeepHosts is Keep for the host endpoints of the node: those of the State count for nothing.
func (s *Selection) KeepHosts(h *HostPolicies) {
	s.hosts = map[string]ofHost{}
	for link, kept := range h.hosts {
		host := ofHost{HostEndpoint: kept.HostEndpoint}
		for stage, policies := range kept.policies {
			host.policies[stage] = s.kept(policies)
		}
		s.hosts[link] = host
	}
	s.state.Host.Inbound, s.state.Host.Outbound = h.inbound, h.outbound
}

// ending is what becomes of packets that no rule decides on.
type ending struct {
	Verdict
	passes  bool // also those that a tier ends with
	final   bool // what a rule allows is Final
	noTrack bool // and not tracked
}

// allowed is the verdict on what a rule allows.
func (e ending) allowed() Verdict { return Verdict{Allow: true, Final: e.final, NoTrack: e.noTrack} }

// ending: profiles decide for a node's own programs alone, and before connections are tracked, or translated, nothing
// is denied by default.
func (h *HostEndpoint) ending(stage Stage) ending {
	if stage != Terminal || h.Allows {
		early := stage == Untranslated || stage == Untracked
		return ending{Verdict{Allow: true}, early, early, stage == Untracked}
	}
	return ending{Verdict: Verdict{By: ID{Kind: KindHostEndpoint, Name: h.Name}}}
}

// hostPrograms are by link.
func (c *compiler) hostPrograms(hosts map[string]ofHost) map[string][Stages][2]*Program {
	found := map[string][Stages][2]*Program{}
	for _, link := range slices.Sorted(maps.Keys(hosts)) { // the first ones have the room that the limit leaves
		var programs [Stages][2]*Program
		host := hosts[link]
		for stage := range Stages {
			for d, policies := range host.policies[stage] {
				programs[stage][d] = c.hostProgram(Direction(d), policies, host.subject(), host.ending(stage))
			}
		}
		found[link] = programs
	}
	return found
}

// hostsOf are the host endpoints of a Ruleset. key gives the key of a program.
func hostsOf(hosts map[string]ofHost, programs map[string][Stages][2]*Program, key func(*Program) string) map[string]Host {
	if len(hosts) == 0 {
		return nil
	}
	found := make(map[string]Host, len(hosts))
	for link, host := range hosts {
		to := Host{Name: host.Name}
		for stage, both := range programs[link] {
			for d, p := range both {
				to.Programs[stage][d] = key(p)
			}
		}
		found[link] = to
	}
	return found
}

func (c *compiler) hostProgram(d Direction, policies []int, subject *Pod, end ending) *Program {
	if sequential(c.policies, d, policies, end) {
		return c.sequence(d, policies, subject, end)
	}
	return c.build(d, policies, subject, end)
}

// sequential reports whether the rules of policies need a segment each.
func sequential(all []Policy, d Direction, policies []int, end ending) bool {
	return len(policies) > 0 && (end.final || slices.ContainsFunc(policies, func(i int) bool {
		return slices.ContainsFunc(all[i].Rules[d], func(r Rule) bool { return r.Own != nil })
	}))
}

// sequence is the program of rules of which some read the host endpoint's end, or are of an early stage, where what a
// rule allows is not what nothing forbids. It has a segment for each rule.
func (c *compiler) sequence(d Direction, policies []int, subject *Pod, end ending) *Program {
	b := &builder{compiler: c, spent: c.spendingOf(subject.Namespace)}
	p, all := &Program{}, policies
	for len(policies) > 0 {
		n := c.sameTier(policies)
		b.appendTier(p, d, policies[:n], subject, end)
		policies = policies[n:]
	}
	if p.Sequence = append(p.Sequence, always(end.Verdict)); b.spent.over() {
		return c.closed(b.spent, all, d)
	}
	return p
}

// always is a segment that decides.
func always(v Verdict) Segment {
	s := Segment{When: Program{Rest: List{Else: Verdict{Allow: true}}}, Then: Deny, Verdict: v}
	if v.Allow {
		s.Then = Allow
	}
	return s
}

func (b *builder) appendTier(p *Program, d Direction, policies []int, subject *Pod, end ending) {
	first := len(p.Sequence)
	for _, i := range policies {
		for k := range b.keys(d, i, len(b.policies[i].Rules[d]), true) {
			if b.affords(b.spent, k) {
				s := b.segment(k, subject)
				if s.Verdict.Allow {
					s.Verdict = end.allowed()
				}
				p.Sequence = append(p.Sequence, s)
			}
		}
	}
	if tier := b.policies[policies[0]]; tier.Tier.End == Deny && !end.passes {
		p.Sequence = append(p.Sequence, always(Verdict{By: tier.ID}))
	}
	for i := range p.Sequence[first:] {
		p.Sequence[first+i].Next = len(p.Sequence)
	}
}

func (b *builder) segment(k ruleKey, subject *Pod) Segment {
	id, rule := b.policies[k.policy].ID, b.rule(k)
	one := rule.Action == Deny
	s := Segment{When: b.matching(b.compiler.items(k, subject), one), Then: rule.Action, Verdict: Verdict{Allow: rule.Action == Allow}}
	switch rule.Action {
	case Deny:
		s.Verdict.By = id
	case Log:
		s.Log = LogRule{id, k.rule}
	}
	if rule.Own != nil {
		own := b.clause(clauseKey{ruleKey: k, declared: none, absent: none, own: true})
		anything := portSet{any: true}
		list := b.matching([]item{{clause: own, ports: anything, sources: anything}}, one).Rest
		s.Own = &list
	}
	return s
}

// matching allows what one of the items matches: an address that several may have if they do so for one of these, or
// else for all.
func (b *builder) matching(items []item, one bool) Program {
	m := &builder{compiler: b.compiler, lists: map[string]*listing{}, spent: b.spent, any: one}
	for i := range items {
		items[i].verdict, items[i].pass = Verdict{Allow: true}, false
	}
	m.add(tierRules{end: &Verdict{}}, items)
	return m.program()
}

// Governor is the link whose host endpoint judges packets of a link at a stage: AllInterfaces judges before translation
// where the link's own host endpoint has no policy for it.
func (r *Ruleset) Governor(link string, stage Stage) string {
	own, named := r.Hosts[link]
	_, all := r.Hosts[AllInterfaces]
	if all && (!named || stage == Untranslated && own.Programs[stage][Ingress] == "") {
		return AllInterfaces
	}
	return link
}

// DecideHost returns the verdict for the first packet of a connection of a link that is no pod's, between its own end
// and the peer, as the kernel gives it but for HostRules.
func (r *Ruleset) DecideHost(link string, stage Stage, d Direction, own, peer netip.Addr, p Packet) Verdict {
	key := r.Hosts[r.Governor(link, stage)].Programs[stage][d]
	if key == "" {
		return Verdict{Allow: true}
	}
	program := r.Programs[key]
	if len(program.Sequence) == 0 {
		return r.decide(program, peer.Unmap(), p)
	}
	for i := 0; ; {
		s := program.Sequence[i]
		matches := (s.Own == nil || r.decideList(*s.Own, own.Unmap()).Allow) && r.decide(s.When, peer.Unmap(), p).Allow
		switch {
		case matches && s.Then == Pass:
			i = s.Next
		case matches && s.Then != Log:
			return s.Verdict
		default:
			i++
		}
	}
}
