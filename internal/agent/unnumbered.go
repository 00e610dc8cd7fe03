package agent

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/bgp/radv"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// findRouters puts into a snapshot which of the interfaces named in BGPPeers this node has, and the routers on them. It
// makes the engine look for routers there.
func (a *Agent) findRouters(s *desired.Snapshot) error {
	if a.Config.NoBGP {
		return nil
	}
	named := s.Peering.Interfaces()
	looked, links := map[string]radv.Link{}, make(map[string]peering.Link, len(named))
	for _, l := range a.links {
		learn, ok := named[l.Name]
		if !ok {
			continue
		}
		links[l.Name] = peering.Link{}
		if !learn {
			continue
		}
		addrs, err := a.linkLocal(l)
		if err != nil {
			return err
		}
		looked[l.Name] = radv.Link{Index: l.Index, Addrs: addrs}
	}
	a.routers.Set(looked)
	for name := range looked {
		router, err := a.routers.Router(name)
		link := peering.Link{Router: router}
		if err != nil {
			link.Why = err.Error()
		}
		links[name] = link
	}
	if a.peering.On(s, links) {
		a.changed.bgp = true
	}
	return nil
}

// linkLocal returns the link-local addresses from which packets can be sent on a link.
func (a *Agent) linkLocal(l netlinkx.Link) (usable []netip.Addr, err error) {
	if l.Down {
		return nil, nil
	}
	addrs, err := a.Kernel.Addrs(l.Index, netlinkx.IPv6)
	for _, at := range addrs {
		if at.Prefix.Addr().IsLinkLocalUnicast() && !at.Tentative {
			usable = append(usable, at.Prefix.Addr())
		}
	}
	return usable, err
}

// withUnresolved adds the unresolved sessions as idle ones. Like other sessions that are down they keep routes of an
// earlier agent for a while.
func (b *bgpState) withUnresolved(now time.Time, peers []bgp.PeerStatus, s *desired.Snapshot) []bgp.PeerStatus {
	before := b.unresolved
	b.unresolved = make(map[netip.Addr]time.Time, len(s.Peering.Unresolved))
	for _, u := range s.Peering.Unresolved {
		since, known := before[u.Peer.Addr]
		if !known {
			since = now
		}
		b.unresolved[u.Peer.Addr] = since
		peers = append(peers, bgp.PeerStatus{
			Addr: u.Peer.Addr, ASN: u.Peer.ASN, LocalASN: cmp.Or(u.Peer.LocalASN, s.OwnASN()), State: bgp.Idle, Since: since,
			LastError: u.Why, ErrorSince: since, LastErrorAt: now,
		})
	}
	slices.SortFunc(peers, func(a, b bgp.PeerStatus) int { return a.Addr.Compare(b.Addr) })
	return peers
}
