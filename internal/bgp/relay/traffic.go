package relay

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// Traffic counts messages on a peer's connections since it was configured, and has the time of the next attempt.
type Traffic struct {
	Sessions       uint64 // established ones
	Received, Sent uint64 // messages
	// Flawed counts received messages with errors that did not end the session (RFC 7606): their prefixes count as
	// withdrawn, or attributes are left out.
	Flawed   uint64
	LastFlaw string // the latest error; empty: there was none
	// NextTry is when the next connection is tried, or accepted from a peer that must connect; zero: now, or there is a
	// session.
	NextTry time.Time
}

// Totals counts for all peers, former ones included, since the relay was made.
type Totals struct {
	Received, Sent, Flawed uint64 // messages
	Strangers              uint64 // connections from addresses of no peer
}

// counts are a peer's, and stay when its link is replaced.
type counts struct {
	sessions, received, sent, flawed atomic.Uint64

	flaw atomic.Pointer[string]
}

// heard counts a message of the peer.
func (l *Link) heard() {
	l.counts.received.Add(1)
	l.relay.totals.received.Add(1)
}

// said counts the messages in a text that was sent to the peer.
func (l *Link) said(text []byte) {
	for range wire.Messages(text) {
		l.counts.sent.Add(1)
		l.relay.totals.sent.Add(1)
	}
}

// flawed counts a malformed message.
func (l *Link) flawed(flaw string) {
	l.counts.flawed.Add(1)
	l.relay.totals.flawed.Add(1)
	l.counts.flaw.Store(&flaw)
}

// traffic returns the counts and the time of the next attempt.
func (l *Link) traffic() Traffic {
	c := l.counts
	t := Traffic{Sessions: c.sessions.Load(), Received: c.received.Load(), Sent: c.sent.Load(), Flawed: c.flawed.Load()}
	if flaw := c.flaw.Load(); flaw != nil {
		t.LastFlaw = *flaw
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	next := later(l.next, later(l.hold.until, l.damping.until))
	if l.current == nil && l.relay.now().Before(next) {
		t.NextTry = next
	}
	return t
}

// pause waits before the next connection is tried.
func (l *Link) pause(wait time.Duration) {
	if !l.peer.Passive {
		l.mu.Lock()
		l.next = l.relay.now().Add(wait)
		l.mu.Unlock()
	}
	l.sleep(wait)
}

// Traffic returns the traffic of each peer.
func (r *Relay) Traffic() map[netip.Addr]Traffic {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[netip.Addr]Traffic, len(r.links))
	for addr, l := range r.links {
		all[addr] = l.traffic()
	}
	return all
}

// Told returns the prefixes announced to at least one peer, in ascending order.
func (r *Relay) Told() []netip.Prefix { return r.index.all() }

// Totals returns the totals of all peers.
func (r *Relay) Totals() Totals {
	t := &r.totals
	return Totals{Received: t.received.Load(), Sent: t.sent.Load(), Flawed: t.flawed.Load(), Strangers: r.refused.Load()}
}
