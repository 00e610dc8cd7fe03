package bgp

import (
	"context"
	"sync"
	"time"
)

// window bounds how many UPDATEs GoBGP has taken and not worked in. It reads and queues them without a bound, so that a
// peer that sends faster than they are worked in could fill the memory.
type window struct {
	mu   sync.Mutex // guards the rest
	open int
	room chan struct{} // closed when there is room again; nil: no waiter
}

const (
	windowSize = 64
	// windowStall is when those that are waited for are given up: they were dropped with their session.
	windowStall = time.Second
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
	stalled := time.NewTimer(windowStall)
	defer stalled.Stop()
	for busy := w.busy(); busy != nil; busy = w.busy() {
		select {
		case <-busy:
		case <-stalled.C:
			w.clear()
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

// done says that a message was worked in, and returns how many UPDATEs are left. Not every message is one: with others
// the window is a little wider.
func (w *window) done() (left int) { return w.free(1) }

func (w *window) clear() { w.free(windowSize) }

// free returns how many are left.
func (w *window) free(n int) (left int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = max(0, w.open-n)
	if w.room != nil {
		close(w.room)
		w.room = nil
	}
	return w.open
}
