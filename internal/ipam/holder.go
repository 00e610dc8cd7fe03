package ipam

import (
	"context"
	"maps"
	"net/netip"
)

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
