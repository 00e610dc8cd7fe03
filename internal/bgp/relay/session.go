package relay

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// Deadlines for NOTIFICATIONs and for the speaker behind, which is in this process.
const (
	attachTimeout = 5 * time.Second
	behindTimeout = 30 * time.Second
	farewell      = time.Second
	// refreshPause is the least time between two requests for our whole table.
	refreshPause = time.Second
)

// session is one TCP connection with a peer and, once it runs, its counterpart with the speaker behind.
type session struct {
	link     *Link
	conn     *net.TCPConn
	families wire.Families
	outgoing bool
	began    time.Time
	wire     *wire.Session // guarded by in.mu
	in       adjRIBIn
	out      adjRIBOut
	buf      []byte
	first    []byte        // the peer's OPEN, as passed to the speaker behind
	done     chan struct{} // closed when the speaker behind no longer has the session
	upSince  atomic.Int64  // of the relay's clock, in nanoseconds; 0: never
	voice    atomic.Int64  // when the speaker behind last sent a message, likewise
	overflow bool          // the peer has announced too many prefixes
	kept     bool          // after the end: the speaker behind keeps the peer's paths (graceful restart)
	refresh  time.Time     // when the peer last asked for our table
	opened   atomic.Bool   // the peer's OPEN has come
	graceful atomic.Bool   // the peer has offered graceful restart
	narrow   atomic.Bool   // the peer's AS numbers have two octets
	before   wire.Restart  // our OPEN's flags about the previous session
	held     held
	rolling  rolling
	flaws    flaws
	outDone  chan struct{} // closed when nothing more comes from the speaker behind

	mu      sync.Mutex // guards the rest
	stopped bool
	verdict *wire.Notification // for the peer, by the caller that stopped the session
	said    *wire.Notification // sent by the speaker behind
	broken  error              // the session was stopped because the peer took nothing more
	drop    bool               // the peer's paths must be dropped
}

func newSession(l *Link, conn *net.TCPConn, outgoing bool) *session {
	rules := l.rules.Load()
	families := wire.FamiliesOf(l.peer.Addr)
	s := &session{
		link: l, conn: conn, families: families, outgoing: outgoing, began: l.relay.now(), done: make(chan struct{}),
		buf: make([]byte, wire.Room),
		wire: wire.NewSession(wire.Rules{
			ASN: l.peer.ASN, LocalASN: rules.Session.LocalASN, LocalID: l.peer.RouterID, Families: families, Link: l.peer.Addr.Zone(),
			MaxPrefixes: l.peer.MaxPrefixes, Source: rules.source(), ClusterID: l.peer.ClusterID,
		}),
	}
	s.in.judged, s.out.advertised.index = rules, l.relay.index
	return s
}

// lasted returns how long the session has been up.
func (s *session) lasted() time.Duration {
	up := s.upSince.Load()
	if up == 0 {
		return 0
	}
	return s.link.relay.now().Sub(time.Unix(0, up))
}

// beats decides a collision: s came in and has the peer's OPEN, rival is the current session. While rival is in its
// handshake, RFC 4271 section 6.8 keeps the connection that the higher router ID opened. When rival is up, a connection
// that the peer opened afterwards implies that the peer has restarted and does not know rival (RFC 4724 section 5):
// waiting for the hold timer would only take time. Method answers finds out whether the peer does know it.
func (s *session) beats(rival *session) bool {
	offer := s.wire.Offer()
	if up := rival.upSince.Load(); up != 0 {
		return offer.Restarted || s.began.Sub(time.Unix(0, up)) > crossing
	}
	if !rival.outgoing {
		return true // the peer has given up on the first one
	}
	if order := s.link.peer.RouterID.Compare(offer.ID); order != 0 {
		return order < 0
	}
	return s.link.rules.Load().Session.LocalASN < offer.ASN // RFC 6286
}

// settles waits for a session that we opened and for which the peer has sent its OPEN, and reports whether it has come
// up or ended meanwhile. The peer may have received our KEEPALIVE and consider the session established. If a collision
// ended it then, the peer would take that for our end, and drop our routes.
func (s *session) settles() bool {
	if !s.outgoing || !s.opened.Load() || s.upSince.Load() != 0 {
		return false
	}
	end := time.After(settling)
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-s.done:
			return true
		case <-end:
			return false
		case <-ticker.C:
			if s.upSince.Load() != 0 {
				return true
			}
		}
	}
}

// answers reports whether the session is up and its connection alive at the other end: the peer's kernel acknowledges
// data. Else an attacker who can send from the peer's address could replace the peer's session by his own. After a
// restart of the peer's process or host its kernel does not know the connection: it resets it, or, behind a firewall,
// is silent.
func (s *session) answers() bool {
	if s.upSince.Load() == 0 {
		return false
	}
	before, err := acknowledged(s.conn)
	if err != nil {
		return false
	}
	go func() { _ = s.tell(wire.NewKeepalive()) }() // it may have to wait for a peer that reads nothing
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for range probeWait / probeInterval {
		select {
		case <-s.done:
			return false
		case <-ticker.C:
		}
		if now, err := acknowledged(s.conn); err != nil || now > before {
			return err == nil
		}
	}
	return false
}

// hear reads the OPEN of a peer that has connected into first. Any other message ends the connection.
func (s *session) hear() bool {
	s.setReadDeadline(time.Now().Add(openWait))
	open, how := s.next()
	if how == nil {
		s.noteOpen(open)
		return true
	}
	if how.by != byLoss || !errors.Is(how.err, net.ErrClosed) { // else this end closed it
		s.report(*how)
	}
	s.part(s.parting(*how))
	return false
}

// noteOpen keeps the peer's OPEN for the speaker behind, and its offers for writers to the peer.
func (s *session) noteOpen(open []byte) {
	s.first = bytes.Clone(open)
	s.opened.Store(true)
	offer := s.wire.Offer()
	s.graceful.Store(offer.Helps())
	s.narrow.Store(!offer.FourOctets)
	s.link.offer.Store(offer)
}

// refuse sends a NOTIFICATION and closes.
func (s *session) refuse(n *wire.Notification) {
	_ = s.conn.SetWriteDeadline(time.Now().Add(farewell))
	if _, err := s.conn.Write(n.Bytes()); err == nil {
		s.link.said(n.Bytes())
	}
	s.linger()
}

// linger closes the connection so that sent data arrives: closing with unread data would reset it, and the peer's
// kernel would drop data that its speaker has not read.
func (s *session) linger() {
	_ = s.conn.CloseWrite()
	_ = s.conn.SetReadDeadline(time.Now().Add(farewell))
	_, _ = io.Copy(io.Discard, s.conn)
	_ = s.conn.Close()
}

// abort stops the session; the speaker behind sees a broken connection. n is sent to the peer unless nil.
func (s *session) abort(n *wire.Notification) { s.stop(n, nil) }

func (s *session) stop(n *wire.Notification, broken error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.stopped, s.verdict, s.broken = true, n, broken
	}
	_ = s.conn.SetReadDeadline(time.Unix(1, 0))
}

// setReadDeadline sets when the peer must have sent something; zero: no deadline. It does not undo an abort.
func (s *session) setReadDeadline(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		_ = s.conn.SetReadDeadline(at)
	}
}

// run carries the session until it ends for the speaker behind, and returns the remaining work towards the peer. The
// speaker takes no part in the handshake. It keeps the paths of a peer that restarts, and would drop them if a session
// began and did not come up, as when both ends connect (RFC 4271 section 6.8), or when a process starts.
func (s *session) run(ctx context.Context) parting {
	if err := s.within(ctx, s.link.behind.Ready); err != nil {
		return s.untaken(ctx, err)
	}
	s.out.self = addrOf(s.conn.LocalAddr()).WithZone("")
	if how := s.handshake(); how != nil {
		s.report(*how)
		return s.parting(*how)
	}
	if err := s.begin(ctx); err != nil {
		return s.untaken(ctx, err)
	}
	return s.finish(s.fromPeer(ctx))
}

// begin attaches the speaker behind to the session, which is up then: messages pass in both directions.
func (s *session) begin(ctx context.Context) error {
	var back net.Conn
	err := s.within(ctx, func(ctx context.Context) (err error) {
		back, err = s.link.behind.Attach(ctx, s.first)
		return err
	})
	if err != nil {
		return err
	}
	s.noteUp()
	s.in.order.Lock()
	defer s.in.order.Unlock()
	s.in.back = back
	s.voice.Store(s.link.relay.now().UnixNano())
	s.outDone = make(chan struct{})
	go func() {
		defer close(s.outDone)
		s.stop(nil, s.toPeer(back))
		s.forget()
	}()
	s.judge(s.link.ctx, 0, untouched) // the rules may have changed during the handshake
	s.keepAlive()
	return nil
}

// close stops passing messages to the speaker behind, and returns the connection with it.
func (s *session) close() (back net.Conn) {
	s.in.order.Lock()
	defer s.in.order.Unlock()
	back, s.in.back = s.in.back, nil
	return back
}

// forget empties the Adj-RIB-Out.
func (s *session) forget() {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	s.out.advertised.forget()
}

// within calls f with a deadline for the speaker behind.
func (s *session) within(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	return f(ctx)
}

// untaken returns the parting of a session that the speaker behind does not take.
func (s *session) untaken(ctx context.Context, err error) parting {
	if ctx.Err() != nil { // the link is over
		return s.parting(ending{by: byOthers})
	}
	s.link.failed("our own speaker does not take the session: " + err.Error())
	return parting{word: &wire.Notification{Code: wire.Cease, Subcode: wire.ConnectionRejected}}
}

// handshake exchanges OPEN and KEEPALIVE with the peer; not nil: it has failed.
func (s *session) handshake() *ending {
	s.setReadDeadline(time.Now().Add(handshakeWait))
	s.before = s.link.restart()
	config := s.link.peer
	own := wire.LocalOpen{
		ASN: s.link.rules.Load().Session.LocalASN, ID: config.RouterID, HoldTime: uint16(config.HoldTime / time.Second),
		RestartTime: uint16(config.RestartTime / time.Second), Restart: s.before,
	}
	if err := s.send(own.Bytes(s.families, s.link.peer.linkLocal())); err != nil {
		return &ending{by: byLoss, err: err}
	}
	if s.first == nil {
		open, how := s.next()
		if how != nil {
			return how
		}
		s.noteOpen(open)
	}
	if err := s.tell(wire.NewKeepalive()); err != nil {
		return &ending{by: byLoss, err: err}
	}
	_, how := s.next()
	if how == nil {
		s.agree()
	}
	return how
}

// next reads the peer's next message of the handshake; not nil: the handshake has failed.
func (s *session) next() (passed []byte, how *ending) {
	message, how := s.read()
	if how != nil {
		return nil, how
	}
	v := s.check(message, nil) // no UPDATE passes in a handshake
	switch {
	case v.Reset != nil:
		return nil, &ending{by: byUs, reason: v.Reset}
	case wire.TypeOf(message) == wire.Notify:
		return nil, &ending{by: byPeer, reason: wire.ParseNotification(message)}
	}
	return v.Pass, nil
}

// read reads a message of the peer; not nil: there are no more.
func (s *session) read() (message []byte, how *ending) {
	message, err := wire.Read(s.conn, s.buf)
	if err != nil {
		return nil, s.unread(err)
	}
	s.link.heard()
	return message, nil
}

// parting is how a connection with a peer is closed.
type parting struct {
	broken bool               // the connection is lost
	word   *wire.Notification // sent first; nil: none
}

func (s *session) part(p parting) {
	switch {
	case p.broken:
		_ = s.conn.Close()
	case p.word != nil:
		s.refuse(p.word)
	default:
		s.linger()
	}
}

// ending is how a session ends.
type ending struct {
	by     enders
	reason *wire.Notification // of byPeer and byUs
	err    error              // of byLoss
}

type enders int

const (
	byLoss   enders = iota // the connection with the peer broke
	byPeer                 // it has sent a NOTIFICATION, which was passed to the speaker behind
	byUs                   // it has violated the protocol or its prefix limit, or BFD has found its forwarding lost
	byOthers               // abort was called, or the speaker behind has closed
)

// fromPeer passes the peer's messages on until the session ends. The speaker behind runs the hold timer.
func (s *session) fromPeer(ctx context.Context) ending {
	s.setReadDeadline(time.Time{})
	for {
		message, how := s.read()
		if how == nil {
			how = s.passOn(ctx, message)
		}
		if how != nil {
			return *how
		}
	}
}

// passOn passes one message of the peer on; not nil: it was the last one.
func (s *session) passOn(ctx context.Context, message []byte) *ending {
	kind := wire.TypeOf(message)
	s.pace(kind)
	t := s.borrow(0)
	defer lent.Put(t)
	s.in.order.Lock()
	defer s.in.order.Unlock()
	v := s.check(message, t)
	if v.Reset != nil {
		return &ending{by: byUs, reason: v.Reset}
	}
	if v.Flaw != "" {
		s.link.flawed(v.Flaw)
		s.flaws.seen(s.link.relay.log, s.link.peer.Addr, v.Flaw)
	}
	if !s.pass(ctx, v.Pass) {
		return &ending{by: byOthers}
	}
	if v.End {
		s.noteEnd()
	}
	if kind == wire.Notify {
		return &ending{by: byPeer, reason: wire.ParseNotification(message)}
	}
	return nil
}

// flaws counts malformed messages, for a periodic log line.
type flaws struct {
	count int
	said  time.Time
}

func (f *flaws) seen(log *slog.Logger, peer netip.Addr, flaw string) {
	f.count++
	if now := time.Now(); now.Sub(f.said) >= reportPause {
		log.Warn("BGP messages of a peer are malformed: what they announce is not taken, or attributes are left out",
			"peer", peer, "last", flaw, "since-last-report", f.count)
		f.count, f.said = 0, now
	}
}

// unread returns the ending when no message can be read from the peer.
func (s *session) unread(err error) *ending {
	if fault := (*wire.Notification)(nil); errors.As(err, &fault) {
		return &ending{by: byUs, reason: fault}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.broken != nil:
		return &ending{by: byLoss, err: s.broken}
	case s.drop:
		return &ending{by: byUs, reason: s.verdict}
	case s.stopped:
		return &ending{by: byOthers}
	}
	return &ending{by: byLoss, err: err}
}

// pace delays messages that cost the speaker behind more than the peer.
func (s *session) pace(kind wire.Type) {
	if kind != wire.RouteRefresh {
		return
	}
	if wait := refreshPause - time.Since(s.refresh); wait > 0 {
		s.link.sleep(wait)
	}
	s.refresh = time.Now()
}

// noteUp notes that the session is up.
func (s *session) noteUp() {
	s.link.begin(s)
	s.link.spoken.Store(true)
	s.link.counts.sessions.Add(1)
}

// holdTime returns the negotiated hold time.
func (s *session) holdTime() time.Duration {
	return min(s.link.peer.HoldTime, time.Duration(s.wire.Offer().HoldTime)*time.Second)
}

// keepalive returns the interval of the relay's own KEEPALIVEs, 0: none. The speaker behind sends them at the
// configured interval, but at a third of the hold time if the peer's hold time is the lower one.
func (s *session) keepalive() time.Duration {
	own, hold := s.link.peer.Keepalive, s.holdTime()
	if 0 < own && own < hold/3 && hold < s.link.peer.HoldTime {
		return own
	}
	return 0
}

// keepAlive sends KEEPALIVEs until the session is over, unless the speaker behind is silent for the hold time: it is
// not alive then, and the peer must notice.
func (s *session) keepAlive() {
	every := s.keepalive()
	if every == 0 {
		return
	}
	time.AfterFunc(every, func() {
		select {
		case <-s.done:
			return
		default:
		}
		if s.link.relay.now().Sub(time.Unix(0, s.voice.Load())) < s.holdTime() {
			if err := s.tell(wire.NewKeepalive()); err != nil {
				s.stop(nil, err)
				return
			}
		}
		s.keepAlive()
	})
}

func pass(back net.Conn, message []byte) bool {
	_ = back.SetWriteDeadline(time.Now().Add(behindTimeout))
	_, err := back.Write(message)
	return err == nil
}

// toPeer passes on the speaker's messages. It returns nil when the speaker closes, or an error of sending to the peer.
func (s *session) toPeer(back net.Conn) error {
	buf := make([]byte, wire.Room)
	for {
		message, err := wire.Read(back, buf)
		if err != nil {
			return nil
		}
		s.voice.Store(s.link.relay.now().UnixNano())
		if s.link.peer.linkLocal() {
			message = wire.Plain(message)
		}
		if err := s.forward(message); err != nil {
			return err
		}
		if wire.TypeOf(message) == wire.Notify {
			s.closedByUs(wire.ParseNotification(message))
		}
	}
}

// forward sends the peer a message, an UPDATE as the rules change it.
func (s *session) forward(message []byte) error {
	if wire.TypeOf(message) == wire.Update {
		s.out.mu.Lock()
		defer s.out.mu.Unlock()
		return s.announce(message)
	}
	return s.tell(message)
}

// held keeps messages for the peer back, from our KEEPALIVE on, which makes the session up for the peer. After a
// restart they are kept until our table is complete and then sent at once. A peer whose session comes up and is lost
// again before we have announced anything drops the paths that it kept (RFC 4724 section 4.2), and a process that
// starts may be killed again.
type held struct {
	mu      sync.Mutex // guards the rest, and the order of messages
	holding bool
	over    bool // the messages were sent, or none must be held
	agreed  bool // the peer's KEEPALIVE has come: only the speaker behind is awaited
	text    []byte
}

const (
	// heldTime bounds how long messages are held, heldRoom their size. The speaker behind takes the session and sends its
	// table within milliseconds of the peer's KEEPALIVE. A peer that has restarted, too, and holds its KEEPALIVE back must
	// not be waited for.
	heldTime = 250 * time.Millisecond
	heldRoom = 1 << 16
	// heldLonger is how much longer messages are held after the peer's KEEPALIVE: on a busy node the speaker takes its
	// time. The least hold time is 3 s. Method answers, whose KEEPALIVE is held, too, waits for probeWait.
	heldLonger = probeWait / 2
)

// tell sends a message to the peer, or holds it to send it with later ones.
func (s *session) tell(message []byte) error {
	g := &s.held
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.over && !g.holding && wire.TypeOf(message) == wire.Keepalive {
		if g.holding = s.graceful.Load() && s.before.Restarted; g.holding {
			time.AfterFunc(heldTime, s.flushHeld)
		} else {
			g.over = true
		}
	}
	if !g.holding {
		return s.send(message)
	}
	g.text = append(g.text, message...)
	if s.out.over.Load() || wire.TypeOf(message) == wire.Notify || len(g.text) > heldRoom {
		return s.flush()
	}
	return nil
}

// flushHeld sends the held messages although the table is incomplete, at once or, if the peer has agreed, later.
func (s *session) flushHeld() {
	g := &s.held
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holding && g.agreed {
		g.agreed = false
		time.AfterFunc(heldLonger, s.flushHeld)
		return
	}
	_ = s.flush() // the next write or read reports an error
}

// agree notes the peer's KEEPALIVE.
func (s *session) agree() {
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	s.held.agreed = true
}

// flush sends the held messages. The mutex of held is locked by the caller.
func (s *session) flush() error {
	g := &s.held
	text := g.text
	g.holding, g.over, g.text = false, true, nil
	if len(text) == 0 {
		return nil
	}
	return s.send(text)
}

// errSendTimeout: the peer does not read.
var errSendTimeout = errors.New("could not send to it within the hold time")

func (s *session) send(text []byte) error {
	_ = s.conn.SetWriteDeadline(time.Now().Add(s.link.peer.HoldTime))
	_, err := s.conn.Write(text)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errSendTimeout
	}
	if err == nil {
		s.link.said(text)
	}
	return err
}

// finish ends the session for the speaker behind.
func (s *session) finish(how ending) parting {
	end := s.report(how)
	s.detach(how, s.close())
	s.kept = s.wire.Offer().Graceful() && (end.By == ByConnection || end.By == ByHoldTimer)
	return s.parting(how)
}

// detach passes the end of a session on to the speaker behind.
func (s *session) detach(how ending, back net.Conn) {
	switch how.by {
	case byLoss, byOthers:
		// The speaker drops UPDATEs that it has read and not processed when the connection ends. A peer that restarts right
		// after sending them would lose paths that must be kept (RFC 4724).
		s.link.behind.Drain(s.link.ctx)
	case byPeer:
		s.await(s.outDone) // the speaker closes when it has read it
	case byUs:
		// A hard reset makes it drop the peer's paths, graceful restart or not (RFC 8538).
		pass(back, (&wire.Notification{Code: wire.Cease, Subcode: wire.HardReset}).Bytes())
		s.await(s.outDone)
	}
	_ = back.Close()
	s.await(s.outDone)
}

// report reports the end of the session to the link, and returns it.
func (s *session) report(how ending) End {
	s.overflow = how.by == byUs && how.reason.Code == wire.Cease && how.reason.Subcode == wire.MaxPrefixesReached
	end := s.end(how)
	s.link.ended(end)
	return end
}

// end describes how the session has ended.
func (s *session) end(how ending) End {
	end := End{At: s.link.relay.now(), Failure: how.by != byOthers}
	if up := s.upSince.Load(); up != 0 {
		end.Since = time.Unix(0, up)
	}
	switch how.by {
	case byLoss:
		end.By, end.Reason, end.Error = ByConnection, lost(s, how.err), how.err.Error()
	case byPeer:
		end.By, end.Received = ByPeer, how.reason.Words()
		end.Reason, end.Failure = ClosedByPeer+end.Received, !how.reason.Collides()
	case byUs:
		end.By, end.Reason, end.Sent = ByUs, how.reason.Error(), how.reason.Words()
	case byOthers:
		end.By, end.Reason = ByUs, "closed by this node without a NOTIFICATION"
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := cmp.Or(s.said, s.verdict); n != nil {
			end.Sent, end.Reason = n.Words(), ClosedHere+n.Error()
		}
		if s.said != nil && s.said.Code == wire.HoldTimerExpired {
			end.By, end.Reason = ByHoldTimer, silent
		}
	}
	return end
}

// parting returns the remaining work towards the peer.
func (s *session) parting(how ending) parting {
	if how.by == byUs {
		return parting{word: how.reason}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return parting{broken: how.by == byLoss, word: s.verdict}
}

// await gives the other direction a moment to end. It may be stuck in a write to a peer that takes nothing.
func (s *session) await(done <-chan struct{}) {
	timer := time.NewTimer(farewell)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		_ = s.conn.SetWriteDeadline(time.Unix(1, 0))
	}
}

// silent is the reason of a session whose hold timer has expired.
const silent = "nothing heard from it for the hold time"

// ClosedHere begins a reason for Failed that this node has.
const ClosedHere = "closed by this node: "

// ClosedByPeer begins a reason for Failed that the peer has given.
const ClosedByPeer = "closed by the peer: "

// closedByUs reports the NOTIFICATION of the speaker behind.
func (s *session) closedByUs(n *wire.Notification) {
	s.mu.Lock()
	s.said = n
	s.mu.Unlock()
	if n.Code == wire.HoldTimerExpired {
		s.link.failed(silent)
		return
	}
	s.link.failed(ClosedHere + n.Words())
}
