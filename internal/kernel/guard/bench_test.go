package guard_test

import (
	"net/netip"
	"testing"

	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// BenchmarkSync has the addresses of 1,000 nodes in both families.
func BenchmarkSync(b *testing.B) {
	ns := netnstest.New(b)
	g := guard.New(nft.New(ns.Namespace))
	nodes := func(n int) guard.Config {
		var all []netip.Addr
		for i := range n {
			all = append(all, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}),
				netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)}))
		}
		return config(all...)
	}
	run := func(name string, config func(i int) guard.Config, fromEmpty bool) {
		b.Run(name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				c := config(i)
				if fromEmpty {
					errtest.Must(b, g.Remove(b.Context()))
				}
				b.StartTimer()
				errtest.Must(b, g.Sync(b.Context(), c))
			}
		})
	}
	run("from empty", func(int) guard.Config { return nodes(1000) }, true)
	run("nothing changed", func(int) guard.Config { return nodes(1000) }, false)
	run("one node changed", func(i int) guard.Config { return nodes(1000 - i%2) }, false)
}
