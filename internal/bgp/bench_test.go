package bgp_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
)

// BenchmarkTenThousandPaths has one node announce 10,000 blocks to another: seconds until the other's Snapshot has them
// all, and seconds of one Snapshot then, both with the pipe between test and speaker included.
func BenchmarkTenThousandPaths(b *testing.B) {
	const count = 10000
	lan := newLAN(b)
	from, to := lan.host(1).speak(), lan.host(2).speak()
	for _, s := range []*speaker{from, to} {
		s.do(call{Method: "Quiet"})
		s.start(64512, false)
	}
	from.setPeers(from.mesh(to.host)...)
	to.setPeers(to.mesh(from.host)...)
	to.waitEstablished(from.v4)
	paths := make([]bgp.Path, count)
	for i := range paths {
		var block [4]byte
		binary.BigEndian.PutUint32(block[:], 10<<24+1<<23+uint32(i)<<6)
		paths[i].Prefix = netip.PrefixFrom(netip.AddrFrom4(block), 26)
	}
	for b.Loop() {
		begin := time.Now()
		from.do(call{Method: "SetOriginated", Paths: paths, Timeout: time.Minute})
		announced := time.Now()
		eventually(b, func() error {
			if n := to.peer(from.v4).Received; n != count {
				return fmt.Errorf("%d paths received", n)
			}
			return nil
		})
		received := time.Now()
		if n := len(to.snapshot()); n != count {
			b.Fatalf("%d paths in the snapshot", n)
		}
		b.ReportMetric(announced.Sub(begin).Seconds(), "s/announce")
		b.ReportMetric(received.Sub(announced).Seconds(), "s/received-after")
		b.ReportMetric(time.Since(received).Seconds(), "s/snapshot")
		from.originate()
		to.waitLearned("")
	}
}
