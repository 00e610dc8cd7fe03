package services

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

// Config says which ranges are announced. The zero value: none.
type Config struct {
	ClusterIPs, ExternalIPs, LoadBalancerIPs []netip.Prefix
	// Apart: of LoadBalancerIPs no range is announced, but each service's address by itself.
	Apart bool
}

// Parse reads the settings of BGPConfiguration default. A CIDR that cannot be used is left out, and named with its
// field by an error; the others count.
func Parse(spec *api.BGPConfigurationSpec) (Config, []error) {
	var problems []error
	note := func(err error) { problems = append(problems, err) }
	c := Config{
		ClusterIPs:      ranges("spec.serviceClusterIPs", spec.ServiceClusterIPs, note),
		ExternalIPs:     ranges("spec.serviceExternalIPs", spec.ServiceExternalIPs, note),
		LoadBalancerIPs: ranges("spec.serviceLoadBalancerIPs", spec.ServiceLoadBalancerIPs, note),
	}
	switch spec.ServiceLoadBalancerAggregation {
	case "", "Enabled":
	case "Disabled":
		c.Apart = true
	default:
		note(fmt.Errorf("spec.serviceLoadBalancerAggregation %q: use Enabled or Disabled", spec.ServiceLoadBalancerAggregation))
	}
	return c, problems
}

// ranges reads CIDRs, in ascending order and each once.
func ranges(field string, all []api.ServiceRange, note func(error)) []netip.Prefix {
	var out []netip.Prefix
	for _, r := range all {
		cidr, err := netip.ParsePrefix(r.CIDR)
		switch {
		case err != nil || cidr.Addr().Is4In6():
			note(fmt.Errorf("%s %q is no CIDR, such as 10.96.0.0/12: its addresses are not announced", field, r.CIDR))
		case cidr.Bits() == 0:
			note(fmt.Errorf("%s %q is all there is: name the range that services have", field, r.CIDR))
		default:
			out = append(out, cidr.Masked()) // Calico takes host bits for a slip, too
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// On reports that something may be announced, so that Services and their endpoints are to be known.
func (c Config) On() bool { return len(c.ClusterIPs)+len(c.ExternalIPs)+len(c.LoadBalancerIPs) > 0 }

// Equal reports that two say the same.
func (c Config) Equal(o Config) bool {
	return c.Apart == o.Apart && slices.Equal(c.ClusterIPs, o.ClusterIPs) && slices.Equal(c.ExternalIPs, o.ExternalIPs) &&
		slices.Equal(c.LoadBalancerIPs, o.LoadBalancerIPs)
}

// Ranges are all ranges of services, in ascending order. Prefixes learned inside of them must never be programmed into
// this node's kernel: every node serves these addresses itself, and a node that announces them is no better next hop.
func (c Config) Ranges() []netip.Prefix {
	all := slices.Concat(c.ClusterIPs, c.ExternalIPs, c.LoadBalancerIPs)
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// Passed are the ranges that a route reflector passes on when it learns them, which is more than its own: a service
// that only other nodes announce, as its endpoints are there.
func (c Config) Passed() []netip.Prefix {
	all := slices.Concat(c.ExternalIPs, c.LoadBalancerIPs)
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}
