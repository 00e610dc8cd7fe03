package bfd

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"time"
)

// Config is the configuration of this end of a session. Configs are compared by ==.
type Config struct {
	// From is this end's address; the zero Addr leaves it to the kernel.
	From netip.Addr
	// Interval is the interval of packets in both directions, Multiplier how many may be lost.
	Interval   time.Duration
	Multiplier uint8
	Auth       Auth
}

// slowInterval is the least interval of a session that is not Up (RFC 5880 section 6.8.3).
const slowInterval = time.Second

// intervals are sent by this end, or in force.
type intervals struct{ tx, rx time.Duration }

// session is a session with one neighbour (RFC 5880 section 6.8). The engine owns it.
type session struct {
	neighbour netip.Addr // the engine's key
	sender    sender     // the engine's
	config    Config
	disc      uint32
	state     State
	diag      Diag
	since     time.Time
	seq       sequence

	// remote is the neighbour's last packet; its discriminator is 0 before the first packet and after silence.
	remote packet
	heard  time.Time // when it came
	alive  time.Time // when the last packet came that kept the session Up
	begun  time.Time // when the session came Up; zero: in a former process

	said    intervals
	settled intervals // before the current Poll Sequence, else equal to said
	polling bool
	final   bool      // the next packet has the Final bit
	next    time.Time // when it is sent

	fault  string // why the last packet was dropped; empty: it was not
	unsent string // why no packets can be sent
	loss   *Loss  // of Up, not yet reported

	turn   int64 // the wheel's; 0: none
	seenUp bool  // the engine's: whether the session was Up in the last settle
}

// Loss is the end of a session that was Up.
type Loss struct {
	Diag Diag
	// Begun is when the session came Up; zero: in a former process of this node.
	Begun time.Time
	// Alive is when the neighbour last sent the state Up, or Init.
	Alive time.Time
	// Independent: BFD would have survived a restart of the neighbour's control plane (its C bit).
	Independent bool
	// Admin: the neighbour's operator has ended the session, which does not affect its forwarding (RFC 5882 section 3.2).
	Admin bool
}

// newSession returns a session that first listens for a little more than an interval: see receive.
func newSession(c Config, disc uint32, now time.Time) *session {
	s := &session{config: c, disc: disc, state: Down, since: now, seq: sequence{sent: rand.Uint32()}}
	s.reset()
	s.say(now)
	s.next = now.Add(s.listenTime())
	return s
}

func (s *session) listenTime() time.Duration { return s.config.Interval * 5 / 4 }

// listens reports whether the session may still find one of a former process to continue.
func (s *session) listens(now time.Time) bool {
	return s.heard.IsZero() && now.Before(s.since.Add(s.listenTime()))
}

// reset forgets the neighbour.
func (s *session) reset() { s.remote = packet{minRx: time.Microsecond, mult: 1} }

// say sets the intervals for the present state. While the session is Up, a longer interval of sending and a shorter
// detection time wait for the neighbour's confirmation.
func (s *session) say(now time.Time) {
	want := intervals{s.config.Interval, s.config.Interval}
	if s.state != Up {
		want.tx = max(want.tx, slowInterval)
	}
	if want == s.said {
		return
	}
	s.settled, s.said = s.said, want
	if s.polling = s.state == Up; !s.polling {
		s.settled = want
	}
	s.next = now
}

// interval returns the interval of sending, without jitter; 0: the neighbour wants no packets.
func (s *session) interval() time.Duration {
	if s.remote.minRx == 0 {
		return 0
	}
	return max(min(s.said.tx, s.settled.tx), s.remote.minRx)
}

// detection returns the detection time.
func (s *session) detection() time.Duration {
	return time.Duration(s.remote.mult) * max(s.said.rx, s.settled.rx, s.remote.minTx)
}

// change applies a new configuration.
func (s *session) change(c Config, now time.Time) {
	s.config = c
	s.say(now)
}

// receive handles a packet of the neighbour. A first packet of an unknown session that is Up belongs to a former
// process of this node, which has just ended: that session continues. If it went down, now or by silence, the neighbour
// might end the BGP session begun after the restart, which graceful restart does not cover.
func (s *session) receive(b []byte, p *packet, now time.Time) error {
	inherited := p.your != 0 && p.your != s.disc
	switch {
	case inherited && (p.state != Up || !s.heard.IsZero()):
		return errForeign
	case p.demand:
		return errDemand
	}
	if err := s.verify(b, p, s.unheard(now)); err != nil {
		return err
	}
	s.remote, s.heard, s.fault = *p, now, ""
	if p.final && s.polling {
		s.polling, s.settled = false, s.said
	}
	if inherited {
		s.disc = p.your
		s.set(Up, NoDiagnostic, now)
		s.begun = time.Time{}
	}
	s.step(p, now)
	if s.state == Up {
		s.alive = now
	}
	if p.poll {
		s.final, s.next = true, now
	}
	// The neighbour may want packets earlier than before.
	if soonest := now.Add(s.interval()); s.next.After(soonest) {
		s.next = soonest
	}
	return nil
}

// step changes the state by RFC 5880 section 6.8.6.
func (s *session) step(p *packet, now time.Time) {
	switch {
	case s.state == AdminDown:
	case p.state == AdminDown:
		if s.state != Down {
			s.set(Down, NeighborSaysDown, now)
		}
	case s.state == Down && p.state == Down:
		s.set(Init, s.diag, now)
	case s.state == Down && p.state == Init, s.state == Init && p.state >= Init:
		s.set(Up, NoDiagnostic, now)
	case s.state == Up && p.state == Down:
		s.set(Down, NeighborSaysDown, now)
	}
}

// set enters a state, and makes the next packet due.
func (s *session) set(state State, why Diag, now time.Time) {
	if s.state == Up {
		s.loss = &Loss{Diag: why, Begun: s.begun, Alive: s.alive, Independent: s.remote.independent, Admin: s.remote.state == AdminDown}
	}
	if state == Up {
		s.begun = now
	}
	s.state, s.diag, s.since, s.next = state, why, now, now
	s.say(now)
}

// expire ends the session if the neighbour has been silent for too long.
func (s *session) expire(now time.Time) {
	if s.remote.my == 0 || now.Sub(s.heard) <= s.detection() {
		return
	}
	if s.state >= Init {
		s.set(Down, TimeExpired, now)
	}
	s.reset()
}

// due reports whether a packet must be sent now.
func (s *session) due(now time.Time) bool {
	return !now.Before(s.next) && (s.final || s.interval() > 0)
}

// wake returns when due or expire must be called next.
func (s *session) wake() time.Time {
	silent := s.heard.Add(s.detection())
	sends := s.final || s.interval() > 0
	if sends && (s.remote.my == 0 || s.next.Before(silent)) {
		return s.next
	}
	return silent // a neighbour was heard: else interval is not 0
}

// send appends the next packet, and sets the time of the one after: 75 to 100 % of the interval later, at most 90 % if
// none may be lost (RFC 5880 section 6.8.7). A tenth of the interval is reserved for a late tick of the engine.
func (s *session) send(b []byte, now time.Time) []byte {
	s.seq.sent++
	p := packet{
		diag: s.diag, state: s.state, poll: s.polling && !s.final, final: s.final, mult: s.config.Multiplier,
		my: s.disc, your: s.remote.my, minTx: s.said.tx, minRx: s.said.rx,
		auth: section{kind: s.config.Auth.Type, keyID: s.config.Auth.KeyID, seq: s.seq.sent},
	}
	most := 1.0 - 1.0/ticksInInterval
	if s.config.Multiplier == 1 {
		most -= 0.1
	}
	s.final = false
	s.next = now.Add(time.Duration(float64(s.interval()) * (0.75 + rand.Float64()*(most-0.75))))
	return s.config.Auth.seal(b, &p)
}

// Status is the state of a session.
type Status struct {
	State State
	// Diag is why the session is not Up, or NoDiagnostic; RemoteDiag is the neighbour's.
	Diag, RemoteDiag Diag
	Since            time.Time
	// Detection is the longest silence of the neighbour that does not end the session.
	Detection time.Duration
	// Heard: packets of the neighbour arrive.
	Heard bool
	// Fault is why its packets are dropped, or none can be sent; empty: there is no fault.
	Fault string
}

func (s *session) status() Status {
	return Status{
		State: s.state, Diag: s.diag, RemoteDiag: s.remote.diag, Since: s.since, Detection: s.detection(),
		Heard: s.remote.my != 0, Fault: cmp.Or(s.unsent, s.fault),
	}
}
