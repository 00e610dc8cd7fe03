package policy

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// span is a range of ports of a protocol, both inclusive.
type span struct {
	protocol    uint8
	first, last uint16
}

func (s span) whole() bool { return s.first == 0 && s.last == lastPort }

// portSet holds the spans, or, if any is set, every protocol and port except the spans.
type portSet struct {
	any   bool
	spans []span // ascending, disjoint and not adjacent
}

// newPortSet returns the set of ports, or of any, without the excepted ones. It changes its arguments.
func newPortSet(any bool, ports, except []span) portSet {
	if any {
		return portSet{true, normalSpans(except)}
	}
	return portSet{spans: normalSpans(ports)}.without(normalSpans(except))
}

// without returns the ports that are not in spans.
func (p portSet) without(spans []span) portSet {
	switch {
	case len(spans) == 0:
		return p
	case p.any:
		return portSet{true, normalSpans(slices.Concat(p.spans, spans))}
	}
	var rest []span
	for _, s := range p.spans {
		rest = append(rest, s.minus(spans)...)
	}
	return portSet{spans: rest}
}

// only returns the ports that are in a span.
func (p portSet) only(s span) portSet {
	if p.any {
		return portSet{spans: s.minus(p.spans)}
	}
	var both []span
	for _, own := range p.spans {
		if first, last := max(own.first, s.first), min(own.last, s.last); own.protocol == s.protocol && first <= last {
			both = append(both, span{s.protocol, first, last})
		}
	}
	return portSet{spans: both}
}

// minus returns the ports of a span that are not in others.
func (s span) minus(others []span) (rest []span) {
	first := int(s.first)
	for _, o := range others {
		if o.protocol != s.protocol || o.last < s.first || o.first > s.last {
			continue
		}
		if first < int(o.first) {
			rest = append(rest, span{s.protocol, uint16(first), o.first - 1})
		}
		first = int(o.last) + 1
	}
	if first <= int(s.last) {
		rest = append(rest, span{s.protocol, uint16(first), s.last})
	}
	return rest
}

func (p portSet) empty() bool { return !p.any && len(p.spans) == 0 }

// all reports whether the set has every protocol and port.
func (p portSet) all() bool { return p.any && len(p.spans) == 0 }

// whole reports whether the set has all ports of a protocol.
func (p portSet) whole(protocol uint8) bool {
	if p.all() {
		return true
	}
	of := p.of(protocol)
	return len(of) == 1 && of[0].whole()
}

// of returns the ports of a protocol.
func (p portSet) of(protocol uint8) []span { return p.only(span{protocol, 0, lastPort}).spans }

// key returns a key that is equal for equal sets only.
func (p portSet) key() string {
	b := []byte{boolByte(p.any)}
	for _, s := range p.spans {
		b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(append(b, s.protocol), s.first), s.last)
	}
	return string(b)
}

func (p portSet) width() (ports int) {
	if p.any {
		ports = 1 << 30
	}
	for _, s := range p.spans {
		if n := int(s.last) - int(s.first) + 1; p.any {
			ports -= n
		} else {
			ports += n
		}
	}
	return ports
}

// normalSpans puts spans in order and joins those that touch. It changes its argument.
func normalSpans(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.first, b.first), cmp.Compare(a.last, b.last))
	})
	joined := spans[:0]
	for _, s := range spans {
		if n := len(joined) - 1; n >= 0 && joined[n].protocol == s.protocol && int(s.first) <= int(joined[n].last)+1 {
			joined[n].last = max(joined[n].last, s.last)
			continue
		}
		joined = append(joined, s)
	}
	return joined
}
