package node

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/encap"
	"github.com/tortie-net/tortie/internal/nodestatus"
	"github.com/tortie-net/tortie/internal/peering"
	"github.com/tortie-net/tortie/internal/vxlan"
)

// Sources of sessions, the first in calicoctl's words.
const (
	meshSource       = "node-to-node mesh"
	reflectionSource = "automatic reflection"
)

// Kinds of sessions.
const (
	kindMesh      = "mesh"
	kindReflector = "reflector"
	kindNode      = "node"
	kindGlobal    = "global"
)

// session is what the decision on sessions says of one.
type session struct {
	peer   bgp.Peer
	source peering.Source
	// kind is one of the kinds of sessions.
	kind string
}

// sessions are those that were decided on, by address.
func (s *Snapshot) sessions() map[netip.Addr]session {
	global := make(map[string]bool, len(s.peers.all))
	for i := range s.peers.all {
		p := &s.peers.all[i]
		global[p.Name] = p.Spec.Node == "" && p.Spec.NodeSelector == ""
	}
	all := make(map[netip.Addr]session, len(s.Peering.Peers))
	for _, p := range s.Peering.Peers {
		source := s.Peering.Sources[p.Addr]
		all[p.Addr] = session{peer: p, source: source, kind: s.kind(source, global)}
	}
	return all
}

// kind tells why a session is there; global has the BGPPeers that are for all nodes.
func (s *Snapshot) kind(source peering.Source, global map[string]bool) string {
	switch {
	case source.Peer != "" && global[source.Peer]:
		return kindGlobal
	case source.Peer != "":
		return kindNode
	case s.reflects(source.Node):
		return kindReflector
	}
	return kindMesh
}

// reflects reports that a session with a node is one between a reflector and another that takes part in automatic reflection.
func (s *Snapshot) reflects(node string) bool {
	a := s.Automatic
	if a == nil {
		return false
	}
	return a.Reflectors[node] && a.Role != peering.NoRole || a.Clients[node] && a.Role == peering.Reflector
}

// report shows a session: what was decided on it, and what became of it.
func (d session) report(s *Snapshot, p bgp.PeerStatus, names map[netip.Addr]string) nodestatus.Peer {
	out := nodestatus.Peer{
		Address: p.Addr.String(), Node: names[p.Addr], From: addrText(d.peer.From), Port: d.peer.Port, ASN: p.ASN, Source: meshSource, Kind: d.kind,
		Object: d.source.Peer, Client: p.Client, Password: d.peer.Password != "", TTLHops: d.peer.TTLSecurity, Passive: p.Passive,
		State: string(p.State), Since: p.Since, Restarting: p.Restarting, Received: p.Received, Sent: p.Sent, EndOfTable: p.EndOfTable, Supports: p.Supports,
		LastError: p.LastError, ErrorSince: p.ErrorSince, ErrorAt: p.LastErrorAt, HeldUntil: p.HeldUntil,
	}
	switch d.kind {
	case kindNode, kindGlobal:
		out.Source = d.source.String()
	case kindReflector:
		out.Source = reflectionSource
	}
	if p.LocalASN != s.asn(s.Self.ASN) {
		out.LocalASN = p.LocalASN
	}
	for _, r := range p.Refused {
		out.Refused += r.Prefixes
		reason := nodestatus.Reason{Reason: r.Reason, Prefixes: r.Prefixes}
		if r.Example.IsValid() {
			reason.Example = r.Example.String()
		}
		out.Refusals = append(out.Refusals, reason)
	}
	return out
}

// reflection is this node's part in route reflection; nil if it has none.
func (s *Snapshot) reflection() *nodestatus.Reflection {
	id := addrText(s.Peering.ClusterID)
	switch {
	case s.Self.Reflector:
		return &nodestatus.Reflection{Role: "configured", ClusterID: id}
	case s.Automatic == nil || s.Automatic.Role == peering.NoRole:
		return nil
	}
	out := &nodestatus.Reflection{Role: string(s.Automatic.Role), ClusterID: id}
	for node, is := range s.Automatic.Reflectors {
		if is {
			out.Reflectors = append(out.Reflectors, node)
		}
	}
	if s.Automatic.Role == peering.Reflector {
		out.Reflectors = append(out.Reflectors, s.Self.Name)
	}
	slices.Sort(out.Reflectors)
	if p := s.plan; p != nil {
		out.Since, out.Why, out.Nodes, out.Waiting = p.Since, p.Why, p.Roll.Len(), p.Kept()
	}
	return out
}

// announcements are what this node announces, and why.
func (s *Snapshot) announcements() []nodestatus.Announced {
	all := []nodestatus.Announced{}
	ranges := s.services.Ranges()
	for _, p := range s.Originated() {
		a := nodestatus.Announced{Prefix: p.Prefix.String(), Origin: "borrowed address", Communities: s.tagged(p.Prefix)}
		switch {
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

// listed looks a prefix up among some in ascending order.
func listed(sorted []netip.Prefix, p netip.Prefix) bool {
	_, found := slices.BinarySearchFunc(sorted, p, netip.Prefix.Compare)
	return found
}

// tagged returns the communities that prefixAdvertisements give to what this node announces.
func (s *Snapshot) tagged(p netip.Prefix) string {
	var texts []string
	for _, t := range s.Peering.Tags {
		if !inside(p, t.Prefix) {
			continue
		}
		for _, c := range t.Communities {
			if text := c.String(); !slices.Contains(texts, text) {
				texts = append(texts, text)
			}
		}
	}
	return strings.Join(texts, " ")
}

// serviceReport says what is announced for services; nil if nothing is asked for.
func (s *Snapshot) serviceReport() *nodestatus.Services {
	if !s.services.On() {
		return nil
	}
	out := &nodestatus.Services{Known: s.servicesKnown, Excluded: s.excluded(), Prefixes: len(s.Services), Ranges: []string{}}
	for _, r := range s.ServiceRanges {
		out.Ranges = append(out.Ranges, r.String())
	}
	return out
}

// report shows a way; of several paths the attributes of the preferred one.
func (w way) report(names map[netip.Addr]string) nodestatus.Route {
	line := routeReport(w.route, w.about)
	if len(w.paths) == 0 {
		return line
	}
	line.Source = "affinity"
	p := w.paths[0]
	line.Node, line.ASPath, line.Communities = names[p.NextHop], p.ASPath, p.Communities
	if p.From.IsValid() {
		line.Source, line.Peer = "BGP", p.From.String()
	}
	if len(w.paths) > 1 {
		for _, p := range w.paths {
			line.Peers = append(line.Peers, addrText(p.From))
		}
		slices.Sort(line.Peers)
		line.Peers = slices.Compact(line.Peers)
	}
	return line
}

// tunnelReports are the tunnels that this node should have.
func (s *Snapshot) tunnelReports() []nodestatus.Tunnel {
	var all []nodestatus.Tunnel
	tunnels := s.Tunnels()
	if t := tunnels.IPIP; t != nil {
		all = append(all, nodestatus.Tunnel{Kind: "IPIP", Device: encap.Device, Address: addrText(t.Addr), MTU: t.MTU})
	}
	for _, t := range []*vxlan.Tunnel{tunnels.VXLAN, tunnels.VXLANv6} {
		if t != nil {
			all = append(all, nodestatus.Tunnel{
				Kind: "VXLAN", Device: vxlan.Device(t.Local.Is6()), Address: addrText(t.Addr), MTU: t.MTU, Port: int(t.Port), VNI: int(t.VNI), Ends: len(t.Peers),
			})
		}
	}
	return all
}

// encapsulations tell by a device what becomes of packets that leave by it.
var encapsulations = map[string]string{encap.Device: "IPIP", vxlan.Device(false): "VXLAN", vxlan.Device6: "VXLAN"}

func pathReport(p bgp.Path) nodestatus.Path {
	return nodestatus.Path{
		Prefix: p.Prefix.String(), NextHop: p.NextHop.String(), Peer: addrText(p.From), Stale: p.Stale,
		ASPath: p.ASPath, Communities: p.Communities, LocalPref: p.LocalPref, MED: p.MED,
	}
}
