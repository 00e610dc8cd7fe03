package desired

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/flowtable"
	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/hostsysctl"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/nat"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/policy"
)

// Felix has the fields of a FelixConfiguration that concern packets. The zero value is Calico's default.
type Felix struct {
	NATSource           netip.Addr
	NATPorts            nft.Ports
	ExcludeNodes        bool // from natOutgoing
	NoForwarding        bool // the host's forwarding sysctls are left to the operator
	VXLANPort           uint16
	VXLANVNI            uint32 // 0: the default, for the port too
	VXLANMTU, VXLANMTU6 int    // 0 derives them from the links
	WireGuard           WireGuard
	// Checksums is where checksums of tunneled packets are computed.
	Checksums             checksums
	AllowIPIP, AllowVXLAN bool // from pods
	// Floats enables floating addresses of pods.
	Floats bool
	// OtherSources: pods may send from the prefixes in their annotation.
	OtherSources bool
	// Inbound and Outbound are the failsafe ports; nil: the defaults.
	Inbound, Outbound []policy.Failsafe
	DropFromPods      bool // packets from pods to their node
	Handling          policy.Handling
	LogPrefix         string // prefix of Log rules' entries; empty: the default
}

// ParseFelix reads a spec. A field that can't be parsed is named in the problems, and keeps its value from before.
func ParseFelix(spec api.FelixConfigurationSpec, before Felix) (Felix, []error) {
	var problems []error
	f := before
	note := func(field, value, remedy string) {
		err := fmt.Errorf("spec.%s %q: must be %s; the last good value stays in force", field, value, remedy)
		problems = append(problems, InObject((&api.FelixConfiguration{}).ResourceType(), api.Meta{Name: api.DefaultName}, err))
	}
	if addr, err := optional(spec.NATOutgoingAddress, netip.ParseAddr); err == nil && addr.Zone() == "" {
		f.NATSource = addr.Unmap()
	} else {
		note("natOutgoingAddress", spec.NATOutgoingAddress, "an IP address of the nodes")
	}
	if spec.NATPortRange == nil {
		f.NATPorts = nft.Ports{}
	} else if first, last, err := spec.NATPortRange.Ports(); err == nil {
		f.NATPorts = nft.Ports{First: first, Last: last}
	} else {
		note("natPortRange", string(*spec.NATPortRange), "a port, or two such as 32768:65535 with the lower one first")
	}
	if !choice(spec.NATOutgoingExclusions, "IPPoolsOnly", "IPPoolsAndHostIPs", &f.ExcludeNodes) {
		note("natOutgoingExclusions", spec.NATOutgoingExclusions, "IPPoolsOnly or IPPoolsAndHostIPs")
	}
	if !choice(spec.IPForwarding, "Enabled", "Disabled", &f.NoForwarding) {
		note("ipForwarding", spec.IPForwarding, "Enabled or Disabled")
	}
	f.parseVXLAN(spec, note)
	f.WireGuard.parse(spec, note)
	if !choice(spec.WorkloadSourceSpoofing, "Disabled", "Any", &f.OtherSources) {
		note("workloadSourceSpoofing", spec.WorkloadSourceSpoofing, "Disabled or Any")
	}
	if !choice(spec.FloatingIPs, "Disabled", "Enabled", &f.Floats) {
		note("floatingIPs", spec.FloatingIPs, "Enabled or Disabled")
	}
	f.parseHosts(spec, note)
	f.parseHandling(spec, note)
	f.AllowIPIP = spec.AllowIPIPPacketsFromWorkloads != nil && *spec.AllowIPIPPacketsFromWorkloads
	f.AllowVXLAN = spec.AllowVXLANPacketsFromWorkloads != nil && *spec.AllowVXLANPacketsFromWorkloads
	return f, problems
}

// parseHosts reads the fields about host endpoints. If a failsafe port is invalid the defaults are added: otherwise the
// operator might be locked out of a node.
func (f *Felix) parseHosts(spec api.FelixConfigurationSpec, note func(field, value, remedy string)) {
	read := func(field string, ports *api.FailsafePorts, defaults []policy.Failsafe) []policy.Failsafe {
		all, wrong := readFailsafes(ports, defaults)
		if wrong != "" {
			note(field, wrong, "entries of a protocol TCP, UDP or SCTP, a port from 1 to 65535, and a net that is a CIDR, if there is one: until "+
				"it is, Calico's default ports are in force besides")
		}
		return all
	}
	f.Inbound = read("failsafeInboundHostPorts", spec.FailsafeInboundHostPorts, policy.DefaultInbound())
	f.Outbound = read("failsafeOutboundHostPorts", spec.FailsafeOutboundHostPorts, policy.DefaultOutbound())
	switch strings.ToLower(spec.DefaultEndpointToHostAction) {
	case "", "accept", "return":
		f.DropFromPods = false
	case "drop":
		f.DropFromPods = true
	default:
		note("defaultEndpointToHostAction", spec.DefaultEndpointToHostAction, "Accept, Return or Drop")
	}
}

// parseHandling reads how packets are treated and logged.
func (f *Felix) parseHandling(spec api.FelixConfigurationSpec, note func(field, value, remedy string)) {
	field, action := "nftablesFilterDenyAction", spec.NftablesFilterDenyAction
	if action == "" {
		field, action = "iptablesFilterDenyAction", spec.IptablesFilterDenyAction
	}
	if !choice(strings.ToLower(action), "drop", "reject", &f.Handling.Reject) {
		note(field, action, "Drop or Reject")
	}
	f.Handling.Invalid = spec.DisableConntrackInvalidCheck != nil && *spec.DisableConntrackInvalidCheck
	f.LogPrefix = spec.LogPrefix
	if rate, ok := logRate(spec.LogActionRateLimit); !ok {
		note("logActionRateLimit", spec.LogActionRateLimit, "a number from 1 and a unit second, minute, hour or day, such as 10/second")
	} else if burst, ok := logBurst(spec.LogActionRateLimitBurst); !ok {
		note("logActionRateLimitBurst", fmt.Sprint(*spec.LogActionRateLimitBurst), "a number from 0 to 65535")
	} else if f.Handling.Logs = rate; rate.Packets != 0 {
		f.Handling.Logs.Burst = burst
	}
}

// logRate parses a rate such as 10/second; an empty text means zero.
func logRate(text string) (rate policy.LogRate, ok bool) {
	if text == "" {
		return rate, true
	}
	number, unit, _ := strings.Cut(text, "/")
	n, err := strconv.ParseUint(number, 10, 32)
	seconds := map[string]uint32{"second": 1, "minute": 60, "hour": 3600, "day": 86400}[unit]
	return policy.LogRate{Packets: uint32(n), Seconds: seconds}, err == nil && n > 0 && seconds > 0
}

// logBurst returns Calico's default for nil and for 0, which the kernel too replaces by it.
func logBurst(n *int) (burst uint32, ok bool) {
	const standard, most = 5, 1<<16 - 1
	if n == nil || *n == 0 {
		return standard, true
	}
	return uint32(*n), *n > 0 && *n <= most
}

// readFailsafes returns nil for the defaults. If an entry is invalid, wrong describes it and the defaults are added.
func readFailsafes(ports *api.FailsafePorts, defaults []policy.Failsafe) (all []policy.Failsafe, wrong string) {
	if ports == nil {
		return nil, ""
	}
	all = []policy.Failsafe{}
	for _, p := range *ports {
		to, ok := readFailsafe(p)
		if !ok {
			wrong = fmt.Sprintf("%+v", p)
			continue
		}
		all = append(all, to)
	}
	if wrong != "" {
		all = append(slices.DeleteFunc(slices.Clone(defaults), func(d policy.Failsafe) bool { return slices.Contains(all, d) }), all...)
	}
	return all, wrong
}

func readFailsafe(p api.FailsafePort) (to policy.Failsafe, ok bool) {
	to.Protocol, ok = map[string]uint8{"tcp": policy.TCP, "udp": policy.UDP, "sctp": policy.SCTP}[strings.ToLower(p.Protocol)]
	if to.Port = uint16(p.Port); p.Port < 1 || p.Port > 1<<16-1 {
		ok = false
	}
	if p.Net == "" {
		return to, ok
	}
	net, err := netip.ParsePrefix(p.Net)
	if addr, other := netip.ParseAddr(p.Net); other == nil {
		net, err = netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	to.Net = net.Masked()
	return to, ok && err == nil && !net.Addr().Is4In6()
}

// HostRules returns the rules that host endpoints have whatever their policies.
func (s *Snapshot) HostRules() policy.HostRules {
	g := s.Guard()
	r := policy.HostRules{Inbound: s.Felix.Inbound, Outbound: s.Felix.Outbound, Nodes: g.Nodes, IPIP: g.IPIP,
		DropFromPods: s.Felix.DropFromPods}
	if r.Inbound == nil {
		r.Inbound = policy.DefaultInbound()
	}
	if r.Outbound == nil {
		r.Outbound = policy.DefaultOutbound()
	}
	if g.VXLAN {
		r.VXLANPort = cmp.Or(g.VXLANPort, guard.DefaultVXLANPort)
	}
	r.WireGuardPorts = g.WireGuardPorts
	slices.SortFunc(r.Nodes, netip.Addr.Compare)
	return r
}

// noter notes a field with an invalid value.
type noter func(field, value, remedy string)

// number sets a number within limits, and 0 for an absent one.
func (note noter) number(field string, value *int, low, high int, remedy string, set func(int)) {
	switch {
	case value == nil:
		set(0)
	case *value >= low && *value <= high:
		set(*value)
	default:
		note(field, fmt.Sprint(*value), remedy)
	}
}

// mtu sets a device's MTU; 0 derives it from the link.
func (note noter) mtu(field string, value *int, least, most int, set func(int)) {
	if value != nil && *value == 0 {
		value = nil
	}
	note.number(field, value, least, most, fmt.Sprintf("a number from %d to %d, or 0 to derive it from the link", least, most), set)
}

const udpPort = "a UDP port from 1 to 65535"

// parseVXLAN reads the fields about VXLAN.
func (f *Felix) parseVXLAN(spec api.FelixConfigurationSpec, note noter) {
	least, most := vxlan.MTULimits(false)
	least6, most6 := vxlan.MTULimits(true)
	note.number("vxlanPort", spec.VXLANPort, 1, 1<<16-1, udpPort, func(n int) { f.VXLANPort = uint16(n) })
	note.number("vxlanVNI", spec.VXLANVNI, 1, vxlan.MaxVNI, "a number from 1 to 16777215", func(n int) { f.VXLANVNI = uint32(n) })
	note.mtu("vxlanMTU", spec.VXLANMTU, least, most, func(n int) { f.VXLANMTU = n })
	note.mtu("vxlanMTUV6", spec.VXLANMTUV6, least6, most6, func(n int) { f.VXLANMTU6 = n })
	if broken, ok := featureOverride(spec.FeatureDetectOverride, "ChecksumOffloadBroken"); ok {
		f.Checksums = broken
	} else {
		note("featureDetectOverride", spec.FeatureDetectOverride, "words such as ChecksumOffloadBroken=true with commas between them")
	}
}

// checksums is where checksums are computed: in the kernel or by devices.
type checksums int

const (
	checksumsByKernel checksums = iota // devices may, depending on the kernel version
	checksumsSoft
	checksumsByDevice
)

// featureOverride returns the value of a key in a list KEY=true,KEY=false; ok is false if that value is invalid.
func featureOverride(list, feature string) (value checksums, ok bool) {
	for word := range strings.SplitSeq(list, ",") {
		name, text, _ := strings.Cut(strings.TrimSpace(word), "=")
		if !strings.EqualFold(name, feature) {
			continue
		}
		b, err := strconv.ParseBool(text)
		switch {
		case err != nil:
			return 0, false
		case b:
			value = checksumsSoft
		default:
			value = checksumsByDevice
		}
	}
	return value, true
}

// optional parses text unless it is empty.
func optional[T any](text string, parse func(string) (T, error)) (value T, err error) {
	if text == "" {
		return value, nil
	}
	return parse(text)
}

// choice sets yes by one of two values, the first of which is the default, and reports whether word was valid.
func choice(word, no, other string, yes *bool) (ok bool) {
	switch word {
	case "", no:
		*yes = false
	case other:
		*yes = true
	default:
		return false
	}
	return true
}

// NAT returns which pools' packets are masqueraded on their way out of the pools, and which floating addresses are
// translated.
func (s *Snapshot) NAT() nat.Config {
	c := nat.Config{Source: s.Felix.NATSource, Ports: s.Felix.NATPorts}
	for _, p := range s.Pools {
		// Pools for services only are outside: packets from pods to them reach pods only after kube-proxy's DNAT.
		if !p.servicesOnly() {
			c.Pools = append(c.Pools, nat.Pool{CIDR: p.CIDR, NATOutgoing: p.NATOutgoing})
		}
	}
	floating, _ := s.Floats()
	for _, f := range floating {
		c.Floating = append(c.Floating, nat.Floating{Addr: f.Addr, Pod: f.Pod})
	}
	if s.Felix.ExcludeNodes {
		c.Nodes = s.nodeAddrs()
	}
	return c
}

// nodeAddrs returns this node's addresses, then all that other nodes have announced.
func (s *Snapshot) nodeAddrs() []netip.Addr {
	addrs := s.Self.addrs()
	for _, m := range s.Others {
		for _, a := range []netip.Addr{m.Addr, m.Addr6} {
			if a.IsValid() {
				addrs = append(addrs, a)
			}
		}
	}
	return addrs
}

// Guard returns the sources from which tunnel packets are accepted, the packets that pods may not send, and pods'
// prefixes. Other fields are left to the caller.
func (s *Snapshot) Guard() guard.Config {
	c := guard.Config{
		Nodes: s.nodeAddrs(), PodLinks: podnet.DefaultVethPrefix, IPIP: s.Needs(IPIPTunnel),
		VXLAN: s.Needs(VXLANTunnel) || s.Needs(VXLANTunnel6), VXLANPort: s.Felix.VXLANPort, BGPPorts: s.bgpPorts(),
		WireGuardPorts:    s.wireGuardPorts(),
		AllowIPIPFromPods: s.Felix.AllowIPIP, AllowVXLANFromPods: s.Felix.AllowVXLAN, Sources: s.otherSources(),
	}
	for _, p := range s.Pools {
		if !p.servicesOnly() {
			c.Pools = append(c.Pools, p.CIDR)
		}
	}
	return c
}

// Fabric returns how this node reaches pods of other nodes.
func (s *Snapshot) Fabric() flowtable.Fabric {
	f := flowtable.Fabric{IPIP: s.Needs(IPIPTunnel), VXLAN: s.Needs(VXLANTunnel) || s.Needs(VXLANTunnel6), Underlay: s.Self.Link,
		Kernel: flowtable.Running()}
	if slices.ContainsFunc(s.Pools, func(p Pool) bool { return p.IPIP != api.EncapAlways && p.VXLAN != api.EncapAlways }) {
		f.Uplinks = []string{s.Self.Link, s.Self.Link6}
	}
	return f
}

func (s *Snapshot) otherSources() []guard.Source {
	if !s.Felix.OtherSources {
		return nil
	}
	return s.Self.Sources
}

// bgpPorts returns the ports on which this node, other nodes and peers listen.
func (s *Snapshot) bgpPorts() []uint16 {
	ports := []uint16{s.Port, s.meshPort}
	for _, m := range s.Others {
		ports = append(ports, m.Port)
	}
	for _, p := range s.Peering.Peers {
		ports = append(ports, p.Port)
	}
	slices.Sort(ports)
	return slices.Compact(slices.DeleteFunc(ports, func(p uint16) bool { return p == 0 }))
}

// Host returns the desired kernel parameters of the host.
func (s *Snapshot) Host() hostsysctl.Config {
	c := hostsysctl.Config{Forward: !s.Felix.NoForwarding, Link: cmp.Or(s.Self.Link6, s.Self.Link)}
	if _, ok := s.Tunnel(); ok {
		c.Tunnels = append(c.Tunnels, ipip.Device)
	}
	if s.Needs(VXLANTunnel) {
		c.Tunnels = append(c.Tunnels, vxlan.Device4)
	}
	if s.Needs(WireGuardTunnel) {
		c.Tunnels = append(c.Tunnels, wireguard.Device4)
		if s.crypt[0].second {
			c.Tunnels = append(c.Tunnels, wireguard.Second4)
		}
	}
	for _, source := range s.otherSources() {
		if source.Prefix.Addr().Is4() && !slices.Contains(c.Pods, source.Link) {
			c.Pods = append(c.Pods, source.Link)
		}
	}
	c.IPv6 = s.UsesIPv6()
	return c
}

// UsesIPv6 reports whether IPv6 must be forwarded. A pool alone does not count, as clusters have one by default, and a
// host that forwards stops learning its default route from its router.
func (s *Snapshot) UsesIPv6() bool {
	six := func(a netip.Addr) bool { return a.Is6() }
	return s.Self.Addr6.IsValid() && slices.ContainsFunc(s.Pools, func(p Pool) bool { return six(p.CIDR.Addr()) }) ||
		slices.ContainsFunc(s.Blocks, func(b netip.Prefix) bool { return six(b.Addr()) }) || slices.ContainsFunc(s.Self.Pods, six)
}
