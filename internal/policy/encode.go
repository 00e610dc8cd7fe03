package policy

import (
	"encoding/binary"
	"maps"
	"slices"
)

// appendList appends the canonical form of a list.
func appendList(b []byte, l List) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(l.Steps)))
	for _, s := range l.Steps {
		b = binary.BigEndian.AppendUint32(b, uint32(s.Set))
		b = appendVerdict(appendText(b, s.Nets), s.Verdict)
	}
	b = appendVerdict(b, l.Else)
	for _, r := range l.Sources {
		b = appendRange(append(b, 's'), r)
	}
	return b
}

func appendRange(b []byte, r PortRange) []byte {
	return appendList(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, r.First), r.Last), r.List)
}

func appendVerdict(b []byte, v Verdict) []byte {
	return appendID(append(b, boolByte(v.Allow)|boolByte(v.NoTrack)<<1|boolByte(v.Final)<<2), v.By)
}

func appendID(b []byte, id ID) []byte {
	for _, text := range []string{id.Kind, id.Namespace, id.Name} {
		b = appendText(b, text)
	}
	return b
}

// programKey is the digest of a program.
func programKey(p Program) string {
	b := appendProgram(nil, p)
	for _, l := range p.Logs {
		b = appendID(append(b, 'l'), l.Policy)
		b = appendProgram(binary.BigEndian.AppendUint32(b, uint32(l.Rule)), l.When)
	}
	for _, s := range p.Sequence {
		b = appendSegment(append(b, 'q'), s)
	}
	return key(b)
}

func appendSegment(b []byte, s Segment) []byte {
	b = append(b, byte(s.Then), boolByte(s.Own != nil))
	if s.Own != nil {
		b = appendList(b, *s.Own)
	}
	b = appendVerdict(appendProgram(b, s.When), s.Verdict)
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, uint32(s.Next)), uint32(s.Log.Rule))
	return appendID(b, s.Log.Policy)
}

func appendProgram(b []byte, p Program) []byte {
	b = appendList(b, p.Rest)
	for _, protocol := range slices.Sorted(maps.Keys(p.Protocols)) {
		b = appendList(append(b, 'o', protocol), p.Protocols[protocol])
	}
	for _, protocol := range slices.Sorted(maps.Keys(p.Ports)) {
		for _, r := range p.Ports[protocol] {
			b = appendRange(append(b, 'p', protocol), r)
		}
	}
	return b
}

// lists calls f with each list of the program. Steps may be shared with other programs: f must replace, not change
// them.
func (p *Program) lists(f func(*List)) {
	each := func(l List) List {
		f(&l)
		l.Sources = slices.Clone(l.Sources)
		for i := range l.Sources {
			f(&l.Sources[i].List)
		}
		return l
	}
	p.Rest = each(p.Rest)
	for protocol, l := range p.Protocols {
		p.Protocols[protocol] = each(l)
	}
	for _, ports := range p.Ports {
		for i := range ports {
			ports[i].List = each(ports[i].List)
		}
	}
	for i := range p.Logs {
		p.Logs[i].When.lists(f)
	}
	for i := range p.Sequence {
		s := &p.Sequence[i]
		s.When.lists(f)
		if s.Own != nil {
			own := each(*s.Own)
			s.Own = &own
		}
	}
}
