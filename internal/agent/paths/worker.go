package paths

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/kernel/hairpin"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
)

const (
	// period is the time from one round to the next, with jitter more or less.
	period = 10 * time.Second
	jitter = time.Second
	// within bounds a probe, and each other check of whether a node answers.
	within = 700 * time.Millisecond
)

// Worker probes other nodes.
type Worker struct {
	Node string
	// Peers returns the nodes with routes to them, in the order of their names; a node with both families is there twice.
	// It returns none while routes are not complete.
	Peers  func() []Peer
	Kernel *netlinkx.Conn
	// Ready asks the API server whether a Node is ready; it is seldom called.
	Ready func(ctx context.Context, node string) bool
	// Down and Up report a Node to operators; Unknown reports that it has answered no probe yet.
	Down, Up, Unknown func(node, message string)
	// Keep stores which nodes have answered, for Recall by the next agent. From the silence of other nodes it concludes
	// nothing.
	Keep func(text string) error
	Log  *slog.Logger

	kept   string     // the last text given to Keep
	mu     sync.Mutex // guards the rest
	states map[path]*state
	alone  [2]time.Time // since when no peer is reached, by family
	peers  []Peer       // of the last round
}

// Run probes until ctx ends.
func (w *Worker) Run(ctx context.Context) error {
	for round := 0; wait.Sleep(ctx, period-jitter+rand.N(2*jitter)-w.round(ctx, round)); round++ {
	}
	return nil
}

// round probes some peers, and returns how long that took.
func (w *Worker) round(ctx context.Context, number int) time.Duration {
	begun := time.Now()
	peers := w.Peers()
	probed := slices.DeleteFunc(slices.Clone(peers), func(p Peer) bool { return p.Unprobed != "" })
	w.keep(peers)
	var nodes, losing []string
	for _, p := range probed {
		nodes = append(nodes, p.Node)
		if w.of(p).losing() {
			losing = append(losing, p.Node)
		}
	}
	picked := pick(w.Node, slices.Compact(nodes), number, func(node string) bool { return slices.Contains(losing, node) })
	probed = slices.DeleteFunc(probed, func(p Peer) bool { return !slices.Contains(picked, p.Node) })
	results := make([]result, len(probed))
	var group sync.WaitGroup
	for i, p := range probed {
		near := slices.Index(picked, p.Node) < fixed
		group.Go(func() { results[i] = w.probe(ctx, p, near) })
	}
	group.Wait()
	if ctx.Err() != nil {
		return 0
	}
	results = slices.DeleteFunc(results, func(r result) bool { return !r.answered && r.lost == 0 }) // no probe could be sent
	w.mu.Lock()
	said := w.conclude(time.Now(), results)
	w.mu.Unlock()
	w.save()
	for _, s := range said {
		w.say(s)
	}
	return time.Since(begun)
}

func (w *Worker) say(s saying) {
	switch {
	case s.unknown:
		w.Log.Warn("path of pods was never known to be up", "node", s.node, "text", s.String())
		w.Unknown(s.node, s.String())
		return
	case s.good:
		w.Up(s.node, s.String())
		w.Log.Info("path of pods is up again", "node", s.node, "text", s.String())
		return
	}
	if !s.again {
		w.Log.Warn("path of pods is down", "node", s.node, "text", s.String())
	}
	w.Down(s.node, s.String())
}

// keep forgets nodes that are gone. If peers is empty it keeps all, as routes may not be complete.
func (w *Worker) keep(peers []Peer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.peers = peers
	if len(peers) == 0 {
		return
	}
	all := make(map[path]*state, len(peers))
	for _, p := range peers {
		if s := w.states[p.path()]; s != nil {
			all[p.path()] = s.by(p.Kind)
		}
	}
	w.states = all
}

// of returns a copy of the state of a peer.
func (w *Worker) of(p Peer) state {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.states[p.path()]; s != nil && s.kind == p.Kind {
		return *s
	}
	return state{}
}

// probe probes one peer. If the peer answered before, it repeats the probe until an answer or enough losses.
func (w *Worker) probe(ctx context.Context, p Peer, near bool) result {
	r, before := result{Peer: p, near: near, first: time.Now()}, w.of(p)
	tries := 1
	if before.answered && !before.down {
		tries = enough
	}
	way, err := w.way(ctx, p)
	if err != nil {
		w.Log.Debug("cannot probe the path to a node", "node", p.Node, "addr", p.Addr, "err", err)
		return r
	}
	probe, err := hairpin.Open(ctx, way)
	if err != nil {
		w.Log.Debug("cannot probe the path to a node", "node", p.Node, "addr", p.Addr, "err", err)
		return r
	}
	defer probe.Close()
	for range tries {
		begun := time.Now()
		answered, err := probe.Answered(ctx, within)
		if answered {
			r.answered = true
			return r
		}
		if err != nil && !wait.Sleep(ctx, within-time.Since(begun)) { // not sent, for instance as the link is down
			return r
		}
		r.lost++
	}
	switch {
	case before.answered && !before.down:
		r.alive = w.alive(ctx, p, way)
		r.ready = !r.alive && time.Since(before.since) >= aliveTime && w.Ready(ctx, p.Node)
	case before.strange(r):
		r.alive = w.alive(ctx, p, way)
		r.ready = r.alive && !before.alive.IsZero() && time.Since(before.alive) >= strangeTime && w.Ready(ctx, p.Node)
	}
	return r
}

// way adds the kernel's link index and MAC to the peer's Way.
func (w *Worker) way(ctx context.Context, p Peer) (hairpin.Way, error) {
	way := p.Way
	link, err := w.Kernel.LinkByName(p.Device)
	if err != nil {
		return way, err
	}
	way.Link = link.Index
	if p.Kind != Plain {
		return way, nil
	}
	for range 2 {
		neighbours, err := w.Kernel.Neighbours(link.Index, netlinkx.FamilyOf(p.Addr))
		if err != nil {
			return way, err
		}
		for _, n := range neighbours {
			if n.Addr == p.Addr && n.MAC != ([6]byte{}) {
				way.MAC = n.MAC
				return way, nil
			}
		}
		hairpin.Echo(ctx, way.From, p.Addr, within) // makes the kernel resolve the MAC
	}
	return way, fmt.Errorf("the MAC of %s on %s is not known", p.Addr, p.Device)
}

// alive reports whether a node answers an echo, or TCP at its BGP port.
func (w *Worker) alive(ctx context.Context, p Peer, way hairpin.Way) bool {
	if hairpin.Echo(ctx, way.From, p.Addr, within) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := (&net.Dialer{KeepAlive: -1}).DialContext(ctx, "tcp", net.JoinHostPort(p.Addr.String(), strconv.Itoa(int(p.Port))))
	if err == nil {
		conn.Close()
	}
	return err == nil || errors.Is(err, syscall.ECONNREFUSED)
}

// mostShown bounds the list of a Report, and the series of a metric of a family.
const mostShown = 16

// Path is the state of the path to one node.
type Path struct {
	Node  string
	Kind  Kind
	Addr  netip.Addr
	Up    bool
	Since time.Time // when the first probe was lost, if it is not up
}

// Report is the state of all paths of one family.
type Report struct {
	Up, Down int
	// Unknown have not answered yet, Unprobed cannot be probed.
	Unknown, Unprobed int
	Why               string // for the first that cannot be probed
	// Paths are at most 16 of the paths that are up or down, down ones first.
	Paths []Path
}

// Report returns the present state for IPv4 and for IPv6.
func (w *Worker) Report() (reports [2]Report) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.peers {
		r, s := &reports[p.family()], w.states[p.path()]
		switch {
		case p.Unprobed != "":
			if r.Unprobed++; r.Why == "" {
				r.Why = p.Unprobed
			}
			continue
		case s == nil || !s.answered:
			r.Unknown++
			continue
		case s.down:
			r.Down++
		default:
			r.Up++
		}
		path := Path{Node: p.Node, Kind: p.Kind, Addr: p.Addr, Up: !s.down}
		if s.down {
			path.Since = s.since
		}
		r.Paths = append(r.Paths, path)
	}
	for i := range reports {
		r := &reports[i]
		slices.SortStableFunc(r.Paths, func(a, b Path) int {
			if a.Up != b.Up {
				return map[bool]int{false: -1, true: 1}[a.Up]
			}
			return cmp.Compare(a.Node, b.Node)
		})
		r.Paths = r.Paths[:min(len(r.Paths), mostShown)]
	}
	return reports
}
