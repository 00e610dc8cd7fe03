package config

import (
	"net/netip"

	"github.com/tortie-net/tortie/internal/api"
)

// RawServices is the part of the environment that is about addresses of services.
type RawServices struct {
	ClusterIPs string `env:"CALICO_ADVERTISE_CLUSTER_IPS" default:"" help:"Comma-separated ranges of cluster IPs that are announced if BGPConfiguration default has no serviceClusterIPs."`
}

func (p *problems) serviceRanges(raw RawServices) []api.ServiceRange {
	var all []api.ServiceRange
	for _, text := range splitList(raw.ClusterIPs) {
		cidr, err := netip.ParsePrefix(text)
		if err != nil || cidr.Bits() == 0 || cidr.Addr().Is4In6() {
			p.add("CALICO_ADVERTISE_CLUSTER_IPS", raw.ClusterIPs, "must be CIDRs such as 10.96.0.0/12, with commas between")
			return nil
		}
		all = append(all, api.ServiceRange{CIDR: cidr.Masked().String()})
	}
	return all
}
