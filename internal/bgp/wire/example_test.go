package wire

import (
	"fmt"
	"net/netip"
)

// A peer opens a session and announces 10.65.1.0/26 with an ORIGIN of two octets, where RFC 4271 has one. The session
// stays, and the prefix counts as withdrawn (RFC 7606, section 7.1).
func ExampleSession_Check() {
	s := NewSession(Rules{ASN: 64513, LocalASN: 64512, LocalID: netip.MustParseAddr("10.0.0.1"), Families: OnlyIPv4, MaxPrefixes: 1000})
	s.Check(openOf(4, asTrans, 90, "10.0.0.2", usual(IPv4, 64513)))
	s.Check(raw(Keepalive))
	fmt.Println("established:", s.Established())

	asPath := []byte{0x40, 2, 6, 2, 1, 0, 0, 0xfc, 1} // 64513
	nextHop := []byte{0x40, 3, 4, 10, 0, 0, 2}
	prefix := []byte{26, 10, 65, 1, 0}
	for _, origin := range [][]byte{{0x40, 1, 1, 0}, {0x40, 1, 2, 0, 0}} {
		v := s.Check(updateOf(nil, join(origin, asPath, nextHop), prefix))
		fmt.Println("reset:", v.Reset, "passed:", len(v.Pass) > 0, "refused:", v.Refused, fmt.Sprintf("%q", v.Refusal))
	}
	fmt.Println("prefixes:", s.Prefixes())
	// Output:
	// established: true
	// reset: <nil> passed: true refused: [] ""
	// reset: <nil> passed: true refused: [10.65.1.0/26] "its UPDATE is malformed"
	// prefixes: 1
}
