package node

import (
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/duties"
	"github.com/tortie-net/tortie/internal/encap"
	"github.com/tortie-net/tortie/internal/fib"
	"github.com/tortie-net/tortie/internal/netlinkx"
)

// Peers returns the BGP sessions that this node should have: one with every other node, if the mesh is on.
func (s *Snapshot) Peers() []bgp.Peer {
	if !s.Mesh {
		return nil
	}
	members := make([]bgp.Member, 0, len(s.Others))
	for _, o := range s.Others {
		members = append(members, bgp.Member{Addr: o.Addr, ASN: s.asn(o.ASN), Port: s.Port})
	}
	return bgp.Mesh(bgp.Member{Addr: s.Self.Addr.Addr(), ASN: s.asn(s.Self.ASN), Port: s.Port}, members)
}

func (s *Snapshot) asn(own uint32) uint32 {
	if own != 0 {
		return own
	}
	return s.ASN
}

// Originated returns what this node announces: its own confirmed blocks, and each pod whose address was borrowed from
// another node's block; but nothing of pools that keep out of BGP.
func (s *Snapshot) Originated() []bgp.Path {
	var paths []bgp.Path
	announce := func(p netip.Prefix) {
		if pool, ok := s.poolOf(p); ok && !pool.NoExport {
			paths = append(paths, bgp.Path{Prefix: p})
		}
	}
	for _, b := range s.Blocks {
		announce(b)
	}
	for _, pod := range s.Self.Pods {
		if !slices.ContainsFunc(s.Blocks, func(b netip.Prefix) bool { return b.Contains(pod) }) {
			announce(netip.PrefixFrom(pod, pod.BitLen()))
		}
	}
	return paths
}

// Accept says which learned paths may become routes: those inside a pool. A peer must not be able to draw the node's other
// traffic to itself.
func (s *Snapshot) Accept() bgp.Accept {
	cidrs := make([]netip.Prefix, 0, len(s.Pools))
	for _, p := range s.Pools {
		cidrs = append(cidrs, p.CIDR)
	}
	return bgp.Within(cidrs...)
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
	for _, p := range s.Pools {
		if p.encapsulates() {
			return true
		}
	}
	return false
}

func (p Pool) encapsulates() bool { return p.IPIP == api.EncapAlways || p.IPIP == api.EncapCrossSubnet }

func (s *Snapshot) tunnelMTU() int {
	if s.Self.TunnelMTU != 0 {
		return s.Self.TunnelMTU
	}
	return encap.MTU(s.Self.LinkMTU)
}

// PodMTU returns the MTU of pods' interfaces: what fits through every way that a pod's packets can take.
func (s *Snapshot) PodMTU() int {
	if s.needsTunnel() {
		return s.tunnelMTU()
	}
	return s.Self.LinkMTU
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

// route returns the way to a learned prefix. ok is false if there is none: no pool, or a next hop in another subnet and no tunnel.
func (s *Snapshot) route(p bgp.Path) (r fib.Route, ok bool) {
	pool, ok := s.poolOf(p.Prefix)
	if !ok {
		return fib.Route{}, false
	}
	sameSubnet := s.Self.Addr.Masked().Contains(p.NextHop)
	if pool.IPIP == api.EncapAlways || pool.IPIP == api.EncapCrossSubnet && !sameSubnet {
		// The next hop is the outer destination: nothing on the tunnel resolves it, which onlink tells the kernel.
		return fib.Route{Dst: p.Prefix, Via: p.NextHop, Dev: encap.Device, Onlink: true}, true
	}
	// Without encapsulation the fabric between the nodes has to know the blocks, unless they share a subnet.
	return fib.Route{Dst: p.Prefix, Via: p.NextHop, Dev: s.Self.Link}, sameSubnet
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
