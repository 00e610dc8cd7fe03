package audit

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

func handleFinding(h *inventory.Handle, k Kind, fix Fix, format string, args ...any) Finding {
	return Finding{Kind: k, Object: "IPAMHandle/" + h.Name, Handle: h.ID, Detail: fmt.Sprintf(format, args...), Fix: fix,
		Revision: h.ResourceVersion}
}

// checkHandles compares handles with blocks. The addresses of a handle in a damaged block are unknown.
func (c *cluster) checkHandles() {
	holds := c.heldByHandle()
	exists := map[string]bool{}
	for i := range c.Handles {
		h := &c.Handles[i]
		id, _, _ := strings.Cut(h.ID, "\r") // blocks are read without it, too
		exists[id] = true
		if h.Name != names.Handle(h.ID) && !c.surplus[h] {
			c.add(handleFinding(h, HandleName, ByHand, "%s", misnamed(h)).advised("remove it when its container has ended"))
		}
		for _, odd := range h.Odd {
			c.add(handleFinding(h, HandleCount, Recount, "it names %q, which is no range of addresses", odd))
		}
		if !c.surplus[h] && !MayHold(h, c.damaged) && len(holds[id]) > 0 && !maps.Equal(h.Blocks, holds[id]) {
			c.add(handleFinding(h, HandleCount, Recount, "it says that it holds %s, and the blocks say %s", counts(h.Blocks), counts(holds[id])))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(holds)) {
		if !exists[id] {
			c.add(Finding{Kind: HandleMissing, Object: "IPAMHandle/" + names.Handle(id), Handle: id, Fix: Recount,
				Detail: fmt.Sprintf("it does not exist, and holds %s: nothing that ends can release that", counts(holds[id]))})
		}
	}
}

func misnamed(h *inventory.Handle) string {
	return fmt.Sprintf("its ID is %q: it is not found by this name", h.ID)
}

// heldByHandle counts each handle's addresses by block. The addresses that Windows reserves have no handle object.
func (c *cluster) heldByHandle() map[string]map[netip.Prefix]int {
	holds := map[string]map[netip.Prefix]int{}
	for _, all := range c.heldAt {
		for _, a := range all {
			if a.Handle == "" || a.Class == inventory.Windows {
				continue
			}
			if holds[a.Handle] == nil {
				holds[a.Handle] = map[netip.Prefix]int{}
			}
			holds[a.Handle][a.Block.CIDR]++
		}
	}
	return holds
}

// counts prints how many addresses are in which block.
func counts(blocks map[netip.Prefix]int) string {
	if len(blocks) == 0 {
		return "nothing"
	}
	var parts []string
	for _, cidr := range slices.SortedFunc(maps.Keys(blocks), netip.Prefix.Compare) {
		parts = append(parts, fmt.Sprintf("%d in %s", blocks[cidr], cidr))
	}
	return strings.Join(parts, ", ")
}
