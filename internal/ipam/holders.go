package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/datastore"
)

// Holder is who holds addresses.
type Holder struct {
	Handle string
	// Attrs are the attributes of one of its addresses.
	Attrs     map[string]string
	Addresses []netip.Addr

	blocks map[netip.Prefix]bool // in which they lie
}

// Holders lists who holds addresses for a host, by the attribute "node", in blocks of whatever owner. It is as of now:
// who acts on it looks again. Blocks that contradict themselves are an error beside the list of the others.
func (c *Client) Holders(ctx context.Context, host string) ([]Holder, error) {
	blocks, err := c.readCluster(ctx, datastore.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list who holds addresses on %s: %w", host, err)
	}
	var errs []error
	found := map[string]*Holder{}
	for i := range blocks {
		b, err := ParseBlock(&blocks[i])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		b.holders(host, found)
	}
	list := make([]Holder, 0, len(found))
	for _, h := range found {
		list = append(list, *h)
	}
	slices.SortFunc(list, func(a, b Holder) int { return strings.Compare(a.Handle, b.Handle) })
	return list, errors.Join(errs...)
}

// holders adds the block's addresses that are held for a host.
func (b *Block) holders(host string, found map[string]*Holder) {
	for ordinal, at := range b.obj.Spec.Allocations {
		if at == nil {
			continue
		}
		owner := b.obj.Spec.Attributes[*at]
		if owner.HandleID == nil || owner.ReleasedAt != "" || owner.Secondary["node"] != host {
			continue
		}
		h := found[*owner.HandleID]
		if h == nil {
			h = &Holder{Handle: *owner.HandleID, Attrs: owner.Secondary, blocks: map[netip.Prefix]bool{}}
			found[h.Handle] = h
		}
		h.Addresses, h.blocks[b.cidr] = append(h.Addresses, b.addr(ordinal)), true
	}
}

// Holdings returns the addresses that a handle holds now, each with the attributes of its owner. None if the handle does not
// exist.
func (c *Client) Holdings(ctx context.Context, handle string) (map[netip.Addr]map[string]string, error) {
	h, err := c.readHandle(ctx, handle)
	if err != nil || h == nil {
		return nil, err
	}
	blocks, err := c.readBlocks(ctx, handleBlocks(h))
	if err != nil {
		return nil, err
	}
	held := map[netip.Addr]map[string]string{}
	for _, b := range blocks {
		if b.damage != nil {
			return nil, b.damage
		}
		if b.block != nil {
			maps.Copy(held, b.block.holdings(handle))
		}
	}
	return held, nil
}

func (b *Block) holdings(handle string) map[netip.Addr]map[string]string {
	held := map[netip.Addr]map[string]string{}
	for _, a := range b.Held(handle) {
		if at := b.obj.Spec.Allocations[b.ordinal(a)]; at != nil {
			held[a] = b.obj.Spec.Attributes[*at].Secondary
		}
	}
	return held
}

// Addresses returns the addresses that a handle holds now, in ascending order; none if it does not exist.
func (c *Client) Addresses(ctx context.Context, handle string) ([]netip.Addr, error) {
	held, err := c.Holdings(ctx, handle)
	return slices.SortedFunc(maps.Keys(held), netip.Addr.Compare), err
}

// Holds returns nil if a handle holds all of the addresses, and else an error that wraps ErrNotHeld and names those that it
// does not.
func (c *Client) Holds(ctx context.Context, handle string, addrs []netip.Addr) error {
	held, err := c.Addresses(ctx, handle)
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return slices.Contains(held, a) })
	if len(missing) > 0 {
		return fmt.Errorf("%w: handle %s holds %s, and not %s", ErrNotHeld, handle, held, missing)
	}
	return nil
}
