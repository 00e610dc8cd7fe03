package ipam

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"

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
	// ErrNotHeld: a handle does not hold what it should.
	ErrNotHeld = errors.New("address is not held")
)

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

// wants reports whether the request asks for an address of a family.
func (r *Request) wants(v6 bool) bool {
	_, explicit := r.address(v6)
	return explicit || v6 && r.V6 || !v6 && r.V4
}

// address returns the address of a family that the owner must get; false if any will do.
func (r *Request) address(v6 bool) (netip.Addr, bool) {
	i := slices.IndexFunc(r.Addresses, func(a netip.Addr) bool { return a.Is6() == v6 })
	if i < 0 {
		return netip.Addr{}, false
	}
	return r.Addresses[i], true
}

// check refuses a request that asks for nothing, or for too much.
func (r *Request) check() error {
	if !r.wants(false) && !r.wants(true) {
		return fmt.Errorf("handle %s asks for no address: neither IPv4 nor IPv6 is wanted", r.Handle)
	}
	for _, v6 := range []bool{false, true} {
		same := slices.DeleteFunc(slices.Clone(r.Addresses), func(a netip.Addr) bool { return a.Is6() != v6 })
		if len(same) > 1 {
			return fmt.Errorf("handle %s asks for the addresses %s: give one of a family", r.Handle, same)
		}
	}
	return nil
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

// stage orders writes: those of a stage do not depend on each other and go out at once, when all of the stage before have
// landed.
type stage int

const (
	toClaim   stage = iota // claims that are stale go, new ones become pending, the handle is told where its addresses will be
	toAssign               // the blocks
	toConfirm              // the claims

	toFree   = toAssign  // the blocks
	toForget = toConfirm // the handle
)

// write is one compare-and-swap write.
type write struct {
	stage  stage
	verb   verb
	obj    api.Resource
	landed bool // it was sent, and the datastore said that it took it
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
//
// Where the state lacks what the decision depends on, the error is a need, and the caller asks again when it is met.
func PlanAssign(st *State, req *Request) (Plan, error) {
	if err := req.check(); err != nil {
		return Plan{}, err
	}
	if err := st.handleReadable(); err != nil {
		return Plan{}, err
	}
	var choices []choice
	var stale []*api.BlockAffinity
	var missing need
	for _, v6 := range []bool{false, true} {
		if !req.wants(v6) {
			continue
		}
		c, dead, err := choose(st, req, v6)
		var n *need
		if errors.As(err, &n) {
			missing.add(n)
			continue
		}
		if err != nil {
			return Plan{}, err
		}
		missing.guess(c.block.cidr)
		choices = append(choices, c)
		stale = append(stale, dead...)
	}
	if missing.any() {
		return Plan{}, &missing
	}
	return assemble(st, req, choices, stale), nil
}

// choose picks the address of one family: the one asked for, else one that the handle holds, else from a block of the host,
// else from a new block, else from one that somebody else does not use, else from somebody else's. It also returns the
// host's affinities whose block belongs to somebody else.
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
	if n := unread(st, own); n != nil {
		return choice{}, nil, n
	}
	c, err := chooseElsewhere(st, req, pools, own)
	return c, stale, err
}

// chooseElsewhere is for a host whose own blocks have no address left.
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
	if len(own) >= limit {
		return choice{}, fmt.Errorf("%w (%d of %d) and they are full: raise maxBlocksPerHost in IPAMConfig default, or remove pods",
			ErrBlockLimit, len(own), limit)
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

// chooseUsed takes from a block that exists: the host's own whose claim was lost, one whose owner does not need it, somebody
// else's.
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

// chooseHeld finds an address of a family that the handle holds already. Its pool may be disabled by now: a container has one
// address as long as it lives.
func chooseHeld(st *State, req *Request, v6 bool) (choice, bool) {
	for _, cidr := range sortedBlocks(handleBlocks(st.Handle)) {
		b := st.Blocks[cidr]
		if b == nil || cidr.Addr().Is6() != v6 {
			continue
		}
		if held := b.Held(req.Handle); len(held) > 0 {
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

// chooseAffine takes an address from the first of the host's blocks that has one, of those that were read.
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

// chooseClaimed completes a claim without its block, which a crash between the two leaves, unless a block of another size
// lies there by now.
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

// assign takes an address from a copy of the chosen block, so that the state stays as it was read.
func (c *choice) assign(st *State, req *Request) (ok bool) {
	if c.block.Free(st.Reserved) == 0 {
		return false
	}
	c.block = c.block.clone()
	c.address, ok = c.block.Assign(req.Owner, st.Reserved)
	return ok
}

// chooseFree claims a range that no block overlaps. Each node starts to look at a place of its own, so that nodes seldom want
// the same block.
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

// chooseLost takes from a block of the host whose claim was lost, and claims it anew.
func chooseLost(st *State, req *Request, pools []Pool) (choice, bool) {
	for _, b := range st.Cluster {
		if !b.OwnedBy(req.Host) || !inPools(b.cidr, pools) || affinityOf(st, b.cidr) != nil {
			continue
		}
		c := choice{block: b, affinity: newAffinity(req.Host, b.cidr), claim: true}
		if c.assign(st, req) {
			return c, true
		}
	}
	return choice{}, false
}

// chooseBorrowed takes an address from a block of somebody else.
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

// assemble orders the writes.
func assemble(st *State, req *Request, choices []choice, stale []*api.BlockAffinity) Plan {
	var p Plan
	for _, a := range stale {
		p.add(toClaim, remove, a)
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

// landedHandle returns the handle as it was written, nil if it was not, and whether the plan would have written it.
func (p *Plan) landedHandle() (h *api.IPAMHandle, planned bool) {
	for _, w := range p.writes {
		if h, ok := w.obj.(*api.IPAMHandle); ok {
			if w.landed {
				return h, true
			}
			return nil, true
		}
	}
	return nil, false
}

func (p *Plan) add(s stage, v verb, obj api.Resource) {
	p.writes = append(p.writes, write{stage: s, verb: v, obj: obj})
}

// claim writes the affinity as pending. One that is pending already is written again: its new revision defeats whoever is
// about to act on the old one.
func (p *Plan) claim(c choice) {
	switch {
	case c.affinity == nil || c.held:
	case c.claim:
		p.add(toClaim, create, c.affinity)
	case !c.affinity.Confirmed() || c.isNew:
		p.add(toClaim, update, withState(c.affinity, c.block.cidr, api.AffinityPending))
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
		h.Spec.Block[c.block.cidr.String()] = len(c.block.Held(req.Handle))
	}
	switch {
	case st.Handle == nil:
		p.add(toClaim, create, h)
	case !maps.Equal(known, h.Spec.Block):
		p.add(toClaim, update, h)
	}
}

func (p *Plan) assign(c choice) {
	p.Assignments = append(p.Assignments, Assignment{Address: c.address, Block: c.block.cidr})
	if c.held {
		return
	}
	c.block.bump()
	if c.isNew {
		p.add(toAssign, create, c.block.obj)
		return
	}
	p.add(toAssign, update, c.block.obj)
}

func (p *Plan) confirm(c choice) {
	if c.affinity == nil || c.affinity.Confirmed() && !c.isNew {
		return
	}
	p.add(toConfirm, update, withState(c.affinity, c.block.cidr, api.AffinityConfirmed))
}

// startBlock spreads nodes over a pool.
func startBlock(host string) uint64 {
	h := fnv.New32()
	h.Write([]byte(host))
	return uint64(h.Sum32())
}

func inPools(cidr netip.Prefix, pools []Pool) bool {
	return slices.ContainsFunc(pools, func(p Pool) bool { return p.CIDR.Contains(cidr.Addr()) && cidr.Bits() >= p.CIDR.Bits() })
}

func overlaps(ranges []netip.Prefix, cidr netip.Prefix) bool {
	return slices.ContainsFunc(ranges, cidr.Overlaps)
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
func PlanRelease(h *api.IPAMHandle, blocks []*Block, cool Cooldown) (Plan, []netip.Addr) {
	var p Plan
	var freed []netip.Addr
	for _, b := range blocks {
		if b == nil {
			continue
		}
		next := b.clone()
		freed = append(freed, next.ReleaseHandle(h.Spec.HandleID, cool)...)
		p.free(next)
	}
	p.add(toForget, remove, h)
	return p, freed
}

// blocks returns the blocks as the plan writes them.
func (p *Plan) blocks() []*Block {
	var out []*Block
	for _, w := range p.writes {
		if obj, ok := w.obj.(*api.IPAMBlock); ok && w.verb == update {
			out = append(out, &Block{obj: obj, cidr: netip.MustParsePrefix(obj.Spec.CIDR)}) // ParseBlock checked it
		}
	}
	return out
}

// free writes a block from which addresses were released.
func (p *Plan) free(b *Block) {
	b.bump()
	if b.Orphan() && b.Empty() {
		p.add(toFree, remove, b.obj)
	} else {
		p.add(toFree, update, b.obj)
	}
}
