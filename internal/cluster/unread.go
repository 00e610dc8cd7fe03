package cluster

import (
	"maps"
	"slices"
	"sync"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/state"
)

// unread has the annotations without effect of objects, by their names.
type unread struct {
	mu sync.Mutex
	by map[string][]string
}

// set replaces the annotations of an object, and reports whether they changed.
func (u *unread) set(object string, keys []string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if slices.Equal(u.by[object], keys) {
		return false
	}
	if u.by == nil {
		u.by = map[string][]string{}
	}
	u.by[object] = keys
	if len(keys) == 0 {
		delete(u.by, object)
	}
	return true
}

// all returns the annotations of all objects.
func (u *unread) all() map[string][]string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.by)
}

// unacted returns the named objects that have fields without effect.
func unacted[T any](of *objectStore[T], names ...string) (all []state.Unacted) {
	for _, name := range names {
		o := of.get(name)
		if o == nil {
			continue
		}
		keyed := any(o).(api.Keyed)
		if fields := keyed.StrangeKeys().WithoutEffect(); len(fields) > 0 {
			all = append(all, state.Unacted{Kind: keyed.ResourceType().Kind, Name: name, Fields: fields})
		}
	}
	return all
}
