package routes

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

// DefaultProtocol marks our routes. It differs from BIRD's (12), Felix's (80) and FRR's (186): a Felix on the same node
// deletes every route of protocol 80 that is not its own.
const DefaultProtocol netlinkx.Protocol = 84

// ErrForeign means that a foreign route is in the place of a desired one, or beside one with the same destination and
// metric.
var ErrForeign = errors.New("a foreign route is in the way")

// Options are the options of a Table.
type Options struct {
	// Protocol is the protocol of our routes; 0: DefaultProtocol.
	Protocol netlinkx.Protocol

	// Table is the routing table; 0: main.
	Table int

	// TakeOver are the protocols of predecessors (BIRD's 12, Felix's 80). Their routes are replaced in the place of
	// desired ones. Sync also removes their routes to desired destinations with other metrics, which would be used again
	// once ours are withdrawn, their routes through Devices, and their routes in the Ranges of Predecessors. Their other
	// routes are not touched; neither are, except through Devices, routes without a next hop, which lead to pods.
	TakeOver []netlinkx.Protocol

	// Devices are links through which only this agent and its predecessors have routes.
	Devices []string
}

// Predecessors is the known state of the programs that wrote routes before the agent.
type Predecessors struct {
	// Ranges are prefixes in which all routes by a next hop, and all that drop, were made for the cluster.
	Ranges []netip.Prefix
	// Alive are protocols of predecessors that still run: their routes stay, also in the place of desired routes. Two
	// programs that replace each other's routes would do so for ever.
	Alive []netlinkx.Protocol
}

// Stats counts the routes of a Sync.
type Stats struct {
	Added    int
	Replaced int // own routes that differed, and routes taken over
	Deleted  int // own routes that are not desired, and routes of predecessors
	Kept     int // right already
	Held     int // not desired and left in place by Merge
	Left     int // desired, and left to a predecessor that still runs
}

// Table keeps our routes in one network namespace. Present routes are read from the kernel each time. It is for one
// goroutine.
type Table struct {
	conn         *netlinkx.Conn
	opts         Options
	predecessors Predecessors
	taken        []netlinkx.Route
}

// SetPredecessors replaces the state of predecessors.
func (t *Table) SetPredecessors(e Predecessors) { t.predecessors = e }

// Taken returns the routes of predecessors that the last Sync replaced or removed.
func (t *Table) Taken() []netlinkx.Route { return t.taken }

// alive reports whether a route belongs to a predecessor that still runs.
func (t *Table) alive(r netlinkx.Route) bool {
	return slices.Contains(t.predecessors.Alive, r.Protocol)
}

// New returns the table of the connection's namespace. It touches nothing yet.
func New(conn *netlinkx.Conn, opts Options) *Table {
	opts.Protocol, opts.Table = cmp.Or(opts.Protocol, DefaultProtocol), cmp.Or(opts.Table, netlinkx.TableMain)
	return &Table{conn: conn, opts: opts}
}

// Sync makes our routes equal to desired, and deletes our other routes. Correct routes are not written, and one that
// differs is replaced without a gap.
//
// A route that fails (its link does not exist, a foreign route is in its place, the kernel refuses it) does not prevent
// the others; an existing route of ours in its place stays. The error summarizes the failures, and Stats counts the
// rest. Two desired routes with one destination and metric are an error before anything is written.
func (t *Table) Sync(ctx context.Context, desired []Route) (Stats, error) {
	return t.sync(ctx, desired, true)
}

// Merge is Sync that deletes nothing: it is for a desired set that may be incomplete.
func (t *Table) Merge(ctx context.Context, desired []Route) (Stats, error) {
	return t.sync(ctx, desired, false)
}

func (t *Table) sync(ctx context.Context, desired []Route, prune bool) (Stats, error) {
	t.taken = nil
	w, err := newWanted(desired, t.opts)
	if err != nil {
		return Stats{}, err
	}
	if w.links, err = t.devices(desired); err != nil {
		return Stats{}, err
	}
	actual, err := t.conn.Routes(netlinkx.RouteFilter{Table: t.opts.Table, Protocol: t.opts.Protocol})
	if err != nil {
		return Stats{}, err
	}
	w.resolve()
	p := w.diff(actual)
	spared := len(p.remove)
	if prune {
		left, err := t.leftBehind(w)
		if err != nil {
			return Stats{}, err
		}
		p.remove, spared = append(p.remove, left...), 0
	} else {
		p.remove = nil
	}
	stats, errs := t.apply(ctx, p)
	stats.Held = spared
	return stats, netlinkx.Summary(append(errs, w.errs...))
}

// link holds the properties of a link that a Sync needs.
type link struct {
	index int
	down  bool
}

// devices looks up the links of routes: a few, on a node that may have a thousand.
func (t *Table) devices(desired []Route) (map[string]link, error) {
	links, asked := map[string]link{}, map[string]bool{"": true}
	ask := func(name string) error {
		if asked[name] {
			return nil
		}
		asked[name] = true
		l, err := t.conn.LinkByName(name)
		if err == nil {
			links[name] = link{l.Index, l.Down}
		}
		if netlinkx.IsNotExist(err) || errors.Is(err, netlinkx.ErrLinkName) {
			return nil
		}
		return err
	}
	for _, name := range t.opts.Devices {
		if err := ask(name); err != nil {
			return nil, err
		}
	}
	for _, r := range desired {
		for _, h := range r.Hops {
			if err := ask(h.Dev); err != nil {
				return nil, err
			}
		}
	}
	return links, nil
}

// leftBehind lists the predecessors' routes to remove: see Options.TakeOver. Routes in the place of a desired route are
// not among them.
func (t *Table) leftBehind(w *wanted) (left []netlinkx.Route, err error) {
	for _, protocol := range t.opts.TakeOver {
		if slices.Contains(t.predecessors.Alive, protocol) {
			continue
		}
		theirs, err := t.conn.Routes(netlinkx.RouteFilter{Table: t.opts.Table, Protocol: protocol})
		if err != nil {
			return nil, err
		}
		for _, r := range theirs {
			if _, taken := w.at[keyOf(r.Dst, r.Metric)]; !taken {
				left = append(left, r)
			}
		}
	}
	if len(left) == 0 {
		return nil, nil
	}
	reached := w.destinations()
	return slices.DeleteFunc(left, func(r netlinkx.Route) bool {
		ours := slices.ContainsFunc(t.opts.Devices, func(dev string) bool { return r.Leaves(w.links[dev].index) })
		return !ours && (toPod(r) || !reached[r.Dst] && !t.predecessors.has(r.Dst))
	}), nil
}

// toPod reports whether a route has the form of one to a pod on this node: to its interface, without a next hop.
func toPod(r netlinkx.Route) bool {
	return r.Type == netlinkx.Unicast && !r.Via.IsValid() && len(r.Hops) == 0 && !r.Object
}

func (e *Predecessors) has(p netip.Prefix) bool {
	return slices.ContainsFunc(e.Ranges, func(r netip.Prefix) bool { return r.Bits() <= p.Bits() && r.Contains(p.Addr()) })
}
