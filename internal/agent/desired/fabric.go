package desired

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/wire"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
)

// Grounds are the facts, beside a Snapshot, by which paths are judged. In the zero value none are known.
type Grounds struct {
	// Borrowed has the borrowed addresses in the records of blocks.
	Borrowed map[Claim]Verdict
	// Held are confirmed claims of nodes that BGP has no session with.
	Held []Claim
	// HostRoutes are the host's own routes by a gateway.
	HostRoutes HostRoutes
	// learned are paths outside of pools whose next hops are reached without another path.
	learned prefixes
}

// HostRoutes are a host's own routes by a gateway, without default routes: those lead anywhere, and what they lead to
// needs no other route.
type HostRoutes struct{ prefixes }

// Judge decides about paths by a Snapshot and Grounds. It changes neither.
type Judge struct {
	*Snapshot
	Grounds
}

// By returns the Judge by some grounds.
func (s *Snapshot) By(g Grounds) *Judge { return &Judge{s, g} }

// Resolve returns the grounds by which next hops are resolved recursively through these paths, and reports whether that
// is new.
func (j *Judge) Resolve(paths []bgp.Path) (g Grounds, changed bool) {
	g = j.Grounds
	g.learned = j.leading(paths)
	return g, !g.learned.same(&j.learned)
}

// Subnet is one that the node has an address in, and the link.
type Subnet struct {
	prefix netip.Prefix
	link   string
}

// Subnets are the subnets that this node is in, that of the node's address first in each family.
func (s *Snapshot) Subnets() []Subnet { return s.local().subnets }

// prefixes finds the longest prefix that has an address, and the next hops there.
type prefixes struct {
	hops    map[netip.Prefix][]routes.Hop
	lengths []int // of both families, longest first
}

func (p *prefixes) add(prefix netip.Prefix, hops ...routes.Hop) {
	if p.hops == nil {
		p.hops = map[netip.Prefix][]routes.Hop{}
	}
	p.hops[prefix] = append(p.hops[prefix], hops...)
	if i, found := slices.BinarySearchFunc(p.lengths, prefix.Bits(), func(a, b int) int { return b - a }); !found {
		p.lengths = slices.Insert(p.lengths, i, prefix.Bits())
	}
}

// find returns the next hops towards an address, and the length of the prefix; none and -1 if no prefix has it.
func (p *prefixes) find(a netip.Addr) ([]routes.Hop, int) {
	for _, bits := range p.lengths {
		prefix, err := a.Prefix(bits)
		if err != nil {
			continue // IPv6's length
		}
		if hops, ok := p.hops[prefix]; ok {
			return hops, bits
		}
	}
	return nil, -1
}

// same reports equal prefixes with equal next hops.
func (p *prefixes) same(other *prefixes) bool {
	if len(p.hops) != len(other.hops) {
		return false
	}
	for prefix, hops := range p.hops {
		if theirs, ok := other.hops[prefix]; !ok || !slices.Equal(hops, theirs) {
			return false
		}
	}
	return true
}

// believed reports that a peer is believed about what is not of its own blocks: a router that an operator has made a
// peer is, a node of the cluster as far as a rule of the operator's accepts the prefix. A node's own statements, its
// labels too, make it no router.
func (s *Snapshot) believed(p bgp.Path) bool {
	source := s.Peering.Sources[p.From]
	if source.Peer == "" || source.Node == "" {
		return source.Peer != ""
	}
	accepts := s.Peering.Import[p.From].Accepts(wire.FamilyOf(p.Prefix.Addr()))
	return slices.ContainsFunc(accepts, func(in netip.Prefix) bool { return inside(p.Prefix, in) })
}

// IsRouter reports that a next hop is a peer that is no node, or link-local. The API knows of no route by it, only BGP
// does.
func (s *Snapshot) IsRouter(hop netip.Addr) bool {
	source := s.Peering.Sources[hop]
	return wire.LinkLocal(hop) || source.Peer != "" && source.Node == ""
}

// Routed reports that there may be paths by way of routers.
func (s *Snapshot) Routed() bool {
	for _, source := range s.Peering.Sources {
		if source.Peer != "" {
			return true
		}
	}
	return false
}

// localNetworks are a node's own addresses and the subnets that it is in, made once for a snapshot: kube-proxy may give
// a host thousands of addresses.
type localNetworks struct {
	subnets []Subnet // that of the node's address first in each family
	own     map[netip.Addr]bool
}

// local returns the local networks, without the links of the agent and of the plugins.
func (s *Snapshot) local() *localNetworks {
	if s.networks != nil {
		return s.networks
	}
	n := &localNetworks{own: make(map[netip.Addr]bool, len(s.Self.Found)+4)}
	for _, a := range append(s.Self.addrs(), s.Self.TunnelAddrs()...) {
		n.own[a] = true
	}
	for _, own := range []netip.Prefix{s.Self.Addr, s.Self.Addr6} {
		if _, link := s.Self.towards(own.Addr()); own.IsValid() && link != "" {
			n.subnets = append(n.subnets, Subnet{own.Masked(), link})
		}
	}
	for _, c := range s.Self.Found {
		a := c.Addr.Addr()
		if n.own[a] = true; a.IsLinkLocalUnicast() {
			n.own[a.WithZone(c.Link)] = true
		}
		if at := (Subnet{c.Addr.Masked(), c.Link}); !internal(c.Link) && !slices.Contains(n.subnets, at) {
			n.subnets = append(n.subnets, at)
		}
	}
	s.networks = n
	return n
}

// connected returns the next hop in a subnet of this node's. Of several subnets the smallest counts, as for the kernel.
// A link-local address with a zone is on that link, whichever subnets there are; whether the link exists is seen when
// the route is made.
func (s *Snapshot) connected(a netip.Addr) (h routes.Hop, ok bool) {
	if zone := a.Zone(); zone != "" {
		return routes.Hop{Via: a.WithZone(""), Dev: zone}, wire.LinkLocal(a) && !internal(zone) && !s.isSelf(a)
	}
	bits := -1
	for _, at := range s.local().subnets {
		if at.prefix.Bits() > bits && at.prefix.Contains(a) && !at.prefix.IsSingleIP() {
			h, bits = routes.Hop{Via: a, Dev: at.link}, at.prefix.Bits()
		}
	}
	return h, bits >= 0 && !s.isSelf(a)
}

// internal reports that nothing outside of the cluster is behind a link.
func internal(link string) bool {
	return link == "lo" || strings.HasPrefix(link, podnet.DefaultVethPrefix) || slices.Contains(ownDevices, link) ||
		ipip.Owns(link) || ofServices(link)
}

// ofServices reports the link that kube-proxy puts addresses of services on in its mode ipvs.
func ofServices(link string) bool { return strings.HasPrefix(link, "kube-ipvs") }

// ownDevices are the links that Calico or the agent make, beside those of pods.
var ownDevices = []string{vxlan.Device4, vxlan.Device6, wireguard.Device4, wireguard.Device6, wireguard.Second4, wireguard.Second6}

// isSelf reports that an address is this node's.
func (s *Snapshot) isSelf(a netip.Addr) bool { return s.local().own[a] }

// resolve returns the kernel's next hops towards a next hop that BGP has told, none if it is not reached: it is in a
// subnet of this node's, or is a peer that the operator has given a gateway for, or a route of the host or a path
// outside of pools leads there, whichever is more specific. A path whose own next hop takes another path leads nowhere:
// there are no loops.
func (j *Judge) resolve(hop netip.Addr) []routes.Hop {
	if hops := j.direct(hop); hops != nil || hop.Zone() != "" {
		return hops
	}
	host, hostBits := j.HostRoutes.find(hop)
	learned, learnedBits := j.learned.find(hop)
	if learnedBits > hostBits {
		return learned
	}
	return host
}

// direct is resolve without other routes.
func (s *Snapshot) direct(hop netip.Addr) []routes.Hop {
	if h, ok := s.connected(hop); ok {
		return []routes.Hop{h}
	}
	for _, st := range s.Peering.Static {
		if h, ok := s.connected(st.Via); ok && st.Peer == hop && st.Via.Is4() == hop.Is4() {
			return []routes.Hop{h}
		}
	}
	return nil
}

// leading returns the paths outside of pools by which next hops of other paths may be reached.
func (s *Snapshot) leading(paths []bgp.Path) prefixes {
	var leading prefixes
	for _, p := range paths {
		if _, inPool := s.poolOf(p.Prefix); inPool || p.Prefix.Bits() == 0 {
			continue
		}
		if hops := s.direct(p.NextHop); len(hops) > 0 {
			leading.add(p.Prefix, hops...)
		}
	}
	return leading
}

// HostRoutesOf returns those of a host's routes that matter to next hops.
func HostRoutesOf(host []netlinkx.Route, links []netlinkx.Link) HostRoutes {
	names := make(map[int]string, len(links))
	for _, l := range links {
		names[l.Index] = l.Name
	}
	var ways prefixes
	best := map[netip.Prefix]uint32{}
	for _, r := range host {
		name := names[r.Dev]
		metric, known := best[r.Dst]
		if r.Type != netlinkx.Unicast || !r.Via.IsValid() || r.Dst.Bits() == 0 || r.TOS != 0 || name == "" || internal(name) ||
			known && metric <= r.Metric {
			continue
		}
		best[r.Dst] = r.Metric
		delete(ways.hops, r.Dst)
		ways.add(r.Dst, routes.Hop{Via: r.Via, Dev: name, Onlink: r.Onlink})
	}
	return HostRoutes{ways}
}

// PoolRanges are the pools'.
func (s *Snapshot) PoolRanges() []netip.Prefix {
	ranges := make([]netip.Prefix, len(s.Pools))
	for i, p := range s.Pools {
		ranges[i] = p.CIDR
	}
	return ranges
}
