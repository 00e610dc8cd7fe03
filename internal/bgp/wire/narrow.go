package wire

import (
	"encoding/binary"
	"slices"
)

// Attributes of RFC 6793, for speakers with AS numbers of two octets.
const (
	attrAS4Path       attribute = 17
	attrAS4Aggregator attribute = 18
)

// Narrow rewrites an UPDATE of our own speaker for a peer with AS numbers of two octets: a longer one becomes AS_TRANS,
// and AS4_PATH has it for speakers after the peer. A message that becomes too long is split, or withdraws its prefixes
// if its attributes leave no room for one.
func Narrow(message []byte, family Family) [][]byte {
	if TypeOf(message) != Update {
		return [][]byte{message}
	}
	u, err := cutUpdate(message, family)
	var a Attributes
	if err != nil || a.read(&u, family, 0) != nil || len(u.announced) == 0 {
		return [][]byte{message}
	}
	var w writer
	w.start(family)
	w.change(&u, &a, &Change{})
	attributes := narrowed(w.attributes)
	if w.attributes = attributes; w.room() <= family.bytes() {
		w.withdraw(slices.Concat(u.withdrawn, u.announced))
		return w.finish()
	}
	w.attributes = nil
	w.withdraw(u.withdrawn)
	w.attributes = attributes
	w.reach(a.NextHop, u.announced)
	return w.finish()
}

// narrowed returns attributes with AS numbers of two octets.
func narrowed(attributes []byte) (out []byte) {
	for b := attributes; len(b) > 0; {
		_, kind, value, rest, _ := cutAttribute(b) // written here
		switch kind {
		case attrASPath:
			out = appendNarrowPath(out, value)
		case attrAggregator:
			out = appendNarrowAggregator(out, value)
		default:
			out = append(out, b[:len(b)-len(rest)]...)
		}
		b = rest
	}
	return out
}

func appendNarrowPath(out, value []byte) []byte {
	var narrow []byte
	wide := false
	for rest := value; len(rest) > 0; {
		kind, numbers, after := segment(rest)
		rest = after
		narrow = append(narrow, kind, byte(len(numbers)/4))
		for ; len(numbers) > 0; numbers = numbers[4:] {
			number, w := shortened(binary.BigEndian.Uint32(numbers))
			narrow, wide = binary.BigEndian.AppendUint16(narrow, number), wide || w
		}
	}
	out = appendAttribute(out, attrASPath, narrow)
	if wide {
		out = appendAttribute(out, attrAS4Path, value)
	}
	return out
}

func appendNarrowAggregator(out, value []byte) []byte {
	number, wide := shortened(binary.BigEndian.Uint32(value))
	out = appendAttribute(out, attrAggregator, append(binary.BigEndian.AppendUint16(nil, number), value[4:]...))
	if wide {
		out = appendAttribute(out, attrAS4Aggregator, value)
	}
	return out
}

// shortened returns an AS number in two octets, and whether it did not fit.
func shortened(number uint32) (uint16, bool) {
	if number > 0xffff {
		return asTrans, true
	}
	return uint16(number), false
}
