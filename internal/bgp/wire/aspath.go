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
	// own is how many numbers at the head of its first sequence the speaker behind has put there for this session.
	// StartsWith, Count and String ignore them.
	own int
}

// maxSegment is how many AS numbers a segment can have.
const maxSegment = 255

// NewASPath returns a path of one sequence.
func NewASPath(numbers ...uint32) ASPath { return ASPath{segments: appendSequence(nil, numbers)} }

// appendSequence writes numbers as sequences. Only the first one may be shorter than maxSegment.
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

// segment cuts the first segment off: it returns its type, its numbers as bytes, and the rest.
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

// places calls f for each place of the path until it returns false: each number of a sequence, and each set.
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

// StartsWith reports whether the path begins with these numbers. A set matches each of its numbers.
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

// Count returns how often number is in the path.
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

// Len counts each number of sequences, and each set as one.
func (p ASPath) Len() int { return pathLength(p.segments) }

// String returns the numbers with spaces between them, sets in braces.
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

// prepend returns the path with numbers inserted behind the session's own ones.
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
