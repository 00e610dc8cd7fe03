package desired

import (
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/bgp/policy"
)

// Kinds of sessions.
const (
	KindMesh      = "mesh"
	KindReflector = "reflector"
	KindNode      = "node"
	KindGlobal    = "global"
)

// Session is the decision on one session.
type Session struct {
	Peer   bgp.Peer
	Source peering.Source
	// Kind is one of the kinds of sessions.
	Kind string
}

// Sessions returns the sessions decided on, with unresolved ones, by address.
func (s *Snapshot) Sessions() map[netip.Addr]Session {
	all := make(map[netip.Addr]Session, len(s.Peering.Peers))
	add := func(p bgp.Peer) {
		source := s.Peering.Sources[p.Addr]
		all[p.Addr] = Session{Peer: p, Source: source, Kind: s.kind(source)}
	}
	for _, p := range s.Peering.Peers {
		add(p)
	}
	for _, u := range s.Peering.Unresolved {
		add(u.Peer)
	}
	return all
}

// kind returns why a session exists.
func (s *Snapshot) kind(source peering.Source) string {
	switch {
	case source.Global:
		return KindGlobal
	case source.Peer == api.ReflectorsPeer:
		return KindReflector
	case source.Peer != "":
		return KindNode
	}
	return KindMesh
}

// Reflectors returns the names of the route reflectors with which BGPPeer api.ReflectorsPeer gives this node sessions;
// if this node is such a reflector, its own name too.
func (s *Snapshot) Reflectors() (names []string) {
	for _, source := range s.Peering.Sources {
		if m, ok := s.Member(source.Node); ok && m.Reflector && source.Peer == api.ReflectorsPeer {
			names = append(names, m.Name)
		}
	}
	if _, ours := s.Self.Labels[api.LabelReflector]; ours && s.Self.Reflector {
		names = append(names, s.Self.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Unreflected reports whether reflectors are in use and silent has false for none that serves an address's family: none
// has sent its whole table. Then BGP's silence about a node without a session means nothing.
func (s *Snapshot) Unreflected(of netip.Addr, silent map[netip.Addr]bool) bool {
	if s.Mesh || s.Self.Reflector {
		return false
	}
	for _, i := range s.index.reflect {
		if quiet, known := silent[s.Others[i].In(of)]; known && !quiet {
			return false
		}
	}
	return len(s.index.reflect) > 0 || s.Reflected()
}

// Reflected reports whether kube-controllers has replaced the mesh by route reflectors.
func (s *Snapshot) Reflected() bool {
	return !s.Mesh && slices.ContainsFunc(s.peers.all, func(p api.BGPPeer) bool { return p.Name == api.ReflectorsPeer })
}

// Announcement is a prefix that this node originates in BGP.
type Announcement struct {
	Prefix netip.Prefix
	// Origin is the kind of prefix: own block, borrowed address, aggregate, service range or service.
	Origin string
	// Communities come from prefixAdvertisements.
	Communities []policy.Community
}

// Announcements returns the prefixes that this node originates, with their origins.
func (s *Snapshot) Announcements() []Announcement {
	var all []Announcement
	ranges := s.served.Ranges()
	for _, p := range s.Originated() {
		a := Announcement{Prefix: p.Prefix, Origin: "borrowed address", Communities: s.communities(p.Prefix)}
		switch {
		case p.Aggregate:
			a.Origin = "aggregate"
		case s.owns(p.Prefix):
			a.Origin = "own block"
		case slices.Contains(ranges, p.Prefix):
			a.Origin = "service range"
		case listed(s.Services, p.Prefix):
			a.Origin = "service"
		}
		all = append(all, a)
	}
	return all
}

// listed reports whether a prefix is in a list in ascending order.
func listed(sorted []netip.Prefix, p netip.Prefix) bool {
	_, found := slices.BinarySearchFunc(sorted, p, netip.Prefix.Compare)
	return found
}

// communities returns the communities that prefixAdvertisements add to a prefix that this node originates.
func (s *Snapshot) communities(p netip.Prefix) []policy.Community {
	var all []policy.Community
	for _, t := range s.Peering.Tags {
		if !inside(p, t.Prefix) {
			continue
		}
		for _, c := range t.Communities {
			if !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	return all
}

// Names returns the names of the other nodes by their addresses.
func (s *Snapshot) Names() map[netip.Addr]string {
	names := make(map[netip.Addr]string, len(s.Others))
	for _, m := range s.Others {
		names[m.Addr], names[m.Addr6] = m.Name, m.Name
	}
	delete(names, netip.Addr{})
	return names
}
