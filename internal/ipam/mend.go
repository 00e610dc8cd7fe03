package ipam

import (
	"context"
	"fmt"
	"maps"
	"net/netip"

	"github.com/tortie-net/tortie/internal/datastore"
)

// Recount makes a handle say what the blocks say, and creates it if it is missing; one that holds nothing it leaves alone. Whoever
// assigns by the handle writes it before the block, so that the count lands only if nobody has begun to since the handle was read.
// That somebody was faster is no error.
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

// countHeld counts the addresses of a handle, by block. As long as a block cannot be read nobody can tell.
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

// RestoreClaim gives the owner of a block the claim that it lacks. That there is one by now is no error.
func (c *Client) RestoreClaim(ctx context.Context, cidr netip.Prefix) (bool, error) {
	read, err := c.readBlocks(ctx, []netip.Prefix{cidr})
	if err != nil {
		return false, fmt.Errorf("restore the claim of %s: %w", cidr, err)
	}
	b := read[0].block
	if b == nil {
		return false, read[0].damage
	}
	owner, isNode := b.host()
	if !isNode {
		return false, nil
	}
	claim := newAffinity(owner, cidr)
	if done, err := landed(c.store.Create(ctx, claim), "restore the claim of %s", cidr); !done {
		return false, err
	}
	return c.ConfirmClaim(ctx, claim)
}
