package policytest

import (
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

// clusterNetworkPolicies returns the policies that select a pod: "policies with lower priority values are checked
// before"; "the relative precedence of rules within a single object will be determined by the order in which the rule
// is written". Pass "skips all further rules in the current tier". A policy of an unknown tier denies in tier Admin: an
// invalid policy closes what it selects.
func (c *Cluster) clusterNetworkPolicies(s side) (all []applying) {
	for _, policy := range c.ClusterNetworkPolicies {
		if !c.isSubject(&policy.Spec.Subject, s.pod) {
			continue
		}
		a := applying{tier: adminTier, order: float64(policy.Spec.Priority), kind: "ClusterNetworkPolicy", name: policy.Name}
		if policy.Spec.Tier == "Baseline" {
			a.tier = baselineTier
		}
		for _, rule := range rulesOf(&policy, s.ingress) {
			does := c.act(rule, s)
			if policy.Spec.Tier != "Admin" && policy.Spec.Tier != "Baseline" {
				does = "Deny"
			}
			a.does = append(a.does, map[string]string{"Accept": "Allow", "Deny": "Deny", "Pass": "Pass"}[does])
		}
		all = append(all, a)
	}
	return all
}

// clusterRule is a rule of an ingress or egress list.
type clusterRule struct {
	action    string
	peers     []api.ClusterNetworkPolicyPeer
	protocols []api.ClusterNetworkPolicyProtocol
	// unreadable: a peer is invalid for the direction.
	unreadable bool
}

func rulesOf(policy *api.ClusterNetworkPolicy, ingress bool) (rules []clusterRule) {
	if !ingress {
		for _, r := range policy.Spec.Egress {
			rules = append(rules, clusterRule{r.Action, r.To, r.Protocols, slices.ContainsFunc(r.To, unreadablePeer)})
		}
		return rules
	}
	for _, r := range policy.Spec.Ingress {
		unreadable := slices.ContainsFunc(r.From, func(p api.ClusterNetworkPolicyPeer) bool {
			return unreadablePeer(p) || p.Namespaces == nil && p.Pods == nil
		})
		rules = append(rules, clusterRule{r.Action, r.From, r.Protocols, unreadable})
	}
	return rules
}

// act returns what a rule does with a packet, empty if nothing. A rule with an unreadable part fails closed: "for
// Accept rules: treat the rule as matching no traffic. For Deny and Pass rules: treat the rule as a 'Deny all' rule".
// An unknown action counts as Deny.
func (c *Cluster) act(r clusterRule, s side) string {
	if r.action != "Accept" && r.action != "Pass" {
		r.action = "Deny"
	}
	if r.unreadable || slices.ContainsFunc(r.protocols, unreadableProtocol) || len(r.peers) == 0 {
		if r.action == "Accept" {
			return ""
		}
		return "Deny"
	}
	if slices.ContainsFunc(r.peers, func(p api.ClusterNetworkPolicyPeer) bool { return c.clusterPeerMatches(p, s.peer) }) &&
		(len(r.protocols) == 0 ||
			slices.ContainsFunc(r.protocols, func(p api.ClusterNetworkPolicyProtocol) bool { return c.protocolMatches(p, s) })) {
		return r.action
	}
	return ""
}

// isSubject reports whether the subject includes the pod. "host-networked pods are not included", and Judge is never
// called with one. With an unreadable subject the pods are unknown: the policy does nothing.
func (c *Cluster) isSubject(subject *api.ClusterNetworkPolicySubject, pod *api.Pod) bool {
	if subject.Namespaces != nil {
		return subject.Pods == nil && selects(subject.Namespaces, c.namespaceLabels(pod.Namespace))
	}
	return subject.Pods != nil && c.inPods(subject.Pods, pod)
}

func (c *Cluster) inPods(p *api.NamespacedPod, pod *api.Pod) bool {
	return selects(&p.NamespaceSelector, c.namespaceLabels(pod.Namespace)) && selects(&p.PodSelector, pod.Labels)
}

func (c *Cluster) clusterPeerMatches(p api.ClusterNetworkPolicyPeer, a netip.Addr) bool {
	pod := c.PodAt(a)
	switch {
	case p.Namespaces != nil:
		return pod != nil && selects(p.Namespaces, c.namespaceLabels(pod.Namespace))
	case p.Pods != nil:
		return pod != nil && c.inPods(p.Pods, pod)
	case p.Nodes != nil:
		return slices.ContainsFunc(c.Nodes, func(n api.Node) bool { return selects(p.Nodes, n.Labels) && isNodes(&n, a) })
	}
	return slices.ContainsFunc(p.Networks, func(text string) bool {
		network, _ := parseCIDR(text)
		return network.Contains(a)
	})
}

// unreadablePeer reports whether a peer is invalid: exactly one field must be set, and readable. Domain names are not
// supported.
func unreadablePeer(p api.ClusterNetworkPolicyPeer) bool {
	set := 0
	for _, given := range []bool{p.Namespaces != nil, p.Pods != nil, p.Nodes != nil, len(p.Networks) > 0, len(p.DomainNames) > 0} {
		if given {
			set++
		}
	}
	if set != 1 || len(p.DomainNames) > 0 || !readable(p.Namespaces) || !readable(p.Nodes) {
		return true
	}
	if p.Pods != nil && !(readable(&p.Pods.NamespaceSelector) && readable(&p.Pods.PodSelector)) {
		return true
	}
	return slices.ContainsFunc(p.Networks, func(text string) bool { _, ok := parseCIDR(text); return !ok })
}

// unreadableProtocol reports whether a protocol is invalid: exactly one field must be set, on each level.
func unreadableProtocol(p api.ClusterNetworkPolicyProtocol) bool {
	set := 0
	for _, given := range []bool{p.TCP != nil, p.UDP != nil, p.SCTP != nil, p.DestinationNamedPort != ""} {
		if given {
			set++
		}
	}
	if set != 1 || p.DestinationNamedPort != "" {
		return set != 1
	}
	_, port := numbered(p)
	return port == nil || unreadablePort(*port)
}

func unreadablePort(p api.ClusterNetworkPolicyPort) bool {
	if p.Range != nil {
		return p.Number != 0 || p.Range.Start < 1 || p.Range.End > 65535 || p.Range.Start > p.Range.End
	}
	return p.Number < 1 || p.Number > 65535
}

// numbered returns the protocol's number, 0 for one with a named port, and its port if it has one.
func numbered(p api.ClusterNetworkPolicyProtocol) (number uint8, port *api.ClusterNetworkPolicyPort) {
	switch {
	case p.TCP != nil:
		return TCP, p.TCP.DestinationPort
	case p.UDP != nil:
		return UDP, p.UDP.DestinationPort
	case p.SCTP != nil:
		return SCTP, p.SCTP.DestinationPort
	}
	return 0, nil
}

// protocolMatches reports whether the port matches. A named port matches "a destination port on a pod based on the
// ContainerPort name", with the protocol declared there.
func (c *Cluster) protocolMatches(p api.ClusterNetworkPolicyProtocol, s side) bool {
	if p.DestinationNamedPort != "" {
		return c.declares(s.To, p.DestinationNamedPort, s.Protocol, s.Port)
	}
	number, port := numbered(p)
	switch {
	case number != s.Protocol:
		return false
	case port.Range != nil:
		return port.Range.Start <= int32(s.Port) && int32(s.Port) <= port.Range.End
	}
	return port.Number == int32(s.Port)
}
