package bgp_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
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

// crowdArg makes the test binary a number of peers, each of which announces one block to one address.
const crowdArg = "bgp-crowd"

// member is the address of the crowd's i-th peer.
func member(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}) }

// crowd keeps up the sessions until standard input ends.
func crowd(count, to string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	for i := range n {
		go func() {
			for {
				time.Sleep(time.Second) // after the node, which must know its peers
				attend(member(i), to)
			}
		}()
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func attend(from netip.Addr, to string) {
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
	conn, err := dialer.Dial("tcp", to)
	if err != nil {
		return
	}
	defer conn.Close()
	open := hello(0)
	copy(open[24:], from.AsSlice())
	id := from.As4()
	if _, err := conn.Write(slices.Concat(open, keepalive, announce(from, 26, 10, 128+id[2], id[3], 0), message(2, 0, 0, 0, 0))); err == nil {
		_, _ = io.Copy(io.Discard, conn)
	}
}

// BenchmarkThousandPeers has a thousand peers connect at once: seconds until all their paths are learned, and the memory
// of the speaker then.
func BenchmarkThousandPeers(b *testing.B) {
	const count = 1000
	for b.Loop() {
		lan := newLAN(b)
		node, others := lan.host(1).speak(), lan.host(2)
		run(b, "ip", "-n", others.ns, "route", "add", "local", "10.2.0.0/16", "dev", "lo")
		run(b, "ip", "-n", node.ns, "route", "add", "10.2.0.0/16", "via", others.v4.String())
		node.do(call{Method: "Quiet"})
		node.start(64512, false)
		self, err := os.Executable()
		errtest.Must(b, err)
		peers := make([]bgp.Peer, count)
		for i := range peers {
			peers[i] = bgp.Peer{Addr: member(i), ASN: 64512, From: node.v4, Passive: true}
		}
		begin := time.Now()
		node.do(call{Method: "SetPeers", Peers: peers, Timeout: time.Minute})
		b.ReportMetric(time.Since(begin).Seconds(), "s/SetPeers")
		cmd := others.command(self, crowdArg, strconv.Itoa(count), netip.AddrPortFrom(node.v4, 179).String())
		in, err := cmd.StdinPipe()
		errtest.Must(b, err)
		errtest.Must(b, cmd.Start())
		begin = time.Now()
		eventually(b, func() error {
			if n := len(node.do(call{Method: "Snapshot", Timeout: time.Minute}).Paths); n != count {
				return fmt.Errorf("%d paths", n)
			}
			return nil
		})
		b.ReportMetric((time.Since(begin) - time.Second).Seconds(), "s/converged")
		b.ReportMetric(float64(node.memory("VmHWM")), "MiB-peak")
		memory := node.do(call{Method: "Memory"}).Memory
		b.ReportMetric(float64(node.memory("VmRSS")), "MiB")
		b.ReportMetric(float64(memory.HeapInuse>>20), "MiB-heap")
		b.ReportMetric(float64(memory.StackInuse>>20), "MiB-stacks")
		node.kill()
		_ = in.Close()
		_ = cmd.Wait()
	}
}

// BenchmarkReconnect has a speaker's process killed and started again, and its peer wait for it: seconds from the new
// process's SetPeers until both sides' session is up. The first time is without a process before.
func BenchmarkReconnect(b *testing.B) {
	lan := newLAN(b)
	nine, ten := lan.host(9).speak(), lan.host(10).speak() // nine connects
	for _, s := range []*speaker{nine, ten} {
		s.start(64512, false)
	}
	nine.setPeers(nine.mesh(ten.host)...)
	up := func(s *speaker) float64 {
		begin := time.Now()
		s.setPeers(ten.mesh(nine.host)...)
		ten.waitEstablished(nine.v4)
		return time.Since(begin).Seconds()
	}
	first := up(ten)
	for b.Loop() {
		ten.kill()
		ten = ten.host.speak()
		ten.start(64512, true)
		b.ReportMetric(up(ten), "s/again")
	}
	b.ReportMetric(first, "s/first")
}
