package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
)

// Expired is an unused holder: all that the handle holds, each address with the sequence number of its assignment. An
// address without a handle is a holder of its own.
type Expired struct {
	Handle    string
	Addresses map[netip.Addr]Assigned
}

// Assigned identifies one assignment of an address.
type Assigned struct {
	Block    netip.Prefix
	Sequence uint64
}

// Expire frees addresses, all of a holder or none, with one write for each block. A holder keeps all if it now holds
// anything else in one of these blocks, or if an address was assigned again since. It returns the indexes of the freed
// holders. An error is of some blocks; the others were written.
func (c *Client) Expire(ctx context.Context, cfg api.IPAMConfigSpec, holders []Expired) ([]int, error) {
	e := expiry{client: c, cfg: cfg, holders: holders, of: map[netip.Prefix][]int{}, kept: make([]bool, len(holders)),
		freed: make([]int, len(holders))}
	for i, h := range holders {
		for _, at := range h.Addresses {
			if !slices.Contains(e.of[at.Block], i) {
				e.of[at.Block] = append(e.of[at.Block], i)
			}
		}
	}
	var cidrs []netip.Prefix
	for cidr := range e.of {
		cidrs = append(cidrs, cidr)
	}
	blocks, err := c.readBlocks(ctx, cidrs)
	if err != nil {
		return nil, fmt.Errorf("free expired addresses: %w", err)
	}
	for _, b := range blocks {
		e.verify(b)
	}
	err = e.freeAll(ctx, blocks)
	return e.done(), err
}

// expiry is one Expire.
type expiry struct {
	client  *Client
	cfg     api.IPAMConfigSpec
	holders []Expired
	of      map[netip.Prefix][]int // the holders in each block

	mu    sync.Mutex // guards all below
	kept  []bool     // holders that keep what they hold
	freed []int      // in how many blocks
}

// verify finds the holders that hold something else in a block than expected.
func (e *expiry) verify(read blockRead) {
	for _, i := range e.of[read.cidr] {
		if read.block == nil || !read.block.holdsExactly(&e.holders[i]) {
			e.kept[i] = true
		}
	}
}

// freeAll writes the blocks in parallel.
func (e *expiry) freeAll(ctx context.Context, blocks []blockRead) error {
	failed := make([]error, len(blocks))
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for i, read := range blocks {
		g.Go(func() error { failed[i] = e.freeBlock(ctx, read); return nil })
	}
	_ = g.Wait() // failed has the errors
	return errors.Join(failed...)
}

// freeBlock frees in one block. After a conflict the block is read and checked again.
func (e *expiry) freeBlock(ctx context.Context, read blockRead) error {
	first := true
	return e.client.retry(ctx, func() error {
		if first {
			first = false
			return e.free(ctx, read)
		}
		again, err := e.client.readBlocks(ctx, []netip.Prefix{read.cidr})
		if err != nil {
			return err
		}
		return e.free(ctx, again[0])
	})
}

// free releases the holders' addresses in one block.
func (e *expiry) free(ctx context.Context, read blockRead) error {
	b := read.block
	if b == nil {
		return read.damage
	}
	cool := cooldown(e.cfg, e.client.now())
	b.FreeCooled(cool)
	var freed []int
	for _, i := range e.of[read.cidr] {
		if !e.keeps(i) && b.holdsExactly(&e.holders[i]) {
			b.release(&e.holders[i], cool)
			freed = append(freed, i)
		}
	}
	if len(freed) == 0 {
		return nil
	}
	var p Plan
	p.free(b)
	if _, err := e.client.commit(ctx, p); err != nil {
		return fmt.Errorf("free addresses of block %s: %w", read.cidr, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, i := range freed {
		e.freed[i]++
	}
	return nil
}

func (e *expiry) keeps(i int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.kept[i]
}

// done returns the holders that were freed in all of their blocks.
func (e *expiry) done() []int {
	blocks := make([]int, len(e.holders))
	for _, in := range e.of {
		for _, i := range in {
			blocks[i]++
		}
	}
	var done []int
	for i, n := range e.freed {
		if n > 0 && n == blocks[i] {
			done = append(done, i)
		}
	}
	return done
}

// holdsExactly reports whether a holder holds the expected addresses in the block, by the same assignments, and no
// others.
func (b *Block) holdsExactly(h *Expired) bool {
	for a, at := range h.Addresses {
		if at.Block == b.cidr && !b.assigned(a, h.Handle, at.Sequence) {
			return false
		}
	}
	if h.Handle == "" {
		return true
	}
	for _, a := range b.Held(h.Handle) {
		if _, said := h.Addresses[a]; !said {
			return false
		}
	}
	return true
}

// assigned reports whether an address still has this assignment.
func (b *Block) assigned(a netip.Addr, handle string, sequence uint64) bool {
	s := &b.obj.Spec
	if !b.cidr.Contains(a) {
		return false
	}
	ordinal := b.ordinal(a)
	at := s.Allocations[ordinal]
	if at == nil || s.SequenceNumberForAllocation[strconv.Itoa(ordinal)] != sequence {
		return false
	}
	owner := &s.Attributes[*at]
	if owner.HandleID == nil {
		return handle == "" && owner.ReleasedAt == ""
	}
	return holds(*owner, handle)
}

// release releases a holder's addresses.
func (b *Block) release(h *Expired, cool Cooldown) {
	if h.Handle != "" {
		b.ReleaseHandle(h.Handle, cool)
		return
	}
	for a, at := range h.Addresses {
		if at.Block == b.cidr {
			b.releaseAll([]netip.Addr{a}, cool)
		}
	}
}

// landed reports whether a guarded write was applied. A conflict is no error: the caller looks again later.
func landed(err error, format string, args ...any) (bool, error) {
	switch {
	case datastore.Contended(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf(format+": %w", append(args, err)...)
	}
	return true, nil
}

// DeleteHandle deletes a handle that holds nothing, if its UID and revision are unchanged.
func (c *Client) DeleteHandle(ctx context.Context, seen api.Meta, id string) (bool, error) {
	err := c.store.Delete(ctx, &api.IPAMHandle{Meta: seen, Spec: api.IPAMHandleSpec{HandleID: id}})
	return landed(err, "remove handle %s", seen.Name)
}

// ReleaseBlock deletes an idle block and its owner's affinity, if the block is unchanged since it was seen.
func (c *Client) ReleaseBlock(ctx context.Context, cfg api.IPAMConfigSpec, seen api.Meta) (bool, error) {
	obj := &api.IPAMBlock{Meta: api.Meta{Name: seen.Name}}
	err := c.store.Get(ctx, obj)
	if errors.Is(err, datastore.ErrNotFound) || err == nil && (obj.UID != seen.UID || obj.ResourceVersion != seen.ResourceVersion) {
		return false, nil
	}
	var b *Block
	if err == nil {
		b, err = ParseBlock(obj)
	}
	if err == nil {
		b.FreeCooled(cooldown(cfg, c.now()))
		err = c.releaseBlock(ctx, b)
	}
	return landed(err, "give up block %s", seen.Name)
}

// DeleteAffinity deletes an affinity to a block that does not exist or has another owner. An affinity is written before
// its block is created, so this deletes the affinity that was seen, or nothing.
func (c *Client) DeleteAffinity(ctx context.Context, seen *api.BlockAffinity) (bool, error) {
	owns, err := c.owns(ctx, seen)
	if owns {
		return false, nil
	}
	if err == nil {
		err = c.store.Delete(ctx, seen)
	}
	return landed(err, "remove affinity %s", seen.Name)
}

// ConfirmAffinity confirms a pending affinity, if its block has its node as the owner.
func (c *Client) ConfirmAffinity(ctx context.Context, seen *api.BlockAffinity) (bool, error) {
	owns, err := c.owns(ctx, seen)
	if err == nil && !owns {
		return false, nil
	}
	if err == nil {
		cidr := netip.MustParsePrefix(seen.Spec.CIDR) // owns has read it
		next := withState(seen, cidr, api.AffinityConfirmed)
		next.Name = seen.Name
		err = c.store.Update(ctx, next)
	}
	return landed(err, "confirm affinity %s", seen.Name)
}

// owns reports whether an affinity's block exists and has its node as the owner.
func (c *Client) owns(ctx context.Context, a *api.BlockAffinity) (bool, error) {
	cidr, err := netip.ParsePrefix(a.Spec.CIDR)
	if err != nil {
		return false, nil // it claims nothing
	}
	obj := &api.IPAMBlock{Meta: api.Meta{Name: names.Block(cidr)}}
	if err := c.store.Get(ctx, obj); errors.Is(err, datastore.ErrNotFound) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	return obj.Spec.Affinity != nil && *obj.Spec.Affinity == names.HostAffinity(claimant(a)), nil
}
