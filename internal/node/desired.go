package node

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/duties"
	"github.com/tortie-net/tortie/internal/encap"
	"github.com/tortie-net/tortie/internal/fib"
	"github.com/tortie-net/tortie/internal/netlinkx"
	"github.com/tortie-net/tortie/internal/nodeaddr"
)

// Peers returns the BGP sessions that this node should have: in each family that it has an address in, one with every other node
// that has, if the mesh is on. Route reflectors are no part of it, as Calico has it. IPv4 sessions carry IPv4 prefixes, IPv6 sessions IPv6 prefixes.
func (s *Snapshot) Peers() []bgp.Peer {
	if !s.Mesh || s.Self.Reflector || s.settings.password.unknown {
		return nil
	}
	var peers []bgp.Peer
	for _, self := range s.Self.addrs() {
		members := make([]bgp.Member, 0, len(s.Others))
		for _, o := range s.Others {
			if o.Reflector {
				continue
			}
			members = append(members, bgp.Member{Addr: o.in(self), ASN: s.asn(o.ASN), Port: cmp.Or(o.Port, s.meshPort)})
		}
		peers = append(peers, bgp.Mesh(bgp.Member{Addr: self, ASN: s.asn(s.Self.ASN), Port: s.Port}, members)...)
	}
	for i := range peers {
		peers[i].Password, peers[i].MaxPrefixes = s.settings.password.text, s.Self.MaxPrefixes
		peers[i].RestartTime = cmp.Or(s.settings.restart, peers[i].RestartTime)
	}
	return peers
}

// Local returns this node's end of all sessions. The error is for the operator.
func (s *Snapshot) Local() (bgp.Local, error) {
	id, err := nodeaddr.RouterID(s.Self.RouterID, s.Self.Name, s.Self.Addr.Addr())
	return bgp.Local{ASN: s.asn(s.Self.ASN), RouterID: id, Listen: s.Self.addrs(), Port: s.Port}, err
}

func (s *Snapshot) asn(own uint32) uint32 {
	if own != 0 {
		return own
	}
	return s.ASN
}

// Originated returns what this node announces: its own confirmed blocks, and each pod whose address was borrowed from
// another node's block; but nothing of pools that keep out of BGP, nor of a family in which it has no address.
func (s *Snapshot) Originated() []bgp.Path {
	var paths []bgp.Path
	announce := func(p netip.Prefix) {
		self, _ := s.Self.towards(p.Addr())
		if pool, ok := s.poolOf(p); ok && !pool.NoExport && self.IsValid() {
			paths = append(paths, bgp.Path{Prefix: p})
		}
	}
	for _, b := range s.Blocks {
		announce(b)
	}
	for _, pod := range s.Self.Pods {
		single := netip.PrefixFrom(pod, pod.BitLen())
		if _, owner, ok := s.blockOf(single); !ok || owner.Node != s.Self.Name {
			announce(single)
		}
	}
	return paths
}

// Tunnel returns the tunnel device that this node should have; ok is false if no pool encapsulates. A pool that is disabled, or
// that other nodes use, counts: its pods are still to be reached. Then the device may have no address, which only this node's
// own packets need.
func (s *Snapshot) Tunnel() (t encap.Tunnel, ok bool) {
	if !s.needsTunnel() {
		return encap.Tunnel{}, false
	}
	return encap.Tunnel{MTU: s.tunnelMTU(), Addr: s.Self.TunnelAddr}, true
}

func (s *Snapshot) needsTunnel() bool {
	if !s.Self.Addr.IsValid() {
		return false // its outer packets are IPv4
	}
	return slices.ContainsFunc(s.Pools, Pool.encapsulates)
}

func (p Pool) encapsulates() bool { return p.IPIP == api.EncapAlways || p.IPIP == api.EncapCrossSubnet }

// Limits of an MTU of tunl0: the least of an IPv4 link, and what an IPv4 packet can have.
const (
	minTunnelMTU = 68
	maxTunnelMTU = 65535
)

// tunnelMTU is that of the environment, else of the FelixConfiguration, else what fits the link.
func (s *Snapshot) tunnelMTU() int {
	return cmp.Or(s.Self.TunnelMTU, s.settings.tunnelMTU, encap.MTU(s.Self.LinkMTU))
}

// PodMTU returns the MTU of pods' interfaces: what fits through every way that a pod's packets can take.
func (s *Snapshot) PodMTU() int {
	mtu := s.Self.LinkMTU
	if s.needsTunnel() {
		mtu = s.tunnelMTU()
	}
	if s.Self.LinkMTU6 != 0 && (mtu == 0 || s.Self.LinkMTU6 < mtu) {
		mtu = s.Self.LinkMTU6
	}
	return mtu
}

// Routes returns the routes that this node should have: the accepted paths by way of their next hops, and each own block as
// unreachable, so that a packet to an address without a pod fails at once instead of leaving by the default route. The
// pods' own routes are longer and win.
func (s *Snapshot) Routes(accepted []bgp.Path) []fib.Route {
	routes := make([]fib.Route, 0, len(accepted)+len(s.Blocks))
	for _, b := range s.Blocks {
		if b.IsSingleIP() {
			continue // the pod's own route has the same destination
		}
		routes = append(routes, fib.Route{Dst: b, Type: netlinkx.Unreachable})
	}
	for _, p := range accepted {
		if r, ok := s.route(p); ok {
			routes = append(routes, r)
		}
	}
	return routes
}

// route returns the way to a learned prefix. ok is false if there is none: no pool, a next hop in another subnet and no tunnel, or in
// a family in which this node has no address.
func (s *Snapshot) route(p bgp.Path) (r fib.Route, ok bool) {
	pool, ok := s.poolOf(p.Prefix)
	if !ok {
		return fib.Route{}, false
	}
	self, link := s.Self.towards(p.NextHop)
	if !self.IsValid() || p.NextHop.Is4() != p.Prefix.Addr().Is4() {
		return fib.Route{}, false
	}
	sameSubnet := self.Masked().Contains(p.NextHop)
	if pool.IPIP == api.EncapAlways || pool.IPIP == api.EncapCrossSubnet && !sameSubnet {
		// The next hop is the outer destination: nothing on the tunnel resolves it, which onlink tells the kernel.
		return fib.Route{Dst: p.Prefix, Via: p.NextHop, Dev: encap.Device, Onlink: true}, true
	}
	// Without encapsulation the fabric between the nodes has to know the blocks, unless they share a subnet.
	return fib.Route{Dst: p.Prefix, Via: p.NextHop, Dev: link}, sameSubnet
}

// tunnelRanges say where the address of tunl0 may lie.
func (s *Snapshot) tunnelRanges() duties.Ranges {
	var r duties.Ranges
	for _, p := range s.Pools {
		if !p.encapsulates() || !p.CIDR.Addr().Is4() {
			continue
		}
		r.Keep = append(r.Keep, p.CIDR)
		if p.Enabled && slices.Contains(p.Uses, api.UseTunnel) && p.Nodes.Matches(s.Self.Labels) {
			r.Assign = append(r.Assign, p.CIDR)
		}
	}
	return r
}
