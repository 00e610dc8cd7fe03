package bfd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// State is the state of a session (RFC 5880 section 4.1).
type State uint8

// States.
const (
	AdminDown State = iota
	Down
	Init
	Up
)

// String implements fmt.Stringer.
func (s State) String() string { return [...]string{"AdminDown", "Down", "Init", "Up"}[s&3] }

// Diag is the reason why a session last went down (RFC 5880 section 4.1).
type Diag uint8

// Diagnostics that this end sends.
const (
	NoDiagnostic     Diag = 0
	TimeExpired      Diag = 1
	NeighborSaysDown Diag = 3
	adminDown        Diag = 7
)

var diags = [...]string{
	"No Diagnostic", "Control Detection Time Expired", "Echo Function Failed", "Neighbor Signaled Session Down", "Forwarding Plane Reset",
	"Path Down", "Concatenated Path Down", "Administratively Down", "Reverse Concatenated Path Down",
}

// String implements fmt.Stringer.
func (d Diag) String() string {
	if int(d) < len(diags) {
		return diags[d]
	}
	return fmt.Sprintf("Diagnostic %d", uint8(d))
}

// packet is a Control packet.
type packet struct {
	diag        Diag
	state       State
	poll, final bool
	independent bool // C bit
	demand      bool
	mult        uint8
	my, your    uint32 // discriminators
	minTx       time.Duration
	minRx       time.Duration
	auth        section // its zero value means none
}

const (
	headerLen = 24
	// maxLen is the length of a packet with the longest authentication section that this end uses.
	maxLen  = headerLen + sectionLen + 20
	version = 1
)

// Bits of the second byte.
const (
	bitPoll       = 1 << 5
	bitFinal      = 1 << 4
	bitC          = 1 << 3
	bitAuth       = 1 << 2
	bitDemand     = 1 << 1
	bitMultipoint = 1 << 0
)

// append appends the packet. The caller must set the digest of its authentication section.
func (p *packet) append(b []byte) []byte {
	flags := byte(p.state) << 6
	for _, f := range []struct {
		set bool
		bit byte
	}{{p.poll, bitPoll}, {p.final, bitFinal}, {p.independent, bitC}, {p.auth.kind != NoAuth, bitAuth}, {p.demand, bitDemand}} {
		if f.set {
			flags |= f.bit
		}
	}
	b = append(b, version<<5|byte(p.diag), flags, p.mult, byte(headerLen+p.auth.len()))
	b = binary.BigEndian.AppendUint32(b, p.my)
	b = binary.BigEndian.AppendUint32(b, p.your)
	b = binary.BigEndian.AppendUint32(b, uint32(p.minTx/time.Microsecond))
	b = binary.BigEndian.AppendUint32(b, uint32(p.minRx/time.Microsecond))
	b = binary.BigEndian.AppendUint32(b, 0) // no Echo
	return p.auth.append(b)
}

// parse reads a packet. It applies the rules of RFC 5880 section 6.8.6 that need no session.
func parse(b []byte) (p packet, err error) {
	if len(b) < headerLen {
		return p, errors.New("it is too short")
	}
	length, flags := int(b[3]), b[1]
	micros := func(at int) time.Duration { return time.Duration(binary.BigEndian.Uint32(b[at:])) * time.Microsecond }
	p = packet{
		diag: Diag(b[0] & 0x1f), state: State(flags >> 6), poll: flags&bitPoll != 0, final: flags&bitFinal != 0,
		independent: flags&bitC != 0, demand: flags&bitDemand != 0, mult: b[2],
		my: binary.BigEndian.Uint32(b[4:]), your: binary.BigEndian.Uint32(b[8:]), minTx: micros(12), minRx: micros(16),
	}
	switch {
	case b[0]>>5 != version:
		return p, fmt.Errorf("version %d", b[0]>>5)
	case length < headerLen || length > len(b):
		return p, fmt.Errorf("length %d of %d bytes", length, len(b))
	case p.mult == 0:
		return p, errors.New("detection multiplier 0")
	case flags&bitMultipoint != 0:
		return p, errors.New("multipoint bit")
	case p.my == 0:
		return p, errors.New("discriminator 0")
	case p.your == 0 && p.state > Down:
		return p, fmt.Errorf("state %s without our discriminator", p.state)
	case p.poll && p.final:
		return p, errors.New("poll and final bit")
	case flags&bitAuth != 0:
		p.auth, err = parseSection(b[headerLen:length])
	}
	return p, err
}
