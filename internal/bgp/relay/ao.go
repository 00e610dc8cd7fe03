package relay

import (
	"errors"
	"net"
	"net/netip"
	"sync"

	"github.com/tortie-net/tortie/internal/bgp/tcpao"
	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// Become changes the link's keys of TCP-AO to those of p, and reports whether it did: p must otherwise equal the link's
// peer, except for KeptUntil, and the keys must allow a rollover. The session changes keys without ending; later ones
// begin with them.
func (l *Link) Become(p Peer) bool {
	keys := *l.ao.Load()
	was := l.peer
	was.AO, p.KeptUntil = p.AO, was.KeptUntil
	switch {
	case was != p:
		return false
	case keys == p.AO:
		return true
	case !keys.Rolls(p.AO):
		return false
	}
	l.ao.Store(&p.AO)
	if s := l.session(); s != nil {
		s.roll()
		// The segment of the KEEPALIVE requests the first key (RNextKeyID), and the peer acknowledges it with a segment.
		go func() { _ = s.tell(wire.NewKeepalive()) }()
	}
	return true
}

// rolling is a session's rollover from keys of TCP-AO to others.
type rolling struct {
	mu   sync.Mutex // guards the rest, and the order of changes of the connection
	keys tcpao.Rollover
	used string // removed keys that the peer goes on using
}

// roll changes the keys of a connection to the link's. Without TCP-AO on the connection that is an error.
func (l *Link) roll(conn *net.TCPConn, state *tcpao.Rollover) error {
	keys := *l.ao.Load()
	if keys == "" {
		return nil
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		err = state.Roll(raw, l.peer.Addr, keys, l.relay.now())
	}
	return err
}

// roll is Link.roll for the session. It ends the session on an error.
func (s *session) roll() {
	l, r := s.link, &s.rolling
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := l.roll(s.conn, &r.keys); err != nil {
		if !errors.Is(err, net.ErrClosed) {
			l.failed("TCP-AO keys cannot be changed: " + err.Error())
			s.abort(nil)
		}
		return
	}
	used := r.keys.Used(l.relay.now())
	if used != "" && r.used == "" {
		l.relay.log.Warn("BGP peer uses removed TCP-AO keys: give it the new ones", "peer", l.peer.Addr, "keys", used)
	}
	r.used = used
}

// rollOn removes keys of TCP-AO that peers used for a while after their removal.
func (r *Relay) rollOn() {
	r.mu.Lock()
	var signed []*Link
	for _, l := range r.links {
		if *l.ao.Load() != "" {
			signed = append(signed, l)
		}
	}
	r.mu.Unlock()
	for _, l := range signed {
		if s := l.session(); s != nil {
			s.roll()
		}
	}
}

// readMismatches reads the listeners' counts of refused segments.
func (r *Relay) readMismatches() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.listeners {
		if raw, err := l.SyscallConn(); err == nil && len(l.ao) > 0 {
			l.mismatches.Read(raw, r.now())
		}
	}
}

// mismatched names the keys of TCP-AO with whose ID a peer sends segments that another key signs.
func (r *Relay) mismatched(peer netip.Addr) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.listeners {
		if _, ok := l.ao[peer]; !ok {
			continue
		}
		if keys := l.mismatches.Of(peer, r.now()); keys != "" {
			return keys
		}
	}
	return ""
}
