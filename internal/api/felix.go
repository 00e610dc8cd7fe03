package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// FelixConfiguration holds settings of the nodes' dataplane: object "default" for all nodes, "node.NAME" for one.
type FelixConfiguration struct {
	Meta `json:"metadata"`
	Spec FelixConfigurationSpec `json:"spec"`
}

// FelixConfigurationSpec is the part of a FelixConfiguration that this project reads or writes. An absent field takes
// its value from the next source: node.NAME, then default, then the program's own value.
//
// Calico's other fields are kept, without effect.
type FelixConfigurationSpec struct {
	// Keys are the fields without effect.
	Keys Keys `json:"-"`
	// IPIPMTU is the MTU of tunl0; 0 derives it from the link with the node's address.
	IPIPMTU *int `json:"ipipMTU,omitempty"`
	// NATOutgoingAddress is the source address of packets that leave all pools, instead of the interface's address.
	// +tortie:v3:rule:rule="self == '' || isIP(self) && ip(self).family() == 4",message="natOutgoingAddress is an IPv4 address: give one such as 192.0.2.1"
	NATOutgoingAddress string `json:"natOutgoingAddress,omitempty"`
	// NATPortRange limits the source ports of these packets: one port, or two with a colon between them.
	NATPortRange *PortRange `json:"natPortRange,omitempty"`
	// NATOutgoingExclusions selects the destinations that keep the pod's address: IPPoolsOnly, the default, or
	// IPPoolsAndHostIPs.
	// +tortie:v3:schema=`{"enum":["IPPoolsOnly","IPPoolsAndHostIPs"]}`
	NATOutgoingExclusions string `json:"natOutgoingExclusions,omitempty"`
	// IPForwarding Disabled leaves the host's forwarding sysctls alone; the default is Enabled.
	// +tortie:v3:schema=`{"enum":["Enabled","Disabled"]}`
	IPForwarding string `json:"ipForwarding,omitempty"`
	// VXLANPort is the UDP port of VXLAN; the default is 4789.
	VXLANPort *int `json:"vxlanPort,omitempty"`
	// VXLANVNI is the VXLAN network identifier; the default is 4096.
	VXLANVNI *int `json:"vxlanVNI,omitempty"`
	// VXLANMTU is the MTU of vxlan.calico; 0 derives it from the link with the node's address.
	VXLANMTU *int `json:"vxlanMTU,omitempty"`
	// VXLANMTUV6 is the MTU of vxlan-v6.calico; 0 derives it.
	VXLANMTUV6 *int `json:"vxlanMTUV6,omitempty"`
	// WireguardEnabled encrypts IPv4 between pods of different nodes, and from nodes to pods of others; the default is
	// false.
	WireguardEnabled *bool `json:"wireguardEnabled,omitempty"`
	// WireguardEnabledV6 encrypts IPv6; the default is false.
	WireguardEnabledV6 *bool `json:"wireguardEnabledV6,omitempty"`
	// WireguardListeningPort is the UDP port of all nodes for IPv4; the default is 51820.
	// +tortie:v3:schema=`{"minimum":1,"maximum":65535}`
	WireguardListeningPort *int `json:"wireguardListeningPort,omitempty"`
	// WireguardListeningPortV6 is the UDP port of all nodes for IPv6; the default is 51821.
	// +tortie:v3:schema=`{"minimum":1,"maximum":65535}`
	WireguardListeningPortV6 *int `json:"wireguardListeningPortV6,omitempty"`
	// WireguardMTU is the MTU of wireguard.cali; 0 derives it from the link with the node's address.
	WireguardMTU *int `json:"wireguardMTU,omitempty"`
	// WireguardMTUV6 is the MTU of wg-v6.cali; 0 derives it.
	WireguardMTUV6 *int `json:"wireguardMTUV6,omitempty"`
	// WireguardRoutingRulePriority is the priority of the ip rule that leads packets to tables 1 and 2; the default is 99.
	// +tortie:v3:schema=`{"minimum":1,"maximum":32765}`
	WireguardRoutingRulePriority *int `json:"wireguardRoutingRulePriority,omitempty"`
	// WireguardKeepAlive is the interval of keepalives, such as 25s; the default is 0: none.
	// +tortie:v3:schema=`{"pattern":"^([0-9]+(ms|s|m|h))*$"}`
	WireguardKeepAlive string `json:"wireguardKeepAlive,omitempty"`
	// WireguardHostEncryptionEnabled true is refused: packets to the addresses of nodes are not encrypted.
	WireguardHostEncryptionEnabled *bool `json:"wireguardHostEncryptionEnabled,omitempty"`
	// WireguardThreadingEnabled makes the kernel receive each peer's packets in a separate thread (true) or not (false);
	// the default is the kernel's: true since Linux 6.16.
	WireguardThreadingEnabled *bool `json:"wireguardThreadingEnabled,omitempty"`
	// FeatureDetectOverride overrides detected kernel features. Only ChecksumOffloadBroken=true or false is read here.
	// +tortie:v3:schema=`{"pattern":"^([a-zA-Z0-9_-]+=(true|false)(,|$)|,)*$"}`
	FeatureDetectOverride string `json:"featureDetectOverride,omitempty"`
	// AllowIPIPPacketsFromWorkloads lets pods send IPIP to nodes; the default is false.
	AllowIPIPPacketsFromWorkloads *bool `json:"allowIPIPPacketsFromWorkloads,omitempty"`
	// AllowVXLANPacketsFromWorkloads lets pods send VXLAN to nodes; the default is false.
	AllowVXLANPacketsFromWorkloads *bool `json:"allowVXLANPacketsFromWorkloads,omitempty"`
	// FloatingIPs Enabled makes nodes translate the addresses in their pods' annotation cni.projectcalico.org/floatingIPs;
	// the default is Disabled.
	// +tortie:v3:schema=`{"enum":["Enabled","Disabled"]}`
	FloatingIPs string `json:"floatingIPs,omitempty"`
	// WorkloadSourceSpoofing Any lets pods with annotation cni.projectcalico.org/allowedSourcePrefixes send from these
	// prefixes; the default is Disabled.
	// +tortie:v3:schema=`{"pattern":"^(?i)(Disabled|Any)?$"}`
	WorkloadSourceSpoofing string `json:"workloadSourceSpoofing,omitempty"`
	// FailsafeInboundHostPorts are ports that the node's own programs always receive on, whatever the policies of host
	// endpoints deny; [] is none. The default is UDP 68, TCP 22, 179, 2379, 2380, 5473, 6443, 6666, 6667.
	FailsafeInboundHostPorts *FailsafePorts `json:"failsafeInboundHostPorts,omitempty"`
	// FailsafeOutboundHostPorts are ports that these programs always send to. The default is UDP 53, 67, TCP 179, 2379,
	// 2380, 5473, 6443, 6666, 6667.
	FailsafeOutboundHostPorts *FailsafePorts `json:"failsafeOutboundHostPorts,omitempty"`
	// DefaultEndpointToHostAction decides on connections from pods to their node that the pods' policies allow: Accept,
	// the default, Return, which is the same here, or Drop.
	// +tortie:v3:schema=`{"pattern":"^(?i)(Drop|Accept|Return)?$"}`
	DefaultEndpointToHostAction string `json:"defaultEndpointToHostAction,omitempty"`
	// NftablesFilterDenyAction is the action for packets that policies deny: Drop, the default, or Reject, with an ICMP
	// error.
	// +tortie:v3:schema=`{"pattern":"^(?i)(Drop|Reject)?$"}`
	NftablesFilterDenyAction string `json:"nftablesFilterDenyAction,omitempty"`
	// IptablesFilterDenyAction applies if nftablesFilterDenyAction is absent.
	// +tortie:v3:schema=`{"pattern":"^(?i)(Drop|Reject)?$"}`
	IptablesFilterDenyAction string `json:"iptablesFilterDenyAction,omitempty"`
	// DisableConntrackInvalidCheck true leaves packets to the policies that connection tracking finds invalid: they belong
	// to no connection and open none. The default, false, drops them.
	DisableConntrackInvalidCheck *bool `json:"disableConntrackInvalidCheck,omitempty"`
	// LogPrefix precedes the agent's log lines for packets that match Log rules. %t, %k, %n, %p stand for the policy's
	// tier, kind, name, and name with its namespace. The default is calico-packet.
	// +tortie:v3:schema=`{"pattern":"^[a-zA-Z0-9%: /_-]*$"}`
	LogPrefix string `json:"logPrefix,omitempty"`
	// LogActionRateLimit limits the lines of each Log rule, such as 10/second or 100/hour. Without it lines are a sample.
	// +tortie:v3:schema=`{"pattern":"^[1-9][0-9]{0,3}/(second|minute|hour|day)$"}`
	LogActionRateLimit string `json:"logActionRateLimit,omitempty"`
	// LogActionRateLimitBurst is how many of these packets are logged at once; the default is 5.
	// +tortie:v3:schema=`{"minimum":0,"maximum":9999}`
	LogActionRateLimitBurst *int `json:"logActionRateLimitBurst,omitempty"`
	// LogSeverityScreen is kept for Calico nodes that share the cluster.
	// +tortie:v3:schema=`{"pattern":"^(?i)(Trace|Debug|Info|Warning|Error|Fatal)?$"}`
	LogSeverityScreen string `json:"logSeverityScreen,omitempty"`
	// ReportingInterval is kept for Calico nodes that share the cluster.
	// +tortie:v3:schema=`{"pattern":"^([0-9]+(ms|s|m|h))*$"}`
	ReportingInterval string `json:"reportingInterval,omitempty"`
}

// ResourceType implements Resource.
func (*FelixConfiguration) ResourceType() Type {
	return custom("FelixConfiguration", "felixconfigurations")
}

// Over returns s, with the absent fields taken from base.
func (s FelixConfigurationSpec) Over(base FelixConfigurationSpec) FelixConfigurationSpec {
	return FelixConfigurationSpec{
		IPIPMTU:                        cmp.Or(s.IPIPMTU, base.IPIPMTU),
		NATOutgoingAddress:             cmp.Or(s.NATOutgoingAddress, base.NATOutgoingAddress),
		NATPortRange:                   cmp.Or(s.NATPortRange, base.NATPortRange),
		NATOutgoingExclusions:          cmp.Or(s.NATOutgoingExclusions, base.NATOutgoingExclusions),
		IPForwarding:                   cmp.Or(s.IPForwarding, base.IPForwarding),
		VXLANPort:                      cmp.Or(s.VXLANPort, base.VXLANPort),
		VXLANVNI:                       cmp.Or(s.VXLANVNI, base.VXLANVNI),
		VXLANMTU:                       cmp.Or(s.VXLANMTU, base.VXLANMTU),
		VXLANMTUV6:                     cmp.Or(s.VXLANMTUV6, base.VXLANMTUV6),
		WireguardEnabled:               cmp.Or(s.WireguardEnabled, base.WireguardEnabled),
		WireguardEnabledV6:             cmp.Or(s.WireguardEnabledV6, base.WireguardEnabledV6),
		WireguardListeningPort:         cmp.Or(s.WireguardListeningPort, base.WireguardListeningPort),
		WireguardListeningPortV6:       cmp.Or(s.WireguardListeningPortV6, base.WireguardListeningPortV6),
		WireguardMTU:                   cmp.Or(s.WireguardMTU, base.WireguardMTU),
		WireguardMTUV6:                 cmp.Or(s.WireguardMTUV6, base.WireguardMTUV6),
		WireguardRoutingRulePriority:   cmp.Or(s.WireguardRoutingRulePriority, base.WireguardRoutingRulePriority),
		WireguardKeepAlive:             cmp.Or(s.WireguardKeepAlive, base.WireguardKeepAlive),
		WireguardHostEncryptionEnabled: cmp.Or(s.WireguardHostEncryptionEnabled, base.WireguardHostEncryptionEnabled),
		WireguardThreadingEnabled:      cmp.Or(s.WireguardThreadingEnabled, base.WireguardThreadingEnabled),
		FeatureDetectOverride:          cmp.Or(s.FeatureDetectOverride, base.FeatureDetectOverride),
		AllowIPIPPacketsFromWorkloads:  cmp.Or(s.AllowIPIPPacketsFromWorkloads, base.AllowIPIPPacketsFromWorkloads),
		AllowVXLANPacketsFromWorkloads: cmp.Or(s.AllowVXLANPacketsFromWorkloads, base.AllowVXLANPacketsFromWorkloads),
		FloatingIPs:                    cmp.Or(s.FloatingIPs, base.FloatingIPs),
		WorkloadSourceSpoofing:         cmp.Or(s.WorkloadSourceSpoofing, base.WorkloadSourceSpoofing),
		FailsafeInboundHostPorts:       cmp.Or(s.FailsafeInboundHostPorts, base.FailsafeInboundHostPorts),
		FailsafeOutboundHostPorts:      cmp.Or(s.FailsafeOutboundHostPorts, base.FailsafeOutboundHostPorts),
		DefaultEndpointToHostAction:    cmp.Or(s.DefaultEndpointToHostAction, base.DefaultEndpointToHostAction),
		NftablesFilterDenyAction:       cmp.Or(s.NftablesFilterDenyAction, base.NftablesFilterDenyAction),
		IptablesFilterDenyAction:       cmp.Or(s.IptablesFilterDenyAction, base.IptablesFilterDenyAction),
		DisableConntrackInvalidCheck:   cmp.Or(s.DisableConntrackInvalidCheck, base.DisableConntrackInvalidCheck),
		LogPrefix:                      cmp.Or(s.LogPrefix, base.LogPrefix),
		LogActionRateLimit:             cmp.Or(s.LogActionRateLimit, base.LogActionRateLimit),
		LogActionRateLimitBurst:        cmp.Or(s.LogActionRateLimitBurst, base.LogActionRateLimitBurst),
		LogSeverityScreen:              cmp.Or(s.LogSeverityScreen, base.LogSeverityScreen),
		ReportingInterval:              cmp.Or(s.ReportingInterval, base.ReportingInterval),
	}
}

// FailsafePorts are ports of hosts. In JSON they may also be text, as in Calico's environment. Any other value becomes
// a port with an unreadable protocol.
type FailsafePorts []FailsafePort

// FailsafePort is a port of a host, for peers in a network or for all.
type FailsafePort struct {
	Protocol string `json:"protocol,omitempty"`
	Port     int    `json:"port"`
	Net      string `json:"net,omitempty"`
}

// UnmarshalJSON never fails: a mistake here must not hide the rest of a FelixConfiguration.
func (p *FailsafePorts) UnmarshalJSON(data []byte) error {
	type plain FailsafePorts
	var list plain
	var text string
	switch {
	case json.Unmarshal(data, &list) == nil:
		*p = FailsafePorts(list)
	case json.Unmarshal(data, &text) == nil:
		*p = ReadFailsafePorts(text)
	default:
		*p = FailsafePorts{{Protocol: string(data)}}
	}
	return nil
}

// ReadFailsafePorts reads PROTOCOL:PORT and PROTOCOL:NET:PORT, separated by commas, or none. As in Felix, PROTOCOL
// defaults to TCP and empty items are skipped. An item that cannot be read gets an unreadable protocol.
func ReadFailsafePorts(text string) FailsafePorts {
	ports := FailsafePorts{}
	if strings.EqualFold(strings.TrimSpace(text), "none") {
		return ports
	}
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		protocol, rest, found := strings.Cut(word, ":")
		if !found || strings.ContainsAny(protocol, "[.0123456789") {
			protocol, rest = "tcp", word
		}
		at := strings.LastIndex(rest, ":")
		n, err := strconv.Atoi(rest[at+1:])
		if err != nil {
			ports = append(ports, FailsafePort{Protocol: word})
			continue
		}
		ports = append(ports, FailsafePort{protocol, n, strings.Trim(rest[:max(at, 0)], "[]")})
	}
	return ports
}

// PortRange is a port, or two with a colon between them. In JSON one port may be a number, as Calico's schema allows.
//
// +kubebuilder:validation:XIntOrString
type PortRange string

// UnmarshalJSON accepts a number, too, as its text.
func (r *PortRange) UnmarshalJSON(data []byte) error { return numberOrText(data, (*string)(r)) }

func numberOrText(data []byte, into *string) error {
	if len(data) > 0 && data[0] == '"' {
		return json.Unmarshal(data, into)
	}
	var n json.Number
	if err := json.Unmarshal(data, &n); err != nil {
		return err
	}
	*into = string(n)
	return nil
}

// Ports returns the first and the last port.
func (r PortRange) Ports() (first, last uint16, err error) {
	low, high, two := strings.Cut(string(r), ":")
	if !two {
		high = low
	}
	first, err1 := port(low)
	last, err2 := port(high)
	if err1 != nil || err2 != nil || first > last {
		return 0, 0, fmt.Errorf("port range %q is neither a port nor two such as 32768:65535, the lower one first", string(r))
	}
	return first, last, nil
}

func port(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err == nil && n == 0 {
		err = strconv.ErrRange
	}
	return uint16(n), err
}
