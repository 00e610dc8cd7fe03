package datastoretest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
)

// Fake is a datastore in memory that keeps objects as JSON, under the Kubernetes API's rules: revisions, UIDs, Calico's
// deletion marks, lists that may be stale. Session returns a client in which requests can fail.
type Fake struct {
	datastore.Store // a session without faults

	mu      sync.Mutex // guards all below
	objects map[string]record
	writes  uint64              // number of writes so far, and the newest revision
	past    []map[string]record // the states after the latest writes, oldest first, while lag is set
	lag     func(states int) int
	late    []func() error
}

// record is one object as it is stored.
type record struct {
	meta   api.Meta
	marked bool
	data   []byte
}

// NewFake returns an empty Fake.
func NewFake() *Fake {
	f := &Fake{objects: map[string]record{}}
	f.Store = f.Session(nil)
	return f
}

// keepStates is the maximum age of a stale list, in writes.
const keepStates = 20

// SetLag makes stale lists old: for each list, lag returns the number of writes that it misses, at most states.
func (f *Fake) SetLag(lag func(states int) int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lag = lag
	f.past = []map[string]record{maps.Clone(f.objects)}
}

// LandLate applies the writes that a Late fault has held back, in the order in which they were sent. A write to an
// object that has changed since is dropped, without an error for its sender.
func (f *Fake) LandLate() {
	f.mu.Lock()
	late := f.late
	f.late = nil
	f.mu.Unlock()
	for _, write := range late {
		_ = write()
	}
}

func (f *Fake) get(key string) (record, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.objects[key]
	if !ok {
		return record{}, fmt.Errorf("%s: %w", key, datastore.ErrNotFound)
	}
	return r, nil
}

// list returns the objects of a kind, ordered by name.
func (f *Fake) list(t api.Type, opts datastore.ListOptions) []record {
	f.mu.Lock()
	defer f.mu.Unlock()
	objects := f.objects
	if opts.Stale && f.lag != nil {
		newest := len(f.past) - 1
		objects = f.past[newest-min(max(f.lag(newest), 0), newest)]
	}
	var labels map[string]string
	if opts.Host != "" && t == (*api.BlockAffinity)(nil).ResourceType() {
		affinityType, name := names.SplitOwner(opts.Host)
		labels = names.AffinitySelector(name, affinityType)
	}
	var found []record
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		r := objects[key]
		if strings.HasPrefix(key, t.Plural+"/") && hasAll(r.meta.Labels, labels) {
			found = append(found, r)
		}
	}
	return found
}

func hasAll(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}

// create stores a new object and returns it as stored.
func (f *Fake) create(key string, obj api.Resource) (record, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.objects[key]; ok {
		return record{}, fmt.Errorf("create %s: %w", key, datastore.ErrExists)
	}
	return f.store(key, obj, fmt.Sprintf("uid-%d", f.writes+1))
}

// update replaces the revision that obj carries and returns the object as stored.
func (f *Fake) update(key string, obj api.Resource) (record, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := obj.GetMeta()
	if m.ResourceVersion == "" {
		return record{}, fmt.Errorf("update %s: it carries no resourceVersion", key)
	}
	have, ok := f.objects[key]
	if !ok || have.meta.ResourceVersion != m.ResourceVersion || m.UID != "" && have.meta.UID != m.UID {
		return record{}, fmt.Errorf("update %s: %w", key, datastore.ErrConflict)
	}
	return f.store(key, obj, have.meta.UID)
}

// remove deletes exactly one revision.
func (f *Fake) remove(key string, m api.Meta) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	have, ok := f.objects[key]
	if !ok {
		return fmt.Errorf("delete %s: %w", key, datastore.ErrNotFound)
	}
	if have.meta.UID != m.UID || have.meta.ResourceVersion != m.ResourceVersion {
		return fmt.Errorf("delete %s: %w", key, datastore.ErrConflict)
	}
	delete(f.objects, key)
	f.wrote()
	return nil
}

// store saves the object with a new revision. The caller must hold mu.
func (f *Fake) store(key string, obj api.Resource, uid string) (record, error) {
	data, err := json.Marshal(obj)
	if err != nil {
		return record{}, fmt.Errorf("encode %s: %w", key, err)
	}
	copied := api.NewLike(obj)
	if err := json.Unmarshal(data, copied); err != nil {
		return record{}, fmt.Errorf("decode %s: %w", key, err)
	}
	m := copied.GetMeta()
	m.UID, m.ResourceVersion = uid, strconv.FormatUint(f.writes+1, 10)
	if data, err = json.Marshal(copied); err != nil {
		return record{}, fmt.Errorf("encode %s: %w", key, err)
	}
	r := record{meta: *m, marked: api.Marked(copied), data: data}
	f.objects[key] = r
	f.wrote()
	return r, nil
}

// wrote counts a write. The caller must hold mu.
func (f *Fake) wrote() {
	f.writes++
	if f.lag == nil {
		return
	}
	f.past = append(f.past, maps.Clone(f.objects))
	f.past = f.past[max(0, len(f.past)-keepStates):]
}

// into decodes a record into obj, replacing its value.
func (r record) into(obj api.Resource) error {
	fresh := api.NewLike(obj)
	if err := json.Unmarshal(r.data, fresh); err != nil {
		return errors.Join(errors.New("decode a stored object"), err)
	}
	api.Assign(obj, fresh)
	return nil
}

// name returns the record as an item of a metadata-only list.
func (r record) name() []byte {
	m := api.Meta{Name: r.meta.Name, Namespace: r.meta.Namespace, ResourceVersion: r.meta.ResourceVersion}
	data, err := json.Marshal(map[string]api.Meta{"metadata": m})
	if err != nil {
		panic(err) // strings always encode
	}
	return data
}
