package policy

import (
	"net/netip"
	"slices"
)

// ranges are ascending, disjoint and not adjacent; IPv4 comes before IPv6, as netip.Addr.Compare has it.
type ranges []Range

// everywhere is every address.
var everywhere = ranges{rangeOf(netip.MustParsePrefix("0.0.0.0/0")), rangeOf(netip.MustParsePrefix("::/0"))}

// families are the addresses of each.
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

// normal puts ranges in order and joins those that touch. It changes its argument.
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

// after returns the address behind one, if it is not behind the last.
func after(addr, last netip.Addr) netip.Addr {
	if !addr.Less(last) {
		return netip.Addr{}
	}
	return addr.Next()
}

func (rs ranges) contains(addr netip.Addr) bool {
	i, found := slices.BinarySearchFunc(rs, addr, func(r Range, a netip.Addr) int { return r.First.Compare(a) })
	return found || i > 0 && rs[i-1].First.BitLen() == addr.BitLen() && !rs[i-1].Last.Less(addr)
}
