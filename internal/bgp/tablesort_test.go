package bgp

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// A table is sorted by integers as netip.Prefix.Compare orders masked prefixes: IPv4 first, then the address, then the
// length. Paths of a prefix follow in the order of preference.
func TestTableSort(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	edges := []netip.Addr{
		netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("127.255.255.255"), netip.MustParseAddr("128.0.0.0"),
		netip.MustParseAddr("255.255.255.255"),
		netip.MustParseAddr("::"), netip.MustParseAddr("::1"), netip.MustParseAddr("::ffff:ffff:ffff:ffff"), netip.MustParseAddr("0:0:0:1::"),
		netip.MustParseAddr("7fff:ffff::"), netip.MustParseAddr("8000::"), netip.MustParseAddr("::ffff:0:0"), netip.MustParseAddr("fd00:10::1"),
	}
	for range 200 {
		var unsorted table
		for i := range 300 {
			addr := edges[random.IntN(len(edges))]
			if random.IntN(2) == 0 { // another one nearby
				b := addr.AsSlice()
				b[random.IntN(len(b))] ^= byte(random.IntN(256))
				addr, _ = netip.AddrFromSlice(b)
			}
			p := learned{length: random.IntN(2), oldest: random.IntN(8) == 0, external: true}
			p.Prefix = netip.PrefixFrom(addr, random.IntN(addr.BitLen()+1)).Masked()
			p.LocalPref, p.MED, p.Origin, p.rank = uint32(random.IntN(2)), uint32(i), Origin(random.IntN(3)), uint32(random.IntN(2))
			p.source.internal = random.IntN(2) == 0
			p.source.alias = netip.AddrFrom4([4]byte{127, 0, 0, byte(random.IntN(2))})
			p.source.router = netip.AddrFrom4([4]byte{10, 0, 0, byte(random.IntN(2))})
			unsorted.paths = append(unsorted.paths, p)
		}
		want := slices.SortedStableFunc(slices.Values(unsorted.paths), func(a, b learned) int {
			if c := a.Prefix.Compare(b.Prefix); c != 0 {
				return c
			}
			return a.compare(&b)
		})
		unsorted.sort()
		for i, got := range unsorted.paths {
			if got.Prefix != want[i].Prefix || got.compare(&want[i]) != 0 {
				t.Fatalf("path %d is %+v, want %+v", i, got, want[i])
			}
		}
	}
}
