package netlinkx_test

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

func vxlanLink(t *testing.T) (*netnstest.NS, netlinkx.Link) {
	t.Helper()
	ns := netnstest.New(t)
	netnstest.Cable(t, ns, "eth0", ns, "far")
	ns.Addr(t, "eth0", "172.30.0.1/24")
	v := netlinkx.VXLAN{ID: 7, Port: 4790, Local: netip.MustParseAddr("172.30.0.1"), Parent: ns.Link(t, "eth0").Index}
	errtest.Must(t, ns.Conn.AddVXLAN("vx0", [6]byte{0x66, 1, 2, 3, 4, 5}, 1400, v))
	link := ns.Up(t, "vx0")
	if link.VXLAN != v || link.MTU != 1400 || link.Kind != "vxlan" {
		t.Fatalf("the link is %+v, want %+v", link, v)
	}
	if err := ns.Conn.AddVXLAN("vx1", [6]byte{0x66, 1, 2, 3, 4, 6}, 1400, v); !netlinkx.IsExist(err) {
		t.Errorf("another of the same ID and port: %v", err)
	}
	return ns, link
}

// Many entries at once, one of which is impossible: the errors are in the order of the requests, and lists are of one
// link.
func TestNeighbours(t *testing.T) {
	ns, link := vxlanLink(t)
	other := ns.Link(t, "eth0").Index
	var all []netlinkx.Neighbour
	for i := range 300 {
		mac, last := [6]byte{0x66, 0, 0, 0, byte(i >> 8), byte(i)}, byte(i)
		inside := netlinkx.Neighbour{Link: link.Index, Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), last}), MAC: mac, Permanent: true}
		all = append(all, inside, netlinkx.Neighbour{Link: link.Index, Forward: true, Addr: netip.AddrFrom4([4]byte{172, 30, byte(i >> 8), last}),
			MAC: mac, Permanent: true})
	}
	stranger := netlinkx.Neighbour{Link: other, Addr: netip.MustParseAddr("172.30.0.9"), MAC: [6]byte{2}, Permanent: true}
	requests := append([]netlinkx.Neighbour{stranger}, all...)
	requests = append(requests, all[0], netlinkx.Neighbour{Link: 9999, Addr: netip.MustParseAddr("10.9.9.9"), Permanent: true})
	for i, err := range ns.Conn.AddNeighbours(requests) {
		switch last := len(requests) - 1; {
		case i < last-1 && err != nil, i == last-1 && !netlinkx.IsExist(err), i == last && !netlinkx.IsNotExist(err):
			t.Errorf("request %d, %s: %v", i, requests[i], err)
		}
	}
	list := func(family netlinkx.Family) (found []netlinkx.Neighbour) {
		neighbours, err := ns.Conn.Neighbours(link.Index, family)
		errtest.Must(t, err)
		forwarding, err := ns.Conn.Forwarding(link.Index)
		errtest.Must(t, err)
		return append(neighbours, forwarding...)
	}
	have := map[netlinkx.Neighbour]bool{}
	for _, n := range list(netlinkx.IPv4) {
		have[n] = true
	}
	for _, n := range all {
		if !have[n] {
			t.Fatalf("%s is not listed", n)
		}
	}
	if len(have) != len(all) {
		t.Errorf("%d entries are listed, want %d", len(have), len(all))
	}
	all[0].MAC, all[1].Addr = [6]byte{0x66, 9}, netip.MustParseAddr("172.30.9.9")
	for _, err := range ns.Conn.ReplaceNeighbours(all[:2]) {
		if err != nil {
			t.Error(err)
		}
	}
	shown := ns.Run(t, "ip", "neigh", "show", "dev", "vx0") + ns.Run(t, "bridge", "fdb", "show", "dev", "vx0")
	difftest.Contains(t, shown, "10.0.0.0 lladdr 66:09:00:00:00:00 PERMANENT", "66:00:00:00:00:00 dst 172.30.9.9 self permanent")
	for _, err := range ns.Conn.DeleteNeighbours(all) {
		if err != nil {
			t.Error(err)
		}
	}
	if left := list(netlinkx.IPv4); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if err := ns.Conn.DeleteNeighbours(all[:2]); !netlinkx.IsNotExist(err[0]) || !netlinkx.IsNotExist(err[1]) {
		t.Errorf("what is not there: %v", err)
	}
}

// Other programs' entries of the requested links wake, and entries of other links do not. Our own wake only if the
// kernel does not report their author.
func TestSubscribeToNeighbours(t *testing.T) {
	ns, link := vxlanLink(t)
	wake, err := ns.Conn.SubscribeToNeighbours(t.Context(), []int{999, link.Index})
	errtest.Must(t, err)
	socket, err := ns.Conn.ListenToNeighbours([]int{999, link.Index})
	errtest.Must(t, err)
	t.Cleanup(func() { socket.Close() })
	const senderAt = 12 // in the header of a message
	// The kernel's own entries on a new link, for multicast, have no sender; entries of a forwarding database never do.
	count := func() (events int) {
		errtest.Must(t, socket.Drain(make([]byte, 1<<16), func(datagram []byte, err error) {
			errtest.Must(t, err)
			m, _, err := nlmsg.Next(datagram)
			if errtest.Must(t, err); m.Body[0] == unix.AF_BRIDGE || binary.NativeEndian.Uint32(datagram[senderAt:]) != 0 {
				events++
			}
		}))
		return events
	}
	for _, tt := range []struct {
		wakes   bool
		command string
	}{
		{true, "ip neigh add 10.0.0.1 lladdr 66:00:00:00:00:01 dev vx0 nud permanent"},
		{true, "ip neigh change 10.0.0.1 lladdr 66:00:00:00:00:02 dev vx0"},
		{true, "ip neigh del 10.0.0.1 dev vx0"},
		{true, "bridge fdb add 66:00:00:00:00:01 dev vx0 dst 172.30.0.2"},
		{true, "bridge fdb del 66:00:00:00:00:01 dev vx0"},
		{false, "ip neigh add 172.30.0.7 lladdr 66:00:00:00:00:01 dev eth0 nud reachable"},
		{false, "ip neigh del 172.30.0.7 dev eth0"},
		{true, "ip -6 neigh add fd00::1 lladdr 66:00:00:00:00:01 dev vx0"},
	} {
		settle(wake)
		count()
		args := strings.Fields(tt.command)
		ns.Run(t, args[0], args[1:]...)
		if events := count(); tt.wakes != (events > 0) {
			t.Errorf("%s: %d events, want any: %v", tt.command, events, tt.wakes)
		}
		if tt.wakes && !within(wake, 10*time.Second) {
			t.Errorf("%s does not wake", tt.command)
		}
	}
	count()
	ns.Conn.AddNeighbours([]netlinkx.Neighbour{{Link: link.Index, Addr: netip.MustParseAddr("10.0.0.3"), MAC: [6]byte{0x66}}})
	if events := count(); events > 0 {
		t.Errorf("%d events of our own neighbour", events)
	}
}
