package bgp

import (
	"net/netip"
	"sync"
	"time"
)

// histories remembers what GoBGP does not keep: since when a session is up or down (its own Downtime restarts with each
// attempt to connect) and what went wrong last (it goes to the log only).
type histories struct {
	now func() time.Time

	mu    sync.Mutex // guards the rest
	peers map[netip.Addr]*history
	// dialing counts the sessions that we should open and that are not up.
	dialing int
}

type history struct {
	since   time.Time
	up      bool
	passive bool
	err     string
	// errSince is when err was first noted, without another error or a session in between; errAt is when it was last.
	errSince, errAt time.Time
}

func newHistories(now func() time.Time) *histories {
	return &histories{now: now, peers: make(map[netip.Addr]*history)}
}

// begin starts the history of a session that is being configured.
func (h *histories) begin(addr netip.Addr, passive bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(addr)
	h.peers[addr] = &history{since: h.now(), passive: passive}
	if !passive {
		h.dialing++
	}
}

// end drops the history of a session that is configured no longer.
func (h *histories) end(addr netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(addr)
}

func (h *histories) forget(addr netip.Addr) {
	if old := h.peers[addr]; old != nil && !old.passive && !old.up {
		h.dialing--
	}
	delete(h.peers, addr)
}

// state notes whether a session is established and reports whether that is news. Sessions without a history are ignored:
// GoBGP reports the end of a session after its removal.
func (h *histories) state(addr netip.Addr, up bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.peers[addr]
	if p == nil || p.up == up {
		return false
	}
	p.up, p.since = up, h.now()
	if !p.passive {
		if up {
			h.dialing--
		} else {
			h.dialing++
		}
	}
	return true
}

// failed notes why a session is not established.
func (h *histories) failed(addr netip.Addr, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.peers[addr]; p != nil {
		p.note(reason, h.now())
	}
}

// note remembers a failure.
func (p *history) note(reason string, now time.Time) {
	if p.err != reason || p.errSince.Before(p.since) {
		p.err, p.errSince = reason, now
	}
	p.errAt = now
}

// guessed notes why a handshake seems to have failed, unless the cause itself has just been noted.
func (h *histories) guessed(addr netip.Addr, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.peers[addr]; p != nil && h.now().Sub(p.errAt) > time.Second {
		p.note(reason, h.now())
	}
}

// get returns a copy; the zero history if there is none.
func (h *histories) get(addr netip.Addr) history {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.peers[addr]; p != nil {
		return *p
	}
	return history{}
}

// anyDialing reports whether a session that we should open is not up.
func (h *histories) anyDialing() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dialing > 0
}
