package wire

import (
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
)

// ASPath is an AS_PATH with AS numbers of four octets. It is a part of the message that it was read from.
type ASPath struct {
	segments []byte
	// own is how many numbers at the head of its first sequence the speaker has put there for this session: they are never
	// sent.
	own int
}

// maxSegment is how many AS numbers a segment can have.
const maxSegment = 255

// NewASPath returns a path of one sequence.
func NewASPath(numbers ...uint32) ASPath { return ASPath{segments: appendSequence(nil, numbers)} }

// appendSequence writes numbers as sequences, the first of which is the one that is not full.
func appendSequence(b []byte, numbers []uint32) []byte {
	for len(numbers) > 0 {
		n := len(numbers) % maxSegment
		if n == 0 {
			n = maxSegment
		}
		b = append(b, segmentSequence, byte(n))
		for _, number := range numbers[:n] {
			b = binary.BigEndian.AppendUint32(b, number)
		}
		numbers = numbers[n:]
	}
	return b
}

// segment cuts the first segment off: its type, its numbers as bytes, and what follows.
func segment(b []byte) (kind byte, numbers, rest []byte) {
	end := 2 + 4*int(b[1])
	return b[0], b[2:end], b[end:]
}

// wholeSegments reports whether b is a list of segments.
func wholeSegments(b []byte) bool {
	for len(b) > 0 {
		if len(b) < 2 || len(b) < 2+4*int(b[1]) {
			return false
		}
		_, _, b = segment(b)
	}
	return true
}

// places calls f for each place of the path until it returns false: a number of a sequence is one, a set is one.
func (p ASPath) places(f func(numbers []byte) bool) {
	own := p.own
	for b := p.segments; len(b) > 0; own = 0 {
		kind, numbers, rest := segment(b)
		b = rest
		if kind != segmentSequence {
			if !f(numbers) {
				return
			}
			continue
		}
		for numbers = numbers[min(4*own, len(numbers)):]; len(numbers) > 0; numbers = numbers[4:] {
			if !f(numbers[:4]) {
				return
			}
		}
	}
}

// StartsWith reports whether the path begins with these numbers. At the place of a set each number of it will do.
func (p ASPath) StartsWith(want []uint32) bool {
	p.places(func(numbers []byte) bool {
		if len(want) == 0 || !contains(numbers, want[0]) {
			return false
		}
		want = want[1:]
		return true
	})
	return len(want) == 0
}

func contains(numbers []byte, want uint32) bool {
	for ; len(numbers) > 0; numbers = numbers[4:] {
		if binary.BigEndian.Uint32(numbers) == want {
			return true
		}
	}
	return false
}

// Count is how often number is in the path.
func (p ASPath) Count(number uint32) int {
	n := 0
	p.places(func(numbers []byte) bool {
		for ; len(numbers) > 0; numbers = numbers[4:] {
			if binary.BigEndian.Uint32(numbers) == number {
				n++
			}
		}
		return true
	})
	return n
}

// Len counts the numbers of sequences, and each set as one.
func (p ASPath) Len() int { return pathLength(p.segments) }

// String has the numbers with spaces between them, a set in braces.
func (p ASPath) String() string {
	var words []string
	own := p.own
	for b := p.segments; len(b) > 0; own = 0 {
		kind, raw, rest := segment(b)
		b = rest
		var numbers []string
		for ; len(raw) > 0; raw = raw[4:] {
			numbers = append(numbers, strconv.FormatUint(uint64(binary.BigEndian.Uint32(raw)), 10))
		}
		if kind == segmentSequence {
			words = append(words, numbers[min(own, len(numbers)):]...)
		} else {
			words = append(words, "{"+strings.Join(numbers, " ")+"}")
		}
	}
	return strings.Join(words, " ")
}

// prepend returns the path with numbers before it, behind those that are the session's own.
func (p ASPath) prepend(numbers []uint32) ASPath {
	if len(numbers) == 0 {
		return p
	}
	rest := p.segments
	var head []uint32
	if len(rest) > 0 && rest[0] == segmentSequence {
		_, raw, after := segment(rest)
		for ; len(raw) > 0; raw = raw[4:] {
			head = append(head, binary.BigEndian.Uint32(raw))
		}
		rest = after
	}
	own := min(p.own, len(head))
	head = slices.Insert(head, own, numbers...)
	return ASPath{segments: append(appendSequence(nil, head), rest...), own: own}
}
