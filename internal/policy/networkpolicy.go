package policy

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

// KindNetworkPolicy is the kind of a Kubernetes NetworkPolicy's ID.
const KindNetworkPolicy = "NetworkPolicy"

// networkPolicyOrder is where Calico puts NetworkPolicies among its own policies of the same tier.
const networkPolicyOrder = 1000

// FromNetworkPolicy converts a NetworkPolicy, with the API server's defaults. Unreadable parts are closed and named in
// Problems: a peer or port matches nothing, an unknown direction counts as both, and with an unreadable podSelector the
// policy isolates the whole namespace. A policy of which only the selector could be read allows nothing.
func FromNetworkPolicy(n *api.NetworkPolicy) Policy {
	r := &reader{}
	p := Policy{ID: ID{KindNetworkPolicy, n.Namespace, n.Name}, Tier: TierDefault, Order: networkPolicyOrder, Applies: r.directions(n.Spec)}
	if n.Spec.Unreadable != "" {
		r.note("spec cannot be read, so that it allows nothing to the pods that it selects: correct it: " + n.Spec.Unreadable)
	}
	labels, readable := r.selector("spec.podSelector", n.Spec.PodSelector)
	p.Subject = Pods{Namespace: n.Namespace, Labels: labels}
	for i, rule := range n.Spec.Ingress {
		p.Rules[Ingress] = append(p.Rules[Ingress], r.allow(n.Namespace, fmt.Sprintf("spec.ingress[%d]", i), "from", rule.From, rule.Ports))
	}
	for i, rule := range n.Spec.Egress {
		p.Rules[Egress] = append(p.Rules[Egress], r.allow(n.Namespace, fmt.Sprintf("spec.egress[%d]", i), "to", rule.To, rule.Ports))
	}
	for d, applies := range p.Applies {
		if !applies || !readable {
			p.Rules[d] = nil
		}
	}
	p.Problems = r.problems
	return p
}

func (r *reader) directions(spec api.NetworkPolicySpec) (applies [2]bool) {
	if len(spec.PolicyTypes) == 0 {
		return [2]bool{Ingress: true, Egress: len(spec.Egress) > 0}
	}
	for i, name := range spec.PolicyTypes {
		switch name {
		case api.PolicyTypeIngress:
			applies[Ingress] = true
		case api.PolicyTypeEgress:
			applies[Egress] = true
		default:
			r.problem(fmt.Sprintf("spec.policyTypes[%d]", i), name, "counts as both directions: use Ingress or Egress")
			applies = [2]bool{true, true}
		}
	}
	return applies
}

func (r *reader) allow(namespace, field, peers string, from []api.NetworkPolicyPeer, ports []api.NetworkPolicyPort) Rule {
	rule := Rule{Action: Allow, AnyPeer: len(from) == 0, AnyPort: len(ports) == 0}
	for i, peer := range from {
		if p, ok := r.peer(namespace, fmt.Sprintf("%s.%s[%d]", field, peers, i), peer); ok {
			rule.Peers = append(rule.Peers, p)
		}
	}
	for i, port := range ports {
		if p, ok := r.port(fmt.Sprintf("%s.ports[%d]", field, i), port); ok {
			rule.Ports = append(rule.Ports, p)
		}
	}
	return rule
}

func (r *reader) peer(namespace, field string, peer api.NetworkPolicyPeer) (Peer, bool) {
	pods := peer.PodSelector != nil || peer.NamespaceSelector != nil
	switch {
	case pods == (peer.IPBlock != nil):
		return Peer{}, r.problem(field, "", "matches nothing: give it either ipBlock, or podSelector and namespaceSelector or one of them")
	case peer.IPBlock != nil:
		return r.block(field+".ipBlock", peer.IPBlock)
	}
	selected, ok := &Pods{Namespace: namespace}, true
	if peer.NamespaceSelector != nil {
		selected.Namespace = ""
		selected.Namespaces, ok = r.selector(field+".namespaceSelector", *peer.NamespaceSelector)
	}
	if peer.PodSelector != nil {
		var readable bool
		selected.Labels, readable = r.selector(field+".podSelector", *peer.PodSelector)
		ok = ok && readable
	}
	return Peer{Pods: r.shared(selected)}, ok
}

// block reads an ipBlock. Without an unreadable exception it would match too much, so it then matches nothing.
func (r *reader) block(field string, block *api.IPBlock) (Peer, bool) {
	net, ok := r.prefix(field+".cidr", block.CIDR)
	except := make([]netip.Prefix, len(block.Except))
	for i, text := range block.Except {
		var readable bool
		except[i], readable = r.prefix(fmt.Sprintf("%s.except[%d]", field, i), text)
		ok = ok && readable
	}
	return Peer{Net: net, Except: slices.Clip(except)}, ok
}

func (r *reader) port(field string, port api.NetworkPolicyPort) (Port, bool) {
	protocol, ok := protocols[port.Protocol]
	switch {
	case !ok:
		return Port{}, r.problem(field+".protocol", port.Protocol, "matches nothing: use TCP, UDP or SCTP")
	case port.EndPort != nil && (port.Port == nil || port.Port.Name != ""):
		return Port{}, r.problem(field+".endPort", *port.EndPort, "matches nothing: it needs a number in port")
	case port.Port == nil:
		return Port{Protocol: protocol, Last: lastPort}, true
	case port.Port.Name != "":
		return Port{Protocol: protocol, Name: port.Port.Name}, r.portName(field+".port", port.Port.Name)
	}
	last := port.Port.Number
	if port.EndPort != nil {
		last = *port.EndPort
	}
	return r.ports(field+".port", protocol, port.Port.Number, last)
}
