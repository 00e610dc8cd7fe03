// Package nlmsg encodes and decodes netlink messages, and sends and receives them: routes and neighbours, nf_tables,
// connection tracking and ipsets. It returns the kernel's answers as bytes; internal/kernel/netlinkx and
// internal/kernel/nft, its only users, interpret them.
//
// For links, addresses and policy rules netlinkx uses github.com/vishvananda/netlink, which knows the attributes of all
// kinds of links. That library is not used for the rest because it sends one request at a time, at a third of the speed
// of a batch, builds an attribute tree per listed object, and has neither nf_tables nor transactions.
package nlmsg

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrMalformed is returned for messages and attributes with inconsistent lengths.
var ErrMalformed = errors.New("malformed netlink message")

// Message is one netlink message: netlink(7).
type Message struct {
	Kind, Flags uint16
	Seq         uint32
	Body        []byte
}

// Next returns the first message of a datagram, and the rest.
func Next(b []byte) (m Message, rest []byte, err error) {
	if len(b) < unix.SizeofNlMsghdr {
		return m, nil, fmt.Errorf("%w: %d bytes", ErrMalformed, len(b))
	}
	size := binary.NativeEndian.Uint32(b)
	if size < unix.SizeofNlMsghdr || uint64(size) > uint64(len(b)) {
		return m, nil, fmt.Errorf("%w: length %d of %d bytes", ErrMalformed, size, len(b))
	}
	m = Message{
		Kind: binary.NativeEndian.Uint16(b[4:]), Flags: binary.NativeEndian.Uint16(b[6:]),
		Seq: binary.NativeEndian.Uint32(b[8:]), Body: b[unix.SizeofNlMsghdr:size],
	}
	return m, b[min(Aligned(int(size)), len(b)):], nil
}

// Err returns the error that an NLMSG_ERROR or NLMSG_DONE carries, nil for success.
func (m Message) Err() error {
	if len(m.Body) < 4 {
		return nil // NLMSG_DONE of old kernels has none
	}
	if code := int32(binary.NativeEndian.Uint32(m.Body)); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// Append encodes the message as a request.
func (m Message) Append(b []byte, seq uint32) []byte {
	from := len(b)
	return Finish(append(Begin(b, m.Kind, m.Flags, seq), m.Body...), from)
}

// Begin appends the header of a request; Finish sets its length.
func Begin(b []byte, kind, flags uint16, seq uint32) []byte {
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, seq)
	return binary.NativeEndian.AppendUint32(b, 0) // the kernel fills in the port
}

// Finish sets the length of the message that begins at from and ends with b, and pads it.
func Finish(b []byte, from int) []byte {
	size := len(b) - from
	binary.NativeEndian.PutUint32(b[from:], uint32(size))
	return append(b, padding[:Aligned(size)-size]...)
}

const padding = "\x00\x00\x00"

// SizeofNfgenmsg is the size of struct nfgenmsg, ahead of the attributes of all messages of netfilter.
const SizeofNfgenmsg = 4

// Netfilter returns a request to one of netfilter's subsystems.
func Netfilter(subsystem, command int, flags uint16, family uint8, attrs Attributes) Message {
	return Message{
		Kind: uint16(subsystem<<8 | command), Flags: flags,
		Body: append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attrs...),
	}
}

// NextAttribute returns the first attribute of a list, and the rest.
func NextAttribute(b []byte) (kind uint16, value, rest []byte, err error) {
	if len(b) < unix.SizeofRtAttr {
		return 0, nil, nil, fmt.Errorf("%w: attribute of %d bytes", ErrMalformed, len(b))
	}
	size := int(binary.NativeEndian.Uint16(b))
	if size < unix.SizeofRtAttr || size > len(b) {
		return 0, nil, nil, fmt.Errorf("%w: attribute length %d of %d bytes", ErrMalformed, size, len(b))
	}
	kind = binary.NativeEndian.Uint16(b[2:]) & attributeKinds
	return kind, b[unix.SizeofRtAttr:size], b[min(Aligned(size), len(b)):], nil
}

// attributeKinds masks out the flags that share a field with an attribute's number.
const attributeKinds = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)

// Aligned rounds up to a multiple of four, at which messages and attributes begin.
func Aligned(size int) int { return (size + 3) &^ 3 }

// AppendAttribute appends an attribute and the padding before the next.
func AppendAttribute(b []byte, kind uint16, value []byte) []byte {
	size := unix.SizeofRtAttr + len(value)
	b = binary.NativeEndian.AppendUint16(b, uint16(size))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, padding[:Aligned(size)-size]...)
}

// AppendUint32 appends an attribute in the host's byte order, which rtnetlink uses.
func AppendUint32(b []byte, kind uint16, value uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, unix.SizeofRtAttr+4)
	b = binary.NativeEndian.AppendUint16(b, kind)
	return binary.NativeEndian.AppendUint32(b, value)
}

// Attributes are a list of attributes with numbers in network byte order, which netfilter uses.
type Attributes []byte

// Add appends an attribute.
func (a *Attributes) Add(kind uint16, value []byte) { *a = AppendAttribute(*a, kind, value) }

// Text appends a string, terminated by a zero byte.
func (a *Attributes) Text(kind uint16, s string) { a.Add(kind, append([]byte(s), 0)) }

// Number appends a number of four bytes.
func (a *Attributes) Number(kind uint16, n uint32) {
	a.Add(kind, binary.BigEndian.AppendUint32(nil, n))
}

// Number64 appends a number of eight bytes.
func (a *Attributes) Number64(kind uint16, n uint64) {
	a.Add(kind, binary.BigEndian.AppendUint64(nil, n))
}

// Nest appends an attribute that consists of attributes.
func (a *Attributes) Nest(kind uint16, inner Attributes) { a.Add(kind|unix.NLA_F_NESTED, inner) }

// Open begins an attribute that consists of attributes, which are appended next; Close ends it.
func (a *Attributes) Open(kind uint16) (at int) {
	at = len(*a)
	*a = binary.NativeEndian.AppendUint16(*a, 0)
	*a = binary.NativeEndian.AppendUint16(*a, kind|unix.NLA_F_NESTED)
	return at
}

// Close ends the attribute that Open began at an offset.
func (a *Attributes) Close(at int) {
	size := len(*a) - at
	binary.NativeEndian.PutUint16((*a)[at:], uint16(size))
	*a = append(*a, padding[:Aligned(size)-size]...)
}

// Bytes appends an attribute with the bytes of a string.
func (a *Attributes) Bytes(kind uint16, s string) {
	*a = binary.NativeEndian.AppendUint16(*a, uint16(unix.SizeofRtAttr+len(s)))
	*a = binary.NativeEndian.AppendUint16(*a, kind)
	*a = append(append(*a, s...), padding[:Aligned(len(s))-len(s)]...)
}

// Each calls f with every attribute of a list.
func Each(b []byte, f func(kind uint16, value []byte)) error {
	for len(b) > 0 {
		kind, value, rest, err := NextAttribute(b)
		if err != nil {
			return err
		}
		f(kind, value)
		b = rest
	}
	return nil
}

// Find returns the value of the first attribute of a kind, nil if there is none. It ignores an attribute that is cut
// off.
func Find(b []byte, kind uint16) []byte {
	for len(b) > 0 {
		k, value, rest, err := NextAttribute(b)
		if err != nil {
			return nil
		}
		if k == kind {
			return value
		}
		b = rest
	}
	return nil
}

// Text reads a string up to its zero byte.
func Text(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// Number reads a number of four bytes in network order; an absent one is 0.
func Number(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// Number64 reads a number of eight bytes in network order; an absent one is 0.
func Number64(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}
