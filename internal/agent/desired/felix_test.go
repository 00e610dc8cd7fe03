package desired

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kernel/flowtable"
	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/hostsysctl"
	"github.com/tortie-net/tortie/internal/kernel/nat"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func TestParseFelix(t *testing.T) {
	full := api.FelixConfigurationSpec{
		NATOutgoingAddress: "192.0.2.7", NATPortRange: ptr(api.PortRange("32768:65535")), NATOutgoingExclusions: "IPPoolsAndHostIPs",
		IPForwarding: "Disabled", VXLANPort: ptr(8472), VXLANVNI: ptr(7), VXLANMTU: ptr(1400), VXLANMTUV6: ptr(1380),
		WireguardEnabled: ptr(true), WireguardEnabledV6: ptr(true), WireguardListeningPort: ptr(7),
		WireguardListeningPortV6: ptr(8), WireguardMTU: ptr(1400),
		WireguardMTUV6: ptr(1390), WireguardRoutingRulePriority: ptr(98), WireguardKeepAlive: "1m",
		WireguardThreadingEnabled: ptr(true),
		FeatureDetectOverride:     "Other=false, checksumOffloadBroken=true", AllowIPIPPacketsFromWorkloads: ptr(true),
		AllowVXLANPacketsFromWorkloads: ptr(true),
		FloatingIPs:                    "Enabled", WorkloadSourceSpoofing: "Any",
		FailsafeInboundHostPorts: ptr(api.FailsafePorts{{Protocol: "tcp", Port: 22},
			{Protocol: "UDP", Port: 68, Net: "10.1.2.3/8"}, {Protocol: "TCP", Port: 7, Net: "fd00::1"}}),
		FailsafeOutboundHostPorts: &api.FailsafePorts{}, DefaultEndpointToHostAction: "DROP",
		NftablesFilterDenyAction: "REJECT", IptablesFilterDenyAction: "Drop", DisableConntrackInvalidCheck: ptr(true), LogPrefix: "%t",
		LogActionRateLimit: "10/minute", LogActionRateLimitBurst: ptr(7),
	}
	parsed := Felix{
		NATSource: netip.MustParseAddr("192.0.2.7"), NATPorts: nft.Ports{First: 32768, Last: 65535}, ExcludeNodes: true,
		NoForwarding: true,
		VXLANPort:    8472, VXLANVNI: 7, VXLANMTU: 1400, VXLANMTU6: 1380, Checksums: checksumsSoft, AllowIPIP: true, AllowVXLAN: true,
		WireGuard: WireGuard{On: [2]bool{true, true}, Port: [2]uint16{7, 8}, MTU: [2]int{1400, 1390}, Priority: 98, Keepalive: 60,
			Threaded: wireguard.Threaded},
		Floats: true, OtherSources: true, Outbound: []policy.Failsafe{}, DropFromPods: true,
		Handling: policy.Handling{Reject: true, Invalid: true, Logs: policy.LogRate{Packets: 10, Seconds: 60, Burst: 7}}, LogPrefix: "%t",
		Inbound: []policy.Failsafe{{Protocol: policy.TCP, Port: 22}, {Protocol: policy.UDP, Port: 68, Net: netip.MustParsePrefix("10.0.0.0/8")},
			{Protocol: policy.TCP, Port: 7, Net: netip.MustParsePrefix("fd00::1/128")}},
	}
	for name, tt := range map[string]struct {
		spec         api.FelixConfigurationSpec
		before, want Felix
	}{
		"nothing":          {api.FelixConfigurationSpec{}, Felix{}, Felix{}},
		"everything":       {full, Felix{}, parsed},
		"nothing any more": {api.FelixConfigurationSpec{}, parsed, Felix{}},
		"derived MTUs": {api.FelixConfigurationSpec{VXLANMTU: ptr(0), VXLANMTUV6: ptr(0),
			FeatureDetectOverride: "ChecksumOffloadBroken=false"}, parsed, Felix{Checksums: checksumsByDevice}},
		"defaults": {
			api.FelixConfigurationSpec{NATOutgoingExclusions: "IPPoolsOnly", IPForwarding: "Enabled", AllowIPIPPacketsFromWorkloads: ptr(false)},
			parsed, Felix{},
		},
		"rejected by iptables": {api.FelixConfigurationSpec{IptablesFilterDenyAction: "Reject"}, Felix{},
			Felix{Handling: policy.Handling{Reject: true}}},
		"a rate alone": {api.FelixConfigurationSpec{LogActionRateLimit: "2/day"}, parsed,
			Felix{Handling: policy.Handling{Logs: policy.LogRate{Packets: 2, Seconds: 86400, Burst: 5}}}},
		"a burst alone": {api.FelixConfigurationSpec{LogActionRateLimitBurst: ptr(0)}, parsed, Felix{}},
		"one port": {api.FelixConfigurationSpec{NATPortRange: ptr(api.PortRange("7"))}, Felix{},
			Felix{NATPorts: nft.Ports{First: 7, Last: 7}}},
	} {
		got, problems := ParseFelix(tt.spec, tt.before)
		if !reflect.DeepEqual(got, tt.want) || len(problems) > 0 {
			t.Errorf("%s: %+v, %v; want %+v", name, got, problems, tt.want)
		}
	}
	for field, spec := range map[string]api.FelixConfigurationSpec{
		"natOutgoingAddress":           {NATOutgoingAddress: "192.0.2"},
		"natPortRange":                 {NATPortRange: ptr(api.PortRange("9:8"))},
		"natOutgoingExclusions":        {NATOutgoingExclusions: "Everything"},
		"ipForwarding":                 {IPForwarding: "maybe"},
		"vxlanPort":                    {VXLANPort: ptr(70000)},
		"vxlanVNI":                     {VXLANVNI: ptr(1 << 24)},
		"vxlanMTU":                     {VXLANMTU: ptr(20)},
		"vxlanMTUV6":                   {VXLANMTUV6: ptr(1279)},
		"wireguardListeningPort":       {WireguardListeningPort: ptr(0)},
		"wireguardListeningPortV6":     {WireguardListeningPortV6: ptr(1 << 16)},
		"wireguardMTU":                 {WireguardMTU: ptr(67)},
		"wireguardMTUV6":               {WireguardMTUV6: ptr(1279)},
		"wireguardRoutingRulePriority": {WireguardRoutingRulePriority: ptr(32766)},
		"wireguardKeepAlive":           {WireguardKeepAlive: "-1s"},
		"wireguardKeepAlive x":         {WireguardKeepAlive: "x"},
		"wireguardKeepAlive 100000s":   {WireguardKeepAlive: "100000s"},
		"floatingIPs":                  {FloatingIPs: "On"},
		"workloadSourceSpoofing":       {WorkloadSourceSpoofing: "Some"},
		"defaultEndpointToHostAction":  {DefaultEndpointToHostAction: "Reject"},
		"nftablesFilterDenyAction":     {NftablesFilterDenyAction: "Accept"},
		"iptablesFilterDenyAction":     {IptablesFilterDenyAction: "Return"},
		"logActionRateLimit":           {LogActionRateLimit: "10/week"},
		"logActionRateLimit 0/second":  {LogActionRateLimit: "0/second"},
		"logActionRateLimit 10":        {LogActionRateLimit: "10"},
		"logActionRateLimitBurst -1":   {LogActionRateLimit: "10/second", LogActionRateLimitBurst: ptr(-1)},
		"featureDetectOverride":        {FeatureDetectOverride: "ChecksumOffloadBroken=perhaps"},
	} {
		before := parsed
		before.AllowIPIP, before.AllowVXLAN, before.Handling.Invalid, before.LogPrefix = false, false, false, ""
		got, problems := ParseFelix(spec, before)
		if len(problems) != 1 || !errtest.Names(problems[0], "FelixConfiguration default spec."+field) {
			t.Errorf("%s: problems %v, want one that names it", field, problems)
		}
		if same := fmt.Sprintf("%+v", got); same == fmt.Sprintf("%+v", Felix{}) {
			t.Errorf("%s: %s, want what was there before in this field", field, same)
		}
	}
}

// Calico's ports replace invalid failsafe ports, whatever was there before, besides the valid ones.
func TestFailsafePorts(t *testing.T) {
	for text, want := range map[string]string{
		`{"failsafeInboundHostPorts":[{"protocol":"tcp","port":22},{"protocol":"icmp","port":1}]}`: "icmp",
		`{"failsafeInboundHostPorts":[{"protocol":"tcp","port":0}]}`:                               "Port:0",
		`{"failsafeInboundHostPorts":[{"protocol":"tcp","port":22,"net":"10.0.0.0/33"}]}`:          "10.0.0.0/33",
		`{"failsafeInboundHostPorts":[{"protocol":"tcp","port":"ssh"}]}`:                           "ssh",
		`{"failsafeInboundHostPorts":{"a":1}}`:                                                     `a`,
		`{"failsafeInboundHostPorts":"2222,ssh,tcp:22"}`:                                           "ssh",
		`{"failsafeInboundHostPorts":null}`:                                                        "",
	} {
		var spec api.FelixConfigurationSpec
		errtest.Must(t, json.Unmarshal([]byte(text), &spec))
		f, problems := ParseFelix(spec, Felix{Inbound: []policy.Failsafe{}})
		s := Snapshot{}
		s.Felix = f
		got, added := s.HostRules().Inbound, 0
		for _, d := range policy.DefaultInbound() {
			if !slices.Contains(got, d) {
				t.Errorf("%s: %v, want %v of the defaults", text, got, d)
			}
		}
		if strings.Contains(text, "2222") {
			added = 1
		}
		if len(got) != len(policy.DefaultInbound())+added {
			t.Errorf("%s: %v, want %d besides the defaults", text, got, added)
		}
		if (len(problems) == 1) != (want != "") || len(problems) == 1 && !errtest.Names(problems[0], "spec.failsafeInboundHostPorts "+want) {
			t.Errorf("%s: problems %v, want that %q is named", text, problems, want)
		}
	}
	for text, want := range map[string]int{
		`{"failsafeInboundHostPorts":[]}`: 0, `{"failsafeInboundHostPorts":"none"}`: 0,
		`{"failsafeInboundHostPorts":"tcp:22, udp:[fd00::/8]:53,tcp:10.0.0.1:7"}`: 3,
		`{"failsafeInboundHostPorts":"2222, tcp:8443,,[::/0]:22,10.0.0.0/8:23,"}`: 4,
	} {
		var spec api.FelixConfigurationSpec
		errtest.Must(t, json.Unmarshal([]byte(text), &spec))
		s := Snapshot{}
		var problems []error
		if s.Felix, problems = ParseFelix(spec, Felix{}); len(s.HostRules().Inbound) != want || len(problems) > 0 {
			t.Errorf("%s: %v, %v, want %d", text, s.HostRules().Inbound, problems, want)
		}
	}
}

// aPool returns one of the pools of a snapshot.
func aPool(cidr string, natOutgoing bool, mode api.Encapsulation, uses ...api.AllowedUse) Pool {
	return Pool{Pool: ipam.Pool{CIDR: netip.MustParsePrefix(cidr), Uses: uses}, NATOutgoing: natOutgoing, IPIP: mode}
}

func TestPacketsOfASnapshot(t *testing.T) {
	s := Snapshot{
		Self:   Self{Addr: netip.MustParsePrefix("192.0.2.1/24"), Link: "eth0"},
		Others: []Member{{Name: "a", Addr: netip.MustParseAddr("192.0.2.2")}, {Name: "b", Addr: netip.MustParseAddr("192.0.2.3")}},
		Pools: []Pool{
			aPool("10.1.0.0/16", true, api.EncapNever, api.UseWorkload, api.UseTunnel), // not enabled: pools of a snapshot count as they are
			aPool("10.2.0.0/16", false, api.EncapNever, api.UseWorkload, api.UseLoadBalancer),
			aPool("10.3.0.0/16", true, api.EncapNever, api.UseLoadBalancer),
		},
	}
	pools := []nat.Pool{{CIDR: netip.MustParsePrefix("10.1.0.0/16"), NATOutgoing: true}, {CIDR: netip.MustParsePrefix("10.2.0.0/16")}}
	nodes := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")}
	check := func(what string, want, got any) {
		t.Helper()
		difftest.Want(t, what, want, got, cmpopts.EquateEmpty())
	}
	check("NAT", nat.Config{Pools: pools}, s.NAT())
	cidrs := []netip.Prefix{pools[0].CIDR, pools[1].CIDR}
	check("guard", guard.Config{Nodes: nodes, PodLinks: "cali", Pools: cidrs}, s.Guard())
	check("host", hostsysctl.Config{Forward: true, Link: "eth0"}, s.Host())

	// Pods' source prefixes count if an operator allows them. BGP's ports are this node's, the mesh's, other nodes' and
	// peers'.
	s.Port, s.meshPort, s.Others[0].Port = 1790, 179, 1791
	s.Peering.Peers = []bgp.Peer{{Port: 1792}, {}}
	s.Self.Sources = []guard.Source{
		{Link: "cali1", Prefix: netip.MustParsePrefix("10.9.0.0/16")}, {Link: "cali1", Prefix: netip.MustParsePrefix("10.8.0.0/16")},
		{Link: "cali2", Prefix: netip.MustParsePrefix("fd00:9::/64")},
	}
	ports := []uint16{179, 1790, 1791, 1792}
	check("guard with ports", guard.Config{Nodes: nodes, PodLinks: "cali", BGPPorts: ports, Pools: cidrs}, s.Guard())
	check("host that does not allow sources", hostsysctl.Config{Forward: true, Link: "eth0"}, s.Host())
	s.Felix.OtherSources = true
	check("guard with sources",
		guard.Config{Nodes: nodes, PodLinks: "cali", BGPPorts: ports, Sources: s.Self.Sources, Pools: cidrs}, s.Guard())
	check("host with sources", hostsysctl.Config{Forward: true, Link: "eth0", Pods: []string{"cali1"}}, s.Host())
	s.Port, s.meshPort, s.Others[0].Port, s.Peering.Peers = 0, 0, 0, nil

	s.Felix = Felix{NATSource: nodes[0], NATPorts: nft.Ports{First: 1, Last: 2}, ExcludeNodes: true, NoForwarding: true,
		VXLANPort: 8472, VXLANVNI: 7, VXLANMTU: 1400, VXLANMTU6: 1380, Checksums: checksumsSoft, AllowIPIP: true, AllowVXLAN: true}
	s.Pools = append(s.Pools, aPool("10.4.0.0/16", false, api.EncapCrossSubnet, api.UseWorkload),
		aPool("fd00::/48", false, api.EncapNever, api.UseWorkload))
	cidrs = append(cidrs, netip.MustParsePrefix("10.4.0.0/16"), netip.MustParsePrefix("fd00::/48"))
	pools = append(pools, nat.Pool{CIDR: cidrs[2]}, nat.Pool{CIDR: cidrs[3]})
	check("NAT by configuration", nat.Config{Pools: pools, Nodes: nodes, Source: nodes[0], Ports: nft.Ports{First: 1, Last: 2}}, s.NAT())
	check("guard by configuration",
		guard.Config{Nodes: nodes, PodLinks: "cali", IPIP: true, VXLANPort: 8472, AllowIPIPFromPods: true, AllowVXLANFromPods: true,
			Pools: cidrs}, s.Guard())
	check("host by configuration, with nothing of IPv6 but a pool", hostsysctl.Config{Tunnels: []string{"tunl0"}, Link: "eth0"}, s.Host())
	check("what the report says of that", false, s.UsesIPv6())
	s.Blocks = []netip.Prefix{netip.MustParsePrefix("fd00::/122")}
	check("host by configuration, with a block of IPv6", hostsysctl.Config{IPv6: true, Tunnels: []string{"tunl0"}, Link: "eth0"}, s.Host())
	check("what the report says of that", true, s.UsesIPv6())
}

// Packets of pods without encapsulation leave by the node's links; if every pool encapsulates none do.
func TestFabric(t *testing.T) {
	self := Self{Addr: netip.MustParsePrefix("192.0.2.1/24"), Link: "eth0", Link6: "eth1"}
	uplinks := []string{"eth0", "eth1"}
	for name, c := range map[string]struct {
		pools []Pool
		want  flowtable.Fabric
	}{
		"no pool": {nil, flowtable.Fabric{}},
		"routes":  {[]Pool{{IPIP: api.EncapNever, VXLAN: api.EncapNever}}, flowtable.Fabric{Uplinks: uplinks}},
		"IPIP": {[]Pool{{Pool: ipam.Pool{CIDR: netip.MustParsePrefix("10.1.0.0/16")}, IPIP: api.EncapAlways}},
			flowtable.Fabric{IPIP: true}},
		"IPIP between subnets": {[]Pool{{Pool: ipam.Pool{CIDR: netip.MustParsePrefix("10.1.0.0/16")}, IPIP: api.EncapCrossSubnet}},
			flowtable.Fabric{IPIP: true, Uplinks: uplinks}},
		"VXLAN, and another way": {[]Pool{{Pool: ipam.Pool{CIDR: netip.MustParsePrefix("10.1.0.0/16")}, VXLAN: api.EncapAlways}, {}},
			flowtable.Fabric{VXLAN: true, Uplinks: uplinks}},
	} {
		s := Snapshot{Self: self, Pools: c.pools}
		got := s.Fabric()
		c.want.Underlay, c.want.Kernel = "eth0", flowtable.Running()
		difftest.Want(t, name, c.want, got, cmpopts.EquateEmpty())
	}
}
