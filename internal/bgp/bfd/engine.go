package bfd

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/app/wait"
)

const (
	// ticksInInterval is the minimum number of wake-ups of the engine in the shortest interval, mostTick its longest
	// sleep. Few sessions have twice as many ticks: with many, reading and sending in one tick costs less for each packet
	// than in two.
	ticksInInterval = 10
	mostTick        = 30 * time.Millisecond
	few             = 50
	// mostBatches bounds one reading: a flood must not keep the engine from sending.
	mostBatches = 64
	// mostListening bounds Listened.
	mostListening = time.Second
	// reopen is the wait after a failure to open sockets.
	reopen = 5 * time.Second
)

// Watcher is notified of changes of sessions. The engine calls its methods, which must not wait.
type Watcher interface {
	// Changed: a session has come up or gone down.
	Changed()
	// Lost: a session that was Up has ended.
	Lost(neighbour netip.Addr, loss Loss)
}

// Engine holds all sessions of a node. Its methods may be called from any goroutine.
type Engine struct {
	log     *slog.Logger
	watcher Watcher

	mu       sync.Mutex // guards the rest
	sessions map[netip.Addr]*session
	doors    [2]door // of IPv4 and IPv6
	running  bool
	pause    time.Duration // between ticks
	planned  time.Time     // of the next tick
	turns    wheel
	in       *batch
	out      [maxLen]byte
	// Not yet reported to the watcher.
	lost    map[netip.Addr]Loss
	changed bool
}

// door is the listening socket of a family, or the reason why there is none.
type door struct {
	fd     int // valid if open
	open   bool
	needed bool // there are sessions
	err    string
	retry  time.Time
}

// NewEngine returns an engine without sessions, which has neither sockets nor a goroutine.
func NewEngine(log *slog.Logger, w Watcher) *Engine {
	return &Engine{
		log: log, watcher: w, sessions: map[netip.Addr]*session{}, turns: wheel{origin: time.Now()}, in: newBatch(),
		lost: map[netip.Addr]Loss{},
	}
}

// Set makes want, by neighbour, the whole set of sessions. A link-local neighbour has the name of its link as its zone.
// A removed session sends AdminDown, so that the neighbour does not take the end for a failure. Sessions with changed
// intervals stay up.
func (e *Engine) Set(want map[netip.Addr]Config) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	for addr, s := range e.sessions {
		if _, stays := want[addr]; !stays {
			s.state, s.diag, s.polling = AdminDown, adminDown, false
			s.say(now)
			e.send(s, now)
			s.sender.close()
			e.turns.remove(s)
			delete(e.sessions, addr)
		}
	}
	e.pause, e.doors[0].needed, e.doors[1].needed = mostTick, false, false
	for addr, c := range want {
		s := e.sessions[addr]
		if s == nil {
			s = newSession(c, e.discriminator(), now)
			s.neighbour = addr
			e.sessions[addr] = s
		} else {
			s.change(c, now)
		}
		s.sender.set(c.From, addr)
		e.door(addr).needed = true
		e.pause = min(e.pause, c.Interval/ticksInInterval)
		e.settle(s)
	}
	if len(want) <= few {
		e.pause /= 2
	}
	e.open(now)
	if !e.running && len(e.sessions) > 0 {
		e.running, e.planned = true, now
		go e.run()
	}
}

// Listened returns when each session continues one of a former process, or has none to continue. A neighbour whose
// session with a former process is about to end might else count that end against the new BGP session, and drop the
// paths kept for the restart.
func (e *Engine) Listened(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, mostListening)
	defer cancel()
	for e.listens() && wait.Sleep(ctx, mostTick) {
		continue
	}
}

func (e *Engine) listens() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	for _, s := range e.sessions {
		if s.listens(now) {
			return true
		}
	}
	return false
}

// discriminator returns a random one that no session has.
func (e *Engine) discriminator() uint32 {
	for {
		disc := rand.Uint32()
		taken := disc == 0
		for _, s := range e.sessions {
			taken = taken || s.disc == disc
		}
		if !taken {
			return disc
		}
	}
}

// Status returns the state of the session with a neighbour, or nil.
func (e *Engine) Status(neighbour netip.Addr) *Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sessions[neighbour]
	if s == nil {
		return nil
	}
	status := s.status()
	status.Fault = cmp.Or(e.door(neighbour).err, status.Fault)
	return &status
}

func (e *Engine) door(neighbour netip.Addr) *door {
	if neighbour.Is4() {
		return &e.doors[0]
	}
	return &e.doors[1]
}

// open opens the sockets of families with sessions, and closes the others.
func (e *Engine) open(now time.Time) {
	for i := range e.doors {
		d := &e.doors[i]
		switch {
		case !d.needed && d.open:
			_ = unix.Close(d.fd)
			*d = door{}
		case d.needed && !d.open && !now.Before(d.retry):
			d.listen(i == 0, now, e.log)
		}
	}
}

func (d *door) listen(v4 bool, now time.Time, log *slog.Logger) {
	var err error
	if d.fd, err = listen(v4); err == nil {
		d.open, d.err = true, ""
		return
	}
	d.retry = now.Add(reopen)
	if text := err.Error(); text != d.err {
		d.err = text
		log.Warn("BFD sessions stay down", "error", err)
	}
}

// run ticks until there are no sessions.
func (e *Engine) run() {
	for {
		pause, lost, changed := e.tick()
		for addr, loss := range lost {
			e.watcher.Lost(addr, loss)
		}
		if changed {
			e.watcher.Changed()
		}
		if pause == 0 {
			return
		}
		time.Sleep(pause)
	}
}

// tick runs the engine once. It returns the pause until the next tick, 0 without sessions, and changes to report.
func (e *Engine) tick() (pause time.Duration, lost map[netip.Addr]Loss, changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open(time.Now())
	if e.running = len(e.sessions) > 0; !e.running {
		return 0, nil, false
	}
	e.grant(time.Since(e.planned))
	e.read()
	now := time.Now()
	for _, s := range e.turns.due(nil, now) {
		s.expire(now)
		if s.due(now) {
			e.send(s, now)
		}
		e.settle(s)
	}
	e.planned = now.Add(e.pause)
	if len(e.lost) > 0 {
		lost, e.lost = e.lost, map[netip.Addr]Loss{}
	}
	changed, e.changed = e.changed, false
	return e.pause, lost, changed
}

// settle stores changes to report, and places the session's next turn.
func (e *Engine) settle(s *session) {
	if s.loss != nil {
		e.lost[s.neighbour], s.loss = *s.loss, nil
		e.changed = true
	}
	if up := s.state == Up; up != s.seenUp {
		s.seenUp, e.changed = up, true
	}
	e.turns.place(s, s.wake())
}

// grant extends the deadlines of all neighbours by the time that this process was stopped or had no CPU: more packets
// may have come than the kernel keeps.
func (e *Engine) grant(late time.Duration) {
	if late <= mostTick {
		return
	}
	for _, s := range e.sessions {
		if !s.heard.IsZero() {
			s.heard = s.heard.Add(late)
		}
	}
}

// read reads the packets that have come.
func (e *Engine) read() {
	now := time.Now()
	for _, d := range e.doors {
		if !d.open {
			continue
		}
		for range mostBatches {
			n := e.in.read(d.fd)
			for i := range n {
				e.receive(d.fd, i, now)
			}
			if n < batchLen {
				break
			}
		}
	}
}

// receive handles a packet of the batch. A link-local sender is identified by its link, too.
func (e *Engine) receive(fd, i int, now time.Time) {
	b, from, link := e.in.packet(i)
	if link != 0 {
		from = from.WithZone(linkName(fd, link))
	}
	if s := e.sessions[from]; s != nil {
		s.take(b, now)
		e.settle(s)
	}
}

// take handles bytes from the neighbour's address.
func (s *session) take(b []byte, now time.Time) {
	p, err := parse(b)
	if err == nil {
		err = s.receive(b, &p, now)
	}
	if err != nil {
		s.fault = err.Error()
	}
}

// send sends a session's next packet.
func (e *Engine) send(s *session, now time.Time) {
	b := s.send(e.out[:0], now)
	if !e.door(s.neighbour).open {
		return
	}
	s.unsent = ""
	if err := s.sender.send(b, s.state == Up); err != nil {
		s.unsent = "no packets can be sent: " + err.Error()
	}
}
