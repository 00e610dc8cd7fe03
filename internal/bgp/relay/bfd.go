package relay

import (
	"net/netip"
	"time"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// Loss is a failure of a peer that BFD reports.
type Loss struct {
	// Begun is when BFD came Up, zero if a former process of this node had it Up. Alive is when it was last Up at the
	// peer.
	Begun, Alive time.Time
	// Independent: the peer's BFD survives a restart of its control plane, so its forwarding has failed.
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

// concerns reports whether the loss concerns a session that is up since up, where the previous one ended at over. Else
// a peer that ends BFD with each session would have the next session ended, too, and so on for ever.
func (loss Loss) concerns(up, over time.Time) bool {
	return !loss.Alive.Before(up) || loss.Begun.After(over)
}

// lost ends the session that is up, if the loss concerns it. Unless the peer's BFD is independent, the paths of a peer
// that restarts gracefully are kept (RFC 5882 section 4.3), and used only for want of others: BFD cannot distinguish a
// restart from a failure.
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

// Silent reports whether BFD has lost the peer since its last session came up.
func (l *Link) Silent() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deaf
}

// sever stops the session. With drop the speaker behind drops the peer's paths.
func (s *session) sever(n *wire.Notification, drop bool) {
	s.mu.Lock()
	s.drop = drop && !s.stopped
	s.mu.Unlock()
	s.abort(n)
}
