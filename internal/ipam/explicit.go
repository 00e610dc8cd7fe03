package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
)

// chooseExplicit selects the requested address. Its block is claimed if it does not exist.
func chooseExplicit(st *State, req *Request, a netip.Addr) (choice, error) {
	pool, err := poolOf(st, req, a)
	if err != nil {
		return choice{}, err
	}
	cidr, err := blockOf(st, pool, a)
	if err != nil {
		return choice{}, err
	}
	b := st.Blocks[cidr]
	if b == nil {
		return claimFor(st, req, cidr, a)
	}
	if slices.Contains(b.owned(req.Owner), a) {
		return keep(st, req, b, a), nil
	}
	if st.Config.StrictAffinity && !b.OwnedBy(req.Host) {
		return choice{}, fmt.Errorf("%w: %s lies in block %s of %s, and strictAffinity forbids %s to assign from it", ErrTaken, a, b.cidr,
			b.ownerText(), req.Host)
	}
	c := choice{block: b.clone(), address: a}
	if !c.block.AssignAddress(a, req.Owner) {
		return choice{}, fmt.Errorf("%w: %s %s", ErrTaken, a, b.holderText(a, cooldown(st.Config, st.Now)))
	}
	if b.OwnedBy(req.Host) {
		c.affinity = affinityOf(st, cidr)
		if c.claim = c.affinity == nil; c.claim {
			c.affinity = newAffinity(req.Host, cidr)
		}
	}
	return c, nil
}

// poolOf returns the pool of a requested address. The pool's selectors and mode do not apply to requested addresses.
func poolOf(st *State, req *Request, a netip.Addr) (Pool, error) {
	i := slices.IndexFunc(st.Pools, func(p Pool) bool { return p.CIDR.Contains(a) && p.Enabled })
	if i < 0 { // find the reason
		i = slices.IndexFunc(st.Pools, func(p Pool) bool { return p.CIDR.Contains(a) })
	}
	switch {
	case i < 0:
		return Pool{}, fmt.Errorf("%w: the address %s that was asked for lies in no IPPool%s", ErrNoPool, a, st.flaws())
	case !st.Pools[i].Enabled:
		return Pool{}, fmt.Errorf("%w: the IPPool %s of address %s cannot be used: %s", ErrNoPool, st.Pools[i].Name, a, st.Pools[i].Why)
	case !slices.Contains(st.Pools[i].Uses, req.Use):
		return Pool{}, fmt.Errorf("%w: the IPPool %s of address %s has no %s in spec.allowedUses", ErrNoPool, st.Pools[i].Name, a, req.Use)
	}
	return st.Pools[i], nil
}

// blockOf returns the block of an address, which has been read: of the pool's block size, or of another from before
// blockSize changed.
func blockOf(st *State, pool Pool, a netip.Addr) (netip.Prefix, error) {
	cidr := netip.PrefixFrom(a, pool.BlockBits).Masked()
	b, err := st.read(cidr)
	if err != nil || b != nil {
		return cidr, err
	}
	if !st.HaveTaken {
		return cidr, &need{names: true}
	}
	for _, other := range st.Taken {
		b, read := st.Blocks[other]
		switch {
		case !other.Overlaps(cidr) || read && b == nil: // the list is older
		case !other.Contains(a):
			return cidr, fmt.Errorf("%w: %s has no block, and block %s of another size lies in the way", ErrTaken, a, other)
		default:
			_, err := st.read(other)
			return other, err
		}
	}
	return cidr, nil
}

// read returns a block that was read, or a need for it. A damaged one is an error.
func (st *State) read(cidr netip.Prefix) (*Block, error) {
	b, read := st.Blocks[cidr]
	switch {
	case st.Damaged[cidr] != nil:
		return nil, st.Damaged[cidr]
	case !read:
		return nil, &need{blocks: []netip.Prefix{cidr}, likely: []netip.Prefix{cidr}}
	}
	return b, nil
}

// claimFor claims the block of an address.
func claimFor(st *State, req *Request, cidr netip.Prefix, a netip.Addr) (choice, error) {
	c := choice{block: NewBlock(cidr, req.Host, st.Now), isNew: true, affinity: affinityOf(st, cidr), address: a}
	if c.claim = c.affinity == nil; c.claim {
		c.affinity = newAffinity(req.Host, cidr)
	}
	if !c.block.AssignAddress(a, req.Owner) {
		return choice{}, fmt.Errorf("%w: %s in a block that is new", ErrTaken, a)
	}
	return c, nil
}

// ownerText names the block's owner for people.
func (b *Block) ownerText() string {
	if host, ok := b.host(); ok {
		return "node " + host
	}
	if b.Orphan() {
		return "nobody"
	}
	return *b.obj.Spec.Affinity
}

// holderText returns why an address is not free, for people.
func (b *Block) holderText(a netip.Addr, cool Cooldown) string {
	if until, ok := b.coolingUntil(a, cool); ok {
		return "was released and cools down until " + until.UTC().Format(time.RFC3339)
	}
	at := b.obj.Spec.Allocations[b.ordinal(a)]
	if at == nil {
		return "is not free"
	}
	return "is held by " + holderOf(b.obj.Spec.Attributes[*at])
}

func holderOf(attr api.AllocationAttribute) string {
	text := "no handle"
	if attr.HandleID != nil {
		text = "handle " + *attr.HandleID
	}
	at := attr.Secondary
	switch {
	case at["service"] != "":
		return fmt.Sprintf("Service %s/%s", at["namespace"], at["service"]) // its handle is a hash
	case at["pod"] != "":
		text += fmt.Sprintf(" (pod %s/%s on %s)", at["namespace"], at["pod"], at["node"])
	case at["node"] != "":
		text += fmt.Sprintf(" (on %s, of no pod)", at["node"])
	}
	return text
}
