package bgp_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// BenchmarkTenThousandPaths has one node announce 10,000 blocks to another: seconds until the other's Snapshot has them
// all, and seconds of one Snapshot then, both with the pipe between test and speaker included; and the other's
// processor time for both and for the withdrawals.
func BenchmarkTenThousandPaths(b *testing.B) {
	const count = 10000
	lan := bgptest.NewLAN(b)
	from, to := lan.Host(1).Speaker(), lan.Host(2).Speaker()
	for _, s := range []*bgptest.Speaker{from, to} {
		s.Call(bgptest.Call{Method: "Quiet"})
		s.Start(64512, false)
	}
	from.SetPeers(mesh(from.Host, to.Host)...)
	to.SetPeers(mesh(to.Host, from.Host)...)
	to.WaitEstablished(from.V4)
	paths := make([]bgp.Path, count)
	for i := range paths {
		var block [4]byte
		binary.BigEndian.PutUint32(block[:], 10<<24+1<<23+uint32(i)<<6)
		paths[i].Prefix = netip.PrefixFrom(netip.AddrFrom4(block), 26)
	}
	var cpu []float64
	for b.Loop() {
		begin, before := time.Now(), to.Usage().CPU
		from.Call(bgptest.Call{Method: "SetOriginated", Paths: paths, Timeout: time.Minute})
		announced := time.Now()
		bgptest.Eventually(b, func() error {
			if n := to.Peer(from.V4).Received; n != count {
				return fmt.Errorf("%d paths received", n)
			}
			return nil
		})
		received := time.Now()
		if n := len(to.Snapshot()); n != count {
			b.Fatalf("%d paths in the snapshot", n)
		}
		b.ReportMetric(announced.Sub(begin).Seconds(), "s/announce")
		b.ReportMetric(received.Sub(announced).Seconds(), "s/received-after")
		b.ReportMetric(time.Since(received).Seconds(), "s/snapshot")
		from.Originate()
		to.WaitLearned("")
		cpu = append(cpu, (to.Usage().CPU - before).Seconds())
		b.ReportMetric(slices.Sorted(slices.Values(cpu))[len(cpu)/2], "s/CPU")
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
	if _, err := conn.Write(
		slices.Concat(open, keepalive, announce(from, 26, 10, 128+id[2], id[3], 0), bgptest.Message(2, 0, 0, 0, 0))); err == nil {
		_, _ = io.Copy(io.Discard, conn)
	}
}

// BenchmarkThousandPeers has a thousand peers connect at once: seconds until all their paths are learned, of the
// processor also, and the memory of the speaker before they connect and then.
func BenchmarkThousandPeers(b *testing.B) {
	const count = 1000
	for b.Loop() {
		lan := bgptest.NewLAN(b)
		node, others := lan.Host(1).Speaker(), lan.Host(2)
		others.IP("route", "add", "local", "10.2.0.0/16", "dev", "lo")
		node.IP("route", "add", "10.2.0.0/16", "via", others.V4.String())
		node.Call(bgptest.Call{Method: "Quiet"})
		node.Start(64512, false)
		self, err := os.Executable()
		errtest.Must(b, err)
		peers := make([]bgp.Peer, count)
		for i := range peers {
			peers[i] = bgp.Peer{Addr: member(i), ASN: 64512, From: node.V4, Passive: true}
		}
		begin := time.Now()
		node.Call(bgptest.Call{Method: "SetPeers", Peers: peers, Timeout: time.Minute})
		b.ReportMetric(time.Since(begin).Seconds(), "s/SetPeers")
		b.ReportMetric(float64(node.Usage().Anonymous>>10), "MiB-anonymous-before")
		cmd := exec.Command(self, crowdArg, strconv.Itoa(count), netip.AddrPortFrom(node.V4, 179).String())
		in, err := cmd.StdinPipe()
		errtest.Must(b, err)
		others.Within(b, cmd.Start)
		begin = time.Now()
		bgptest.Eventually(b, func() error {
			if n := len(node.Call(bgptest.Call{Method: "Snapshot", Timeout: time.Minute}).Paths); n != count {
				return fmt.Errorf("%d paths", n)
			}
			return nil
		})
		b.ReportMetric((time.Since(begin) - time.Second).Seconds(), "s/converged")
		b.ReportMetric(node.Usage().CPU.Seconds(), "s/CPU")
		b.ReportMetric(float64(node.Usage().Peak>>10), "MiB-peak")
		b.ReportMetric(float64(node.Usage().RSS>>10), "MiB")
		node.End(syscall.SIGKILL)
		_ = in.Close()
		_ = cmd.Wait()
	}
}

// BenchmarkReconnect has a speaker's process killed and started again, and its peer wait for it: seconds from the new
// process's SetPeers until both sides' session is up. The first time is without a process before.
func BenchmarkReconnect(b *testing.B) {
	lan := bgptest.NewLAN(b)
	nine, ten := lan.Host(9).Speaker(), lan.Host(10).Speaker() // nine connects
	for _, s := range []*bgptest.Speaker{nine, ten} {
		s.Start(64512, false)
	}
	nine.SetPeers(mesh(nine.Host, ten.Host)...)
	up := func(s *bgptest.Speaker) float64 {
		begin := time.Now()
		s.SetPeers(mesh(ten.Host, nine.Host)...)
		ten.WaitEstablished(nine.V4)
		return time.Since(begin).Seconds()
	}
	first := up(ten)
	for b.Loop() {
		ten.End(syscall.SIGKILL)
		ten = ten.Host.Speaker()
		ten.Start(64512, true)
		b.ReportMetric(up(ten), "s/again")
	}
	b.ReportMetric(first, "s/first")
}
