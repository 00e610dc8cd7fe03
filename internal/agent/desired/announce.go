package desired

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/policy"
)

// Local returns this node's end of all sessions. The error is for the operator.
func (s *Snapshot) Local() (bgp.Local, error) {
	id, err := nodeaddr.RouterID(s.Self.RouterID, s.Self.Name, s.Self.Addr.Addr())
	return bgp.Local{ASN: s.OwnASN(), RouterID: id, Listen: s.listen(), Port: s.Port, ClusterID: s.Peering.ClusterID}, err
}

// listen returns the addresses on which BGP listens: the node's, or the unspecified ones if the cluster's bindMode is
// None. Calico treats None as the default; in Tortie it must be set.
func (s *Snapshot) listen() []netip.Addr {
	addrs := s.Self.addrs()
	if s.peers.config.BindMode == "None" {
		for i, a := range addrs {
			addrs[i] = netip.IPv4Unspecified()
			if a.Is6() {
				addrs[i] = netip.IPv6Unspecified()
			}
		}
	}
	return addrs
}

// Policy returns the rules for paths on the sessions. Learned paths are passed on inside of the pools, except pools
// with disableBGPExport and pools for Services alone: a peer that learned an address of a Service with policy Local
// from a node without an endpoint would lose packets. A route reflector also passes on paths inside of the ranges of
// services, but an address of a Service only with its own next hop (Served). BGP itself passes on paths from or to
// another AS, and paths from or to a reflector's client; no others.
func (s *Snapshot) Policy() bgp.Policy {
	p := bgp.Policy{
		Tags: s.Peering.Tags, Import: s.imports(), Export: s.Peering.Export, Refuse: s.ownAddresses(), Own: s.Blocks,
		Normal4: s.priorities.v4, Normal6: s.priorities.v6, Aggregates: s.Aggregates, Served: slices.Clone(s.ServiceRanges),
	}
	for _, pool := range s.Pools {
		switch {
		case pool.NoExport:
			p.Hidden = append(p.Hidden, pool.CIDR)
		case !pool.servicesOnly():
			p.Transit = append(p.Transit, pool.CIDR)
		}
		if pool.servicesOnly() {
			p.Served = append(p.Served, pool.CIDR)
		}
	}
	if s.Peering.ClusterID.IsValid() {
		p.Transit = append(p.Transit, s.PassedServices()...)
	}
	for _, at := range s.local().subnets {
		if a := at.prefix.Addr(); a.Is4() || !a.IsLinkLocalUnicast() { // each link has fe80::/64
			p.Links = append(p.Links, policy.Link{Prefix: at.prefix, Interface: at.link})
		}
	}
	return p
}

// imports returns the import rules by peer: the operator's rules. For peers that are nodes of the cluster a last rule
// rejects all prefixes outside of the pools and of the ranges of services, which reflectors pass on. Paths of the mesh
// outside of these never become routes. They are accepted only to be shown as refused, unless an export rule could pass
// them on with this node as next hop.
func (s *Snapshot) imports() map[netip.Addr]*policy.Rules {
	all := maps.Clone(s.Peering.Import)
	var closed *policy.Rules
	for peer, source := range s.Peering.Sources {
		if source.Node == "" || source.Peer == "" && len(s.Peering.Export) == 0 {
			continue
		}
		if closed == nil {
			closed = policy.Within(slices.Concat(s.PoolRanges(), s.ServiceRanges), "outside of the pools, from a node")
		}
		if all == nil {
			all = map[netip.Addr]*policy.Rules{}
		}
		all[peer] = policy.Join(all[peer], closed)
	}
	return all
}

// ownAddresses returns the addresses at which others can reach this node, in ascending order.
func (s *Snapshot) ownAddresses() []netip.Prefix {
	all := append(s.Self.addrs(), s.Self.TunnelAddrs()...)
	for _, c := range s.Self.Found {
		// kube-proxy's addresses of services are many and change often. None of our routes leads to one.
		if !ofServices(c.Link) {
			all = append(all, c.Addr.Addr())
		}
	}
	var own []netip.Prefix
	for _, a := range all {
		if a.IsGlobalUnicast() && !a.Is4In6() {
			own = append(own, netip.PrefixFrom(a.WithZone(""), a.BitLen()))
		}
	}
	slices.SortFunc(own, netip.Prefix.Compare)
	return slices.Compact(own)
}

// OwnASN is the AS number of this node.
func (s *Snapshot) OwnASN() uint32 { return cmp.Or(s.Self.ASN, s.ASN) }

// Originated returns the paths that this node originates: its own confirmed blocks, each pod's own or floating address
// from another node's block, aggregates, and addresses of services. Pools that keep out of BGP, and families in which
// the node has no address, are left out.
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
	singles := slices.Clone(s.Self.Pods)
	floating, _ := s.Floats()
	for _, f := range floating {
		singles = append(singles, f.Addr)
	}
	for _, a := range singles {
		single := netip.PrefixFrom(a, a.BitLen())
		if _, owner, ok := s.blockOf(single); !ok || owner.Node != s.Self.Name {
			announce(single)
		}
	}
	for _, p := range s.liveAggregates() {
		paths = append(paths, bgp.Path{Prefix: p, Aggregate: true})
	}
	for _, p := range s.Services {
		self, _ := s.Self.towards(p.Addr())
		if pool, ok := s.poolOf(p); self.IsValid() && (!ok || !pool.NoExport) {
			paths = append(paths, bgp.Path{Prefix: p})
		}
	}
	return paths
}
