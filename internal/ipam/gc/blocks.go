package gc

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// family is one of the two address families of a node.
type family struct {
	node string
	v6   bool
}

// judgeBlocks finds the empty blocks that nobody needs.
func (p *pass) judgeBlocks() {
	empty := p.emptyBlocks()
	keep := p.kept(empty)
	for _, b := range empty {
		node, hosted := b.Owner()
		if !hosted && b.Affinity != "" {
			continue // of load balancers
		}
		if hosted && p.index.Node(node) != nil && keep[b.CIDR] {
			continue
		}
		if p.sees(p.before.blocks, p.next.blocks, b.Name, form(b.UID, b.ResourceVersion), node) {
			p.out.Blocks = append(p.out.Blocks, *b)
		}
	}
}

// emptyBlocks returns the blocks in which nobody uses an address, in the order of their ranges.
func (p *pass) emptyBlocks() []*inventory.Block {
	var empty []*inventory.Block
	for i := range p.view.Blocks {
		if b := &p.view.Blocks[i]; p.idle(b) {
			empty = append(empty, b)
		}
	}
	slices.SortFunc(empty, func(a, b *inventory.Block) int { return a.CIDR.Compare(b.CIDR) })
	return empty
}

// idle reports that nobody uses an address, and that those that cool down have cooled down: they become free with the next write.
func (p *pass) idle(b *inventory.Block) bool {
	if b.Damage != nil || b.DeletionTimestamp != "" {
		return false
	}
	cooldown := time.Duration(p.view.Config.IPCooldownSeconds) * time.Second
	return !slices.ContainsFunc(b.Allocations, func(a inventory.Allocation) bool {
		if a.Cooling() {
			return p.view.Taken.Sub(a.Released) < cooldown
		}
		return a.Class != inventory.Windows
	})
}

// kept returns the empty blocks that their nodes keep: one of a family, for the next pod, unless another of the node's has pods. It must
// be one that the node can use: its claim stands, and the pool is still for it.
func (p *pass) kept(empty []*inventory.Block) map[netip.Prefix]bool {
	pools := p.pools()
	served, isEmpty := map[family]bool{}, map[*inventory.Block]bool{}
	for _, b := range empty {
		isEmpty[b] = true
	}
	for i := range p.view.Blocks {
		b := &p.view.Blocks[i]
		if node, ok := b.Owner(); ok && b.Damage == nil && !isEmpty[b] {
			served[family{node, b.CIDR.Addr().Is6()}] = true
		}
	}
	keep := map[netip.Prefix]bool{}
	for _, b := range empty {
		node, _ := b.Owner()
		of := family{node, b.CIDR.Addr().Is6()}
		if !served[of] && p.claims[claimKey{node, b.CIDR}] && p.selected(pools, b.CIDR, node) {
			keep[b.CIDR], served[of] = true, true
		}
	}
	return keep
}

// pools returns the pools that can be read.
func (p *pass) pools() []ipam.Pool {
	var pools []ipam.Pool
	for i := range p.view.Pools {
		if pool, err := ipam.ParsePool(&p.view.Pools[i]); err == nil {
			pools = append(pools, pool)
		}
	}
	return pools
}

// selected reports whether the pool of a block is for a node. A block whose pool is gone is for nobody; one whose pool cannot be read
// may be for anybody.
func (p *pass) selected(pools []ipam.Pool, cidr netip.Prefix, node string) bool {
	n := p.index.Node(node)
	if n == nil || len(pools) < len(p.view.Pools) {
		return true
	}
	return slices.ContainsFunc(pools, func(pool ipam.Pool) bool {
		return pool.CIDR.Bits() <= cidr.Bits() && pool.CIDR.Contains(cidr.Addr()) && pool.Nodes.Matches(n.Labels)
	})
}

// judgeAffinities finds the claims that a crash has left half-way, those of nothing, and those of nodes that are gone.
func (p *pass) judgeAffinities() {
	for i := range p.view.Affinities {
		a := &p.view.Affinities[i]
		cidr, err := netip.ParsePrefix(a.Spec.CIDR)
		if err != nil || !isHost(a) {
			continue
		}
		b := p.blocks[cidr]
		owns := b != nil && (b.Damage != nil || b.Affinity == api.AffinityHost+":"+a.Spec.Node)
		exists := p.index.Node(a.Spec.Node) != nil
		switch {
		case owns && (b.Damage != nil || p.idle(b)):
			continue // the claim goes with its block, or stands with it
		case owns && (a.Confirmed() || !exists):
			continue
		}
		if !p.sees(p.before.affinities, p.next.affinities, a.Name, form(a.UID, a.ResourceVersion), a.Spec.Node) {
			continue
		}
		if owns {
			p.out.Confirm = append(p.out.Confirm, *a)
		} else {
			p.out.Affinities = append(p.out.Affinities, *a)
		}
	}
}
