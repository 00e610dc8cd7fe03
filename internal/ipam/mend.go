package ipam

import (
	"context"
	"fmt"
	"maps"
	"net/netip"

	"github.com/tortie-net/tortie/internal/datastore"
)

// Recount sets a handle's counts from the blocks, and creates the handle if it is missing; a handle that holds nothing
// is left alone. An assignment writes the handle before the block, so the write fails if one has begun since the handle
// was read.
func (c *Client) Recount(ctx context.Context, id string) (bool, error) {
	h, err := c.readHandle(ctx, id)
	var held map[string]int
	if err == nil {
		held, err = c.countHeld(ctx, id)
	}
	switch {
	case err != nil:
	case len(held) == 0, h != nil && maps.Equal(h.Spec.Block, held):
		return false, nil
	case h == nil:
		h = newHandle(id)
		h.Spec.Block = held
		err = c.store.Create(ctx, h)
	default:
		h.Spec.Block = held
		err = c.store.Update(ctx, h)
	}
	return landed(err, "count what handle %s holds", id)
}

// countHeld counts the addresses of a handle, by block. With a damaged block in the cluster the count is unknown.
func (c *Client) countHeld(ctx context.Context, id string) (map[string]int, error) {
	blocks, err := c.readCluster(ctx, datastore.ListOptions{})
	if err != nil {
		return nil, err
	}
	held := map[string]int{}
	for i := range blocks {
		b, err := ParseBlock(&blocks[i])
		if err != nil {
			return nil, err
		}
		if n := len(b.Held(id)); n > 0 {
			held[b.cidr.String()] = n
		}
	}
	return held, nil
}

// RestoreAffinity creates the missing affinity of a block's owner.
func (c *Client) RestoreAffinity(ctx context.Context, cidr netip.Prefix) (bool, error) {
	read, err := c.readBlocks(ctx, []netip.Prefix{cidr})
	if err != nil {
		return false, fmt.Errorf("restore the claim of %s: %w", cidr, err)
	}
	b := read[0].block
	if b == nil {
		return false, read[0].damage
	}
	if b.Orphan() {
		return false, nil
	}
	claim := newAffinity(b.owner(), cidr)
	if done, err := landed(c.store.Create(ctx, claim), "restore the claim of %s", cidr); !done {
		return false, err
	}
	return c.ConfirmAffinity(ctx, claim)
}
