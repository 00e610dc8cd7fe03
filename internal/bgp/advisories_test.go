package bgp

import "slices"

// Advisory is a public one of 2026 that names GoBGP v3, and a message of the kind it is about, written from its
// description. Every one has an entry in hack/vulns/exceptions.yaml that names the test TestAdvisories/ID.
type Advisory struct {
	ID, Name string // in Go's database, and as a CVE
	First    []byte // is sent in place of an OPEN
	Message  []byte // is sent in a session that is up
	// Told is the NOTIFICATION that the relay sends; empty: the session goes on. Sound: and the prefix is learned, without
	// the faulty attribute.
	Told  string
	Sound bool
	// Panic is GoBGP v3.37.0's panic when it reads the message itself; empty: there is none. Confederation: only as a
	// member of one, which Tortie never is.
	Panic         string
	Confederation bool
}

// Attributes of a peer in AS 64513.
var (
	viaPeer = []byte{0x40, 2, 6, 2, 1, 0, 0, 0xfc, 1}
	block   = []byte{26, 10, 66, 0, 0}
)

// announcing is an UPDATE of one prefix.
func announcing(attributes ...[]byte) []byte {
	all := slices.Concat(attributes...)
	return message(2, []byte{0, 0, byte(len(all) >> 8), byte(len(all))}, all, block)
}

// Advisories are for the tests that have a relay, a network and processes.
var Advisories = []Advisory{
	{ID: "GO-2026-4736", Name: "CVE-2026-30405", // NEXT_HOP that is too short, with wrong flags
		Message: announcing(origin, viaPeer, []byte{0, 3, 0})},
	{ID: "GO-2026-5198", Name: "CVE-2026-41642", // an unknown attribute that is flagged as well-known
		Message: announcing(origin, viaPeer, nextHop, []byte{0x40, 200, 1, 0}), Told: "UPDATE Message Error/Unrecognized Well-known Attribute"},
	{ID: "GO-2026-5266", Name: "CVE-2026-41643", // AS4_PATH before AS_PATH
		Message: announcing(origin, nextHop, []byte{0xc0, 17, 6, 2, 1, 0, 0, 0xfc, 1}, viaPeer), Sound: true, Panic: "UpdatePathAttrs4ByteAs"},
	{ID: "GO-2026-5427", Name: "CVE-2026-7736", // MRT, which GoBGP only writes: TABLE_DUMP_V2 with a truncated entry
		First: []byte{0, 0, 0, 0, 0, 13, 0, 2, 0, 0, 0, 18, 0, 0, 0, 0, 26, 10, 66, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xff, 0xff},
		Told:  "Message Header Error/Connection Not Synchronized"},
	{ID: "GO-2026-5525", Name: "CVE-2026-42285", // ORIGIN that is not transitive
		Message: announcing([]byte{0, 1, 1, 0}, viaPeer, nextHop)},
	{ID: "GO-2026-5665", Name: "CVE-2026-7734", // prefix SID: an SRv6 service with an unknown part
		Message: announcing(origin, viaPeer, nextHop, []byte{0xc0, 40, 8, 5, 0, 5, 0, 9, 0, 1, 0}), Sound: true,
		Panic: "SRv6ServiceTLV).DecodeFromBytes"},
	{ID: "GO-2026-5699", Name: "CVE-2026-7737", // BMP's Peer Up, which GoBGP only writes, without its body
		First: append([]byte{3, 0, 0, 0, 48, 3}, make([]byte, 42)...), Told: "Message Header Error/Connection Not Synchronized"},
	{ID: "GO-2026-5713", Name: "CVE-2026-37461", // a truncated IPv6 extended community
		Message: announcing(origin, viaPeer, nextHop, []byte{0xc0, 25, 8, 0, 2, 0xfd, 0, 0, 0, 0, 0}), Sound: true},
	{ID: "GO-2026-5954", Name: "CVE-2026-49838", // an empty AS_PATH
		Message: announcing(origin, emptyPath, nextHop), Panic: "ValidateAttribute", Confederation: true},
	{ID: "GO-2026-5955", Name: "CVE-2026-49837", // an empty four-octet AS number capability, and a valid one
		First: message(1, []byte{4, 0xfd, 0xe8, 0, 90, 10, 0, 0, 2, 16, 2, 14, 1, 4, 0, 1, 0, 1, 65, 0, 99, 4, 0, 0, 0xfc, 1}),
		Told:  "OPEN Message Error/Bad Peer AS"},
	{ID: "GO-2026-5971", Name: "CVE-2026-37462", // an attribute that is longer than all attributes together
		Message: message(2, []byte{0, 0, 0, byte(len(origin) + 4)}, origin, []byte{0x40, 2, 9, 2}, []byte{1, 0, 0, 0xfc, 1}, nextHop, block),
		Told:    "UPDATE Message Error/Invalid Network Field"},
}
