package bgp

import (
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/bgp/relay"
)

// histories remembers what GoBGP does not keep: since when a session is up or down and what went wrong last.
type histories struct {
	now func() time.Time

	mu    sync.Mutex // guards the rest
	peers map[netip.Addr]*history
}

type history struct {
	since time.Time
	up    bool
	err   string
	// errSince is when err was first noted, without another error or a session in between; errAt is when it was last.
	errSince, errAt time.Time
	// toldAt is when a failure was last worth telling.
	toldAt time.Time
	// lastWord is why the peer ended the last session. Later errors, such as refused connections, explain less.
	lastWord string
	// class is that of err, lastClass that of lastWord.
	class, lastClass string
}

// tellPause is between two failures of one peer that are told. A peer can fail in ever new ways as often as it likes;
// what happened last is in its status anyway.
const tellPause = 5 * time.Second

func newHistories(now func() time.Time) *histories {
	return &histories{now: now, peers: make(map[netip.Addr]*history)}
}

// begin starts the history of a session that is being configured.
func (h *histories) begin(addr netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.peers[addr] = &history{since: h.now()}
}

// end drops the history of a session that is configured no longer.
func (h *histories) end(addr netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.peers, addr)
}

// state notes whether a session is established.
func (h *histories) state(addr netip.Addr, up bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.peers[addr]
	if p == nil || p.up == up {
		return
	}
	p.up, p.since = up, h.now()
	if up {
		p.lastWord, p.lastClass = "", ""
	}
}

// failed notes why a session is not established and reports whether that is a change, and not the next one within
// moments.
func (h *histories) failed(addr netip.Addr, reason string) bool {
	return h.failedAs(addr, reason, classOf(reason))
}

// failedAs is failed with a class of the failure, see PeerStatus.Failure.
func (h *histories) failedAs(addr netip.Addr, reason, class string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.peers[addr]
	if p == nil {
		return false
	}
	switch clear := !p.errSince.Before(p.since) && !relay.Vague(p.err); {
	case reason == relay.NotBack && clear:
		return true // what was found since says more
	case strings.HasPrefix(reason, relay.Neither) && clear && !strings.HasPrefix(p.err, relay.Neither):
		return false // the peer has tried: that it would take no connection is no reason
	}
	if strings.HasPrefix(reason, relay.ClosedByPeer) {
		p.lastWord, p.lastClass = reason, class
	} else if p.lastWord != "" {
		reason += "; before that, " + p.lastWord
		class += "; before that, " + p.lastClass
	}
	p.class = class
	now := h.now()
	p.errAt = now
	if p.err == reason && !p.errSince.Before(p.since) {
		return false
	}
	p.err, p.errSince = reason, now
	if now.Sub(p.toldAt) < tellPause {
		return false
	}
	p.toldAt = now
	return true
}

// noSession is how the reason begins for which a session is not tried.
const noSession = "no session: "

// classOf is a reason without what the peer has said and without details: one of few texts, whatever the peer does.
func classOf(reason string) string {
	if strings.HasPrefix(reason, noSession) {
		return reason // it is about this node
	}
	for _, by := range []string{relay.ClosedByPeer, relay.ClosedHere} {
		if words, ok := strings.CutPrefix(reason, by); ok {
			names, _, _ := strings.Cut(words, ": ")
			if strings.ContainsAny(names, "0123456789") {
				names = "an error without a name"
			}
			return by + names
		}
	}
	class, _, _ := strings.Cut(reason, ": ")
	return class
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
