package wire

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// segments writes a path. A part that begins with 0 is a set of the numbers after it, others are sequences.
func segments(octets int, parts ...[]uint32) []byte {
	var b []byte
	for _, part := range parts {
		kind, numbers := byte(segmentSequence), part
		if part[0] == 0 { // a set
			kind, numbers = segmentSet, part[1:]
		}
		b = append(b, kind, byte(len(numbers)))
		for _, n := range numbers {
			if octets == 2 {
				b = binary.BigEndian.AppendUint16(b, uint16(n))
			} else {
				b = binary.BigEndian.AppendUint32(b, n)
			}
		}
	}
	return b
}

func attributeOf(flag byte, kind attribute, value []byte) []byte {
	return append(appendHead(nil, flag, kind, len(value)), value...)
}

// A peer of two octets passes on long numbers in AS4_PATH and AS4_AGGREGATOR.
func TestWiden(t *testing.T) {
	const big, huge = 4200000001, 4200000002
	narrow := func(parts ...[]uint32) []byte { return attributeOf(0x40, attrASPath, segments(2, parts...)) }
	wide := func(parts ...[]uint32) []byte { return attributeOf(0xc0, attrAS4Path, segments(4, parts...)) }
	four := func(parts ...[]uint32) []byte { return attributeOf(0x40, attrASPath, segments(4, parts...)) }
	router := []byte{10, 0, 0, 7}
	aggregator := func(n uint16) []byte {
		return attributeOf(0xc0, attrAggregator, append(binary.BigEndian.AppendUint16(nil, n), router...))
	}
	aggregator4 := func(kind attribute, n uint32) []byte {
		return attributeOf(0xc0, kind, append(binary.BigEndian.AppendUint32(nil, n), router...))
	}
	for name, c := range map[string]struct {
		attributes, want [][]byte
		flaw             string
	}{
		"none": {attributes: [][]byte{narrow([]uint32{64513, 9})}, want: [][]byte{four([]uint32{64513, 9})}},
		"all are in it": {attributes: [][]byte{narrow([]uint32{64513, asTrans}), wide([]uint32{64513, big})},
			want: [][]byte{four([]uint32{64513, big})}},
		"one came afterwards": {attributes: [][]byte{narrow([]uint32{64513, 7, asTrans}), wide([]uint32{big})},
			want: [][]byte{four([]uint32{64513, 7}, []uint32{big})}},
		"it comes first": {attributes: [][]byte{wide([]uint32{big, huge}), narrow([]uint32{64513, asTrans, asTrans})},
			want: [][]byte{four([]uint32{64513}, []uint32{big, huge})}},
		"a set is one": {attributes: [][]byte{narrow([]uint32{64513}, []uint32{0, 3, 4}, []uint32{asTrans}),
			wide([]uint32{0, 3, 4}, []uint32{big})}, want: [][]byte{four([]uint32{64513}, []uint32{0, 3, 4}, []uint32{big})}},
		"a set came": {attributes: [][]byte{narrow([]uint32{64513}, []uint32{0, 3, 4}, []uint32{asTrans}), wide([]uint32{big})},
			want: [][]byte{four([]uint32{64513}, []uint32{0, 3, 4}, []uint32{big})}},
		"longer does not count": {attributes: [][]byte{narrow([]uint32{64513}), wide([]uint32{64513, big})},
			want: [][]byte{four([]uint32{64513})}},
		"confederations go": {attributes: [][]byte{narrow([]uint32{64513, asTrans}),
			attributeOf(0xc0, attrAS4Path, join([]byte{3, 1, 0, 0, 0, 5}, segments(4, []uint32{big})))},
			want: [][]byte{four([]uint32{64513}, []uint32{big})}},
		"nothing but confederations": {attributes: [][]byte{narrow([]uint32{64513, asTrans}),
			attributeOf(0xc0, attrAS4Path, []byte{3, 1, 0, 0, 0, 5})},
			want: [][]byte{four([]uint32{64513, asTrans})}},
		"malformed": {attributes: [][]byte{narrow([]uint32{64513, asTrans}), attributeOf(0xc0, attrAS4Path, []byte{2, 2, 0, 0, 0, 5})},
			want: [][]byte{four([]uint32{64513, asTrans})}, flaw: "AS4_PATH is malformed"},
		"number 0": {attributes: [][]byte{narrow([]uint32{64513, asTrans}), wide([]uint32{big, 0})},
			want: [][]byte{four([]uint32{64513, asTrans})}, flaw: "AS4_PATH is malformed"},
		"unknown segment": {attributes: [][]byte{narrow([]uint32{64513, asTrans}), attributeOf(0xc0, attrAS4Path, []byte{5, 1, 0, 0, 0, 5})},
			want: [][]byte{four([]uint32{64513, asTrans})}, flaw: "AS4_PATH is malformed"},
		"empty": {attributes: [][]byte{narrow([]uint32{64513, asTrans}), attributeOf(0xc0, attrAS4Path, nil)},
			want: [][]byte{four([]uint32{64513, asTrans})}, flaw: "AS4_PATH is malformed"},
		"wrong flags": {attributes: [][]byte{narrow([]uint32{64513, asTrans}),
			attributeOf(0x80, attrAS4Path, segments(4, []uint32{64513, big}))}, want: [][]byte{four([]uint32{64513, asTrans})}},
		"aggregated by a long number": {attributes: [][]byte{narrow([]uint32{64513, asTrans}), aggregator(asTrans), wide([]uint32{64513, big}),
			aggregator4(attrAS4Aggregator, big)},
			want: [][]byte{four([]uint32{64513, big}), aggregator4(attrAggregator, big)}},
		"aggregated anew": {attributes: [][]byte{narrow([]uint32{64513, asTrans}), aggregator(77), wide([]uint32{64513, big}),
			aggregator4(attrAS4Aggregator, big)},
			want: [][]byte{four([]uint32{64513, asTrans}), aggregator4(attrAggregator, 77)}},
		"aggregated by a short one": {attributes: [][]byte{narrow([]uint32{64513, asTrans}), aggregator(77), wide([]uint32{64513, big})},
			want: [][]byte{four([]uint32{64513, big}), aggregator4(attrAggregator, 77)}},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewSession(outside)
			s.Check(openOf(4, 64513, 90, "10.0.0.2", capabilities(OnlyIPv4)))
			s.Check(raw(Keepalive))
			v := s.Check(updateOf(nil, join(origin, join(c.attributes...), hop), block))
			if v.Reset != nil || v.Flaw != c.flaw {
				t.Fatalf("%v, flaw %q", v.Reset, v.Flaw)
			}
			difftest.Want(t, "", updateOf(nil, join(origin, join(c.want...), hop), block), v.Pass)
		})
	}
}

// A peer of four octets has them left out.
func TestWidenedByNobody(t *testing.T) {
	s := up(t, outside)
	v := s.Check(updateOf(nil, join(origin, path, hop, attributeOf(0xc0, attrAS4Path, segments(4, []uint32{9}))), block))
	if d := cmp.Diff(updateOf(nil, join(origin, path, hop), block), v.Pass); d != "" || v.Flaw != "" {
		t.Errorf("flaw %q (-want +got):\n%s", v.Flaw, d)
	}
}

// Narrowed attributes are widened again by the next speaker.
func FuzzWiden(f *testing.F) {
	f.Add(segments(4, []uint32{64513, 4200000001}, []uint32{0, 3, 70000}, []uint32{9}))
	f.Add(segments(4, []uint32{1, 2}))
	f.Fuzz(func(t *testing.T, path []byte) {
		clean, ok := cleanPath(path)
		if !ok || len(clean) != len(path) || len(path) > 900 {
			return
		}
		message := Narrow(updateOf(nil, join(origin, attributeOf(0x40, attrASPath, path), hop), block), IPv4)[0]
		s := NewSession(outside)
		s.Check(openOf(4, 64513, 90, "10.0.0.2", capabilities(OnlyIPv4)))
		s.Check(raw(Keepalive))
		v := s.Check(message)
		if v.Reset != nil || v.Flaw != "" {
			t.Fatalf("% x: %v, %q", message, v.Reset, v.Flaw)
		}
		difftest.Want(t, "", updateOf(nil, join(origin, attributeOf(0x40, attrASPath, path), hop), block), v.Pass)
	})
}

// A full message grows for a peer of two octets: it is split. Attributes that do not fit are withdrawn.
func TestNarrowSplits(t *testing.T) {
	numbers := make([]uint32, 250)
	for i := range numbers {
		numbers[i] = 4200000000 + uint32(i)
	}
	long := attributeOf(0x40, attrASPath, segments(4, numbers))
	attributes := join(origin, long, hop)
	room := (MaxLen - frameLen - len(attributes) - len(own26)) / len(pod32)
	message := updateOf(own26, attributes, bytes.Repeat(pod32, room))
	announced := 0
	parts := Narrow(message, IPv4)
	for i, m := range parts {
		u, err := cutUpdate(m, IPv4)
		if err != nil || len(m) > MaxLen || int(binary.BigEndian.Uint16(m[16:])) != len(m) || (i == 0) != (len(u.withdrawn) > 0) {
			t.Fatalf("message %d of %d bytes: %v", i, len(m), err)
		}
		announced += countPrefixes(u.announced)
	}
	if len(parts) != 3 || announced != room {
		t.Errorf("%d messages, %d prefixes of %d", len(parts), announced, room)
	}

	six := join(origin, long, reach(2, hop6, block6), attributeOf(0xc0, attrCommunities, make([]byte, 2800)))
	if got, want := Narrow(updateOf(nil, six, nil), IPv6), [][]byte{updateOf(nil, unreach(2, block6), nil)}; cmp.Diff(want, got) != "" {
		t.Errorf("% x", got)
	}
}
