package policytest

import (
	"fmt"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// Values for Calico's objects, besides those for Kubernetes' objects.
var (
	accountNames  = []string{"default", "robot"}
	accountLabels = map[string][]string{"team": {"red", "blue"}, "app": {"web"}}
	thingLabels   = map[string][]string{"app": {"web", "db", "api"}, "tier": {"x", "y"}, "kind": {"partner", "bad"}}
	// tierNames are names of tiers; the last one never has an object. Two are the names of ClusterNetworkPolicy's own
	// tiers without their prefix.
	tierNames   = []string{"t0", "admin", "baseline", "t3"}
	shownLabels = map[string][]string{
		"projectcalico.org/namespace": {"ns-0", "ns-1"}, "projectcalico.org/orchestrator": {"k8s"},
		"projectcalico.org/serviceaccount": {"default", "robot"},
		"pcns.env":                         {"dev", "prod"}, "pcns.projectcalico.org/name": {"ns-0", "ns-1"}, "pcsa.team": {"red", "blue"},
		"pcsa.projectcalico.org/name": {"robot"},
	}
	namespaceViews = map[string][]string{"env": {"dev", "prod"}, "team": {"a", "b"}, "projectcalico.org/name": {"ns-0", "ns-1"},
		"kubernetes.io/metadata.name": {"ns-0", "ns-2"}}
	accountViews = map[string][]string{"team": {"red", "blue"}, "app": {"web"}, "projectcalico.org/name": {"default", "robot"}}
	badSelectors = []string{"app = 'web'", "has (app)", "app == web", "&&", "app in {'web'", "(all()", "app"}
	calicoPorts  = []string{"0", "1", "53", "80", "80", "81", "443", "8080", "65535", "1:80", "80:443", "8080:65535", "0:0", "0:65535",
		"http", "http", "dns", "metrics"}
	badAccounts = []string{"default,robot", "default robot", "robot)", "robot: ", `default", "robot`, "Robot", "",
		"ro\nbot", "robot\x00", "robot."}
	badPorts  = []string{"", "443:80", "65536", "-1", "1:70000", "a b", "ä"}
	icmpTypes = []int{0, 3, 8, 13, 128, 254}
	icmpCodes = []int{0, 1, 255}
)

// CalicoCluster generates a cluster with objects of all kinds.
func (g Generator) CalicoCluster() *Cluster {
	c := g.Cluster()
	for _, n := range c.Namespaces {
		for _, name := range accountNames {
			if a := (ServiceAccount{api.Meta{Namespace: n.Name, Name: name, Labels: g.labels(accountLabels)}}); g.chance(90) {
				c.ServiceAccounts = append(c.ServiceAccounts, a)
			}
		}
	}
	for i := range c.Pods {
		c.Pods[i].Spec.ServiceAccountName = pick(g, "default", "default", "robot", "robot", "")
		if g.chance(5) {
			c.Pods[i].Labels[pick(g, "pcns.env", "pcsa.team", "projectcalico.org/namespace")] = pick(g, "prod", "red", "ns-0")
		}
		if g.chance(10) {
			c.Pods[i].Labels["projectcalico.org/serviceaccount"] = pick(g, accountNames...)
		}
	}
	c.NetworkPolicies, c.ClusterNetworkPolicies = fewer(g, c.NetworkPolicies), fewer(g, c.ClusterNetworkPolicies)
	c.Services = several(g, 3, func() Service { return g.service(c) })
	g.sets(c)
	for _, name := range tierNames[:3] {
		if g.chance(60) {
			c.Tiers = append(c.Tiers, g.tier(name))
		}
	}
	if g.chance(5) {
		c.Tiers = append(c.Tiers, g.tier("default"))
	}
	n := 0
	c.CalicoNetworkPolicies = several(g, 5, func() api.CalicoNetworkPolicy { n++; return g.CalicoNetworkPolicy(c, n) })
	c.CalicoGlobalNetworkPolicies = several(g, 5, func() api.CalicoGlobalNetworkPolicy { n++; return g.CalicoGlobalNetworkPolicy(n) })
	return c
}

// fewer keeps at most two, and none in half of the clusters.
func fewer[T any](g Generator, all []T) []T { return all[:min(len(all), pick(g, 0, 0, 1, 2))] }

// service generates a Service with endpoints at pods and elsewhere. Two may have one name, as EndpointSlices of one
// Service do.
func (g Generator) service(c *Cluster) Service {
	all := append(c.otherAddresses(), c.podAddresses()...)
	return Service{
		Meta: api.Meta{Namespace: pick(g, c.Namespaces...).Name, Name: pick(g, "api", "dns")},
		Endpoints: several(g, 4, func() ServiceEndpoint {
			return ServiceEndpoint{pick(g, all...).String(), several(g, 2, func() ServicePort {
				return ServicePort{pick(g, protocols...), pick(g, ports...)}
			})}
		}),
	}
}

// sets generates network sets and host endpoints.
func (g Generator) sets(c *Cluster) {
	n := 0
	meta := func(namespace string) api.Meta {
		n++
		m := api.Meta{Namespace: namespace, Name: fmt.Sprintf("set-%d", n), Labels: g.labels(thingLabels)}
		if g.chance(20) {
			m.Annotations = map[string]string{"projectcalico.org/metadata": fmt.Sprintf(`{"labels": {"kind": %q}}`, pick(g, "partner", "bad"))}
		}
		if g.chance(10) {
			m.Labels["projectcalico.org/orchestrator"] = "k8s"
		}
		if g.chance(50) {
			key := pick(g, "projectcalico.org/namespace", "projectcalico.org/serviceaccount", "pcns.env", "pcsa.team")
			m.Labels[key] = pick(g, shownLabels[key]...)
		}
		return m
	}
	c.NetworkSets = several(g, 3, func() api.CalicoNetworkSet {
		return api.CalicoNetworkSet{Meta: meta(pick(g, c.Namespaces...).Name), Spec: api.CalicoNetworkSetSpec{Nets: several(g, 4, g.net)}}
	})
	c.GlobalNetworkSets = several(g, 2, func() api.CalicoGlobalNetworkSet {
		return api.CalicoGlobalNetworkSet{Meta: meta(""), Spec: api.CalicoGlobalNetworkSetSpec{Nets: several(g, 4, g.net)}}
	})
	c.HostEndpoints = several(g, 2, func() (h api.CalicoHostEndpoint) {
		h.Meta = meta("")
		h.Spec = api.CalicoHostEndpointSpec{Node: Node, InterfaceName: "*", ExpectedIPs: several(g, 3, func() string {
			return pick(g, "172.16.0.1", "172.16.0.2", "fd01::1", "fd01::2", "192.168.1.200")
		})}
		h.Spec.Ports = several(g, 3, func() api.CalicoEndpointPort {
			return api.CalicoEndpointPort{Name: pick(g, portNames...), Protocol: api.CalicoProtocol(pick(g, "TCP", "udp", "SCTP", "6")),
				Port: int(pick(g, ports...))}
		})
		return h
	})
}

// net returns a CIDR or an address, rarely neither.
func (g Generator) net() string {
	text := g.cidr()
	if g.chance(10) {
		text, _, _ = strings.Cut(text, "/")
	}
	return text
}

func (g Generator) tier(name string) (t api.CalicoTier) {
	t.Name = name
	t.Spec.Order = g.order(-1, 1, 10, 999, 1000, 1000, 1000, 2000, 1e6, 1e7, 1e7, 1e7+1)
	t.Spec.DefaultAction = pick(g, "", "Deny", "Deny", "Pass", "Pass", "Allow")
	return t
}

func (g Generator) order(from ...float64) *float64 {
	if g.chance(15) {
		return nil
	}
	order := pick(g, from...)
	return &order
}

// CalicoNetworkPolicy generates the i-th CalicoNetworkPolicy of a cluster.
func (g Generator) CalicoNetworkPolicy(c *Cluster, i int) (p api.CalicoNetworkPolicy) {
	p.Namespace = pick(g, c.Namespaces...).Name
	p.Spec.CalicoPolicySpec = g.calicoSpec()
	p.Name = g.storedName(p.Spec.Tier, i)
	return p
}

// CalicoGlobalNetworkPolicy generates the i-th GlobalNetworkPolicy of a cluster.
func (g Generator) CalicoGlobalNetworkPolicy(i int) (p api.CalicoGlobalNetworkPolicy) {
	p.Spec.CalicoPolicySpec = g.calicoSpec()
	p.Name = g.storedName(p.Spec.Tier, i)
	if g.chance(30) {
		p.Spec.NamespaceSelector = g.namespaceText()
	}
	if g.chance(5) {
		p.Spec.ApplyOnForward, p.Spec.DoNotTrack, p.Spec.PreDNAT = true, g.chance(50), g.chance(50)
	}
	return p
}

// storedName returns a name that may also be a NetworkPolicy's.
func (g Generator) storedName(tier string, i int) string {
	if tier != "" && tier != "default" {
		return fmt.Sprintf("%s.p-%d", tier, i)
	}
	return pick(g, "", "default.") + pick(g, "p", "np", "a") + fmt.Sprintf("-%d", i)
}

func (g Generator) calicoSpec() (s api.CalicoPolicySpec) {
	s.Tier, s.Order = pick(g, "", "", "default", pick(g, tierNames...), pick(g, tierNames...)), g.order(-0.5, 0, 999, 1000, 1000, 1001)
	s.Types = pick(g, nil, nil, []string{"Ingress"}, []string{"Egress"}, []string{"Ingress", "Egress"}, []string{"egress", "ingress"})
	if g.chance(1) {
		s.Types = []string{"Both"}
	}
	if g.chance(60) {
		s.Selector = g.selectorText()
	}
	if g.chance(20) {
		s.ServiceAccountSelector = g.text(accountViews, "all()")
	}
	s.Ingress = several(g, 4, func() api.CalicoRule { return g.calicoRule(true) })
	s.Egress = several(g, 4, func() api.CalicoRule { return g.calicoRule(false) })
	return s
}

// calicoRule generates a rule that likely matches: most fields are absent, above all on the own end.
func (g Generator) calicoRule(ingress bool) (r api.CalicoRule) {
	r.Action = pick(g, "Allow", "Allow", "Allow", "Deny", "Deny", "Pass", "Log", "allow")
	if g.chance(2) {
		r.Action = pick(g, "", "Accept")
	}
	if g.chance(8) {
		version := pick(g, 4, 6, 4, 6, 4, 6, 5)
		r.IPVersion = &version
	}
	if g.chance(55) {
		r.Protocol = g.calicoProtocol()
	}
	if g.chance(8) {
		r.NotProtocol = g.calicoProtocol()
	}
	icmp := r.Protocol != nil && strings.HasPrefix(strings.ToUpper(string(*r.Protocol)), "ICMP")
	if icmp && g.chance(60) || g.chance(1) {
		r.ICMP = g.icmp()
	}
	if icmp && g.chance(25) || g.chance(1) {
		r.NotICMP = g.icmp()
	}
	own, peer := &r.Source, &r.Destination
	if ingress {
		own, peer = peer, own
	}
	if g.chance(70) {
		g.entity(peer)
	}
	if g.chance(12) {
		g.entity(own)
	}
	if g.chance(40) {
		g.portsOf(&r.Destination)
	}
	if g.chance(8) {
		g.portsOf(&r.Source)
	}
	if g.chance(1) {
		r.HTTP = &api.CalicoHTTP{Methods: []string{"GET"}}
	}
	return r
}

func (g Generator) calicoProtocol() *api.CalicoProtocol {
	p := api.CalicoProtocol(pick(g, "TCP", "TCP", "TCP", "tcp", "6", "UDP", "UDP", "17", "SCTP", "ICMP", "ICMPv6", "icmp", "UDPLite", "253"))
	if g.chance(2) {
		p = api.CalicoProtocol(pick(g, "", "0", "256", "TCPX"))
	}
	return &p
}

func (g Generator) icmp() *api.CalicoICMP {
	kind := pick(g, icmpTypes...)
	m := &api.CalicoICMP{Type: &kind}
	if g.chance(40) {
		code := pick(g, icmpCodes...)
		m.Code = &code
	}
	switch g.IntN(16) {
	case 0:
		m.Type = nil
	case 1:
		kind = pick(g, -1, 255)
	case 2:
		m.Type, m.Code = nil, nil
	}
	return m
}

// entity sets one to three fields.
func (g Generator) entity(e *api.CalicoEntityRule) {
	for range 1 + g.IntN(3)*g.IntN(2) {
		switch g.IntN(12) {
		case 0, 1, 2:
			e.Nets = append(several(g, 2, g.net), g.net())
		case 3:
			e.NotNets = append(several(g, 2, g.net), g.net())
		case 4, 5, 6:
			e.Selector = g.selectorText()
		case 7:
			e.NotSelector = g.selectorText()
		case 8, 9:
			e.NamespaceSelector = g.namespaceText()
		case 10:
			e.ServiceAccounts = g.accounts()
		case 11:
			if g.chance(80) {
				*e = api.CalicoEntityRule{}
			}
			e.Services = &api.CalicoServiceMatch{Name: pick(g, "api", "dns", "none"), Namespace: pick(g, "", "ns-0", "ns-0", "ns-1")}
			return
		}
	}
}

func (g Generator) accounts() *api.CalicoServiceAccounts {
	a := &api.CalicoServiceAccounts{Names: several(g, 2, func() string { return pick(g, "default", "robot", "none") })}
	switch g.IntN(8) {
	case 0:
		a.Names = []string{}
	case 1:
		a.Names = append(a.Names, pick(g, badAccounts...))
	}
	if g.chance(50) {
		a.Selector = g.text(accountViews, "all()")
	}
	return a
}

func (g Generator) portsOf(e *api.CalicoEntityRule) {
	one := func() api.CalicoPort {
		if g.chance(2) {
			return api.CalicoPort(pick(g, badPorts...))
		}
		return api.CalicoPort(pick(g, calicoPorts...))
	}
	if g.chance(70) {
		e.Ports = append(several(g, 2, one), one())
	}
	if g.chance(35) {
		e.NotPorts = append(several(g, 2, one), one())
	}
}

// Selector generates a selector in Calico's language, and labels for it; every third lacks characters, or has them in
// other places.
func (g Generator) Selector() (text string, labels map[string]string) {
	text = g.text(thingLabels, "all()", "global()", "has( app )")
	for g.chance(33) {
		i, j := g.IntN(len(text)+1), g.IntN(len(text)+1)
		text = text[:min(i, j)] + pick(g, "", "", " ", "!", "\t", text[max(i, j):]) + text[max(i, j):]
	}
	return text, g.labels(thingLabels)
}

func (g Generator) selectorText() string {
	if g.chance(30) {
		return g.text(shownLabels, "all()")
	}
	return g.text(thingLabels, "all()")
}

func (g Generator) namespaceText() string {
	return g.text(namespaceViews, "all()", "all()", "global()")
}

// text returns a selector on labels, with the given functions; rarely an invalid one.
func (g Generator) text(from map[string][]string, functions ...string) string {
	if g.IntN(400) == 0 {
		return pick(g, badSelectors...)
	}
	text := g.term(from, functions, 2)
	for g.chance(20) {
		text += pick(g, " && ", " || ", "||", "\t&&") + g.term(from, functions, 2)
	}
	return text
}

func (g Generator) term(from map[string][]string, functions []string, depth int) string {
	if depth > 0 && g.chance(12) {
		return pick(g, "", "!", "! ! ") + "(" + g.term(from, functions, depth-1) + pick(g, " && ", " || ") +
			g.term(from, functions, depth-1) + ")"
	}
	if g.chance(12) {
		return pick(g, functions...)
	}
	key := pick(g, sortedKeys(from)...)
	value, quote := pick(g, from[key]...), pick(g, "'", "'", `"`)
	quoted := func(value string) string { return quote + value + quote }
	part := quoted(value[:1+g.IntN(len(value))])
	return pick(g, "", "", "", "", "!") + pick(g,
		"has("+key+")", key+" == "+quoted(value), key+"=="+quoted(value), key+" == "+quoted(value), key+" != "+quoted(value),
		key+" in {"+quoted(value)+", "+quoted(pick(g, from[key]...))+"}", key+" not in {"+quoted(value)+",}", key+" notin {"+quoted(value)+"}",
		key+" in {}", key+" contains "+part, key+" starts with "+part, key+" startswith "+part, key+" ends with "+quoted(value[len(value)-1:]))
}

// CalicoPackets generates packets as Packets does, with all fields that Calico's rules read. No two are of one
// connection.
func (g Generator) CalicoPackets(c *Cluster, n int) (all []Packet) {
	seen := map[Packet]bool{}
	for _, p := range g.Packets(c, n) {
		switch p.Protocol {
		case ICMP, ICMPv6:
			p.Type, p.Code = uint8(pick(g, icmpTypes...)), uint8(pick(g, icmpCodes...))
			if p.Type == 0 {
				p.Code = 1 // for rigs both 0 is an echo request
			}
		case TCP, UDP, SCTP:
			p.SourcePort = pick(g, ports...)
		default:
			p.Protocol = pick(g, p.Protocol, p.Protocol, udpLite)
		}
		back := p
		back.From, back.To, back.Port, back.SourcePort = p.To, p.From, p.SourcePort, p.Port
		if !seen[p] && !seen[back] {
			all = append(all, p)
		}
		seen[p] = true
	}
	return all
}
