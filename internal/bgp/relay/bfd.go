package relay

import (
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// Loss is what BFD tells of a peer that it has lost.
type Loss struct {
	// Begun is when BFD came Up, zero if a former process of this node had it Up; Alive is when it was last Up at the
	// peer.
	Begun, Alive time.Time
	// Independent: the peer's BFD survives a restart of its control plane, so that its forwarding has failed.
	Independent bool
	Reason      string
}

// Lost ends the session with a peer that BFD has lost, with the NOTIFICATION of RFC 9384.
func (r *Relay) Lost(peer netip.Addr, loss Loss) {
	r.mu.Lock()
	l := r.links[peer]
	r.mu.Unlock()
	if l != nil {
		l.lost(loss)
	}
}

// concerns reports whether the loss is one of a session that is up since a time, where the one before ended at over. Of
// a peer that ends BFD with each session it is not: the next one would be ended, too, and so for ever.
func (loss Loss) concerns(up, over time.Time) bool {
	return !loss.Alive.Before(up) || loss.Begun.After(over)
}

// lost ends the session that is up, if the loss is one of it. What a peer has announced that restarts gracefully is
// kept (RFC 5882 section 4.3) but for want of other paths only: it cannot be told whether the peer restarts or has
// failed.
func (l *Link) lost(loss Loss) {
	l.mu.Lock()
	s := l.current
	up := s != nil && s.upSince.Load() != 0
	if l.retired || up && !loss.concerns(time.Unix(0, s.upSince.Load()), l.over) {
		l.mu.Unlock()
		return
	}
	l.deaf = true
	l.mu.Unlock()
	if !up {
		l.behind.Session(false)
		return
	}
	l.failed(loss.Reason)
	s.sever(&wire.Notification{Code: wire.Cease, Subcode: wire.BFDDown, Reason: loss.Reason}, loss.Independent)
}

// Silent reports whether BFD has lost the peer since it had a session that was up.
func (l *Link) Silent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deaf
}

// sever stops the session. With drop the speaker behind is told to keep nothing.
func (s *session) sever(n *wire.Notification, drop bool) {
	s.mu.Lock()
	s.drop = drop && !s.stopped
	s.mu.Unlock()
	s.abort(n)
}
