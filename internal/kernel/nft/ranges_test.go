package nft

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// The model is 256 keys of one byte, where every question can be answered by looking at each.
type byteSet [256]bool

// model marks the keys that elements of one byte cover; ok is false if a key is covered twice.
func model(elements []Element) (set byteSet, ok bool) {
	ok = true
	for _, e := range elements {
		for k := int(e.First[0]); k <= int(e.Last[0]); k++ {
			ok = ok && !set[k]
			set[k] = true
		}
	}
	return set, ok
}

// bytePrefix is a prefix within 10.0.0.0/24, and bytes its element as the model sees it.
func bytePrefix(first byte, bits int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, first}), 24+bits%9).Masked()
}

func narrow(elements []Element) []Element {
	out := make([]Element, len(elements))
	for i, e := range elements {
		out[i] = Element{First: e.First[3:], Last: e.Last[3:]}
	}
	return out
}

// bounds returns elements in the kernel's form.
func bounds(elements []Element) []bound {
	var out []bound
	for _, e := range elements {
		end, bounded := next(e.Last)
		e.Last = ""
		out = append(out, bound{Element: e})
		if bounded {
			out = append(out, bound{Element: Element{First: end}, end: true})
		}
	}
	return out
}

// FuzzRanges interprets pairs of bytes as prefixes. Ranges cover the same addresses as the prefixes, without overlap;
// the kernel's form and back preserves them; and the result of compare leads from one list to the other.
func FuzzRanges(f *testing.F) {
	f.Add([]byte{}, []byte{0, 0})
	f.Add([]byte{0, 1, 128, 1}, []byte{0, 0})
	f.Add([]byte{255, 8, 254, 8, 0, 8}, []byte{255, 8})
	f.Add([]byte{16, 4, 17, 8, 32, 4}, []byte{16, 4, 32, 4})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		have, want := checkRanges(t, a), checkRanges(t, b)
		gone, added := compare(have, want)
		left := append(slices.DeleteFunc(slices.Clone(have), func(e Element) bool { return slices.Contains(gone, e) }), added...)
		slices.SortFunc(left, byFirst)
		if diff := cmp.Diff(want, left); len(left) != len(want) || len(want) > 0 && diff != "" {
			t.Errorf("after what compare says (-want +got):\n%s", diff)
		}
		for _, e := range gone {
			if slices.Contains(want, e) {
				t.Errorf("%v is to go and is wanted", e)
			}
		}
	})
}

func checkRanges(t *testing.T, pairs []byte) []Element {
	t.Helper()
	var prefixes []netip.Prefix
	var want byteSet
	for i := 0; i+1 < len(pairs); i += 2 {
		p := bytePrefix(pairs[i], int(pairs[i+1]))
		prefixes = append(prefixes, p)
		for k := range want {
			want[k] = want[k] || p.Contains(netip.AddrFrom4([4]byte{10, 0, 0, byte(k)}))
		}
	}
	ranges := Ranges(prefixes)
	got, ok := model(narrow(ranges))
	if !ok || got != want {
		t.Errorf("Ranges(%v) = %v: overlap: %v", prefixes, ranges, !ok)
	}
	if err := disjoint(ranges); err != nil {
		t.Errorf("Ranges(%v): %v", prefixes, err)
	}
	shuffled := append(bounds(narrow(ranges)), bound{Element: Element{First: "\x00"}, end: true}) // nft's
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	if diff := cmp.Diff(narrow(ranges), join(shuffled)); len(ranges) > 0 && diff != "" {
		t.Errorf("by way of the kernel's form (-want +got):\n%s", diff)
	}
	return ranges
}

// FuzzDisjoint compares with the model, for ranges that need not be prefixes.
func FuzzDisjoint(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4})
	f.Add([]byte{1, 5, 5, 6})
	f.Add([]byte{0, 255, 7, 7})
	f.Fuzz(func(t *testing.T, pairs []byte) {
		var elements []Element
		for i := 0; i+1 < len(pairs); i += 2 {
			elements = append(elements, Element{First: string(pairs[i : i+1]), Last: string(pairs[i+1 : i+2])})
			if last := &elements[len(elements)-1]; last.First > last.Last {
				last.First, last.Last = last.Last, last.First
			}
		}
		_, want := model(elements)
		if err := disjoint(elements); (err == nil) != want {
			t.Errorf("disjoint(%v) = %v, want them disjoint: %v", elements, err, want)
		}
	})
}

func TestNeighbours(t *testing.T) {
	for key, after := range map[string]string{"\x00": "\x01", "\x00\xff": "\x01\x00", "\x0a\x00\xff\xff": "\x0a\x01\x00\x00"} {
		if got, ok := next(key); !ok || got != after {
			t.Errorf("next(%x) = %x, %v; want %x", key, got, ok, after)
		}
		if got := before(after); got != key {
			t.Errorf("before(%x) = %x, want %x", after, got, key)
		}
	}
	if got, ok := next("\xff\xff"); ok {
		t.Errorf("after the last key comes %x", got)
	}
}

// FuzzAttributes: parsing any message from the kernel, or an impostor, does not panic.
func FuzzAttributes(f *testing.F) {
	f.Add([]byte(NewRule("comment", In("set", IPv4.Src), Count(), Do(Jump("chain"))).encode()))
	var element nlmsg.Attributes
	Set{Key: []Type{IPv4Addr}, Interval: true}.kind().append(&element, Range(netip.MustParsePrefix("10.0.0.0/8")))
	f.Add([]byte(element))
	f.Add([]byte{4, 0, 0, 0, 3, 0, 0, 0})
	f.Fuzz(func(_ *testing.T, b []byte) {
		r := decodeRule(b)
		r.normal()
		r.counter()
		join([]bound{decodeElement(b)})
		decodeComment(b)
		decodeVerdict(b)
	})
}

// FuzzNormal: a rule read back from its own encoding is the same rule.
func FuzzNormal(f *testing.F) {
	f.Add("text", uint16(80), true)
	f.Add("", uint16(0), false)
	f.Fuzz(func(t *testing.T, comment string, port uint16, verdict bool) {
		if len(comment) > maxName || slices.Contains([]byte(comment), 0) {
			return // not a comment
		}
		r := NewRule(comment, L4Proto.Is("\x06"), DestPort.Is(PortKey(port)), Count())
		if verdict {
			r.exprs = append(r.exprs, Do(Goto("there"))...)
		}
		back := decodeRule(r.encode())
		back.Comment = decodeComment(encodeComment(comment))
		if r.normal() != back.normal() {
			t.Errorf("%q is read back as %q", r.normal(), back.normal())
		}
		other := NewRule(comment, L4Proto.Is("\x06"), DestPort.Is(PortKey(port+1)), Count())
		if other.normal() == r.normal() {
			t.Errorf("%q is the same for another port", r.normal())
		}
	})
}
