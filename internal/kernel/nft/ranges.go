package nft

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Ranges returns prefixes of one family as elements that don't overlap, in order: a prefix inside of another is left
// out, as a set can't hold both.
func Ranges(prefixes []netip.Prefix) []Element {
	elements := make([]Element, 0, len(prefixes))
	for _, p := range prefixes {
		elements = append(elements, Range(p))
	}
	slices.SortFunc(elements, byFirst)
	var out []Element
	for _, e := range elements {
		// Prefixes are disjoint or one is inside the other, and the outer one sorts first.
		if len(out) > 0 && e.First <= out[len(out)-1].Last {
			continue
		}
		out = append(out, e)
	}
	return out
}

// byFirst orders by first key, the wider element before the narrower.
func byFirst(a, b Element) int {
	return cmp.Or(strings.Compare(a.First, b.First), -strings.Compare(a.Last, b.Last))
}

// Range returns a prefix as an element of a set of intervals.
func Range(p netip.Prefix) Element {
	first := p.Masked().Addr().AsSlice()
	last := slices.Clone(first)
	for i := p.Bits(); i < len(last)*8; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	return Element{First: string(first), Last: string(last)}
}

// disjoint reports the first two ranges that overlap.
func disjoint(elements []Element) error {
	sorted := slices.Clone(elements)
	slices.SortFunc(sorted, byFirst)
	for i := 1; i < len(sorted); i++ {
		if a, b := sorted[i-1], sorted[i]; a.First != "" && b.First <= a.Last {
			return fmt.Errorf("elements %x-%x and %x-%x overlap", a.First, a.Last, b.First, b.Last)
		}
	}
	return nil
}

// next returns the key after key; ok is false after the last key.
func next(key string) (after string, ok bool) {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]++; b[i] != 0 {
			return string(b), true
		}
	}
	return "", false
}

// before returns the key in front of key, which must not be the first key.
func before(key string) string {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]--; b[i] != 0xff {
			break
		}
	}
	return string(b)
}

// bound is one of the kernel's two elements for a range in a set with a key of one type: the first key, and, marked as
// an end, the first key behind the range. Without an end the range extends to the last key.
type bound struct {
	Element
	end bool
}

// join returns the ranges of bounds, which the kernel lists in no particular order. nft adds to its sets an end at key
// zero, which belongs to no range.
func join(bounds []bound) []Element {
	var starts []Element
	var ends []string
	var out []Element
	for _, b := range bounds {
		switch {
		case b.First == "":
			out = append(out, b.Element)
		case b.end:
			ends = append(ends, b.First)
		default:
			starts = append(starts, b.Element)
		}
	}
	slices.SortFunc(starts, byFirst)
	slices.Sort(ends)
	for _, e := range starts {
		for len(ends) > 0 && ends[0] <= e.First {
			ends = ends[1:]
		}
		e.Last = strings.Repeat("\xff", len(e.First))
		if len(ends) > 0 {
			e.Last = before(ends[0])
		}
		out = append(out, e)
	}
	return out
}

// compare returns the elements that are in one list and not in the other, in the order of the lists.
func compare(have, want []Element) (gone, added []Element) {
	return without(have, want), without(want, have)
}

func without(list, other []Element) []Element {
	there := make(map[Element]bool, len(other))
	for _, e := range other {
		there[e] = true
	}
	var out []Element
	for _, e := range list {
		if !there[e] {
			out = append(out, e)
		}
	}
	return out
}
