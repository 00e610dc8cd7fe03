package ipam

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
)

// What callers branch on.
var (
	// ErrNoPool: no pool may serve the request.
	ErrNoPool = errors.New("no usable IPPool")
	// ErrExhausted: the pools that may serve the request have no free address.
	ErrExhausted = errors.New("no free address")
	// ErrBlockLimit: the node owns as many blocks as it may, and they are full.
	ErrBlockLimit = errors.New("the node owns as many blocks as it may")
	// ErrTaken: the address that was asked for belongs to somebody else.
	ErrTaken = errors.New("address is taken")
)

// errNeedCluster asks the caller to list the blocks of the whole cluster and to plan again.
var errNeedCluster = errors.New("the blocks of the cluster are needed")

// defaultMaxBlocks is how many blocks of a family a node may own when IPAMConfig does not say.
const defaultMaxBlocks = 20

// Request asks for one address per family.
type Request struct {
	Owner
	// Host is the node that asks.
	Host string
	// V4, V6 say which families are wanted: all of them or the request fails.
	V4, V6 bool
	// PoolsV4, PoolsV6 restrict the pools, by name or CIDR.
	PoolsV4, PoolsV6 []string
	// Use says what the addresses are for.
	Use api.AllowedUse
	// Addresses are those that the owner must get, at most one of a family; a family without one gets any. Reservations and the
	// pools' selectors do not matter to them.
	Addresses []netip.Addr
	// NamespaceLabels are matched by the pools' namespace selectors; nil where there is no namespace.
	NamespaceLabels map[string]string
}

// State is what was read of the datastore, and all that a plan depends on.
type State struct {
	Now        time.Time
	Config     api.IPAMConfigSpec
	Reserved   []netip.Prefix
	NodeLabels map[string]string
	Pools      []Pool
	// Affinities are the host's claims, in the order of their names.
	Affinities []*api.BlockAffinity
	// Blocks are those that were read one by one; nil means that there is none of that CIDR.
	Blocks map[netip.Prefix]*Block
	// Cluster holds the blocks of the whole cluster, perhaps a little old, if they were listed.
	Cluster []*Block
	// HaveCluster says that they were.
	HaveCluster bool
	// Handle is the request's handle, if it exists and was read.
	Handle *api.IPAMHandle
}

// Assignment is an address and the block that it was taken from.
type Assignment struct {
	Address netip.Addr
	Block   netip.Prefix
}

// verb is a write's kind.
type verb int

const (
	create verb = iota
	update
	remove
)

// write is one compare-and-swap write.
type write struct {
	verb verb
	obj  api.Resource
}

// Plan is what to write, in order, and what is assigned once all of it is written.
type Plan struct {
	Assignments []Assignment
	writes      []write
}

// choice is the block that a family's address comes from.
type choice struct {
	block    *Block             // a copy, with the address assigned
	isNew    bool               // the block does not exist yet
	affinity *api.BlockAffinity // the host's claim; nil if the block is borrowed
	claim    bool               // the affinity is to be created
	held     bool               // the address was assigned by an earlier try
	address  netip.Addr
}

// PlanAssign decides which addresses to assign and which writes that takes. It is pure: the same state and request give the
// same plan. An address that the handle holds already is kept, so that a repeated request gets the same one.
func PlanAssign(st *State, req *Request) (Plan, error) {
	if !req.V4 && !req.V6 {
		return Plan{}, fmt.Errorf("handle %s asks for no address: neither IPv4 nor IPv6 is wanted", req.Handle)
	}
	var choices []choice
	var stale []*api.BlockAffinity
	for _, v6 := range []bool{false, true} {
		if v6 && !req.V6 || !v6 && !req.V4 {
			continue
		}
		c, dead, err := choose(st, req, v6)
		if err != nil {
			return Plan{}, err
		}
		choices = append(choices, c)
		stale = append(stale, dead...)
	}
	return assemble(st, req, choices, stale), nil
}

// choose picks the address of one family: one that the handle holds, else from a block of the host, else from a new block,
// else from somebody else's. It also returns the host's affinities whose block belongs to somebody else.
func choose(st *State, req *Request, v6 bool) (choice, []*api.BlockAffinity, error) {
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
	if !st.HaveCluster {
		return choice{}, nil, errNeedCluster
	}
	limit := st.Config.MaxBlocksPerHost
	if limit == 0 {
		limit = defaultMaxBlocks
	}
	if len(own) >= limit {
		return choice{}, nil, fmt.Errorf("%w (%d of %d) and they are full: raise maxBlocksPerHost in IPAMConfig default, or remove pods",
			ErrBlockLimit, len(own), limit)
	}
	if st.Config.AutoAllocateBlocks {
		if c, ok := chooseNew(st, req, pools); ok {
			return c, stale, nil
		}
	}
	if !st.Config.StrictAffinity {
		if c, ok := chooseBorrowed(st, req, pools); ok {
			return c, stale, nil
		}
	}
	return choice{}, nil, exhausted(pools, st.Config)
}

func exhausted(pools []Pool, cfg api.IPAMConfigSpec) error {
	var tried []string
	for _, p := range pools {
		tried = append(tried, fmt.Sprintf("%s %s", p.Name, p.CIDR))
	}
	hint := "add an IPPool or remove pods; calicoctl ipam show tells who holds the addresses"
	if cfg.StrictAffinity {
		hint = "strictAffinity forbids to borrow from other nodes' blocks; " + hint
	}
	if !cfg.AutoAllocateBlocks {
		hint = "autoAllocateBlocks=false forbids nodes to claim blocks; " + hint
	}
	return fmt.Errorf("%w in %s: %s", ErrExhausted, tried, hint)
}

// chooseHeld finds an address of a family that the handle holds already. Its pool may be disabled by now: a container has one
// address as long as it lives.
func chooseHeld(st *State, req *Request, v6 bool) (choice, bool) {
	for _, cidr := range sortedBlocks(handleBlocks(st.Handle)) {
		b := st.Blocks[cidr]
		if b == nil || cidr.Addr().Is6() != v6 {
			continue
		}
		if held := b.Held(req.Handle); len(held) > 0 {
			c := choice{block: b, held: true, address: held[0]}
			if b.OwnedBy(req.Host) {
				c.affinity = affinityOf(st, cidr)
			}
			return c, true
		}
	}
	return choice{}, false
}

// ownAffinities splits the host's claims of blocks in the pools: those that stand or can be completed, and those whose
// block belongs to somebody else.
func ownAffinities(st *State, host string, pools []Pool) (own, stale []*api.BlockAffinity) {
	for _, a := range st.Affinities {
		cidr, err := netip.ParsePrefix(a.Spec.CIDR)
		if err != nil || !inPools(cidr, pools) {
			continue
		}
		if b := st.Blocks[cidr]; b != nil && !b.OwnedBy(host) {
			stale = append(stale, a)
			continue
		}
		own = append(own, a)
	}
	return own, stale
}

// chooseAffine takes an address from the first of the host's blocks that has one. A claim without its block, which a crash
// between the two leaves, is completed once the cluster's blocks are known: one of another size may lie there by now.
func chooseAffine(st *State, req *Request, own []*api.BlockAffinity) (choice, bool) {
	for _, a := range own {
		cidr := netip.MustParsePrefix(a.Spec.CIDR) // ownAffinities parsed it
		c := choice{affinity: a, block: st.Blocks[cidr]}
		if c.block == nil {
			if !st.HaveCluster || overlaps(st.Cluster, cidr) {
				continue
			}
			c.block, c.isNew = NewBlock(cidr, req.Host, st.Now), true
		}
		if c.assign(st, req) {
			return c, true
		}
	}
	return choice{}, false
}

// assign takes an address from a copy of the chosen block, so that the state stays as it was read.
func (c *choice) assign(st *State, req *Request) (ok bool) {
	if c.block.Free(st.Reserved) == 0 {
		return false
	}
	c.block = c.block.clone()
	c.address, ok = c.block.Assign(req.Owner, st.Reserved)
	return ok
}

// chooseNew finds a block to claim: one of the host whose claim was lost, or a range that no block overlaps. Each node
// starts to look at a place of its own, so that nodes seldom want the same block.
func chooseNew(st *State, req *Request, pools []Pool) (choice, bool) {
	for _, p := range pools {
		for _, b := range st.Cluster {
			if b.OwnedBy(req.Host) && p.CIDR.Contains(b.cidr.Addr()) && affinityOf(st, b.cidr) == nil {
				c := choice{block: b, affinity: newAffinity(req.Host, b.cidr), claim: true}
				if c.assign(st, req) {
					return c, true
				}
			}
		}
		if c, ok := chooseFree(st, req, p); ok {
			return c, true
		}
	}
	return choice{}, false
}

func chooseFree(st *State, req *Request, p Pool) (choice, bool) {
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

// coveredBy returns the first of the ranges in which the whole block lies.
func coveredBy(cidr netip.Prefix, ranges []netip.Prefix) (netip.Prefix, bool) {
	for _, r := range ranges {
		if r.Bits() <= cidr.Bits() && r.Contains(cidr.Addr()) {
			return r, true
		}
	}
	return netip.Prefix{}, false
}

// takenBlocks returns a test whether a block of the pool overlaps one that exists. A blockSize that changed leaves blocks
// of another size, so that names do not tell.
func takenBlocks(st *State, p Pool) func(netip.Prefix) bool {
	sameSize := map[netip.Prefix]bool{}
	var others []*Block
	for _, b := range st.Cluster {
		switch {
		case b.cidr.Bits() == p.BlockBits:
			sameSize[b.cidr] = true
		case b.cidr.Overlaps(p.CIDR):
			others = append(others, b)
		}
	}
	return func(cidr netip.Prefix) bool {
		return sameSize[cidr] || st.Blocks[cidr] != nil || affinityOf(st, cidr) != nil || overlaps(others, cidr)
	}
}

// chooseBorrowed takes an address from a block of somebody else.
func chooseBorrowed(st *State, req *Request, pools []Pool) (choice, bool) {
	candidates := slices.Clone(st.Cluster)
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

// assemble orders the writes: stale claims go first, then claims become pending, then the handle, then the blocks, and at
// last the claims are confirmed.
func assemble(st *State, req *Request, choices []choice, stale []*api.BlockAffinity) Plan {
	var p Plan
	for _, a := range stale {
		p.add(remove, a)
	}
	for _, c := range choices {
		p.claim(c)
	}
	p.handle(st, req, choices)
	for _, c := range choices {
		p.assign(c)
	}
	for _, c := range choices {
		p.confirm(c)
	}
	return p
}

// claims reports whether the plan writes affinities: it claims a block or gives one up.
func (p *Plan) claims() bool {
	return slices.ContainsFunc(p.writes, func(w write) bool { _, ok := w.obj.(*api.BlockAffinity); return ok })
}

func (p *Plan) add(v verb, obj api.Resource) { p.writes = append(p.writes, write{v, obj}) }

// claim writes the affinity as pending. One that is pending already is written again: its new revision defeats whoever is
// about to act on the old one.
func (p *Plan) claim(c choice) {
	switch {
	case c.affinity == nil || c.held:
	case c.claim:
		p.add(create, c.affinity)
	case !c.affinity.Confirmed() || c.isNew:
		p.add(update, withState(c.affinity, c.block.cidr, api.AffinityPending))
	}
}

// handle writes how many addresses the handle holds in each block: those that it is seen to hold, and the new ones. What an
// earlier try of this request noted, and did not get, is dropped.
func (p *Plan) handle(st *State, req *Request, choices []choice) {
	h := newHandle(req.Handle)
	known := map[string]int{}
	if st.Handle != nil {
		h.Meta = st.Handle.Meta
		known = st.Handle.Spec.Block
	}
	for _, cidr := range handleBlocks(st.Handle) {
		if b := st.Blocks[cidr]; b != nil && len(b.Held(req.Handle)) > 0 {
			h.Spec.Block[cidr.String()] = len(b.Held(req.Handle))
		}
	}
	for _, c := range choices {
		if !c.held {
			h.Spec.Block[c.block.cidr.String()]++
		}
	}
	switch {
	case st.Handle == nil:
		p.add(create, h)
	case !equalCounts(known, h.Spec.Block):
		p.add(update, h)
	}
}

func equalCounts(a, b map[string]int) bool {
	if len(a) != len(b) {
		return false
	}
	for k, n := range a {
		if m, ok := b[k]; !ok || m != n {
			return false
		}
	}
	return true
}

func (p *Plan) assign(c choice) {
	p.Assignments = append(p.Assignments, Assignment{Address: c.address, Block: c.block.cidr})
	if c.held {
		return
	}
	c.block.bump()
	if c.isNew {
		p.add(create, c.block.obj)
		return
	}
	p.add(update, c.block.obj)
}

func (p *Plan) confirm(c choice) {
	if c.affinity == nil || c.affinity.Confirmed() && !c.isNew {
		return
	}
	p.add(update, withState(c.affinity, c.block.cidr, api.AffinityConfirmed))
}

// startBlock spreads nodes over a pool.
func startBlock(host string) uint64 {
	h := fnv.New32()
	h.Write([]byte(host))
	return uint64(h.Sum32())
}

func affinityOf(st *State, cidr netip.Prefix) *api.BlockAffinity {
	text := cidr.String()
	for _, a := range st.Affinities {
		if a.Spec.CIDR == text {
			return a
		}
	}
	return nil
}

func inPools(cidr netip.Prefix, pools []Pool) bool {
	return slices.ContainsFunc(pools, func(p Pool) bool { return p.CIDR.Contains(cidr.Addr()) && cidr.Bits() >= p.CIDR.Bits() })
}

func overlaps(blocks []*Block, cidr netip.Prefix) bool {
	return slices.ContainsFunc(blocks, func(b *Block) bool { return b.cidr.Overlaps(cidr) })
}

func sortedBlocks(cidrs []netip.Prefix) []netip.Prefix {
	slices.SortFunc(cidrs, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return cidrs
}

// PlanRelease decides which writes free all addresses of a handle: the blocks first, the handle last. blocks holds what was
// read of the blocks that the handle names; nil is a block that is gone. A block that nobody owns goes with its last address.
//
// A block that holds no address of the handle is written too: the write that would assign one may have been sent by a
// process that died, and land after this; the new revision defeats it.
func PlanRelease(h *api.IPAMHandle, blocks []*Block) (Plan, []netip.Addr) {
	var p Plan
	var freed []netip.Addr
	for _, b := range blocks {
		if b == nil {
			continue
		}
		next := b.clone()
		freed = append(freed, next.ReleaseHandle(h.Spec.HandleID)...)
		next.bump()
		if next.Orphan() && next.Empty() {
			p.add(remove, next.obj)
		} else {
			p.add(update, next.obj)
		}
	}
	p.add(remove, h)
	return p, freed
}
