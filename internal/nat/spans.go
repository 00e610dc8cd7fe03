package nat

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/google/nftables"
)

// span is a range of addresses as an interval set holds it: first is in it, end is the first address beyond. An invalid end
// stands for the end of the address space.
type span struct {
	first, end netip.Addr
}

// spans turns prefixes into ranges that don't overlap, in order; a prefix inside of another is left out, as a set can't hold
// it beside the other.
func spans(prefixes []netip.Prefix) []span {
	sorted := slices.Clone(prefixes)
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	var out []span
	var last netip.Prefix
	for _, p := range sorted {
		// Prefixes are disjoint or one is inside the other, and the outer one sorts first.
		if last.IsValid() && last.Contains(p.Addr()) {
			continue
		}
		last = p
		out = append(out, span{p.Addr(), lastAddr(p).Next()})
	}
	return out
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// elements is the kernel's form of spans: each is two elements, the second marked as an end.
func elements(spans []span) []nftables.SetElement {
	var out []nftables.SetElement
	for _, s := range spans {
		out = append(out, nftables.SetElement{Key: s.first.AsSlice()})
		if s.end.IsValid() {
			out = append(out, nftables.SetElement{Key: s.end.AsSlice(), IntervalEnd: true})
		}
	}
	return out
}

// spansOf is the reverse of elements. The kernel lists elements in no particular order. nft puts an end at address zero into
// sets that it writes, which ends nothing.
func spansOf(elements []nftables.SetElement) []span {
	var starts, ends []netip.Addr
	for _, e := range elements {
		a, ok := netip.AddrFromSlice(e.Key)
		switch {
		case !ok:
		case e.IntervalEnd:
			ends = append(ends, a)
		default:
			starts = append(starts, a)
		}
	}
	slices.SortFunc(starts, netip.Addr.Compare)
	slices.SortFunc(ends, netip.Addr.Compare)
	var out []span
	for _, start := range starts {
		for len(ends) > 0 && ends[0].Compare(start) <= 0 {
			ends = ends[1:]
		}
		s := span{first: start}
		if len(ends) > 0 {
			s.end = ends[0]
		}
		out = append(out, s)
	}
	return out
}

// compare tells what is in one list and not in the other.
func compare(have, want []span) (gone, added []span) {
	return without(have, want), without(want, have)
}

func without(list, other []span) []span {
	there := make(map[span]bool, len(other))
	for _, s := range other {
		there[s] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(s span) bool { return there[s] })
}
