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

// Grounds are the facts, beside a Snapshot, by which paths are judged. In the zero value none is known.
type Grounds struct {
	// Borrowed has the verdicts on borrowed addresses, from IPAMBlocks.
	Borrowed map[Claim]Verdict
	// Held are confirmed claims of nodes without a BGP session.
	Held []Claim
	// HostRoutes are the host's own routes through a gateway.
	HostRoutes HostRoutes
	// learned are paths outside of pools with next hops that resolve without another path.
	learned prefixes
}

// HostRoutes are a host's own routes through a gateway. Default routes are left out: they match anything, and what they
// reach needs no other route.
type HostRoutes struct{ prefixes }

// Judge decides about paths by a Snapshot and Grounds. It changes neither.
type Judge struct {
	*Snapshot
	Grounds
}

// By returns a Judge with these grounds.
func (s *Snapshot) By(g Grounds) *Judge { return &Judge{s, g} }

// Resolve returns the grounds by which next hops are resolved recursively through these paths, and reports whether they
// changed.
func (j *Judge) Resolve(paths []bgp.Path) (g Grounds, changed bool) {
	g = j.Grounds
	g.learned = j.leading(paths)
	return g, !g.learned.same(&j.learned)
}

// Subnet is a subnet in which the node has an address, and its link.
type Subnet struct {
	prefix netip.Prefix
	link   string
}

// Subnets returns the subnets that this node is in. In each family the subnet of the node's address comes first.
func (s *Snapshot) Subnets() []Subnet { return s.local().subnets }

// prefixes finds the longest prefix that contains an address, and its next hops.
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

// find returns the next hops towards an address, and the length of the prefix; nil and -1 if no prefix contains it.
func (p *prefixes) find(a netip.Addr) ([]routes.Hop, int) {
	for _, bits := range p.lengths {
		prefix, err := a.Prefix(bits)
		if err != nil {
			continue // a length of IPv6 alone
		}
		if hops, ok := p.hops[prefix]; ok {
			return hops, bits
		}
	}
	return nil, -1
}

// same reports whether prefixes and next hops are equal.
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

// believed reports whether a peer may announce prefixes other than its own blocks: a router that an operator has made a
// peer may, a node of the cluster only if an import rule of the operator accepts the prefix. A node cannot make itself
// a router, not by its labels either.
func (s *Snapshot) believed(p bgp.Path) bool {
	source := s.Peering.Sources[p.From]
	if source.Peer == "" || source.Node == "" {
		return source.Peer != ""
	}
	accepts := s.Peering.Import[p.From].Accepts(wire.FamilyOf(p.Prefix.Addr()))
	return slices.ContainsFunc(accepts, func(in netip.Prefix) bool { return inside(p.Prefix, in) })
}

// IsRouter reports whether a next hop is link-local, or a peer that is no node. Only BGP, not the API, has routes
// through it.
func (s *Snapshot) IsRouter(hop netip.Addr) bool {
	source := s.Peering.Sources[hop]
	return wire.LinkLocal(hop) || source.Peer != "" && source.Node == ""
}

// Routed reports whether there may be paths through routers.
func (s *Snapshot) Routed() bool {
	for _, source := range s.Peering.Sources {
		if source.Peer != "" {
			return true
		}
	}
	return false
}

// localNetworks are a node's own addresses and the subnets that it is in, computed once per snapshot: kube-proxy may
// add thousands of addresses to a host.
type localNetworks struct {
	subnets []Subnet // per family the subnet of the node's address first
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

// connected returns the next hop in a subnet of this node. The smallest of several subnets counts, as in the kernel. A
// link-local address with a zone is on that link, whatever the subnets; a missing link shows when the route is made.
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

// internal reports whether a link leads to nothing outside of the cluster.
func internal(link string) bool {
	return link == "lo" || strings.HasPrefix(link, podnet.DefaultVethPrefix) || slices.Contains(ownDevices, link) ||
		ipip.Owns(link) || ofServices(link)
}

// ofServices reports whether kube-proxy's mode ipvs puts addresses of services on a link.
func ofServices(link string) bool { return strings.HasPrefix(link, "kube-ipvs") }

// ownDevices are the links that Calico or the agent make, beside links of pods.
var ownDevices = []string{vxlan.Device4, vxlan.Device6, wireguard.Device4, wireguard.Device6, wireguard.Second4, wireguard.Second6}

// isSelf reports whether this node has an address.
func (s *Snapshot) isSelf(a netip.Addr) bool { return s.local().own[a] }

// resolve returns the kernel's next hops towards a BGP next hop; none if it is not reachable. It must be in a subnet of
// this node, or a peer for which the operator has set a gateway; else the more specific of the host's routes and the
// paths outside of pools counts. Its own next hop must not need another path, so there are no loops.
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

// HostRoutesOf returns the host's routes that next hops can resolve through.
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

// PoolRanges returns the CIDRs of the pools.
func (s *Snapshot) PoolRanges() []netip.Prefix {
	ranges := make([]netip.Prefix, len(s.Pools))
	for i, p := range s.Pools {
		ranges[i] = p.CIDR
	}
	return ranges
}
