package policytest

import (
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
)

// HostEndpoint is the one of Node that has all its interfaces: of several the first by name. nil: there is none.
func (c *Cluster) HostEndpoint() (first *api.CalicoHostEndpoint) {
	for i := range c.HostEndpoints {
		if h := &c.HostEndpoints[i]; h.Spec.Node == Node && h.Spec.InterfaceName == "*" && (first == nil || h.Name < first.Name) {
			first = h
		}
	}
	return first
}

// JudgeHost says what becomes of a packet at an interface of a host endpoint: "if no policy applies to a host endpoint, its profiles decide; without
// any, traffic is dropped". That holds for what ends or begins at the node. What it forwards is subject to policies with applyOnForward alone, and
// allowed if there is none; what comes in before DNAT to those with preDNAT alone, where no tier denies by itself; so it
// is with doNotTrack before connections are tracked, and what a rule allows there is not tracked.
func (c *Cluster) JudgeHost(h *api.CalicoHostEndpoint, stage policy.Stage, ingress bool, p Packet) Decision {
	thing := hostThing(h)
	s := side{ingress: ingress, peer: p.To, things: c.things(), host: &thing, Packet: p}
	if ingress {
		s.peer = p.From
	}
	var all []applying
	for _, p := range c.CalicoGlobalNetworkPolicies {
		if !forHost(&p.Spec, stage, ingress) || !isReadable(&p.Spec) || !thing.isSubjectOf(&p.Spec) {
			continue
		}
		a := c.calicoPolicy("CalicoGlobalNetworkPolicy", p.Meta, &p.Spec.CalicoPolicySpec, s)
		a.tier.pass = a.tier.pass || stage == policy.Untranslated || stage == policy.Untracked
		all = append(all, a)
	}
	allow := stage != policy.Terminal || c.profilesAllow(h.Spec.Profiles)
	if len(all) == 0 && stage != policy.Terminal {
		return Decision{Allow: true, Rule: -1}
	}
	return decide(all, Decision{Allow: allow, Rule: -1})
}

// profilesAllow: profiles decide in their order. That of a namespace allows everything; one that does not exist denies everything.
func (c *Cluster) profilesAllow(profiles []string) bool {
	if len(profiles) == 0 {
		return false
	}
	return profiles[0] == "projectcalico-default-allow" || slices.ContainsFunc(c.Namespaces, func(n api.Namespace) bool { return profiles[0] == "kns."+n.Name })
}

func forHost(spec *api.CalicoGlobalNetworkPolicySpec, stage policy.Stage, ingress bool) bool {
	switch {
	case spec.DoNotTrack && spec.PreDNAT || !coversDirection(spec.Types, ingress):
		return false
	case spec.DoNotTrack:
		return stage == policy.Untracked
	case spec.PreDNAT:
		return stage == policy.Untranslated && ingress
	}
	return stage == policy.Terminal || stage == policy.Forwarded && spec.ApplyOnForward
}

// HostAllows says whether a packet passes the interfaces of Node, of which there is a host endpoint.
func (c *Cluster) HostAllows(p Packet) bool {
	h, from, to := c.HostEndpoint(), c.Place(p.From), c.Place(p.To)
	judge := func(stage policy.Stage, ingress bool) bool { return c.JudgeHost(h, stage, ingress, p).Allow }
	if from == Uplink || from == "" && to == Uplink {
		if d := c.JudgeHost(h, policy.Untracked, from != "", p); !d.Allow || d.Kind != "" {
			return d.Allow // what a rule allows is final
		}
	}
	if from != "" && !judge(policy.Untranslated, true) {
		return false
	}
	switch {
	case from == Uplink && to == "":
		return judge(policy.Terminal, true)
	case from == Uplink:
		return judge(policy.Forwarded, true)
	case from == "" && to == Uplink:
		return judge(policy.Terminal, false)
	case to == Uplink:
		return judge(policy.Forwarded, false)
	}
	return true
}

// HostCluster is a CalicoCluster in which policies count for a host endpoint of Node.
func (g Generator) HostCluster() *Cluster {
	c := g.CalicoCluster()
	for len(c.HostEndpoints) == 0 {
		c.HostEndpoints = append(c.HostEndpoints, api.CalicoHostEndpoint{Meta: api.Meta{Name: "host"},
			Spec: api.CalicoHostEndpointSpec{Node: Node, InterfaceName: "*", ExpectedIPs: []string{"172.16.0.1", "fd01::1"}}})
	}
	for i := range c.HostEndpoints {
		c.HostEndpoints[i].Spec.Profiles = several(g, 3, func() string {
			return pick(g, "projectcalico-default-allow", "projectcalico-default-allow", "kns.ns-0", "kns.ns-3", "gone")
		})
	}
	for i := range c.CalicoGlobalNetworkPolicies {
		spec := &c.CalicoGlobalNetworkPolicies[i].Spec
		if spec.ApplyOnForward = g.chance(60); spec.ApplyOnForward {
			spec.PreDNAT, spec.DoNotTrack = g.chance(30), g.chance(25)
		}
		if g.chance(60) {
			spec.Selector, spec.NamespaceSelector, spec.ServiceAccountSelector = "", "", ""
		}
	}
	return c
}
