package ipam

import (
	"context"
	"errors"
	"fmt"
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
