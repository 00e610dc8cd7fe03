package bgp

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// window bounds how many UPDATEs GoBGP has read and not processed. GoBGP queues them without a bound, so that a fast
// peer could fill the memory.
//
// It also collects the prefixes in these UPDATEs: when no UPDATE is open, no other prefix has changed in GoBGP's table.
// GoBGP does not report which message it has processed, and a change of a session's state counts as an UPDATE. So the
// count can reach 0 too early. The report of the remaining UPDATE then comes while none is open, and marks the names as
// lost.
type window struct {
	mu    sync.Mutex // guards the rest
	open  int
	room  chan struct{} // closed when there is room again; nil: nothing waits
	names map[netip.Prefix]bool
	lost  bool // prefixes have changed that are not in names
}

const (
	windowSize = 64
	// windowStall is the time without progress after which open UPDATEs are given up: GoBGP dropped them with their
	// session.
	windowStall = time.Second
	mostNames   = 1 << 14
)

// take waits until fewer than windowSize UPDATEs are open, and counts one more.
func (w *window) take(ctx context.Context) {
	for {
		room := w.try()
		if room == nil {
			return
		}
		timer := time.NewTimer(windowStall)
		select {
		case <-room:
		case <-timer.C:
			w.clear()
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// drain waits until all UPDATEs are processed. After windowStall it gives up the rest, which belongs to other sessions
// and was dropped.
func (w *window) drain(ctx context.Context) {
	if w.rest(ctx, windowStall, windowStall); ctx.Err() == nil && w.busy() != nil {
		w.clear()
	}
}

// rest waits until all UPDATEs are processed, no longer than most, and no longer than stall without progress.
func (w *window) rest(ctx context.Context, most, stall time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for busy := w.busy(); busy != nil; busy = w.busy() {
		select {
		case <-busy:
		case <-time.After(stall):
			return
		case <-ctx.Done():
			return
		}
	}
}

// busy returns a channel that closes on progress, nil if no UPDATE is open.
func (w *window) busy() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == 0 {
		return nil
	}
	return w.wait()
}

// try counts one more UPDATE and returns nil, or returns a channel that closes when there is room.
func (w *window) try() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open < windowSize {
		w.open++
		return nil
	}
	return w.wait()
}

// wait returns the channel that closes at the next progress. The caller holds mu.
func (w *window) wait() <-chan struct{} {
	if w.room == nil {
		w.room = make(chan struct{})
	}
	return w.room
}

// name adds the prefixes of an UPDATE that take has counted.
func (w *window) name(update []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	note := func(p netip.Prefix) bool {
		w.names[p] = true
		return true
	}
	wire.Prune(update, wire.FamilyIn(update), note, func(p netip.Prefix) { note(p) })
	if len(w.names) > mostNames { // the table was not read for long
		w.names, w.lost = make(map[netip.Prefix]bool), true
	}
}

// add adds a prefix that a finished call of GoBGP has changed.
func (w *window) add(p netip.Prefix) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names[p] = true
}

// forget marks names as incomplete.
func (w *window) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = true
}

// changed returns the prefixes that have changed since the last call; not ok: they are unknown or still change.
func (w *window) changed() (names map[netip.Prefix]bool, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ok = w.open == 0 && !w.lost
	if w.open == 0 {
		names, w.names, w.lost = w.names, make(map[netip.Prefix]bool), false
	}
	return names, ok
}

// done counts a processed message, and returns how many UPDATEs are open. Messages other than UPDATEs count, too: with
// them the window is a little wider.
func (w *window) done() (left int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = w.lost || w.open == 0
	return w.free(1)
}

// clear gives up the open UPDATEs.
func (w *window) clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = true
	w.free(windowSize)
}

// free closes n UPDATEs and returns how many are open. The caller holds mu.
func (w *window) free(n int) (left int) {
	w.open = max(0, w.open-n)
	if w.room != nil {
		close(w.room)
		w.room = nil
	}
	return w.open
}
