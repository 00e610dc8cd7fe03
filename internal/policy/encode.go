package policy

import (
	"encoding/binary"
	"maps"
	"slices"
)

// appendList appends what makes a list different from others.
func appendList(b []byte, l List) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(l.Steps)))
	for _, s := range l.Steps {
		b = binary.BigEndian.AppendUint32(b, uint32(s.Set))
		b = appendVerdict(appendText(b, s.Nets), s.Verdict)
	}
	return appendVerdict(b, l.Else)
}

func appendVerdict(b []byte, v Verdict) []byte {
	b = append(b, boolByte(v.Allow))
	for _, text := range []string{v.By.Kind, v.By.Namespace, v.By.Name} {
		b = appendText(b, text)
	}
	return b
}

// programKey is the digest of a program.
func programKey(p Program) string {
	b := appendList(nil, p.Rest)
	for _, protocol := range slices.Sorted(maps.Keys(p.Protocols)) {
		b = appendList(append(b, 'o', protocol), p.Protocols[protocol])
	}
	for _, protocol := range slices.Sorted(maps.Keys(p.Ports)) {
		for _, r := range p.Ports[protocol] {
			b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(append(b, 'p', protocol), r.First), r.Last)
			b = appendList(b, r.List)
		}
	}
	return key(b)
}

// lists calls f with each list of the program.
func (p *Program) lists(f func(*List)) {
	f(&p.Rest)
	for protocol, l := range p.Protocols {
		f(&l)
		p.Protocols[protocol] = l
	}
	for _, ports := range p.Ports {
		for i := range ports {
			f(&ports[i].List)
		}
	}
}
