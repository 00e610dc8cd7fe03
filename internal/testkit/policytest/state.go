package policytest

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
)

// State returns the cluster as the node called Node sees it. Policies that cannot be read at all are left out.
func (c *Cluster) State() policy.State {
	s := policy.State{
		Local: map[string]policy.PodKey{}, Pods: map[policy.PodKey]*policy.Pod{},
		Namespaces: map[string]map[string]string{}, Nodes: map[string]policy.Node{},
	}
	for _, n := range c.Namespaces {
		s.Namespaces[n.Name] = n.Labels
	}
	for _, n := range c.Nodes {
		s.Nodes[n.Name] = policy.Node{Labels: n.Labels, Addresses: nodeAddresses(&n)}
	}
	for i := range c.Pods {
		pod := &c.Pods[i]
		if pod.Spec.HostNetwork || Finished(pod) {
			continue
		}
		key := policy.PodKey{Namespace: pod.Namespace, Name: pod.Name}
		s.Pods[key] = podOf(pod)
		if pod.Spec.NodeName == Node {
			s.Local[LinkOf(pod)] = key
		}
	}
	for i := range c.NetworkPolicies {
		s.Policies = append(s.Policies, policy.FromNetworkPolicy(&c.NetworkPolicies[i]))
	}
	for i := range c.ClusterNetworkPolicies {
		if p, err := policy.FromClusterNetworkPolicy(&c.ClusterNetworkPolicies[i]); err == nil {
			s.Policies = append(s.Policies, p)
		}
	}
	c.addCalico(&s)
	return s
}

// LinkOf returns the link of a generated pod, which is called pod-N.
func LinkOf(pod *api.Pod) string { return "cali" + pod.Name[len("pod-"):] }

func podOf(pod *api.Pod) *policy.Pod {
	to := &policy.Pod{PodKey: policy.PodKey{Namespace: pod.Namespace, Name: pod.Name}, UID: pod.UID, Labels: pod.Labels,
		Account: pod.Spec.ServiceAccountName, Addresses: Addresses(pod)}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, p := range container.Ports {
			to.Ports = append(to.Ports, policy.NamedPort{Name: p.Name, Protocol: protocolNumber(cmp.Or(p.Protocol, "TCP")), Port: p.ContainerPort})
		}
	}
	return to
}

func nodeAddresses(n *api.Node) (all []netip.Addr) {
	for _, a := range n.Status.Addresses {
		if parsed, err := netip.ParseAddr(a.Address); err == nil {
			all = append(all, parsed)
		}
	}
	return all
}
