package policytest

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
)

// HostEndpoint is the one for Node's link Uplink: that names it, or names no link and has one of Node's addresses, or else the one for all links. Of
// several the first by name. nil: there is none.
func (c *Cluster) HostEndpoint() *api.CalicoHostEndpoint {
	own := c.firstHost(func(h *api.CalicoHostEndpointSpec) bool {
		return h.InterfaceName == Uplink || h.InterfaceName == "" && slices.ContainsFunc(h.ExpectedIPs, func(text string) bool {
			a, err := netip.ParseAddr(text)
			return err == nil && isNodes(&c.Nodes[0], a)
		})
	})
	if own != nil {
		return own
	}
	return c.hostOfAll()
}

// hostOfAll is the host endpoint for all of Node's links that have no other.
func (c *Cluster) hostOfAll() *api.CalicoHostEndpoint {
	return c.firstHost(func(h *api.CalicoHostEndpointSpec) bool { return h.InterfaceName == policy.AllInterfaces })
}

func (c *Cluster) firstHost(is func(*api.CalicoHostEndpointSpec) bool) (first *api.CalicoHostEndpoint) {
	for i := range c.HostEndpoints {
		if h := &c.HostEndpoints[i]; h.Spec.Node == Node && is(&h.Spec) && (first == nil || h.Name < first.Name) {
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
	thing := c.hostThing(h)
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

// HostAllows says whether a packet passes the host endpoints of Node, which has Failsafes. What comes from a pod of it meets that of all links before DNAT.
func (c *Cluster) HostAllows(p Packet) bool {
	h, from, to := c.HostEndpoint(), c.Place(p.From), c.Place(p.To)
	judge := func(stage policy.Stage, ingress bool) Decision {
		at := h
		if stage == policy.Untranslated && from != Uplink {
			at = c.hostOfAll()
		}
		if at == nil {
			return Decision{Allow: true}
		}
		return c.JudgeHost(at, stage, ingress, p)
	}
	failsafe := isFailsafe(p, from != "")
	if (from == Uplink || from == "" && to == Uplink) && !failsafe && !answersFailsafe(p, from != "") {
		if d := judge(policy.Untracked, from != ""); !d.Allow || d.Kind != "" {
			return d.Allow // what a rule allows is final
		}
	}
	if from != "" && !failsafe && !judge(policy.Untranslated, true).Allow {
		return false
	}
	switch {
	case from == Uplink && to == "":
		return failsafe || judge(policy.Terminal, true).Allow
	case from == Uplink:
		return judge(policy.Forwarded, true).Allow
	case from == "" && to == Uplink:
		return failsafe || judge(policy.Terminal, false).Allow
	case to == Uplink:
		return judge(policy.Forwarded, false).Allow
	}
	return true
}

// Failsafes are the ports that no policy closes on hosts, but for what they forward.
var Failsafes = policy.HostRules{
	Inbound:  []policy.Failsafe{{Protocol: TCP, Port: 443}, {Protocol: UDP, Port: 53, Net: netip.MustParsePrefix("192.168.1.128/25")}},
	Outbound: []policy.Failsafe{{Protocol: TCP, Port: 8080, Net: netip.MustParsePrefix("fd00::/8")}, {Protocol: UDP, Port: 81}},
}

// isFailsafe reports whether a packet goes to a failsafe port.
func isFailsafe(p Packet, ingress bool) bool {
	if ingress {
		return hasFailsafe(Failsafes.Inbound, p.From, p.Protocol, p.Port)
	}
	return hasFailsafe(Failsafes.Outbound, p.To, p.Protocol, p.Port)
}

// answersFailsafe reports whether a packet comes from a failsafe port, as answers do.
func answersFailsafe(p Packet, ingress bool) bool {
	if ingress {
		return hasFailsafe(Failsafes.Outbound, p.From, p.Protocol, p.SourcePort)
	}
	return hasFailsafe(Failsafes.Inbound, p.To, p.Protocol, p.SourcePort)
}

func hasFailsafe(all []policy.Failsafe, peer netip.Addr, protocol uint8, port uint16) bool {
	return slices.ContainsFunc(all, func(f policy.Failsafe) bool {
		return f.Protocol == protocol && f.Port == port && (!f.Net.IsValid() || f.Net.Contains(peer))
	})
}

// HostCluster is a CalicoCluster in which policies count for a host endpoint of Node.
func (g Generator) HostCluster() *Cluster {
	c := g.CalicoCluster()
	for i := range 1 + g.IntN(3) - len(c.HostEndpoints) {
		c.HostEndpoints = append(c.HostEndpoints, api.CalicoHostEndpoint{Meta: api.Meta{Name: fmt.Sprintf("host-%d", i), Labels: g.labels(thingLabels)},
			Spec: api.CalicoHostEndpointSpec{Node: Node, InterfaceName: "*", ExpectedIPs: []string{"172.16.0.1", "fd01::1"}}})
	}
	for i := range c.HostEndpoints {
		c.HostEndpoints[i].Spec.InterfaceName = pick(g, policy.AllInterfaces, policy.AllInterfaces, Uplink, "", "eth9")
		c.HostEndpoints[i].Spec.Profiles = several(g, 3, func() string {
			return pick(g, "projectcalico-default-allow", "projectcalico-default-allow", "kns.ns-0", "kns.ns-1", "kns.ns-3", "ksa.ns-0.robot", "ksa.ns-1.default", "gone")
		})
	}
	for i := range c.CalicoGlobalNetworkPolicies {
		spec := &c.CalicoGlobalNetworkPolicies[i].Spec
		if spec.ApplyOnForward = g.chance(60); spec.ApplyOnForward {
			spec.PreDNAT, spec.DoNotTrack = g.chance(30), g.chance(25)
		}
		if (spec.PreDNAT || spec.DoNotTrack) && g.chance(50) { // which no tier does there
			spec.Ingress, spec.Egress = append(spec.Ingress, api.CalicoRule{Action: "Deny"}), append(spec.Egress, api.CalicoRule{Action: "Deny"})
		}
		if g.chance(60) {
			spec.Selector, spec.NamespaceSelector, spec.ServiceAccountSelector = "", "", ""
		}
	}
	return c
}
