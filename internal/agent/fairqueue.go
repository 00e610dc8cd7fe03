package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tortie-net/tortie/internal/app/wait"
)

const (
	// mostQueued is how much of one source waits at a time.
	mostQueued = 64
	// refusals in a row are how many readings for one source may be in vain before it has to wait: for minWait, twice as
	// long with each one more, up to mostWait.
	refusalsInARow    = 8
	minWait, mostWait = time.Second, 16 * time.Second
)

// fairQueue has what is to be read for many sources: one thing of each in turn, so that a source that asks for much
// does not keep others waiting, and of a source that is refused again and again one a second or less.
type fairQueue[T comparable] struct {
	sources map[string]*source[T]
	order   []string // of those that have something waiting; the first is next
}

type source[T comparable] struct {
	waiting []T
	refused int       // in a row
	until   time.Time // nothing of it is read before
}

// add has something read for a source, unless it waits already or too much does.
func (r *fairQueue[T]) add(from string, item T) {
	if r.sources == nil {
		r.sources = map[string]*source[T]{}
	}
	s := r.sources[from]
	if s == nil {
		s = &source[T]{}
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

// take returns what is to be read next, and for whom; ok is false if there is nothing now, and wait how long that is
// so, 0 for as long as nothing is added.
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

// judge notes whether what was read for a source was as it said.
func (r *fairQueue[T]) judge(now time.Time, from string, good bool) {
	s := r.sources[from]
	switch {
	case s == nil:
	case good:
		s.refused, s.until = 0, time.Time{}
	default:
		if s.refused++; s.refused >= refusalsInARow {
			s.until = now.Add(min(minWait<<min(s.refused-refusalsInARow, 10), mostWait))
		}
	}
}

// forget drops sources that ask for nothing any more and need not wait.
func (r *fairQueue[T]) forget(now time.Time) {
	for name, s := range r.sources {
		if len(s.waiting) == 0 && s.until.Add(mostWait).Before(now) {
			delete(r.sources, name)
		}
	}
}

// serve has read what is in the queue, which mu guards, until ctx ends: one after the other, with a pause after each.
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

// await returns when there is work, after a wait unless that is 0, or when ctx ends.
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
