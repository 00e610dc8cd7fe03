package wire

import "encoding/binary"

// widened holds the attributes in which a peer with AS numbers of two octets passes on numbers of four, RFC 6793.
type widened struct {
	path       []byte // AS4_PATH; nil: there is none, or it is ignored
	aggregator []byte // AS4_AGGREGATOR
}

// readWidened finds the two attributes. They are ignored if AGGREGATOR has a number of its own: a speaker that does not
// know them has made the path anew (section 4.2.3).
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

// cleanPath checks an AS4_PATH. Confederation segments must not be in it and are left out (section 3).
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

// confederationSet is the highest segment type. Types above segmentSequence are for confederations.
const confederationSet = 4

// widen combines a peer's AS_PATH, already in four octets, with its AS4_PATH: additional numbers at the head of the
// former come from speakers with two octets. An AS4_PATH that is longer is ignored.
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

// pathLength counts each number of sequences, and each set as one.
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
