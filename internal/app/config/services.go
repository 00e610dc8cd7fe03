package config

import (
	"net/netip"

	"github.com/tortie-net/tortie/internal/api"
)

func (p *problems) serviceRanges(list string) []api.ServiceRange {
	var all []api.ServiceRange
	for _, text := range splitList(list) {
		cidr, err := netip.ParsePrefix(text)
		if err != nil || cidr.Bits() == 0 || cidr.Addr().Is4In6() {
			p.add("CALICO_ADVERTISE_CLUSTER_IPS", list, "must be CIDRs such as 10.96.0.0/12, with commas between")
			return nil
		}
		all = append(all, api.ServiceRange{CIDR: cidr.Masked().String()})
	}
	return all
}
