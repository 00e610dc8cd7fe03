package ipam

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/tortie-net/tortie/internal/api"
)

// Adopt assigns an address to the owner if its block names no other identifiable owner, and reports whether the owner's
// handle holds it now. Such addresses have neither handle nor attributes, from before there were handles, or have the
// owner's attributes with another handle or a handle without an IPAMHandle. All others are left alone.
//
// The address is never free in between: of two owners that adopt one, one gets it. The assignment becomes a new one, as
// with Renew.
func (c *Client) Adopt(ctx context.Context, owner Owner, a netip.Addr) (held bool, err error) {
	err = c.retry(ctx, func() error {
		held = false
		b, err := c.blockWith(ctx, a)
		if err != nil || b == nil {
			return err
		}
		h, err := c.readHandle(ctx, owner.Handle)
		if err != nil {
			return err
		}
		plan, ok := planAdopt(b, h, owner, a)
		if !ok {
			return nil
		}
		held = true
		_, err = c.commit(ctx, plan)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("adopt address %s: %w", a, err)
	}
	return held, nil
}

// blockWith returns the block of an address, nil if there is none.
func (c *Client) blockWith(ctx context.Context, a netip.Addr) (*Block, error) {
	_, blocks, err := c.blocksWith(ctx, []netip.Addr{a})
	i := slices.IndexFunc(blocks, func(b blockRead) bool { return (b.block != nil || b.damage != nil) && b.cidr.Contains(a) })
	if err != nil || i < 0 {
		return nil, err
	}
	return blocks[i].block, blocks[i].damage
}

// planAdopt decides the writes: the handle first, as for each assignment. It returns false if the address can't be
// adopted.
func planAdopt(b *Block, h *api.IPAMHandle, owner Owner, a netip.Addr) (Plan, bool) {
	at := b.obj.Spec.Allocations[b.ordinal(a)]
	if at == nil || !adoptable(b.obj.Spec.Attributes[*at], owner) {
		return Plan{}, false
	}
	next := b.clone()
	if now := b.obj.Spec.Attributes[*at]; !holds(now, owner.Handle) {
		to := next.attribute(owner)
		next.obj.Spec.Allocations[b.ordinal(a)] = &to
		next.dropUnusedAttributes()
	}
	var p Plan
	count := len(next.Held(owner.Handle))
	switch {
	case h == nil:
		h = hostHandle(owner.Handle, owner.Attrs["node"])
		h.Spec.Block[b.cidr.String()] = count
		p.add(toClaim, create, h)
	case h.Spec.Block[b.cidr.String()] != count:
		changed := *h
		changed.Spec.Block = maps.Clone(h.Spec.Block)
		changed.Spec.Block[b.cidr.String()] = count
		p.add(toClaim, update, &changed)
	}
	next.renew(a)
	next.bump()
	p.add(toAssign, update, next.obj)
	return p, true
}

// adoptable reports whether an allocation is the owner's, or has no identifiable owner.
func adoptable(at api.AllocationAttribute, owner Owner) bool {
	switch {
	case at.ReleasedAt != "":
		return false
	case holds(at, owner.Handle):
		return true
	case at.HandleID == nil && len(at.Secondary) == 0:
		return true
	}
	return len(owner.Attrs) > 0 && maps.Equal(at.Secondary, owner.Attrs)
}

// Renew turns an address that a handle holds into a new assignment, and reports whether the handle holds it. An Expire
// of the previous assignment then finds another sequence number and leaves the address alone.
func (c *Client) Renew(ctx context.Context, handle string, a netip.Addr) (held bool, err error) {
	err = c.retry(ctx, func() error {
		held = false
		h, err := c.readHandle(ctx, handle)
		if err != nil || h == nil {
			return err
		}
		blocks, err := c.readBlocks(ctx, handleBlocks(h))
		if err != nil {
			return err
		}
		i := slices.IndexFunc(blocks, func(b blockRead) bool { return b.block != nil && slices.Contains(b.block.Held(handle), a) })
		if i < 0 {
			return nil
		}
		held = true
		next := blocks[i].block.clone()
		next.renew(a)
		next.bump()
		return c.store.Update(ctx, next.obj)
	})
	if err != nil {
		return false, fmt.Errorf("renew address %s: %w", a, err)
	}
	return held, nil
}

// renew gives an address the sequence number of a new assignment.
func (b *Block) renew(a netip.Addr) {
	s := &b.obj.Spec
	s.SequenceNumberForAllocation[strconv.Itoa(b.ordinal(a))] = s.SequenceNumber
}
