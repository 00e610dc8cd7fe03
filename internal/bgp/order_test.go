package bgp

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// A table is sorted by integers as netip.Prefix.Compare orders masked prefixes: IPv4 first, then the address, then the
// length. Paths of a prefix stay in their order.
func TestTableSort(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	edges := []netip.Addr{
		netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("127.255.255.255"), netip.MustParseAddr("128.0.0.0"),
		netip.MustParseAddr("255.255.255.255"),
		netip.MustParseAddr("::"), netip.MustParseAddr("::1"), netip.MustParseAddr("::ffff:ffff:ffff:ffff"), netip.MustParseAddr("0:0:0:1::"),
		netip.MustParseAddr("7fff:ffff::"), netip.MustParseAddr("8000::"), netip.MustParseAddr("::ffff:0:0"), netip.MustParseAddr("fd00:10::1"),
	}
	for range 200 {
		var paths []learned
		for i := range 300 {
			addr := edges[random.IntN(len(edges))]
			if random.IntN(2) == 0 { // another one nearby
				b := addr.AsSlice()
				b[random.IntN(len(b))] ^= byte(random.IntN(256))
				addr, _ = netip.AddrFromSlice(b)
			}
			p := learned{length: i}
			p.Prefix = netip.PrefixFrom(addr, random.IntN(addr.BitLen()+1)).Masked()
			paths = append(paths, p)
		}
		want := slices.SortedStableFunc(slices.Values(paths), func(a, b learned) int { return a.Prefix.Compare(b.Prefix) })
		if got := inOrder(paths); !slices.Equal(got, want) {
			t.Fatalf("%+v, want %+v", got, want)
		}
	}
}
