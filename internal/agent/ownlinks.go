package agent

import (
	"context"
	"errors"
	"slices"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
)

// ownLinks returns the indexes of the links that are the node's own, for guard.Config: no pod can make such a link or
// join one, with CAP_NET_ADMIN either. Those of the node's addresses come first, then tunnels, by which most packets
// come, then other links with an address, those that operators name in BGPPeers, hardware, devices for single nodes,
// bridges that hardware is part of, and VRFs, whose packets have passed the guard by another link. A pod gives its
// links no addresses; those that a router or a DHCP server gives them have a lifetime. It can join any bridge, but one
// with hardware has the network's packets anyway. What sends and receives in another namespace is its maker's, with an
// address too, but for veth, which is what nodes in containers have.
func ownLinks(s *desired.Snapshot, links []netlinkx.Link, addrs []netlinkx.Addr) (indexes []int) {
	add := func(own func(l netlinkx.Link) bool) {
		for _, l := range links {
			if own(l) && !slices.Contains(indexes, l.Index) {
				indexes = append(indexes, l.Index)
			}
		}
	}
	hardware := func(l netlinkx.Link) bool { return l.Kind == "device" }
	tunnel := func(l netlinkx.Link) bool {
		if s.Needs(desired.WireGuardTunnel) && wireguard.IsSecond(l, false) || s.Needs(desired.WireGuardTunnel6) && wireguard.IsSecond(l, true) {
			return true // it has no address
		}
		return slices.Contains([]string{"ipip", "vxlan", "wireguard"}, l.Kind) && !l.Elsewhere() && hasAddr(l, addrs)
	}
	named := s.Peering.Interfaces()
	add(func(l netlinkx.Link) bool { return l.Name == s.Self.Link })
	add(func(l netlinkx.Link) bool { return l.Name == s.Self.Link6 })
	add(tunnel)
	add(func(l netlinkx.Link) bool {
		_, operators := named[l.Name]
		switch {
		case operators:
			return true
		case l.Elsewhere() && l.Kind != "veth": // whose other end may be anywhere
			return false
		case l.Kind == "bridge":
			return slices.ContainsFunc(links, func(port netlinkx.Link) bool { return port.Master == l.Index && hardware(port) })
		case l.Kind == "ipip":
			return s.Needs(desired.IPIPTunnel) && ipip.IsPeer(l)
		case l.Kind == "vrf":
			return true
		}
		return hardware(l) || hasAddr(l, addrs)
	})
	return indexes
}

// hasAddr reports whether a link has an address that somebody on the node has given it.
func hasAddr(l netlinkx.Link, addrs []netlinkx.Addr) bool {
	return slices.ContainsFunc(addrs, func(a netlinkx.Addr) bool {
		return a.Link == l.Index && !a.Ending && !a.Prefix.Addr().IsLinkLocalUnicast()
	})
}

// guardNew has the guard take packets of any source by devices that this pass has made: before their addresses are
// announced, or they are up.
func (a *Agent) guardNew(ctx context.Context, s *desired.Snapshot) error {
	links, err := a.Kernel.Links()
	addrs, errAddrs := a.Kernel.Addrs(0, netlinkx.FamilyAll)
	if err := errors.Join(err, errAddrs); err != nil {
		return err
	}
	if own := ownLinks(s, links, addrs); !slices.Equal(own, a.guarded) {
		return a.syncGuard(ctx, s, own)
	}
	return nil
}
