package wire

import (
	"net/netip"
)

// The speaker behind has an IPv6 address for its end of a session by link-local addresses, and so sends IPv4 prefixes
// in MP_REACH_NLRI. Plain and Extend convert its messages for the peer: between them an UPDATE of IPv4 has one form.

// Plain rewrites an UPDATE of our own speaker that announces IPv4 prefixes in MP_REACH_NLRI: it uses NEXT_HOP, with
// Placeholder4. Other messages are returned as they came.
func Plain(message []byte) []byte {
	if TypeOf(message) != Update || FamilyIn(message) != IPv4 {
		return message
	}
	attributes, _ := attributesOf(message)
	reach := find(attributes, attrMPReach)
	if len(reach) < familyLen+2 || len(reach) < familyLen+2+int(reach[familyLen]) {
		return message
	}
	var w writer
	w.start(IPv4)
	w.others(attributes)
	w.attributes = appendAttribute(w.attributes, attrNextHop, Placeholder4.AsSlice())
	w.reach(Placeholder4, reach[familyLen+2+int(reach[familyLen]):])
	return w.text
}

// Extend rewrites an UPDATE for a peer with IPv6 next hops: IPv4 prefixes with next hop Placeholder4 have self in its
// place (RFC 8950). Other messages are returned as they came.
func Extend(message []byte, self netip.Addr) [][]byte {
	if TypeOf(message) != Update || FamilyIn(message) != IPv4 {
		return [][]byte{message}
	}
	u, err := cutUpdate(message, IPv4)
	if hop, _ := netip.AddrFromSlice(find(u.attributes, attrNextHop)); err != nil || hop != Placeholder4 {
		return [][]byte{message}
	}
	var w writer
	w.start(IPv4)
	w.withdraw(u.withdrawn)
	w.others(u.attributes)
	length := len(w.attributes)
	for prefixes := u.announced; len(prefixes) > 0; {
		part := cutPrefixes(prefixes, MaxLen-frameLen-length-attributeLen-familyLen-2-16)
		if len(part) == 0 { // our next hop takes more room than an IPv4 one
			w.withdraw(prefixes)
			break
		}
		prefixes = prefixes[len(part):]
		w.attributes = appendReachable(w.attributes[:length], IPv4, self, part)
		w.message(nil, w.attributes, nil)
	}
	return w.finish()
}

// others copies all attributes except next hops and prefixes.
func (w *writer) others(attributes []byte) {
	w.attributes = w.attributes[:0]
	for b := attributes; len(b) > 0; {
		_, kind, _, rest, ok := cutAttribute(b)
		if !ok {
			return
		}
		if kind != attrNextHop && kind != attrMPReach && kind != attrMPUnreach {
			w.attributes = append(w.attributes, b[:len(b)-len(rest)]...)
		}
		b = rest
	}
}
