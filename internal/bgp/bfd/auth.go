package bfd

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// AuthType is how packets are authenticated (RFC 5880 section 4.1).
type AuthType uint8

// Types of authentication. Meticulous ones accept no packet twice.
const (
	NoAuth         AuthType = 0
	simple         AuthType = 1
	KeyedMD5       AuthType = 2
	MeticulousMD5  AuthType = 3
	KeyedSHA1      AuthType = 4
	MeticulousSHA1 AuthType = 5
)

// authNames holds the names for settings.
var authNames = map[AuthType]string{
	simple: "simple", KeyedMD5: "keyed-md5", MeticulousMD5: "meticulous-md5", KeyedSHA1: "keyed-sha1", MeticulousSHA1: "meticulous-sha1",
}

// String implements fmt.Stringer.
func (t AuthType) String() string {
	if name, ok := authNames[t]; ok {
		return name
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// digestLen returns the length of the digest, which is also the longest key.
func (t AuthType) digestLen() int {
	switch t {
	case KeyedMD5, MeticulousMD5:
		return md5.Size
	case KeyedSHA1, MeticulousSHA1:
		return sha1.Size
	}
	return 0
}

func (t AuthType) meticulous() bool { return t == MeticulousMD5 || t == MeticulousSHA1 }

// sectionLen is the length of an authentication section before the digest.
const sectionLen = 8

// section is an authentication section of a packet (RFC 5880 sections 4.3 and 4.4), without the digest.
type section struct {
	kind  AuthType
	keyID uint8
	seq   uint32
}

func (s section) len() int {
	if s.kind == NoAuth {
		return 0
	}
	return sectionLen + s.kind.digestLen()
}

// append appends the section with a digest of zeros.
func (s section) append(b []byte) []byte {
	if s.kind == NoAuth {
		return b
	}
	b = append(b, byte(s.kind), byte(s.len()), s.keyID, 0)
	b = binary.BigEndian.AppendUint32(b, s.seq)
	return append(b, make([]byte, s.kind.digestLen())...)
}

func parseSection(b []byte) (section, error) {
	if len(b) < 2 || int(b[1]) != len(b) {
		return section{}, errors.New("length of the authentication section")
	}
	s := section{kind: AuthType(b[0])}
	switch {
	case s.kind.digestLen() == 0:
		return section{},
			fmt.Errorf("authentication of %s is not supported: use keyed-md5, meticulous-md5, keyed-sha1 or meticulous-sha1", s.kind)
	case s.len() != len(b):
		return section{}, errors.New("length of the authentication section")
	}
	s.keyID, s.seq = b[2], binary.BigEndian.Uint32(b[4:])
	return s, nil
}

// digest returns the digest of a packet.
func (t AuthType) digest(b []byte, key string) []byte {
	padded := make([]byte, t.digestLen())
	copy(padded, key)
	text := append(append(make([]byte, 0, maxLen), b[:headerLen+sectionLen]...), padded...)
	if t.digestLen() == md5.Size {
		sum := md5.Sum(text)
		return sum[:]
	}
	sum := sha1.Sum(text)
	return sum[:]
}

// Auth is the authentication of a session. The zero Auth means none.
type Auth struct {
	Type  AuthType
	KeyID uint8
	Key   string // must not be logged or shown
}

// sequence is the state for replay protection.
type sequence struct {
	sent, received uint32
	known          bool // received comes from a packet
}

// seal appends a packet with its digest.
func (a Auth) seal(b []byte, p *packet) []byte {
	b = p.append(b)
	if a.Type != NoAuth {
		copy(b[headerLen+sectionLen:], a.Type.digest(b, a.Key))
	}
	return b
}

// Faults of packets from the neighbour.
var (
	errUnsigned = errors.New("its packets are not authenticated: set authentication there, too")
	errSigned   = errors.New("its packets are authenticated: set authentication here, too")
	errDigest   = errors.New("the digest of its packets is wrong: use the same key at both ends")
	errReplay   = errors.New("the sequence number of a packet is outside of the window")
	errDemand   = errors.New("it asks for Demand mode, which is not supported: switch it off there")
	errForeign  = errors.New("a packet has the discriminator of another session")
)

// verify checks a packet, and stores its sequence number. silent is the result of unheard before the packet.
func (s *session) verify(b []byte, p *packet, silent bool) error {
	a, got := s.config.Auth, p.auth
	switch {
	case a.Type == NoAuth && got.kind == NoAuth:
		return nil
	case a.Type == NoAuth:
		return errSigned
	case got.kind == NoAuth:
		return errUnsigned
	case got.kind != a.Type || got.keyID != a.KeyID:
		return fmt.Errorf("its packets are authenticated by %s with key ID %d, ours by %s with key ID %d: use the same at both ends", got.kind,
			got.keyID, a.Type, a.KeyID)
	}
	step, least := got.seq-s.seq.received, uint32(0)
	if a.Type.meticulous() {
		least = 1
	}
	if s.seq.known && !silent && (step < least || step > 3*uint32(p.mult)) {
		return errReplay
	}
	if subtle.ConstantTimeCompare(b[headerLen+sectionLen:headerLen+got.len()], a.Type.digest(b, a.Key)) != 1 {
		return errDigest
	}
	s.seq.received, s.seq.known = got.seq, true
	return nil
}

// unheard reports whether no valid packet has come for twice the detection time, after which sequence numbers may begin
// anew.
func (s *session) unheard(now time.Time) bool { return now.Sub(s.heard) > 2*s.detection() }
