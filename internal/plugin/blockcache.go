package plugin

import (
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/app/hostfile"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/plugin/facts"
)

// blockCache is a datastore that notes the block last written by an ADD or DEL of this node, with its UID and revision,
// so that the next one changes it without reading it first. If another node has written it since, the datastore refuses
// the write for its revision, and Get reads it.
type blockCache struct {
	datastore.Store
	log   *slog.Logger
	notes bool // not with etcd, of which the agent has no facts

	lock  sync.Mutex      // guards the rest
	asked map[string]bool // names of the blocks that were read once
	// serves reports whether a noted block will do. Any decision by it must end in a write of it, so that the datastore
	// can refuse. Nil: no noted block is used.
	serves func(*api.IPAMBlock) bool
}

// assignable returns serves for an ADD: the block has a free address, and none that the handle holds.
func assignable(handle string) func(*api.IPAMBlock) bool {
	held := releasable(handle)
	return func(b *api.IPAMBlock) bool { return len(b.Spec.Unallocated) > 0 && !held(b) }
}

// releasable returns serves for a DEL: the block has an address that the handle holds.
func releasable(handle string) func(*api.IPAMBlock) bool {
	return func(b *api.IPAMBlock) bool {
		return slices.ContainsFunc(b.Spec.Attributes, func(a api.AllocationAttribute) bool {
			return a.HandleID != nil && *a.HandleID == handle && a.ReleasedAt == ""
		})
	}
}

// Get implements datastore.Store. The first Get of a block may return what was noted, the next one does not.
func (c *blockCache) Get(ctx context.Context, obj api.Resource) error {
	if b, isBlock := obj.(*api.IPAMBlock); isBlock {
		if noted := c.noted(b.Name); noted != nil {
			*b = *noted
			return nil
		}
	}
	return c.Store.Get(ctx, obj)
}

// noted returns the noted block, or nil if the datastore must be asked.
func (c *blockCache) noted(name string) *api.IPAMBlock {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.serves == nil || c.asked[name] {
		return nil
	}
	c.asked[name] = true
	if b := readBlock(name); b != nil && c.serves(b) {
		return b
	}
	return nil
}

// stop makes each Get ask the datastore from now on.
func (c *blockCache) stop() {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.serves = nil
}

// Create implements datastore.Store. A handle that exists may hold an address already.
func (c *blockCache) Create(ctx context.Context, obj api.Resource) error {
	err := c.Store.Create(ctx, obj)
	if err != nil {
		c.stop()
	}
	return c.note(obj, err)
}

// Update implements datastore.Store.
func (c *blockCache) Update(ctx context.Context, obj api.Resource) error {
	c.stop()
	return c.note(obj, c.Store.Update(ctx, obj))
}

// note notes the written block obj and returns result. After a failed write it drops the note: the block has changed,
// or its state is unknown.
func (c *blockCache) note(obj api.Resource, result error) error {
	b, isBlock := obj.(*api.IPAMBlock)
	if !isBlock || !c.notes {
		return result
	}
	var err error
	if result == nil {
		err = writeBlock(b)
	} else {
		_, err = hostfile.Remove(blockFile(b.Name))
	}
	if err != nil {
		c.log.Debug("cannot note the block for the next ADD or DEL", "block", b.Name, "why", err)
	}
	return result
}

func writeBlock(b *api.IPAMBlock) error {
	text, err := json.Marshal(b)
	if err == nil {
		_, err = hostfile.Replace(blockFile(b.Name), text, 0o600)
	}
	return err
}

// readBlock returns the noted block of that name, or nil.
func readBlock(name string) *api.IPAMBlock {
	text, err := hostfile.ReadFile(blockFile(name))
	b := &api.IPAMBlock{}
	if err != nil || json.Unmarshal(text, b) != nil || b.Name != name || b.ResourceVersion == "" || b.UID == "" {
		return nil
	}
	return b
}

func (s *session) blockCache() *blockCache {
	return &blockCache{Store: s.store, log: s.log, notes: s.conf.DatastoreType == datastoreKubernetes, asked: map[string]bool{}}
}

// blockFile returns the file for a noted block: one per family, beside the facts, in memory.
func blockFile(name string) string {
	file := "block-v6.json"
	if cidr, _ := names.ParseBlock(name); cidr.Addr().Is4() {
		file = "block-v4.json"
	}
	return filepath.Join(filepath.Dir(facts.DefaultFile), file)
}
