package agent

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
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

// pathsFile, in the state directory, has the nodes that have answered probes.
const pathsFile = "tortie/paths.json"

// pathWorker returns the worker that probes the paths of pods' packets to other nodes.
func (a *Agent) pathWorker() *paths.Worker {
	w := &paths.Worker{
		Node: a.Config.Nodename, Kernel: a.Kernel, Log: a.Log.With("part", "paths"), Ready: a.nodeReady,
		Peers: func() []paths.Peer {
			known := a.Status.now()
			return pathPeers(&known)
		},
		Down: func(string, string) {}, Up: func(string, string) {}, Unknown: func(string, string) {},
		Keep: func(text string) error { return writeState(a.Config.StateDir, pathsFile, text) },
	}
	text, err := os.ReadFile(filepath.Join(a.Config.StateDir, pathsFile))
	if err == nil {
		err = w.Recall(text)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.Log.Warn("cannot read which nodes have answered probes, beginning anew", "file", pathsFile, "err", err)
	}
	if a.Events != nil {
		w.Unknown = func(node, text string) { a.Events.Warn(desired.NodeObject(node), "PathUnknown", text) }
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
	return err == nil &&
		slices.ContainsFunc(node.Status.Conditions, func(c api.NodeCondition) bool { return c.Type == "Ready" && c.Status == "True" })
}

// pathPeers returns the nodes to which pods' packets have a route, in the order of their names, each with the path of
// its first IPv4 block and of its first IPv6 block.
func pathPeers(k *seen) []paths.Peer {
	if k.snapshot == nil || !k.ready || k.routes.starting {
		return nil
	}
	type way struct {
		node string
		v6   bool
	}
	found := map[way]paths.Peer{}
	for i := range k.routes.ways {
		w := &k.routes.ways[i]
		if len(w.Paths) == 0 || len(w.Route.Hops) == 0 {
			continue
		}
		m, ok := k.snapshot.MemberAt(w.Paths[0].NextHop)
		if !ok || !m.In(w.Route.Dst.Addr()).IsValid() {
			continue
		}
		of := way{m.Name, w.Route.Dst.Addr().Is6()}
		if _, had := found[of]; !had {
			found[of] = pathTo(k.snapshot, m, w)
		}
	}
	all := make([]paths.Peer, 0, len(found))
	for _, p := range found {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b paths.Peer) int { return cmp.Or(strings.Compare(a.Node, b.Node), a.Addr.Compare(b.Addr)) })
	return all
}

// pathTo returns the path by which a route leads to a node.
func pathTo(s *desired.Snapshot, m *desired.Member, w *desired.DesiredRoute) paths.Peer {
	hop, self, v6 := w.Route.Hops[0], s.Self.Addr.Addr(), w.Route.Dst.Addr().Is6()
	source, vtep, end := hairpin.Dummy, s.Self.VTEP, m.VTEP
	if v6 {
		self, source, vtep, end = s.Self.Addr6.Addr(), probeSource(s), s.Self.VTEP6, m.VTEP6
	}
	p := paths.Peer{Node: m.Name, Addr: m.In(w.Route.Dst.Addr()), Port: s.PortOf(m), Device: hop.Dev,
		Way: hairpin.Way{From: self, Source: source}}
	switch {
	case w.Encrypted:
		p.Kind, p.Unprobed = paths.WireGuard, "WireGuard takes only packets to pods of the other node, and those it does not send back"
	case hop.Dev == vxlan.Device(v6):
		p.Kind, p.Way.MAC, p.Way.Back = paths.VXLAN, end.MAC, vtep
	case hop.Dev == ipip.Device:
		p.Kind, p.Way.Outer, p.Way.Back = paths.IPIP, m.Addr, s.Self.TunnelAddr
	case hop.Via == p.Addr:
		p.Kind, p.Way.Back = paths.Plain, self
	default:
		p.Kind, p.Unprobed = paths.Plain, "routers are between the nodes, which would send a probe back at once"
	}
	switch {
	case p.Unprobed != "":
	case !p.Way.Back.IsValid():
		p.Unprobed = "this node's device " + hop.Dev + " has no address"
	case !source.IsValid():
		p.Unprobed = "this node has no IPv6 block yet, so no address to send a probe from"
	}
	return p
}

// probeSource returns an address of this node's IPv6 blocks other than its VTEP: other nodes route its block to this
// node, so they neither drop a packet by its source nor send a redirect. Without a block it returns the invalid
// address.
func probeSource(s *desired.Snapshot) netip.Addr {
	for _, b := range s.Blocks {
		for a := b.Addr(); a.Is6() && b.Contains(a); a = a.Next() {
			if a != s.Self.VTEP6 {
				return a
			}
		}
	}
	return netip.Addr{}
}

// pathReports returns reports for IPv4 and IPv6; nil before the agent runs, and for a family without nodes.
func (s *Status) pathReports() (shown [2]*nodestatus.Paths) {
	s.mu.Lock()
	report := s.paths
	s.mu.Unlock()
	if report == nil {
		return shown
	}
	for i, r := range report() {
		if r.Up+r.Down+r.Unknown+r.Unprobed == 0 {
			continue
		}
		shown[i] = &nodestatus.Paths{Up: r.Up, Down: r.Down, Unknown: r.Unknown, Unprobed: r.Unprobed, UnprobedReason: r.Why}
		for _, p := range r.Paths {
			if !p.Up {
				shown[i].Missed = append(shown[i].Missed,
					nodestatus.MissedPath{Node: p.Node, Address: p.Addr.String(), Kind: string(p.Kind), Since: p.Since})
			}
		}
	}
	return shown
}
