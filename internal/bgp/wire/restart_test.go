package wire_test

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// Our OPEN parses to its fields, in both families, with AS numbers of two octets and of four.
func TestLocalOpen(t *testing.T) {
	id := netip.MustParseAddr("10.0.0.5")
	for _, family := range []wire.Family{wire.IPv4, wire.IPv6} {
		for _, asn := range []uint32{64512, 4200000000} {
			for _, before := range []wire.Restart{{}, {Restarted: true}, {Preserved: true}, {Restarted: true, Preserved: true}} {
				open := wire.LocalOpen{ASN: asn, ID: id, HoldTime: 90, RestartTime: 4095, Restart: before}.Bytes(1<<family, false)
				offer, fault := wire.ParseOpen(open, wire.Rules{ASN: asn, LocalASN: 1, Families: wire.Families(1 << family)})
				if fault != nil {
					t.Fatalf("%x: %v", open, fault)
				}
				const words = "route refresh, graceful restart (4095 s), AS numbers of four octets, hold time 90 s"
				if offer.ASN != asn || offer.ID != id || offer.Restarted != before.Restarted || offer.String() != words {
					t.Errorf("%s, %+v: %+v: %s", family, before, offer, offer.String())
				}
				// RFC 4724 section 3: after the family the flags of its forwarding end the message.
				want := []byte{0, byte(family), 1, 0}
				if before.Preserved {
					want[3] = 0x80
				}
				if !bytes.HasSuffix(open, want) {
					t.Errorf("%s, %+v: %x does not end in %x", family, before, open, want)
				}
			}
		}
	}
}
