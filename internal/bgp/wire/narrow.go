package wire

import "encoding/binary"

// Attributes of RFC 6793, for speakers whose AS numbers have two octets.
const (
	attrAS4Path       attribute = 17
	attrAS4Aggregator attribute = 18
)

// Narrow writes an UPDATE of our own speaker for a peer whose AS numbers have two octets: a longer one becomes AS_TRANS, and is
// in AS4_PATH for those that come after the peer.
func Narrow(message []byte) []byte {
	if TypeOf(message) != Update {
		return message
	}
	attributes, from := attributesOf(message)
	out := append([]byte(nil), message[:from]...)
	for b := attributes; len(b) > 0; {
		_, kind, value, rest, ok := cutAttribute(b)
		if !ok {
			return message
		}
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
	binary.BigEndian.PutUint16(out[from-2:], uint16(len(out)-from))
	return end(append(out, message[from+len(attributes):]...))
}

func appendNarrowPath(out, value []byte) []byte {
	var narrow []byte
	wide := false
	for rest := value; len(rest) > 0; {
		kind, numbers, after := segment(rest)
		rest = after
		narrow = append(narrow, kind, byte(len(numbers)/4))
		for ; len(numbers) > 0; numbers = numbers[4:] {
			number, w := narrowed(binary.BigEndian.Uint32(numbers))
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
	number, wide := narrowed(binary.BigEndian.Uint32(value))
	out = appendAttribute(out, attrAggregator, append(binary.BigEndian.AppendUint16(nil, number), value[4:]...))
	if wide {
		out = appendAttribute(out, attrAS4Aggregator, value)
	}
	return out
}

// narrowed is an AS number in two octets, and whether it did not fit.
func narrowed(number uint32) (uint16, bool) {
	if number > 0xffff {
		return asTrans, true
	}
	return uint16(number), false
}
