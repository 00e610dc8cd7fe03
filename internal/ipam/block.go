package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
)

// maxBlockBits bounds a block to 2^12 addresses: Calico allows a /20 (and a /116) at most.
const maxBlockBits = 12

// Block is a checked IPAMBlock. Its methods change it in memory only. Values behind its object's pointers and maps are
// never changed in place, except SequenceNumberForAllocation, so that copies may share them.
type Block struct {
	obj  *api.IPAMBlock
	cidr netip.Prefix
}

// NewBlock returns a block with all addresses free and an affinity to host, claimed at the given time.
func NewBlock(cidr netip.Prefix, host string, now time.Time) *Block {
	cidr = cidr.Masked()
	size := 1 << (cidr.Addr().BitLen() - cidr.Bits())
	affinity := names.HostAffinity(host)
	b := &api.IPAMBlock{
		Meta: api.Meta{
			Name:        names.Block(cidr),
			Annotations: map[string]string{names.AnnotationMetadata: "{}"},
		},
		Spec: api.IPAMBlockSpec{
			CIDR:                        cidr.String(),
			Affinity:                    &affinity,
			AffinityClaimTime:           now.UTC().Format(time.RFC3339),
			Allocations:                 make([]*int, size),
			Unallocated:                 make([]int, size),
			Attributes:                  []api.AllocationAttribute{},
			SequenceNumber:              uint64(now.UnixNano()),
			SequenceNumberForAllocation: map[string]uint64{},
		},
	}
	for i := range b.Spec.Unallocated {
		b.Spec.Unallocated[i] = i
	}
	return &Block{obj: b, cidr: cidr}
}

// ParseBlock checks a stored block. A block that contradicts itself must be neither assigned from nor released into, or
// an address could be assigned twice. The error names the block and what is wrong with it.
func ParseBlock(obj *api.IPAMBlock) (*Block, error) {
	cidr, err := netip.ParsePrefix(obj.Spec.CIDR)
	if err != nil {
		return nil, fmt.Errorf("IPAMBlock %s: spec.cidr %q is no CIDR", obj.Name, obj.Spec.CIDR)
	}
	b := &Block{obj: obj, cidr: cidr}
	if err := b.check(); err != nil {
		return nil, fmt.Errorf("IPAMBlock %s is damaged: %w: kube-controllers ipam check says what to do", obj.Name, err)
	}
	b.fillAbsent()
	return b, nil
}

// fillAbsent replaces absent lists by empty ones: the schema refuses null.
func (b *Block) fillAbsent() {
	s := &b.obj.Spec
	if s.Unallocated == nil {
		s.Unallocated = []int{}
	}
	if s.Attributes == nil {
		s.Attributes = []api.AllocationAttribute{}
	}
	if s.SequenceNumberForAllocation == nil {
		s.SequenceNumberForAllocation = map[string]uint64{}
	}
}

func (b *Block) check() error {
	s := &b.obj.Spec
	// Two blocks of one range would give the same address twice, and only the name keeps them from both existing.
	if b.cidr != b.cidr.Masked() || b.obj.Name != names.Block(b.cidr) {
		return fmt.Errorf("spec.cidr %s is not the range that the name stands for", s.CIDR)
	}
	hostBits := b.cidr.Addr().BitLen() - b.cidr.Bits()
	if hostBits > maxBlockBits {
		return fmt.Errorf("spec.cidr %s holds more than %d addresses", s.CIDR, 1<<maxBlockBits)
	}
	if want := 1 << hostBits; len(s.Allocations) != want {
		return fmt.Errorf("spec.allocations has %d entries where %s has %d addresses", len(s.Allocations), s.CIDR, want)
	}
	if err := b.checkOrdinals(); err != nil {
		return err
	}
	for i, a := range s.Attributes {
		if a.ReleasedAt == "" {
			continue
		}
		if _, err := time.Parse(time.RFC3339, a.ReleasedAt); err != nil {
			return fmt.Errorf("spec.attributes[%d].releasedAt %q is no time such as 2026-01-02T03:04:05Z", i, a.ReleasedAt)
		}
	}
	return nil
}

// checkOrdinals checks that each address is either allocated or free, once.
func (b *Block) checkOrdinals() error {
	s := &b.obj.Spec
	seen := 0
	for ordinal, at := range s.Allocations {
		if at == nil {
			continue
		}
		seen++
		if *at < 0 || *at >= len(s.Attributes) {
			return fmt.Errorf("spec.allocations[%d] points to attribute %d of %d", ordinal, *at, len(s.Attributes))
		}
	}
	free := make([]bool, len(s.Allocations))
	for _, ordinal := range s.Unallocated {
		if ordinal < 0 || ordinal >= len(free) || free[ordinal] || s.Allocations[ordinal] != nil {
			return fmt.Errorf("spec.unallocated lists ordinal %d, which is out of range, listed twice or allocated", ordinal)
		}
		free[ordinal] = true
		seen++
	}
	if seen != len(free) {
		return fmt.Errorf("%d addresses are neither allocated nor free", len(free)-seen)
	}
	return nil
}

// clone returns a copy that can be changed without changing b.
func (b *Block) clone() *Block {
	obj := *b.obj
	obj.Spec.Allocations = slices.Clone(obj.Spec.Allocations)
	obj.Spec.Unallocated = slices.Clone(obj.Spec.Unallocated)
	obj.Spec.Attributes = slices.Clone(obj.Spec.Attributes)
	obj.Spec.SequenceNumberForAllocation = maps.Clone(obj.Spec.SequenceNumberForAllocation)
	return &Block{obj: &obj, cidr: b.cidr}
}

// OwnedBy reports whether the block belongs to an owner.
func (b *Block) OwnedBy(owner string) bool {
	return b.obj.Spec.Affinity != nil && *b.obj.Spec.Affinity == names.HostAffinity(owner)
}

// Orphan reports whether the block has no affinity.
func (b *Block) Orphan() bool { return b.obj.Spec.Affinity == nil || *b.obj.Spec.Affinity == "" }

// host returns the node that the block has an affinity to; false if it has none, or one that is not to a node.
func (b *Block) host() (string, bool) {
	if b.Orphan() {
		return "", false
	}
	return strings.CutPrefix(*b.obj.Spec.Affinity, api.AffinityHost+":")
}

// owner returns the node that the block has an affinity to, or another owner, such as names.LoadBalancer; empty if
// there is none.
func (b *Block) owner() string {
	if host, ok := b.host(); ok || b.Orphan() {
		return host
	}
	return *b.obj.Spec.Affinity
}

// windowsReserved is the handle, in any case, of the addresses that Windows reserves in each of its blocks.
const windowsReserved = "windows-reserved-ipam-handle"

// Empty reports whether no address is allocated, except those that Windows reserves. An address that cools down counts
// as allocated, as in Calico.
func (b *Block) Empty() bool {
	s := &b.obj.Spec
	return !slices.ContainsFunc(s.Allocations, func(at *int) bool {
		if at == nil {
			return false
		}
		handle := s.Attributes[*at].HandleID
		return handle == nil || !strings.EqualFold(*handle, windowsReserved)
	})
}

// claimedBefore reports whether the owner claimed the block by then. Blocks of Calico before 3.32 have no time of the
// claim.
func (b *Block) claimedBefore(then time.Time) bool {
	at, err := time.Parse(time.RFC3339, b.obj.Spec.AffinityClaimTime)
	return err != nil || !at.After(then)
}

// Free returns the number of addresses that are neither taken nor reserved.
func (b *Block) Free(reserved []netip.Prefix) int {
	n := 0
	for _, ordinal := range b.obj.Spec.Unallocated {
		if !within(b.addr(ordinal), reserved) {
			n++
		}
	}
	return n
}

// Assign gives the owner the address that has been free for longest, skipping reserved ones without moving them in the
// order. It returns false if there is none.
func (b *Block) Assign(owner Owner, reserved []netip.Prefix) (netip.Addr, bool) {
	s := &b.obj.Spec
	for i, ordinal := range s.Unallocated {
		a := b.addr(ordinal)
		if within(a, reserved) {
			continue
		}
		b.take(i, owner)
		return a, true
	}
	return netip.Addr{}, false
}

// AssignAddress gives the owner one address, reserved or not. It returns false if that is not free.
func (b *Block) AssignAddress(a netip.Addr, owner Owner) bool {
	i := slices.Index(b.obj.Spec.Unallocated, b.ordinal(a))
	if i < 0 {
		return false
	}
	b.take(i, owner)
	return true
}

// take gives the owner the i-th of the free addresses.
func (b *Block) take(i int, owner Owner) {
	s := &b.obj.Spec
	ordinal := s.Unallocated[i]
	s.Unallocated = slices.Delete(s.Unallocated, i, i+1)
	at := b.attribute(owner)
	s.Allocations[ordinal] = &at
	s.SequenceNumberForAllocation[strconv.Itoa(ordinal)] = s.SequenceNumber
}

// attribute returns the index of the owner's attributes, which all addresses of one owner share.
func (b *Block) attribute(owner Owner) int {
	s := &b.obj.Spec
	for i, a := range s.Attributes {
		if holds(a, owner.Handle) && maps.Equal(a.Secondary, owner.Attrs) && a.AlternateOwnerAttrs == nil {
			return i
		}
	}
	handle := owner.Handle
	s.Attributes = append(s.Attributes, api.AllocationAttribute{HandleID: &handle, Secondary: maps.Clone(owner.Attrs)})
	return len(s.Attributes) - 1
}

// Held returns the addresses that a handle holds, in ascending order.
func (b *Block) Held(handle string) []netip.Addr {
	var held []netip.Addr
	for ordinal, at := range b.obj.Spec.Allocations {
		if at != nil && holds(b.obj.Spec.Attributes[*at], handle) {
			held = append(held, b.addr(ordinal))
		}
	}
	return held
}

// ReleaseHandle releases the addresses of a handle and returns them. They go to the end of the list of free addresses,
// so that an address is reused as late as the block allows: at once, or after the cooldown.
func (b *Block) ReleaseHandle(handle string, cool Cooldown) []netip.Addr {
	return b.releaseOwned(Owner{Handle: handle}, cool)
}

// releaseOwned is ReleaseHandle for the owner's addresses only.
func (b *Block) releaseOwned(owner Owner, cool Cooldown) []netip.Addr {
	released := b.owned(owner)
	if len(released) > 0 {
		b.releaseAll(released, cool)
	}
	return released
}

// releaseAll releases addresses, whatever their handles are.
func (b *Block) releaseAll(released []netip.Addr, cool Cooldown) {
	s := &b.obj.Spec
	for _, a := range released {
		ordinal := b.ordinal(a)
		s.Allocations[ordinal] = nil
		delete(s.SequenceNumberForAllocation, strconv.Itoa(ordinal))
		if cool.Period <= 0 {
			s.Unallocated = append(s.Unallocated, ordinal)
		}
	}
	if cool.Period > 0 {
		b.cool(released, cool.Now)
	}
	b.dropUnusedAttributes()
}

// dropUnusedAttributes removes attributes that no address points to and keeps the order of the others.
func (b *Block) dropUnusedAttributes() {
	s := &b.obj.Spec
	used := make([]bool, len(s.Attributes))
	for _, at := range s.Allocations {
		if at != nil {
			used[*at] = true
		}
	}
	kept := make([]api.AllocationAttribute, 0, len(s.Attributes))
	moved := make([]int, len(s.Attributes))
	for i, a := range s.Attributes {
		if used[i] {
			moved[i] = len(kept)
			kept = append(kept, a)
		}
	}
	s.Attributes = kept
	for ordinal, at := range s.Allocations {
		if at != nil {
			to := moved[*at]
			s.Allocations[ordinal] = &to
		}
	}
}

// bump increments the sequence number, as every write of a block must: garbage collection guards its releases by it.
func (b *Block) bump() { b.obj.Spec.SequenceNumber++ }

// holds reports whether the attributes belong to a handle. An address that cools down belongs to none.
func holds(a api.AllocationAttribute, handle string) bool {
	return a.HandleID != nil && *a.HandleID == handle && a.ReleasedAt == ""
}

func (b *Block) addr(ordinal int) netip.Addr { return offset(b.cidr.Addr(), uint64(ordinal), 0) }

func (b *Block) ordinal(a netip.Addr) int { return int(distance(b.cidr.Addr(), a)) }

func within(a netip.Addr, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}
