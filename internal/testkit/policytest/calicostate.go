package policytest

import (
	"net/netip"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/policy"
)

// addCalico adds Calico's objects, as a server of groups.V1 has them, and other objects that only its policies read.
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
	c.addThings(s)
	var objects []*api.CalicoTier
	for i := range c.Tiers {
		objects = append(objects, &c.Tiers[i])
	}
	tiers, _ := policy.FromCalicoTiers(objects)
	for i := range c.CalicoNetworkPolicies {
		groups.V1.Read(&c.CalicoNetworkPolicies[i])
		if p, err := policy.FromCalicoNetworkPolicy(&c.CalicoNetworkPolicies[i], tiers); err == nil {
			s.Policies = append(s.Policies, p)
		}
	}
	for i := range c.CalicoGlobalNetworkPolicies {
		groups.V1.Read(&c.CalicoGlobalNetworkPolicies[i])
		if p, err := policy.FromCalicoGlobalNetworkPolicy(&c.CalicoGlobalNetworkPolicies[i], tiers); err == nil {
			s.Policies = append(s.Policies, p)
		}
	}
}

// addThings adds network sets and host endpoints.
func (c *Cluster) addThings(s *policy.State) {
	for i := range c.NetworkSets {
		set, _ := policy.FromCalicoNetworkSet(&c.NetworkSets[i])
		s.Sets = append(s.Sets, set)
	}
	for i := range c.GlobalNetworkSets {
		set, _ := policy.FromCalicoGlobalNetworkSet(&c.GlobalNetworkSets[i])
		s.Sets = append(s.Sets, set)
	}
	for i := range c.HostEndpoints {
		host, _ := policy.FromCalicoHostEndpoint(&c.HostEndpoints[i])
		s.HostEndpoints = append(s.HostEndpoints, host)
	}
}

// known converts an endpoint; without ports it has only an address.
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
