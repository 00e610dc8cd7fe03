package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Capability codes.
const (
	capMultiProtocol   = 1
	capRouteRefresh    = 2
	capExtendedNextHop = 5 // RFC 8950
	capGracefulRestart = 64
	capFourOctetAS     = 65

	optCapabilities = 2
	optExtended     = 255 // RFC 9072

	asTrans = 23456
)

// Restart flags of RFC 4724 and RFC 8538, in the upper four bits of the capability.
const (
	flagRestarted    = 0x80
	flagNotification = 0x40
	flagForwarding   = 0x80 // of a family
)

// Offer holds the understood fields of a peer's OPEN.
type Offer struct {
	ASN      uint32
	ID       netip.Addr
	HoldTime uint16
	// FourOctets: its AS_PATHs have AS numbers of four octets.
	FourOctets bool
	// Restarted is the R bit: its last session ended because it restarted.
	Restarted bool

	refresh       bool
	multiProtocol bool     // it offers families at all
	extended      bool     // it offers IPv6 next hops of IPv4 prefixes
	families      Families // offered families of the session
	graceful      bool     // it offers graceful restart
	keeps         Families // families that it preserves over its own restarts
	preserved     Families // families that it preserved over the last one
	restartFlags  byte
	restartTime   uint16
}

// Families returns the families of the session that the peer offers, too.
func (o *Offer) Families() Families { return o.families }

// EndsTable reports whether the peer sends End-of-RIB: a peer that offers graceful restart does (RFC 4724 section 2),
// even if it keeps nothing itself.
func (o Offer) EndsTable() bool { return o.graceful }

func openFault(subcode uint8, data []byte, format string, args ...any) *Notification {
	return &Notification{Code: OpenError, Subcode: subcode, Data: data, Reason: fmt.Sprintf(format, args...)}
}

// ParseOpen reads a whole OPEN message and checks it against rules.
func ParseOpen(message []byte, rules Rules) (Offer, *Notification) {
	b := body(message)
	o := Offer{
		ASN:      uint32(binary.BigEndian.Uint16(b[1:])),
		HoldTime: binary.BigEndian.Uint16(b[3:]),
		ID:       netip.AddrFrom4([4]byte(b[5:9])),
	}
	if b[0] != 4 {
		return o, openFault(1, []byte{0, 4}, "it speaks BGP version %d", b[0])
	}
	if fault := o.readParameters(b[9:]); fault != nil {
		return o, fault
	}
	o.agree(rules)
	return o, o.check(rules)
}

// agree drops families that the session does not have. A peer that offers none at all speaks IPv4, by RFC 4760.
func (o *Offer) agree(rules Rules) {
	if !o.multiProtocol {
		o.families = OnlyIPv4
	}
	if rules.Link != "" && !o.extended {
		o.families &^= OnlyIPv4 // there is no IPv4 next hop
	}
	o.families &= rules.Families
	if o.keeps &= o.families; o.keeps != o.families {
		o.keeps = 0 // a restart loses the paths of the other families
	}
	o.preserved &= o.keeps
}

// check applies the part of RFC 4271 section 6.2 that depends on rules. A hold time of 0 is refused, as section 4.2
// allows: a session without keepalives never finds out that its peer is gone.
func (o *Offer) check(rules Rules) *Notification {
	switch {
	case o.ASN != rules.ASN:
		return openFault(2, nil, "peer is AS %d, configured %d", o.ASN, rules.ASN)
	case o.ID.IsUnspecified():
		return openFault(3, nil, "its router ID is 0.0.0.0")
	case o.ID == rules.LocalID && o.ASN == rules.LocalASN:
		return openFault(3, nil,
			"its router ID %s is our own: is it this node, or a twin with the same address or the same hash of its name?", o.ID)
	case o.HoldTime < 3:
		return openFault(6, nil, "its hold time is %d s: it must be 3 s or more", o.HoldTime)
	case o.families == 0 && rules.Link != "":
		return openFault(7, capabilities(rules.Families),
			"it offers neither IPv6 unicast routes on this session nor IPv4 ones with IPv6 next hops (RFC 8950)")
	case o.families == 0:
		return openFault(7, capabilities(rules.Families), "it does not offer %s unicast routes on this session", rules.Families.All()[0])
	}
	return nil
}

// readParameters reads the optional parameters. Only capabilities are known.
func (o *Offer) readParameters(b []byte) *Notification {
	malformed := openFault(0, nil, "its OPEN is malformed: optional parameters do not fit their length")
	length, rest, wide := int(b[0]), b[1:], 1
	if length == optExtended && len(rest) >= 3 && rest[0] == optExtended {
		length, rest, wide = int(binary.BigEndian.Uint16(rest[1:])), rest[3:], 2
	}
	if length != len(rest) {
		return malformed
	}
	for len(rest) > 0 {
		if len(rest) < 1+wide {
			return malformed
		}
		kind, n := rest[0], int(rest[1])
		if wide == 2 {
			n = int(binary.BigEndian.Uint16(rest[1:]))
		}
		rest = rest[1+wide:]
		if len(rest) < n {
			return malformed
		}
		if kind != optCapabilities {
			return openFault(4, nil, "its OPEN has the optional parameter %d", kind)
		}
		if !o.readCapabilities(rest[:n]) {
			return malformed
		}
		rest = rest[n:]
	}
	return nil
}

func (o *Offer) readCapabilities(b []byte) bool {
	for len(b) > 0 {
		if len(b) < 2 || len(b)-2 < int(b[1]) {
			return false
		}
		o.readCapability(b[0], b[2:2+int(b[1])])
		b = b[2+int(b[1]):]
	}
	return true
}

// readCapability reads capabilities in use here. One of a wrong length is not offered, RFC 5492 section 5.
func (o *Offer) readCapability(code byte, value []byte) {
	switch {
	case code == capMultiProtocol && len(value) == 4:
		o.multiProtocol = true
		if value[3] == unicast {
			o.families |= familySet(value)
		}
	case code == capExtendedNextHop && len(value)%6 == 0:
		for tuple := value; len(tuple) > 0; tuple = tuple[6:] {
			o.extended = o.extended || bytes.Equal(tuple[:6], ipv4OverIPv6)
		}
	case code == capRouteRefresh && len(value) == 0:
		o.refresh = true
	case code == capFourOctetAS && len(value) == 4:
		o.FourOctets, o.ASN = true, binary.BigEndian.Uint32(value)
	case code == capGracefulRestart && len(value) >= 2 && len(value)%4 == 2:
		o.readRestart(value)
	}
}

// readRestart replaces an earlier capability, as RFC 4724 section 3 requires.
func (o *Offer) readRestart(value []byte) {
	o.graceful, o.keeps, o.preserved = true, 0, 0
	o.restartFlags = value[0] & (flagRestarted | flagNotification)
	o.Restarted = o.restartFlags&flagRestarted != 0
	o.restartTime = binary.BigEndian.Uint16(value) & 0x0fff
	for tuple := value[2:]; len(tuple) > 0; tuple = tuple[4:] {
		if tuple[2] != unicast {
			continue
		}
		o.keeps |= familySet(tuple)
		if tuple[3]&flagForwarding != 0 {
			o.preserved |= familySet(tuple)
		}
	}
}

// familySet returns the family that a value begins with, none if sessions cannot have it.
func familySet(value []byte) Families {
	return BothFamilies & Families(1<<min(binary.BigEndian.Uint16(value), 7))
}

// ipv4OverIPv6 is the value of capExtendedNextHop: unicast prefixes of IPv4 with next hops of IPv6.
var ipv4OverIPv6 = []byte{0, byte(IPv4), 0, unicast, 0, byte(IPv6)}

// capabilities returns the capabilities for families.
func capabilities(families Families) (caps []byte) {
	for _, family := range families.All() {
		caps = append(caps, capMultiProtocol, 4, 0, byte(family), 0, unicast)
	}
	return caps
}

// bytes returns an OPEN. The speaker behind gets all families of the session, as it would wait for a missing one. AS
// numbers have four octets, whatever the peer offers: Check and Narrow translate.
func (o *Offer) bytes(families Families) []byte {
	caps := capabilities(families)
	if o.extended {
		caps = append(append(caps, capExtendedNextHop, byte(len(ipv4OverIPv6))), ipv4OverIPv6...)
	}
	if o.refresh {
		caps = append(caps, capRouteRefresh, 0)
	}
	caps = binary.BigEndian.AppendUint32(append(caps, capFourOctetAS, 4), o.ASN)
	if o.graceful {
		caps = append(caps, o.restart(families)...)
	}
	as := uint16(asTrans)
	if o.ASN <= 0xffff {
		as = uint16(o.ASN)
	}
	id := o.ID.As4()
	message := append(begin(Open), 4, byte(as>>8), byte(as), byte(o.HoldTime>>8), byte(o.HoldTime), id[0], id[1], id[2], id[3])
	message = append(message, byte(len(caps)+2), optCapabilities, byte(len(caps)))
	return end(append(message, caps...))
}

func (o *Offer) restart(families Families) []byte {
	value := []byte{o.restartFlags | byte(o.restartTime>>8), byte(o.restartTime)}
	for _, family := range families.All() {
		if o.keeps == 0 {
			break
		}
		forwarding := byte(0)
		if o.preserved.Has(family) {
			forwarding = flagForwarding
		}
		value = append(value, 0, byte(family), unicast, forwarding)
	}
	return append([]byte{capGracefulRestart, byte(len(value))}, value...)
}

// String describes the offer.
func (o *Offer) String() string {
	var words []string
	if o.refresh {
		words = append(words, "route refresh")
	}
	switch {
	case o.Graceful():
		words = append(words, fmt.Sprintf("graceful restart (%d s)", o.restartTime))
	case o.graceful:
		words = append(words, "graceful restart as a helper")
	}
	if o.FourOctets {
		words = append(words, "AS numbers of four octets")
	}
	return strings.Join(append(words, fmt.Sprintf("hold time %d s", o.HoldTime)), ", ")
}

// Graceful reports whether the peer restarts gracefully: its paths are kept when its connection is lost.
func (o *Offer) Graceful() bool { return o.graceful && o.keeps != 0 }

// RestartTime returns how long its paths are kept then.
func (o *Offer) RestartTime() time.Duration { return time.Duration(o.restartTime) * time.Second }

// Final returns the NOTIFICATION to send for n, after which the peer keeps none of our paths: a Hard Reset, if the peer
// would keep them otherwise (RFC 8538 section 3.1).
func (o *Offer) Final(n *Notification) *Notification {
	if o.restartFlags&flagNotification == 0 {
		return n
	}
	return &Notification{Code: Cease, Subcode: HardReset, Data: append([]byte{n.Code, n.Subcode}, n.Data...)}
}

// Helps reports whether the peer offers graceful restart at all: it keeps our paths when we restart.
func (o *Offer) Helps() bool { return o.graceful }

// Restart holds an OPEN's bits about the previous session, RFC 4724.
type Restart struct {
	Restarted bool // the session was lost because the speaker restarted
	Preserved bool // the speaker has gone on forwarding: paths announced then may stay until they are announced again
}

// LocalOpen holds the fields of our OPEN.
type LocalOpen struct {
	ASN      uint32
	ID       netip.Addr
	HoldTime uint16 // seconds
	// RestartTime is for how many seconds the peer should keep our paths when the connection is lost; at most 4095.
	RestartTime uint16
	Restart
}

// Bytes returns our OPEN for a session with these families. It offers route refresh, AS numbers of four octets and
// graceful restart, also after an expired hold timer (RFC 8538).
func (o LocalOpen) Bytes(families Families, linkLocal bool) []byte {
	offer := Offer{
		ASN: o.ASN, ID: o.ID, HoldTime: o.HoldTime, refresh: true,
		graceful: true, keeps: families, restartFlags: flagNotification, restartTime: o.RestartTime, extended: linkLocal,
	}
	if o.Preserved {
		offer.preserved = families
	}
	if o.Restarted {
		offer.restartFlags |= flagRestarted
	}
	return offer.bytes(families)
}
