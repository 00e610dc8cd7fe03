package config

import (
	"net/netip"

	"github.com/tortie-net/tortie/internal/api"
)

// RawFelix is the part of Calico's FELIX_ environment that overrides FelixConfigurations, as it is written. Empty leaves a
// setting to the object node.NAME, and then to default.
type RawFelix struct {
	NATOutgoingAddress    string `env:"FELIX_NATOUTGOINGADDRESS" default:"" help:"Address that packets to outside of all pools are sent from, instead of the interface's. This and the next six override FelixConfiguration."`
	NATPortRange          string `env:"FELIX_NATPORTRANGE" default:"" help:"Ports that they are sent from, such as 32768:65535."`
	NATOutgoingExclusions string `env:"FELIX_NATOUTGOINGEXCLUSIONS" default:"" help:"What counts as inside: IPPoolsOnly or IPPoolsAndHostIPs."`
	IPForwarding          string `env:"FELIX_IPFORWARDING" default:"" help:"Disabled leaves the host's forwarding sysctls alone; else Enabled."`
	VXLANPort             string `env:"FELIX_VXLANPORT" default:"" help:"UDP port of VXLAN."`
	AllowIPIP             string `env:"FELIX_ALLOWIPIPPACKETSFROMWORKLOADS" default:"" help:"Let pods send IPIP to nodes."`
	AllowVXLAN            string `env:"FELIX_ALLOWVXLANPACKETSFROMWORKLOADS" default:"" help:"Let pods send VXLAN to nodes."`
}

// felix checks what the environment overrides. What it does not say is absent.
func (p *problems) felix(raw RawFelix) api.FelixConfigurationSpec {
	s := api.FelixConfigurationSpec{NATOutgoingAddress: raw.NATOutgoingAddress}
	if _, err := netip.ParseAddr(raw.NATOutgoingAddress); raw.NATOutgoingAddress != "" && err != nil {
		p.add("FELIX_NATOUTGOINGADDRESS", raw.NATOutgoingAddress, "must be an IP address of this node")
	}
	if ports := api.PortRange(raw.NATPortRange); ports != "" {
		s.NATPortRange = &ports
		if _, _, err := ports.Ports(); err != nil {
			p.add("FELIX_NATPORTRANGE", raw.NATPortRange, "must be a port or two with a colon between them, such as 32768:65535")
		}
	}
	if raw.NATOutgoingExclusions != "" {
		s.NATOutgoingExclusions = p.oneOf("FELIX_NATOUTGOINGEXCLUSIONS", raw.NATOutgoingExclusions, "IPPoolsOnly", "IPPoolsAndHostIPs")
	}
	if raw.IPForwarding != "" {
		s.IPForwarding = p.oneOf("FELIX_IPFORWARDING", raw.IPForwarding, "Enabled", "Disabled")
	}
	if raw.VXLANPort != "" {
		port := p.integer("FELIX_VXLANPORT", raw.VXLANPort, 1, 65535)
		s.VXLANPort = &port
	}
	s.AllowIPIPPacketsFromWorkloads = p.optionalBoolean("FELIX_ALLOWIPIPPACKETSFROMWORKLOADS", raw.AllowIPIP)
	s.AllowVXLANPacketsFromWorkloads = p.optionalBoolean("FELIX_ALLOWVXLANPACKETSFROMWORKLOADS", raw.AllowVXLAN)
	return s
}

func (p *problems) optionalBoolean(name, value string) *bool {
	if value == "" {
		return nil
	}
	b := p.boolean(name, value)
	return &b
}
