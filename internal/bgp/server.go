package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/server"

	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/bgp/bfd"
	"github.com/tortie-net/tortie/internal/bgp/policy"
	"github.com/tortie-net/tortie/internal/bgp/relay"
)

// Server is a Speaker with GoBGP inside.
type Server struct {
	log   *slog.Logger
	now   func() time.Time
	bgp   *server.BgpServer
	ends  *Ends
	dirty chan struct{}
	// neighbours are the peers that GoBGP has, window the UPDATEs that it has to work in.
	neighbours *neighbours
	window     window
	bfd        *bfd.Engine
	// version grows with every event that may change GoBGP's table.
	version atomic.Uint64
	unseen  int         // UPDATEs since Dirty was last signalled for one; used by GoBGP's loop only
	lull    *time.Timer // signals Dirty
	relay   *relay.Relay
	// turn is held by the one operation that calls GoBGP, probe by the one health check.
	turn, probe chan struct{}

	// All below belongs to the holder of turn.
	phase      phase
	local      Local
	startedAt  time.Time
	hindrance  string               // why the last attempt to start failed
	inside     inside               // while GoBGP is started
	noMD5      error                // why the kernel has no TCP MD5
	noAO       error                // why the kernel has no TCP-AO
	refused    map[netip.Addr]error // by peer: why the kernel refuses its password or keys
	peers      map[netip.Addr]Peer
	sessions   map[netip.Addr]session // one for each of peers
	near       []netip.Addr           // link-local listen addresses of this node
	originated map[netip.Prefix]ownPath
	known      map[netip.Addr]bool // peers that this process has ever configured
	policy     Policy
	base       *policy.Base   // made of policy, for the relay
	epoch      uint8          // of the last repeated announcements
	passable   []netip.Prefix // prefixes inside of which GoBGP passes on learned paths
	passing    passing        // GoBGP's policy for that
	passes     int            // how often passing was set
	table      table
	parsed     parsed
}

var _ Speaker = (*Server)(nil)

type phase int

const (
	created phase = iota
	running
	stopped
)

// exists guards the one GoBGP server that a process can have.
var exists atomic.Bool

// New creates the process's speaker; a second call is an error. It opens no socket: Start does. The program must be
// built with //go:debug multipathtcp=0 (in its main package, or godebug in go.mod): since Go 1.24 listeners are
// Multipath TCP by default, GoBGP does not change that, and the kernel then refuses TCP MD5 keys and a TTL on them. now
// is the clock of PeerStatus, time.Now if nil.
func New(log *slog.Logger, now func() time.Time) (*Server, error) {
	if !exists.CompareAndSwap(false, true) {
		return nil, errors.New("this process already has a BGP speaker: GoBGP keeps state in package variables")
	}
	if new(net.ListenConfig).MultipathTCP() {
		return nil, errors.New(
			"listeners of this program are Multipath TCP, which knows no MD5 passwords and no TTL: build it with //go:debug multipathtcp=0")
	}
	if now == nil {
		now = time.Now
	}
	s := &Server{
		log:        log,
		now:        now,
		ends:       NewEnds(now),
		relay:      relay.New(log, now, relay.Config{HoldDown: DefaultHoldDown, MaxHoldDown: MaxHoldDown}),
		neighbours: newNeighbours(),
		dirty:      make(chan struct{}, 1),
		turn:       make(chan struct{}, 1),
		probe:      make(chan struct{}, 1),
		peers:      make(map[netip.Addr]Peer),
		sessions:   make(map[netip.Addr]session),
		originated: make(map[netip.Prefix]ownPath),
		known:      make(map[netip.Addr]bool),
		base:       new(policy.Base),
		parsed:     make(parsed),
		window:     window{names: make(map[netip.Prefix]bool)},
	}
	s.lull = time.AfterFunc(time.Hour, s.wake)
	s.lull.Stop()
	s.bfd = bfd.NewEngine(log, bfdWatcher{s})
	s.bgp = server.NewBgpServer(
		server.LoggerOption(&logger{log: log, neighbours: s.neighbours}),
		server.TimingHookOption(loopHook(s.worked)),
	)
	go s.bgp.Serve() // for the life of the process
	// This watcher is never stopped: stopping one races in GoBGP.
	err := s.bgp.WatchEvent(context.Background(), &api.WatchEventRequest{Peer: &api.WatchEventRequest_Peer{}}, s.heard)
	if err != nil {
		return nil, fmt.Errorf("watch GoBGP's sessions: %w", err)
	}
	return s, nil
}

// loopHook is called by GoBGP's loop after each operation. It is the cheapest wake-up: WatchEvent on best paths makes a
// protobuf message of every path and queues them without a bound.
type loopHook func()

// Observe implements server.FSMTimingHook.
func (worked loopHook) Observe(op server.FSMOperation, _, _ time.Duration) {
	if op == server.FSMMessage { // an UPDATE was processed, or a session changed its state
		worked()
	}
}

// heard is called for each change of a session's state in GoBGP.
func (s *Server) heard(event *api.WatchEventResponse) {
	if p := event.GetPeer().GetPeer(); p != nil {
		s.neighbours.note(p)
		s.wake()
	}
}

// mostUnseen is how many UPDATEs GoBGP processes at most before Dirty is signalled.
const mostUnseen = 256

// lull is the time without a processed UPDATE after which Dirty is signalled although some are left: GoBGP may have
// dropped them with their session.
const lull = 10 * time.Millisecond

// worked is called by GoBGP's loop when it has processed an UPDATE or a change of a session's state. While more UPDATEs
// are queued it delays Dirty: a reader would read the whole of a table that changes again in a moment.
func (s *Server) worked() {
	s.version.Add(1)
	s.unseen++
	if s.window.done() > 0 && s.unseen < mostUnseen {
		s.lull.Reset(lull)
		return
	}
	s.unseen = 0
	s.wake()
}

func (s *Server) wake() { wait.Signal(s.dirty) }

// Dirty implements Speaker.
func (s *Server) Dirty() <-chan struct{} { return s.dirty }

// do runs op alone and returns its result, or returns an error at the end of ctx while op goes on: GoBGP's calls cannot
// be interrupted. Such an op keeps the turn until it ends, so that a stuck GoBGP makes later calls fail at their
// deadlines.
func (s *Server) do(ctx context.Context, op func(context.Context) error) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("BGP speaker is busy: %w", ctx.Err())
	}
	result := make(chan error, 1)
	go func() {
		defer func() { <-s.turn }()
		within, cancel := earlier(ctx)
		defer cancel()
		result <- op(within)
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("BGP speaker does not answer: %w", ctx.Err())
	}
}

// earlier returns a context that ends a little before the caller's deadline, so that the caller gets the operation's
// error.
func earlier(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-time.Until(end)/10))
}

// started returns nil while the speaker runs, else ErrNotStarted or ErrStopped.
func (s *Server) started() error {
	switch s.phase {
	case created:
		return ErrNotStarted
	case stopped:
		return ErrStopped
	}
	return nil
}

// Healthy implements Speaker.
func (s *Server) Healthy(ctx context.Context) error {
	select {
	case s.probe <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("BGP loop does not turn, an earlier check still waits for it: %w", ctx.Err())
	}
	answered := make(chan error, 1)
	go func() {
		defer func() { <-s.probe }()
		_, err := s.bgp.GetBgp(ctx, &api.GetBgpRequest{})
		s.relay.Ping()
		answered <- err
	}()
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return fmt.Errorf("BGP loop does not turn: %w", ctx.Err())
	}
}

// Stop implements Speaker.
func (s *Server) Stop(ctx context.Context, mode Mode) error {
	return s.do(ctx, func(ctx context.Context) error {
		was := s.phase
		s.phase = stopped
		if mode == Exit || was != running {
			return nil
		}
		return s.cease(ctx)
	})
}

// cease ends all sessions with a Cease, and returns when it was sent to the peers or cannot be.
func (s *Server) cease(ctx context.Context) error {
	s.relay.Close()
	s.bfd.Set(nil)
	for _, gone := range s.sessions {
		gone.retire()
	}
	if err := s.bgp.StopBgp(ctx, &api.StopBgpRequest{}); err != nil {
		return fmt.Errorf("send Cease to all peers: %w", err)
	}
	for _, gone := range s.sessions {
		gone.release()
	}
	for _, gone := range s.sessions {
		gone.wait(ctx)
	}
	return nil
}
