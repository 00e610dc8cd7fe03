package node

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/facts"
	"github.com/tortie-net/tortie/internal/fib"
	"github.com/tortie-net/tortie/internal/netlinkx"
	"github.com/tortie-net/tortie/internal/nodeaddr"
	"github.com/tortie-net/tortie/internal/nodestatus"
	"github.com/tortie-net/tortie/internal/version"
)

// seen is what the agent's loops have handed over for people to see. A pass stores only references; words are made of them when
// somebody asks, which is seldom.
type seen struct {
	node    string
	started time.Time
	ready   bool

	lastPass time.Time
	lastTook time.Duration
	lastErr  error

	problems map[string][]string  // by what they are about
	found    []nodeaddr.Candidate // addresses of the host
	snapshot *Snapshot            // nil before the first pass that found the node's address
	peers    []bgp.PeerStatus
	learned  []bgp.Path
	routes   routesSeen
	facts    *nodestatus.Facts
	journal  nodestatus.Journal
}

// routesSeen is what a pass made of the paths.
type routesSeen struct {
	ways     []way
	left     []refusal // to the network between the nodes
	refused  []refusal
	desired  int
	stats    fib.Stats
	starting bool // nothing is removed yet
}

// report puts what was seen into words. It is pure: the time comes from its argument.
func (k *seen) report(now time.Time) nodestatus.Report {
	r := nodestatus.Report{
		Node: k.node, Version: version.Version, Time: now, Started: k.started, Ready: k.ready,
		LastPass: k.lastPass, LastPassSeconds: k.lastTook.Seconds(),
		Pools: []nodestatus.Pool{}, Blocks: []string{}, Peers: []nodestatus.Peer{}, Announced: []nodestatus.Announced{}, Learned: []nodestatus.Path{},
		Routes:  k.routes.counts(),
		Facts:   k.factsAt(now),
		Journal: k.journal,
	}
	if k.lastErr != nil {
		r.LastError = k.lastErr.Error()
	}
	for _, about := range slices.Sorted(maps.Keys(k.problems)) {
		r.Problems = append(r.Problems, k.problems[about]...)
	}
	for _, c := range k.found {
		r.Candidates = append(r.Candidates, nodestatus.Candidate{Address: c.Addr.String(), Interface: c.Link, Chosen: c.Chosen, Reason: c.Why})
	}
	if k.snapshot == nil {
		return r
	}
	k.snapshot.describe(&r)
	names := k.snapshot.names()
	sessions := k.snapshot.sessions()
	for _, p := range k.peers {
		r.Peers = append(r.Peers, sessions[p.Addr].report(k.snapshot, p, names))
	}
	for _, p := range k.learned {
		r.Learned = append(r.Learned, pathReport(p))
	}
	k.routes.list(names, &r.Routes)
	return r
}

func (k *seen) factsAt(now time.Time) *nodestatus.Facts {
	if k.facts == nil {
		return nil
	}
	f := *k.facts
	f.Usable = now.Sub(f.Written) <= facts.MaxAge
	return &f
}

// names tells which node has an address.
func (s *Snapshot) names() map[netip.Addr]string {
	names := make(map[netip.Addr]string, len(s.Others))
	for _, m := range s.Others {
		names[m.Addr], names[m.Addr6] = m.Name, m.Name
	}
	delete(names, netip.Addr{})
	return names
}

// describe fills in what a snapshot says.
func (s *Snapshot) describe(r *nodestatus.Report) {
	if s.Self.Addr.IsValid() {
		r.Address, r.AddressSource, r.Interface = s.Self.Addr.String(), s.Self.AddrSource, s.Self.Link
	}
	if s.Self.Addr6.IsValid() {
		r.Address6, r.Address6Source, r.Interface6 = s.Self.Addr6.String(), s.Self.AddrSource6, s.Self.Link6
	}
	r.ASN, r.BGPPort, r.PodMTU = s.asn(s.Self.ASN), s.Port, s.PodMTU()
	if r.Tunnels = s.tunnelReports(); len(r.Tunnels) > 0 {
		r.Tunnel = &r.Tunnels[0]
	}
	if local, err := s.Local(); err == nil {
		r.RouterID = addrText(local.RouterID)
	}
	r.Reflection, r.Services, r.Announced = s.reflection(), s.serviceReport(), s.announcements()
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

func (k *routesSeen) counts() nodestatus.Routes {
	return nodestatus.Routes{
		Desired: k.desired, Programmed: k.stats.Added + k.stats.Replaced + k.stats.Kept, Held: k.stats.Held,
		Starting: k.starting, Refused: k.objections(),
		List: []nodestatus.Route{}, Refusals: []nodestatus.Refusal{}, LeftToNetwork: []nodestatus.Refusal{},
	}
}

// objections counts the refusals that somebody should know of.
func (k *routesSeen) objections() int {
	n := 0
	for _, r := range k.refused {
		if !r.usual {
			n++
		}
	}
	return n
}

// list fills in the routes, and the paths that became none.
func (k *routesSeen) list(names map[netip.Addr]string, r *nodestatus.Routes) {
	for _, w := range k.ways {
		r.List = append(r.List, w.report(names))
	}
	for _, left := range k.left {
		r.LeftToNetwork = append(r.LeftToNetwork, refusalReport(left))
	}
	for _, refused := range k.refused {
		r.Refusals = append(r.Refusals, refusalReport(refused))
	}
}

// routeReport shows a route; of one with several next hops Via and Device have them all, in one order.
func routeReport(r fib.Route, source string) nodestatus.Route {
	var via, dev []string
	for _, h := range r.Hops {
		via, dev = append(via, addrText(h.Via)), append(dev, h.Dev)
	}
	line := nodestatus.Route{
		Destination: r.Dst.String(), Type: cmp.Or(r.Type, netlinkx.Unicast).String(), Via: strings.Join(via, ", "), Device: strings.Join(slices.Compact(dev), ", "),
		Metric: int(r.Metric), Source: source,
	}
	line.Encap = encapsulations[line.Device]
	return line
}

func refusalReport(r refusal) nodestatus.Refusal {
	return nodestatus.Refusal{Prefix: r.path.Prefix.String(), Via: r.path.NextHop.String(), Peer: addrText(r.path.From), Reason: r.why}
}
