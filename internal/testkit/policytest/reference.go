package policytest

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

// Decision is the verdict on a packet at one of its ends.
type Decision struct {
	Allow bool
	// Tier, Kind, Namespace and Name are the deciding policy's; all are empty if none decided.
	Tier, Kind, Namespace, Name string
	// Rule is the index of the deciding rule, among the rules of its direction; -1 if the pod is isolated and no rule
	// matches.
	Rule int
	// Logs are the Log rules that the packet met before.
	Logs []Log
}

// Log is a rule that only logs.
type Log struct {
	Kind, Namespace, Name string
	Rule                  int
}

// side is one end of a connection, as the pod there sees it.
type side struct {
	pod     *api.Pod
	ingress bool
	peer    netip.Addr
	things  []thing
	// host is the host endpoint at this side; the ports that it names count there.
	host *thing
	Packet
}

// Allowed judges a connection by the policies of the pods at its ends that run on one of the nodes, or on any if no
// node is given. The node of a pod may always open connections to it, and a pod to itself.
func (c *Cluster) Allowed(p Packet, nodes ...string) bool {
	source, destination := c.Ends(p, nodes...)
	return source && destination
}

// Ends is Allowed with a verdict for each end: the source's egress and the destination's ingress.
func (c *Cluster) Ends(p Packet, nodes ...string) (source, destination bool) {
	from, to := c.PodAt(p.From), c.PodAt(p.To)
	if from != nil && from == to || to != nil && c.onOwnNode(to, p.From) {
		return true, true
	}
	judged := func(pod *api.Pod) bool {
		return pod != nil && (len(nodes) == 0 || slices.Contains(nodes, pod.Spec.NodeName))
	}
	return !judged(from) || c.Judge(from, false, p).Allow, !judged(to) || c.Judge(to, true, p).Allow
}

func (c *Cluster) onOwnNode(pod *api.Pod, a netip.Addr) bool {
	return slices.ContainsFunc(c.Nodes, func(n api.Node) bool { return n.Name == pod.Spec.NodeName && isNodes(&n, a) })
}

// applying is a policy for a pod and direction.
type applying struct {
	tier                  tier
	order                 float64
	kind, namespace, name string
	shown                 string // the name to sort by, if not name
	// does has the action of each rule on the packet: Allow, Deny, Pass, Log, or empty.
	does []string
}

// Judge returns the decision of one pod's policies. The tiers that have a policy for the pod and direction decide one
// after the other: "the Admin tier takes precedence", "v1.NetworkPolicy always makes a final decision for selected
// pods" (they are in Calico's tier default), then the Baseline tier, then "all pods can communicate with each other".
func (c *Cluster) Judge(pod *api.Pod, ingress bool, p Packet) Decision {
	s := c.side(pod, ingress, p)
	return decide(slices.Concat(c.networkPolicies(s), c.clusterNetworkPolicies(s), c.calicoPolicies(s)), Decision{Allow: true, Rule: -1})
}

func (c *Cluster) side(pod *api.Pod, ingress bool, p Packet) side {
	s := side{pod: pod, ingress: ingress, peer: p.To, things: c.things(), Packet: p}
	if ingress {
		s.peer = p.From
	}
	return s
}

// decide evaluates all policies. d is the decision if there is none.
func decide(all []applying, d Decision) Decision {
	slices.SortFunc(all, func(a, b applying) int {
		return cmp.Or(compareTiers(a.tier, b.tier), cmp.Compare(a.order, b.order),
			cmp.Compare(cmp.Or(a.shown, a.name), cmp.Or(b.shown, b.name)), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.kind, b.kind))
	})
	for len(all) > 0 {
		rest := slices.IndexFunc(all, func(a applying) bool { return a.tier != all[0].tier })
		if rest < 0 {
			rest = len(all)
		}
		if d.decide(all[:rest]) {
			return d
		}
		all = all[rest:]
	}
	return d
}

// decide evaluates the policies of a tier, and reports whether they decided.
func (d *Decision) decide(policies []applying) bool {
	for _, a := range policies {
		for i, does := range a.does {
			switch does {
			case "Allow", "Deny":
				d.by(a, does == "Allow", i)
				return true
			case "Pass":
				return false
			case "Log":
				d.Logs = append(d.Logs, Log{a.kind, a.namespace, a.name, i})
			}
		}
	}
	if policies[0].tier.pass {
		return false
	}
	d.by(policies[0], false, -1)
	return true
}

func (d *Decision) by(a applying, allow bool, rule int) {
	d.Allow, d.Tier, d.Kind, d.Namespace, d.Name, d.Rule = allow, a.tier.name, a.kind, a.namespace, a.name, rule
}

// networkPolicies returns the policies that isolate a pod: then only what one of their rules allows is allowed. A
// policy with an unreadable podSelector isolates its whole namespace.
func (c *Cluster) networkPolicies(s side) (all []applying) {
	for _, policy := range c.NetworkPolicies {
		closed := !readable(&policy.Spec.PodSelector)
		if policy.Namespace != s.pod.Namespace || !isolates(&policy, s.ingress) || !closed && !selects(&policy.Spec.PodSelector, s.pod.Labels) {
			continue
		}
		a := applying{tier: defaultTier, order: 1000, kind: "NetworkPolicy", namespace: policy.Namespace, name: policy.Name}
		if !closed {
			a.does = c.whatAllows(&policy, s)
		}
		all = append(all, a)
	}
	return all
}

// isolates applies the default of policyTypes: "policies that contain an egress section are assumed to affect egress,
// and all policies are assumed to affect ingress". An unknown type counts as both.
func isolates(policy *api.NetworkPolicy, ingress bool) bool {
	if len(policy.Spec.PolicyTypes) == 0 {
		return ingress || len(policy.Spec.Egress) > 0
	}
	other := "Ingress"
	if ingress {
		other = "Egress"
	}
	return slices.ContainsFunc(policy.Spec.PolicyTypes, func(t string) bool { return t != other })
}

func (c *Cluster) whatAllows(policy *api.NetworkPolicy, s side) (does []string) {
	allowIf := func(peers []api.NetworkPolicyPeer, ports []api.NetworkPolicyPort) string {
		if c.ruleMatches(policy.Namespace, peers, ports, s) {
			return "Allow"
		}
		return ""
	}
	if !s.ingress {
		for _, r := range policy.Spec.Egress {
			does = append(does, allowIf(r.To, r.Ports))
		}
		return does
	}
	for _, r := range policy.Spec.Ingress {
		does = append(does, allowIf(r.From, r.Ports))
	}
	return does
}

// ruleMatches reports whether peers and ports match: "the traffic must match both ports and from"; an empty one matches
// everything.
func (c *Cluster) ruleMatches(namespace string, peers []api.NetworkPolicyPeer, ports []api.NetworkPolicyPort, s side) bool {
	return (len(peers) == 0 || slices.ContainsFunc(peers, func(p api.NetworkPolicyPeer) bool { return c.peerMatches(namespace, p, s) })) &&
		(len(ports) == 0 || slices.ContainsFunc(ports, func(p api.NetworkPolicyPort) bool { return c.portMatches(p, s) }))
}

// peerMatches reports whether a peer matches; an invalid peer matches nothing.
func (c *Cluster) peerMatches(namespace string, p api.NetworkPolicyPeer, s side) bool {
	if p.IPBlock != nil {
		return p.PodSelector == nil && p.NamespaceSelector == nil && blockMatches(p.IPBlock, s.peer)
	}
	pod := c.PodAt(s.peer)
	if pod == nil || p.PodSelector == nil && p.NamespaceSelector == nil {
		return false
	}
	if p.NamespaceSelector == nil && pod.Namespace != namespace {
		return false
	}
	return (p.NamespaceSelector == nil || selects(p.NamespaceSelector, c.namespaceLabels(pod.Namespace))) &&
		(p.PodSelector == nil || selects(p.PodSelector, pod.Labels))
}

// blockMatches reports whether a block matches; with an unreadable exception it does not, or it would match too much.
func blockMatches(b *api.IPBlock, a netip.Addr) bool {
	block, ok := parseCIDR(b.CIDR)
	matches := ok && block.Contains(a)
	for _, text := range b.Except {
		except, ok := parseCIDR(text)
		matches = matches && ok && !except.Contains(a)
	}
	return matches
}

// portMatches reports whether a port matches: "only traffic on the specified protocol AND port will be matched"; the
// default protocol is TCP, and without a port all ports match.
func (c *Cluster) portMatches(p api.NetworkPolicyPort, s side) bool {
	protocol := protocolNumber(cmp.Or(p.Protocol, "TCP"))
	switch {
	case protocol == 0 || protocol != s.Protocol:
		return false
	case p.Port == nil:
		return p.EndPort == nil
	case p.Port.Name != "":
		return p.EndPort == nil && c.declares(s.To, p.Port.Name, protocol, s.Port)
	case p.Port.Number < 1 || p.Port.Number > 65535:
		return false
	case p.EndPort != nil:
		return *p.EndPort <= 65535 && p.Port.Number <= int32(s.Port) && int32(s.Port) <= *p.EndPort
	}
	return p.Port.Number == int32(s.Port)
}

// declares reports whether the pod with an address declares a port by that name.
func (c *Cluster) declares(a netip.Addr, name string, protocol uint8, port uint16) bool {
	pod := c.PodAt(a)
	if pod == nil {
		return false
	}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, p := range container.Ports {
			declared := protocolNumber(cmp.Or(p.Protocol, "TCP"))
			if p.Name == name && declared == protocol && p.ContainerPort == port {
				return true
			}
		}
	}
	return false
}

func (c *Cluster) namespaceLabels(name string) map[string]string {
	for _, n := range c.Namespaces {
		if n.Name == name {
			return n.Labels
		}
	}
	return nil
}

func isNodes(n *api.Node, a netip.Addr) bool {
	return slices.ContainsFunc(n.Status.Addresses, func(own api.NodeAddress) bool { return own.Address == a.String() })
}
