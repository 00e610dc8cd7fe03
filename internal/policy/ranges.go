package policy

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// ranges are ascending, disjoint and not adjacent; IPv4 comes before IPv6, as in netip.Addr.Compare.
type ranges []Range

// everywhere is every address.
var everywhere = ranges{rangeOf(netip.MustParsePrefix("0.0.0.0/0")), rangeOf(netip.MustParsePrefix("::/0"))}

// families holds all addresses of each family.
var families = map[uint8]ranges{4: everywhere[:1:1], 6: everywhere[1:]}

func rangeOf(p netip.Prefix) Range {
	last := p.Masked().Addr().AsSlice()
	for i := range last {
		host := max(0, min(8, (i+1)*8-p.Bits()))
		last[i] |= byte(1<<host - 1)
	}
	end, _ := netip.AddrFromSlice(last)
	return Range{p.Masked().Addr(), end}
}

func rangesOf(prefixes []netip.Prefix) ranges {
	rs := make(ranges, len(prefixes))
	for i, p := range prefixes {
		rs[i] = rangeOf(p)
	}
	return normal(rs)
}

// normal sorts ranges and joins adjacent ones. It changes its argument.
func normal(rs ranges) ranges {
	slices.SortFunc(rs, func(a, b Range) int { return a.First.Compare(b.First) })
	joined := rs[:0]
	for _, r := range rs {
		if n := len(joined) - 1; n >= 0 && touch(joined[n], r) {
			if joined[n].Last.Less(r.Last) {
				joined[n].Last = r.Last
			}
			continue
		}
		joined = append(joined, r)
	}
	return joined
}

// touch reports whether b, which does not begin before a, overlaps or continues it.
func touch(a, b Range) bool {
	return a.First.BitLen() == b.First.BitLen() && (!a.Last.Less(b.First) || a.Last.Next() == b.First)
}

func union(a, b ranges) ranges {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	return normal(slices.Concat(a, b))
}

func intersection(a, b ranges) ranges {
	if slices.Equal(a, everywhere) {
		return b
	}
	return minus(a, minus(everywhere, b))
}

// minus returns the addresses of a that are not in b.
func minus(a, b ranges) ranges {
	var rest ranges
	i := 0
	for _, r := range a {
		for i < len(b) && b[i].Last.Less(r.First) {
			i++
		}
		for j := i; j < len(b) && r.First.IsValid() && !r.Last.Less(b[j].First); j++ {
			if r.First.Less(b[j].First) {
				rest = append(rest, Range{r.First, b[j].First.Prev()})
			}
			r.First = after(b[j].Last, r.Last)
		}
		if r.First.IsValid() {
			rest = append(rest, r)
		}
	}
	return rest
}

// after returns the address after addr, or the zero Addr if that is after last.
func after(addr, last netip.Addr) netip.Addr {
	if !addr.Less(last) {
		return netip.Addr{}
	}
	return addr.Next()
}

// fewer returns at most so many ranges, or one of each family, that contain rs: it closes the smallest gaps of each
// family, in proportion to its number of ranges.
func (rs ranges) fewer(most int) (all ranges) {
	for _, family := range []ranges{families[4], families[6]} {
		if part := intersection(rs, family); len(part) > 0 {
			all = append(all, part.closeGaps(len(part)-max(1, most*len(part)/len(rs)))...)
		}
	}
	return all
}

// closeGaps joins ranges of one family at the n smallest gaps.
func (rs ranges) closeGaps(n int) (joined ranges) {
	before := make([]int, 0, len(rs)) // ranges with a gap before them
	for i := 1; i < len(rs); i++ {
		before = append(before, i)
	}
	slices.SortStableFunc(before, func(a, b int) int { return cmp.Compare(rs.gap(a), rs.gap(b)) })
	closed := make([]bool, len(rs))
	for _, i := range before[:max(0, n)] {
		closed[i] = true
	}
	for i, r := range rs {
		if closed[i] {
			joined[len(joined)-1].Last = r.Last
		} else {
			joined = append(joined, r)
		}
	}
	return joined
}

// gap returns the approximate number of addresses between range i and the one before it.
func (rs ranges) gap(i int) float64 {
	number := func(a netip.Addr) (hi, lo float64) {
		b := a.As16()
		return float64(binary.BigEndian.Uint64(b[:8])), float64(binary.BigEndian.Uint64(b[8:]))
	}
	hi, lo := number(rs[i].First)
	lastHi, lastLo := number(rs[i-1].Last)
	return (hi-lastHi)*(1<<64) + lo - lastLo
}

func (rs ranges) contains(addr netip.Addr) bool {
	i, found := slices.BinarySearchFunc(rs, addr, func(r Range, a netip.Addr) int { return r.First.Compare(a) })
	return found || i > 0 && rs[i-1].First.BitLen() == addr.BitLen() && !rs[i-1].Last.Less(addr)
}
