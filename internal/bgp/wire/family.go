package wire

import (
	"encoding/binary"
	"net/netip"
)

// Families is a set of address families.
type Families uint8

// Families of sessions.
const (
	OnlyIPv4     = Families(1 << IPv4)
	OnlyIPv6     = Families(1 << IPv6)
	BothFamilies = OnlyIPv4 | OnlyIPv6
)

// Has reports whether a family is in the set.
func (s Families) Has(f Family) bool { return (f == IPv4 || f == IPv6) && s&(1<<f) != 0 }

// With returns the set with one more family.
func (s Families) With(f Family) Families { return s | 1<<f }

var inOrder = [...]Family{IPv4, IPv6}

// All returns the families, IPv4 first. Callers must not change the slice.
func (s Families) All() []Family {
	first, end := 0, len(inOrder)
	if !s.Has(IPv4) {
		first = 1
	}
	if !s.Has(IPv6) {
		end = 1
	}
	return inOrder[first:end:end]
}

// AnyRouter is the Subnet-Router anycast address of each link (RFC 4291 section 2.6.1), shared by its routers.
var AnyRouter = netip.MustParseAddr("fe80::")

// LinkLocal reports whether an address is valid on one link only.
func LinkLocal(addr netip.Addr) bool {
	return addr.Is6() && !addr.Is4In6() && addr.IsLinkLocalUnicast()
}

// FamiliesOf returns the families of a session with a peer: the family of its address or, if it is link-local, both.
func FamiliesOf(peer netip.Addr) Families {
	switch {
	case LinkLocal(peer):
		return BothFamilies
	case peer.Is4():
		return OnlyIPv4
	}
	return OnlyIPv6
}

// FamilyIn returns the family of a whole UPDATE, which must be valid and have one only, as of Session.Check and of the
// speaker behind.
func FamilyIn(message []byte) Family {
	attributes, _ := attributesOf(message)
	for rest := attributes; len(rest) > 0; {
		_, kind, value, after, ok := cutAttribute(rest)
		if !ok {
			break
		}
		if (kind == attrMPReach || kind == attrMPUnreach) && len(value) >= familyLen {
			return Family(binary.BigEndian.Uint16(value))
		}
		rest = after
	}
	return IPv4
}

// Placeholders stand for our end of the session where the speaker behind does not know it, and for link-local next hops
// in the speaker.
var (
	Placeholder4 = netip.MustParseAddr("192.0.2.179") // of a network for documentation
	Placeholder6 = netip.MustParseAddr("2001:db8::179")
)

// Placeholder returns the placeholder of a family.
func Placeholder(family Family) netip.Addr {
	if family == IPv4 {
		return Placeholder4
	}
	return Placeholder6
}

// innerHop returns the next hop that the speaker behind receives for a path.
func innerHop(family Family, hop netip.Addr) netip.Addr {
	switch {
	case family == IPv4 && !hop.Is4():
		return Placeholder4
	case LinkLocal(hop):
		return Placeholder6
	}
	return hop
}
