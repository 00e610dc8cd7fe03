package ipam

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
)

// defaultMaxBlocks is how many blocks of a family a node may own unless IPAMConfig sets it.
const defaultMaxBlocks = 20

// choice is the block that a family's address comes from.
type choice struct {
	block    *Block             // a copy, with the address assigned
	isNew    bool               // the block does not exist yet
	affinity *api.BlockAffinity // the host's claim; nil if the block is borrowed
	claim    bool               // the affinity must be created
	held     bool               // the address was assigned by an earlier try
	address  netip.Addr
}

// choose selects the address of one family: the requested one, else one that the handle holds, else from a block of the
// host, else from a new block, else from an idle block of another owner, else from any block of another owner. It also
// returns the host's stale affinities, to blocks of other owners.
func choose(st *State, req *Request, v6 bool) (choice, []*api.BlockAffinity, error) {
	if a, ok := req.address(v6); ok {
		c, err := chooseExplicit(st, req, a)
		return c, nil, err
	}
	if c, ok := chooseHeld(st, req, v6); ok {
		return c, nil, nil
	}
	pools, err := usablePools(st, req, v6)
	if err != nil {
		return choice{}, nil, err
	}
	own, stale := ownAffinities(st, req.Host, pools)
	if c, ok := chooseAffine(st, req, own); ok {
		return c, stale, nil
	}
	if n := unread(st, own, req.Full); n != nil {
		return choice{}, nil, n
	}
	c, err := chooseElsewhere(st, req, pools, own)
	return c, stale, err
}

// chooseElsewhere is for a host whose own blocks have no free address.
func chooseElsewhere(st *State, req *Request, pools []Pool, own []*api.BlockAffinity) (choice, error) {
	if !st.HaveTaken {
		return choice{}, &need{names: true}
	}
	if c, ok := chooseClaimed(st, req, own); ok {
		return c, nil
	}
	limit := st.Config.MaxBlocksPerHost
	if limit == 0 {
		limit = defaultMaxBlocks
	}
	if len(own) >= limit && req.Host != names.LoadBalancer { // the limit is a node's
		return choice{}, fmt.Errorf("%w (%d of %d) and they are full: raise maxBlocksPerHost in IPAMConfig or IPAMConfiguration default, "+
			"or remove pods", ErrBlockLimit, len(own), limit)
	}
	if st.Config.AutoAllocateBlocks {
		if c, ok := chooseFree(st, req, pools); ok {
			return c, nil
		}
	}
	if !st.HaveCluster && (st.Config.AutoAllocateBlocks || !st.Config.StrictAffinity) {
		return choice{}, &need{cluster: true}
	}
	return chooseUsed(st, req, pools)
}

// chooseUsed selects from an existing block: the host's own that lost its affinity, then an idle block of another
// owner, then any other block, unless strictAffinity forbids that.
func chooseUsed(st *State, req *Request, pools []Pool) (choice, error) {
	if st.Config.AutoAllocateBlocks {
		if c, ok := chooseLost(st, req, pools); ok {
			return c, nil
		}
		if b := reclaimable(st, req, pools); b != nil {
			return choice{}, &need{reclaim: b}
		}
	}
	if !st.Config.StrictAffinity {
		if c, ok := chooseBorrowed(st, req, pools); ok {
			return c, nil
		}
	}
	return choice{}, exhausted(st, pools)
}

func exhausted(st *State, pools []Pool) error {
	var tried []string
	for _, p := range pools {
		tried = append(tried, fmt.Sprintf("%s %s", p.Name, p.CIDR))
	}
	hint := "add an IPPool or remove pods; calicoctl ipam show tells who holds the addresses"
	if st.Config.StrictAffinity {
		hint = "strictAffinity forbids to borrow from other nodes' blocks; " + hint
	}
	if !st.Config.AutoAllocateBlocks {
		hint = "autoAllocateBlocks=false forbids nodes to claim blocks; " + hint
	}
	return fmt.Errorf("%w in %s: %s%s", ErrExhausted, tried, hint, st.flaws())
}

// chooseHeld finds an address of a family that the handle holds already, even if its pool was disabled since: a
// container has one address as long as it lives.
func chooseHeld(st *State, req *Request, v6 bool) (choice, bool) {
	for _, cidr := range handleBlocks(st.Handle) {
		b := st.Blocks[cidr]
		if b == nil || cidr.Addr().Is6() != v6 {
			continue
		}
		held := slices.DeleteFunc(b.owned(req.Owner), func(a netip.Addr) bool {
			return b.noted(a)[names.AttributeInterface] == names.FloatingInterface // the container does not have it
		})
		if len(held) > 0 {
			return keep(st, req, b, held[0]), true
		}
	}
	return choice{}, false
}

// keep chooses an address that the handle holds.
func keep(st *State, req *Request, b *Block, a netip.Addr) choice {
	c := choice{block: b, held: true, address: a}
	if b.OwnedBy(req.Host) {
		c.affinity = affinityOf(st, b.cidr)
	}
	return c
}

// chooseAffine assigns an address from the first of the host's read blocks that has one.
func chooseAffine(st *State, req *Request, own []*api.BlockAffinity) (choice, bool) {
	for _, a := range own {
		b := st.Blocks[claimedBlock(a)]
		if b == nil {
			continue
		}
		c := choice{affinity: a, block: b}
		if c.assign(st, req) {
			return c, true
		}
	}
	return choice{}, false
}

// chooseClaimed completes an affinity without its block, left by a crash between the two writes, unless a block of
// another size is there now.
func chooseClaimed(st *State, req *Request, own []*api.BlockAffinity) (choice, bool) {
	for _, a := range own {
		cidr := claimedBlock(a)
		if b, read := st.Blocks[cidr]; !read || b != nil || st.Damaged[cidr] != nil || overlaps(st.Taken, cidr) {
			continue
		}
		c := choice{affinity: a, block: NewBlock(cidr, req.Host, st.Now), isNew: true}
		if c.assign(st, req) {
			return c, true
		}
	}
	return choice{}, false
}

// assign assigns an address in a copy of the chosen block: the state stays as it was read.
func (c *choice) assign(st *State, req *Request) (ok bool) {
	if c.block.Free(st.Reserved) == 0 {
		return false
	}
	c.block = c.block.clone()
	c.address, ok = c.block.Assign(req.Owner, st.Reserved)
	return ok
}

// chooseFree claims a range that no block overlaps. The search starts at a place that depends on the node, so that
// nodes seldom compete for one block.
func chooseFree(st *State, req *Request, pools []Pool) (choice, bool) {
	for _, p := range pools {
		if c, ok := chooseFreeIn(st, req, p); ok {
			return c, true
		}
	}
	return choice{}, false
}

func chooseFreeIn(st *State, req *Request, p Pool) (choice, bool) {
	n := p.blockCount()
	taken := takenBlocks(st, p)
	start := startBlock(req.Host) % n
	for i := uint64(0); i < n; i++ {
		at := (start + i) % n
		cidr := p.block(at)
		if taken(cidr) {
			continue
		}
		if r, ok := coveredBy(cidr, st.Reserved); ok {
			i += p.blocksAfter(at, r)
			continue
		}
		c := choice{block: NewBlock(cidr, req.Host, st.Now), isNew: true, affinity: newAffinity(req.Host, cidr), claim: true}
		if c.assign(st, req) {
			return c, true
		}
	}
	return choice{}, false
}

// coveredBy returns the first of the ranges that contains the whole block.
func coveredBy(cidr netip.Prefix, ranges []netip.Prefix) (netip.Prefix, bool) {
	for _, r := range ranges {
		if contains(r, cidr) {
			return r, true
		}
	}
	return netip.Prefix{}, false
}

// takenBlocks returns a function that reports whether a block of the pool overlaps an existing one. After a change of
// blockSize there are blocks of another size, so names are not enough.
func takenBlocks(st *State, p Pool) func(netip.Prefix) bool {
	sameSize := make(map[netip.Prefix]bool, len(st.Taken))
	var others []netip.Prefix
	for _, cidr := range st.Taken {
		switch {
		case cidr.Bits() == p.BlockBits:
			sameSize[cidr] = true
		case cidr.Overlaps(p.CIDR):
			others = append(others, cidr)
		}
	}
	return func(cidr netip.Prefix) bool {
		return sameSize[cidr] || st.Blocks[cidr] != nil || st.Damaged[cidr] != nil || affinityOf(st, cidr) != nil || overlaps(others, cidr)
	}
}

// chooseLost selects from a block of the host that lost its affinity, and creates the affinity again. Where nodes are
// fenced, an affinity has the pool's block size: for blocks of another size, from before blockSize changed,
// kube-controllers creates it.
func chooseLost(st *State, req *Request, pools []Pool) (choice, bool) {
	for _, b := range st.Cluster {
		if !b.OwnedBy(req.Host) || !ofPoolSize(b.cidr, pools) || affinityOf(st, b.cidr) != nil {
			continue
		}
		c := choice{block: b, affinity: newAffinity(req.Host, b.cidr), claim: true}
		if c.assign(st, req) {
			return c, true
		}
	}
	return choice{}, false
}

// chooseBorrowed selects an address from a block of another owner.
func chooseBorrowed(st *State, req *Request, pools []Pool) (choice, bool) {
	candidates := st.Cluster
	if len(candidates) == 0 {
		return choice{}, false
	}
	start := int(startBlock(req.Host) % uint64(len(candidates)))
	for i := range candidates {
		b := candidates[(start+i)%len(candidates)]
		if fresh, ok := st.Blocks[b.cidr]; ok {
			b = fresh
		}
		if b == nil || !inPools(b.cidr, pools) {
			continue
		}
		c := choice{block: b}
		if c.assign(st, req) {
			return c, true
		}
	}
	return choice{}, false
}

// startBlock returns where a host's search in a pool starts, spread by its name.
func startBlock(host string) uint64 {
	h := fnv.New32()
	h.Write([]byte(host))
	return uint64(h.Sum32())
}

func inPools(cidr netip.Prefix, pools []Pool) bool {
	return slices.ContainsFunc(pools, func(p Pool) bool { return p.Has(cidr) })
}

// ofPoolSize reports whether a range has the block size of the pool that it lies in.
func ofPoolSize(cidr netip.Prefix, pools []Pool) bool {
	return slices.ContainsFunc(pools, func(p Pool) bool { return p.BlockBits == cidr.Bits() && p.Has(cidr) })
}

func overlaps(ranges []netip.Prefix, cidr netip.Prefix) bool {
	return slices.ContainsFunc(ranges, cidr.Overlaps)
}
