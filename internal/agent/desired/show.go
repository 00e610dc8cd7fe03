package desired

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
)

// Sources of sessions, the first in calicoctl's words.
const (
	meshSource       = "node-to-node mesh"
	reflectionSource = "automatic reflection"
)

// Kinds of sessions.
const (
	kindMesh      = "mesh"
	KindReflector = "reflector"
	KindNode      = "node"
	KindGlobal    = "global"
)

// Session is what the decision on sessions says of one.
type Session struct {
	Peer   bgp.Peer
	Source peering.Source
	// Kind is one of the kinds of sessions.
	Kind string
}

// Sessions are those that were decided on, by address.
func (s *Snapshot) Sessions() map[netip.Addr]Session {
	global := make(map[string]bool, len(s.peers.all))
	for i := range s.peers.all {
		p := &s.peers.all[i]
		global[p.Name] = p.Spec.Node == "" && p.Spec.NodeSelector == ""
	}
	all := make(map[netip.Addr]Session, len(s.Peering.Peers))
	for _, p := range s.Peering.Peers {
		source := s.Peering.Sources[p.Addr]
		all[p.Addr] = Session{Peer: p, Source: source, Kind: s.kind(source, global)}
	}
	return all
}

// kind tells why a session is there; global has the BGPPeers that are for all nodes.
func (s *Snapshot) kind(source peering.Source, global map[string]bool) string {
	switch {
	case source.Peer != "" && global[source.Peer]:
		return KindGlobal
	case source.Peer != "":
		return KindNode
	case s.reflects(source.Node):
		return KindReflector
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

// Report shows a session: what was decided on it, and what became of it.
func (d Session) Report(s *Snapshot, p bgp.PeerStatus, names map[netip.Addr]string) nodestatus.Peer {
	out := nodestatus.Peer{
		Address: p.Addr.String(), Node: names[p.Addr], From: AddrText(d.Peer.From), Port: d.Peer.Port, ASN: p.ASN, Source: meshSource, Kind: d.Kind,
		Object: d.Source.Peer, Client: p.Client, Password: d.Peer.Password != "", TTLHops: d.Peer.TTLSecurity, Passive: p.Passive,
		State: string(p.State), Since: p.Since, Restarting: p.Restarting, Received: p.Received, Sent: p.Sent, EndOfTable: p.EndOfTable(), Supports: p.Supports,
		LastError: p.LastError, ErrorSince: p.ErrorSince, ErrorAt: p.LastErrorAt, HeldUntil: p.HeldUntil,
	}
	switch d.Kind {
	case KindNode, KindGlobal:
		out.Source = d.Source.String()
	case KindReflector:
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

// Reflection is this node's part in route reflection; nil if it has none.
func (s *Snapshot) Reflection() *nodestatus.Reflection {
	id := AddrText(s.Peering.ClusterID)
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
	if p := s.Plan; p != nil {
		out.Since, out.Why, out.Nodes, out.Waiting = p.Since, p.Why, p.Roll.Len(), p.Kept()
	}
	return out
}

// announcements are what this node announces, and why.
func (s *Snapshot) announcements() []nodestatus.Announced {
	all := []nodestatus.Announced{}
	ranges := s.served.Ranges()
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
	if !s.served.On() {
		return nil
	}
	out := &nodestatus.Services{Known: s.servicesKnown, Excluded: s.excluded(), Prefixes: len(s.Services), Ranges: []string{}}
	for _, r := range s.ServiceRanges {
		out.Ranges = append(out.Ranges, r.String())
	}
	return out
}

// Report shows a way; of several paths the attributes of the preferred one.
func (w Way) Report(names map[netip.Addr]string) nodestatus.Route {
	line := routeReport(w.Route, w.About)
	if len(w.Paths) == 0 {
		return line
	}
	line.Source = "affinity"
	p := w.Paths[0]
	line.Node, line.ASPath, line.Communities = names[p.NextHop], p.ASPath, p.Communities
	if p.From.IsValid() {
		line.Source, line.Peer = "BGP", p.From.String()
	}
	if len(w.Paths) > 1 {
		for _, p := range w.Paths {
			line.Peers = append(line.Peers, AddrText(p.From))
		}
		slices.Sort(line.Peers)
		line.Peers = slices.Compact(line.Peers)
	}
	return line
}

// TunnelReports are the tunnels that this node should have.
func (s *Snapshot) TunnelReports() []nodestatus.Tunnel {
	var all []nodestatus.Tunnel
	tunnels := s.Tunnels()
	if t := tunnels.IPIP; t != nil {
		all = append(all, nodestatus.Tunnel{Kind: "IPIP", Device: ipip.Device, Address: AddrText(t.Addr), MTU: t.MTU})
	}
	for _, t := range []*vxlan.Tunnel{tunnels.VXLAN, tunnels.VXLANv6} {
		if t != nil {
			all = append(all, nodestatus.Tunnel{
				Kind: "VXLAN", Device: vxlan.Device(t.Local.Is6()), Address: AddrText(t.Addr), MTU: t.MTU, Port: int(t.Port), VNI: int(t.VNI), Ends: len(t.Peers),
			})
		}
	}
	return all
}

// encapsulations tell by a device what becomes of packets that leave by it.
var encapsulations = map[string]string{ipip.Device: "IPIP", vxlan.Device(false): "VXLAN", vxlan.Device6: "VXLAN"}

// PathReport shows a learned path.
func PathReport(p bgp.Path) nodestatus.Path {
	return nodestatus.Path{
		Prefix: p.Prefix.String(), NextHop: p.NextHop.String(), Peer: AddrText(p.From), Stale: p.Stale,
		ASPath: p.ASPath, Communities: p.Communities, LocalPref: p.LocalPref, MED: p.MED,
	}
}

// Names tells which node has an address.
func (s *Snapshot) Names() map[netip.Addr]string {
	names := make(map[netip.Addr]string, len(s.Others))
	for _, m := range s.Others {
		names[m.Addr], names[m.Addr6] = m.Name, m.Name
	}
	delete(names, netip.Addr{})
	return names
}

// Describe fills in what a snapshot says.
func (s *Snapshot) Describe(r *nodestatus.Report) {
	if s.Self.Addr.IsValid() {
		r.Address, r.AddressSource, r.Interface = s.Self.Addr.String(), s.Self.AddrSource, s.Self.Link
	}
	if s.Self.Addr6.IsValid() {
		r.Address6, r.Address6Source, r.Interface6 = s.Self.Addr6.String(), s.Self.AddrSource6, s.Self.Link6
	}
	r.ForwardsIPv6 = s.usesIPv6()
	r.ASN, r.BGPPort, r.PodMTU = s.asn(s.Self.ASN), s.Port, s.PodMTU()
	if r.Tunnels = s.TunnelReports(); len(r.Tunnels) > 0 {
		r.Tunnel = &r.Tunnels[0]
	}
	if local, err := s.Local(); err == nil {
		r.RouterID = AddrText(local.RouterID)
	}
	r.Reflection, r.Services, r.Announced = s.Reflection(), s.serviceReport(), s.announcements()
	for _, p := range s.Pools {
		r.Pools = append(r.Pools, nodestatus.Pool{
			Name: p.Name, CIDR: p.CIDR.String(), BlockSize: p.BlockBits, IPIPMode: string(p.IPIP), VXLANMode: string(p.VXLAN), NATOutgoing: p.NATOutgoing,
			Disabled: !p.Enabled, DisableBGPExport: p.NoExport, SelectsNode: p.Nodes.Matches(s.Self.Labels),
		})
	}
	for _, b := range s.Blocks {
		r.Blocks = append(r.Blocks, b.String())
	}
}

// routeReport shows a route; of one with several next hops Via and Device have them all, in one order.
func routeReport(r routes.Route, source string) nodestatus.Route {
	var via, dev []string
	for _, h := range r.Hops {
		via, dev = append(via, AddrText(h.Via)), append(dev, h.Dev)
	}
	line := nodestatus.Route{
		Destination: r.Dst.String(), Type: cmp.Or(r.Type, netlinkx.Unicast).String(), Via: strings.Join(via, ", "), Device: strings.Join(slices.Compact(dev), ", "),
		Metric: int(r.Metric), Source: source,
	}
	line.Encap = encapsulations[line.Device]
	return line
}

// RefusalReport shows a path that is none of this node's routes, and why.
func RefusalReport(r Refusal) nodestatus.Refusal {
	return nodestatus.Refusal{Prefix: r.Path.Prefix.String(), Via: r.Path.NextHop.String(), Peer: AddrText(r.Path.From), Reason: r.Why}
}

// AddrText is empty for the invalid address.
func AddrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
