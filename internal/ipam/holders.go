package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
)

// Holder is a handle and the addresses that it holds.
type Holder struct {
	Handle string
	// Attrs are the attributes of one of its addresses.
	Attrs     map[string]string
	Addresses []netip.Addr

	assigned map[netip.Addr]Assigned
}

// Holders lists the holders of addresses on a host, by the attribute "node", in blocks of whatever owner. A caller that
// acts on it checks again. Damaged blocks are an error, beside the list from the others.
func (c *Client) Holders(ctx context.Context, host string) ([]Holder, error) {
	now, err := c.readHolders(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("list who holds addresses on %s: %w", host, err)
	}
	return now.list(), now.damage
}

// holdersRead has the holders in the blocks.
type holdersRead struct {
	holders map[string]*Holder // for one host, by their handles
	handles map[string]bool    // the names of all handles of the cluster that hold an address
	damage  error              // of the blocks that are damaged
}

// readHolders reads all blocks of the cluster.
func (c *Client) readHolders(ctx context.Context, host string) (*holdersRead, error) {
	blocks, err := c.readCluster(ctx, datastore.ListOptions{})
	if err != nil {
		return nil, err
	}
	all := &holdersRead{holders: map[string]*Holder{}, handles: map[string]bool{}}
	for i := range blocks {
		b, err := ParseBlock(&blocks[i])
		if err != nil {
			all.damage = errors.Join(all.damage, err)
			continue
		}
		all.add(b, host)
	}
	return all, nil
}

// add adds the block's addresses.
func (all *holdersRead) add(b *Block, host string) {
	for ordinal, at := range b.obj.Spec.Allocations {
		if at == nil {
			continue
		}
		owner := b.obj.Spec.Attributes[*at]
		if owner.HandleID == nil || owner.ReleasedAt != "" {
			continue
		}
		all.handles[names.Handle(*owner.HandleID)] = true
		if owner.Secondary["node"] != host {
			continue
		}
		h := all.holders[*owner.HandleID]
		if h == nil {
			h = &Holder{Handle: *owner.HandleID, Attrs: owner.Secondary, assigned: map[netip.Addr]Assigned{}}
			all.holders[h.Handle] = h
		}
		a := b.addr(ordinal)
		h.Addresses = append(h.Addresses, a)
		h.assigned[a] = Assigned{Block: b.cidr, Sequence: b.obj.Spec.SequenceNumberForAllocation[strconv.Itoa(ordinal)]}
	}
}

// list returns the holders in the order of their handles.
func (all *holdersRead) list() []Holder {
	list := make([]Holder, 0, len(all.holders))
	for _, h := range all.holders {
		list = append(list, *h)
	}
	slices.SortFunc(list, func(a, b Holder) int { return strings.Compare(a.Handle, b.Handle) })
	return list
}

// Holdings returns the addresses that a handle holds now, each with its attributes; none if the handle does not exist.
func (c *Client) Holdings(ctx context.Context, handle string) (map[netip.Addr]map[string]string, error) {
	blocks, err := c.readHeld(ctx, handle)
	held := map[netip.Addr]map[string]string{}
	for _, b := range blocks {
		for _, a := range b.Held(handle) {
			held[a] = b.noted(a)
		}
	}
	return held, err
}

// readHeld returns the blocks that a handle names and that exist; none if there is no handle.
func (c *Client) readHeld(ctx context.Context, handle string) ([]*Block, error) {
	h, err := c.readHandle(ctx, handle)
	if err != nil || h == nil {
		return nil, err
	}
	return c.readBlocksOf(ctx, h)
}

// readBlocksOf returns the existing blocks that a handle names. A damaged one is an error: the handle's addresses there
// are unknown.
func (c *Client) readBlocksOf(ctx context.Context, h *api.IPAMHandle) ([]*Block, error) {
	read, err := c.readBlocks(ctx, handleBlocks(h))
	if err != nil {
		return nil, err
	}
	var blocks []*Block
	for _, b := range read {
		if b.damage != nil {
			return nil, b.damage
		}
		if b.block != nil {
			blocks = append(blocks, b.block)
		}
	}
	return blocks, nil
}

// Addresses returns the addresses that a handle holds now, in ascending order; none if it does not exist.
func (c *Client) Addresses(ctx context.Context, handle string) ([]netip.Addr, error) {
	held, err := c.Holdings(ctx, handle)
	return slices.SortedFunc(maps.Keys(held), netip.Addr.Compare), err
}

// Assigned returns what the owner holds now.
func (c *Client) Assigned(ctx context.Context, owner Owner) ([]Assignment, error) {
	blocks, err := c.readHeld(ctx, owner.Handle)
	var assigned []Assignment
	for _, b := range blocks {
		for _, a := range b.owned(owner) {
			assigned = append(assigned, Assignment{Address: a, Block: b.cidr})
		}
	}
	return assigned, err
}

// Holds returns nil if the owner holds all of the addresses, and else an error that wraps ErrNotHeld and names the
// others.
func (c *Client) Holds(ctx context.Context, owner Owner, addrs []netip.Addr) error {
	assigned, err := c.Assigned(ctx, owner)
	if err != nil {
		return err
	}
	var held []netip.Addr
	for _, a := range assigned {
		held = append(held, a.Address)
	}
	missing := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return slices.Contains(held, a) })
	if len(missing) > 0 {
		return fmt.Errorf("%w: handle %s holds %s, and not %s", ErrNotHeld, owner.Handle, held, missing)
	}
	return nil
}
