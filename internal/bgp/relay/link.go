package relay

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tortie-net/tortie/internal/bgp/tcpao"
	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// Timing of connections.
const (
	dialTimeout = 4 * time.Second
	// A peer that restarts is back within seconds, so the first attempts come in quick succession: each wait is a tenth
	// longer than the one before, up to ConnectRetry, which at its default of 5 s is reached after 45 s.
	firstRetry = 400 * time.Millisecond
	// afterLoss is the wait after a broken connection, or after a session that was up for at least stable: the peer's
	// process may be starting again already. A peer that repeatedly ends sessions within moments by a NOTIFICATION is
	// tried less and less often.
	afterLoss = 200 * time.Millisecond
	// standIn is how many halves of ConnectRetry a passive link waits for the peer. A peer that is there has tried by
	// then.
	standIn = 3
	stable  = 10 * time.Second
	// openWait bounds the wait for the first message on a connection, handshakeWait the whole handshake.
	openWait      = 10 * time.Second
	handshakeWait = 20 * time.Second
	// youngHandshake is how long one connection in its handshake keeps the next one of its peer away.
	youngHandshake = time.Second
	// crossing is how long after a session comes up a connection can arrive that the peer opened before.
	crossing = 3 * time.Second
	// settling is how long an agreed session may take to come up before another connection can replace it.
	settling = time.Second
	// probeWait is how long a session that is up has for an acknowledgement that keeps another connection of its peer from
	// replacing it: a round trip, and a retransmission or two.
	probeWait     = 2 * time.Second
	probeInterval = 10 * time.Millisecond
	// passiveCheck is the interval of checks why passive sessions are not up.
	passiveCheck = 5 * time.Second
	// releaseWait bounds how long a retired session may take to send its NOTIFICATION. If the speaker behind is slow, the
	// relay sends it after lastWord.
	releaseWait = 2 * time.Second
	lastWord    = 500 * time.Millisecond
	// mostParting is how many sessions of a peer may be sending their NOTIFICATION at a time.
	mostParting = 2
)

// Link keeps up the session of one peer.
type Link struct {
	relay  *Relay
	peer   Peer
	behind Behind
	ctx    context.Context // ends when the link is released
	cancel context.CancelFunc
	// spoken: a session with this peer was up, so the peer may keep paths learned on it.
	spoken atomic.Bool
	rules  atomic.Pointer[Rules]
	offer  atomic.Pointer[wire.Offer] // of the present session or the last one; nil: there was none
	counts *counts
	tries  int                        // connection attempts since serve last returned true; dial's
	ao     atomic.Pointer[tcpao.Keys] // keys of the peer's connections; not nil

	mu      sync.Mutex // guards the rest
	retired bool
	current *session // in its handshake, or attached to the speaker behind
	parting int      // its former sessions that still send a NOTIFICATION to the peer
	// pending is an accepted connection whose peer has not sent its OPEN yet.
	pending      net.Conn
	pendingSince time.Time
	hold         hold
	damping      damping
	dialling     bool          // dial runs
	turn         time.Time     // when a passive link begins to connect, too
	reached      bool          // this end opened the last session that was up
	next         time.Time     // when the next connection is tried; past: no wait
	whole        chan struct{} // closed when the peer has sent its table in some session; nil: not awaited
	deaf         bool          // BFD has lost the peer since it had a session that was up
	over         time.Time     // when the last session that was up ended; zero: there was none
}

// hold is the time for which a peer that announced too many prefixes is held down.
type hold struct {
	until time.Time
	last  time.Duration
}

// damping lengthens the wait after each session that was up for moments only. Else a peer whose sessions come and go
// would have all its paths announced and withdrawn, here and wherever they are passed on. The paths are kept during the
// wait (graceful restart).
type damping struct {
	short int // sessions in a row that did not last
	until time.Time
}

// freeFlaps are how many short sessions in a row are not damped: the peer may be under maintenance.
const freeFlaps = 8

// after returns the damping after another session, which was up for lasted.
func (d damping) after(lasted time.Duration, now time.Time, most time.Duration) damping {
	if lasted >= stable {
		return damping{}
	}
	d.short++
	if over := d.short - freeFlaps; over > 0 {
		d.until = now.Add(min(afterLoss<<min(over, 10), most))
	}
	return d
}

// strike returns the hold for another offence. It doubles unless the peer has behaved for longest.
func (h hold) strike(now time.Time, first, longest time.Duration) hold {
	next := first
	if h.last > 0 && now.Sub(h.until) < longest {
		next = min(2*h.last, longest)
	}
	return hold{until: now.Add(next), last: next}
}

// restart returns the next OPEN's flags about the previous session (RFC 4724). That session ended by a restart of this
// process, or by the loss of the connection alone; this node has gone on forwarding in both cases.
func (l *Link) restart() wire.Restart {
	kept := l.relay.now().Before(l.peer.KeptUntil)
	spoken := l.spoken.Load()
	return wire.Restart{Restarted: kept && !spoken, Preserved: kept || spoken}
}

// HeldUntil returns the time until which the peer is held down; zero: it is not.
func (l *Link) HeldUntil() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.relay.now().Before(l.hold.until) {
		return l.hold.until
	}
	return time.Time{}
}

// SetRules replaces the rules. Paths that the peer has announced are judged again. For announcements to the peer the
// speaker behind must send its paths again.
func (l *Link) SetRules(now *Rules) {
	before := l.rules.Swap(now)
	if s := l.session(); s != nil && !before.sameImports(now) {
		go s.judgeAgain(l.ctx, 0, untouched)
	}
}

// Touch makes the speaker behind announce the peer's touched paths once more to their receivers. The epoch must be a
// new one each time.
func (l *Link) Touch(epoch uint8, touched func(netip.Prefix) bool) {
	if s := l.session(); s != nil {
		go s.judgeAgain(l.ctx, epoch, touched)
	}
}

// session returns the current session, which may be in its handshake; nil: there is none.
func (l *Link) session() *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// Status is the relay's state of a session.
type Status struct {
	Up             bool
	Self           netip.Addr // this end's address of the session that is up
	OpenSent       bool       // the session is in its handshake
	OpenConfirm    bool       // and the peer's OPEN has come
	Received, Sent int        // prefixes announced by the peer, refused ones included, and to it
	Refused        []Refusal
	TableEnded     time.Time // when it had sent its whole table; zero: not yet
	SaysEnd        bool      // its last OPEN offers End-of-RIB, RFC 4724
	Offer          string    // that OPEN as text
	OldKeys        string    // removed keys of TCP-AO that the peer still uses
	WrongKeys      string    // keys of TCP-AO with whose ID the peer uses another key, while no session is up
}

// Status returns the state of the current session, or what is known of the previous one.
func (l *Link) Status() Status {
	var status Status
	l.mu.Lock()
	s := l.current
	l.mu.Unlock()
	if offer := l.offer.Load(); offer != nil {
		status.Offer, status.SaysEnd = offer.String(), offer.EndsTable()
	}
	if s == nil {
		status.WrongKeys = l.relay.mismatched(l.peer.Addr)
		return status
	}
	if s.upSince.Load() == 0 {
		status.OpenSent, status.OpenConfirm = true, s.opened.Load()
		return status
	}
	s.rolling.mu.Lock()
	status.OldKeys = s.rolling.used
	s.rolling.mu.Unlock()
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	status.Up, status.TableEnded, status.Refused = true, s.in.ended, s.refusals()
	status.Self = addrOf(s.conn.LocalAddr()).WithZone(l.peer.Addr.Zone())
	status.Received, status.Sent = s.wire.Prefixes(), int(s.out.advertised.count.Load())
	return status
}

// begin notes that a session is up.
func (l *Link) begin(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deaf = false
	if !l.retired {
		l.behind.Session(true)
	}
	s.upSince.Store(l.relay.now().UnixNano())
}

// end notes that a session that was up is over. The lock is held.
func (l *Link) end(s *session) {
	l.over = l.relay.now()
	if s.kept {
		over := l.over
		time.AfterFunc(s.wire.Offer().RestartTime(), func() { l.notBack(over) })
	}
	if !l.retired {
		l.behind.Session(false)
	}
}

// notBack reports that the speaker behind has dropped the paths kept from a session, unless another came up since.
func (l *Link) notBack(over time.Time) {
	l.mu.Lock()
	back := l.over != over || l.current != nil && l.current.upSince.Load() != 0
	l.mu.Unlock()
	if !back {
		l.failed(NotBack)
	}
}

// Whole returns a channel that is closed when the peer has sent its whole table, in this session or a later one.
func (l *Link) Whole() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.whole == nil {
		l.whole = make(chan struct{})
	}
	return l.whole
}

func (l *Link) tableEnded() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.whole != nil {
		close(l.whole)
		l.whole = nil
	}
}

// Retire prevents new sessions. A session that is up stays until the speaker behind ends it; a handshake ends.
func (l *Link) Retire() {
	l.retire()
	defer l.mu.Unlock()
	switch {
	case l.current == nil && l.parting == 0:
		l.cancel()
	case l.current != nil && l.current.upSince.Load() == 0:
		l.current.abort(&wire.Notification{Code: wire.Cease, Subcode: wire.PeerDeconfigured})
	}
}

// retire prevents new sessions, and closes a connection without an OPEN. It returns with the mutex held.
func (l *Link) retire() {
	l.relay.forget(l)
	l.mu.Lock()
	l.retired = true
	if l.pending != nil {
		_ = l.pending.Close()
	}
}

// Release ends a retired link once the session's NOTIFICATION has had time to reach the peer.
func (l *Link) Release() {
	time.AfterFunc(lastWord, l.dismiss)
	time.AfterFunc(releaseWait, l.cancel)
	context.AfterFunc(l.ctx, l.hangUp)
}

// dismiss sends the peer a NOTIFICATION that its configuration is removed. Else it would take the end for a lost
// connection, and keep our paths.
func (l *Link) dismiss() {
	if s := l.session(); s != nil {
		n := &wire.Notification{Code: wire.Cease, Subcode: wire.PeerDeconfigured}
		if offer := l.offer.Load(); offer != nil {
			n = offer.Final(n)
		}
		s.abort(n)
	}
}

// HangUp ends the link without a NOTIFICATION: the peer takes that for a lost connection, and keeps our paths. over is
// closed when the speaker behind has no session of the link.
func (l *Link) HangUp() (over <-chan struct{}) {
	l.retire()
	defer l.mu.Unlock()
	l.cancel()
	if l.current == nil {
		return l.ctx.Done()
	}
	l.current.abort(nil)
	return l.current.done
}

// hangUp breaks the current session.
func (l *Link) hangUp() {
	if s := l.session(); s != nil {
		s.abort(nil)
	}
}

// free waits until a connection may be tried. Not ok: the link has ended, or has a session, after which dial begins
// anew.
func (l *Link) free() (ok bool) {
	for l.ctx.Err() == nil {
		l.mu.Lock()
		l.dialling = l.current == nil
		dialling, wait := l.dialling, later(l.turn, later(l.hold.until, l.damping.until)).Sub(l.relay.now())
		l.mu.Unlock()
		if !dialling || wait <= 0 {
			return dialling
		}
		l.sleep(wait)
	}
	return false
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// sleep waits until the time or the link is over.
func (l *Link) sleep(wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.ctx.Done():
	}
}

// dial connects while there is no session. Like incoming it is at the bottom of the stack of each of thousands of
// sessions, so it leaves variables that take room there to other functions.
func (l *Link) dial() {
	baseline := l.relay.signing.read()
	for ; l.free(); l.tries++ {
		wait := retryWait(l.tries, l.peer.ConnectRetry)
		if s := l.try(baseline); s != nil && l.serve(s) {
			wait, baseline = afterLoss, l.relay.signing.read()
			l.tries = 0
		}
		l.pause(wait/2 + rand.N(wait))
	}
}

// try connects once. It returns nil if the peer does not answer, or the link is over.
func (l *Link) try(baseline refusals) *session {
	ctx, cancel := context.WithTimeout(l.ctx, dialTimeout)
	defer cancel()
	conn, err := connect(ctx, l.peer, *l.ao.Load())
	switch {
	case l.ctx.Err() != nil:
		if conn != nil {
			_ = conn.Close()
		}
		return nil
	case err != nil:
		if l.session() == nil { // the peer may have connected meanwhile
			reason := dialFailure(l.peer, err, l.relay.signing.read().of(l.peer) > baseline.of(l.peer))
			if l.peer.Passive {
				reason = Neither + reason
			}
			l.failed(reason)
		}
		return nil
	}
	return newSession(l, conn, true)
}

// await sets when a passive link connects itself, after a time for the peer to do so: a firewall may drop the peer's
// SYNs and not ours. The mutex is held.
func (l *Link) await() {
	if l.peer.Passive {
		l.turn = l.relay.now().Add(standIn * l.peer.ConnectRetry / 2)
	}
}

// retryWait is the mean wait after a number of attempts.
func retryWait(tries int, most time.Duration) time.Duration {
	wait := firstRetry
	for ; tries > 0 && wait < most; tries-- {
		wait += wait / 10
	}
	return min(wait, most)
}

// silent reports whether a passive link waits and its peer does not connect.
func (l *Link) silent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.peer.Passive && l.current == nil && l.pending == nil && !l.retired
}

// failed reports a failure, unless the link has ended.
func (l *Link) failed(reason string) {
	l.mu.Lock()
	retired := l.retired
	l.mu.Unlock()
	if !retired {
		l.behind.Failed(reason)
	}
}

// ended reports how a session has ended. The end of a retired link is no failure.
func (l *Link) ended(end End) {
	l.mu.Lock()
	end.Failure = end.Failure && !l.retired
	l.mu.Unlock()
	l.behind.Ended(end)
}

// incoming serves an accepted connection.
func (l *Link) incoming(conn *net.TCPConn) {
	if s := l.greet(conn); s != nil {
		l.serve(s)
	}
	l.unreserve(conn)
}

// greet reads the OPEN of a peer that has connected. It returns nil if the connection is refused or lost.
func (l *Link) greet(conn *net.TCPConn) *session {
	if !l.reserve(conn) {
		reset(conn)
		return nil
	}
	s := newSession(l, conn, false)
	if !l.HeldUntil().IsZero() {
		s.refuse(&wire.Notification{Code: wire.Cease, Subcode: wire.ConnectionRejected})
		return nil
	}
	if !s.hear() {
		return nil
	}
	return s
}

// reserve makes conn the only connection in its handshake. A peer that opens another one has given up on the first.
func (l *Link) reserve(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.relay.now()
	if l.retired || now.Before(l.damping.until) || (l.pending != nil && now.Sub(l.pendingSince) < youngHandshake) {
		return false
	}
	if l.pending != nil {
		_ = l.pending.Close()
	}
	l.pending, l.pendingSince = conn, now
	l.await()
	return true
}

func (l *Link) unreserve(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending == conn {
		l.pending = nil
	}
}

// serve runs a session to its end, unless another one of the peer wins, and reports whether to try the next one soon.
func (l *Link) serve(s *session) (soon bool) {
	for {
		rival, ok := l.admit(s)
		switch {
		case ok:
			l.unreserve(s.conn)
			return l.carry(s)
		case rival == nil, s.outgoing: // no message was sent yet
			_ = s.conn.Close()
			return false
		case rival.settles():
			continue
		case !s.beats(rival), rival.answers():
			s.refuse(&wire.Notification{Code: wire.Cease, Subcode: wire.Collision})
			return false
		}
		rival.abort(&wire.Notification{Code: wire.Cease, Subcode: wire.Collision})
		<-rival.done
	}
}

// carry is serve for the current session.
func (l *Link) carry(s *session) (soon bool) {
	p := s.run(l.ctx)
	lasted := s.lasted()
	soon = lasted >= stable || (p.broken && lasted > 0)
	if l.leave(s) > mostParting {
		p = parting{broken: true} // do not wait for a peer that opens one session after the other
	}
	s.part(p)
	l.parted()
	return soon
}

// admit makes s the current session, or returns the present one. Neither: the link is retired.
func (l *Link) admit(s *session) (rival *session, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.retired:
		return nil, false
	case l.current != nil:
		return l.current, false
	}
	l.current = s
	return nil, true
}

// leave makes room for the next session and returns how many sessions are parting.
func (l *Link) leave(s *session) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.upSince.Load() != 0 {
		l.end(s)
		l.reached = s.outgoing
	}
	l.current = nil
	l.parting++
	if lasted := s.lasted(); lasted > 0 {
		l.damping = l.damping.after(lasted, l.relay.now(), l.peer.ConnectRetry)
	}
	if s.overflow {
		l.hold = l.hold.strike(l.relay.now(), l.relay.config.HoldDown, l.relay.config.MaxHoldDown)
	}
	close(s.done)
	l.startDialling()
	return l.parting
}

// startDialling starts dial. On a passive link dial waits for the peer first, unless this end opened the last session.
// The mutex is held.
func (l *Link) startDialling() {
	if !l.reached {
		l.await()
	}
	if !l.dialling && !l.retired {
		l.dialling = true
		go l.dial()
	}
}

// parted ends a retired link with its last session.
func (l *Link) parted() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.parting--
	if l.retired && l.current == nil && l.parting == 0 {
		l.cancel()
	}
}

// lost describes how a connection broke.
func lost(s *session, err error) string {
	switch {
	case errors.Is(err, errSendTimeout):
		return err.Error()
	case errors.Is(err, os.ErrDeadlineExceeded) && s.wire.Offer().ASN == 0:
		return "it sent no OPEN on the connection"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "it sent its OPEN but did not accept ours in time"
	case s.wire.Established() && s.wire.Offer().Graceful():
		return LostKept
	case s.wire.Established():
		return "connection lost"
	case errors.Is(err, syscall.ETIMEDOUT):
		return "it fell silent during the handshake"
	}
	return "it closed the connection during the handshake: is this node a peer there, with this address?"
}

// Wait returns when a released link has ended, its NOTIFICATION sent, or when ctx ends.
func (l *Link) Wait(ctx context.Context) {
	select {
	case <-l.ctx.Done():
	case <-ctx.Done():
	}
}
