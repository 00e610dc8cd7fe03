package services

import (
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

// Input is the complete input of the decision.
type Input struct {
	Config
	// Excluded: the node's label keeps it out of load balancing (api.LabelExcludeNode). It announces nothing.
	Excluded bool
	Services []api.Service
	// Endpoints are the endpoints of all services, in any order.
	Endpoints []Endpoints
}

// Endpoints is the part of an EndpointSlice that matters to one node.
type Endpoints struct {
	Namespace, Service string
	// IPv6 is the family of the slice's addresses; false: IPv4.
	IPv6 bool
	// Here: an endpoint is ready on this node. Anywhere: an endpoint is ready on some node.
	Here, Anywhere bool
}

// Reduce returns the part of a slice that matters to a node; ok is false for a useless slice, such as one of names.
func Reduce(s *api.EndpointSlice, node string) (e Endpoints, ok bool) {
	e = Endpoints{Namespace: s.Namespace, Service: s.Labels[api.LabelServiceName], IPv6: s.AddressType == api.AddressIPv6}
	if e.Service == "" || !e.IPv6 && s.AddressType != api.AddressIPv4 {
		return Endpoints{}, false
	}
	for _, p := range s.Endpoints {
		if p.Conditions.Ready != nil && !*p.Conditions.Ready {
			continue
		}
		e.Anywhere = true
		e.Here = e.Here || p.NodeName != nil && *p.NodeName == node
	}
	return e, true
}

// Announce returns the prefixes that the node announces for services, in ascending order: the ranges, from every node;
// and single addresses, which routers prefer to their range.
//
// A service's addresses are announced one by one if its traffic must go to the nodes with an endpoint (policy Local),
// or if its range is not announced because it is a single address or aggregation is off. Then all its addresses are
// announced, including cluster IPs if these are announced at all. A required endpoint must have the family of the
// address: a node without one would drop the attracted packets.
func Announce(in Input) []netip.Prefix {
	if in.Excluded || !in.On() {
		return nil
	}
	out := in.wholes()
	ready := collect(in.Endpoints)
	for i := range in.Services {
		out = append(out, in.addresses(&in.Services[i], ready)...)
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out) // two services may share an address: it is withdrawn with the last of them
}

// wholes returns the ranges that every node announces. A single address is announced with its service instead.
func (c Config) wholes() []netip.Prefix {
	all := slices.Concat(c.ClusterIPs, c.ExternalIPs)
	if !c.Apart {
		all = append(all, c.LoadBalancerIPs...)
	}
	return slices.DeleteFunc(all, func(r netip.Prefix) bool { return r.IsSingleIP() && !slices.Contains(c.ClusterIPs, r) })
}

// name identifies a service.
type name struct{ namespace, service string }

// readiness is whether a service has ready endpoints here and anywhere, by family: IPv4 first.
type readiness struct{ here, anywhere [2]bool }

func family(is6 bool) int {
	if is6 {
		return 1
	}
	return 0
}

// collect joins the slices of each service.
func collect(all []Endpoints) map[name]readiness {
	ready := make(map[name]readiness, len(all))
	for _, e := range all {
		if !e.Anywhere {
			continue
		}
		n, f := name{e.Namespace, e.Service}, family(e.IPv6)
		r := ready[n]
		r.anywhere[f] = true
		r.here[f] = r.here[f] || e.Here
		ready[n] = r
	}
	return ready
}

// need is the condition for announcing a service's addresses one by one.
type need int

const (
	never need = iota
	always
	anEndpoint
	anEndpointHere
)

// need returns the condition of a service.
func (c Config) need(s *api.Service) need {
	switch {
	case s.Spec.Type != api.ServiceClusterIP && s.Spec.Type != api.ServiceNodePort && s.Spec.Type != api.ServiceLoadBalancer:
		return never
	case s.Spec.ClusterIP == "" || s.Spec.ClusterIP == "None":
		return never
	case s.Spec.ExternalTrafficPolicy == api.TrafficLocal:
		return anEndpointHere
	case s.Spec.ExternalTrafficPolicy != api.TrafficCluster:
		return never
	case c.hasSingle(s):
		return always
	case c.Apart && s.Spec.Type == api.ServiceLoadBalancer:
		return anEndpoint
	}
	return never
}

// hasSingle reports whether the configuration has one of the service's addresses as a range of its own.
func (c Config) hasSingle(s *api.Service) bool {
	single := func(ranges []netip.Prefix, text string) bool {
		a, err := netip.ParseAddr(text)
		return err == nil && slices.Contains(ranges, netip.PrefixFrom(a, a.BitLen()))
	}
	if slices.ContainsFunc(s.Spec.ExternalIPs, func(ip string) bool { return single(c.ExternalIPs, ip) }) {
		return true
	}
	return s.Spec.Type == api.ServiceLoadBalancer && (single(c.LoadBalancerIPs, s.Spec.LoadBalancerIP) ||
		slices.ContainsFunc(s.Status.LoadBalancer.Ingress, func(i api.LoadBalancerIngress) bool { return single(c.LoadBalancerIPs, i.IP) }))
}

// addresses returns the addresses of a service that are announced one by one.
func (c Config) addresses(s *api.Service, ready map[name]readiness) []netip.Prefix {
	need := c.need(s)
	if need == never {
		return nil
	}
	r := ready[name{s.Namespace, s.Name}]
	var out []netip.Prefix
	add := func(text string, ranges []netip.Prefix) {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is4In6() || ranges != nil && !within(a, ranges) {
			return
		}
		if f := family(a.Is6()); need == always || need == anEndpoint && r.anywhere[f] || need == anEndpointHere && r.here[f] {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	if len(c.ClusterIPs) > 0 {
		for _, ip := range clusterIPs(s) {
			add(ip, nil)
		}
	}
	if len(c.ExternalIPs) > 0 {
		for _, ip := range s.Spec.ExternalIPs {
			add(ip, c.ExternalIPs)
		}
	}
	if len(c.LoadBalancerIPs) > 0 {
		for _, i := range s.Status.LoadBalancer.Ingress {
			add(i.IP, c.LoadBalancerIPs)
		}
	}
	return out
}

func within(a netip.Addr, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}

// clusterIPs returns a service's cluster IPs. The list may be missing in objects of an old API server.
func clusterIPs(s *api.Service) []string {
	if len(s.Spec.ClusterIPs) == 0 {
		return []string{s.Spec.ClusterIP}
	}
	return s.Spec.ClusterIPs
}
