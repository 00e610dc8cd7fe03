package agent

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/app/version"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/plugin/facts"
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
	snapshot *desired.Snapshot    // nil before the first pass that found the node's address
	peers    []bgp.PeerStatus
	traffic  map[netip.Addr]bgp.Traffic // of now
	learned  []bgp.Path
	routes   routesSeen
	facts    *nodestatus.Facts
	journal  nodestatus.Journal
}

// routesSeen is what a pass made of the paths.
type routesSeen struct {
	ways     []desired.Way
	left     []desired.Refusal // to the network between the nodes
	refused  []desired.Refusal
	desired  int
	stats    routes.Stats
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
	k.snapshot.Describe(&r)
	names := k.snapshot.Names()
	sessions := k.snapshot.Sessions()
	for _, p := range k.peers {
		peer, passed := sessions[p.Addr].Report(k.snapshot, p, names), k.traffic[p.Addr]
		peer.Sessions, peer.MessagesReceived, peer.MessagesSent = passed.Sessions, passed.Received, passed.Sent
		peer.FlawedMessages, peer.LastFlaw, peer.NextTry = passed.Flawed, passed.LastFlaw, passed.NextTry
		r.Peers = append(r.Peers, peer)
	}
	for _, p := range k.learned {
		r.Learned = append(r.Learned, desired.PathReport(p))
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

func (k *routesSeen) counts() nodestatus.Routes {
	return nodestatus.Routes{
		Desired: k.desired, Programmed: k.stats.Added + k.stats.Replaced + k.stats.Kept, Held: k.stats.Held,
		Starting: k.starting, Refused: desired.Objections(k.refused),
		List: []nodestatus.Route{}, Refusals: []nodestatus.Refusal{}, LeftToNetwork: []nodestatus.Refusal{},
	}
}

// list fills in the routes, and the paths that became none.
func (k *routesSeen) list(names map[netip.Addr]string, r *nodestatus.Routes) {
	for _, w := range k.ways {
		r.List = append(r.List, w.Report(names))
	}
	for _, left := range k.left {
		r.LeftToNetwork = append(r.LeftToNetwork, desired.RefusalReport(left))
	}
	for _, refused := range k.refused {
		r.Refusals = append(r.Refusals, desired.RefusalReport(refused))
	}
}
