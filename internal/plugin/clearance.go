package plugin

import (
	"context"
	"errors"
	"sync"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
)

// clearance has the conditions that a release waits for.
type clearance struct {
	removed func() error // the kernel has nothing of the container: an address must not be free while a pod has it
	noted   func() error // the endpoint names no address, for Felix and garbage collection: nor while it names one
}

func (c clearance) wait() error { return errors.Join(c.removed(), c.noted()) }

// cleared waits for nothing.
var cleared = clearance{removed: func() error { return nil }, noted: func() error { return nil }}

// errNotCleared ends a release: the function that refused clearance returns the reason, and a repetition would not
// help.
var errNotCleared = errors.New("the release has no clearance")

// gatedStore holds back the steps of a release that need clearance. Blocks are read with the host's lock held. It is
// taken once the kernel has removed the link, which takes 20 ms that no other call should wait for. Nothing is written
// before the endpoint no longer names the address.
type gatedStore struct {
	datastore.Store
	may    clearance
	lock   func() (unlock func(), err error)
	once   sync.Once
	unlock func() // nil: the lock is not held
	err    error
}

// Get implements datastore.Store.
func (g *gatedStore) Get(ctx context.Context, obj api.Resource) error {
	if _, isBlock := obj.(*api.IPAMBlock); isBlock {
		if err := g.enter(); err != nil {
			return err
		}
	}
	return g.Store.Get(ctx, obj)
}

// Update implements datastore.Store.
func (g *gatedStore) Update(ctx context.Context, obj api.Resource) error {
	if g.may.noted() != nil {
		return errNotCleared
	}
	return g.Store.Update(ctx, obj)
}

// Delete implements datastore.Store.
func (g *gatedStore) Delete(ctx context.Context, obj api.Resource) error {
	if g.may.wait() != nil {
		return errNotCleared
	}
	if _, isHandle := obj.(*api.IPAMHandle); isHandle {
		g.leave() // the blocks are written
	}
	return g.Store.Delete(ctx, obj)
}

// enter waits until the kernel is done and for the host's lock.
func (g *gatedStore) enter() error {
	if g.may.removed() != nil {
		return errNotCleared
	}
	g.once.Do(func() { g.unlock, g.err = g.lock() })
	return g.err
}

// leave releases the lock.
func (g *gatedStore) leave() {
	if g.unlock != nil {
		g.unlock()
		g.unlock = nil
	}
}
