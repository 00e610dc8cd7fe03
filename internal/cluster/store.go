package cluster

import (
	"fmt"
	"log/slog"
	"sync"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/state"
)

// objectStore holds the known objects of one kind. A reflector fills it.
type objectStore[T any] struct {
	// same reports that readers see no difference between two states of an object.
	same func(before, after *T) bool
	// changed is called for each object that came, went, or changed by same.
	changed func(*T)
	// listed is called after each complete list, and after changed for its differences; may be nil.
	listed func()

	mu      sync.RWMutex
	objects map[string]*object[T]

	first sync.Once
	full  chan struct{} // closed once there has been a complete list
}

func newObjectStore[T any](same func(before, after *T) bool, changed func(*T)) *objectStore[T] {
	return &objectStore[T]{same: same, changed: changed, objects: map[string]*object[T]{}, full: make(chan struct{})}
}

func key(m *api.Meta) string {
	if m.Namespace == "" {
		return m.Name
	}
	return m.Namespace + "/" + m.Name
}

// Add implements cache.ReflectorStore.
func (s *objectStore[T]) Add(obj any) error {
	o, ok := obj.(*object[T])
	if !ok {
		return fmt.Errorf("a %T among objects of %T", obj, o)
	}
	s.mu.Lock()
	before := s.objects[key(o.meta())]
	o = o.orOlder(before)
	s.objects[key(o.meta())] = o
	s.mu.Unlock()
	s.compare(before, o)
	return nil
}

// Update implements cache.ReflectorStore.
func (s *objectStore[T]) Update(obj any) error { return s.Add(obj) }

// Delete implements cache.ReflectorStore.
func (s *objectStore[T]) Delete(obj any) error {
	o, ok := obj.(*object[T])
	if !ok {
		return fmt.Errorf("a %T among objects of %T", obj, o)
	}
	s.mu.Lock()
	before := s.objects[key(o.meta())]
	delete(s.objects, key(o.meta()))
	s.mu.Unlock()
	if before != nil {
		s.changed(&before.value)
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *objectStore[T]) Replace(list []any, _ string) error {
	next := make(map[string]*object[T], len(list))
	s.mu.Lock()
	before := s.objects
	for _, obj := range list {
		o, ok := obj.(*object[T])
		if !ok {
			s.mu.Unlock()
			return fmt.Errorf("a %T among objects of %T", obj, o)
		}
		k := key(o.meta())
		next[k] = o.orOlder(before[k])
	}
	s.objects = next
	s.mu.Unlock()
	s.first.Do(func() { close(s.full) })
	for k, o := range next {
		s.compare(before[k], o)
	}
	for k, o := range before {
		if next[k] == nil {
			s.changed(&o.value)
		}
	}
	if s.listed != nil {
		s.listed()
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (s *objectStore[T]) Resync() error { return nil }

// orOlder returns o, or before with o's error if o cannot be read.
func (o *object[T]) orOlder(before *object[T]) *object[T] {
	if o.broken == nil || !before.usable() {
		return o
	}
	return &object[T]{value: before.value, broken: o.broken}
}

func (s *objectStore[T]) compare(before, after *object[T]) {
	if before != nil && before.broken == nil && after.broken == nil && s.same(&before.value, &after.value) {
		return
	}
	s.changed(&after.value)
}

// sameRevision is for kinds with no irrelevant changes.
func sameRevision[T any](before, after *T) bool {
	a, b := any(before).(api.Resource).GetMeta(), any(after).(api.Resource).GetMeta()
	return a.ResourceVersion == b.ResourceVersion && a.UID == b.UID
}

// get returns the object with a name, nil if none was ever readable. The caller must not change it.
func (s *objectStore[T]) get(name string) *T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if o := s.objects[name]; o.usable() {
		return &o.value
	}
	return nil
}

// keys returns the keys of all objects, including objects that could never be decoded.
func (s *objectStore[T]) keys() map[string]bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	keys := make(map[string]bool, len(s.objects))
	for k := range s.objects {
		keys[k] = true
	}
	return keys
}

// each returns the objects that could be decoded at some time, in no particular order. The caller must not change them.
func (s *objectStore[T]) each() []*T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]*T, 0, len(s.objects))
	for _, o := range s.objects {
		if o.usable() {
			out = append(out, &o.value)
		}
	}
	return out
}

// usable is false for nil, and for an object that was never readable.
func (o *object[T]) usable() bool { return o != nil && !o.never }

// all returns the objects that were readable at some time and for which keep is true; keep may be nil.
func (s *objectStore[T]) all(keep func(*T) bool) []T {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []T
	if keep == nil {
		out = make([]T, 0, len(s.objects))
	}
	for _, o := range s.objects {
		if o.usable() && (keep == nil || keep(&o.value)) {
			out = append(out, o.value)
		}
	}
	return out
}

// problems returns the problems of the store's objects, named without their namespaces.
func (s *objectStore[T]) problems() []state.Problem {
	return s.problemsBy(func(m *api.Meta) string { return m.Name })
}

func (s *objectStore[T]) problemsBy(name func(*api.Meta) string) []state.Problem {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []state.Problem
	for _, o := range s.objects {
		if o.broken == nil {
			out = append(out, misspelt(&o.value)...)
			continue
		}
		verb := "it is left out"
		if o.usable() {
			verb = "what it was before stays in force"
		}
		t, called := any(&o.value).(api.Resource).ResourceType(), name(o.meta())
		out = append(out, state.Problem{Kind: t, Name: called, Err: fmt.Errorf("%s %s cannot be read, %s: %w", t.Kind, called, verb, o.broken)})
	}
	return out
}

// isFull reports whether there has been a complete list.
func (s *objectStore[T]) isFull() bool {
	select {
	case <-s.full:
		return true
	default:
		return false
	}
}

// misspelt returns the problems of an object's keys.
func misspelt(obj any) []state.Problem {
	keyed, ok := obj.(api.Keyed)
	if !ok {
		return nil
	}
	t, name := keyed.ResourceType(), keyed.GetMeta().Name
	err := keyed.StrangeKeys().Misspelt(t)
	if err == nil {
		return nil
	}
	return []state.Problem{{Kind: t, Name: name, Err: fmt.Errorf("%s %s: %w", t.Kind, name, err)}}
}

// tellUnacted logs the fields of Calico's in an object that have no effect.
func tellUnacted(log *slog.Logger, obj api.Keyed) {
	if keys := obj.StrangeKeys().WithoutEffect(); len(keys) > 0 {
		log.Info("fields of Calico's are kept and have no effect", "kind", obj.ResourceType().Kind, "name", obj.GetMeta().Name, "fields", keys)
	}
}
