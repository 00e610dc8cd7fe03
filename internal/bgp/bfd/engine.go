package bfd

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/app/wait"
)

const (
	// ticksInInterval is how often the engine wakes in the shortest interval, mostTick how long it sleeps at most.
	ticksInInterval = 20
	mostTick        = 15 * time.Millisecond
	// mostPackets bounds what is read at once: a flood must not keep the engine from sending.
	mostPackets = 4096
	// mostListening bounds Listened.
	mostListening = time.Second
	// reopen is the wait after a failure to open sockets.
	reopen = 5 * time.Second
)

// Watcher hears of sessions. Its methods are called by the engine, and must not wait.
type Watcher interface {
	// Changed: a session has come up or gone down.
	Changed()
	// Lost: the session with a neighbour has ended that was Up.
	Lost(neighbour netip.Addr, loss Loss)
}

// Engine has all sessions of a node. Its methods may be called from any goroutine.
type Engine struct {
	log     *slog.Logger
	watcher Watcher

	mu       sync.Mutex // guards the rest
	sessions map[netip.Addr]*session
	doors    [2]door // of IPv4 and IPv6
	running  bool
	planned  time.Time // of the next tick
	buf      []byte
}

// door has the socket of a family, or why there is none.
type door struct {
	*socket
	err   string
	retry time.Time
}

// NewEngine returns an engine without sessions, which has neither sockets nor a goroutine.
func NewEngine(log *slog.Logger, w Watcher) *Engine {
	return &Engine{log: log, watcher: w, sessions: map[netip.Addr]*session{}, buf: make([]byte, 512)}
}

// Set makes want, by neighbour, the whole set of sessions. A neighbour whose session is removed is told (AdminDown), so that it does not
// take the end for a failure; sessions whose intervals change stay up.
func (e *Engine) Set(want map[netip.Addr]Config) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	for addr, s := range e.sessions {
		if _, stays := want[addr]; !stays {
			s.state, s.diag, s.polling = AdminDown, adminDown, false
			s.say(now)
			e.send(addr, s, now)
			delete(e.sessions, addr)
		}
	}
	for addr, c := range want {
		if s := e.sessions[addr]; s != nil {
			s.change(c, now)
		} else {
			e.sessions[addr] = newSession(c, e.discriminator(), now)
		}
	}
	e.open(now)
	if !e.running && len(e.sessions) > 0 {
		e.running, e.planned = true, now
		go e.run()
	}
}

// Listened returns when each session goes on with that of a former process, or has none to go on with. A neighbour whose session with a former process
// is about to end might else take its end for that of the BGP session which has just begun, and drop what it had kept for the restart.
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

// discriminator chooses one that no session has, and that cannot be guessed.
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

// Status returns the state of the session with a neighbour, nil if there is none.
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

// open opens the sockets of the families that have sessions, and closes those of the others.
func (e *Engine) open(now time.Time) {
	var needed [2]bool
	for addr := range e.sessions {
		needed[0] = needed[0] || addr.Is4()
		needed[1] = needed[1] || !addr.Is4()
	}
	for i := range e.doors {
		d := &e.doors[i]
		switch {
		case !needed[i] && d.socket != nil:
			d.socket.close()
			*d = door{}
		case needed[i] && d.socket == nil && !now.Before(d.retry):
			d.open(i == 0, now, e.log)
		}
	}
}

func (d *door) open(v4 bool, now time.Time, log *slog.Logger) {
	var err error
	if d.socket, err = openSocket(v4); err == nil {
		d.err = ""
		return
	}
	d.retry = now.Add(reopen)
	if text := err.Error(); text != d.err {
		d.err = text
		log.Warn("BFD sessions stay down", "error", err)
	}
}

// run works until there are no sessions.
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

// tick does what there is to do, and returns for how long there is nothing; 0: there are no sessions.
func (e *Engine) tick() (pause time.Duration, lost map[netip.Addr]Loss, changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open(time.Now())
	if e.running = len(e.sessions) > 0; !e.running {
		return 0, nil, false
	}
	up := e.up()
	e.grant(time.Since(e.planned))
	e.read()
	now := time.Now()
	pause = mostTick
	for addr, s := range e.sessions {
		s.expire(now)
		if s.loss != nil {
			if lost == nil {
				lost = map[netip.Addr]Loss{}
			}
			lost[addr], s.loss = *s.loss, nil
		}
		if s.due(now) {
			e.send(addr, s, now)
		}
		pause = min(pause, s.config.Interval/ticksInInterval)
	}
	e.planned = now.Add(pause)
	return pause, lost, len(lost) > 0 || e.up() != up
}

// grant gives all neighbours the time that this process was stopped for, or had no CPU: more may have come meanwhile than the kernel keeps.
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

// up counts the sessions that are.
func (e *Engine) up() (n int) {
	for _, s := range e.sessions {
		if s.state == Up {
			n++
		}
	}
	return n
}

// read takes the packets that have come.
func (e *Engine) read() {
	now := time.Now()
	for _, d := range e.doors {
		if d.socket == nil {
			continue
		}
		for range mostPackets {
			b, from, ok := d.read(e.buf)
			if !ok {
				break
			}
			if s := e.sessions[from]; s != nil {
				s.take(b, now)
			}
		}
	}
}

// take takes bytes that came from the neighbour's address.
func (s *session) take(b []byte, now time.Time) {
	p, err := parse(b)
	if err == nil {
		err = s.receive(b, &p, now)
	}
	if err != nil {
		s.fault = err.Error()
	}
}

// send sends the packet that is due.
func (e *Engine) send(addr netip.Addr, s *session, now time.Time) {
	b := s.send(e.buf[:0], now)
	d := e.door(addr)
	if d.socket == nil {
		return
	}
	s.unsent = ""
	if err := d.write(b, s.config.From, addr); err != nil {
		s.unsent = "no packets can be sent: " + err.Error()
	}
}
