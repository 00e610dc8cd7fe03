package ipam

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

// Errors that callers branch on.
var (
	// ErrNoPool: no pool may serve the request.
	ErrNoPool = errors.New("no usable IPPool")
	// ErrExhausted: the pools that may serve the request have no free address.
	ErrExhausted = errors.New("no free address")
	// ErrBlockLimit: the node owns as many blocks as it may, and they are full.
	ErrBlockLimit = errors.New("the node owns as many blocks as it may")
	// ErrTaken: the requested address has another owner.
	ErrTaken = errors.New("address is taken")
	// ErrForeignHandle: the object of the handle's name has another handle ID, which differs in its case.
	ErrForeignHandle = errors.New("handle is of another")
	// ErrNotHeld: a handle does not hold an expected address.
	ErrNotHeld = errors.New("address is not held")
)

// Request asks for one address per family.
type Request struct {
	Owner
	// Host is the node that the addresses are for, or names.LoadBalancer.
	Host string
	// V4, V6 are the wanted families: the request gets one address of each, or fails.
	V4, V6 bool
	// PoolsV4, PoolsV6 restrict the pools, by name or CIDR.
	PoolsV4, PoolsV6 []string
	// Use is the purpose, which pools may exclude.
	Use api.AllowedUse
	// Addresses are the requested addresses, at most one of a family; in a family without one, any will do. Reservations
	// and the pools' selectors do not apply to them.
	Addresses []netip.Addr
	// NamespaceLabels are matched by the pools' namespace selectors; nil where there is no namespace.
	NamespaceLabels map[string]string
	// AnyNamespace: the pools' namespace selectors do not matter.
	AnyNamespace bool
	// Full are blocks of the host seen to be full: they are not read while there is room elsewhere.
	Full []netip.Prefix
	// Also are further owners, with new handles: each gets addresses from the first owner's blocks, while these have room.
	Also []Owner
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

// check refuses a request for no address, or for several of a family.
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

// stage orders writes. The writes of a stage do not depend on each other and are sent in parallel, after all writes of
// the stage before were applied.
type stage int

const (
	toClaim   stage = iota // stale affinities are deleted, new ones created as pending, the handle names the blocks
	toAssign               // the blocks
	toConfirm              // the affinities

	toFree   = toAssign  // the blocks
	toForget = toConfirm // the handle
)

// write is one compare-and-swap write.
type write struct {
	stage  stage
	verb   verb
	obj    api.Resource
	landed bool // the datastore has confirmed it
}

// Plan has the writes, in order, and the assignment after them.
type Plan struct {
	Assignments []Assignment
	writes      []write
	kept        bool // an address was the owner's already

	also [][]Assignment // of the first of Request.Also
}

// PlanAssign decides which addresses to assign, and the writes for that. It is pure: the same state and request give
// the same plan. An address that the handle already holds is kept, so that a repeated request gets the same one.
//
// If the state lacks something that the decision depends on, the error is a need; the caller reads it and plans again.
func PlanAssign(st *State, req *Request) (Plan, error) {
	if err := req.check(); err != nil {
		return Plan{}, err
	}
	if err := st.handleReadable(); err != nil {
		return Plan{}, err
	}
	if err := st.handleOwned(req); err != nil {
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
	p.share(st, req, choices)
	for _, c := range choices {
		p.assign(c)
	}
	for _, c := range choices {
		p.confirm(c)
	}
	return p
}

// filled returns the blocks in which the plan leaves no free address.
func (p *Plan) filled(reserved []netip.Prefix) (full []netip.Prefix) {
	for _, b := range p.blocks(create, update) {
		if b.Free(reserved) == 0 {
			full = append(full, b.cidr)
		}
	}
	return full
}

// claims reports whether the plan writes affinities.
func (p *Plan) claims() bool {
	return slices.ContainsFunc(p.writes, func(w write) bool { _, ok := w.obj.(*api.BlockAffinity); return ok })
}

// landedHandle returns the handle as it was written; nil if it was not.
func (p *Plan) landedHandle() *api.IPAMHandle {
	for _, w := range p.writes {
		if h, ok := w.obj.(*api.IPAMHandle); ok && w.landed {
			return h
		}
	}
	return nil
}

func (p *Plan) add(s stage, v verb, obj api.Resource) {
	p.writes = append(p.writes, write{stage: s, verb: v, obj: obj})
}

// claim writes the affinity as pending. One that is already pending is written again: its new revision makes concurrent
// writes that are based on the old one fail.
func (p *Plan) claim(c choice) {
	switch {
	case c.affinity == nil || c.held:
	case c.claim:
		p.add(toClaim, create, c.affinity)
	case !c.affinity.Confirmed() || c.isNew:
		p.add(toClaim, update, withState(c.affinity, c.block.cidr, api.AffinityPending))
	}
}

// handle writes the handle with its number of addresses in each block, the new ones included. Blocks that an earlier
// try of this request named without getting an address there are dropped.
func (p *Plan) handle(st *State, req *Request, choices []choice) {
	h := hostHandle(req.Handle, req.Host)
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

// share gives further owners addresses from the chosen blocks.
func (p *Plan) share(st *State, req *Request, choices []choice) {
	unfit := func(c choice) bool { return c.held || c.block.Free(st.Reserved) == 0 }
	for _, o := range req.Also {
		if slices.ContainsFunc(choices, unfit) {
			return
		}
		h := hostHandle(o.Handle, req.Host)
		var got []Assignment
		for _, c := range choices {
			a, _ := c.block.Assign(o, st.Reserved)
			h.Spec.Block[c.block.cidr.String()]++
			got = append(got, Assignment{Address: a, Block: c.block.cidr})
		}
		p.add(toClaim, create, h)
		p.also = append(p.also, got)
	}
}

func (p *Plan) assign(c choice) {
	p.Assignments = append(p.Assignments, Assignment{Address: c.address, Block: c.block.cidr})
	if c.held {
		p.kept = true
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

// PlanRelease returns the writes that free the owner's addresses under a handle, and these addresses: the blocks first,
// the handle last. blocks are the existing blocks that the handle names. A block without an owner is removed with its
// last address. A handle under which others hold addresses stays; if then the owner holds none, nothing is written.
//
// A block that holds no address of the handle is written too: a process that died may have sent the write that would
// assign one, which may land after this; the new revision defeats it.
func PlanRelease(h *api.IPAMHandle, owner Owner, blocks []*Block, cool Cooldown) (Plan, []netip.Addr) {
	var p Plan
	var freed []netip.Addr
	left := map[string]int{}
	for _, b := range blocks {
		next := b.clone()
		freed = append(freed, next.releaseOwned(owner, cool)...)
		if n := len(next.Held(owner.Handle)); n > 0 {
			left[b.cidr.String()] = n
		}
		p.free(next)
	}
	switch {
	case len(left) == 0:
		p.add(toForget, remove, h)
	case len(freed) == 0:
		return Plan{}, nil
	default:
		rest := *h
		rest.Spec.Block = left
		p.add(toForget, update, &rest)
	}
	return p, freed
}

// blocks returns the blocks of some kinds of writes, as the plan writes them.
func (p *Plan) blocks(kinds ...verb) []*Block {
	var out []*Block
	for _, w := range p.writes {
		if obj, ok := w.obj.(*api.IPAMBlock); ok && slices.Contains(kinds, w.verb) {
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
