package audit

import (
	"fmt"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// blockName returns a block's name in findings.
func blockName(b *inventory.Block) string { return "IPAMBlock/" + b.Name }

func blockFinding(b *inventory.Block, k Kind, fix Fix, format string, args ...any) Finding {
	owner, isNode := b.Owner()
	if !isNode {
		owner = ""
	}
	return Finding{Kind: k, Object: blockName(b), Node: owner, Detail: fmt.Sprintf(format, args...), Fix: fix, Revision: b.ResourceVersion}
}

func (f Finding) advised(advice string) Finding {
	f.Advice = advice
	return f
}

// checkBlocks reports what is wrong with blocks and their owners.
func (c *cluster) checkBlocks() {
	for i := range c.Blocks {
		b := &c.Blocks[i]
		if b.Damage != nil {
			c.add(blockFinding(b, BlockDamaged, ByHand, "%v", b.Damage).advised(
				"nothing is assigned from it or released into it: correct it by hand, or start its pods anew and remove it"))
			continue
		}
		c.checkOwner(b)
		c.checkNumbers(b)
		switch {
		case c.pooled(b.CIDR):
		case c.surplus[b]:
			c.add(blockFinding(b, BlockNoPool, RemoveBlock, "no IPPool has %s, and no address in it is in use", b.CIDR))
		default:
			c.add(blockFinding(b, BlockNoPool, ByHand, "no IPPool has %s, which is in use", b.CIDR).advised(
				"create the IPPool again, or start the pods that have its addresses anew: the block goes with them"))
		}
	}
	c.checkOverlaps()
}

// checkNumbers compares the sequence numbers of addresses with their block's, which every write increments.
func (c *cluster) checkNumbers(b *inventory.Block) {
	for i := range b.Allocations {
		a := &b.Allocations[i]
		switch {
		case a.Sequence > b.Sequence:
			c.add(found(Held{a, b}, BlockUntidy, ByHand, "it has the sequence number %d, and its block %d, which must be the greater one",
				a.Sequence, b.Sequence).advised(
				"the block was restored from a backup, or written by hand: start the pod anew"))
		case a.Cooling() && a.Released.After(c.Taken.Add(clockTolerance)):
			c.add(found(Held{a, b}, BlockUntidy, ByHand, "it was released in the future, at %s", a.Released).advised(
				"compare the clocks of the nodes"))
		case a.Cooling() && c.Config.IPCooldownSeconds == 0:
			c.add(found(Held{a, b}, AddressCooling, ByHand,
				"it was released at %s and rests, though IPAMConfig or IPAMConfiguration default has no ipCooldownSeconds any more",
				a.Released).advised(
				"the next write of the block frees it"))
		}
	}
}

// checkOwner reports owners that don't exist or have no affinity.
func (c *cluster) checkOwner(b *inventory.Block) {
	owner, isNode := b.Owner()
	switch {
	case b.Affinity == "", strings.HasPrefix(b.Affinity, api.AffinityVirtual+":"):
		// A block without an owner is deleted with its last address; a virtual one belongs to the load balancer controller.
	case !isNode:
		c.add(blockFinding(b, BlockBadOwner, ByHand,
			"spec.affinity %q names neither a node (host:NODE) nor virtual:load-balancer", b.Affinity).advised(
			"no node assigns from it or announces it: write the node that its pods run on"))
	case !c.nodeExists(owner) && !c.surplus[b]:
		c.add(blockFinding(b, BlockOfDeadNode, ByHand, "its node %s does not exist, and %d of its addresses are held", owner,
			len(b.Allocations)).advised(
			"see who holds them: as soon as they are free, the block goes"))
	case c.nodeExists(owner) && !c.claimed(b):
		c.add(blockFinding(b, BlockUnclaimed, Claim,
			"its node %s has no BlockAffinity of %s: it neither assigns from it nor announces it", owner, b.CIDR))
	}
}

// checkOverlaps finds addresses that are in two blocks. Prefixes overlap only if one contains the other: in sorted
// order, wider ones first, each need be compared only with the last one that was not contained.
func (c *cluster) checkOverlaps() {
	var outer *inventory.Block
	for _, b := range sortedBlocks(c.View) {
		if !b.CIDR.IsValid() {
			continue
		}
		if outer == nil || !outer.CIDR.Overlaps(b.CIDR) {
			outer = b
			continue
		}
		f := blockFinding(b, BlockOverlap, ByHand, "%s lies in the block %s: its addresses can be given twice", b.CIDR, outer.CIDR)
		c.add(f.advised("disable the pool, start the pods of the smaller block anew, and let its node give it up"))
	}
}
