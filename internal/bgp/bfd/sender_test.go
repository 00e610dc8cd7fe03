package bfd

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// newSenders returns the senders of one end's sessions, by neighbour.
func (w *ways) newSenders(t testing.TB, end int) map[netip.Addr]*sender {
	t.Helper()
	all := map[netip.Addr]*sender{}
	for addr, c := range w.want[end] {
		s := &sender{}
		w.ns[end].Within(t, func() error { s.set(c.From, addr); return s.prepare() })
		t.Cleanup(s.close)
		all[addr] = s
	}
	return all
}

// heard returns the source of the next packet.
func heard(t *testing.T, ns *netnstest.NS, at netip.Addr, send func()) netip.AddrPort {
	t.Helper()
	c := ns.ListenUDP(t, netip.AddrPortFrom(at, Port).String())
	defer c.Close()
	send()
	errtest.Must(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, from, err := c.ReadFromUDPAddrPort(make([]byte, 512))
	errtest.Must(t, err)
	return from
}

// TestSender: each session has a source port of its own, which stays when it connects again. An ICMP error of a
// neighbour that does not listen yet loses no packet.
func TestSender(t *testing.T) {
	w := newWays(t, 2, fast)
	sources := map[netip.AddrPort]netip.Addr{} // sessions of other addresses may have the same port
	for addr, s := range w.newSenders(t, 0) {
		for range 5 {
			errtest.Must(t, s.send([]byte("nobody listens"), true))
		}
		for _, up := range []bool{true, false, true} {
			from := heard(t, w.ns[1], addr, func() { errtest.Must(t, s.send([]byte("now"), up)) })
			if other, taken := sources[from]; from.Addr() != s.from || from.Port() < firstSource || taken && other != addr {
				t.Errorf("up %t: packets to %s come from %s, those to %s, too", up, addr, from, other)
			}
			sources[from] = addr
		}
	}
	if len(sources) != 4 {
		t.Errorf("4 sessions have sent from %v", sources)
	}
}

// TestChosenSource: a source that the kernel has chosen, and that was removed, is replaced when the session is down.
func TestChosenSource(t *testing.T) {
	w := newWays(t, 1, Config{Interval: time.Second, Multiplier: 3})
	for to, want := range map[string][2]string{"10.2.0.1": {"10.1.0.1/8", "10.1.0.9/8"}, "fd00::2:0:1": {"fd00::1:0:1/64", "fd00::1:0:9/64"}} {
		addr := netip.MustParseAddr(to)
		s := &sender{}
		w.ns[0].Within(t, func() error { s.set(netip.Addr{}, addr); return s.prepare() })
		t.Cleanup(s.close)
		for i, prefix := range want {
			if i > 0 {
				errtest.Must(t, w.ns[0].Conn.DeleteAddr(w.ns[0].Link(t, "eth0").Index, netip.MustParsePrefix(want[0])))
				w.ns[0].Addr(t, "eth0", prefix)
			}
			from := heard(t, w.ns[1], addr, func() { errtest.Must(t, s.send([]byte("now"), false)) })
			if expected := netip.MustParsePrefix(prefix).Addr(); from.Addr() != expected {
				t.Errorf("packets to %s come from %s, want %s", addr, from, expected)
			}
		}
	}
}

// TestBatch: more packets than one call reads are read in their order, each with its sender.
func TestBatch(t *testing.T) {
	w := newWays(t, 1, fast)
	for addr, s := range w.newSenders(t, 0) {
		var fd int
		w.ns[1].Within(t, func() (err error) { fd, err = listen(addr.Is4()); return err })
		defer syscall.Close(fd)
		const packets = 2*batchLen + 10
		for i := range packets {
			errtest.Must(t, s.send(fmt.Append(nil, i), true))
		}
		in, read, begun := newBatch(), 0, time.Now()
		for read < packets && time.Since(begun) < 20*time.Second {
			n := in.read(fd)
			for i := range n {
				if b, from, link := in.packet(i); string(b) != fmt.Sprint(read) || from != s.from || link != 0 {
					t.Fatalf("packet %d is %q from %s on link %d", read, b, from, link)
				}
				read++
			}
		}
		if read != packets || in.read(fd) != 0 {
			t.Errorf("%d packets were read of %d", read, packets)
		}
	}
}
