package audit

import (
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// Held is an allocated address and its block.
type Held struct {
	*inventory.Allocation
	Block *inventory.Block
}

// Holder is a handle and all that it holds. Its addresses are freed together or not at all. An address without a handle
// is a holder of its own.
type Holder struct {
	Handle    string // empty: the address has none
	Addresses []Held
	// Unused: no address is in use. Orphaned: the node that all of them were assigned on is gone, too.
	Unused, Orphaned bool
	// Why is why the first address is not in use.
	Why string
}

// Expired returns the holder in the form for ipam.Client.Expire.
func (h *Holder) Expired() ipam.Expired {
	e := ipam.Expired{Handle: h.Handle, Addresses: make(map[netip.Addr]ipam.Assigned, len(h.Addresses))}
	for _, a := range h.Addresses {
		e.Addresses[a.Address] = ipam.Assigned{Block: a.Block.CIDR, Sequence: a.Sequence}
	}
	return e
}

// Holders returns the holders in a View in the order of their first addresses, without addresses that cool down or that
// Windows reserves.
func Holders(v *inventory.View, index *inventory.Index) []*Holder {
	var all []*Holder
	byHandle := map[string]*Holder{}
	for _, b := range sortedBlocks(v) {
		for i := range b.Allocations {
			a := &b.Allocations[i]
			if a.Cooling() || a.Class == inventory.Windows {
				continue
			}
			h := byHandle[a.Handle]
			if h == nil || a.Handle == "" {
				h = &Holder{Handle: a.Handle, Unused: true, Orphaned: true}
				byHandle[a.Handle] = h
				all = append(all, h)
			}
			h.add(Held{a, b}, index)
		}
	}
	return all
}

// sortedBlocks returns the blocks in the order of their ranges, a wider one before those in it.
func sortedBlocks(v *inventory.View) []*inventory.Block {
	blocks := make([]*inventory.Block, len(v.Blocks))
	for i := range v.Blocks {
		blocks[i] = &v.Blocks[i]
	}
	slices.SortFunc(blocks, func(a, b *inventory.Block) int { return a.CIDR.Compare(b.CIDR) })
	return blocks
}

// add adds an address. The addresses of a handle belong to one container on one node; if they differ, the longer grace
// period applies.
func (h *Holder) add(a Held, index *inventory.Index) {
	verdict, why := index.Judge(a.Allocation)
	if len(h.Addresses) == 0 {
		h.Why = why
	}
	h.Unused = h.Unused && verdict.Unused()
	h.Orphaned = h.Orphaned && verdict == inventory.Orphaned && (len(h.Addresses) == 0 || a.Node == h.Addresses[0].Node)
	h.Addresses = append(h.Addresses, a)
}

// Holding returns the names of the handles that hold an address in the blocks.
func Holding(blocks []inventory.Block) map[string]bool {
	holding := map[string]bool{}
	for i := range blocks {
		for j := range blocks[i].Allocations {
			if a := &blocks[i].Allocations[j]; !a.Cooling() {
				holding[inventory.HandleName(a.Handle)] = true
			}
		}
	}
	return holding
}
