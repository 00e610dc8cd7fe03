package wire

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// Source is the origin of a path.
type Source uint8

// Sources. The zero value means no stamp.
const (
	Own       Source = 1 + iota // this node originates it
	External                    // a peer in another AS
	Internal                    // a peer in our own AS
	Client                      // a peer in our own AS whose paths we reflect
	Aggregate                   // this node originates it, for some peers
)

// LocalPref is the LOCAL_PREF of paths that a node originates, towards peers in its own AS: the default of all
// implementations.
const LocalPref = 100

// Stamp is an attribute that a path carries only in the speaker behind. It holds values that the speaker changes or
// drops, and facts needed when it passes the path on. Its type is unassigned at IANA; attributes of peers with that
// type are dropped, as all unknown ones are.
type Stamp struct {
	Source Source
	// HasMED and MED are the peer's. In the speaker behind the MED is a rank.
	HasMED bool
	MED    uint32
	// NextHop is the peer's next hop, with the name of its link as its zone if it is link-local. Towards another AS the
	// speaker behind puts our own address in its place.
	NextHop netip.Addr
	// Epoch makes a path differ from its former version, so that the speaker behind announces it once more to its
	// receivers.
	Epoch uint8
}

const attrStamp attribute = 241

// Value returns the stamp's attribute without its head, for adding a path of our own to the speaker behind.
func (s Stamp) Value() []byte { return s.appendValue(nil) }

func (s Stamp) appendValue(b []byte) []byte {
	flag := byte(0)
	if s.HasMED {
		flag = 1
	}
	b = binary.BigEndian.AppendUint32(append(b, byte(s.Source), flag), s.MED)
	b, _ = s.NextHop.AppendBinary(b) // it never fails
	return append(b, s.Epoch)
}

// StampType and StampFlags are the stamp's attribute type and flags: optional and transitive, so that the speaker
// passes it on unknown.
const (
	StampType  = uint8(attrStamp)
	StampFlags = uint8(flagOptional | flagTransitive)
)

func (s Stamp) append(b []byte) []byte {
	head := len(b)
	b = s.appendValue(append(b, StampFlags, StampType, 0))
	b[head+2] = byte(len(b) - head - 3)
	return b
}

// ReadStamp reads a Value; not ok: value is none.
func ReadStamp(value []byte) (s Stamp, ok bool) {
	if len(value) < 7 {
		return Stamp{}, false
	}
	last := len(value) - 1
	s = Stamp{Source: Source(value[0]), HasMED: value[1] != 0, MED: binary.BigEndian.Uint32(value[2:]), Epoch: value[last]}
	err := s.NextHop.UnmarshalBinary(value[6:last])
	return s, err == nil
}

// stampAgain changes source and epoch of the stamp among attributes.
func stampAgain(attributes []byte, source Source, epoch uint8) {
	value := find(attributes, attrStamp)
	value[0], value[len(value)-1] = byte(source), epoch
}

const (
	// rankBits is the width of the length of CLUSTER_LIST in a rank, mostRank the largest MED in it.
	rankBits = 4
	mostRank = 1<<(32-rankBits) - 1
)

// rank returns the MED in the speaker behind. It orders by the peer's MED and, if equal, by the number of reflectors
// that a path has passed (RFC 4456 section 9), which the speaker does not compare: two reflectors that each prefer the
// other's reflected path to their client's own would never come to rest.
func rank(med uint32, clusters int) uint32 {
	return min(med, mostRank)<<rankBits | uint32(min(clusters, 1<<rankBits-1))
}

// TakeStamp removes the stamp from an UPDATE of the speaker behind and, if keepMED, restores a learned path's MED. It
// writes a changed message into buf. A message without a stamp is returned as it came, as a path of our own.
func TakeStamp(buf *[]byte, message []byte, keepMED bool) ([]byte, Stamp) {
	attributes, from := attributesOf(message)
	stamp, found := ReadStamp(find(attributes, attrStamp))
	if !found {
		return message, Stamp{Source: Own}
	}
	out := append((*buf)[:0], message[:from]...)
	for b := attributes; len(b) > 0; {
		_, kind, _, rest, _ := cutAttribute(b)
		if kind != attrStamp && (kind != attrMED || stamp.Source == Own) {
			out = append(out, b[:len(b)-len(rest)]...)
		}
		b = rest
	}
	if stamp.HasMED && keepMED {
		out = appendAttribute(out, attrMED, binary.BigEndian.AppendUint32(nil, stamp.MED))
	}
	binary.BigEndian.PutUint16(out[from-2:], uint16(len(out)-from))
	*buf = end(append(out, message[from+len(attributes):]...))
	return *buf, stamp
}

// attributesOf returns the path attributes of an UPDATE of our own speaker, and their offset in the message.
func attributesOf(message []byte) (attributes []byte, from int) {
	b := body(message)
	from = headerLen + 4 + int(binary.BigEndian.Uint16(b))
	length := int(binary.BigEndian.Uint16(message[from-2:]))
	return message[from : from+length], from
}

// AppendPath appends the attributes of a learned path in the speaker behind to b, except MP_REACH_NLRI, which holds the
// path's prefix; the next hop is in the stamp. Paths that differ only in their prefix have the same text.
func AppendPath(b []byte, attributes [][]byte) []byte {
	for _, one := range attributes {
		if len(one) > 1 && attribute(one[1]) != attrMPReach {
			b = append(b, one...)
		}
	}
	return b
}

// ReadPath reads a text of AppendPath: next hop and MED are the peer's, the rest is as its rules left it, with asn in
// the place of MaskedASN. It keeps nothing of the text. Not ok: this node originates the path.
func ReadPath(text []byte, asn uint32) (a Attributes, ok bool) {
	text = bytes.Clone(text)
	stamp, ok := ReadStamp(find(text, attrStamp))
	if !ok || stamp.Source == Own || stamp.Source == Aggregate {
		return Attributes{}, false
	}
	replaceASIn(text, MaskedASN, asn)
	if err := a.read(&update{attributes: text}, IPv4, 0); err != nil {
		return Attributes{}, false
	}
	a.NextHop, a.MED, a.HasMED = stamp.NextHop, stamp.MED, stamp.HasMED
	return a, true
}
