package config

import (
	"net/netip"

	"github.com/tortie-net/tortie/internal/api"
)

// RawFelix is the part of Calico's FELIX_ environment that overrides FelixConfigurations. Empty leaves a setting to the
// object node.NAME, and then to default.
type RawFelix struct {
	NATOutgoingAddress    string `env:"FELIX_NATOUTGOINGADDRESS" default:"" help:"As natOutgoingAddress of FelixConfiguration (docs/node.md), which these FELIX_ variables override."`
	NATPortRange          string `env:"FELIX_NATPORTRANGE" default:"" help:"As natPortRange, such as 32768:65535."`
	NATOutgoingExclusions string `env:"FELIX_NATOUTGOINGEXCLUSIONS" default:"" is:"IPPoolsOnly|IPPoolsAndHostIPs" help:"As natOutgoingExclusions: IPPoolsOnly or IPPoolsAndHostIPs."`
	IPForwarding          string `env:"FELIX_IPFORWARDING" default:"" is:"Enabled|Disabled" help:"As ipForwarding: Enabled or Disabled."`
	VXLANPort             *int   `env:"FELIX_VXLANPORT" default:"" is:"1-65535" help:"As vxlanPort."`
	VXLANVNI              *int   `env:"FELIX_VXLANVNI" default:"" is:"1-16777215" help:"As vxlanVNI."`
	VXLANMTU              *int   `env:"FELIX_VXLANMTU" default:"" is:"0-65535" help:"MTU of vxlan.calico; 0: FelixConfiguration's vxlanMTU, else the interface's less 50."`
	VXLANMTUV6            *int   `env:"FELIX_VXLANMTUV6" default:"" is:"0-65535" help:"The same for vxlan-v6.calico and vxlanMTUV6, less 70."`
	WireGuard             *bool  `env:"FELIX_WIREGUARDENABLED" default:"" help:"As wireguardEnabled."`
	WireGuardV6           *bool  `env:"FELIX_WIREGUARDENABLEDV6" default:"" help:"As wireguardEnabledV6."`
	WireGuardPort         *int   `env:"FELIX_WIREGUARDLISTENINGPORT" default:"" is:"1-65535" help:"As wireguardListeningPort."`
	WireGuardPortV6       *int   `env:"FELIX_WIREGUARDLISTENINGPORTV6" default:"" is:"1-65535" help:"As wireguardListeningPortV6."`
	WireGuardMTU          *int   `env:"FELIX_WIREGUARDMTU" default:"" is:"0-65535" help:"MTU of wireguard.cali; 0: FelixConfiguration's wireguardMTU, else the interface's less 60."`
	WireGuardMTUV6        *int   `env:"FELIX_WIREGUARDMTUV6" default:"" is:"0-65535" help:"The same for wg-v6.cali and wireguardMTUV6, less 80."`
	WireGuardPriority     *int   `env:"FELIX_WIREGUARDROUTINGRULEPRIORITY" default:"" is:"1-32765" help:"As wireguardRoutingRulePriority."`
	WireGuardKeepAlive    string `env:"FELIX_WIREGUARDPERSISTENTKEEPALIVE" default:"" help:"As wireguardKeepAlive, such as 25s."`
	WireGuardHosts        *bool  `env:"FELIX_WIREGUARDHOSTENCRYPTIONENABLED" default:"" help:"As wireguardHostEncryptionEnabled: true is refused."`
	WireGuardThreads      *bool  `env:"FELIX_WIREGUARDTHREADINGENABLED" default:"" help:"As wireguardThreadingEnabled; needs TORTIE_NET_SYSFS."`
	FeatureDetectOverride string `env:"FELIX_FEATUREDETECTOVERRIDE" default:"" help:"As featureDetectOverride; only ChecksumOffloadBroken is known."`
	AllowIPIP             *bool  `env:"FELIX_ALLOWIPIPPACKETSFROMWORKLOADS" default:"" help:"As allowIPIPPacketsFromWorkloads."`
	AllowVXLAN            *bool  `env:"FELIX_ALLOWVXLANPACKETSFROMWORKLOADS" default:"" help:"As allowVXLANPacketsFromWorkloads."`
	FailsafeInbound       string `env:"FELIX_FAILSAFEINBOUNDHOSTPORTS" default:"" help:"As failsafeInboundHostPorts, such as tcp:22,udp:10.0.0.0/8:68, or none."`
	FailsafeOutbound      string `env:"FELIX_FAILSAFEOUTBOUNDHOSTPORTS" default:"" help:"As failsafeOutboundHostPorts, in the same form."`
	EndpointToHost        string `env:"FELIX_DEFAULTENDPOINTTOHOSTACTION" default:"" help:"As defaultEndpointToHostAction: Accept, Return or Drop, in any case."`
	NftablesDeny          string `env:"FELIX_NFTABLESFILTERDENYACTION" default:"" help:"As nftablesFilterDenyAction: Drop or Reject, in any case."`
	IptablesDeny          string `env:"FELIX_IPTABLESFILTERDENYACTION" default:"" help:"As iptablesFilterDenyAction, which counts where nftablesFilterDenyAction is absent."`
	InvalidToo            *bool  `env:"FELIX_DISABLECONNTRACKINVALIDCHECK" default:"" help:"As disableConntrackInvalidCheck."`
	LogPrefix             string `env:"FELIX_LOGPREFIX" default:"" help:"As logPrefix."`
	LogRate               string `env:"FELIX_LOGACTIONRATELIMIT" default:"" help:"As logActionRateLimit, such as 10/second."`
	LogBurst              *int   `env:"FELIX_LOGACTIONRATELIMITBURST" default:"" is:"0-65535" help:"As logActionRateLimitBurst."`
	FloatingIPs           string `env:"FELIX_FLOATINGIPS" default:"" is:"Disabled|Enabled" help:"As floatingIPs: Enabled or Disabled."`
	SourceSpoofing        string `env:"FELIX_WORKLOADSOURCESPOOFING" default:"" is:"Disabled|Any" help:"As workloadSourceSpoofing: Any or Disabled."`
}

// felix returns the overrides in the environment. Fields that are not set there stay absent.
func (p *problems) felix(raw RawFelix) api.FelixConfigurationSpec {
	s := api.FelixConfigurationSpec{
		NATOutgoingAddress: raw.NATOutgoingAddress, NATOutgoingExclusions: raw.NATOutgoingExclusions, IPForwarding: raw.IPForwarding,
		FeatureDetectOverride: raw.FeatureDetectOverride, WorkloadSourceSpoofing: raw.SourceSpoofing, FloatingIPs: raw.FloatingIPs,
		VXLANPort: raw.VXLANPort, VXLANVNI: raw.VXLANVNI,
		VXLANMTU: positive(raw.VXLANMTU), VXLANMTUV6: positive(raw.VXLANMTUV6),
		AllowIPIPPacketsFromWorkloads: raw.AllowIPIP, AllowVXLANPacketsFromWorkloads: raw.AllowVXLAN,
	}
	s.WireguardEnabled, s.WireguardEnabledV6, s.WireguardListeningPort, s.WireguardListeningPortV6 = raw.WireGuard, raw.WireGuardV6,
		raw.WireGuardPort, raw.WireGuardPortV6
	s.WireguardMTU, s.WireguardMTUV6, s.WireguardRoutingRulePriority = positive(raw.WireGuardMTU),
		positive(raw.WireGuardMTUV6), raw.WireGuardPriority
	s.WireguardKeepAlive, s.WireguardHostEncryptionEnabled, s.WireguardThreadingEnabled = raw.WireGuardKeepAlive,
		raw.WireGuardHosts, raw.WireGuardThreads
	s.FailsafeInboundHostPorts, s.FailsafeOutboundHostPorts = failsafePorts(raw.FailsafeInbound), failsafePorts(raw.FailsafeOutbound)
	s.DefaultEndpointToHostAction = raw.EndpointToHost
	s.NftablesFilterDenyAction, s.IptablesFilterDenyAction, s.DisableConntrackInvalidCheck = raw.NftablesDeny, raw.IptablesDeny, raw.InvalidToo
	s.LogPrefix, s.LogActionRateLimit, s.LogActionRateLimitBurst = raw.LogPrefix, raw.LogRate, raw.LogBurst
	if _, err := netip.ParseAddr(raw.NATOutgoingAddress); raw.NATOutgoingAddress != "" && err != nil {
		p.add("FELIX_NATOUTGOINGADDRESS", raw.NATOutgoingAddress, "must be an IP address of this node")
	}
	if ports := api.PortRange(raw.NATPortRange); ports != "" {
		s.NATPortRange = &ports
		if _, _, err := ports.Ports(); err != nil {
			p.add("FELIX_NATPORTRANGE", raw.NATPortRange, "must be a port or two with a colon between them, such as 32768:65535")
		}
	}
	return s
}

// failsafePorts keeps invalid text: the agent reports it, and uses the defaults.
func failsafePorts(text string) *api.FailsafePorts {
	if text == "" {
		return nil
	}
	ports := api.ReadFailsafePorts(text)
	return &ports
}

// positive returns nil for 0, which Calico's manifest sets everywhere.
func positive(n *int) *int {
	if n != nil && *n == 0 {
		return nil
	}
	return n
}
