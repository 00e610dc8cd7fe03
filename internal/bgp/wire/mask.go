package wire

import "encoding/binary"

// MaskedASN replaces our own AS number in paths inside the speaker behind, which would take each for a loop, even if
// allowed or added by a filter, and would not withdraw the path's former announcement. The number is reserved (RFC
// 7300).
const MaskedASN uint32 = 1<<32 - 1

// ReplaceAS replaces an AS number in an UPDATE with numbers of four octets. It changes message.
func ReplaceAS(message []byte, old, now uint32) {
	if TypeOf(message) == Update {
		attributes, _ := attributesOf(message)
		replaceASIn(attributes, old, now)
	}
}

func replaceASIn(attributes []byte, old, now uint32) {
	eachAS(attributes, func(number []byte) {
		if binary.BigEndian.Uint32(number) == old {
			binary.BigEndian.PutUint32(number, now)
		}
	})
}

// CountAS returns how often an AS number is in the path of an UPDATE.
func CountAS(message []byte, asn uint32) (n int) {
	if TypeOf(message) != Update {
		return 0
	}
	attributes, _ := attributesOf(message)
	eachAS(attributes, func(number []byte) {
		if binary.BigEndian.Uint32(number) == asn {
			n++
		}
	})
	return n
}

func eachAS(attributes []byte, f func(number []byte)) {
	for b := attributes; len(b) > 0; {
		_, kind, value, rest, ok := cutAttribute(b)
		if !ok {
			return
		}
		b = rest
		for kind == attrASPath && len(value) > 0 {
			_, numbers, after := segment(value)
			for ; len(numbers) > 0; numbers = numbers[4:] {
				f(numbers[:4])
			}
			value = after
		}
	}
}
