package relay

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tortie-net/tortie/internal/bgp/tcpao"
)

// Behind is the speaker behind the relay, for one peer.
type Behind interface {
	// Ready returns when the speaker can take a session: it has processed the end of the previous one. It ends with ctx.
	Ready(ctx context.Context) error
	// Attach hands the speaker a session of the peer that is up, with the peer's OPEN. It returns a connection on which
	// OPEN and KEEPALIVE were exchanged. It ends with ctx.
	Attach(ctx context.Context, open []byte) (net.Conn, error)
	// Throttle waits until the speaker can take another UPDATE, which is passed on next. It ends with ctx.
	Throttle(ctx context.Context, update []byte)
	// Drain waits until the speaker has processed the UPDATEs that it has received, for a second at most. It ends with
	// ctx.
	Drain(ctx context.Context)
	// Session is called when a session of the peer comes up, when it has ended, and when Link.Silent changes after that.
	// It must not wait.
	Session(up bool)
	// Failed is called with the reason why the session is not established, or is about to end.
	Failed(reason string)
	// Ended is called when a session has ended, or has failed in its handshake.
	Ended(End)
}

// End is how a session has ended, with the NOTIFICATIONs of both sides.
type End struct {
	At    time.Time
	Since time.Time // when it came up; zero: it did not
	By    string    // one of the constants below
	// Reason is one sentence. Failure means that the end is a failure for which Failed was not called. Replacement by a
	// newer connection is no failure.
	Reason  string
	Failure bool
	// Sent and Received are the NOTIFICATIONs of this end and of the peer, Error is the TCP error; empty: there was none.
	Sent, Received, Error string
}

// Values of End.By.
const (
	ByPeer       = "peer"       // the peer has sent a NOTIFICATION
	ByUs         = "this node"  // this node has sent one, or has closed the connection
	ByHoldTimer  = "hold timer" // the peer was silent
	ByConnection = "connection" // the connection was lost
)

// Config is the common configuration of all sessions.
type Config struct {
	// HoldDown is how long no session is tried with a peer that announces too many prefixes, doubling up to MaxHoldDown.
	HoldDown, MaxHoldDown time.Duration
}

// Peer is the configuration of one session.
type Peer struct {
	// SpeakerASN and RouterID are the speaker's.
	SpeakerASN   uint32
	RouterID     netip.Addr
	Addr, From   netip.Addr // the other end and ours; the zero Addr: whichever the kernel or the peer chooses
	Port         uint16     // of the peer
	ASN          uint32
	Passive      bool
	ConnectRetry time.Duration
	HoldTime     time.Duration
	RestartTime  time.Duration // how long the peer shall keep our paths when the connection is lost
	Keepalive    time.Duration // longest time between our messages to the peer; 0: the speaker behind decides
	Password     string
	AO           tcpao.Keys // initial keys; Link.Become changes them
	MaxPrefixes  int
	// Hops is the most hops to the peer (RFC 5082); 0: any.
	Hops int
	// ClusterID is the cluster ID for reflecting paths to the peer and from it; invalid: we do not.
	ClusterID netip.Addr
	// KeptUntil is until when the peer may keep paths of an earlier process of this node, and the node still forwards for
	// them; zero: it keeps nothing.
	KeptUntil time.Time
}

// linkLocal reports whether both ends of the peer's sessions are link-local addresses.
func (p Peer) linkLocal() bool { return p.Addr.Zone() != "" }

// Relay carries the sessions of one speaker. Its methods may be called from any goroutine.
type Relay struct {
	log     *slog.Logger
	now     func() time.Time
	config  Config
	signing *signatures
	index   *index

	mu        sync.Mutex // guards the rest
	listeners []*listener
	secrets   Secrets
	links     map[netip.Addr]*Link
	unknown   unknownSources

	totals  counts
	refused atomic.Uint64 // connections of strangers

	watching sync.Once
	closed   chan struct{}
}

// New makes a relay that listens nowhere yet.
func New(log *slog.Logger, now func() time.Time, config Config) *Relay {
	return &Relay{log: log, now: now, config: config, signing: &signatures{now: now}, index: newIndex(), links: make(map[netip.Addr]*Link),
		closed: make(chan struct{})}
}

// Listen makes addrs the whole set of addresses that accept connections of peers. Sessions stay. After an error, which
// is a *net.OpError with the address, the set is as before. Link-local addresses, whose zones are indices, are left out
// if they cannot be used, as when another host has them, too; see Listens.
func (r *Relay) Listen(ctx context.Context, addrs []netip.AddrPort) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	stay, gone := r.sorted(addrs)
	// An address and the wildcard exclude each other.
	for _, l := range gone {
		_ = l.Close()
	}
	var fresh []netip.AddrPort
	for _, addr := range addrs {
		if !slices.ContainsFunc(stay, func(l *listener) bool { return l.at == addr }) {
			fresh = append(fresh, addr)
		}
	}
	opened, err := r.open(ctx, fresh)
	if err != nil {
		var before []netip.AddrPort
		for _, l := range gone {
			before = append(before, l.at)
		}
		opened, _ = r.open(ctx, before)
	}
	r.listeners = append(stay, opened...)
	for _, l := range opened {
		go r.accept(l)
	}
	r.watching.Do(func() { go r.watch() })
	return err
}

// Listens reports whether connections to an address are accepted.
func (r *Relay) Listens(addr netip.AddrPort) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.listeners, func(l *listener) bool { return l.at == addr })
}

// sorted divides listeners into wanted and unwanted ones.
func (r *Relay) sorted(addrs []netip.AddrPort) (stay, gone []*listener) {
	for _, l := range r.listeners {
		if slices.Contains(addrs, l.at) {
			stay = append(stay, l)
		} else {
			gone = append(gone, l)
		}
	}
	return stay, gone
}

// open opens listeners, all or none, with the keys of known peers.
func (r *Relay) open(ctx context.Context, addrs []netip.AddrPort) (opened []*listener, err error) {
	for _, addr := range addrs {
		l, err := listen(ctx, addr)
		if err != nil && addr.Addr().Zone() != "" {
			continue
		}
		if err == nil {
			opened = append(opened, l)
			_, err = l.setKeys(r.secrets)
			err = errors.Join(err, l.setTTLFilter(r.minTTL()))
		}
		if err != nil {
			for _, l := range opened {
				_ = l.Close()
			}
			return nil, err
		}
	}
	return opened, nil
}

// watch checks periodically why passive sessions do not come up. A peer that does not connect is no fault by itself,
// but a wrong password shows in the kernel's counters only.
func (r *Relay) watch() {
	ticker := time.NewTicker(passiveCheck)
	defer ticker.Stop()
	for seen := r.signing.read(); ; {
		select {
		case <-r.closed:
			return
		case <-ticker.C:
		}
		refused := r.signing.read()
		for _, l := range r.silent() {
			if refused.of(l.peer) > seen.of(l.peer) {
				l.failed(unsigned(l.peer))
			}
		}
		seen = refused
		r.rollOn()
		r.readMismatches()
	}
}

// silent returns the passive links whose peers do not connect.
func (r *Relay) silent() []*Link {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Collect(maps.Values(r.links)), func(l *Link) bool { return !l.silent() })
}

// Close stops listening, for good. Links go on.
func (r *Relay) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.closed)
	for _, l := range r.listeners {
		_ = l.Close()
	}
	r.listeners = nil
}

// Ping returns when the relay is not stuck.
func (r *Relay) Ping() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.links {
		l.HeldUntil()
	}
}

// Secrets sign connections, by peer. A peer has one of both at most.
type Secrets struct {
	Passwords map[netip.Addr]string // all peers, with an empty password if they have none; nil: no peer has one
	AO        map[netip.Addr]tcpao.Keys
}

// SetSecrets sets how connections to the listeners must be signed. Existing connections keep their secrets. A peer's
// secret must be set before Add. unsigned lists peers whose secret the kernel cannot take: their connections are
// refused.
func (r *Relay) SetSecrets(secrets Secrets) (unsigned map[netip.Addr]error, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.secrets = secrets
	unsigned = map[netip.Addr]error{}
	for _, l := range r.listeners {
		refused, keyErr := l.setKeys(secrets)
		maps.Copy(unsigned, refused)
		err = errors.Join(err, keyErr)
	}
	return unsigned, err
}

// Add begins to keep up the session of a peer. An earlier link to the same address must be retired.
func (r *Relay) Add(p Peer, rules *Rules, behind Behind) *Link {
	return r.add(p, rules, behind, new(Link), false)
}

// Replace changes a peer without disturbing the speaker behind. The connection is closed without a NOTIFICATION, so
// that both sides keep the other's paths (graceful restart).
func (r *Relay) Replace(old *Link, p Peer, rules *Rules, behind Behind) *Link {
	old.Retire()
	next := &Link{counts: old.counts, deaf: old.Silent(), over: r.now()}
	behind.Session(false) // the old session ends later, and its link does not report it
	old.hangUp()
	old.Release()
	p.KeptUntil = old.peer.KeptUntil
	return r.add(p, rules, behind, next, old.spoken.Load())
}

// add is Add for a link that may have some fields of the peer's previous link.
func (r *Relay) add(p Peer, rules *Rules, behind Behind, l *Link, spoken bool) *Link {
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.relay, l.peer, l.behind, l.counts = r, p, behind, cmp.Or(l.counts, new(counts))
	l.spoken.Store(spoken)
	l.rules.Store(rules)
	l.ao.Store(&p.AO)
	r.mu.Lock()
	r.links[p.Addr] = l
	if p.Hops > 0 {
		r.guard()
	}
	r.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.startDialling()
	return l
}

func (r *Relay) forget(l *Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.links[l.peer.Addr] == l {
		delete(r.links, l.peer.Addr)
		if l.peer.Hops > 0 {
			r.guard()
		}
	}
}

// accept takes connections until the listener is closed.
func (r *Relay) accept(l *listener) {
	for {
		conn, err := l.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of file descriptors, mostly
			r.log.Warn("accept BGP connection", "address", l.Addr().String(), "error", err)
			time.Sleep(acceptPause)
			continue
		}
		r.welcome(conn)
	}
}

// acceptPause keeps a lack of file descriptors from becoming a lack of CPU.
const acceptPause = 100 * time.Millisecond

// welcome hands a connection to its peer's link or refuses it. A stranger costs a lookup: it gets no message, and a
// reset leaves no state of its connection in the kernel.
func (r *Relay) welcome(conn *net.TCPConn) {
	from := addrOf(conn.RemoteAddr())
	r.mu.Lock()
	l := r.links[from]
	since := 0
	if l == nil {
		since = r.unknown.seen(r.now())
	}
	r.mu.Unlock()
	if since > 0 {
		r.log.Info("BGP connections from addresses that are no peers are refused", "last", from, "since-last-report", since)
	}
	if l == nil {
		r.refused.Add(1)
		reset(conn)
		return
	}
	if to := addrOf(conn.LocalAddr()); l.peer.From.IsValid() && to != l.peer.From {
		l.behind.Failed("it connected to our address " + to.String() + " but we speak from " + l.peer.From.String())
		reset(conn)
		return
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		err = setHops(raw, l.peer)
	}
	if err != nil {
		l.behind.Failed("TTL security cannot be had: " + err.Error())
		reset(conn)
		return
	}
	// The connection may have come before the peer's keys were installed.
	if err := l.roll(conn, new(tcpao.Rollover)); err != nil {
		l.behind.Failed("its connection is refused: " + err.Error())
		reset(conn)
		return
	}
	go l.incoming(conn)
}

func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}

func addrOf(addr net.Addr) netip.Addr {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap()
}

// unknownSources counts connections from addresses of no peer, for a periodic log line.
type unknownSources struct {
	count int
	said  time.Time
}

// reportPause is the least time between log lines that others could cause at will.
const reportPause = time.Minute

// seen counts one and returns how many to report now, 0 for none.
func (s *unknownSources) seen(now time.Time) int {
	s.count++
	if now.Sub(s.said) < reportPause {
		return 0
	}
	count := s.count
	s.count, s.said = 0, now
	return count
}
