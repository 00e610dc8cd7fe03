package bgp

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/bgp/relay"
)

// Bounds of Ends. A peer that is no longer configured is forgotten goneAge after its last end.
const (
	MostEnds     = 20 // of one peer
	mostEndsEver = 2000
	mostEndText  = 512
	goneAge      = 7 * 24 * time.Hour
)

// endsVersion is the version of the text of Ends. Recall rejects other versions.
const endsVersion = 1

// byRestart is the By of a session whose end is not in the recalled text: the process ended before.
const byRestart = "agent"

// End is how a session has ended, or why it did not come up.
type End struct {
	At    time.Time `json:"at"`
	Since time.Time `json:"since,omitzero"` // when it came up; zero: it did not
	// Times is how often the session failed to come up for this reason since the last session, beginning at First; 0: it
	// was up.
	Times int       `json:"times,omitempty"`
	First time.Time `json:"first,omitzero"`
	// By is the cause of the end: one of the relay's constants, or "agent" for the end of this node's agent; empty: there
	// was no connection.
	By     string `json:"by,omitempty"`
	Reason string `json:"reason"`
	// Sent and Received are the NOTIFICATIONs of this end and of the peer, Error is TCP's; empty: none.
	Sent     string `json:"sent,omitempty"`
	Received string `json:"received,omitempty"`
	Error    string `json:"error,omitempty"`
}

// alike reports whether two sessions did not come up for one reason.
func (e End) alike(o End) bool {
	e.At, e.Times, e.First = o.At, o.Times, o.First
	return e == o && e.Since.IsZero()
}

// cut bounds the texts of an end and drops invalid UTF-8: parts of them are the peer's.
func (e *End) cut() {
	for _, text := range []*string{&e.By, &e.Reason, &e.Sent, &e.Received, &e.Error} {
		*text = strings.ToValidUTF8((*text)[:min(len(*text), mostEndText)], "")
	}
}

// Ends keeps how the last sessions of each peer have ended, across processes if Text is stored. It is safe for
// concurrent use.
type Ends struct {
	now     func() time.Time
	changed chan struct{}

	mu    sync.Mutex // guards the rest
	peers map[netip.Addr]*past
}

// past is the record of a peer; its exported fields are stored in the text.
type past struct {
	Up   time.Time `json:"up,omitzero"` // when its session came up; zero: it is not up
	Ends []End     `json:"ends"`        // the latest last
	history
}

// history is the record of a peer since it was configured; the zero value: it is not configured.
type history struct {
	since time.Time // when the session was established, lost, or configured
	// err is why the session is not established, class its kind, see PeerStatus.Failure. errSince is when err first
	// occurred without another error or a session in between, errAt when it last occurred.
	err, class      string
	errSince, errAt time.Time
	// toldAt is when a failure was last reported as news.
	toldAt time.Time
	// lastWord is the peer's reason for ending the last session, lastClass its class. Later errors, such as refused
	// connections, explain less.
	lastWord, lastClass string
}

// tellPause is the shortest time between two reported failures of one peer. A peer can fail in ever new ways as often
// as it likes; its status has the last failure anyway.
const tellPause = 5 * time.Second

func (p *past) last() time.Time {
	last := p.Up
	for _, e := range p.Ends {
		last = later(last, e.At)
	}
	return last
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// endsText is the stored form of Ends.
type endsText struct {
	Version int                  `json:"version"`
	Peers   map[netip.Addr]*past `json:"peers"`
}

// NewEnds returns an empty record.
func NewEnds(now func() time.Time) *Ends {
	return &Ends{now: now, changed: make(chan struct{}, 1), peers: map[netip.Addr]*past{}}
}

// Changed wakes its one reader when there is something new to store, except for repeated failures.
func (e *Ends) Changed() <-chan struct{} { return e.changed }

// Of returns the ends of the last sessions with a peer, the latest first.
func (e *Ends) Of(peer netip.Addr) []End {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.peers[peer]
	if p == nil {
		return nil
	}
	all := slices.Clone(p.Ends)
	slices.Reverse(all)
	return all
}

// Text returns the record as JSON, for Recall of a later process.
func (e *Ends) Text() ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bound()
	return json.Marshal(endsText{endsVersion, e.peers})
}

// Recall adds an earlier process's Text. A session that was up has ended with that process. Recall must be called
// before Start.
func (e *Ends) Recall(text []byte) error {
	var read endsText
	if err := json.Unmarshal(text, &read); err != nil {
		return err
	}
	if read.Version != endsVersion {
		return fmt.Errorf("version %d, want %d", read.Version, endsVersion)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for addr, p := range read.Peers {
		if p == nil || e.peers[addr] != nil {
			continue
		}
		for i := range p.Ends {
			p.Ends[i].cut()
		}
		e.peers[addr] = p
		if !p.Up.IsZero() {
			p.add(End{At: e.now(), Since: p.Up, By: byRestart,
				Reason: "this node's agent has ended, or the node; the time is when the next agent has started"})
			p.Up = time.Time{}
		}
	}
	e.bound()
	return nil
}

// bound drops excess and old records. The mutex is held.
func (e *Ends) bound() {
	var all []time.Time
	for addr, p := range e.peers {
		if p.since.IsZero() && e.now().Sub(p.last()) > goneAge {
			delete(e.peers, addr)
			continue
		}
		p.Ends = p.Ends[max(0, len(p.Ends)-MostEnds):]
		for _, end := range p.Ends {
			all = append(all, end.At)
		}
	}
	if len(all) <= mostEndsEver {
		return
	}
	slices.SortFunc(all, time.Time.Compare)
	oldest := all[len(all)-mostEndsEver]
	for _, p := range e.peers {
		p.Ends = slices.DeleteFunc(p.Ends, func(end End) bool { return end.At.Before(oldest) })
	}
}

// begin starts the history of a newly configured peer.
func (e *Ends) begin(peer netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.of(peer).history = history{since: e.now()}
}

// end drops the history of a peer that is no longer configured and has no session.
func (e *Ends) end(peer netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.of(peer)
	p.Up, p.history = time.Time{}, history{}
	wait.Signal(e.changed)
}

// of returns the record of a peer, which it creates if there is none. The mutex is held.
func (e *Ends) of(peer netip.Addr) *past {
	p := e.peers[peer]
	if p == nil {
		p = new(past)
		e.peers[peer] = p
	}
	return p
}

// get returns the history of a peer, and whether its session is up; zero values without a record.
func (e *Ends) get(peer netip.Addr) (now history, up bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.peers[peer]; p != nil {
		return p.history, !p.Up.IsZero()
	}
	return history{}, false
}

// state records whether the session of a configured peer is established.
func (e *Ends) state(peer netip.Addr, up bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.of(peer)
	if p.since.IsZero() || p.Up.IsZero() != up {
		return
	}
	p.Up, p.since = time.Time{}, e.now()
	if up {
		p.Up, p.lastWord, p.lastClass = p.since, "", ""
	}
	wait.Signal(e.changed)
}

// ended records how a session has ended, and reports whether to log it.
func (e *Ends) ended(peer netip.Addr, end relay.End) (news bool) {
	class := classOf(end.Reason)
	if end.By == relay.ByUs && end.Sent != "" {
		class = classOf(relay.ClosedHere + end.Sent)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.add(peer, End{At: end.At, Since: end.Since, By: end.By, Reason: end.Reason, Sent: end.Sent, Received: end.Received, Error: end.Error})
	return end.Failure && e.of(peer).failed(e.now(), end.Reason, class)
}

// failed records why the session of a configured peer is not established, or is about to end, and reports whether to
// log it.
func (e *Ends) failed(peer netip.Addr, reason string) (news bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.of(peer)
	if p.Up.IsZero() {
		e.add(peer, End{At: e.now(), Reason: reason})
	}
	return p.failed(e.now(), reason, classOf(reason))
}

// failed records why the session is not established. It reports whether the reason is new and tellPause has passed
// since the last report.
func (h *history) failed(now time.Time, reason, class string) bool {
	if h.since.IsZero() {
		return false
	}
	switch clear := !h.errSince.Before(h.since) && !relay.Vague(h.err); {
	case reason == relay.NotBack && clear:
		return true // the current error explains more
	case strings.HasPrefix(reason, relay.Neither) && clear && !strings.HasPrefix(h.err, relay.Neither):
		return false // the peer has tried to connect, so that it accepts no connection is not the reason
	}
	if strings.HasPrefix(reason, relay.ClosedByPeer) {
		h.lastWord, h.lastClass = reason, class
	} else if h.lastWord != "" {
		reason += "; before that, " + h.lastWord
		class += "; before that, " + h.lastClass
	}
	h.class, h.errAt = class, now
	if h.err == reason && !h.errSince.Before(h.since) {
		return false
	}
	h.err, h.errSince = reason, now
	if now.Sub(h.toldAt) < tellPause {
		return false
	}
	h.toldAt = now
	return true
}

// noSession begins the reason why a session is not tried.
const noSession = "no session: "

// classOf returns a reason without the peer's text and without details: one of few texts, whatever the peer does.
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

// add records an end. The mutex is held.
func (e *Ends) add(peer netip.Addr, end End) {
	end.cut()
	if e.of(peer).add(end) {
		wait.Signal(e.changed)
	}
}

// add records an end and reports whether its kind is new since the last session that was up.
func (p *past) add(end End) (fresh bool) {
	fresh = true
	if end.Since.IsZero() {
		end.Times, end.First = 1, end.At
		for i := len(p.Ends) - 1; i >= 0 && p.Ends[i].Since.IsZero(); i-- {
			if same := p.Ends[i]; same.alike(end) {
				end.Times, end.First, fresh = same.Times+1, same.First, false
				p.Ends = slices.Delete(p.Ends, i, i+1)
				break
			}
		}
	}
	p.Ends = append(p.Ends, end)
	p.Ends = slices.Delete(p.Ends, 0, max(0, len(p.Ends)-MostEnds))
	return fresh
}
