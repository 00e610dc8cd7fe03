package ipip_test

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// forge sends a UDP packet from one pod's address to another's, in an arbitrary outer header.
func forge(t *testing.T, from *netnstest.NS, outerSrc, outerDst, src, dst netip.Addr, payload string) {
	t.Helper()
	header := func(protocol byte, src, dst netip.Addr, size int) []byte {
		h := make([]byte, 20)
		h[0], h[8], h[9] = 0x45, 64, protocol
		binary.BigEndian.PutUint16(h[2:], uint16(size))
		copy(h[12:], src.AsSlice())
		copy(h[16:], dst.AsSlice())
		return h
	}
	inner := header(unix.IPPROTO_UDP, src, dst, 28+len(payload))
	sum := uint32(0)
	for i := 0; i < len(inner); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(inner[i:]))
	}
	binary.BigEndian.PutUint16(inner[10:], ^uint16(sum+sum>>16))
	packet := append(header(unix.IPPROTO_IPIP, outerSrc, outerDst, 48+len(payload)), inner...)
	packet = binary.BigEndian.AppendUint16(packet, 7777) // source port
	packet = binary.BigEndian.AppendUint16(packet, 7000)
	packet = binary.BigEndian.AppendUint16(packet, uint16(8+len(payload)))
	packet = append(append(packet, 0, 0), payload...) // no checksum
	from.Within(t, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: outerDst.As4()})
	})
}

// TestGuard has a real tunnel: a stranger's packet reaches a pod as if it came from another pod, until the nodes are
// known; packets of the nodes still pass.
func TestGuard(t *testing.T) {
	a, b := pair(t, 1500)
	stranger := netnstest.New(t)
	netnstest.Cable(t, b.NS, "eth1", stranger, "eth0")
	b.Addr(t, "eth1", "198.51.100.1/24")
	stranger.Addr(t, "eth0", "198.51.100.2/24")
	stranger.Route(t, "172.30.0.0/16", "198.51.100.1", "eth0")
	from, to := addr("198.51.100.2"), addr(b.addr)
	server := b.pod.ListenUDP(t, netip.AddrPortFrom(b.podAddr(), 7000).String())
	b.pod.EchoUDP(t, netip.AddrPortFrom(b.podAddr(), 7001).String())
	arrives := func(wait time.Duration) string {
		server.SetReadDeadline(time.Now().Add(wait))
		buf := make([]byte, 100)
		n, _ := server.Read(buf)
		return string(buf[:n])
	}
	// The forged packet's inner source is a pod of a: it comes to b's pod by the tunnel, as that node's packets do.
	got := ""
	for i := 0; i < 50 && got == ""; i++ {
		forge(t, stranger, from, to, a.podAddr(), b.podAddr(), "forged")
		got = arrives(200 * time.Millisecond)
	}
	if got != "forged" {
		t.Fatalf("without a guard %q arrives: the test shows nothing", got)
	}

	packets := guard.New(nft.New(b.Namespace))
	config := guard.Config{Nodes: []netip.Addr{addr(a.addr), addr(b.addr)}, PodLinks: podnet.DefaultVethPrefix, IPIP: true}
	errtest.Must(t, packets.Sync(t.Context(), config))
	for arrives(200*time.Millisecond) != "" { // what was on its way
	}
	for range 3 {
		forge(t, stranger, from, to, a.podAddr(), b.podAddr(), "forged")
	}
	dropped := uint64(0)
	waittest.Until(t, 20*time.Second, "all three are dropped", func() bool {
		counters, err := packets.Counters(t.Context())
		errtest.Must(t, err)
		dropped = counters[guard.IPIPFromStranger].Packets
		return dropped >= 3
	})
	if got := arrives(200 * time.Millisecond); got != "" || dropped != 3 {
		t.Errorf("%q arrives in spite of the guard, which has dropped %d packets of 3", got, dropped)
	}
	for name, n := range map[string]*netnstest.NS{"pod": a.pod, "node": a.NS} {
		if _, err := n.AskUDP(t, "", netip.AddrPortFrom(b.podAddr(), 7001).String(), "hello", 20*time.Second); err != nil {
			t.Errorf("a known node's %s: %v", name, err)
		}
	}
}
