package desired

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/policy"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
)

// DesiredRoute is a desired route and its cause.
type DesiredRoute struct {
	Route routes.Route
	// Paths are the paths that the route's next hops come from, the preferred one first; none if the route needs no BGP.
	Paths []bgp.Path
	// About is the purpose of a route without paths.
	About string
	// Encrypted: WireGuard's table is looked up first, and leads the packets to its device.
	Encrypted bool
}

// ByIPv6 reports whether IPv4 packets leave by a link to an IPv6 next hop.
func (w *DesiredRoute) ByIPv6(link string) bool {
	return w.Route.Dst.Addr().Is4() && slices.ContainsFunc(w.Route.Hops, func(h routes.Hop) bool { return h.Dev == link && h.Via.Is6() })
}

// RoutesOf returns the Route of each, in the same order.
func RoutesOf(ways []DesiredRoute) []routes.Route {
	routes := make([]routes.Route, len(ways))
	for i, w := range ways {
		routes[i] = w.Route
	}
	return routes
}

// DesiredRoutes returns the routes that this node should have. Accepted paths with the same prefix make one route. Each
// own block and each announced aggregate is unreachable, so that a packet to an address without a pod fails at once
// instead of leaving by the default route, perhaps back to its router; routes to pods and to blocks are longer and win.
// Peers with a gateway (reachableBy) get a route too. left are the paths that the underlay must route.
func (j *Judge) DesiredRoutes(accepted []bgp.Path) (ways []DesiredRoute, left []bgp.Objection) {
	ways = make([]DesiredRoute, 0, len(accepted)+len(j.Blocks))
	for _, b := range j.Blocks {
		if b.IsSingleIP() {
			continue // the pod's own route has the same destination
		}
		ways = append(ways, DesiredRoute{Route: routes.Route{Dst: b, Type: netlinkx.Unreachable}, About: "own block"})
	}
	aggregates := j.AggregateRoutes()
	for _, r := range aggregates {
		ways = append(ways, DesiredRoute{Route: r, About: "aggregate"})
	}
	floating, _ := j.Floats()
	for _, f := range floating {
		// For packets of the node itself: it looks up the route before the address is translated.
		ways = append(ways,
			DesiredRoute{Route: routes.To(netip.PrefixFrom(f.Addr, f.Addr.BitLen()), routes.Hop{Dev: f.Link}), About: "floating address"})
	}
	statics, _ := j.StaticRoutes()
	for _, r := range statics {
		ways = append(ways, DesiredRoute{Route: r, About: "reachableBy"})
	}
	taken := j.reservedFor(statics)
	for _, r := range aggregates {
		taken[r.Dst] = true
	}
	hops := make(hopStore, 0, len(accepted)) // one allocation for all: nearly all have one hop
	for paths := range byPrefix(accepted) {
		if taken[paths[0].Prefix] {
			continue
		}
		w, without := j.way(paths, &hops)
		left = append(left, without...)
		if len(w.Paths) > 0 && len(w.Route.Hops) > 0 {
			ways = append(ways, w)
		}
	}
	return append(ways, j.tunnelEndRoutes(ways)...), left
}

// AggregateRoutes returns an unreachable route for each announced aggregate. Longer routes win.
func (s *Snapshot) AggregateRoutes() (all []routes.Route) {
	for _, p := range s.liveAggregates() {
		all = append(all, routes.Route{Dst: p, Type: netlinkx.Unreachable})
	}
	return all
}

// reservedFor returns the destinations of static routes, which the operator has chosen.
func (s *Snapshot) reservedFor(statics []routes.Route) map[netip.Prefix]bool {
	taken := make(map[netip.Prefix]bool, len(statics))
	for _, r := range statics {
		taken[r.Dst] = true
	}
	return taken
}

// byPrefix yields the paths of each prefix; paths of one prefix must be adjacent.
func byPrefix(paths []bgp.Path) func(yield func([]bgp.Path) bool) {
	return func(yield func([]bgp.Path) bool) {
		for len(paths) > 0 {
			n := 1
			for n < len(paths) && paths[n].Prefix == paths[0].Prefix {
				n++
			}
			if !yield(paths[:n:n]) {
				return
			}
			paths = paths[n:]
		}
	}
}

// hopStore holds the next hops of many routes, one after the other.
type hopStore []routes.Hop

// add appends a next hop unless the route, which begins at from, has it or is full (routes.MaxHops).
func (s *hopStore) add(from int, h routes.Hop) {
	if own := (*s)[from:]; !slices.Contains(own, h) && len(own) < routes.MaxHops {
		*s = append(*s, h)
	}
}

// way returns the route of one prefix. Paths without next hops here are left to the underlay.
func (j *Judge) way(paths []bgp.Path, hops *hopStore) (w DesiredRoute, left []bgp.Objection) {
	pool, _ := j.poolOf(paths[0].Prefix)
	w = DesiredRoute{Route: routes.Route{Dst: paths[0].Prefix, Metric: j.metric(paths[0].Prefix, pool)}, Paths: paths,
		Encrypted: j.encryptedTo(paths)}
	from := len(*hops)
	for _, p := range paths {
		if !j.hops(p, pool, from, hops) && !w.Encrypted {
			left = append(left, j.without(p))
		}
	}
	if len(left) > 0 {
		w.Paths = slices.DeleteFunc(slices.Clone(paths), func(p bgp.Path) bool {
			return slices.ContainsFunc(left, func(r bgp.Objection) bool { return r.Path == p })
		})
	}
	w.Route.Hops = (*hops)[from:len(*hops):len(*hops)]
	return w, left
}

// without returns an Objection with the reason why a path has no next hop.
func (s *Snapshot) without(p bgp.Path) bgp.Objection {
	if pool, ok := s.poolOf(p.Prefix); ok && s.awaited(pool, p.NextHop) {
		return bgp.Objection{Path: p, Why: "its node has not announced its end of the VXLAN tunnels yet", Pending: true}
	}
	return bgp.Objection{Path: p, Why: "the next hop is in another subnet and the pool does not encapsulate"}
}

// priorities are the metrics of learned routes outside of pools.
type priorities struct{ v4, v6 uint32 }

// prioritiesOf reads the metrics. The default is Calico's since 3.32; a host's own routes have lower metrics.
func prioritiesOf(b api.BGPConfigurationSpec) priorities {
	number := func(n *int) uint32 {
		if n == nil || *n < 1 || *n > math.MaxInt32-1 { // the API server rejects others
			return policy.NormalPriority
		}
		return uint32(*n)
	}
	return priorities{number(b.IPv4NormalRoutePriority), number(b.IPv6NormalRoutePriority)}
}

// metric returns the metric of a learned route. In pools it is 0, as only the nodes have routes there; outside it lets
// the host's own routes win, above all a default route.
func (s *Snapshot) metric(p netip.Prefix, pool *Pool) uint32 {
	switch {
	case pool != nil:
		return 0
	case p.Addr().Is4():
		return s.priorities.v4
	}
	return s.priorities.v6
}

// hops adds the kernel's next hops of a path, and reports whether there are any.
func (j *Judge) hops(p bgp.Path, pool *Pool, from int, to *hopStore) bool {
	if !leadsTo(p.NextHop, p.Prefix) {
		return false
	}
	if pool != nil {
		if h, ok := j.over(pool, p.NextHop); ok {
			to.add(from, h)
			return true
		}
		if pool.encapsulates() {
			return false
		}
	}
	if !p.From.IsValid() {
		return false // without a BGP path only the owner's address is known
	}
	resolved := j.resolve(p.NextHop)
	for _, h := range resolved {
		to.add(from, h)
	}
	return len(resolved) > 0
}

// StaticRoutes returns the routes to peers outside of this node's subnets, through the gateway that the operator has
// named. The errors are about gateways that are outside too.
func (s *Snapshot) StaticRoutes() (static []routes.Route, problems []error) {
	for _, st := range s.Peering.Static {
		h, ok := s.connected(st.Via)
		if !ok || st.Via.Is4() != st.Peer.Is4() {
			problems = append(problems, fmt.Errorf("BGP peer %s: reachableBy %s is in no subnet of this node", st.Peer, st.Via))
			continue
		}
		static = append(static, routes.To(netip.PrefixFrom(st.Peer, st.Peer.BitLen()), h))
	}
	return static, problems
}
