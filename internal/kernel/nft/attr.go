package nft

import (
	"encoding/binary"
	"errors"
	"strings"
)

// attributes are netlink attributes in the kernel's form: length, type, value, each padded to four bytes.
type attributes []byte

const (
	attrHeader = 4
	// attrFlags are the bits of a type that say how the value is to be read, which the type says too.
	attrFlags = 0xc000
)

func (a *attributes) add(typ uint16, value []byte) {
	b := binary.NativeEndian.AppendUint16(*a, uint16(attrHeader+len(value)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, value...)
	*a = append(b, make([]byte, padding(len(value)))...)
}

func padding(size int) int { return -size & 3 }

func (a *attributes) text(typ uint16, s string) { a.add(typ, append([]byte(s), 0)) }

func (a *attributes) number(typ uint16, n uint32) {
	a.add(typ, binary.BigEndian.AppendUint32(nil, n))
}

func (a *attributes) number64(typ uint16, n uint64) {
	a.add(typ, binary.BigEndian.AppendUint64(nil, n))
}

func (a *attributes) nest(typ uint16, inner attributes) { a.add(typ|nested, inner) }

const nested = 0x8000

var errTruncated = errors.New("netlink attribute is cut off")

// each calls f with every attribute.
func each(b []byte, f func(typ uint16, value []byte)) error {
	for len(b) >= attrHeader {
		size := int(binary.NativeEndian.Uint16(b))
		if size < attrHeader || size > len(b) {
			return errTruncated
		}
		f(binary.NativeEndian.Uint16(b[2:])&^attrFlags, b[attrHeader:size])
		b = b[min(size+padding(size), len(b)):]
	}
	return nil
}

// find returns the value of the first attribute of a type, nil if there is none.
func find(b []byte, typ uint16) (value []byte) {
	// What is cut off is as good as absent: it does not compare equal to anything that is wanted.
	_ = each(b, func(t uint16, v []byte) {
		if t == typ && value == nil {
			value = v
		}
	})
	return value
}

func text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// number reads a number in network order; an absent one is 0.
func number(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func number64(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}
