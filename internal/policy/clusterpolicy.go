package policy

import (
	"fmt"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// KindClusterNetworkPolicy is the kind of a ClusterNetworkPolicy's ID.
const KindClusterNetworkPolicy = "ClusterNetworkPolicy"

var clusterTiers = map[string]Tier{api.ClusterTierAdmin: TierAdmin, api.ClusterTierBaseline: TierBaseline}

var clusterActions = map[string]Action{api.ClusterPolicyAccept: Allow, api.ClusterPolicyDeny: Deny, api.ClusterPolicyPass: Pass}

// FromClusterNetworkPolicy converts a ClusterNetworkPolicy. A rule with an unreadable part is closed, as its API
// requires, and named in Problems: Accept matches nothing, Deny and Pass become a Deny of everything at the rule's
// place. A policy with an unknown tier, or with an unreadable spec, denies everything: in tier Admin if its own is
// unknown. It returns an error if the subject cannot be read: the pods are then unknown, and the caller must leave out
// the policy.
func FromClusterNetworkPolicy(c *api.ClusterNetworkPolicy) (Policy, error) {
	r := &reader{}
	tier, known := clusterTiers[c.Spec.Tier]
	if !known {
		tier = TierAdmin
	}
	p := Policy{ID: ID{Kind: KindClusterNetworkPolicy, Name: c.Name}, Tier: tier, Order: float64(c.Spec.Priority)}
	if c.Spec.Unreadable != "" {
		r.note("spec cannot be read, so that it denies everything to the pods that it selects: correct it: " + c.Spec.Unreadable)
	} else if !known {
		r.problem("spec.tier", c.Spec.Tier, "is unknown, so that the policy denies everything to the pods that it selects: use Admin or Baseline")
	}
	closed := len(r.problems) > 0
	subject, ok := r.pods("spec.subject", c.Spec.Subject.Namespaces, c.Spec.Subject.Pods)
	if !ok {
		return Policy{}, fmt.Errorf("%s", strings.Join(r.problems, "; "))
	}
	p.Subject = *subject
	for i, rule := range c.Spec.Ingress {
		x := clusterRule{rule.Name, rule.Action, rule.From, rule.Protocols}
		p.Rules[Ingress] = append(p.Rules[Ingress], r.clusterRule(Ingress, fmt.Sprintf("spec.ingress[%d]", i), x))
	}
	for i, rule := range c.Spec.Egress {
		x := clusterRule{rule.Name, rule.Action, rule.To, rule.Protocols}
		p.Rules[Egress] = append(p.Rules[Egress], r.clusterRule(Egress, fmt.Sprintf("spec.egress[%d]", i), x))
	}
	for d := range p.Rules {
		if p.Applies[d] = len(p.Rules[d]) > 0 || c.Spec.Unreadable != ""; closed && p.Applies[d] {
			p.Rules[d] = []Rule{{Action: Deny, AnyPeer: true, AnyPort: true}}
		}
	}
	p.Problems = r.problems
	return p, nil
}

// clusterRule is a rule of an ingress or egress list.
type clusterRule struct {
	name, action string
	peers        []api.ClusterNetworkPolicyPeer
	protocols    []api.ClusterNetworkPolicyProtocol
}

func (r *reader) clusterRule(d Direction, field string, in clusterRule) Rule {
	action, known := clusterActions[in.action]
	if !known {
		r.problem(field+".action", in.action, "counts as Deny: use Accept, Deny or Pass")
		action = Deny
	}
	rule := Rule{Name: in.name, Action: action, AnyPort: len(in.protocols) == 0}
	peersField := field + map[Direction]string{Ingress: ".from", Egress: ".to"}[d]
	readable := len(in.peers) > 0 || r.problem(peersField, "", "is empty: give at least one peer")
	for i, peer := range in.peers {
		peers, ok := r.clusterPeer(d, fmt.Sprintf("%s[%d]", peersField, i), peer)
		rule.Peers = append(rule.Peers, peers...)
		readable = readable && ok
	}
	for i, protocol := range in.protocols {
		port, ok := r.clusterPort(fmt.Sprintf("%s.protocols[%d]", field, i), protocol)
		rule.Ports = append(rule.Ports, port)
		readable = readable && ok
	}
	switch {
	case readable:
		return rule
	case action == Allow:
		return Rule{Name: in.name, Action: Allow}
	}
	return Rule{Name: in.name, Action: Deny, AnyPeer: true, AnyPort: true}
}

// clusterPeer reads a peer. Peers returned with false must be ignored.
func (r *reader) clusterPeer(d Direction, field string, peer api.ClusterNetworkPolicyPeer) ([]Peer, bool) {
	kinds := 0
	for _, set := range []bool{peer.Namespaces != nil, peer.Pods != nil, peer.Nodes != nil, len(peer.Networks) > 0,
		len(peer.DomainNames) > 0} {
		if set {
			kinds++
		}
	}
	pods := peer.Namespaces != nil || peer.Pods != nil
	switch {
	case kinds != 1, d == Ingress && !pods:
		return nil, r.problem(field, "", "is no peer that is known: give exactly one of namespaces, pods, and for egress nodes and networks")
	case pods:
		selected, ok := r.pods(field, peer.Namespaces, peer.Pods)
		if !ok {
			return nil, false
		}
		return []Peer{{Pods: selected}}, true
	case peer.Nodes != nil:
		nodes, ok := r.selector(field+".nodes", *peer.Nodes)
		if !ok {
			return nil, false
		}
		return []Peer{{Nodes: &nodes}}, true
	case len(peer.DomainNames) > 0:
		return nil, r.problem(field+".domainNames", peer.DomainNames[0], "domain names are not supported: use networks")
	}
	return r.networks(field+".networks", peer.Networks)
}

func (r *reader) networks(field string, networks []string) (peers []Peer, ok bool) {
	ok = true
	for i, text := range networks {
		net, readable := r.prefix(fmt.Sprintf("%s[%d]", field, i), text)
		if ok = ok && readable; readable {
			peers = append(peers, Peer{Net: net})
		}
	}
	return peers, ok
}

// pods reads a subject or peer, which has either namespaces or pods.
func (r *reader) pods(field string, namespaces *api.LabelSelector, pods *api.NamespacedPod) (*Pods, bool) {
	if (namespaces == nil) == (pods == nil) {
		return nil, r.problem(field, "", "selects no pods that are known: give exactly one of namespaces and pods")
	}
	if namespaces != nil {
		in, ok := r.selector(field+".namespaces", *namespaces)
		return &Pods{Namespaces: in}, ok
	}
	in, ok1 := r.selector(field+".pods.namespaceSelector", pods.NamespaceSelector)
	labels, ok2 := r.selector(field+".pods.podSelector", pods.PodSelector)
	return &Pods{Namespaces: in, Labels: labels}, ok1 && ok2
}

// clusterPort reads ports. An entry without the one field that each level requires is of an unknown kind.
func (r *reader) clusterPort(field string, in api.ClusterNetworkPolicyProtocol) (Port, bool) {
	const unknown = "is no protocol that is known: give exactly one of tcp, udp and sctp with a destinationPort, or destinationNamedPort"
	var found []Port
	var ports *api.ClusterNetworkPolicyPorts
	for _, p := range []struct {
		in       *api.ClusterNetworkPolicyPorts
		protocol uint8
	}{{in.TCP, TCP}, {in.UDP, UDP}, {in.SCTP, SCTP}} {
		if p.in != nil {
			found, ports = append(found, Port{Protocol: p.protocol}), p.in
		}
	}
	if in.DestinationNamedPort != "" {
		found = append(found, Port{Name: in.DestinationNamedPort})
	}
	if len(found) != 1 {
		return Port{}, r.problem(field, "", unknown)
	}
	if in.DestinationNamedPort != "" {
		return found[0], r.portName(field+".destinationNamedPort", in.DestinationNamedPort)
	}
	if ports.DestinationPort == nil {
		return Port{}, r.problem(field, "", unknown)
	}
	return r.clusterNumbers(field, found[0].Protocol, ports.DestinationPort)
}

func (r *reader) clusterNumbers(field string, protocol uint8, port *api.ClusterNetworkPolicyPort) (Port, bool) {
	field += ".destinationPort"
	switch {
	case (port.Number == 0) == (port.Range == nil):
		return Port{}, r.problem(field, "", "is no port that is known: give exactly one of number and range")
	case port.Range != nil:
		return r.ports(field+".range", protocol, port.Range.Start, port.Range.End)
	}
	return r.ports(field+".number", protocol, port.Number, port.Number)
}
