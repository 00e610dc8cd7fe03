package wire

import (
	"encoding/binary"
	"errors"
	"io"
)

// Lengths of RFC 4271 section 4.1.
const (
	headerLen = 19
	MaxLen    = 4096
)

// Type is a message's type.
type Type uint8

// Message types.
const (
	Open         Type = 1
	Update       Type = 2
	Notify       Type = 3
	Keepalive    Type = 4
	RouteRefresh Type = 5
)

// shortest is the least length of each type of message.
var shortest = map[Type]int{Open: 29, Update: 23, Notify: 21, Keepalive: headerLen, RouteRefresh: 23}

// TypeOf returns the type of a whole message, as Read returns it.
func TypeOf(message []byte) Type { return Type(message[18]) }

// body returns the message without its header.
func body(message []byte) []byte { return message[headerLen:] }

// Room is a good size for a buffer kept for reading. Most messages fit: keepalives, and announcements of a node.
const Room = 256

// Read reads one message, into buf if it fits. buf must have room for a header. The error of an invalid header is a
// *Notification; all others are the reader's.
func Read(r io.Reader, buf []byte) ([]byte, error) {
	// Thousands wait here. The rest is readBody, to keep their stacks small.
	if _, err := io.ReadFull(r, buf[:headerLen]); err != nil {
		return nil, err
	}
	return readBody(r, buf)
}

// readBody reads the rest of the message whose header is in buf.
func readBody(r io.Reader, buf []byte) ([]byte, error) {
	length, fault := checkHeader(buf[:headerLen])
	if fault != nil {
		return nil, fault
	}
	if length > len(buf) {
		buf = append(make([]byte, 0, length), buf[:headerLen]...)[:length]
	}
	if _, err := io.ReadFull(r, buf[headerLen:length]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return buf[:length], nil
}

// checkHeader returns the length of the message.
func checkHeader(header []byte) (int, *Notification) {
	for _, b := range header[:16] {
		if b != 0xff {
			return 0, &Notification{Code: HeaderError, Subcode: 1}
		}
	}
	kind, length := Type(header[18]), int(binary.BigEndian.Uint16(header[16:]))
	least, known := shortest[kind]
	switch {
	case !known:
		return 0, &Notification{Code: HeaderError, Subcode: 3, Data: []byte{byte(kind)}}
	case length < least, length > MaxLen, kind == Keepalive && length != least:
		return 0, &Notification{Code: HeaderError, Subcode: 2, Data: append([]byte(nil), header[16:18]...)}
	}
	return length, nil
}

// NewKeepalive returns a KEEPALIVE.
func NewKeepalive() []byte { return end(begin(Keepalive)) }

// begin starts a message of a type; end sets its length.
func begin(kind Type) []byte {
	message := make([]byte, headerLen, 128)
	for i := range 16 {
		message[i] = 0xff
	}
	message[18] = byte(kind)
	return message
}

func end(message []byte) []byte {
	binary.BigEndian.PutUint16(message[16:], uint16(len(message)))
	return message
}
