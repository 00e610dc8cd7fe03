package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// memory is a Store that can fail. internal/cluster tests with the real API server.
type memory struct {
	mu      sync.Mutex
	events  map[string]Event
	writes  int
	failing error
}

func (s *memory) Create(_ context.Context, obj api.Resource) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	if s.failing != nil {
		return s.failing
	}
	if _, ok := s.events[obj.GetMeta().Name]; ok {
		return datastore.ErrExists
	}
	s.events[obj.GetMeta().Name] = *obj.(*Event)
	return nil
}

func (s *memory) MergePatch(_ context.Context, obj api.Resource, patch any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	if s.failing != nil {
		return s.failing
	}
	e, ok := s.events[obj.GetMeta().Name]
	if !ok {
		return datastore.ErrNotFound
	}
	c := patch.(change)
	if c.Count != 0 {
		e.Count = c.Count
	}
	e.LastTimestamp = c.LastTimestamp
	s.events[e.Name] = e
	*obj.(*Event) = e
	return nil
}

func (s *memory) only(t *testing.T) Event {
	t.Helper()
	if len(s.events) != 1 {
		t.Fatalf("%d events: %+v", len(s.events), s.events)
	}
	for _, e := range s.events {
		return e
	}
	panic("unreachable")
}

// desk is a Recorder with a clock and writes under the test's control.
type desk struct {
	*Recorder
	server *memory
	at     time.Time
}

func newDesk() *desk {
	d := &desk{server: &memory{events: map[string]Event{}}, at: time.Date(2026, 11, 20, 14, 0, 0, 0, time.UTC)}
	d.Recorder = newRecorder(d.server, Source{"tortie-node", "n1"}, groups.In(groups.V1), slog.New(slog.DiscardHandler),
		func() time.Time { return d.at })
	return d
}

// drain writes what waits, as Run does.
func (d *desk) drain(t *testing.T) (err error) {
	t.Helper()
	for k, ok := d.next(); ok; k, ok = d.next() {
		err = errors.Join(err, d.write(t.Context(), k))
	}
	return err
}

var pool = api.ObjectReference{APIVersion: "crd.projectcalico.org/v1", Kind: "IPPool", Name: "Odd_Name", UID: "u1"}

func TestTheSameIsWrittenEveryTenMinutes(t *testing.T) {
	d := newDesk()
	for second := range 25 * 60 {
		d.Warn(pool, "InvalidPool", "spec.cidr is odd")
		errtest.Must(t, d.drain(t))
		if want := second/600 + 1; d.server.writes != want {
			t.Fatalf("%d writes after %d s, want %d", d.server.writes, second, want)
		}
		d.at = d.at.Add(time.Second)
	}
	e := d.server.only(t)
	if e.Count != 1201 || e.Namespace != "default" || !strings.HasPrefix(e.Name, "odd_name.") || e.Type != "Warning" ||
		e.InvolvedObject != pool || e.LastTimestamp.Sub(e.FirstTimestamp) != 20*time.Minute {
		t.Errorf("%+v", e)
	}
}

// TestGroupOfEvents: an Event names the present group of the object, and keeps it while the problem lasts.
func TestGroupOfEvents(t *testing.T) {
	d := newDesk()
	d.group.Set(groups.V3)
	d.Warn(pool, "InvalidPool", "spec.cidr is odd")
	errtest.Must(t, d.drain(t))
	errtest.Must(t, d.WarnOnce(t.Context(), pool, "Other", "spec.cidr is odd"))
	if len(d.server.events) != 2 {
		t.Errorf("%d events", len(d.server.events))
	}
	for _, e := range d.server.events {
		want := pool
		want.APIVersion = string(groups.V3)
		if e.InvolvedObject != want {
			t.Errorf("%+v", e.InvolvedObject)
		}
	}
}

func TestANewTextIsWritten(t *testing.T) {
	d := newDesk()
	d.Warn(pool, "InvalidPool", "one")
	d.Warn(pool, "InvalidPool", "two") // before the first was written: only the newest counts
	_ = d.drain(t)
	if e := d.server.only(t); e.Message != "two" || e.Count != 1 {
		t.Errorf("%+v", e)
	}
	say := func(text string, want int) {
		t.Helper()
		d.Warn(pool, "InvalidPool", text)
		_ = d.drain(t)
		if len(d.server.events) != want {
			t.Errorf("%s: %d events, want %d", text, len(d.server.events), want)
		}
	}
	for i := 2; i <= mostTexts; i++ { // each at once
		say(fmt.Sprint("text ", i), i)
	}
	for want := mostTexts; want <= mostTexts+1; want++ { // and then in time
		say("another", want)
		d.at = d.at.Add(newText)
	}
}

// Two alternating texts leave room for all others, and a one-time text is written at once.
func TestTextsThatAlternate(t *testing.T) {
	d := newDesk()
	for second := range 3600 {
		d.Warn(pool, "InvalidPool", fmt.Sprint("text ", second%2))
		errtest.Must(t, d.drain(t))
		d.at = d.at.Add(time.Second)
	}
	alternating, _ := d.Counts()
	if alternating > 60 {
		t.Errorf("%d Events were written in an hour", alternating)
	}
	for i := range burst - 2 {
		d.Note(pool, "PathUp", fmt.Sprint("to ", i))
		errtest.Must(t, d.drain(t))
	}
	if all, _ := d.Counts(); all-alternating != burst-2 {
		t.Errorf("%d others were written, want %d", all-alternating, burst-2)
	}
}

// Texts are joined as far as they fit, with a count of the others.
func TestJoin(t *testing.T) {
	for _, c := range []struct {
		texts, size int
		want        string
	}{
		{1, 3, "xxx"}, {2, 3, "xxx; xxx"}, {8, 1, "x; x; x; x; x; x; x; x"}, {10, 1, "x; x; x; x; x; x; x; x; and 2 more"},
		{3, 500, strings.Repeat("x", 500) + "; " + strings.Repeat("x", 500) + "; and 1 more"},
		{2, 2000, strings.Repeat("x", 2000) + "; and 1 more"},
	} {
		if got := Join(slices.Repeat([]string{strings.Repeat("x", c.size)}, c.texts)); got != c.want {
			t.Errorf("%d of %d: %q", c.texts, c.size, got)
		}
	}
}

// An agent that starts again and again goes on with the event of the one before.
func TestARestartGoesOnCounting(t *testing.T) {
	first := newDesk()
	for range 3 {
		first.Warn(pool, "InvalidPool", "odd")
	}
	_ = first.drain(t)
	second := newDesk()
	second.server.events = first.server.events
	second.at = first.at.Add(time.Hour)
	second.Warn(pool, "InvalidPool", "odd")
	errtest.Must(t, second.drain(t))
	if e := second.server.only(t); e.Count != 4 || !e.LastTimestamp.Equal(second.at) {
		t.Errorf("%+v", e)
	}
	// The API server keeps an event for an hour.
	clear(second.server.events)
	second.at = second.at.Add(2 * time.Hour)
	second.Warn(pool, "InvalidPool", "odd")
	errtest.Must(t, second.drain(t))
	if e := second.server.only(t); e.Count != 1 || !e.FirstTimestamp.Equal(second.at) {
		t.Errorf("%+v", e)
	}
}

// A problem common to all nodes is one Event, of the first reporter, as long as that one continues.
func TestCommon(t *testing.T) {
	first, second := newDesk(), newDesk()
	second.server, second.store, second.source.Host = first.server, first.server, "n2"
	turn := func(d *desk) {
		d.WarnCommon(pool, "InvalidPool", "odd")
		errtest.Must(t, d.drain(t))
	}
	for range 3 {
		turn(first)
		turn(second)
		first.at, second.at = first.at.Add(repeat), second.at.Add(repeat)
	}
	if e := first.server.only(t); e.Source.Host != "n1" || e.Count != 3 {
		t.Errorf("%+v", e)
	}
	clear(first.server.events)
	turn(second)
	if e := first.server.only(t); e.Source.Host != "n2" || e.Count != 1 || !e.FirstTimestamp.Equal(first.at.Add(-3*repeat)) {
		t.Errorf("when the first is silent: %+v", e)
	}
}

func TestWithoutAnAPIServerNothingIsLostThatIsSaidAgain(t *testing.T) {
	d := newDesk()
	d.server.failing = errors.New("connection refused")
	for range 100 {
		d.Warn(pool, "InvalidPool", "odd")
		_ = d.drain(t)
		d.at = d.at.Add(time.Second)
	}
	if written, dropped := d.Counts(); written != 0 || dropped != 4 || d.server.writes != 4 { // every 30 s
		t.Errorf("%d written, %d dropped, %d tries", written, dropped, d.server.writes)
	}
	d.server.failing = nil
	d.at = d.at.Add(retry)
	d.Warn(pool, "InvalidPool", "odd")
	errtest.Must(t, d.drain(t))
	if e := d.server.only(t); e.Count != 101 {
		t.Errorf("%+v", e)
	}
}

// A one-time report is written once the API server accepts it; after a day it is dropped.
func TestWhatIsSaidOnceWaitsForTheAPIServer(t *testing.T) {
	for name, say := range map[string]func(*Recorder, api.ObjectReference, string, string){"past": (*Recorder).WarnOfPast,
		"change": (*Recorder).Note} {
		t.Run(name, func(t *testing.T) {
			d := newDesk()
			away := errors.New("connection refused")
			d.server.failing = away
			say(d.Recorder, pool, "Repaired", "it was odd")
			for range 100 {
				if err := d.drain(t); err != nil && !errors.Is(err, away) {
					t.Fatal(err)
				}
				if !d.Unwritten(pool, "Repaired") {
					t.Fatal("it is taken for written")
				}
				d.at = d.at.Add(retry)
				d.again()
			}
			said := d.at.Add(-100 * retry)
			d.server.failing = nil
			for range 3 { // the limits may keep one back
				d.at = d.at.Add(spare)
				d.again()
				errtest.Must(t, d.drain(t))
			}
			if e := d.server.only(t); e.Count != 1 || !e.LastTimestamp.Equal(said) || d.Unwritten(pool, "Repaired") {
				t.Errorf("%+v", e)
			}
			d.server.failing = away
			say(d.Recorder, pool, "Repaired", "it was odd again")
			_ = d.drain(t)
			d.at = d.at.Add(newsTime + time.Second)
			if d.again(); d.Unwritten(pool, "Repaired") {
				t.Error("it is kept for ever")
			}
		})
	}
}

// Run itself does so.
func TestRunTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &memory{events: map[string]Event{}, failing: errors.New("connection refused")}
		r := New(server, Source{}, nil, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		r.Note(pool, "PathUp", "it is reached again")
		synctest.Wait()
		server.mu.Lock()
		server.failing = nil
		server.mu.Unlock()
		waittest.Advance(retry + time.Second)
		synctest.Wait()
		server.only(t)
		cancel()
		errtest.Must(t, <-ended)
	})
}

// Texts that change all the time, or are about everything, are bounded in memory, queue and rate.
func TestAFloodIsBounded(t *testing.T) {
	d := newDesk()
	for i := range 10 * maxKnown {
		d.Warn(api.ObjectReference{Kind: "IPPool", Name: fmt.Sprint("p", i)}, "InvalidPool", "odd")
	}
	if len(d.waiting) > maxWaiting || len(d.known) > maxKnown+1 {
		t.Errorf("%d wait, %d known", len(d.waiting), len(d.known))
	}
	_ = d.drain(t)
	if d.server.writes != burst {
		t.Errorf("%d writes, want %d", d.server.writes, burst)
	}
	if _, dropped := d.Counts(); dropped != 10*maxKnown-burst {
		t.Errorf("%d dropped", dropped)
	}
	d.at = d.at.Add(time.Minute)
	for i := range 100 {
		d.Warn(pool, "InvalidPool", fmt.Sprint("text ", i))
	}
	_ = d.drain(t)
	if d.server.writes > burst+1 {
		t.Errorf("%d writes a minute later", d.server.writes)
	}
}

// A caller is never held up: not by a write that hangs, and not without a Recorder.
func TestWarnNeverWaits(t *testing.T) {
	hang := &hanging{begun: make(chan struct{}), end: make(chan struct{})}
	r := New(hang, Source{}, nil, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	r.Warn(pool, "a", "b")
	<-hang.begun
	done := make(chan struct{})
	go func() {
		for i := range 10000 {
			r.Warn(pool, "a", fmt.Sprint(i))
		}
		(*Recorder)(nil).Warn(pool, "a", "b")
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("Warn waits for a write")
	}
	cancel()
	close(hang.end)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

type hanging struct {
	once       sync.Once
	begun, end chan struct{}
}

func (h *hanging) Create(context.Context, api.Resource) error {
	h.once.Do(func() { close(h.begun) })
	<-h.end
	return errors.New("hung")
}

func (h *hanging) MergePatch(context.Context, api.Resource, any) error { return datastore.ErrNotFound }

// FuzzEventIsTaken: whatever an Event is about, its name and message keep to the API server's bounds, and the message
// is valid text if it was.
func FuzzEventIsTaken(f *testing.F) {
	f.Add("node1", "text")
	f.Add(strings.Repeat("ä", 300), strings.Repeat("é", 2000))
	f.Fuzz(func(t *testing.T, name, message string) {
		e := (&Recorder{source: Source{"c", "h"}}).build(key{api.ObjectReference{Name: name}, "r"}, message, false, time.Now(), time.Now(), 1)
		if len(e.Message) > MaxMessage || len(e.Name) > 253+len(name)*2 ||
			utf8.ValidString(message) != utf8.ValidString(e.Message) && utf8.ValidString(message) {
			t.Errorf("%q: %+v", name, e)
		}
	})
}
