package agent

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/app/version"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/bfd"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// seen is the state of the agent's loops from which reports are made. A pass stores only references; text is made when
// a report is requested, which is seldom.
type seen struct {
	node    string
	started time.Time
	ready   bool

	lastPass time.Time
	lastTook time.Duration
	lastErr  error

	problems map[string][]string          // by area
	reasons  map[string]map[string]string // of Events about them, by area and text
	unacted  []state.Unacted
	found    []nodeaddr.Candidate // addresses of the host
	snapshot *desired.Snapshot    // nil before the first pass that found the node's address
	bgp      bool                 // BGP has been read
	peers    []bgp.PeerStatus
	traffic  map[netip.Addr]bgp.Traffic // at the time of the report
	told     []netip.Prefix             // prefixes that peers receive, at the time of the report
	ends     func(netip.Addr) []bgp.End // how the sessions with a peer have ended; nil: not known
	learned  []bgp.Path
	routes   routesSeen
	facts    *nodestatus.Facts
	journal  nodestatus.Journal
}

// routesSeen is the result of a pass for the paths.
type routesSeen struct {
	ways     []desired.DesiredRoute
	left     []bgp.Objection // to the network between the nodes
	refused  []bgp.Objection
	desired  int
	stats    routes.Stats
	starting bool // nothing is removed yet
}

// report makes the node's report. It is pure: the time comes from its argument.
func (k *seen) report(now time.Time) nodestatus.Report {
	r := nodestatus.Report{
		Node: k.node, Version: version.Version, Time: now, Started: k.started, Ready: k.ready,
		LastPass: k.lastPass, LastPassSeconds: k.lastTook.Seconds(),
		Pools: []nodestatus.Pool{}, Blocks: []string{}, Peers: []nodestatus.Peer{}, Announced: []nodestatus.Announced{},
		Learned: []nodestatus.Path{},
		Routes:  k.routes.counts(),
		Facts:   k.factsAt(now),
		Journal: k.journal,
	}
	if k.lastErr != nil {
		r.LastError = k.lastErr.Error()
	}
	for _, about := range slices.Sorted(maps.Keys(k.problems)) {
		r.Problems = append(r.Problems, k.problems[about]...)
		for text, reason := range k.reasons[about] {
			r.Reason(text, reason)
		}
	}
	for _, u := range k.unacted {
		r.FieldsWithoutEffect = append(r.FieldsWithoutEffect, nodestatus.FieldsWithoutEffect(u))
	}
	for _, c := range k.found {
		r.Candidates = append(r.Candidates, nodestatus.Candidate{Address: c.Addr.String(), Interface: c.Link, Chosen: c.Chosen, Reason: c.Why})
	}
	if k.snapshot == nil {
		return r
	}
	describeSnapshot(&r, k.snapshot)
	names := k.snapshot.Names()
	sessions := k.snapshot.Sessions()
	for _, p := range k.peers {
		peer, passed := peerReport(k.snapshot, sessions[p.Addr], p, names), k.traffic[p.Addr]
		peer.Sessions, peer.MessagesReceived, peer.MessagesSent = passed.Sessions, passed.Received, passed.Sent
		peer.FlawedMessages, peer.LastFlaw, peer.NextTry = passed.Flawed, passed.LastFlaw, passed.NextTry
		if k.ends != nil {
			for _, e := range k.ends(p.Addr) {
				peer.Ends = append(peer.Ends, nodestatus.End(e))
			}
		}
		r.Peers = append(r.Peers, peer)
	}
	for _, p := range k.learned {
		r.Learned = append(r.Learned, nodestatus.Path{
			Prefix: p.Prefix.String(), NextHop: p.NextHop.String(), Peer: addrText(p.From), Stale: p.Stale,
			ASPath: p.ASPath, Communities: p.Communities, LocalPref: p.LocalPref, MED: p.MED,
		})
	}
	k.routes.list(names, &r.Routes)
	r.PassedOn = passedOn(k.told, k.snapshot)
	return r
}

// passedOn returns the prefixes in told that this node does not originate.
func passedOn(told []netip.Prefix, s *desired.Snapshot) (all []nodestatus.Announced) {
	own := map[netip.Prefix]bool{}
	for _, p := range s.Originated() {
		own[p.Prefix] = true
	}
	for _, p := range told {
		if !own[p] {
			all = append(all, nodestatus.Announced{Prefix: p.String(), Origin: "learned"})
		}
	}
	return all
}

func (k *seen) factsAt(now time.Time) *nodestatus.Facts {
	if k.facts == nil {
		return nil
	}
	f := *k.facts
	f.Usable = now.Sub(f.Written) <= facts.MaxAge
	return &f
}

// programmed counts the routes that the last pass found or made right.
func (k *routesSeen) programmed() int { return k.stats.Added + k.stats.Replaced + k.stats.Kept }

func (k *routesSeen) counts() nodestatus.Routes {
	return nodestatus.Routes{
		Desired: k.desired, Programmed: k.programmed(), Held: k.stats.Held,
		Starting: k.starting, Refused: desired.Objections(k.refused),
		List: []nodestatus.Route{}, Refusals: []nodestatus.Refusal{}, LeftToNetwork: []nodestatus.Refusal{},
	}
}

// list fills in the routes, and the paths without one.
func (k *routesSeen) list(names map[netip.Addr]string, r *nodestatus.Routes) {
	for _, w := range k.ways {
		r.List = append(r.List, routeReport(w, names))
	}
	for _, left := range k.left {
		r.LeftToNetwork = append(r.LeftToNetwork, refusalReport(left))
	}
	for _, refused := range k.refused {
		r.Refusals = append(r.Refusals, refusalReport(refused))
	}
}

// describeSnapshot fills in the fields that come from the snapshot.
func describeSnapshot(r *nodestatus.Report, s *desired.Snapshot) {
	if s.Self.Addr.IsValid() {
		r.Address, r.AddressSource, r.Interface = s.Self.Addr.String(), s.Self.AddrSource, s.Self.Link
	}
	if s.Self.Addr6.IsValid() {
		r.Address6, r.Address6Source, r.Interface6 = s.Self.Addr6.String(), s.Self.AddrSource6, s.Self.Link6
	}
	r.ForwardsIPv6 = s.UsesIPv6()
	r.ASN, r.BGPPort, r.PodMTU = s.OwnASN(), s.Port, s.PodMTU()
	if r.Tunnels = tunnelReports(s); len(r.Tunnels) > 0 {
		r.Tunnel = &r.Tunnels[0]
	}
	if local, err := s.Local(); err == nil {
		r.RouterID = addrText(local.RouterID)
	}
	r.Reflection, r.Services = reflectionReport(s), serviceReport(s)
	for _, a := range s.Announcements() {
		r.Announced = append(r.Announced,
			nodestatus.Announced{Prefix: a.Prefix.String(), Origin: a.Origin, Communities: strings.Join(stringsOf(a.Communities), " ")})
	}
	for _, p := range s.Pools {
		pool := nodestatus.Pool{
			Name: p.Name, CIDR: p.CIDR.String(), BlockSize: p.BlockBits, IPIPMode: string(p.IPIP), VXLANMode: string(p.VXLAN),
			NATOutgoing: p.NATOutgoing,
			Disabled:    !p.Enabled, Why: p.Why, DisableBGPExport: p.NoExport, SelectsNode: p.Nodes.Matches(s.Self.Labels),
		}
		if pool.Disabled {
			pool.Reason = p.Reason
		}
		r.Pools = append(r.Pools, pool)
	}
	r.Blocks = append(r.Blocks, stringsOf(s.Blocks)...)
}

// sources describe sessions without a BGPPeer, by kind; the mesh as in calicoctl.
var sources = map[string]string{desired.KindMesh: "node-to-node mesh"}

// peerReport describes a session: its configuration and its state.
func peerReport(s *desired.Snapshot, d desired.Session, p bgp.PeerStatus, names map[netip.Addr]string) nodestatus.Peer {
	out := nodestatus.Peer{
		Address: p.Addr.String(), Node: names[p.Addr], From: addrText(cmp.Or(d.Peer.From, p.Self)), Port: d.Peer.Port, ASN: p.ASN,
		Source: sources[d.Kind], Kind: d.Kind,
		Object: d.Source.Peer, Client: p.Client, Password: d.Peer.Password != "", TCPAO: d.Peer.AO != "", OldKeys: p.OldKeys,
		WrongKeys: p.WrongKeys, TTLHops: d.Peer.TTLSecurity, Passive: p.Passive,
		State: string(p.State), Since: p.Since, Restarting: p.Restarting, Received: p.Received, Sent: p.Sent,
		EndOfTable: p.EndOfTable(), Supports: p.Supports,
		LastError: p.LastError, ErrorSince: p.ErrorSince, ErrorAt: p.LastErrorAt, HeldUntil: p.HeldUntil,
	}
	if p.BFD != nil {
		out.BFD = &nodestatus.BFD{
			State: p.BFD.State.String(), Since: p.BFD.Since, Detection: p.BFD.Detection.Seconds(), Heard: p.BFD.Heard, Fault: p.BFD.Fault,
			Diag: diagText(p.BFD.Diag), RemoteDiag: diagText(p.BFD.RemoteDiag),
		}
	}
	if d.Source.Peer != "" {
		out.Source = d.Source.String()
	}
	if p.LocalASN != s.OwnASN() {
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

func diagText(d bfd.Diag) string {
	if d == bfd.NoDiagnostic {
		return ""
	}
	return d.String()
}

// reflectionReport describes this node's part in route reflection; nil if it has none.
func reflectionReport(s *desired.Snapshot) *nodestatus.Reflection {
	out := &nodestatus.Reflection{Role: "client", ClusterID: addrText(s.Peering.ClusterID), Reflectors: s.Reflectors()}
	switch {
	case s.Self.Reflector && slices.Contains(out.Reflectors, s.Self.Name):
		out.Role = "reflector"
	case s.Self.Reflector:
		out.Role = "configured"
	case len(out.Reflectors) == 0 && !s.Reflected():
		return nil
	}
	return out
}

// serviceReport describes the announcements for services; nil if none are configured.
func serviceReport(s *desired.Snapshot) *nodestatus.Services {
	if !s.ServicesOn() {
		return nil
	}
	return &nodestatus.Services{
		Known: s.ServicesKnown, Excluded: s.Excluded(), Prefixes: len(s.Services), Ranges: append([]string{}, stringsOf(s.ServiceRanges)...),
	}
}

// tunnelReports describes the tunnel devices that this node should have.
func tunnelReports(s *desired.Snapshot) []nodestatus.Tunnel {
	var all []nodestatus.Tunnel
	tunnels := s.Tunnels()
	if t := tunnels.IPIP; t != nil {
		all = append(all, nodestatus.Tunnel{Kind: "IPIP", Device: ipip.Device, Address: addrText(t.Addr), MTU: t.MTU})
	}
	for _, t := range []*vxlan.Tunnel{tunnels.VXLAN, tunnels.VXLANv6} {
		if t != nil {
			all = append(all, nodestatus.Tunnel{
				Kind: "VXLAN", Device: vxlan.Device(t.Local.Is6()), Address: addrText(t.Addr), MTU: t.MTU, Port: int(t.Port),
				VNI: int(t.VNI), Ends: len(t.Peers),
			})
		}
	}
	for _, c := range s.CryptReports() {
		all = append(all, nodestatus.Tunnel{
			Kind: "WireGuard", Device: wireguard.Name(c.V6), Address: addrText(c.Addr), MTU: c.MTU, Port: int(c.Port), Ends: c.Encrypted,
			Unencrypted: len(c.Clear), UnencryptedNodes: c.Clear[:min(len(c.Clear), mostListed)],
			KeySince: c.Since, KeyChanging: c.Changing, KeyWaitsFor: c.Waiting[:min(len(c.Waiting), mostListed)],
		})
	}
	return all
}

// mostListed bounds the nodes that are named as not encrypted, or as those that a new key waits for.
const mostListed = 10

// encapsulations are the encapsulations of packets that leave by a device.
var encapsulations = map[string]string{ipip.Device: "IPIP", vxlan.Device(false): "VXLAN", vxlan.Device6: "VXLAN"}

// routeReport describes a route. With several next hops, Via and Device list them all, ordered by address, as does
// Peers; with several paths the attributes come from the preferred one.
func routeReport(w desired.DesiredRoute, names map[netip.Addr]string) nodestatus.Route {
	hops := slices.Clone(w.Route.Hops)
	for i := range hops {
		if hops[i].Via.IsLinkLocalUnicast() {
			hops[i].Via = hops[i].Via.WithZone(hops[i].Dev)
		}
	}
	slices.SortStableFunc(hops, func(a, b routes.Hop) int { return a.Via.Compare(b.Via) })
	var via, dev []string
	for _, h := range hops {
		via, dev = append(via, addrText(h.Via)), append(dev, h.Dev)
	}
	line := nodestatus.Route{
		Destination: w.Route.Dst.String(), Type: cmp.Or(w.Route.Type, netlinkx.Unicast).String(), Via: strings.Join(via, ", "),
		Device: strings.Join(slices.Compact(dev), ", "), Metric: int(w.Route.Metric), Source: w.About,
	}
	if line.Encap = encapsulations[line.Device]; w.Encrypted {
		line.Encap = "WireGuard"
	}
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
		sorted := slices.SortedFunc(slices.Values(w.Paths), func(a, b bgp.Path) int { return a.From.Compare(b.From) })
		for _, p := range sorted {
			line.Peers = append(line.Peers, addrText(p.From))
		}
		line.Peers = slices.Compact(line.Peers)
	}
	return line
}

func refusalReport(r bgp.Objection) nodestatus.Refusal {
	return nodestatus.Refusal{Prefix: r.Path.Prefix.String(), Via: r.Path.NextHop.String(), Peer: addrText(r.Path.From), Reason: r.Why}
}

// addrText returns the empty string for the invalid address.
func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func stringsOf[T fmt.Stringer](all []T) []string {
	var texts []string
	for _, x := range all {
		texts = append(texts, x.String())
	}
	return texts
}
