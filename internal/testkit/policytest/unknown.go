package policytest

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
)

// inheritedLabels are the shownLabels from objects that may not be known.
var inheritedLabels = map[string][]string{
	"pcns.env": {"dev", "prod"}, "pcns.projectcalico.org/name": {"ns-0", "ns-1"}, "pcsa.team": {"red", "blue"},
	"pcsa.projectcalico.org/name": {"robot"},
}

// NamingCluster generates a small cluster in which most rules name what an agent may not know yet: labels, ports and
// addresses of pods, namespaces, service accounts, Services and nodes, and of host endpoints. For most pods, a last
// rule allows the rest, or another tier judges it.
//
// make mutate changes each decision on what is not known: what an unlisted pod, node, Service or account closes, for
// each action and end; named ports, also of networks and of network sets (cases 14 and 15: one cluster in 3,000 detects
// it); notSelector, notPorts, notNets; unknown labels of namespaces and accounts, of pods, sets and host endpoints; the
// Deny behind a Pass; unsure addresses, of one pod and of several; the pod's own end. Other tests cover what is no
// decision on a packet: which pods keep policies for a while, which pod has an address, which networks exceed a limit.
func (g Generator) NamingCluster() *Cluster {
	c := g.CalicoCluster()
	c.Pods = few(c.Pods, 7)
	c.NetworkPolicies, c.ClusterNetworkPolicies = few(c.NetworkPolicies, 1), nil
	if g.chance(40) {
		c.ClusterNetworkPolicies = append(c.ClusterNetworkPolicies, g.namingForAll())
	}
	c.CalicoNetworkPolicies, c.CalicoGlobalNetworkPolicies = few(c.CalicoNetworkPolicies, 1), nil
	inTier := func(m *api.Meta, s *api.CalicoPolicySpec) {
		if len(c.Tiers) > 0 && g.chance(60) {
			s.Tier = pick(g, c.Tiers...).Name
			m.Name = g.storedName(s.Tier, len(c.Tiers))
		}
	}
	for i := range c.CalicoNetworkPolicies {
		p := &c.CalicoNetworkPolicies[i]
		inTier(&p.Meta, &p.Spec.CalicoPolicySpec)
		g.names(c, &p.Spec.CalicoPolicySpec)
	}
	for i := range pick(g, 1, 2, 2) {
		p := g.CalicoGlobalNetworkPolicy(i)
		if i == 0 {
			inTier(&p.Meta, &p.Spec.CalicoPolicySpec)
		}
		if g.chance(60) {
			p.Spec.NamespaceSelector = ""
		}
		g.names(c, &p.Spec.CalicoPolicySpec)
		c.CalicoGlobalNetworkPolicies = append(c.CalicoGlobalNetworkPolicies, p)
	}
	if len(c.NetworkSets) > 0 && len(c.CalicoNetworkPolicies) > 0 {
		c.NetworkSets[0].Namespace = c.CalicoNetworkPolicies[0].Namespace
	}
	wide := func(m *api.Meta, nets *[]string) { // the set may have addresses of other namespaces' pods
		m.Labels["kind"], *nets = "wide", append(*nets, "10.0.0.0/8", "fd00::/64")
	}
	for i := range few(c.NetworkSets, 1) {
		wide(&c.NetworkSets[i].Meta, &c.NetworkSets[i].Spec.Nets)
	}
	for i := range few(c.GlobalNetworkSets, 1) {
		wide(&c.GlobalNetworkSets[i].Meta, &c.GlobalNetworkSets[i].Spec.Nets)
	}
	if g.chance(40) {
		g.forHosts(c)
		g.bySubject(c)
	}
	for i := range c.HostEndpoints {
		spec := &c.HostEndpoints[i].Spec
		spec.InterfaceName = pick(g, policy.AllInterfaces, policy.AllInterfaces, Uplink)
		spec.Profiles = several(g, 3, func() string {
			return pick(g, "projectcalico-default-allow", "ksa.ns-0.robot", "ksa.ns-1.default", "kns."+pick(g, c.Namespaces...).Name,
				"kns."+pick(g, c.Namespaces...).Name)
		})
	}
	return c
}

// bySubject makes some GlobalNetworkPolicies select by labels that may not be known yet.
func (g Generator) bySubject(c *Cluster) {
	for i := range c.CalicoGlobalNetworkPolicies {
		switch spec := &c.CalicoGlobalNetworkPolicies[i].Spec; g.IntN(5) {
		case 0:
			spec.Selector = g.text(inheritedLabels, "all()")
		case 1:
			spec.NamespaceSelector = g.namespaceText()
		case 2:
			spec.ServiceAccountSelector = g.text(accountViews, "all()")
		}
	}
}

func few[T any](all []T, n int) []T { return all[:min(len(all), n)] }

// namingForAll generates a ClusterNetworkPolicy for all pods; its first rules name pods or nodes. The rest is mostly
// allowed.
func (g Generator) namingForAll() api.ClusterNetworkPolicy {
	p := g.ClusterNetworkPolicy(0)
	p.Spec.Subject = api.ClusterNetworkPolicySubject{Namespaces: &api.LabelSelector{}}
	pods := func() (peer api.ClusterNetworkPolicyPeer) {
		peer.Namespaces, peer.Pods = g.clusterPods()
		return peer
	}
	to, from, rest := pods(), pods(), g.chance(50)
	if g.chance(50) {
		to = api.ClusterNetworkPolicyPeer{Nodes: g.peerSelector(nodeLabels)}
	}
	p.Spec.Egress = append([]api.ClusterNetworkPolicyEgressRule{{Action: g.action(), To: []api.ClusterNetworkPolicyPeer{to}}},
		few(p.Spec.Egress, 1)...)
	p.Spec.Ingress = append([]api.ClusterNetworkPolicyIngressRule{{Action: g.action(), From: []api.ClusterNetworkPolicyPeer{from}}},
		few(p.Spec.Ingress, 1)...)
	if rest {
		anywhere := []api.ClusterNetworkPolicyPeer{{Networks: []string{"0.0.0.0/0", "::/0"}}}
		anyone := []api.ClusterNetworkPolicyPeer{{Namespaces: &api.LabelSelector{}}}
		p.Spec.Egress = append(p.Spec.Egress, api.ClusterNetworkPolicyEgressRule{Action: "Accept", To: anywhere})
		p.Spec.Ingress = append(p.Spec.Ingress, api.ClusterNetworkPolicyIngressRule{Action: "Accept", From: anyone})
	}
	return p
}

// names adds such rules to a policy, and mostly makes it select all pods.
func (g Generator) names(c *Cluster, s *api.CalicoPolicySpec) {
	if g.chance(70) {
		s.Selector, s.ServiceAccountSelector = "", ""
	}
	rules := func(ingress bool, others []api.CalicoRule) (all []api.CalicoRule) {
		for range pick(g, 1, 1, 2) {
			all = append(all, g.naming(c, ingress))
		}
		if all = append(all, few(others, pick(g, 0, 0, 1))...); g.chance(65) {
			all = append(all, api.CalicoRule{Action: "Allow"})
		}
		return all
	}
	s.Ingress, s.Egress = rules(true, s.Ingress), rules(false, s.Egress)
}

// naming generates a rule that names one or two things of one end.
func (g Generator) naming(c *Cluster, ingress bool) (r api.CalicoRule) {
	r.Action = pick(g, "Allow", "Allow", "Allow", "Deny", "Deny", "Deny", "Pass", "Pass", "Log")
	own, peer := &r.Source, &r.Destination
	if ingress {
		own, peer = peer, own
	}
	if g.chance(15) {
		peer = own
	}
	selector := func() string {
		if g.chance(40) {
			return g.text(inheritedLabels, "all()")
		}
		return g.selectorText()
	}
	ports := func() []api.CalicoPort {
		protocol := api.CalicoProtocol(pick(g, "TCP", "TCP", "UDP"))
		r.Protocol = &protocol
		return []api.CalicoPort{api.CalicoPort(pick(g, portNames...))}
	}
	switch g.IntN(17) {
	case 0, 1:
		peer.Selector = selector()
	case 2, 3:
		peer.NotSelector = selector()
	case 4:
		peer.NamespaceSelector = g.namespaceText()
	case 5:
		peer.ServiceAccounts = g.accounts()
	case 6, 7:
		peer.Services = &api.CalicoServiceMatch{Name: pick(g, "api", "dns"), Namespace: pick(g, c.Namespaces...).Name}
	case 8:
		peer.Ports = ports()
	case 9:
		peer.NotPorts = ports()
	case 10:
		peer.Selector, peer.Ports = selector(), ports()
	case 11:
		peer.Nets, peer.Ports = []string{pick(g, "10.0.0.0/8", "0.0.0.0/0", "fd00::/64", g.net())}, ports()
	case 12:
		peer.Selector, peer.NotPorts = selector(), ports()
	case 13:
		peer.Selector, peer.NotSelector = selector(), selector()
	case 14, 15:
		peer.Selector, peer.Ports = "kind == 'wide'", ports()
		if peer.NamespaceSelector = pick(g, "", "", "global()", g.namespaceText()); g.chance(30) {
			peer.Ports, peer.NotPorts = nil, peer.Ports
		}
	case 16:
		own.Nets = []string{pick(g, "10.0.0.0/8", "fd00::/64", g.net())}
		if g.chance(50) {
			own.Nets, own.NotNets = nil, own.Nets
		}
	}
	return r
}

// target is a destination address, with ports there that rules may name.
type target struct {
	netip.Addr
	ports []ServicePort
}

// NamedPackets generates up to n packets between pods of Node and what rules name: pods, addresses of Services, nodes
// and sets, mostly at ports declared there.
func (g Generator) NamedPackets(c *Cluster, n int) (all []Packet) {
	own, peers := c.targets()
	others := c.otherAddresses()
	if len(own) == 0 {
		return nil
	}
	for range n {
		a, b := pick(g, own...), pick(g, peers...)
		if g.chance(15) {
			b = target{Addr: pick(g, others...)}
		}
		if a.Addr == b.Addr || a.Is4() != b.Is4() {
			continue
		}
		p := Packet{From: a.Addr, To: b.Addr, Protocol: pick[uint8](g, TCP, TCP, TCP, UDP, SCTP)}
		p.Port, p.SourcePort = uint16(pick(g, portNumbers...)), uint16(pick(g, portNumbers...))
		if len(b.ports) > 0 && g.chance(75) {
			at := pick(g, b.ports...)
			p.Protocol, p.Port = protocolNumber(at.Protocol), at.Port
		}
		if g.chance(50) {
			p.From, p.To, p.Port, p.SourcePort = p.To, p.From, p.SourcePort, p.Port
		}
		all = append(all, p)
	}
	return all
}

// targets returns the pods of Node, and everything that rules name.
func (c *Cluster) targets() (own, peers []target) {
	var all []ServicePort
	for i := range c.Pods {
		var ports []ServicePort
		pod := &c.Pods[i]
		for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			for _, p := range container.Ports {
				ports = append(ports, ServicePort{cmp.Or(p.Protocol, "TCP"), p.ContainerPort})
			}
		}
		all = append(all, ports...)
		for _, a := range Addresses(pod) {
			if c.PodAt(a) != pod {
				continue
			}
			if pod.Spec.NodeName == Node {
				own = append(own, target{Addr: a})
			} else {
				peers = append(peers, target{a, ports})
			}
			peers = append(peers, target{a, ports})
		}
	}
	nobodys, _ := PodAddress(MaxPods - 1)
	peers = append(peers, target{nobodys, all})
	for _, s := range c.NetworkSets {
		for _, net := range readableNets(s.Spec.Nets) {
			peers = append(peers, target{Addr: net.Addr()})
		}
	}
	for _, s := range c.Services {
		for _, e := range s.Endpoints {
			peers = append(peers, target{netip.MustParseAddr(e.Address), e.Ports})
		}
	}
	for _, n := range c.Nodes {
		for _, a := range n.Status.Addresses[1:] {
			peers = append(peers, target{Addr: netip.MustParseAddr(a.Address)})
		}
	}
	return own, peers
}

// Matching returns the Log rules that match a packet, whether or not it reaches them.
func (c *Cluster) Matching(pod *api.Pod, ingress bool, p Packet) (all []Log) {
	for _, a := range c.calicoPolicies(c.side(pod, ingress, p)) {
		for i, does := range a.does {
			if does == "Log" {
				all = append(all, Log{a.kind, a.namespace, a.name, i})
			}
		}
	}
	return all
}
