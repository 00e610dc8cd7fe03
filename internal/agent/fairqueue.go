package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/app/wait"
)

const (
	// mostQueued bounds the waiting items of one source.
	mostQueued = 64
	// refusalsInARow is how many reads for one source may be refused in a row before it has to wait: minWait at first,
	// twice as long with each further one, up to mostWait.
	refusalsInARow    = 8
	minWait, mostWait = time.Second, 16 * time.Second
)

// fairQueue has items to read for many sources: one item of each source in turn, so that a source with many items does
// not delay others, and of a source that is refused again and again one item a second or less.
type fairQueue[T comparable] struct {
	sources map[string]*source[T]
	order   []string // sources with waiting items; the first is next
}

type source[T comparable] struct {
	waiting []T
	refused int       // in a row
	until   time.Time // no item of it is read before
	failed  wait.Backoff
}

// add queues an item for a source, unless it is queued already or the source has too many.
func (r *fairQueue[T]) add(from string, item T) {
	if r.sources == nil {
		r.sources = map[string]*source[T]{}
	}
	s := r.sources[from]
	if s == nil {
		s = &source[T]{failed: wait.Backoff{First: minWait, Most: mostWait}}
		r.sources[from] = s
	}
	if len(s.waiting) >= mostQueued || slices.Contains(s.waiting, item) {
		return
	}
	if len(s.waiting) == 0 {
		r.order = append(r.order, from)
	}
	s.waiting = append(s.waiting, item)
}

// take returns the next item to read and its source. ok is false if there is none now; then wait is until when: a
// pause, or 0 for until an item is added.
func (r *fairQueue[T]) take(now time.Time) (from string, item T, wait time.Duration, ok bool) {
	for i, name := range r.order {
		s := r.sources[name]
		if left := s.until.Sub(now); left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
			continue
		}
		item, s.waiting = s.waiting[0], s.waiting[1:]
		r.order = slices.Delete(r.order, i, i+1)
		if len(s.waiting) > 0 {
			r.order = append(r.order, name)
		}
		return name, item, 0, true
	}
	return "", item, wait, false
}

// judge records whether the object read for a source confirmed its claim.
func (r *fairQueue[T]) judge(now time.Time, from string, good bool) {
	s := r.sources[from]
	switch {
	case s == nil:
	case good:
		s.refused, s.until = 0, time.Time{}
		s.failed.Reset()
	default:
		if s.refused++; s.refused >= refusalsInARow {
			s.until = now.Add(min(minWait<<min(s.refused-refusalsInARow, 10), mostWait))
		}
	}
}

// fail queues an item again that could not be read, after a pause that grows with each failure.
func (r *fairQueue[T]) fail(now time.Time, from string, item T) {
	r.add(from, item)
	s := r.sources[from]
	s.until = now.Add(s.failed.Next())
}

// forget drops sources without items that need not wait.
func (r *fairQueue[T]) forget(now time.Time) {
	for name, s := range r.sources {
		if len(s.waiting) == 0 && s.until.Add(mostWait).Before(now) {
			delete(r.sources, name)
		}
	}
}

// serve reads the items of the queue, which mu guards, until ctx ends: one after the other, with a pause after each.
// work wakes it.
func (r *fairQueue[T]) serve(ctx context.Context, mu sync.Locker, work <-chan struct{}, pause time.Duration,
	read func(from string, item T)) error {
	for ctx.Err() == nil {
		mu.Lock()
		from, item, later, ok := r.take(time.Now())
		mu.Unlock()
		if !ok {
			await(ctx, work, later)
			continue
		}
		read(from, item)
		wait.Sleep(ctx, pause)
	}
	return nil
}

// await returns on work, after wait unless that is 0, or when ctx ends.
func await(ctx context.Context, work <-chan struct{}, wait time.Duration) {
	var later <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		later = timer.C
	}
	select {
	case <-ctx.Done():
	case <-work:
	case <-later:
	}
}
