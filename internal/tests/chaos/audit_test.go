package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	store "github.com/tortie-net/tortie/internal/datastore"
)

// ranges contain all pools of these tests.
var ranges = []netip.Prefix{netip.MustParsePrefix("10.64.0.0/12"), netip.MustParsePrefix("fd64::/16")}

func inPools(a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// contents is all IPAM objects of a datastore.
type contents struct {
	blocks     api.IPAMBlockList
	handles    api.IPAMHandleList
	affinities api.BlockAffinityList
}

func (c *cluster) contents(ctx context.Context) (*contents, error) {
	var all contents
	return &all, errors.Join(
		c.store.List(ctx, &all.blocks, store.ListOptions{}),
		c.store.List(ctx, &all.handles, store.ListOptions{}),
		c.store.List(ctx, &all.affinities, store.ListOptions{}))
}

// holders returns the handle of each assigned address. Addresses in cooldown are not assigned.
func holders(blocks []api.IPAMBlock) (map[netip.Addr]string, error) {
	held := map[netip.Addr]string{}
	for i := range blocks {
		b := &blocks[i]
		cidr, err := netip.ParsePrefix(b.Spec.CIDR)
		if err != nil {
			return nil, fmt.Errorf("block %s: %w", b.Name, err)
		}
		for _, other := range blocks[:i] {
			if cidr.Overlaps(netip.MustParsePrefix(other.Spec.CIDR)) {
				return nil, fmt.Errorf("blocks %s and %s overlap", b.Name, other.Name)
			}
		}
		a := cidr.Addr()
		for _, at := range b.Spec.Allocations {
			if at != nil && *at >= 0 && *at < len(b.Spec.Attributes) && b.Spec.Attributes[*at].ReleasedAt == "" {
				held[a] = *b.Spec.Attributes[*at].HandleID
			}
			a = a.Next()
		}
	}
	return held, nil
}

// audit returns the violations in a datastore in which exactly the given handles should hold addresses. It applies the
// rules of `calicoctl ipam check`, and more.
func (all *contents) audit(live map[string][]netip.Addr) []string {
	held, err := holders(all.blocks.Items)
	if err != nil {
		return []string{err.Error()}
	}
	var wrong []string
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for i := range all.blocks.Items {
		b := &all.blocks.Items[i]
		for _, fault := range blockFaults(b) {
			add("block %s: %s", b.Name, fault)
		}
	}
	for a, handle := range held {
		if !slices.Contains(live[handle], a) {
			add("%s is held by %s, which should not have it", a, handle)
		}
	}
	for handle, addrs := range live {
		for _, a := range addrs {
			if held[a] != handle {
				add("%s was given to %s and is held by %q", a, handle, held[a])
			}
		}
	}
	wrong = append(wrong, all.handleFaults(held)...)
	wrong = append(wrong, all.affinityFaults()...)
	slices.Sort(wrong)
	return wrong
}

// blockFaults checks that a block is consistent.
func blockFaults(b *api.IPAMBlock) []string {
	var wrong []string
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	s := &b.Spec
	cidr := netip.MustParsePrefix(s.CIDR)
	if b.Name != names.Block(cidr) {
		add("its CIDR is %s", cidr)
	}
	size := 1 << (cidr.Addr().BitLen() - cidr.Bits())
	if len(s.Allocations) != size {
		add("%d allocations for %d addresses", len(s.Allocations), size)
	}
	used, seen := map[int]bool{}, map[int]bool{}
	numbered := map[string]bool{}
	for ordinal, at := range s.Allocations {
		if at == nil {
			continue
		}
		seen[ordinal], used[*at], numbered[strconv.Itoa(ordinal)] = true, true, true
		if *at < 0 || *at >= len(s.Attributes) {
			add("ordinal %d has attribute %d of %d", ordinal, *at, len(s.Attributes))
		}
	}
	for _, ordinal := range s.Unallocated {
		if ordinal < 0 || ordinal >= size || seen[ordinal] {
			add("ordinal %d is free and is not, or twice", ordinal)
		}
		seen[ordinal] = true
	}
	if len(seen) != size {
		add("%d ordinals are free or held, of %d", len(seen), size)
	}
	wrong = append(wrong, attributeFaults(s.Attributes, used)...)
	for ordinal := range s.SequenceNumberForAllocation {
		if !numbered[ordinal] {
			add("ordinal %s is free and has a sequence number", ordinal)
		}
	}
	if len(s.SequenceNumberForAllocation) != len(numbered) {
		add("%d sequence numbers for %d addresses", len(s.SequenceNumberForAllocation), len(numbered))
	}
	return wrong
}

// attributeFaults checks that each attribute is used, and that no release time is in the future.
func attributeFaults(attributes []api.AllocationAttribute, used map[int]bool) []string {
	var wrong []string
	for i, attr := range attributes {
		if !used[i] {
			wrong = append(wrong, fmt.Sprintf("attribute %d is not used", i))
		}
		if released, err := time.Parse(time.RFC3339, attr.ReleasedAt); attr.ReleasedAt != "" &&
			(err != nil || time.Until(released) > time.Second) {
			wrong = append(wrong, fmt.Sprintf("attribute %d was released at %s", i, attr.ReleasedAt))
		}
	}
	return wrong
}

// handleFaults checks that handles match blocks.
func (all *contents) handleFaults(held map[netip.Addr]string) []string {
	var wrong []string
	count := map[string]map[string]int{} // by handle and block
	for _, b := range all.blocks.Items {
		cidr := netip.MustParsePrefix(b.Spec.CIDR)
		for a, handle := range held {
			if !cidr.Contains(a) {
				continue
			}
			if count[handle] == nil {
				count[handle] = map[string]int{}
			}
			count[handle][b.Spec.CIDR]++
		}
	}
	exists := map[string]bool{}
	for _, h := range all.handles.Items {
		exists[h.Spec.HandleID] = true
		if !maps.Equal(h.Spec.Block, count[h.Spec.HandleID]) {
			wrong = append(wrong, fmt.Sprintf("handle %s counts %v, the blocks count %v", h.Spec.HandleID, h.Spec.Block, count[h.Spec.HandleID]))
		}
	}
	for handle, blocks := range count {
		if !exists[handle] {
			wrong = append(wrong, fmt.Sprintf("handle %s does not exist, and has addresses in %v", handle, blocks))
		}
	}
	return wrong
}

// affinityFaults checks that affinities match blocks, except where the next assignment of a node repairs them: a node
// must be able to confirm its pending affinity.
func (all *contents) affinityFaults() []string {
	var wrong []string
	claims := map[string]api.AffinityState{}
	owner := map[string]string{} // by CIDR of a block
	for _, a := range all.affinities.Items {
		claims[a.Spec.Node+" "+a.Spec.CIDR] = a.Spec.State
	}
	for _, b := range all.blocks.Items {
		if b.Spec.Affinity == nil {
			continue
		}
		owner[b.Spec.CIDR] = *b.Spec.Affinity
		host := (*b.Spec.Affinity)[len(api.AffinityHost)+1:]
		if _, ok := claims[host+" "+b.Spec.CIDR]; !ok {
			wrong = append(wrong, fmt.Sprintf("block %s belongs to %s, which has no claim", b.Name, host))
		}
	}
	for _, a := range all.affinities.Items {
		if a.Spec.State == api.AffinityConfirmed && owner[a.Spec.CIDR] != names.HostAffinity(a.Spec.Node) {
			wrong = append(wrong, fmt.Sprintf("%s has a confirmed claim of %s, which belongs to %q", a.Spec.Node, a.Spec.CIDR, owner[a.Spec.CIDR]))
		}
	}
	return wrong
}

// unconfirmed returns the affinities that are not confirmed.
func (all *contents) unconfirmed() []api.BlockAffinity {
	return slices.DeleteFunc(slices.Clone(all.affinities.Items),
		func(a api.BlockAffinity) bool { return a.Spec.State == api.AffinityConfirmed })
}
