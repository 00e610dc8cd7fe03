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
// any, traffic is dropped". That holds for what ends or begins at the node. Forwarded packets are subject to policies with applyOnForward alone, and
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
	allow := stage != policy.Terminal || slices.Equal(h.Spec.Profiles, []string{"projectcalico-default-allow"})
	if len(all) == 0 && stage != policy.Terminal {
		return Decision{Allow: true, Rule: -1}
	}
	return decide(all, Decision{Allow: allow, Rule: -1})
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

// HostCluster is a CalicoCluster in which policies count for a host endpoint of Node.
func (g Generator) HostCluster() *Cluster {
	c := g.CalicoCluster()
	for len(c.HostEndpoints) == 0 {
		c.HostEndpoints = append(c.HostEndpoints, api.CalicoHostEndpoint{Meta: api.Meta{Name: "host"},
			Spec: api.CalicoHostEndpointSpec{Node: Node, InterfaceName: "*", ExpectedIPs: []string{"172.16.0.1", "fd01::1"}}})
	}
	for i := range c.HostEndpoints {
		if g.chance(50) {
			c.HostEndpoints[i].Spec.Profiles = []string{"projectcalico-default-allow"}
		}
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
