package policy

import (
	"maps"
	"net/netip"
	"slices"
)

// AllInterfaces is the Interface of a host endpoint for all links of a node.
const AllInterfaces = "*"

// KindHostEndpoint is the kind of Verdict.By where no policy of a host endpoint decides and the packet is denied.
const KindHostEndpoint = "HostEndpoint"

// Stage is the point at which packets of a host endpoint are judged.
type Stage uint8

// The stages.
const (
	// Terminal judges what programs of the node receive and send.
	Terminal Stage = iota
	// Forwarded judges what the node forwards.
	Forwarded
	// Untranslated judges incoming packets before their destination is translated (DNAT).
	Untranslated
	// Untracked judges incoming packets, and what programs of the node send, before connection tracking.
	Untracked
	Stages
)

// HostRules precede the policies of host endpoints.
type HostRules struct {
	// Inbound and Outbound are what the node's own programs always receive and send.
	Inbound, Outbound []Failsafe
	// Nodes are the addresses between which encapsulated packets pass: IPIP, and VXLAN and WireGuard to their ports, as
	// far as they are in use.
	Nodes          []netip.Addr
	IPIP           bool
	VXLANPort      uint16 // 0: none
	WireGuardPorts []uint16
	// Open are destinations of the node's own programs that are always allowed, also behind a translated address, except
	// for sockets that ask for judgement.
	Open []netip.AddrPort
	// DropFromPods denies connections from pods of the node to its programs, whatever their policies allow.
	DropFromPods bool
}

// Failsafe is a destination port that is always open, for peers in Net, or for all if Net is not valid.
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

// DefaultOutbound is documented with DefaultInbound.
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

// hostLinks returns the host endpoint of each link as Felix does: one that names the link, or names none and has one of
// its addresses; of several the first by name.
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

// HasHosts reports whether this node has host endpoints.
func (state State) HasHosts() bool {
	return slices.ContainsFunc(state.HostEndpoints, func(h HostEndpoint) bool { return state.isOwn(&h) })
}

// subject returns the host endpoint as a Pod for which rules are resolved.
func (h *HostEndpoint) subject() *Pod {
	return &Pod{PodKey: PodKey{Name: h.Name}, Labels: h.Labels, Addresses: h.Addresses, Ports: h.Ports, host: h}
}

// ofHost is a host endpoint with its policies.
type ofHost struct {
	*HostEndpoint
	policies [Stages][2][]int
}

// HostsOnly reports whether the policy counts for host endpoints only.
func (p *Policy) HostsOnly() bool { return p.PreDNAT || p.NoTrack }

// forHost reports whether the policy counts at a stage for the host endpoints that it selects.
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

// SelectsHost reports whether a policy selects a host endpoint, or may select it by unknown labels.
func (state *State) SelectsHost(p *Policy, h *HostEndpoint) bool {
	x := state.directory().host(h)
	return p.selectsHost(&x, true)
}

// selectsHost reports whether p selects a host endpoint; only Calico's policies without a namespace can. It returns
// unknown if unknown labels decide.
func (p *Policy) selectsHost(x *selectable, unknown bool) bool {
	return p.Subject.Calico && p.Namespace == "" && p.Subject.has(x, unknown)
}

// ofHosts returns the policies of each host endpoint of this node, by link. A policy that may select it or not allows
// nothing.
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

// denying returns the policy for a host endpoint that it may select or not: Deny and Pass become Deny, Allow matches
// nothing. before: if the endpoint is not selected, another host endpoint may judge before translation, so a preDNAT
// policy denies everything there.
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

// profiled returns the host endpoint with Allows set if a profile allows.
func (state State) profiled(h *HostEndpoint) *HostEndpoint {
	if _, there := state.Namespaces[h.AllowsWith]; !there || h.AllowsWith == "" {
		return h
	}
	allowing := *h
	allowing.Allows = true
	return &allowing
}

// OfHosts returns the policies of the host endpoints of this node, by link, stage and direction, in the order of
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

// HostPolicies holds the policies and failsafe ports of a node's host endpoints from one State.
type HostPolicies struct {
	hosts             map[string]keptHost // by link
	inbound, outbound []Failsafe
}

type keptHost struct {
	*HostEndpoint
	policies [Stages][2][]*Policy
}

// HostPolicies returns the policies of the State's host endpoints.
func (s *Selection) HostPolicies() *HostPolicies {
	h := &HostPolicies{map[string]keptHost{}, s.state.Host.Inbound, s.state.Host.Outbound}
	for link, host := range s.hosts {
		kept := keptHost{HostEndpoint: host.HostEndpoint}
		for stage, both := range host.policies {
			for d, indexes := range both {
				for _, i := range indexes {
					p := s.policies[i] // a copy: s.policies may get other rules later
					kept.policies[stage][d] = append(kept.policies[stage][d], &p)
				}
			}
		}
		h.hosts[link] = kept
	}
	return h
}

// KeepHosts replaces the State's host endpoints and their policies by h, as Keep does for pods.
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

// ending is the verdict on packets that no rule decides.
type ending struct {
	Verdict
	passes  bool // tiers that end with Deny pass, too
	final   bool // what a rule allows is Final
	noTrack bool // what a rule allows is NoTrack
}

// allowed returns the verdict on what a rule allows.
func (e ending) allowed() Verdict { return Verdict{Allow: true, Final: e.final, NoTrack: e.noTrack} }

// ending returns the default verdict at a stage: profiles decide for the node's own programs only, and before
// connection tracking or translation nothing is denied by default.
func (h *HostEndpoint) ending(stage Stage) ending {
	if stage != Terminal || h.Allows {
		early := stage == Untranslated || stage == Untracked
		return ending{Verdict{Allow: true}, early, early, stage == Untracked}
	}
	return ending{Verdict: Verdict{By: ID{Kind: KindHostEndpoint, Name: h.Name}}}
}

// hostPrograms compiles the programs of host endpoints, by link.
func (c *compiler) hostPrograms(hosts map[string]ofHost) map[string][Stages][2]*Program {
	found := map[string][Stages][2]*Program{}
	for _, link := range slices.Sorted(maps.Keys(hosts)) { // in order: the first links use up the limit
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

// hostsOf returns the host endpoints of a Ruleset. key returns the key of a program.
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

// sequential reports whether each rule of the policies needs a segment.
func sequential(all []Policy, d Direction, policies []int, end ending) bool {
	return len(policies) > 0 && (end.final || slices.ContainsFunc(policies, func(i int) bool {
		return slices.ContainsFunc(all[i].Rules[d], func(r Rule) bool { return r.Own != nil })
	}))
}

// sequence returns the program of policies with rules that read the host endpoint's own end, or of an early stage,
// where packets that no rule matches are not final. It has a segment for each rule.
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

// always returns a segment that matches everything.
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

// matching returns a program that allows what one of the items matches. An address that several pods may have matches
// an item if one of them does, or, if not one, if all do.
func (b *builder) matching(items []item, one bool) Program {
	m := &builder{compiler: b.compiler, lists: map[string]*listing{}, spent: b.spent, any: one}
	for i := range items {
		items[i].verdict, items[i].pass = Verdict{Allow: true}, false
	}
	m.add(tierRules{end: &Verdict{}}, items)
	return m.program()
}

// Governor returns the link of the host endpoint that judges packets of a link at a stage: AllInterfaces judges before
// translation where the link's own host endpoint has no policy for it.
func (r *Ruleset) Governor(link string, stage Stage) string {
	own, named := r.Hosts[link]
	_, all := r.Hosts[AllInterfaces]
	if all && (!named || stage == Untranslated && own.Programs[stage][Ingress] == "") {
		return AllInterfaces
	}
	return link
}

// DecideHost returns the kernel's verdict, without HostRules, for the first packet of a connection of a link that is no
// pod's, between its own end and the peer.
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
