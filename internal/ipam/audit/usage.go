package audit

import (
	"math/big"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// Usage counts the addresses of a pool. Its numbers add up: Size = InUse + Cooling + Reserved + Free.
type Usage struct {
	// Name is the pool's name; empty for the blocks outside of all pools.
	Name string `json:"name"`
	// CIDR is the pool's range; invalid for the blocks outside of all pools.
	CIDR netip.Prefix `json:"cidr,omitzero"`
	// Size is how many addresses there are. A pool of IPv6 has more than a uint64 counts.
	Size *big.Int `json:"size"`
	// InUse is how many are allocated, Cooling how many were released and cool down.
	InUse   int `json:"inUse"`
	Cooling int `json:"cooling"`
	// Reserved is how many of the others are in an IPReservation.
	Reserved *big.Int `json:"reserved"`
	// Free is how many can be assigned.
	Free *big.Int `json:"free"`
	// Borrowed is how many addresses are in use on another node than their block's.
	Borrowed int `json:"borrowed"`
	// Blocks are the pool's blocks, in the order of their ranges.
	Blocks []BlockUsage `json:"blocks"`
}

// BlockUsage counts the addresses of a block. Its numbers add up as a pool's do.
type BlockUsage struct {
	CIDR netip.Prefix `json:"cidr"`
	// Owner is the affinity of the block: host:NODE, virtual:load-balancer, or nothing.
	Owner    string `json:"owner"`
	Size     int    `json:"size"`
	InUse    int    `json:"inUse"`
	Cooling  int    `json:"cooling"`
	Reserved int    `json:"reserved"`
	Free     int    `json:"free"`
	Borrowed int    `json:"borrowed"`
}

// Usages counts each pool, in the order of their ranges, and last the blocks outside of all pools, if there are any.
// Damaged blocks are not counted.
func Usages(v *inventory.View) []Usage {
	pools := readPools(v)
	reserved := reservations(v.Reservations)
	byPool := map[string][]BlockUsage{}
	for i := range v.Blocks {
		if b := &v.Blocks[i]; b.Damage == nil {
			name := poolOf(pools, b.CIDR)
			byPool[name] = append(byPool[name], blockUsage(b, reserved))
		}
	}
	var all []Usage
	for _, p := range pools {
		u := sum(byPool[p.Name])
		u.Name, u.CIDR, u.Size = p.Name, p.CIDR, size(p.CIDR)
		u.Reserved = reservedFree(v, p.CIDR, reserved)
		u.settle()
		all = append(all, u)
	}
	slices.SortFunc(all, func(a, b Usage) int { return a.CIDR.Compare(b.CIDR) })
	if stray := byPool[""]; len(stray) > 0 {
		u := sum(stray)
		for _, b := range stray {
			u.Size.Add(u.Size, big.NewInt(int64(b.Size)))
			u.Reserved.Add(u.Reserved, big.NewInt(int64(b.Reserved)))
		}
		u.settle()
		all = append(all, u)
	}
	return all
}

// poolOf returns the name of the pool that a block lies in, the narrowest if there are several; empty if there is none.
func poolOf(pools []ipam.Pool, block netip.Prefix) string {
	name, bits := "", -1
	for _, p := range pools {
		if p.Has(block) && p.CIDR.Bits() > bits {
			name, bits = p.Name, p.CIDR.Bits()
		}
	}
	return name
}

// reservations returns the reserved ranges, without ranges that lie in others. An entry that can't be parsed reserves
// nothing.
func reservations(objects []api.IPReservation) []netip.Prefix {
	var ranges []netip.Prefix
	for _, r := range objects {
		for _, text := range r.Spec.ReservedCIDRs {
			if cidr, err := ipam.ParseRange(text); err == nil {
				ranges = append(ranges, cidr)
			}
		}
	}
	return merged(ranges)
}

// settle sets Free to the rest.
func (u *Usage) settle() {
	u.Free = new(big.Int).Sub(u.Size, u.Reserved)
	u.Free.Sub(u.Free, big.NewInt(int64(u.InUse+u.Cooling)))
}

func sum(blocks []BlockUsage) Usage {
	slices.SortFunc(blocks, func(a, b BlockUsage) int { return a.CIDR.Compare(b.CIDR) })
	u := Usage{Size: new(big.Int), Reserved: new(big.Int), Blocks: blocks}
	for _, b := range blocks {
		u.InUse, u.Cooling, u.Borrowed = u.InUse+b.InUse, u.Cooling+b.Cooling, u.Borrowed+b.Borrowed
	}
	return u
}

func blockUsage(b *inventory.Block, reserved []netip.Prefix) BlockUsage {
	u := BlockUsage{CIDR: b.CIDR, Owner: b.Affinity, Size: b.Free + len(b.Allocations), Free: b.Free}
	for i := range b.Allocations {
		a := &b.Allocations[i]
		if a.Cooling() {
			u.Cooling++
			continue
		}
		u.InUse++
		if b.Borrowed(a) {
			u.Borrowed++
		}
	}
	if !slices.ContainsFunc(reserved, b.CIDR.Overlaps) {
		return u
	}
	taken := map[netip.Addr]bool{}
	for i := range b.Allocations {
		taken[b.Allocations[i].Address] = true
	}
	for a := b.CIDR.Addr(); b.CIDR.Contains(a); a = a.Next() {
		if !taken[a] && within(a, reserved) {
			u.Reserved, u.Free = u.Reserved+1, u.Free-1
		}
	}
	return u
}

// reservedFree counts the addresses of a pool that are reserved and not allocated.
func reservedFree(v *inventory.View, pool netip.Prefix, reserved []netip.Prefix) *big.Int {
	n := new(big.Int)
	for _, r := range reserved {
		if !r.Overlaps(pool) {
			continue
		}
		if r.Bits() < pool.Bits() {
			r = pool
		}
		n.Add(n, size(r))
	}
	for i := range v.Blocks {
		for j := range v.Blocks[i].Allocations {
			if a := v.Blocks[i].Allocations[j].Address; pool.Contains(a) && within(a, reserved) {
				n.Sub(n, big.NewInt(1))
			}
		}
	}
	return n
}

// merged returns the ranges without ranges that lie in others.
func merged(ranges []netip.Prefix) []netip.Prefix {
	slices.SortFunc(ranges, netip.Prefix.Compare)
	var out []netip.Prefix
	for _, r := range ranges {
		if len(out) == 0 || !out[len(out)-1].Overlaps(r) {
			out = append(out, r)
		}
	}
	return out
}

func within(a netip.Addr, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}

// size returns how many addresses a range has.
func size(r netip.Prefix) *big.Int {
	return new(big.Int).Lsh(big.NewInt(1), uint(r.Addr().BitLen()-r.Bits()))
}
