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

// ownLinks returns the indexes of the node's own links, for guard.Config: no pod can make or join one, even with
// CAP_NET_ADMIN. The order is: the links of the node's addresses; tunnels, on which most packets come; then other links
// with an address, links named in BGPPeers, hardware, devices for single nodes, bridges with hardware, and VRFs, whose
// packets have passed the guard on another link.
//
// Addresses are evidence as a pod cannot give its link one; addresses from a router or a DHCP server have a lifetime. A
// pod can join any bridge, but one with hardware has the network's packets anyway. A link with the other end in another
// namespace belongs to its maker even with an address; except veth, the link of nodes that are containers.
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
			return true // has no address
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
		case l.Elsewhere() && l.Kind != "veth": // its other end may be anywhere
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

// hasAddr reports whether a link has a permanent address that is not link-local: it was set on the node.
func hasAddr(l netlinkx.Link, addrs []netlinkx.Addr) bool {
	return slices.ContainsFunc(addrs, func(a netlinkx.Addr) bool {
		return a.Link == l.Index && !a.Ending && !a.Prefix.Addr().IsLinkLocalUnicast()
	})
}

// guardNew makes the guard accept packets of any source on devices that this pass has made: before they are up, and
// before their addresses are announced.
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
