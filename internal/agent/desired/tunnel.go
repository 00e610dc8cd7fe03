package desired

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
)

// TunnelKind is one of the node's tunnels, each of which has a device and an address.
type TunnelKind int

// The kinds, and their number.
const (
	IPIPTunnel TunnelKind = iota
	VXLANTunnel
	VXLANTunnel6
	WireGuardTunnel
	WireGuardTunnel6
	TunnelKinds
)

// is6 reports whether the tunnel's packets, outer and inner, are of IPv6.
func (k TunnelKind) is6() bool { return k == VXLANTunnel6 || k == WireGuardTunnel6 }

// Standing is whether each kind of tunnel has a device that is up.
type Standing [TunnelKinds]bool

// StandingOf looks for the devices among a host's links.
func StandingOf(links []netlinkx.Link) (found Standing) {
	for _, l := range links {
		found[IPIPTunnel] = found[IPIPTunnel] || l.Up && ipip.Is(l)
		found[VXLANTunnel] = found[VXLANTunnel] || l.Up && vxlan.Is(l, false)
		found[VXLANTunnel6] = found[VXLANTunnel6] || l.Up && vxlan.Is(l, true)
		found[WireGuardTunnel] = found[WireGuardTunnel] || l.Up && wireguard.Is(l, false)
		found[WireGuardTunnel6] = found[WireGuardTunnel6] || l.Up && wireguard.Is(l, true)
	}
	return found
}

// has reports whether the tunnel exists through which a pool's packets travel with modes m.
func (s Standing) has(p Pool, m modes) bool {
	for k := range TunnelKinds {
		if s[k] && p.in(m, k) {
			return true
		}
	}
	return false
}

// Tunnels are the devices that this node should have; nil: it should not have the device.
type Tunnels struct {
	IPIP           *ipip.Tunnel
	VXLAN, VXLANv6 *vxlan.Tunnel
}

// Tunnels returns the devices for pools that encapsulate, and for pools that did a moment ago, as other nodes may still
// send encapsulated. Disabled pools and pools that only other nodes use count: their pods must stay reachable. A device
// may then have no address, which only this node's own packets need.
func (s *Snapshot) Tunnels() (t Tunnels) {
	if ipip, ok := s.Tunnel(); ok {
		t.IPIP = &ipip
	}
	t.VXLAN, t.VXLANv6 = s.vxlan(VXLANTunnel), s.vxlan(VXLANTunnel6)
	return t
}

// Tunnel returns tunl0; ok is false if this node should not have it.
func (s *Snapshot) Tunnel() (t ipip.Tunnel, ok bool) {
	if !s.Needs(IPIPTunnel) {
		return ipip.Tunnel{}, false
	}
	return ipip.Tunnel{MTU: s.tunnelMTU(IPIPTunnel), Addr: s.Self.TunnelAddr}, true
}

// vxlan returns a family's VXLAN device with all other nodes' VTEPs; nil if this node should not have it.
func (s *Snapshot) vxlan(k TunnelKind) *vxlan.Tunnel {
	if !s.Needs(k) {
		return nil
	}
	local, link := s.Self.of(k)
	t := &vxlan.Tunnel{
		VNI: cmp.Or(s.Felix.VXLANVNI, vxlan.DefaultVNI), Port: cmp.Or(s.Felix.VXLANPort, vxlan.DefaultPort),
		Local: local.Addr(), Parent: link, MAC: s.Self.mac(k == VXLANTunnel6), MTU: s.tunnelMTU(k), Addr: *s.Self.AddrOf(k),
		SoftChecksums: s.Felix.Checksums == checksumsSoft || s.Felix.Checksums == checksumsByKernel && s.Self.ChecksumsBroken,
	}
	for _, m := range s.Others {
		if v, node := m.vtepIn(t.Local), m.In(t.Local); v.Addr.IsValid() && node.IsValid() {
			t.Peers = append(t.Peers, vxlan.Peer{Addr: v.Addr, MAC: v.MAC, Node: node})
		}
	}
	return t
}

// mac returns the MAC of this node's VTEP of a family.
func (s *Self) mac(v6 bool) vxlan.MAC {
	own := s.MAC
	if v6 {
		own = s.MAC6
	}
	return cmp.Or(own, vxlan.MACOf(s.Name, v6))
}

// Needs reports whether packets may travel in a tunnel, and the node has an address for the outer packets.
func (s *Snapshot) Needs(k TunnelKind) bool {
	local, _ := s.Self.of(k)
	switch k {
	case WireGuardTunnel, WireGuardTunnel6:
		return local.IsValid() && (s.Felix.WireGuard.On[place(k.is6())] || s.crypt[place(k.is6())].leaving)
	}
	return local.IsValid() && slices.ContainsFunc(s.Pools, func(p Pool) bool { return p.in(p.modes(), k) || p.in(p.Former.modes, k) })
}

// of returns the node's address, with its subnet, and link in the family of a tunnel's outer packets.
func (s *Self) of(k TunnelKind) (addr netip.Prefix, link string) {
	if k.is6() {
		return s.Addr6, s.Link6
	}
	return s.Addr, s.Link
}

// AddrOf returns a pointer to the address of a tunnel's device.
func (s *Self) AddrOf(k TunnelKind) *netip.Addr {
	return [...]*netip.Addr{&s.TunnelAddr, &s.VTEP, &s.VTEP6, &s.WireGuard, &s.WireGuard6}[k]
}

// TunnelAddrs returns the addresses of the tunnels' devices.
func (s *Self) TunnelAddrs() (addrs []netip.Addr) {
	for k := range TunnelKinds {
		if a := *s.AddrOf(k); a.IsValid() {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

func (p Pool) modes() modes { return modes{ipip: p.IPIP, vxlan: p.VXLAN} }

func (p Pool) encapsulates() bool { return !p.modes().none() }

// in reports whether the pool's packets may travel in a tunnel with modes m.
func (p Pool) in(m modes, k TunnelKind) bool {
	v6 := p.CIDR.Addr().Is6()
	switch k {
	case IPIPTunnel:
		return !v6 && encapsulates(m.ipip)
	case VXLANTunnel, VXLANTunnel6:
		return v6 == k.is6() && encapsulates(m.vxlan)
	}
	return false // WireGuard is no mode of a pool
}

// over returns the next hop towards a node's address in a pool: within a subnet directly if the pool allows it, else
// through a tunnel. ok is false without one: in another subnet without a tunnel, in a family in which this node has no
// address, or until the node has announced its VTEP. After a change of the pool's encapsulation the former one is used
// until the node announces that it can receive the new one; for a moment also if the new one has no next hop.
func (s *Snapshot) over(pool *Pool, hop netip.Addr) (h routes.Hop, ok bool) {
	h, ok = s.through(pool.modes(), hop)
	if pool.Former == (former{}) || ok && s.ready(pool, h, hop) || !ok && !pool.Former.fresh && !s.awaited(pool, hop) {
		return h, ok
	}
	if old, there := s.through(pool.Former.modes, hop); there {
		return old, true
	}
	return h, ok
}

// ready reports whether a node can receive through a next hop. An agent announces a VTEP once it exists. The same holds
// for an address of tunl0, but not every node has one.
func (s *Snapshot) ready(pool *Pool, way routes.Hop, hop netip.Addr) bool {
	if way.Dev != ipip.Device || !pool.Former.fresh {
		return true
	}
	m, ok := s.MemberAt(hop)
	return ok && m.Tunneled
}

// through returns the next hop towards a node's address by modes.
func (s *Snapshot) through(m modes, hop netip.Addr) (h routes.Hop, ok bool) {
	self, link := s.Self.towards(hop)
	if !self.IsValid() {
		return routes.Hop{}, false
	}
	sameSubnet := self.Masked().Contains(hop)
	switch {
	case wraps(m.vxlan, sameSubnet):
		member, known := s.MemberAt(hop)
		if !known || !member.vtepIn(hop).Addr.IsValid() {
			return routes.Hop{}, false
		}
		// The VTEP's address is in no subnet of the host: the neighbour entry resolves it.
		return routes.Hop{Via: member.vtepIn(hop).Addr, Dev: vxlan.Device(hop.Is6()), Onlink: true}, true
	case wraps(m.ipip, sameSubnet):
		// The next hop is the outer destination. Nothing on the tunnel resolves it, so the route needs onlink.
		return routes.Hop{Via: hop, Dev: ipip.Device, Onlink: true}, hop.Is4()
	}
	// Without encapsulation the underlay has to route the blocks, unless the nodes share a subnet.
	return routes.Hop{Via: hop, Dev: link}, sameSubnet
}

// IPIPWays returns the node to which packets to each IPv4 destination are tunneled. Routes with several next hops, and
// this node's pods, count as not tunneled.
func (s *Snapshot) IPIPWays(ways []DesiredRoute) []ipip.Way {
	var all []ipip.Way
	for _, w := range ways {
		if r := w.Route; r.Dst.Addr().Is4() {
			way := ipip.Way{Dst: r.Dst}
			if len(r.Hops) == 1 && r.Hops[0].Dev == ipip.Device {
				way.Node = r.Hops[0].Via
			}
			all = append(all, way)
		}
	}
	for _, a := range s.Self.Pods {
		if a.Is4() {
			all = append(all, ipip.Way{Dst: netip.PrefixFrom(a, a.BitLen())})
		}
	}
	return all
}

// tunnelEndRoutes returns routes to the IPv6 VTEPs that other routes lead through. The kernel looks up an IPv6 next hop
// even with onlink, and rejects one that a route leads to elsewhere, as the route of the VTEP's own block does while a
// pool is being changed. A VTEP counts only inside a block that its node owns.
func (s *Snapshot) tunnelEndRoutes(ways []DesiredRoute) (ends []DesiredRoute) {
	taken := map[netip.Prefix]bool{}
	for _, w := range ways {
		if w.Route.Dst.IsSingleIP() {
			taken[w.Route.Dst] = true
		}
	}
	for _, w := range ways {
		for _, h := range w.Route.Hops {
			if end := netip.PrefixFrom(h.Via, h.Via.BitLen()); h.Dev == vxlan.Device6 && !taken[end] && s.sameOwner(end, w.Route.Dst) {
				taken[end] = true
				ends = append(ends, DesiredRoute{Route: routes.To(end, routes.Hop{Dev: h.Dev}), About: "end of VXLAN"})
			}
		}
	}
	return ends
}

// sameOwner reports whether two prefixes lie in blocks of one other node.
func (s *Snapshot) sameOwner(p, q netip.Prefix) bool {
	_, a, known := s.blockOf(p)
	_, b, both := s.blockOf(q)
	return known && both && a.Node == b.Node && a.Node != s.Self.Name
}

// awaited reports whether a node has still to announce the VTEP that a pool needs.
func (s *Snapshot) awaited(pool *Pool, hop netip.Addr) bool {
	self, _ := s.Self.towards(hop)
	m, isNode := s.MemberAt(hop)
	return isNode && self.IsValid() && wraps(pool.VXLAN, self.Masked().Contains(hop)) && !m.vtepIn(hop).Addr.IsValid()
}

// Behind returns the address of the node that a next hop leads to: for a VTEP, its node's address.
func (s *Snapshot) Behind(via netip.Addr) netip.Addr {
	for _, m := range s.Others {
		if m.vtepIn(via).Addr == via && m.In(via).IsValid() {
			return m.In(via)
		}
	}
	return via
}

// Limits of an MTU of tunl0: the minimum of an IPv4 link, and the largest IPv4 packet.
const (
	minTunnelMTU = 68
	maxTunnelMTU = 65535
)

// tunnelMTU returns the MTU from the environment (tunl0 only), else from the FelixConfiguration, else what fits the
// link. The kernel allows a VXLAN device no larger MTU.
func (s *Snapshot) tunnelMTU(k TunnelKind) int {
	switch k {
	case IPIPTunnel:
		return cmp.Or(s.Self.TunnelMTU, s.settings.tunnelMTU, ipip.MTU(s.Self.LinkMTU))
	case VXLANTunnel:
		return fitting(s.Felix.VXLANMTU, vxlan.MTU(s.Self.LinkMTU, false), false)
	case VXLANTunnel6:
		return fitting(s.Felix.VXLANMTU6, vxlan.MTU(s.Self.LinkMTU6, true), true)
	case WireGuardTunnel:
		return fitting(s.Felix.WireGuard.MTU[0], wireguard.MTU(s.Self.LinkMTU, false), false)
	}
	return fitting(s.Felix.WireGuard.MTU[1], wireguard.MTU(s.Self.LinkMTU6, true), true)
}

func fitting(wanted, fits int, v6 bool) int {
	least, _ := vxlan.MTULimits(v6)
	fits = max(fits, least)
	return min(cmp.Or(wanted, fits), fits)
}

// PodMTU returns the MTU of pods' interfaces: the least of all ways that a pod's packets can take.
func (s *Snapshot) PodMTU() int {
	v4, v6 := s.familyMTU(s.Self.LinkMTU, IPIPTunnel, VXLANTunnel,
		WireGuardTunnel), s.familyMTU(s.Self.LinkMTU6, VXLANTunnel6, WireGuardTunnel6)
	if v4 == 0 || v6 != 0 && v6 < v4 {
		return v6
	}
	return v4
}

// familyMTU returns the least MTU of a family's tunnels that pools use now; without any, the link's.
func (s *Snapshot) familyMTU(link int, kinds ...TunnelKind) (mtu int) {
	for _, k := range kinds {
		local, _ := s.Self.of(k)
		used := s.encrypts(k) && !s.Self.NoWireGuard || slices.ContainsFunc(s.Pools, func(p Pool) bool { return p.in(p.modes(), k) })
		if m := s.tunnelMTU(k); local.IsValid() && used && (mtu == 0 || m < mtu) {
			mtu = m
		}
	}
	return cmp.Or(mtu, link)
}

// TunnelRanges returns the CIDRs of the pools from which the address of a tunnel's device is assigned, and of those in
// which it may stay: while a pool's change is fresh, other nodes may still use the old address.
func (s *Snapshot) TunnelRanges(k TunnelKind) (assign, keep []netip.Prefix) {
	if local, _ := s.Self.of(k); !local.IsValid() && k != IPIPTunnel {
		return nil, nil
	}
	for _, p := range s.Pools {
		now, before := p.in(p.modes(), k), p.in(p.Former.modes, k)
		if k == WireGuardTunnel || k == WireGuardTunnel6 {
			now, before = s.encrypts(k) && p.CIDR.Addr().Is6() == k.is6(), s.Needs(k) && p.CIDR.Addr().Is6() == k.is6()
		}
		if !now && !before {
			continue
		}
		keep = append(keep, p.CIDR)
		if now && p.Enabled && slices.Contains(p.Uses, api.UseTunnel) && p.Nodes.Matches(s.Self.Labels) {
			assign = append(assign, p.CIDR)
		}
	}
	return assign, keep
}
