package cluster

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/tortie-net/tortie/internal/api/groups"
)

// streams knows until when all watches are known to have delivered. client-go does not report that: an informer without
// API server shows its last state as if it were current.
type streams struct {
	now   func() time.Time
	group *groups.Current

	mu        sync.Mutex
	wanted    []string           // the kinds that must be watched for a confirmation
	open      map[string]*stream // by kind: the delivering watch, once its initial list has arrived
	confirmed time.Time
}

func newStreams(group *groups.Current) *streams {
	return &streams{now: time.Now, group: group, open: map[string]*stream{}}
}

// want names a kind that must be watched.
func (s *streams) want(kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted = append(s.wanted, kind)
}

// complete reports whether all wanted kinds are watched, Calico's in the group in use. The caller holds the lock.
func (s *streams) complete() bool {
	in := s.group.Known()
	return !slices.ContainsFunc(s.wanted, func(kind string) bool { return s.open[kind] == nil || !s.open[kind].counts(in) })
}

// heard records the time of a message of the API server. One stream's message counts for all open streams: they share a
// connection. The caller holds the lock.
func (s *streams) heard(at time.Time) {
	if s.complete() && at.After(s.confirmed) {
		s.confirmed = at
	}
}

// Confirmed returns the last time at which nothing was missing; zero: never.
func (s *streams) Confirmed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.confirmed
}

// confirm records the confirmation by a request that was sent at a time.
func (s *streams) confirm(sent time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard(sent)
}

// allOpen reports whether every wanted watch delivers.
func (s *streams) allOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.complete()
}

// follow passes a watch's events on and notes them; prepare may drop unused fields. A watch that begins with a list
// (WatchList) counts once the bookmark at the list's end has come. in is the requested group of Calico's objects; empty
// for other kinds.
func (s *streams) follow(kind string, in groups.Group, w watch.Interface, beginsWithList bool,
	prepare func(runtime.Object),
) watch.Interface {
	f := &stream{Interface: w, of: s, kind: kind, in: in, prepare: prepare, events: make(chan watch.Event), stopped: make(chan struct{})}
	if !beginsWithList {
		f.delivers()
	}
	go f.pass()
	return f
}

// stream is one watch of one kind.
type stream struct {
	watch.Interface
	of      *streams
	kind    string
	in      groups.Group
	prepare func(runtime.Object)
	events  chan watch.Event
	once    sync.Once
	stopped chan struct{}
}

// counts reports whether the watch is of the group in use, or of no group.
func (f *stream) counts(in groups.Group) bool { return f.in == "" || f.in == in }

// ResultChan implements watch.Interface.
func (f *stream) ResultChan() <-chan watch.Event { return f.events }

// Stop implements watch.Interface.
func (f *stream) Stop() {
	f.once.Do(func() { close(f.stopped) })
	f.Interface.Stop()
}

func (f *stream) pass() {
	defer close(f.events)
	defer f.ended()
	for {
		select {
		case <-f.stopped:
			return
		case e, ok := <-f.Interface.ResultChan():
			if !ok || !f.deliver(e) {
				return
			}
		}
	}
}

// deliver notes an event after the reader has taken it: only then is its content known.
func (f *stream) deliver(e watch.Event) bool {
	f.prepare(e.Object)
	select {
	case f.events <- e:
	case <-f.stopped:
		return false
	}
	switch {
	case e.Type == watch.Error:
		return true // the watch is about to end
	case e.Type == watch.Bookmark && endsList(e):
		f.delivers()
	default:
		f.of.confirm(f.of.now())
	}
	return true
}

func endsList(bookmark watch.Event) bool {
	m, err := meta.Accessor(bookmark.Object)
	return err == nil && m.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}

func (f *stream) delivers() {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	f.of.open[f.kind] = f
	f.of.heard(f.of.now())
}

// ended removes the watch, unless the next one of its kind has replaced it.
func (f *stream) ended() {
	f.of.mu.Lock()
	defer f.of.mu.Unlock()
	if f.of.open[f.kind] == f {
		delete(f.of.open, f.kind)
	}
}
