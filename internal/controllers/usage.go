package controllers

import (
	"cmp"
	"math"
	"math/big"
	"net/netip"

	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/audit"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// share is a pool and a node.
type share struct{ pool, node string }

// noPool is the label of blocks outside of all pools.
const noPool = "no_ippool"

// Usage is the fill of the pools.
type Usage struct {
	Pools []PoolUsage // by their ranges
	// InUse and Borrowed are addresses by the node that uses them, Blocks and Cooling by the node that owns the block.
	InUse, Borrowed, Blocks, Cooling map[share]int
	// Damaged are blocks that cannot be read.
	Damaged int
}

// PoolUsage is the fill of one pool.
type PoolUsage struct {
	Name, UID string
	CIDR      netip.Prefix
	// Size is the number of addresses, which may be too large for an integer. InUse counts assigned and cooling addresses.
	// Reserved counts other addresses that are never assigned automatically.
	Size, Reserved float64
	InUse          int
	// Room is the number of blocks that can still be cut from it.
	Room    float64
	Enabled bool
}

// Free returns the number of free addresses.
func (p *PoolUsage) Free() float64 { return max(p.Size-p.Reserved-float64(p.InUse), 0) }

// Measure measures the pools, by audit.Usages.
func Measure(v *inventory.View) Usage {
	pools := ipam.ParsePools(v.Pools)
	u := Usage{InUse: map[share]int{}, Borrowed: map[share]int{}, Blocks: map[share]int{}, Cooling: map[share]int{}}
	poolOf := map[netip.Prefix]string{}
	for _, p := range audit.Usages(v) {
		for _, b := range p.Blocks {
			poolOf[b.CIDR] = cmp.Or(p.Name, noPool)
		}
		if p.Name != "" {
			u.Pools = append(u.Pools, poolUsage(v, pools, &p))
		}
	}
	for i := range v.Blocks {
		if b := &v.Blocks[i]; b.Damage != nil {
			u.Damaged++
		} else {
			u.count(poolOf[b.CIDR], b)
		}
	}
	return u
}

// poolUsage adds the fields of the pool's object.
func poolUsage(v *inventory.View, pools []ipam.Pool, counted *audit.Usage) PoolUsage {
	u := PoolUsage{Name: counted.Name, CIDR: counted.CIDR, Size: float(counted.Size), Reserved: float(counted.Reserved),
		InUse: counted.InUse + counted.Cooling}
	for i, p := range pools {
		if p.Name == counted.Name && p.Err == nil {
			u.UID, u.Enabled = v.Pools[i].UID, p.Enabled
			u.Room = max(math.Exp2(float64(p.BlockBits-p.CIDR.Bits()))-float64(len(counted.Blocks)), 0)
		}
	}
	return u
}

func float(n *big.Int) float64 {
	f, _ := new(big.Float).SetInt(n).Float64()
	return f
}

// count adds a block's addresses to the counts by node.
func (u *Usage) count(pool string, b *inventory.Block) {
	owner, _ := b.Owner()
	u.Blocks[share{pool, owner}]++
	for i := range b.Allocations {
		a := &b.Allocations[i]
		switch {
		case a.Cooling():
			u.Cooling[share{pool, owner}]++
			continue
		case a.Class == inventory.Windows:
			continue
		}
		u.InUse[share{pool, a.Node}]++
		if b.Borrowed(a) {
			u.Borrowed[share{pool, a.Node}]++
		}
	}
}
