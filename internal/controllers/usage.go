package controllers

import (
	"math"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/inventory"
	"github.com/tortie-net/tortie/internal/ipam"
)

// share is what one node has of one pool.
type share struct{ pool, node string }

// noPool is the label of what lies in no pool.
const noPool = "no_ippool"

// Usage is how full the pools are.
type Usage struct {
	Pools []PoolUsage // by name
	// InUse and Borrowed are addresses by the node that uses them, Blocks and Cooling by the node that owns the block.
	InUse, Borrowed, Blocks, Cooling map[share]int
	// Damaged are blocks that cannot be read.
	Damaged int
}

// PoolUsage is how full one pool is.
type PoolUsage struct {
	Name, UID string
	CIDR      netip.Prefix
	// Size is how many addresses it has, as a number that may be too large for an integer. Reserved are those that are never assigned
	// by themselves, InUse those that cannot be: taken, or cooling down.
	Size, Reserved float64
	InUse          int
	// Blocks is how many of its addresses are in blocks, Room how many blocks are left.
	Claimed, Room float64
	Enabled       bool
}

// Free is how many addresses are left.
func (p *PoolUsage) Free() float64 { return max(p.Size-p.Reserved-float64(p.InUse), 0) }

// Measure counts.
func Measure(v *inventory.View) Usage {
	u := Usage{InUse: map[share]int{}, Borrowed: map[share]int{}, Blocks: map[share]int{}, Cooling: map[share]int{}}
	for i := range v.Pools {
		p, err := ipam.ParsePool(&v.Pools[i])
		if err != nil {
			continue // the agents tell
		}
		u.Pools = append(u.Pools, PoolUsage{
			Name: p.Name, UID: v.Pools[i].UID, CIDR: p.CIDR, Size: size(p.CIDR), Enabled: p.Enabled, Reserved: reserved(v, p.CIDR),
			Room: math.Exp2(float64(p.BlockBits - p.CIDR.Bits())),
		})
	}
	slices.SortFunc(u.Pools, func(a, b PoolUsage) int { return a.CIDR.Compare(b.CIDR) })
	for i := range v.Blocks {
		u.count(&v.Blocks[i])
	}
	return u
}

func size(p netip.Prefix) float64 { return math.Exp2(float64(p.Addr().BitLen() - p.Bits())) }

// reserved counts the addresses of a pool that reservations keep; those that two of them keep count once if one lies in the other.
func reserved(v *inventory.View, pool netip.Prefix) float64 {
	var ranges []netip.Prefix
	for i := range v.Reservations {
		for _, text := range v.Reservations[i].Spec.ReservedCIDRs {
			r, err := netip.ParsePrefix(text)
			if a, bad := netip.ParseAddr(text); err != nil && bad == nil {
				r, err = netip.PrefixFrom(a, a.BitLen()), nil
			}
			if err == nil && r.Overlaps(pool) {
				ranges = append(ranges, r.Masked())
			}
		}
	}
	slices.SortFunc(ranges, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	n := 0.0
	for i, r := range ranges {
		if !slices.ContainsFunc(ranges[:i], func(wider netip.Prefix) bool { return wider.Contains(r.Addr()) }) {
			n += size(netip.PrefixFrom(r.Addr(), max(r.Bits(), pool.Bits())))
		}
	}
	return n
}

func (u *Usage) count(b *inventory.Block) {
	if b.Damage != nil {
		u.Damaged++
		return
	}
	pool, name := u.poolOf(b.CIDR), noPool
	if pool != nil {
		name = pool.Name
		pool.Claimed += size(b.CIDR)
		pool.Room = max(pool.Room-1, 0)
	}
	owner, _ := b.Owner()
	u.Blocks[share{name, owner}]++
	for i := range b.Allocations {
		a := &b.Allocations[i]
		if pool != nil {
			pool.InUse++
		}
		switch {
		case a.Cooling():
			u.Cooling[share{name, owner}]++
			continue
		case a.Class == inventory.Windows:
			continue
		}
		u.InUse[share{name, a.Node}]++
		if owner != "" && a.Node != "" && a.Node != owner {
			u.Borrowed[share{name, a.Node}]++
		}
	}
}

// poolOf finds the pool that a block lies in, the narrowest if there are several.
func (u *Usage) poolOf(cidr netip.Prefix) *PoolUsage {
	var best *PoolUsage
	for i := range u.Pools {
		p := &u.Pools[i]
		if p.CIDR.Bits() <= cidr.Bits() && p.CIDR.Contains(cidr.Addr()) && (best == nil || p.CIDR.Bits() > best.CIDR.Bits()) {
			best = p
		}
	}
	return best
}
