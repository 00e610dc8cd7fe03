package policytest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
)

// The model of host endpoints follows Felix's source alone; comments name its files below felix/ and functions. Where
// Tortie differs on purpose (docs/calico-policy.md), a function named differs... has the difference.

// Journey is a packet's way through Node: the links by which it comes and leaves, empty for a process of Node, and the
// packet before and after its destination is translated. Meant is the link by which it would leave if its destination
// were not translated.
type Journey struct {
	In, Out, Meant string
	Before, After  Packet
	Tracked
}

// Tracked is the conntrack state of a packet.
type Tracked int

// A packet opens a connection, belongs to one, or does neither.
const (
	Opens Tracked = iota
	Established
	Invalid
)

// Straight returns the way of a connection's first packet with an untranslated destination.
func Straight(in, out string, p Packet) Journey {
	return Journey{In: in, Out: out, Meant: out, Before: p, After: p}
}

// outcome is the decision of a link's host endpoint on a packet at one stage.
type outcome int

const (
	undecided outcome = iota // the next stage decides
	accepted
	dropped
)

// HostAllows reports whether the host endpoints of Node, with Failsafes, allow a connection's first packet.
func (c *Cluster) HostAllows(p Packet) bool {
	return c.HostPasses(Straight(c.Place(p.From), c.Place(p.To), p))
}

// HostPasses reports whether a packet passes the host endpoints of Node on its way.
//
// What a rule of an early stage allows gets Felix's accept mark, which input, output, and the incoming side of forward
// check; the outgoing side of forward does not, nor do the pods' own chains (rules/static.go: filterInputChain,
// filterOutputChain, StaticFilterForwardChains).
func (c *Cluster) HostPasses(j Journey) bool {
	if j.differsAtLoopback() {
		return true
	}
	early := c.untracked(j)
	if early == accepted { // it is not tracked
		j.Tracked = Opens
	}
	if early == accepted || j.Tracked == Invalid { // only packets of a connection are translated
		j.After, j.Out = j.Before, j.Meant
	}
	if early == undecided && j.In != "" { // rules/static.go: StaticManglePreroutingChain; processes' packets have none
		early = c.outcome(j.In, policy.Untranslated, true, j.Before, j.Tracked)
	}
	if early == dropped {
		return false
	}
	marked := early == accepted
	switch {
	case j.In == "":
		return marked || c.outcome(j.Out, policy.Terminal, false, j.After, j.Tracked) != dropped
	case j.Out == "":
		return marked || c.outcome(j.In, policy.Terminal, true, j.After, j.Tracked) != dropped
	}
	return (marked || c.outcome(j.In, policy.Forwarded, true, j.After, j.Tracked) != dropped) &&
		c.outcome(j.Out, policy.Forwarded, false, j.After, j.Tracked) != dropped
}

// untracked returns the outcome before connection tracking: of incoming packets, and of packets of processes, by the
// link of the original destination (rules/static.go: StaticRawPreroutingChain, StaticRawOutputChain). Forwarded packets
// are not judged there when they leave.
func (c *Cluster) untracked(j Journey) outcome {
	if j.In != "" {
		return c.outcome(j.In, policy.Untracked, true, j.Before, j.Tracked)
	}
	return c.outcome(j.Meant, policy.Untracked, false, j.Before, j.Tracked)
}

// outcome returns the decision of a link's host endpoint. The order is the chains': connection tracking, failsafe
// ports, policies (rules/endpoints.go: endpointIptablesChain, appendConntrackRules).
func (c *Cluster) outcome(link string, stage policy.Stage, ingress bool, p Packet, t Tracked) outcome {
	h := c.Governs(link, stage)
	switch {
	case h == nil:
		return undecided
	case stage != policy.Forwarded && (p.differsAsNeighbour() || c.differsInTunnel(p)):
		return withoutRule(stage)
	case stage != policy.Untracked && t == Established:
		return accepted
	case stage != policy.Untracked && t == Invalid: // before failsafe ports, with or without a policy for the direction
		return dropped
	case c.failsafe(stage, ingress, p):
		return withoutRule(stage)
	}
	d := c.JudgeHost(h, stage, ingress, p)
	switch {
	case !d.Allow:
		return dropped
	case d.Kind == "": // no rule matches
		return withoutRule(stage)
	}
	return accepted
}

// withoutRule returns the outcome if a stage allows a packet without a rule. At early stages the packet then has no
// mark.
func withoutRule(stage policy.Stage) outcome {
	if isEarly(stage) {
		return undecided
	}
	return accepted
}

// isEarly reports whether other stages judge a packet after the stage.
func isEarly(stage policy.Stage) bool {
	return stage == policy.Untracked || stage == policy.Untranslated
}

// failsafe reports whether a failsafe port opens a stage: all but forward (rules/endpoints.go:
// HostEndpointToFilterChains), and before connection tracking also for answers (rules/static.go: failsafeInChain,
// failsafeOutChain).
func (c *Cluster) failsafe(stage policy.Stage, ingress bool, p Packet) bool {
	return stage != policy.Forwarded && isFailsafe(p, ingress) || stage == policy.Untracked && answersFailsafe(p, ingress)
}

// Governs returns the host endpoint that judges packets at a link of Node at a stage, nil if none does
// (dataplane/linux/endpoint_mgr.go: updateHostEndpoints).
func (c *Cluster) Governs(link string, stage policy.Stage) *api.CalicoHostEndpoint {
	own, all := c.hostOf(link), c.hostOfAll()
	switch stage {
	case policy.Untracked: // "DoNotTrack policy is not supported for a HEP with `interfaceName: *`; ignoring it"
		return own
	case policy.Untranslated: // AllInterfaces judges pods' links, and links without such a policy of their own
		for _, h := range []*api.CalicoHostEndpoint{own, all} {
			if h != nil && len(c.judging(h, stage, true)) > 0 {
				return h
			}
		}
		return nil
	case policy.Terminal: // not for pods' links (rules/static.go: filterInputChain, filterOutputChain; dispatch.go)
		if isPods(link) {
			return nil
		}
	}
	if own != nil {
		return own
	}
	return all // in forward also for pods' links (rules/dispatch.go: hostDispatchChains)
}

// isPods reports whether a link is a pod's, by Felix's prefix (rules/static.go: WorkloadIfacePrefixes).
func isPods(link string) bool { return strings.HasPrefix(link, "cali") }

// hostOf returns the host endpoint of a link that is no pod's: the first by name of the host endpoints that name it, or
// name none and have one of its addresses (dataplane/linux/endpoint_mgr.go: resolveHostEndpoints). Uplink has the
// addresses of Node, other links have none.
func (c *Cluster) hostOf(link string) *api.CalicoHostEndpoint {
	if link == "" || isPods(link) {
		return nil
	}
	return c.firstHost(func(h *api.CalicoHostEndpointSpec) bool {
		return h.InterfaceName == link || h.InterfaceName == "" && link == Uplink && slices.ContainsFunc(h.ExpectedIPs, func(text string) bool {
			a, err := netip.ParseAddr(text)
			return err == nil && isNodes(&c.Nodes[0], a)
		})
	})
}

// hostOfAll returns the host endpoint of all links that have no other.
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

// JudgeHost returns the decision of a host endpoint's policies at a stage. Kind is empty if no rule decides. Then
// profiles decide for processes of Node, and all else is allowed: forwarded packets if no policy is for the direction,
// or all tiers pass; and at early stages, where the end of a tier denies nothing (rules/endpoints.go:
// endpointIptablesChain; calc/event_sequencer.go: tierInfoToProtoTierInfo).
func (c *Cluster) JudgeHost(h *api.CalicoHostEndpoint, stage policy.Stage, ingress bool, p Packet) Decision {
	thing := c.hostThing(h)
	s := side{ingress: ingress, peer: p.To, things: c.things(), host: &thing, Packet: p}
	if ingress {
		s.peer = p.From
	}
	var all []applying
	for _, p := range c.judging(h, stage, ingress) {
		a := c.calicoPolicy("CalicoGlobalNetworkPolicy", p.Meta, &p.Spec.CalicoPolicySpec, s)
		a.tier.pass = a.tier.pass || isEarly(stage)
		all = append(all, a)
	}
	return decide(all, Decision{Allow: stage != policy.Terminal || c.profilesAllow(h.Spec.Profiles), Rule: -1})
}

// judging returns the policies that judge at a host endpoint's stage.
func (c *Cluster) judging(h *api.CalicoHostEndpoint, stage policy.Stage, ingress bool) (all []api.CalicoGlobalNetworkPolicy) {
	thing := c.hostThing(h)
	for _, p := range c.CalicoGlobalNetworkPolicies {
		if forHost(&p.Spec, stage, ingress) && isReadable(&p.Spec) && thing.isSubjectOf(&p.Spec) {
			all = append(all, p)
		}
	}
	return all
}

// forHost reports whether a policy counts at a stage: an early policy only at its own stage, before translation only
// for ingress; any other policy for processes of Node, and with applyOnForward also for forwarded packets
// (calc/event_sequencer.go: tierInfoToProtoTierInfo).
func forHost(spec *api.CalicoGlobalNetworkPolicySpec, stage policy.Stage, ingress bool) bool {
	switch {
	case differsAsBoth(spec) || !coversDirection(spec.Types, ingress):
		return false
	case spec.DoNotTrack:
		return stage == policy.Untracked
	case spec.PreDNAT:
		return stage == policy.Untranslated && ingress
	}
	return stage == policy.Terminal || stage == policy.Forwarded && spec.ApplyOnForward
}

// profilesAllow reports whether the profiles allow: a namespace's profile does, a profile that does not exist denies
// (calc/active_rules_calculator.go: DummyDropRules). It differs for a service account's profile, which has no rules:
// Felix goes on to the next profile, in Tortie the first one decides.
func (c *Cluster) profilesAllow(profiles []string) bool {
	if len(profiles) == 0 {
		return false
	}
	ofFirst := func(n api.Namespace) bool { return profiles[0] == "kns."+n.Name }
	return profiles[0] == "projectcalico-default-allow" || slices.ContainsFunc(c.Namespaces, ofFirst)
}

// Loopback is the link by which processes of Node reach each other.
const Loopback = "lo"

// differsAtLoopback: Felix's host endpoint of all links judges lo; Tortie's does not, as no policy protects a node from
// itself.
func (j Journey) differsAtLoopback() bool {
	return j.In == "" && j.Out == "" || j.In == Loopback || j.Out == Loopback
}

// differsAsNeighbour: Felix judges neighbour and router discovery of IPv6; Tortie lets it pass, as no host works
// without.
func (p Packet) differsAsNeighbour() bool {
	return p.Protocol == ICMPv6 && 133 <= p.Type && p.Type <= 137
}

// differsInTunnel: Felix lets VXLAN between nodes pass at input and output (rules/static.go: filterInputChain,
// filterOutputChain), but judges it at early stages; Tortie judges it at none, as with IPIP and WireGuard, so that no
// policy cuts pods of other nodes off.
func (c *Cluster) differsInTunnel(p Packet) bool {
	isNode := func(a netip.Addr) bool { return slices.Contains(Failsafes.Nodes, a) }
	return p.Protocol == UDP && p.Port == Failsafes.VXLANPort && isNode(p.From) && isNode(p.To)
}

// differsAsBoth: Felix takes doNotTrack with preDNAT as doNotTrack. The API refuses such a policy; in Tortie a stored
// one counts for nothing.
func differsAsBoth(spec *api.CalicoGlobalNetworkPolicySpec) bool {
	return spec.DoNotTrack && spec.PreDNAT
}

// Failsafes are the ports that no policy closes on hosts, except in forward, and the nodes with VXLAN between them.
var Failsafes = policy.HostRules{
	Inbound:  []policy.Failsafe{{Protocol: TCP, Port: 443}, {Protocol: UDP, Port: 53, Net: netip.MustParsePrefix("192.168.1.128/25")}},
	Outbound: []policy.Failsafe{{Protocol: TCP, Port: 8080, Net: netip.MustParsePrefix("fd00::/8")}, {Protocol: UDP, Port: 81}},

	VXLANPort: 4789,
	Nodes: []netip.Addr{
		netip.MustParseAddr("172.16.0.1"), netip.MustParseAddr("fd01::1"), netip.MustParseAddr("172.16.0.2"), netip.MustParseAddr("fd01::2"),
	},
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

// HostCluster generates a CalicoCluster with policies that count for a host endpoint of Node.
func (g Generator) HostCluster() *Cluster {
	c := g.CalicoCluster()
	g.forHosts(c)
	for i := range c.HostEndpoints {
		c.HostEndpoints[i].Spec.InterfaceName = pick(g, policy.AllInterfaces, policy.AllInterfaces, Uplink, "", "eth9")
		c.HostEndpoints[i].Spec.Profiles = several(g, 3, func() string {
			return pick(g, "projectcalico-default-allow", "projectcalico-default-allow", "kns."+pick(g, c.Namespaces...).Name, "ksa.ns-0.robot",
				"ksa.ns-1.default", "gone")
		})
	}
	return c
}

// forHosts makes GlobalNetworkPolicies count for host endpoints at all stages, and adds a host endpoint if there is
// none.
func (g Generator) forHosts(c *Cluster) {
	for i := range 1 + g.IntN(3) - len(c.HostEndpoints) {
		c.HostEndpoints = append(c.HostEndpoints,
			api.CalicoHostEndpoint{Meta: api.Meta{Name: fmt.Sprintf("host-%d", i), Labels: g.labels(thingLabels)},
				Spec: api.CalicoHostEndpointSpec{Node: Node, InterfaceName: "*", ExpectedIPs: []string{"172.16.0.1", "fd01::1"}}})
	}
	for i := range c.CalicoGlobalNetworkPolicies {
		spec := &c.CalicoGlobalNetworkPolicies[i].Spec
		if spec.ApplyOnForward = g.chance(60); spec.ApplyOnForward {
			spec.PreDNAT, spec.DoNotTrack = g.chance(30), g.chance(25)
		}
		if (spec.PreDNAT || spec.DoNotTrack) && g.chance(50) { // a tier's end denies nothing there
			spec.Ingress, spec.Egress = append(spec.Ingress, api.CalicoRule{Action: "Deny"}), append(spec.Egress, api.CalicoRule{Action: "Deny"})
		}
		if g.chance(60) {
			spec.Selector, spec.NamespaceSelector, spec.ServiceAccountSelector = "", "", ""
		}
	}
}
