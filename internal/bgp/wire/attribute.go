package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// attribute is the type of a path attribute.
type attribute uint8

// Path attributes that are passed on or replaced.
const (
	attrOrigin          attribute = 1
	attrASPath          attribute = 2
	attrNextHop         attribute = 3
	attrMED             attribute = 4
	attrLocalPref       attribute = 5
	attrAtomicAggregate attribute = 6
	attrAggregator      attribute = 7
	attrCommunities     attribute = 8
	attrOriginatorID    attribute = 9
	attrClusterList     attribute = 10
	attrMPReach         attribute = 14
	attrMPUnreach       attribute = 15
	attrLargeCommunity  attribute = 32
)

var attributeNames = map[attribute]string{
	attrOrigin: "ORIGIN", attrASPath: "AS_PATH", attrNextHop: "NEXT_HOP", attrMED: "MULTI_EXIT_DISC", attrLocalPref: "LOCAL_PREF",
	attrAtomicAggregate: "ATOMIC_AGGREGATE", attrAggregator: "AGGREGATOR", attrCommunities: "COMMUNITIES",
	attrOriginatorID: "ORIGINATOR_ID", attrClusterList: "CLUSTER_LIST", attrMPReach: "MP_REACH_NLRI",
	attrMPUnreach: "MP_UNREACH_NLRI", attrLargeCommunity: "LARGE_COMMUNITY",
}

func (a attribute) String() string {
	if name, ok := attributeNames[a]; ok {
		return name
	}
	return fmt.Sprintf("attribute %d", uint8(a))
}

// Attribute flags.
const (
	flagOptional   = 0x80
	flagTransitive = 0x40
	flagExtended   = 0x10
)

// flags are the required Optional and Transitive bits of an attribute, 0 for an unknown one.
var flags = [256]byte{
	attrOrigin: flagTransitive, attrASPath: flagTransitive, attrNextHop: flagTransitive, attrMED: flagOptional,
	attrLocalPref: flagTransitive, attrAtomicAggregate: flagTransitive, attrAggregator: flagOptional | flagTransitive,
	attrCommunities: flagOptional | flagTransitive, attrOriginatorID: flagOptional, attrClusterList: flagOptional,
	attrMPReach: flagOptional, attrMPUnreach: flagOptional, attrLargeCommunity: flagOptional | flagTransitive,
	attrAS4Path: flagOptional | flagTransitive, attrAS4Aggregator: flagOptional | flagTransitive,
}

func appendAttribute(b []byte, kind attribute, value []byte) []byte {
	if len(value) > 255 {
		b = append(b, flags[kind]|flagExtended, byte(kind), byte(len(value)>>8), byte(len(value)))
	} else {
		b = append(b, flags[kind], byte(kind), byte(len(value)))
	}
	return append(b, value...)
}

// readAttributes reads all path attributes into n.
func (s *Session) readAttributes(n *parsedUpdate, b []byte) *Notification {
	if !s.offer.FourOctets {
		n.readWidened(b)
	}
	for len(b) > 0 {
		flag, kind, value, rest, ok := cutAttribute(b)
		if !ok {
			// RFC 7606 section 4: prefixes outside of attributes are known, and treated as withdrawn. IPv6 prefixes are in an
			// attribute, perhaps in the unreadable part.
			if s.offer.families != OnlyIPv4 && !n.seen[attrMPReach] {
				return updateFault(1, nil, "path attributes do not fit their length")
			}
			n.flawed(true, "path attributes do not fit their length")
			return nil
		}
		b = rest
		if n.seen[kind] {
			if kind == attrMPReach || kind == attrMPUnreach {
				return updateFault(1, nil, "%s is there twice", kind)
			}
			n.flawed(false, "%s is there twice", kind)
			continue
		}
		n.seen[kind] = true
		if fault := s.readAttribute(n, flag, kind, value); fault != nil {
			return fault
		}
	}
	return nil
}

// cutAttribute splits the first attribute off.
func cutAttribute(b []byte) (flag byte, kind attribute, value, rest []byte, ok bool) {
	if len(b) < 3 {
		return 0, 0, nil, nil, false
	}
	flag, kind = b[0], attribute(b[1])
	length, rest := int(b[2]), b[3:]
	if flag&flagExtended != 0 {
		if len(rest) < 1 {
			return 0, 0, nil, nil, false
		}
		length, rest = int(binary.BigEndian.Uint16(b[2:])), rest[1:]
	}
	if len(rest) < length {
		return 0, 0, nil, nil, false
	}
	return flag, kind, rest[:length], rest[length:], true
}

// find returns the value of the first attribute of a kind, nil if there is none.
func find(attributes []byte, want attribute) []byte {
	for b := attributes; len(b) > 0; {
		_, kind, value, rest, ok := cutAttribute(b)
		if !ok || kind == want {
			return value
		}
		b = rest
	}
	return nil
}

// readAttribute judges one attribute: by RFC 7606 most faults make the message a withdrawal.
func (s *Session) readAttribute(n *parsedUpdate, flag byte, kind attribute, value []byte) *Notification {
	want := flags[kind]
	switch {
	case want == 0 && flag&flagOptional == 0:
		return updateFault(2, appendAttribute(nil, kind, value), "well-known %s is not known", kind)
	case want == 0, kind == attrAS4Path, kind == attrAS4Aggregator:
		return nil // nothing here reads it, or readWidened has
	case kind == attrMPReach:
		return n.readReachable(value)
	case kind == attrMPUnreach:
		return n.readUnreachable(value)
	case s.external() && (kind == attrLocalPref || kind == attrOriginatorID || kind == attrClusterList):
		return nil // RFC 7606 sections 7.5, 7.9 and 7.10: not from outside
	case flag&(flagOptional|flagTransitive) != want:
		n.flawed(true, "flags %#02x of %s", flag, kind)
	case kind == attrNextHop:
		n.readNextHop(value)
	case kind == attrASPath:
		n.readASPath(value, s.offer.FourOctets)
	case kind == attrAggregator:
		n.readAggregator(value, s.offer.FourOctets)
	case kind == attrAtomicAggregate && len(value) != 0: // RFC 7606 section 7.6
		n.flawed(false, "%s of %d bytes", kind, len(value))
	case kind == attrMED && len(value) == 4:
		n.hasMED, n.med = true, binary.BigEndian.Uint32(value) // written when all is read
	case !fits(kind, value):
		n.flawed(true, "%s of %d bytes or with an impossible value", kind, len(value))
	default:
		n.checkReflection(kind, value, &s.rules)
		n.attributes = appendAttribute(n.attributes, kind, value)
	}
	return nil
}

// checkReflection refuses a path that returns to where it was (RFC 4456 section 8).
func (n *parsedUpdate) checkReflection(kind attribute, value []byte, rules *Rules) {
	switch kind {
	case attrOriginatorID:
		if netip.AddrFrom4([4]byte(value)) == rules.LocalID {
			n.refusal = "a reflector sends us our own path back"
		}
	case attrClusterList:
		n.clusters = len(value) / 4
		for ; len(value) > 0; value = value[4:] {
			if netip.AddrFrom4([4]byte(value)) == rules.ClusterID {
				n.refusal = "it was reflected with our own cluster ID before"
			}
		}
	}
}

func (s *Session) external() bool { return s.rules.ASN != s.rules.LocalASN }

// fits reports whether value is possible for an attribute of fixed form.
func fits(kind attribute, value []byte) bool {
	several := func(size int) bool { return len(value) > 0 && len(value)%size == 0 }
	switch kind {
	case attrAtomicAggregate:
		return len(value) == 0
	case attrOrigin:
		return len(value) == 1 && value[0] <= 2
	case attrMED, attrLocalPref, attrOriginatorID:
		return len(value) == 4
	case attrCommunities, attrClusterList:
		return several(4)
	case attrLargeCommunity:
		return several(12)
	}
	return false
}

// readNextHop reads NEXT_HOP. It applies to prefixes outside of attributes only.
func (n *parsedUpdate) readNextHop(value []byte) {
	p := n.part(IPv4)
	if p == nil || len(p.announced) == 0 || (p.nextHop != nil && n.seen[attrMPReach]) {
		return
	}
	if len(value) != 4 || !usable(value) {
		n.flawed(true, "%s % x is not the address of a host", attrNextHop, value)
		return
	}
	p.nextHop = value
}

// usable reports whether raw can be the address of another host.
func usable(raw []byte) bool {
	addr, ok := netip.AddrFromSlice(raw)
	if !ok || addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() || addr.Is4In6() || addr == AnyRouter {
		return false
	}
	return !addr.Is4() || (raw[0] != 0 && raw[0] < 224)
}

// AS_PATH segments.
const (
	segmentSet      = 1
	segmentSequence = 2
)

// readASPath reads AS_PATH and writes it with AS numbers of four octets in any case; see widen. Confederation segments
// are for members only.
func (n *parsedUpdate) readASPath(value []byte, fourOctets bool) {
	size := 2
	if fourOctets {
		size = 4
	}
	var path []byte
	for rest := value; len(rest) > 0; {
		if len(rest) < 2 || rest[1] == 0 || (rest[0] != segmentSet && rest[0] != segmentSequence) || len(rest)-2 < size*int(rest[1]) {
			n.flawed(true, "%s is malformed", attrASPath)
			return
		}
		path = append(path, rest[:2]...)
		numbers := rest[2 : 2+size*int(rest[1])]
		rest = rest[2+len(numbers):]
		for ; len(numbers) > 0; numbers = numbers[size:] {
			number := uint32(binary.BigEndian.Uint16(numbers))
			if fourOctets {
				number = binary.BigEndian.Uint32(numbers)
			}
			if number == 0 || number == MaskedASN { // RFC 7607, RFC 7300
				n.flawed(true, "%s has AS number %d", attrASPath, number)
				return
			}
			path = binary.BigEndian.AppendUint32(path, number)
		}
	}
	n.attributes = appendAttribute(n.attributes, attrASPath, widen(path, n.widened.path))
}

// readAggregator reads AGGREGATOR and writes it with an AS number of four octets. An attribute of a wrong length is
// left out, RFC 7606 section 7.7.
func (n *parsedUpdate) readAggregator(value []byte, fourOctets bool) {
	switch {
	case fourOctets && len(value) == 8:
		n.attributes = appendAttribute(n.attributes, attrAggregator, value)
	case !fourOctets && len(value) == 6 && n.widened.aggregator != nil:
		n.attributes = appendAttribute(n.attributes, attrAggregator, n.widened.aggregator)
	case !fourOctets && len(value) == 6:
		n.attributes = appendAttribute(n.attributes, attrAggregator, append([]byte{0, 0}, value...))
	default:
		n.flawed(false, "%s of %d bytes", attrAggregator, len(value))
	}
}

// multi reads the head of MP_REACH_NLRI and MP_UNREACH_NLRI; nil: the session does not have the family.
func (n *parsedUpdate) multi(value []byte) *part {
	if value[2] != unicast {
		return nil
	}
	return n.part(Family(binary.BigEndian.Uint16(value)))
}

// readReachable reads MP_REACH_NLRI. Other families were not agreed on and are ignored.
func (n *parsedUpdate) readReachable(value []byte) *Notification {
	if len(value) < 5 || len(value) < 5+int(value[3]) {
		return updateFault(9, nil, "%s is cut short", attrMPReach)
	}
	p := n.multi(value)
	if p == nil {
		return nil
	}
	hop, list := value[4:4+int(value[3])], value[5+int(value[3]):]
	prefixes, err := readPrefixes(list, p.family)
	if err != nil {
		return updateFault(9, nil, "%s: %v", attrMPReach, errNetwork)
	}
	p.announced = append(p.announced, prefixes...)
	if len(hop) == 32 { // RFC 2545: the second one is link-local
		first, second := hop[:16], hop[16:]
		if hop = first; n.linkLocal && linkLocal(second) {
			hop = second
		}
	}
	switch {
	case len(hop) != 16 && len(hop) != p.family.bytes():
		return updateFault(9, nil, "%s has a next hop of %d bytes", attrMPReach, len(hop))
	case !usable(hop):
		n.flawed(true, "next hop % x is not the address of a host", hop)
	case len(hop) == 16 && linkLocal(hop) && !n.linkLocal:
		n.flawed(true, "a link-local next hop is of no use on a session by other addresses")
	case p.family == IPv4 && len(hop) == 16 && !linkLocal(hop):
		n.flawed(true, "an IPv6 next hop of IPv4 routes is of no use here, but a link-local one on a session by link-local addresses")
	default:
		p.nextHop = hop
	}
	return nil
}

func linkLocal(raw []byte) bool { return LinkLocal(netip.AddrFrom16([16]byte(raw))) }

// readUnreachable reads MP_UNREACH_NLRI. Without prefixes it is End-of-RIB.
func (n *parsedUpdate) readUnreachable(value []byte) *Notification {
	if len(value) < 3 {
		return updateFault(9, nil, "%s is cut short", attrMPUnreach)
	}
	p := n.multi(value)
	if p == nil {
		return nil
	}
	prefixes, err := readPrefixes(value[3:], p.family)
	if err != nil {
		return updateFault(9, nil, "%s: %v", attrMPUnreach, errNetwork)
	}
	p.withdrawn = append(p.withdrawn, prefixes...)
	p.end = p.end || len(prefixes) == 0 // settled when all is read
	return nil
}
