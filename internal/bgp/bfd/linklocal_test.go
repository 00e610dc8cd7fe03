package bfd

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// rack is a node with two routers, each of which has fe80::1 on a link of its own: eth0 and eth1 here, eth0 there.
type rack struct {
	ns      [3]*netnstest.NS
	engines [3]*Engine
	watched [3]*watched
}

var byLink = [2]netip.Addr{netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("fe80::1%eth1")}

// theNode is the node's address for both routers.
var theNode = netip.MustParseAddr("fe80::a%eth0")

// newRack starts BFD on some of the routers, 1 and 2, towards the node.
func newRack(t *testing.T, c Config, routers ...int) *rack {
	t.Helper()
	r := &rack{ns: [3]*netnstest.NS{netnstest.New(t), netnstest.New(t), netnstest.New(t)}}
	for i := range r.engines {
		r.watched[i] = &watched{}
		r.engines[i] = NewEngine(slog.New(slog.DiscardHandler), r.watched[i])
		t.Cleanup(func() { r.engines[i].Set(nil) })
	}
	for i := range byLink {
		r.cable(t, i)
	}
	for _, i := range routers {
		r.set(t, i, c, theNode)
	}
	return r
}

func (r *rack) cable(t *testing.T, router int) {
	t.Helper()
	link := fmt.Sprint("eth", router)
	netnstest.Cable(t, r.ns[0], link, r.ns[router+1], "eth0")
	r.ns[0].Addr(t, link, "fe80::a/64")
	r.ns[router+1].Addr(t, "eth0", "fe80::1/64")
}

func (r *rack) set(t *testing.T, of int, c Config, neighbours ...netip.Addr) {
	t.Helper()
	want := map[netip.Addr]Config{}
	for _, n := range neighbours {
		want[n] = c
	}
	r.ns[of].Within(t, func() error { r.engines[of].Set(want); return nil })
}

func (r *rack) waitUp(t *testing.T, neighbours ...netip.Addr) {
	t.Helper()
	waittest.For(t, 20*time.Second, func() error {
		for _, n := range neighbours {
			if s := r.engines[0].Status(n); s == nil || s.State != Up {
				return fmt.Errorf("%s: %+v", n, s)
			}
		}
		return nil
	})
}

// TestLinkLocal: two neighbours with one address differ by their links, and a link that is made anew is used again.
func TestLinkLocal(t *testing.T) {
	for name, from := range map[string]netip.Addr{"chosen by the kernel": {}, "set": netip.MustParseAddr("fe80::a")} {
		t.Run(name, func(t *testing.T) {
			c := Config{Interval: 100 * time.Millisecond, Multiplier: 3}
			r := newRack(t, c, 1, 2)
			c.From = from
			r.set(t, 0, c, byLink[:]...)
			r.waitUp(t, byLink[:]...)
			index := r.ns[0].Link(t, "eth1").Index
			errtest.Must(t, r.ns[0].Conn.DeleteLink(index))
			waittest.Until(t, 20*time.Second, "loss", func() bool { _, lost := r.watched[0].loss(byLink[1]); return lost })
			waittest.Until(t, 20*time.Second, "why no packets are sent", func() bool {
				return strings.Contains(r.engines[0].Status(byLink[1]).Fault, `no packets can be sent: look up link "eth1": no such device`)
			})
			if loss, lost := r.watched[0].loss(byLink[0]); lost || r.engines[0].Status(byLink[0]).State != Up {
				t.Errorf("the neighbour on the other link is lost: %+v", loss)
			}
			r.cable(t, 1)
			if now := r.ns[0].Link(t, "eth1").Index; now == index {
				t.Fatal("the new link has the old one's index: the test shows nothing")
			}
			r.waitUp(t, byLink[:]...)
			if s := r.engines[0].Status(byLink[1]); s.Fault != "" {
				t.Errorf("a fault stays: %s", s.Fault)
			}
		})
	}
}

// read returns how many datagrams the sockets of a node have read.
func (r *rack) read(t *testing.T, of int) int {
	t.Helper()
	for line := range strings.Lines(r.ns[of].Run(t, "cat", "/proc/net/snmp6")) {
		if f := strings.Fields(line); f[0] == "Udp6InDatagrams" {
			n, err := strconv.Atoi(f[1])
			errtest.Must(t, err)
			return n
		}
	}
	t.Fatal("the kernel does not count datagrams")
	return 0
}

// TestLinkLocalElsewhere: a host with the neighbour's address on another link, such as a pod, is not the neighbour.
func TestLinkLocalElsewhere(t *testing.T) {
	r := newRack(t, fast, 2) // the router itself is silent
	r.set(t, 0, fast, byLink[0])
	r.ns[0].Within(t, func() error { // packets of eth1 arrive
		fd, err := listen(false)
		if err == nil {
			errtest.Must(t, syscall.Close(fd))
			t.Error("the engine does not listen")
		}
		return nil
	})
	waittest.Until(t, 20*time.Second, "two packets of the other router", func() bool { return r.read(t, 0) >= 2 })
	if s := r.engines[2].Status(theNode); s.Fault != "" {
		t.Fatalf("the other router cannot send: %s", s.Fault)
	}
	if s := r.engines[0].Status(byLink[0]); s.Heard || s.State != Down {
		t.Errorf("packets from eth1 are taken for eth0's: %+v", s)
	}
	r.set(t, 1, fast, theNode)
	r.waitUp(t, byLink[0])
}

// TestNoLink: a missing or invalid link name affects its own session only.
func TestNoLink(t *testing.T) {
	r := newRack(t, fast, 1, 2)
	none := []netip.Addr{netip.MustParseAddr("fe80::1").WithZone("a-name-that-is-too-long"), netip.MustParseAddr("fe80::1%eth9")}
	r.set(t, 0, fast, slices.Concat(none, byLink[:])...)
	r.waitUp(t, byLink[:]...)
	for _, n := range none {
		if s := r.engines[0].Status(n); s.State != Down || !strings.HasPrefix(s.Fault, "no packets can be sent: ") {
			t.Errorf("%s: %+v", n, s)
		}
	}
}
