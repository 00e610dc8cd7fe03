package events

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/app/wait"
	"github.com/tortie-net/tortie/internal/datastore"
)

const (
	// repeat is the least time between two writes of the same text about the same object.
	repeat = 10 * time.Minute
	// mostTexts is how many warnings about one object, for one reason, may follow one another. After these there is one
	// for each newText: alternating texts must not take the writes of all others.
	mostTexts = 8
	newText   = 2 * spare
	// retry is the pause after a failed write, if the report is repeated or is a one-time report.
	retry = 30 * time.Second
	// newsTime is how long a one-time report waits for the API server.
	newsTime = 24 * time.Hour
	// writeTime bounds one write.
	writeTime = 5 * time.Second
	// maxWaiting bounds the waiting writes, maxKnown the remembered reports.
	maxWaiting = 64
	maxKnown   = 512
	// burst is how many writes may follow one another. After these there is one for each spare: texts that change all the
	// time on all nodes of a large cluster must not load the API server.
	burst = 20
	spare = time.Minute
)

// Store has the requests that a Recorder makes to the API server; datastore/kubernetes implements it.
type Store interface {
	// Create creates an Event; datastore.ErrExists if its name exists.
	Create(ctx context.Context, obj api.Resource) error
	// MergePatch changes an Event and reads it; datastore.ErrNotFound if there is none: Events expire after an hour.
	MergePatch(ctx context.Context, obj api.Resource, patch any) error
}

// Recorder writes reports as Events, each text at most every 10 minutes, with a growing count. It is safe for
// concurrent use, and nil is a Recorder that drops everything.
type Recorder struct {
	store  Store
	source Source
	group  *groups.Current // of the Calico objects that Events are about
	log    *slog.Logger
	now    func() time.Time

	mu      sync.Mutex // guards the rest
	known   map[key]*entry
	waiting []key
	limit   *rate.Limiter
	written uint64
	dropped uint64

	wake chan struct{}
}

// key identifies an Event; a new text replaces the old one.
type key struct {
	about  api.ObjectReference
	reason string
}

// entry is the state of one key.
type entry struct {
	message     string
	normal      bool // not a warning
	once        bool // a one-time report, which is not repeated
	common      bool // other recorders report it, too
	first, last time.Time
	own         bool // this recorder has written the Event with message
	total       int  // the Event's count
	unsaid      int  // reports since the last write
	next        time.Time
	queued      bool
	turns       *rate.Limiter // of the key, for all texts
}

// New returns a Recorder that writes nothing until Run. group is the group in references to Calico's objects; nil is
// groups.V1.
func New(store Store, source Source, group *groups.Current, log *slog.Logger) *Recorder {
	return newRecorder(store, source, group, log, time.Now)
}

func newRecorder(store Store, source Source, group *groups.Current, log *slog.Logger, now func() time.Time) *Recorder {
	return &Recorder{
		store: store, source: source, group: group, log: log, now: now,
		known: map[key]*entry{}, limit: rate.NewLimiter(rate.Every(spare), burst), wake: make(chan struct{}, 1),
	}
}

// Warn reports a problem of an object that needs an operator. It returns at once. A report that cannot be written now
// is dropped and counted; the caller repeats it for as long as the problem lasts.
func (r *Recorder) Warn(about api.ObjectReference, reason, message string) {
	r.say(about, reason, &entry{message: message})
}

// WarnCommon is Warn for a problem that every reader of the object finds, even on a thousand nodes. There is one Event,
// from the first agent that writes it. When that agent is gone and the Event has expired, another agent creates it
// again.
func (r *Recorder) WarnCommon(about api.ObjectReference, reason, message string) {
	r.say(about, reason, &entry{message: message, common: true})
}

// WarnOfPast reports a past problem, once. If it cannot be written now it waits for the API server, unless a new text
// of the same reason replaces it.
func (r *Recorder) WarnOfPast(about api.ObjectReference, reason, message string) {
	r.say(about, reason, &entry{message: message, once: true})
}

// Unwritten reports whether a one-time report still waits.
func (r *Recorder) Unwritten(about api.ObjectReference, reason string) bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.known[key{about, reason}]
	return e != nil && e.once && e.unsaid > 0
}

// Note is WarnOfPast for a change that may interest an operator.
func (r *Recorder) Note(about api.ObjectReference, reason, message string) {
	r.say(about, reason, &entry{message: message, once: true, normal: true})
}

// WarnOnce writes, before it returns, a warning that exists once for an object in the cluster: an existing one of
// another agent stays. It is not limited: the caller limits its calls, and repeats failed ones.
func (r *Recorder) WarnOnce(ctx context.Context, about api.ObjectReference, reason, message string) error {
	if r == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	now := r.now()
	err := r.store.Create(ctx, r.build(key{about, reason}, message, true, now, now, 1))
	if errors.Is(err, datastore.ErrExists) {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.dropped++
		return err
	}
	r.written++
	return nil
}

// say adds a report, to the entry with the same text if there is one.
func (r *Recorder) say(about api.ObjectReference, reason string, fresh *entry) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	k := key{about, reason}
	e := r.known[k]
	if e == nil || e.message != fresh.message {
		fresh.first = now
		if e != nil {
			fresh.queued, fresh.turns = e.queued, e.turns
		} else {
			fresh.turns = rate.NewLimiter(rate.Every(newText), mostTexts)
		}
		e = fresh
		r.remember(k, e)
	}
	e.last = now
	e.unsaid++
	r.queue(k, e)
}

// queue lets an entry wait for its write, unless that is not due or a limit forbids it.
func (r *Recorder) queue(k key, e *entry) {
	now := r.now()
	if e.queued || now.Before(e.next) || !e.normal && !e.turns.AllowN(now, 1) {
		return
	}
	if len(r.waiting) >= maxWaiting || !r.limit.AllowN(now, 1) {
		e.next = now.Add(retry)
		r.dropped++
		return
	}
	e.queued = true
	r.waiting = append(r.waiting, k)
	wait.Signal(r.wake)
}

// remember stores an entry; when full, in place of the entry with the oldest report.
func (r *Recorder) remember(k key, e *entry) {
	if _, ok := r.known[k]; !ok && len(r.known) >= maxKnown {
		var oldest key
		var at time.Time
		for k, e := range r.known {
			if !e.queued && (at.IsZero() || e.last.Before(at)) {
				oldest, at = k, e.last
			}
		}
		delete(r.known, oldest)
	}
	r.known[k] = e
}

// Counts returns how many writes succeeded, and how many texts were dropped, by a limit or a failed write.
func (r *Recorder) Counts() (written, dropped uint64) {
	if r == nil {
		return 0, 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.written, r.dropped
}

// Run writes until ctx ends.
func (r *Recorder) Run(ctx context.Context) error {
	if r == nil {
		return nil
	}
	var reported progress.Changes
	again := time.NewTicker(retry)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-again.C:
			r.again()
		}
		for k, ok := r.next(); ok && ctx.Err() == nil; k, ok = r.next() {
			err := r.write(ctx, k)
			if reported.New(err) && ctx.Err() == nil {
				r.log.Warn("cannot write Event; log and status have its text", "about", k.about, "reason", k.reason, "err", err)
			}
		}
	}
}

// again queues the one-time reports that are not written yet.
func (r *Recorder) again() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, e := range r.known {
		switch {
		case !e.once || e.unsaid == 0:
		case r.now().Sub(e.last) > newsTime:
			e.unsaid = 0
		default:
			r.queue(k, e)
		}
	}
}

// next returns the first waiting key, and removes it from the queue.
func (r *Recorder) next() (key, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		return key{}, false
	}
	k := r.waiting[0]
	r.waiting = r.waiting[1:]
	return k, true
}

// write writes one entry as it is now, with the reports since it was queued.
func (r *Recorder) write(ctx context.Context, k key) error {
	r.mu.Lock()
	e := r.known[k]
	if e == nil {
		r.mu.Unlock()
		return nil
	}
	e.queued = false
	had := *e
	r.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	event := r.build(k, had.message, had.common, had.first, had.last, had.total+had.unsaid)
	if had.normal {
		event.Type = "Normal"
	}
	own := true
	total, err := r.put(ctx, event, had)
	if had.common && errors.Is(err, datastore.ErrExists) {
		own, total, err = false, 0, nil // of another recorder
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.dropped++
		e.next = r.now().Add(retry)
		return err
	}
	r.written++
	e.own, e.total, e.unsaid, e.next = own, total, e.unsaid-had.unsaid, r.now().Add(repeat)
	return nil
}

// put creates the Event, or continues the count of an existing one; datastore.ErrExists if a common Event exists from
// another recorder.
func (r *Recorder) put(ctx context.Context, event *Event, had entry) (total int, err error) {
	if had.own {
		total, err = r.count(ctx, *event, event.Count)
		if !errors.Is(err, datastore.ErrNotFound) {
			return total, err
		}
		event.Count, event.FirstTimestamp = had.unsaid, event.LastTimestamp
	}
	if err = r.store.Create(ctx, event); had.common || !errors.Is(err, datastore.ErrExists) {
		return event.Count, err
	}
	// An earlier agent of this node has written the same Event: continue its count, which the first patch returns.
	was, err := r.count(ctx, *event, 0)
	if err != nil {
		return 0, err
	}
	return r.count(ctx, *event, was+event.Count)
}

// count sets an Event's count, unless that is 0, and its last time. It returns the Event's count.
func (r *Recorder) count(ctx context.Context, e Event, count int) (int, error) {
	err := r.store.MergePatch(ctx, &e, change{count, e.LastTimestamp})
	return e.Count, err
}
