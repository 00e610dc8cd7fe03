package bgp

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// window bounds how many UPDATEs GoBGP has taken and not worked in. It reads and queues them without a bound, so that a
// peer that sends faster than they are worked in could fill the memory.
//
// It has the names of the prefixes in them, too: when none is open, nothing else has changed in GoBGP's table. GoBGP
// does not say what it has worked in. A change of a session's state is taken for an UPDATE, and when all are thought to
// be worked in one of them may not be: it is said to be afterwards, when none is open, and then the names are lost.
type window struct {
	mu    sync.Mutex // guards the rest
	open  int
	room  chan struct{} // closed when there is room again; nil: no waiter
	names map[netip.Prefix]bool
	lost  bool // something has changed that has no name
}

const (
	windowSize = 64
	// windowStall is when those that are waited for are given up: they were dropped with their session.
	windowStall = time.Second
	mostNames   = 1 << 14
)

// take waits for room and takes it.
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

// drain waits until all UPDATEs were worked in. Those of other sessions that were dropped are given up after
// windowStall.
func (w *window) drain(ctx context.Context) {
	if w.rest(ctx, windowStall, windowStall); ctx.Err() == nil && w.busy() != nil {
		w.clear()
	}
}

// rest waits until all UPDATEs were worked in, no longer than most, nor than stall while none is.
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

// busy returns what to wait for while UPDATEs are to be worked in, nil if there are none.
func (w *window) busy() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == 0 {
		return nil
	}
	return w.wait()
}

// try takes room, or returns what to wait for.
func (w *window) try() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open < windowSize {
		w.open++
		return nil
	}
	return w.wait()
}

// wait returns what is closed when there is more room. The caller holds mu.
func (w *window) wait() <-chan struct{} {
	if w.room == nil {
		w.room = make(chan struct{})
	}
	return w.room
}

// name notes which prefixes an UPDATE changes that was taken.
func (w *window) name(update []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	note := func(p netip.Prefix) bool {
		w.names[p] = true
		return true
	}
	wire.Prune(update, wire.FamilyIn(update), note, func(p netip.Prefix) { note(p) })
	if len(w.names) > mostNames { // nobody has looked for long
		w.names, w.lost = make(map[netip.Prefix]bool), true
	}
}

// add notes a prefix that changes by a call of GoBGP, which has returned.
func (w *window) add(p netip.Prefix) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.names[p] = true
}

// forget says that something has changed that has no name.
func (w *window) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = true
}

// changed returns the prefixes that have changed since it was called last; not ok: they are not known, or still change.
func (w *window) changed() (names map[netip.Prefix]bool, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	ok = w.open == 0 && !w.lost
	if w.open == 0 {
		names, w.names, w.lost = w.names, make(map[netip.Prefix]bool), false
	}
	return names, ok
}

// done says that a message was worked in, and returns how many UPDATEs are left. Not every message is one: with others
// the window is a little wider.
func (w *window) done() (left int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = w.lost || w.open == 0
	return w.free(1)
}

// clear gives up those that are open.
func (w *window) clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = true
	w.free(windowSize)
}

// free returns how many are left. The caller holds mu.
func (w *window) free(n int) (left int) {
	w.open = max(0, w.open-n)
	if w.room != nil {
		close(w.room)
		w.room = nil
	}
	return w.open
}
