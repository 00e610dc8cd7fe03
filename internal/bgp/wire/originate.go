package wire

import (
	"encoding/binary"
	"net/netip"
)

// LocalPref is the LOCAL_PREF of what a node originates, towards peers in its own AS: the default of all
// implementations.
const LocalPref = 100

// Originate returns the UPDATEs by which a node announces prefixes of one family that it originates to peers in its own
// AS, as the speaker behind writes them: with BIRD's attributes of a static route in Calico. An aggregate has a stamp,
// which says so.
func Originate(hop netip.Addr, aggregate bool, prefixes []netip.Prefix) (text []byte) {
	family := FamilyOf(hop)
	var w writer
	w.start(family)
	w.attributes = appendAttribute(w.attributes, attrOrigin, []byte{0}) // IGP
	w.attributes = appendAttribute(w.attributes, attrASPath, nil)
	if family == IPv4 {
		w.attributes = appendAttribute(w.attributes, attrNextHop, hop.AsSlice())
	}
	w.attributes = appendAttribute(w.attributes, attrLocalPref, binary.BigEndian.AppendUint32(nil, LocalPref))
	if aggregate {
		w.attributes = Stamp{Source: Aggregate}.append(w.attributes)
	}
	w.reach(hop, appendPrefixes(nil, prefixes))
	return w.text
}

// Withdraw returns the UPDATEs that withdraw prefixes of one family.
func Withdraw(family Family, prefixes []netip.Prefix) (text []byte) {
	var w writer
	w.start(family)
	w.withdraw(appendPrefixes(nil, prefixes))
	return w.text
}

// EndTable returns the End-of-RIB of a family (RFC 4724 section 2).
func EndTable(family Family) []byte {
	var w writer
	w.start(family)
	w.endTable()
	return w.text
}
