package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/datastore"
)

// Carry makes sure that addresses in use on a host are assigned, after the objects were copied from another datastore.
// An address that is free here and assigned there was assigned too late for the copy: it is claimed for the same owner,
// by compare-and-swap. Addresses that are assigned here, or lie outside of all pools, are left as they are.
//
// It returns the claimed addresses. left names each other address that is assigned to another host or has no owner to
// claim it for. err is of a datastore that does not answer or refuses a claim; Carry may be called again, and until
// then the address could be given to another pod. If nothing is missing it reads the pools and a block for each block
// of the addresses.
func (c *Client) Carry(ctx context.Context, from *Client, host string, inUse []netip.Addr) (claimed []netip.Addr, left, err error) {
	inUse, here, err := c.assigned(ctx, inUse)
	if err != nil {
		return nil, nil, fmt.Errorf("look for addresses in use: %w", err)
	}
	var missing []netip.Addr
	for _, a := range inUse {
		switch at, ok := here[a]; {
		case !ok:
			missing = append(missing, a)
		case cmp.Or(at.Secondary["node"], host) != host:
			left = errors.Join(left, fmt.Errorf("address %s is in use on this node, and its IPAMBlock says that it is held by %s", a, holderOf(at)))
		}
	}
	if len(missing) == 0 {
		return nil, left, nil
	}
	_, there, err := from.assigned(ctx, missing)
	if err != nil && !errors.Is(err, datastore.ErrNotFound) && !errors.Is(err, datastore.ErrUnauthorized) { // its definitions may be gone
		return nil, left, fmt.Errorf("look for addresses in use that are assigned to nobody: %w", err)
	}
	for _, a := range missing {
		switch err := c.claimAs(ctx, host, a, there[a]); {
		case err == nil:
			claimed = append(claimed, a)
		case datastore.Contended(err) || errors.Is(err, datastore.ErrUnavailable) || errors.Is(err, datastore.ErrLocked) || ctx.Err() != nil:
			return claimed, left, err
		default:
			err = fmt.Errorf("address %s is in use on this node, and is assigned to nobody: %w", a, err)
			if errors.Is(err, datastore.ErrUnauthorized) {
				return claimed, left, err
			}
			left = errors.Join(left, err)
		}
	}
	return claimed, left, nil
}

// claimAs assigns an address to its owner before the copy.
func (c *Client) claimAs(ctx context.Context, host string, a netip.Addr, before api.AllocationAttribute) error {
	if before.HandleID == nil {
		return errors.New("no IPAMBlock of the API group before says whose it is: delete the pod, so that it gets another address")
	}
	owner := Owner{Handle: *before.HandleID, Attrs: before.Secondary}
	use := api.UseWorkload
	if names.OfTunnel(owner.Handle) {
		use = api.UseTunnel
	}
	_, err := c.Assign(ctx, Request{Owner: owner, Host: host, Use: use, Addresses: []netip.Addr{a}, AnyNamespace: true})
	return err
}

// assigned returns the addresses that are in a pool and in no damaged block, and the attributes of the assigned ones.
func (c *Client) assigned(ctx context.Context, addrs []netip.Addr) (
	pooled []netip.Addr, at map[netip.Addr]api.AllocationAttribute, err error,
) {
	pooled, blocks, err := c.blocksWith(ctx, addrs)
	if err != nil {
		return nil, nil, err
	}
	at = map[netip.Addr]api.AllocationAttribute{}
	for _, b := range blocks {
		if b.damage != nil { // agents and `ipam check` report it; its content is unknown
			pooled = slices.DeleteFunc(pooled, b.cidr.Contains)
		}
		for _, a := range pooled {
			if b.block == nil || !b.cidr.Contains(a) {
				continue
			}
			if i := b.block.obj.Spec.Allocations[b.block.ordinal(a)]; i != nil && b.block.obj.Spec.Attributes[*i].ReleasedAt == "" {
				at[a] = b.block.obj.Spec.Attributes[*i]
			}
		}
	}
	return pooled, at, nil
}

// blocksWith returns the addresses that are in a pool, and their blocks, of any size. If a block does not exist, it
// makes one more request.
func (c *Client) blocksWith(ctx context.Context, addrs []netip.Addr) (pooled []netip.Addr, blocks []blockRead, err error) {
	var pools api.IPPoolList
	if err := c.store.List(ctx, &pools, datastore.ListOptions{Stale: true}); err != nil {
		return nil, nil, err
	}
	valid := ValidPools(pools.Items)
	var cidrs []netip.Prefix
	for _, a := range addrs {
		i := slices.IndexFunc(valid, func(p Pool) bool { return p.CIDR.Contains(a) })
		if i >= 0 {
			pooled, cidrs = append(pooled, a), append(cidrs, netip.PrefixFrom(a, valid[i].BlockBits).Masked())
		}
	}
	blocks, err = c.readBlocks(ctx, cidrs)
	if err == nil && slices.ContainsFunc(blocks, func(b blockRead) bool { return b.block == nil && b.damage == nil }) {
		blocks, err = c.readOdd(ctx, blocks, pooled)
	}
	return pooled, blocks, err
}

// readOdd adds the blocks of addresses that have another size than the pool's blockSize now.
func (c *Client) readOdd(ctx context.Context, read []blockRead, addrs []netip.Addr) ([]blockRead, error) {
	list, err := c.readCluster(ctx, datastore.ListOptions{Stale: true, NamesOnly: true})
	if err != nil {
		return nil, err
	}
	var odd []netip.Prefix
	for i := range list {
		cidr, ok := names.ParseBlock(list[i].Name)
		known := slices.ContainsFunc(read, func(b blockRead) bool { return b.cidr == cidr })
		if ok && !known && slices.ContainsFunc(addrs, cidr.Contains) {
			odd = append(odd, cidr)
		}
	}
	more, err := c.readBlocks(ctx, odd)
	return append(read, more...), err
}
