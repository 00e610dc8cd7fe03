package radv_test

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/bgp/radv"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// patience bounds waits for events that take milliseconds or, with advertisements, some seconds.
const patience = 30 * time.Second

const eth0 = "eth0"

// end is an engine at one end of a link.
type end struct {
	*netnstest.NS
	*radv.Engine
	t *testing.T
}

func newEnd(t *testing.T, ns *netnstest.NS) *end {
	e := &end{ns, radv.New(slog.New(slog.DiscardHandler), ns.Namespace), t}
	t.Cleanup(e.Engine.Close)
	return e
}

// look has the engine look for the router on eth0.
func (e *end) look() {
	e.t.Helper()
	e.Set(map[string]radv.Link{eth0: {Index: e.Link(e.t, eth0).Index, Addrs: e.LinkLocals(e.t, eth0)}})
}

// waitRouter waits until the engine has the router's address.
func (e *end) waitRouter(want netip.Addr) {
	e.t.Helper()
	waittest.For(e.t, patience, func() error {
		if got, err := e.Router(eth0); err != nil || got != want.WithZone(eth0) {
			return fmt.Errorf("router is %s, %w, want %s", got, err, want)
		}
		return nil
	})
}

// waitError waits until the error contains words.
func (e *end) waitError(words ...string) {
	e.t.Helper()
	waittest.For(e.t, patience, func() error {
		got, err := e.Router(eth0)
		for _, w := range words {
			if !errtest.Names(err, w) {
				return fmt.Errorf("router is %s, %w, want an error that names %s", got, err, w)
			}
		}
		return nil
	})
}

// connected returns two ends of a link that look for each other.
func connected(t *testing.T) (one, other *end) {
	t.Helper()
	one, other = newEnd(t, netnstest.New(t)), newEnd(t, netnstest.New(t))
	netnstest.Cable(t, one.NS, eth0, other.NS, eth0)
	return one, other
}

// Two nodes find each other, and neither becomes a default router.
func TestBothEnds(t *testing.T) {
	t.Parallel()
	one, other := connected(t)
	other.Within(t, func() error {
		return sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv6", "conf", eth0, "accept_ra"}, "2")
	})
	one.waitError("no interface")
	one.look()
	one.waitError("no router advertisement was received on eth0")
	select {
	case <-one.Changed():
		t.Error("a change is reported although no advertisement has come")
	default:
	}
	other.look()
	one.waitRouter(other.LinkLocal(t, eth0))
	other.waitRouter(one.LinkLocal(t, eth0))
	<-one.Changed()
	if routes := other.Run(t, "ip", "-6", "route", "show", "default"); routes != "" {
		t.Errorf("the other end has taken this one for its default router: %s", routes)
	}
	one.Set(nil)
	one.waitError("no interface")
}

// An engine finds a recreated link, an address that comes later and an address that changes. While the link is down the
// router stays known.
func TestLinkChanges(t *testing.T) {
	t.Parallel()
	one, other := connected(t)
	one.Run(t, "ip", "-6", "address", "flush", "dev", eth0)
	one.look()
	other.look()
	one.waitRouter(other.LinkLocal(t, eth0)) // receiving needs no address
	other.waitError("no router advertisement")
	one.Addr(t, eth0, "fe80::1/64")
	one.look()
	other.waitRouter(netip.MustParseAddr("fe80::1"))

	one.Run(t, "ip", "link", "set", eth0, "down")
	one.look()
	one.waitRouter(other.LinkLocal(t, eth0))

	errtest.Must(t, one.Conn.DeleteLink(one.Link(t, eth0).Index))
	netnstest.Cable(t, one.NS, eth0, other.NS, eth0)
	one.look()
	one.waitError("no router advertisement")
	other.look()
	other.waitRouter(one.LinkLocal(t, eth0))
	one.waitRouter(other.LinkLocal(t, eth0))
}

// advertisement is a frame with a router advertisement.
func advertisement(from netip.Addr, hops byte) []byte {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	k, b := netnstest.Packet(from, netip.MustParseAddr("ff02::1"), unix.IPPROTO_ICMPV6, hops, append([]byte{134}, make([]byte, 15)...), 2)
	return netnstest.Frame(mac, net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, k, b)
}

// The engine ignores messages that RFC 4861 requires to ignore, and this node's own; a second router is named, and the
// first one counts.
func TestOthersOnTheLink(t *testing.T) {
	t.Parallel()
	one, other := connected(t)
	one.look()
	wrong := advertisement(netip.MustParseAddr("fe80::bad"), 255)
	wrong[14+40+2]++ // the checksum
	other.Send(t, eth0, wrong, advertisement(netip.MustParseAddr("fe80::bad"), 254), advertisement(netip.MustParseAddr("fd00::bad"), 255),
		advertisement(one.LinkLocal(t, eth0), 255))
	router := netip.MustParseAddr("fe80::1")
	other.Send(t, eth0, advertisement(router, 255))
	one.waitRouter(router)
	other.Send(t, eth0, advertisement(netip.MustParseAddr("fe80::2"), 255))
	one.waitError("fe80::1", "fe80::2", "fe80::1%eth0")
	if got, _ := one.Router(eth0); got.WithZone("") != router {
		t.Errorf("the router is %s now", got)
	}
}

// A pod's advertisements arrive on its own link, and make it no router on another.
func TestOtherLink(t *testing.T) {
	t.Parallel()
	one, router := connected(t)
	pod := newEnd(t, netnstest.New(t))
	const link = "cali1"
	netnstest.Cable(t, one.NS, link, pod.NS, eth0)
	atPod := newEnd(t, one.NS) // receives from the pod
	atPod.Set(map[string]radv.Link{link: {Index: one.Link(t, link).Index, Addrs: one.LinkLocals(t, link)}})
	one.look()
	forged := netip.MustParseAddr("fe80::bad")
	waittest.For(t, patience, func() error {
		pod.Send(t, eth0, advertisement(forged, 255))
		if got, err := atPod.Router(link); got.WithZone("") != forged {
			return fmt.Errorf("nothing came from the pod: %s, %w", got, err)
		}
		return nil
	})
	one.waitError("no router advertisement was received on eth0")
	router.look()
	one.waitRouter(router.LinkLocal(t, eth0))
}

// A flood of advertisements of many routers neither replaces the known router, nor costs much.
func TestFlood(t *testing.T) {
	t.Parallel()
	one, other := connected(t)
	one.look()
	other.look()
	router := other.LinkLocal(t, eth0)
	one.waitRouter(router)
	<-one.Changed()
	changes, end := 0, time.Now().Add(2*time.Second)
	for i := 0; time.Now().Before(end); i++ {
		other.Send(t, eth0,
			slices.Repeat([][]byte{advertisement(netip.AddrFrom16([16]byte{0xfe, 0x80, 14: byte(i >> 8), 15: byte(i)}), 255)}, 100)...)
		select {
		case <-one.Changed():
			changes++
		default:
		}
	}
	if got, err := one.Router(eth0); got.WithZone("") != router || !errtest.Names(err, router.String()) || changes != 1 {
		t.Errorf("after %d changes: %s, %v", changes, got, err)
	}
}

// A node and FRR find each other: FRR's connection to this node's link-local address is proof that it has received an
// advertisement.
func TestFRR(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	node, router := newEnd(t, lan.Host(5).NS), lan.Host(10)
	node.look()
	var listener net.Listener
	node.Within(t, func() (err error) {
		listener, err = net.Listen("tcp6", "[::]:179")
		return err
	})
	t.Cleanup(func() { _ = listener.Close() })
	router.Daemon(bgptest.FRR, bgptest.Config{ASN: 64513, Text: strings.TrimSpace(`
log stdout informational
router bgp 64513
 bgp router-id 10.0.0.10
 neighbor eth0 interface remote-as external
 neighbor eth0 timers connect 1
`)})
	theirs := router.LinkLocal(t, "eth0")
	node.waitRouter(theirs)
	errtest.Must(t, listener.(*net.TCPListener).SetDeadline(time.Now().Add(patience)))
	conn, err := listener.Accept()
	errtest.Must(t, err)
	defer conn.Close()
	from, to := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(), conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr()
	if from.WithZone("") != theirs || to.WithZone("") != node.LinkLocal(t, eth0) {
		t.Errorf("FRR has connected from %s to %s", from, to)
	}
	if _, err := node.Router(eth0); err != nil {
		t.Error(err)
	}
}
