package agent

import (
	"context"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/agent/nodestatus"
	"github.com/tortie-net/tortie/internal/agent/paths"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/kernel/hairpin"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
)

// pathWorker probes the ways of pods' packets to other nodes.
func (a *Agent) pathWorker() *paths.Worker {
	w := &paths.Worker{
		Node: a.Config.Nodename, Kernel: a.Kernel, Log: a.Log.With("part", "paths"), Ready: a.nodeReady,
		Peers: func() []paths.Peer {
			known := a.Status.now()
			return pathPeers(&known)
		},
		Down: func(string, string) {}, Up: func(string, string) {},
	}
	if a.Events != nil {
		w.Down = func(node, text string) { a.Events.Warn(desired.NodeObject(node), "PathDown", text) }
		w.Up = func(node, text string) { a.Events.Note(desired.NodeObject(node), "PathUp", text) }
	}
	a.Status.showPaths(w.Report)
	return w
}

// nodeReady asks the API server whether a Node is ready: the watch does not keep that condition.
func (a *Agent) nodeReady(ctx context.Context, name string) bool {
	node := &api.Node{Meta: api.Meta{Name: name}}
	err := a.Store.Get(ctx, node)
	return err == nil && slices.ContainsFunc(node.Status.Conditions, func(c api.NodeCondition) bool { return c.Type == "Ready" && c.Status == "True" })
}

// pathPeers returns the nodes that IPv4 packets of pods have a route to, in the order of their names, each with the way of its first block.
func pathPeers(k *seen) []paths.Peer {
	if k.snapshot == nil || !k.ready || k.routes.starting {
		return nil
	}
	found := map[string]paths.Peer{}
	for i := range k.routes.ways {
		w := &k.routes.ways[i]
		if len(w.Paths) == 0 || len(w.Route.Hops) == 0 || !w.Route.Dst.Addr().Is4() {
			continue
		}
		m, ok := k.snapshot.MemberAt(w.Paths[0].NextHop)
		if _, had := found[memberName(m)]; ok && !had && m.Addr.Is4() {
			found[m.Name] = pathTo(k.snapshot, m, w)
		}
	}
	all := make([]paths.Peer, 0, len(found))
	for _, p := range found {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b paths.Peer) int { return strings.Compare(a.Node, b.Node) })
	return all
}

func memberName(m *desired.Member) string {
	if m == nil {
		return ""
	}
	return m.Name
}

// pathTo returns the way by which a route leads to a node.
func pathTo(s *desired.Snapshot, m *desired.Member, w *desired.DesiredRoute) paths.Peer {
	hop := w.Route.Hops[0]
	p := paths.Peer{Node: m.Name, Addr: m.Addr, Port: s.PortOf(m), Device: hop.Dev, Way: hairpin.Way{From: s.Self.Addr.Addr(), Source: hairpin.Dummy}}
	switch {
	case w.Encrypted:
		p.Kind, p.Unprobed = paths.WireGuard, "WireGuard takes only packets to pods of the other node, and those it does not send back"
	case hop.Dev == vxlan.Device4:
		p.Kind, p.Way.MAC, p.Way.Back = paths.VXLAN, m.VTEP.MAC, s.Self.VTEP
	case hop.Dev == ipip.Device:
		p.Kind, p.Way.Outer, p.Way.Back = paths.IPIP, m.Addr, s.Self.TunnelAddr
	case hop.Via == m.Addr:
		p.Kind, p.Way.Back = paths.Plain, s.Self.Addr.Addr()
	default:
		p.Kind, p.Unprobed = paths.Plain, "routers are between the nodes, which would send a probe back at once"
	}
	if p.Unprobed == "" && !p.Way.Back.IsValid() {
		p.Unprobed = "this node's device " + hop.Dev + " has no address"
	}
	return p
}

// pathReport is nil before the agent runs.
func (s *Status) pathReport() *nodestatus.Paths {
	s.mu.Lock()
	report := s.paths
	s.mu.Unlock()
	if report == nil {
		return nil
	}
	r := report()
	shown := &nodestatus.Paths{Up: r.Up, Down: r.Down, Unknown: r.Unknown, Unprobed: r.Unprobed, UnprobedReason: r.Why}
	for _, p := range r.Paths {
		if !p.Up {
			shown.Missed = append(shown.Missed, nodestatus.MissedPath{Node: p.Node, Address: p.Addr.String(), Kind: string(p.Kind), Since: p.Since})
		}
	}
	return shown
}
