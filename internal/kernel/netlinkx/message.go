package netlinkx

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// errMalformed says that the kernel sent what this package does not take for netlink.
var errMalformed = errors.New("malformed netlink message")

// message is one netlink message: netlink(7).
type message struct {
	kind, flags uint16
	seq         uint32
	body        []byte
}

// nextMessage takes the first message off a datagram.
func nextMessage(b []byte) (m message, rest []byte, err error) {
	if len(b) < unix.SizeofNlMsghdr {
		return m, nil, fmt.Errorf("%w: %d bytes", errMalformed, len(b))
	}
	size := binary.NativeEndian.Uint32(b)
	if size < unix.SizeofNlMsghdr || uint64(size) > uint64(len(b)) {
		return m, nil, fmt.Errorf("%w: length %d of %d bytes", errMalformed, size, len(b))
	}
	m = message{
		kind: binary.NativeEndian.Uint16(b[4:]), flags: binary.NativeEndian.Uint16(b[6:]), seq: binary.NativeEndian.Uint32(b[8:]),
		body: b[unix.SizeofNlMsghdr:size],
	}
	return m, b[min(aligned(int(size)), len(b)):], nil
}

// status is the error that an NLMSG_ERROR or NLMSG_DONE carries, nil for success.
func (m message) status() error {
	if len(m.body) < 4 {
		return nil // NLMSG_DONE of old kernels has none
	}
	if code := int32(binary.NativeEndian.Uint32(m.body)); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// nextAttribute takes the first attribute off a message's body.
func nextAttribute(b []byte) (kind uint16, value, rest []byte, err error) {
	if len(b) < unix.SizeofRtAttr {
		return 0, nil, nil, fmt.Errorf("%w: attribute of %d bytes", errMalformed, len(b))
	}
	size := int(binary.NativeEndian.Uint16(b))
	if size < unix.SizeofRtAttr || size > len(b) {
		return 0, nil, nil, fmt.Errorf("%w: attribute length %d of %d bytes", errMalformed, size, len(b))
	}
	kind = binary.NativeEndian.Uint16(b[2:]) & attributeKinds
	return kind, b[unix.SizeofRtAttr:size], b[min(aligned(size), len(b)):], nil
}

// attributeKinds masks the flags that share a place with an attribute's number.
const attributeKinds = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)

// aligned rounds up to four, at which messages and attributes begin.
func aligned(size int) int { return (size + 3) &^ 3 }

// appendHeader begins a message; finish sets its length.
func appendHeader(b []byte, kind, flags uint16, seq uint32) []byte {
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, seq)
	return binary.NativeEndian.AppendUint32(b, 0) // the kernel knows whose socket it is
}

// finish sets the length of the message that begins at from and ends with b.
func finish(b []byte, from int) []byte {
	binary.NativeEndian.PutUint32(b[from:], uint32(len(b)-from))
	return b
}

// appendAttribute appends an attribute and what aligns the next.
func appendAttribute(b []byte, kind uint16, value []byte) []byte {
	size := unix.SizeofRtAttr + len(value)
	b = binary.NativeEndian.AppendUint16(b, uint16(size))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, "\x00\x00\x00"[:aligned(size)-size]...)
}

func appendUint32(b []byte, kind uint16, value uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, unix.SizeofRtAttr+4)
	b = binary.NativeEndian.AppendUint16(b, kind)
	return binary.NativeEndian.AppendUint32(b, value)
}
