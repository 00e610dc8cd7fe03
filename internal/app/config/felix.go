package config

import (
	"net/netip"

	"github.com/tortie-net/tortie/internal/api"
)

// RawFelix is the part of Calico's FELIX_ environment that overrides FelixConfigurations, as it is written. Empty leaves a
// setting to the object node.NAME, and then to default.
type RawFelix struct {
	NATOutgoingAddress    string `env:"FELIX_NATOUTGOINGADDRESS" default:"" help:"As natOutgoingAddress of FelixConfiguration (docs/node.md), which these FELIX_ variables override."`
	NATPortRange          string `env:"FELIX_NATPORTRANGE" default:"" help:"As natPortRange, such as 32768:65535."`
	NATOutgoingExclusions string `env:"FELIX_NATOUTGOINGEXCLUSIONS" default:"" help:"As natOutgoingExclusions: IPPoolsOnly or IPPoolsAndHostIPs."`
	IPForwarding          string `env:"FELIX_IPFORWARDING" default:"" help:"As ipForwarding: Enabled or Disabled."`
	VXLANPort             string `env:"FELIX_VXLANPORT" default:"" help:"As vxlanPort."`
	VXLANVNI              string `env:"FELIX_VXLANVNI" default:"" help:"As vxlanVNI."`
	VXLANMTU              string `env:"FELIX_VXLANMTU" default:"" help:"MTU of vxlan.calico; 0: FelixConfiguration's vxlanMTU, else the interface's less 50."`
	VXLANMTUV6            string `env:"FELIX_VXLANMTUV6" default:"" help:"The same for vxlan-v6.calico and vxlanMTUV6, less 70."`
	FeatureDetectOverride string `env:"FELIX_FEATUREDETECTOVERRIDE" default:"" help:"As featureDetectOverride; only ChecksumOffloadBroken is known."`
	AllowIPIP             string `env:"FELIX_ALLOWIPIPPACKETSFROMWORKLOADS" default:"" help:"As allowIPIPPacketsFromWorkloads."`
	AllowVXLAN            string `env:"FELIX_ALLOWVXLANPACKETSFROMWORKLOADS" default:"" help:"As allowVXLANPacketsFromWorkloads."`
	SourceSpoofing        string `env:"FELIX_WORKLOADSOURCESPOOFING" default:"" help:"As workloadSourceSpoofing: Any or Disabled."`
}

// felix checks what the environment overrides. What it does not say is absent.
func (p *problems) felix(raw RawFelix) api.FelixConfigurationSpec {
	s := api.FelixConfigurationSpec{NATOutgoingAddress: raw.NATOutgoingAddress, FeatureDetectOverride: raw.FeatureDetectOverride}
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
	if raw.SourceSpoofing != "" {
		s.WorkloadSourceSpoofing = p.oneOf("FELIX_WORKLOADSOURCESPOOFING", raw.SourceSpoofing, "Disabled", "Any")
	}
	s.VXLANPort = p.optionalInteger("FELIX_VXLANPORT", raw.VXLANPort, 1, 65535)
	s.VXLANVNI = p.optionalInteger("FELIX_VXLANVNI", raw.VXLANVNI, 1, 1<<24-1)
	s.VXLANMTU = p.optionalMTU("FELIX_VXLANMTU", raw.VXLANMTU)
	s.VXLANMTUV6 = p.optionalMTU("FELIX_VXLANMTUV6", raw.VXLANMTUV6)
	s.AllowIPIPPacketsFromWorkloads = p.optionalBoolean("FELIX_ALLOWIPIPPACKETSFROMWORKLOADS", raw.AllowIPIP)
	s.AllowVXLANPacketsFromWorkloads = p.optionalBoolean("FELIX_ALLOWVXLANPACKETSFROMWORKLOADS", raw.AllowVXLAN)
	return s
}

func (p *problems) optionalInteger(name, value string, low, high int) *int {
	if value == "" {
		return nil
	}
	n := p.integer(name, value, low, high)
	return &n
}

// optionalMTU takes 0 for nothing: Calico's manifest sets it everywhere.
func (p *problems) optionalMTU(name, value string) *int {
	n := p.optionalInteger(name, value, 0, 65535)
	if n != nil && *n == 0 {
		return nil
	}
	return n
}

func (p *problems) optionalBoolean(name, value string) *bool {
	if value == "" {
		return nil
	}
	b := p.boolean(name, value)
	return &b
}
