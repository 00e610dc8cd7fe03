package node

import (
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/encap"
	"github.com/tortie-net/tortie/internal/fib"
	"github.com/tortie-net/tortie/internal/netlinkx"
)

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
		return fib.To(p.Prefix, fib.Hop{Via: p.NextHop, Dev: encap.Device, Onlink: true}), true
	}
	// Without encapsulation the fabric between the nodes has to know the blocks, unless they share a subnet.
	return fib.To(p.Prefix, fib.Hop{Via: p.NextHop, Dev: link}), sameSubnet
}
