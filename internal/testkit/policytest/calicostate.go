package policytest

import (
	"net/netip"

	"github.com/tortie-net/tortie/internal/policy"
)

// addCalico adds what only Calico's policies read.
func (c *Cluster) addCalico(s *policy.State) {
	s.Services, s.Accounts = map[policy.Service][]policy.ServiceEndpoint{}, map[policy.Account]map[string]string{}
	for _, a := range c.ServiceAccounts {
		s.Accounts[policy.Account{Namespace: a.Namespace, Name: a.Name}] = a.Labels
	}
	for _, service := range c.Services {
		key := policy.Service{Namespace: service.Namespace, Name: service.Name}
		for _, e := range service.Endpoints {
			s.Services[key] = append(s.Services[key], e.known()...)
		}
	}
	for i := range c.NetworkSets {
		n := &c.NetworkSets[i]
		s.Sets = append(s.Sets, policy.NetworkSet{Namespace: n.Namespace, Name: n.Name, Labels: merged(&n.Meta), Nets: readableNets(n.Spec.Nets)})
	}
	for i := range c.GlobalNetworkSets {
		n := &c.GlobalNetworkSets[i]
		s.Sets = append(s.Sets, policy.NetworkSet{Name: n.Name, Labels: merged(&n.Meta), Nets: readableNets(n.Spec.Nets)})
	}
	for i := range c.HostEndpoints {
		h := &c.HostEndpoints[i]
		to := policy.HostEndpoint{Name: h.Name, Labels: merged(&h.Meta)}
		for _, n := range readableNets(h.Spec.ExpectedIPs) {
			to.Addresses = append(to.Addresses, n.Addr())
		}
		for _, p := range h.Spec.Ports {
			number, _ := readProtocol(string(p.Protocol))
			to.Ports = append(to.Ports, policy.NamedPort{Name: p.Name, Protocol: number, Port: uint16(p.Port)})
		}
		s.HostEndpoints = append(s.HostEndpoints, to)
	}
}

// known: an endpoint without ports has an address only.
func (e ServiceEndpoint) known() (all []policy.ServiceEndpoint) {
	a := netip.MustParseAddr(e.Address)
	for _, p := range e.Ports {
		all = append(all, policy.ServiceEndpoint{Address: a, Protocol: protocolNumber(p.Protocol), Port: p.Port})
	}
	if len(all) == 0 {
		all = append(all, policy.ServiceEndpoint{Address: a})
	}
	return all
}
