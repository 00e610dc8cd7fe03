package policytest

import (
	"fmt"
	"maps"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// NetworkPolicy generates the i-th NetworkPolicy of a cluster.
func (g Generator) NetworkPolicy(c *Cluster, i int) (p api.NetworkPolicy) {
	p.Meta = api.Meta{Namespace: pick(g, c.Namespaces...).Name, Name: fmt.Sprintf("np-%d", i), UID: fmt.Sprintf("np-uid-%d", i)}
	p.Spec.PodSelector = g.selector(podLabels)
	p.Spec.PolicyTypes = pick(g, nil, nil, []string{"Ingress"}, []string{"Egress"}, []string{"Ingress", "Egress"})
	if g.chance(2) {
		p.Spec.PodSelector, p.Spec.PolicyTypes = *g.peerSelector(podLabels), append(p.Spec.PolicyTypes, "Both")
	}
	p.Spec.Ingress = several(g, 3, func() api.NetworkPolicyIngressRule {
		return api.NetworkPolicyIngressRule{From: several(g, 3, g.peer), Ports: several(g, 3, g.port)}
	})
	p.Spec.Egress = several(g, 3, func() api.NetworkPolicyEgressRule {
		return api.NetworkPolicyEgressRule{To: several(g, 3, g.peer), Ports: several(g, 3, g.port)}
	})
	return p
}

func (g Generator) peer() (p api.NetworkPolicyPeer) {
	switch g.IntN(20) {
	case 0: // none that this version knows
	case 1:
		p.IPBlock, p.PodSelector = g.block(), g.peerSelector(podLabels)
	case 2, 3, 4, 5, 6, 7, 8:
		p.IPBlock = g.block()
	case 9, 10, 11, 12:
		p.PodSelector = g.peerSelector(podLabels)
	case 13, 14, 15:
		p.NamespaceSelector = g.peerSelector(namespaceLabels)
	default:
		p.PodSelector, p.NamespaceSelector = g.peerSelector(podLabels), g.peerSelector(namespaceLabels)
	}
	return p
}

func (g Generator) block() *api.IPBlock {
	b := &api.IPBlock{CIDR: g.cidr()}
	if g.chance(40) {
		b.Except = several(g, 3, g.cidr)
	}
	return b
}

func (g Generator) port() (p api.NetworkPolicyPort) {
	if g.chance(80) {
		p.Protocol = pick(g, protocols...)
	}
	if g.chance(3) {
		p.Protocol = pick(g, "tcp", "ICMP")
	}
	switch g.IntN(10) {
	case 0, 1: // every port
	case 2, 3, 4:
		p.Port = &api.IntOrString{Name: pick(g, portNames...)}
	default:
		p.Port = &api.IntOrString{Number: pick(g, portNumbers...)}
	}
	if p.Port != nil && g.chance(3) {
		p.Port = &api.IntOrString{Number: pick[int32](g, 0, -1, 65536, 1<<31-1)}
	}
	if p.Port != nil && p.Port.Name == "" && g.chance(30) || g.chance(2) {
		end := pick[int32](g, 81, 443, 8080, 65535, 65536)
		p.EndPort = &end
	}
	return p
}

// ClusterNetworkPolicy generates the i-th ClusterNetworkPolicy of a cluster.
func (g Generator) ClusterNetworkPolicy(i int) (p api.ClusterNetworkPolicy) {
	p.Meta = api.Meta{Name: fmt.Sprintf("cnp-%d", i), UID: fmt.Sprintf("cnp-uid-%d", i)}
	p.Spec.Tier, p.Spec.Priority = pick(g, "Admin", "Admin", "Baseline"), pick[int32](g, 0, 1, 1, 1000)
	if g.chance(50) {
		s := g.selector(namespaceLabels)
		p.Spec.Subject.Namespaces = &s
	} else {
		p.Spec.Subject.Pods = &api.NamespacedPod{NamespaceSelector: g.selector(namespaceLabels), PodSelector: g.selector(podLabels)}
	}
	if g.chance(3) {
		p.Spec.Tier, p.Spec.Subject.Namespaces = pick(g, "Platform", "Admin"), nil
	}
	p.Spec.Ingress = several(g, 4, g.clusterIngress)
	p.Spec.Egress = several(g, 4, g.clusterEgress)
	return p
}

func (g Generator) clusterIngress() (r api.ClusterNetworkPolicyIngressRule) {
	r.Name, r.Action, r.Protocols = pick(g, "", "a", "b"), g.action(), several(g, 2, g.protocol)
	for range 1 + g.IntN(3) {
		var p api.ClusterNetworkPolicyPeer
		p.Namespaces, p.Pods = g.clusterPods()
		if g.chance(2) {
			p = api.ClusterNetworkPolicyPeer{Networks: []string{"0.0.0.0/0", "::/0"}} // only egress has networks
		}
		r.From = append(r.From, p)
	}
	return r
}

func (g Generator) clusterEgress() (r api.ClusterNetworkPolicyEgressRule) {
	r.Name, r.Action, r.Protocols = pick(g, "", "a", "b"), g.action(), several(g, 2, g.protocol)
	for range 1 + g.IntN(3) {
		var p api.ClusterNetworkPolicyPeer
		switch g.IntN(10) {
		case 0, 1, 2, 3:
			p.Networks = append(several(g, 2, g.cidr), g.cidr())
		case 4:
			p.Nodes = g.peerSelector(nodeLabels)
			if g.chance(10) {
				p = api.ClusterNetworkPolicyPeer{DomainNames: []string{"kubernetes.io"}}
			}
		default:
			p.Namespaces, p.Pods = g.clusterPods()
		}
		r.To = append(r.To, p)
	}
	return r
}

func (g Generator) action() string {
	if g.chance(2) {
		return pick(g, "", "Allow", "Log")
	}
	return pick(g, "Accept", "Accept", "Deny", "Deny", "Pass")
}

// clusterPods generates namespaces or pods, rarely none or both.
func (g Generator) clusterPods() (namespaces *api.LabelSelector, pods *api.NamespacedPod) {
	kind := g.IntN(40)
	if kind > 20 || kind == 1 {
		namespaces = g.peerSelector(namespaceLabels)
	}
	if kind <= 20 && kind > 0 {
		pods = &api.NamespacedPod{NamespaceSelector: *g.peerSelector(namespaceLabels), PodSelector: *g.peerSelector(podLabels)}
	}
	return namespaces, pods
}

func (g Generator) protocol() (p api.ClusterNetworkPolicyProtocol) {
	var port *api.ClusterNetworkPolicyPort
	if g.chance(95) {
		port = g.clusterPort()
	}
	switch g.IntN(20) {
	case 0: // none that this version knows
		if g.chance(50) {
			p.DestinationNamedPort, p.TCP = "http", &api.ClusterNetworkPolicyPorts{DestinationPort: port}
		}
	case 1, 2, 3, 4, 5:
		p.DestinationNamedPort = pick(g, portNames...)
	case 6, 7, 8, 9, 10, 11:
		p.UDP = &api.ClusterNetworkPolicyPorts{DestinationPort: port}
	case 12, 13:
		p.SCTP = &api.ClusterNetworkPolicyPorts{DestinationPort: port}
	default:
		p.TCP = &api.ClusterNetworkPolicyPorts{DestinationPort: port}
	}
	return p
}

func (g Generator) clusterPort() *api.ClusterNetworkPolicyPort {
	if g.chance(3) {
		return pick(g, &api.ClusterNetworkPolicyPort{}, &api.ClusterNetworkPolicyPort{Number: 70000},
			&api.ClusterNetworkPolicyPort{Range: &api.ClusterNetworkPolicyPortRange{Start: 81, End: 53}})
	}
	if g.chance(70) {
		return &api.ClusterNetworkPolicyPort{Number: pick(g, portNumbers...)}
	}
	return &api.ClusterNetworkPolicyPort{Range: &api.ClusterNetworkPolicyPortRange{Start: pick[int32](g, 1, 53, 80),
		End: pick[int32](g, 81, 443, 65535)}}
}
