package wire

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// Source is where a path comes from.
type Source uint8

// Sources. The zero value is no stamp at all.
const (
	Own       Source = 1 + iota // this node originates it
	External                    // a peer in another AS
	Internal                    // a peer in our own AS
	Client                      // a peer in our own AS whose paths we reflect
	Aggregate                   // this node originates it, for some peers
)

// LocalPref is the LOCAL_PREF of what a node originates, towards peers in its own AS: the default of all
// implementations.
const LocalPref = 100

// Stamp is an attribute that a path carries only in the speaker behind: it holds what that speaker changes or drops,
// and what is needed when it passes the path on. Its type is unassigned at IANA; attributes that peers send under that
// type are dropped, as all unknown ones are.
type Stamp struct {
	Source Source
	// HasMED and MED are as the peer has sent them. The speaker behind sees a rank in their place.
	HasMED bool
	MED    uint32
	// NextHop is the peer's, with the name of its link as its zone if it is link-local: towards another AS the inner
	// speaker puts our own address in its place.
	NextHop netip.Addr
	// Epoch tells a path from what it was before, so that the speaker behind announces it once more, to whom it announces
	// it.
	Epoch uint8
}

const attrStamp attribute = 241

// Value is the stamp's attribute without its head, for the speaker behind to be told of a path of our own.
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

// StampType and StampFlags are the stamp's attribute type and flags: it is optional, and passed on although it is not
// known.
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

// ReadStamp reads what Value has written; not ok: it is none.
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
	// rankBits are what of a rank the length of CLUSTER_LIST takes, mostRank what a MED can then be at most.
	rankBits = 4
	mostRank = 1<<(32-rankBits) - 1
)

// rank is what the speaker behind sees for a MED. It orders like the MED and, where that is the same, by the number of
// reflectors that a path has come through (RFC 4456 section 9), of which that speaker knows nothing: two reflectors
// that each prefer what the other one has reflected to what their client tells them would never come to rest.
func rank(med uint32, clusters int) uint32 {
	return min(med, mostRank)<<rankBits | uint32(min(clusters, 1<<rankBits-1))
}

// TakeStamp removes the stamp from an UPDATE of the speaker behind and gives a learned path its MED back, if keepMED.
// The message is written into buf, if it has to be written; what has no stamp is returned as it came, as a path of our
// own.
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

// attributesOf returns the path attributes of an UPDATE of our own speaker, and where in the message they begin.
func attributesOf(message []byte) (attributes []byte, from int) {
	b := body(message)
	from = headerLen + 4 + int(binary.BigEndian.Uint16(b))
	length := int(binary.BigEndian.Uint16(message[from-2:]))
	return message[from : from+length], from
}

// AppendPath appends what the speaker behind has of a learned path to b: its attributes but for MP_REACH_NLRI, which has
// the path's prefix in it; the next hop is in the stamp. Paths that differ in their prefix only have the same text.
func AppendPath(b []byte, attributes [][]byte) []byte {
	for _, one := range attributes {
		if len(one) > 1 && attribute(one[1]) != attrMPReach {
			b = append(b, one...)
		}
	}
	return b
}

// ReadPath reads a text of AppendPath: next hop and MED as the peer has sent them, the rest as its rules have left it,
// asn in the place of MaskedASN. It keeps nothing of the text. Not ok: it is of a path that this node originates.
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
