package services

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

// Config holds the announced ranges. The zero value: none.
type Config struct {
	ClusterIPs, ExternalIPs, LoadBalancerIPs []netip.Prefix
	// Apart: LoadBalancerIPs are announced as single addresses of services, not as ranges.
	Apart bool
}

// Parse reads the settings of BGPConfiguration default. An unusable CIDR is left out, with an error that names its
// field; the others count.
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

// ranges reads CIDRs, in ascending order, without duplicates.
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

// On reports whether anything may be announced, which requires to know Services and their endpoints.
func (c Config) On() bool { return len(c.ClusterIPs)+len(c.ExternalIPs)+len(c.LoadBalancerIPs) > 0 }

// Equal reports whether two are equal.
func (c Config) Equal(o Config) bool {
	return c.Apart == o.Apart && slices.Equal(c.ClusterIPs, o.ClusterIPs) && slices.Equal(c.ExternalIPs, o.ExternalIPs) &&
		slices.Equal(c.LoadBalancerIPs, o.LoadBalancerIPs)
}

// Ranges returns all ranges of services, in ascending order. Prefixes learned inside of them must never be programmed
// into this node's kernel: every node serves these addresses itself, and a node that announces them is no better next
// hop.
func (c Config) Ranges() []netip.Prefix {
	all := slices.Concat(c.ClusterIPs, c.ExternalIPs, c.LoadBalancerIPs)
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}

// Passed returns the ranges that a route reflector passes on when it learns them. These are more than its own: only
// nodes with endpoints announce some services.
func (c Config) Passed() []netip.Prefix {
	all := slices.Concat(c.ExternalIPs, c.LoadBalancerIPs)
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}
