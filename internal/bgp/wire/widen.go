package wire

import "encoding/binary"

// widened is what a peer whose AS numbers have two octets passes on from those before it whose numbers have four,
// RFC 6793.
type widened struct {
	path       []byte // AS4_PATH; nil: there is none, or none that counts
	aggregator []byte // AS4_AGGREGATOR
}

// readWidened looks ahead for the two attributes. They do not count if AGGREGATOR has a number of its own: a speaker
// that knows nothing of them has made the path anew (section 4.2.3).
func (n *parsedUpdate) readWidened(attributes []byte) {
	var found widened
	anew := false
	for b := attributes; len(b) > 0; {
		flag, kind, value, rest, ok := cutAttribute(b)
		if !ok {
			break
		}
		b = rest
		usual := flag&(flagOptional|flagTransitive) == flagOptional|flagTransitive
		switch {
		case kind == attrAS4Path && usual && found.path == nil:
			if found.path, ok = cleanPath(value); !ok {
				n.flawed(false, "AS4_PATH is malformed")
			}
		case kind == attrAS4Aggregator && usual && len(value) == 8:
			found.aggregator = value
		case kind == attrAggregator && len(value) == 6:
			anew = binary.BigEndian.Uint16(value) != asTrans
		}
	}
	if found.aggregator != nil && anew {
		found = widened{}
	}
	n.widened = found
}

// cleanPath checks an AS4_PATH. Segments of confederations have no place in there and are left out (section 3).
func cleanPath(value []byte) (path []byte, ok bool) {
	if len(value) < 6 || !wholeSegments(value) {
		return nil, false
	}
	for rest := value; len(rest) > 0; {
		kind, numbers, after := segment(rest)
		raw := rest[:len(rest)-len(after)]
		rest = after
		switch {
		case len(numbers) == 0 || contains(numbers, 0) || kind < segmentSet || kind > confederationSet:
			return nil, false
		case kind == segmentSet || kind == segmentSequence:
			path = append(path, raw...)
		}
	}
	return path, true
}

// confederationSet is the last of the types of segments, those of confederations.
const confederationSet = 4

// widen returns the path of a peer's AS_PATH, in four octets by now, and its AS4_PATH: what is at the head of the one
// and not in the other has been added by speakers that know two octets only. An AS4_PATH that is longer does not count.
func widen(path, wide []byte) []byte {
	more := pathLength(path) - pathLength(wide)
	if len(wide) == 0 || more < 0 {
		return path
	}
	var head []byte
	for rest := path; more > 0; {
		kind, numbers, after := segment(rest)
		rest = after
		if kind == segmentSet {
			head = append(append(head, kind, byte(len(numbers)/4)), numbers...)
			more--
			continue
		}
		n := min(more, len(numbers)/4)
		head = append(append(head, kind, byte(n)), numbers[:4*n]...)
		more -= n
	}
	return append(head, wide...)
}

// pathLength counts the numbers of sequences, and each set as one.
func pathLength(path []byte) int {
	n := 0
	for rest := path; len(rest) > 0; {
		kind, numbers, after := segment(rest)
		rest = after
		if kind == segmentSet {
			n++
		} else {
			n += len(numbers) / 4
		}
	}
	return n
}
