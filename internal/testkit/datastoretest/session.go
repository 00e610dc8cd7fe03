package datastoretest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
)

// ErrCrashed is the error of a session after Crash or CrashAfter: its process is dead.
var ErrCrashed = errors.New("this client has crashed")

// Request is one request to the datastore.
type Request struct {
	Verb string // GET, LIST, POST, PUT or DELETE
	Kind string
	Name string // empty for a LIST
	// N counts the requests of the session, from 1; Writes counts its writes.
	N, Writes int
}

// Write reports whether the request changes the datastore.
func (r Request) Write() bool {
	return r.Verb != http.MethodGet && r.Verb != verbList
}

func (r Request) String() string { return r.Verb + " " + r.Kind + " " + r.Name }

const verbList = "LIST"

// Fault is a failure injected into one request.
type Fault int

const (
	// None means that the request is served.
	None Fault = iota
	// Conflict means that a write fails with a conflict, as after a concurrent write.
	Conflict
	// Unavailable means that the request is lost before it is served.
	Unavailable
	// Lost means that the request is served and its response is lost.
	Lost
	// Late means that a write fails without a response and is applied at LandLate, unless it conflicts by then.
	Late
	// Crash means that the client crashes before the request.
	Crash
	// CrashAfter means that the client crashes when the request has been served, before it receives the response.
	CrashAfter
	// CrashLate means that the client crashes while its write is in flight, as with Late.
	CrashLate
)

// Hook returns the fault of a request. It may block, to order the requests of several clients.
type Hook func(ctx context.Context, r Request) Fault

// Session is one client of a Fake. It implements datastore.Store.
type Session struct {
	fake *Fake
	hook Hook

	mu        sync.Mutex // guards all below
	n, writes int
	dead      bool
}

var _ datastore.Store = (*Session)(nil)

// Session returns a client with faults by the hook; without a hook all requests are served.
func (f *Fake) Session(hook Hook) *Session { return &Session{fake: f, hook: hook} }

// Crashed reports whether the client has crashed.
func (s *Session) Crashed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead
}

// Get implements datastore.Store.
func (s *Session) Get(ctx context.Context, obj api.Resource) error {
	key := keyOf(obj)
	err := s.do(ctx, s.request(http.MethodGet, obj), func() error {
		r, err := s.fake.get(key)
		if err != nil {
			return err
		}
		return r.into(obj)
	})
	if err != nil || !api.Marked(obj) {
		return err
	}
	if err := s.Delete(ctx, obj); err != nil {
		return fmt.Errorf("finish the deletion of %s: %w", key, err)
	}
	return fmt.Errorf("%s: %w: it was marked deleted", key, datastore.ErrNotFound)
}

// List implements datastore.Store.
func (s *Session) List(ctx context.Context, list api.ResourceList, opts datastore.ListOptions) error {
	r := s.count(Request{Verb: verbList, Kind: list.ItemType().Kind})
	return s.do(ctx, r, func() error {
		for _, found := range s.fake.list(list.ItemType(), opts) {
			data, item := found.data, list.NewItem()
			if opts.NamesOnly {
				data = found.name()
			}
			if err := json.Unmarshal(data, item); err != nil {
				return err
			}
			list.Add(item)
		}
		return nil
	})
}

// Create implements datastore.Store.
func (s *Session) Create(ctx context.Context, obj api.Resource) error {
	return s.write(ctx, http.MethodPost, obj, s.fake.create)
}

// Update implements datastore.Store.
func (s *Session) Update(ctx context.Context, obj api.Resource) error {
	return s.write(ctx, http.MethodPut, obj, s.fake.update)
}

// Delete implements datastore.Store.
func (s *Session) Delete(ctx context.Context, obj api.Resource) error {
	key, m := keyOf(obj), *obj.GetMeta()
	err := s.do(ctx, s.request(http.MethodDelete, obj), func() error { return s.fake.remove(key, m) })
	if errors.Is(err, datastore.ErrNotFound) {
		return nil
	}
	return err
}

// write sends a copy of obj: the caller may have changed obj when a late write is applied.
func (s *Session) write(ctx context.Context, verb string, obj api.Resource, apply func(string, api.Resource) (record, error)) error {
	sent := api.NewLike(obj)
	data, err := json.Marshal(obj)
	if err != nil {
		return fmt.Errorf("encode %s: %w", keyOf(obj), err)
	}
	if err := json.Unmarshal(data, sent); err != nil {
		return fmt.Errorf("decode %s: %w", keyOf(obj), err)
	}
	var stored record
	err = s.do(ctx, s.request(verb, obj), func() (err error) {
		stored, err = apply(keyOf(sent), sent)
		return err
	})
	if err != nil {
		return err
	}
	return stored.into(obj)
}

func (s *Session) request(verb string, obj api.Resource) Request {
	return s.count(Request{Verb: verb, Kind: obj.ResourceType().Kind, Name: obj.GetMeta().Name})
}

func (s *Session) count(r Request) Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	if r.Write() {
		s.writes++
	}
	r.N, r.Writes = s.n, s.writes
	return r
}

// do sends one request through the hook.
func (s *Session) do(ctx context.Context, r Request, apply func() error) error {
	fault := None
	if s.hook != nil && !s.Crashed() {
		fault = s.hook(ctx, r)
	}
	if s.Crashed() { // by a concurrent request
		return fmt.Errorf("%s: %w", r, ErrCrashed)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w: %w", r, datastore.ErrUnavailable, err)
	}
	if !r.Write() {
		fault = onRead(fault)
	}
	switch fault {
	case Conflict:
		if r.Verb == http.MethodPost {
			return fmt.Errorf("%s: %w (injected)", r, datastore.ErrExists)
		}
		return fmt.Errorf("%s: %w (injected)", r, datastore.ErrConflict)
	case Unavailable:
		return fmt.Errorf("%s: %w (injected)", r, datastore.ErrUnavailable)
	case Lost:
		_ = apply() // the response is lost
		return fmt.Errorf("%s: %w (injected after it was served)", r, datastore.ErrUnavailable)
	case Late, CrashLate:
		s.fake.hold(apply)
		return s.lost(r, fault == CrashLate)
	case Crash:
		return s.lost(r, true)
	case CrashAfter:
		_ = apply() // the response is lost
		return s.lost(r, true)
	}
	return apply()
}

// onRead replaces the faults of writes by their equivalents for a read.
func onRead(f Fault) Fault {
	switch f {
	case Conflict:
		return None
	case Late:
		return Lost
	case CrashLate:
		return CrashAfter
	}
	return f
}

func (s *Session) lost(r Request, crash bool) error {
	if !crash {
		return fmt.Errorf("%s: %w (injected, still on its way)", r, datastore.ErrUnavailable)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = true
	return fmt.Errorf("%s: %w", r, ErrCrashed)
}

// hold keeps a write for LandLate.
func (f *Fake) hold(write func() error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.late = append(f.late, write)
}

func keyOf(obj api.Resource) string {
	m := obj.GetMeta()
	return obj.ResourceType().Plural + "/" + m.Namespace + "/" + m.Name
}
