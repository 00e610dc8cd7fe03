package ipip_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// The tests of this package need a kernel with IPIP and fail on another: there, run them in a virtual machine. A short
// run leaves them out.

var addr = netip.MustParseAddr

// TestNoIPIP holds on any kernel: without IPIP the error names the reason and the remedy, and nothing is left behind.
func TestNoIPIP(t *testing.T) {
	ns := netnstest.New(t)
	_, err := ipip.New(ns.Conn).Sync(t.Context(), ipip.Tunnel{MTU: 1480, Addr: addr("10.244.1.0")})
	if err == nil {
		return
	}
	if !errors.Is(err, ipip.ErrNoIPIP) || !strings.Contains(err.Error(), "modprobe") {
		t.Errorf("%v, want ErrNoIPIP with its remedy", err)
	}
	if _, err := ns.Conn.LinkByName(ipip.Device); !netlinkx.IsNotExist(err) {
		t.Errorf("a Sync that failed left %s behind: %v", ipip.Device, err)
	}
}

func newNS(t testing.TB) *netnstest.NS {
	t.Helper()
	if netnstest.IPIP() != nil {
		needtest.More(t, "a kernel with IPIP")
	}
	return netnstest.New(t)
}

// wantDevice checks all properties that Sync sets.
func wantDevice(t *testing.T, ns *netnstest.NS, want ipip.Tunnel) {
	t.Helper()
	link := ns.Link(t, ipip.Device)
	wantLink := netlinkx.Link{
		Index: link.Index, Name: "tunl0", Kind: "ipip", MTU: want.MTU, Up: true, Tunnel: netlinkx.Tunnel{PMTUDisc: true},
		HardwareAddr: link.HardwareAddr, TxQueues: 1, RxQueues: 1,
	}
	difftest.Want(t, "tunl0", wantLink, link, cmpopts.IgnoreUnexported(netlinkx.Link{}))
	got, err := ns.Conn.Addrs(link.Index, netlinkx.FamilyAll)
	errtest.Must(t, err)
	wantAddrs := []netlinkx.Addr{{Prefix: netip.PrefixFrom(want.Addr, 32), Link: link.Index}}
	difftest.Want(t, "addresses of tunl0", wantAddrs, got)
}

func sync(t *testing.T, ns *netnstest.NS, tunnel ipip.Tunnel) {
	t.Helper()
	_, err := ipip.New(ns.Conn).Sync(t.Context(), tunnel)
	errtest.Must(t, err)
}

func TestFromKernelsOwnDevice(t *testing.T) {
	ns := newNS(t)
	want := ipip.Tunnel{MTU: 1480, Addr: addr("10.244.1.0")}
	sync(t, ns, want)
	wantDevice(t, ns, want)
}

func TestSteadyWritesNothing(t *testing.T) {
	ns := newNS(t)
	want := ipip.Tunnel{MTU: 1430, Addr: addr("10.244.1.0")}
	sync(t, ns, want)
	writes := ns.Writes(t)
	sync(t, ns, want)
	sync(t, ns, want)
	if n := writes(); n > 0 {
		t.Errorf("%d events: the kernel reports a change", n)
	}
}

func TestDriftIsRepaired(t *testing.T) {
	ns := newNS(t)
	s, want := ipip.New(ns.Conn), ipip.Tunnel{MTU: 1480, Addr: addr("10.244.1.0")}
	sync(t, ns, want)
	own := netip.MustParsePrefix("10.244.1.0/32")
	for was, spoil := range map[string]func(c *netlinkx.Conn, l netlinkx.Link) error{
		"":                             func(*netlinkx.Conn, netlinkx.Link) error { return nil },
		"had MTU 1400":                 func(c *netlinkx.Conn, l netlinkx.Link) error { return c.SetMTU(l.Index, 1400) },
		"was down":                     func(c *netlinkx.Conn, l netlinkx.Link) error { return c.SetDown(l.Index) },
		"had no path MTU discovery":    func(c *netlinkx.Conn, l netlinkx.Link) error { return c.SetTunnelPMTUDisc(l, false) },
		"lacked address 10.244.1.0/32": func(c *netlinkx.Conn, l netlinkx.Link) error { return c.DeleteAddr(l.Index, own) },
		"had address 192.0.2.1/24": func(c *netlinkx.Conn, l netlinkx.Link) error {
			return c.AddUniqueAddr(l.Index, netip.MustParsePrefix("192.0.2.1/24"))
		},
		"lacked address 10.244.1.0/32, had address 10.244.1.0/24": func(c *netlinkx.Conn, l netlinkx.Link) error {
			return errors.Join(c.DeleteAddr(l.Index, own), c.AddUniqueAddr(l.Index, netip.MustParsePrefix("10.244.1.0/24")))
		},
		"had MTU 1400, was down": func(c *netlinkx.Conn, l netlinkx.Link) error {
			return errors.Join(c.SetMTU(l.Index, 1400), c.SetDown(l.Index))
		},
	} {
		errtest.Must(t, spoil(ns.Conn, ns.Link(t, ipip.Device)))
		found, err := s.Sync(t.Context(), want)
		errtest.Must(t, err)
		difftest.Want(t, "found", was, strings.Join(found, ", "))
		wantDevice(t, ns, want)
	}
}

// TestRightAddressStays changes everything else many times over while a prober binds to the address.
func TestRightAddressStays(t *testing.T) {
	ns := newNS(t)
	want := ipip.Tunnel{MTU: 1480, Addr: addr("10.244.1.0")}
	sync(t, ns, want)
	link := ns.Link(t, ipip.Device)
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- ns.Do(func() error {
			for {
				select {
				case <-stop:
					return nil
				default:
				}
				conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.244.1.0:0")))
				if err != nil {
					return err
				}
				conn.Close()
			}
		})
	}()
	for i := range 50 {
		want.MTU = 1400 + i
		errtest.Must(t, ns.Conn.AddUniqueAddr(link.Index, netip.MustParsePrefix("10.244.9.0/32")))
		sync(t, ns, want)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Errorf("the address was gone for a moment: %v", err)
	}
	wantDevice(t, ns, want)
}

func TestAddressChanges(t *testing.T) {
	ns := newNS(t)
	sync(t, ns, ipip.Tunnel{MTU: 1480, Addr: addr("10.244.1.0")})
	want := ipip.Tunnel{MTU: 1480, Addr: addr("10.244.7.192")}
	sync(t, ns, want)
	wantDevice(t, ns, want)
}

func TestRemove(t *testing.T) {
	ns := newNS(t)
	s := ipip.New(ns.Conn)
	for range 2 {
		sync(t, ns, ipip.Tunnel{MTU: 1480, Addr: addr("10.244.1.0")})
		for range 2 {
			errtest.Must(t, s.Remove(t.Context()))
			link := ns.Link(t, ipip.Device)
			addrs, err := ns.Conn.Addrs(link.Index, netlinkx.IPv4)
			if err != nil || len(addrs) != 0 || link.Up {
				t.Errorf("after Remove: up %v, addresses %v, %v; want down and none", link.Up, addrs, err)
			}
		}
	}
}

func TestBadTunnel(t *testing.T) {
	ns := newNS(t)
	for want, tunnel := range map[string]ipip.Tunnel{
		"\"fd00::1\" is not an IPv4":      {MTU: 1480, Addr: addr("fd00::1")},
		"tunnel mtu 0 is not between 68":  {Addr: addr("10.244.1.0")},
		"tunnel mtu 65516 is not between": {MTU: 65516, Addr: addr("10.244.1.0")},
	} {
		if _, err := ipip.New(ns.Conn).Sync(t.Context(), tunnel); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Sync(%+v) = %v, want an error with %q", tunnel, err, want)
		}
	}
}

func TestNameTaken(t *testing.T) {
	ns := newNS(t)
	tunnel := ipip.Tunnel{MTU: 1480, Addr: addr("10.244.1.0")}
	sync(t, ns, tunnel)
	link := ns.Link(t, ipip.Device)
	errtest.Must(t, ns.Conn.SetDown(link.Index))
	ns.Run(t, "ip", "link", "set", ipip.Device, "name", "mine")
	s := ipip.New(ns.Conn)
	if _, err := s.Sync(t.Context(), tunnel); !errtest.Names(err, "mine tunl0") {
		t.Errorf("with the device renamed: %v", err)
	}
	if err := s.Remove(t.Context()); err != nil {
		t.Errorf("Remove with the device renamed: %v", err)
	}
	netnstest.Cable(t, ns, ipip.Device, ns, "other")
	if err := s.Remove(t.Context()); err != nil || !ns.Link(t, ipip.Device).Up {
		t.Errorf("Remove with a veth of that name: %v, and up is %v", err, ns.Link(t, ipip.Device).Up)
	}
	// A pod may have made it: it is removed, and the device made once that is possible.
	if _, err := s.Sync(t.Context(), tunnel); !errtest.Names(err, "mine tunl0") {
		t.Errorf("with a veth of that name: %v", err)
	}
	ns.Run(t, "ip", "link", "set", "mine", "name", ipip.Device)
	sync(t, ns, tunnel)
	wantDevice(t, ns, tunnel)
}

// A pod with CAP_NET_ADMIN moves a tunnel of its own to the name of the device, which it can only while the device has
// another.
func TestMovedDevice(t *testing.T) {
	ns, pod := newNS(t), netnstest.New(t)
	netnstest.Cable(t, ns, "cali1", pod, "eth0")
	tunnel := ipip.Tunnel{MTU: 1480, Addr: addr("10.244.1.0")}
	sync(t, ns, tunnel)
	errtest.Must(t, ns.Conn.SetDown(ns.Link(t, ipip.Device).Index))
	ns.Run(t, "ip", "link", "set", ipip.Device, "name", "mine")
	errtest.Must(t, pod.Conn.AddIPIP("mine", netlinkx.Tunnel{Local: addr("172.30.0.1")}, 1480))
	pod.Swap(t, "mine", ipip.Device)
	if l := ns.Link(t, ipip.Device); l.Kind != "ipip" || ipip.Is(l) {
		t.Fatalf("%+v", l)
	}
	if _, err := ipip.New(ns.Conn).Sync(t.Context(), tunnel); !errtest.Names(err, "mine takes its place") {
		t.Error(err)
	}
	ns.Run(t, "ip", "link", "set", "mine", "name", ipip.Device)
	sync(t, ns, tunnel)
	wantDevice(t, ns, tunnel)
}

func TestTunnelWithoutAddress(t *testing.T) {
	ns := newNS(t)
	s := ipip.New(ns.Conn)
	for _, tunnel := range []ipip.Tunnel{{MTU: 1480, Addr: addr("10.244.0.1")}, {MTU: 1480}} {
		_, err := s.Sync(t.Context(), tunnel)
		errtest.Must(t, err)
	}
	link := ns.Link(t, ipip.Device)
	have, err := ns.Conn.Addrs(link.Index, netlinkx.IPv4)
	if err != nil || len(have) != 0 || !link.Up {
		t.Errorf("addresses %v, up %v, %v; want none, and up", have, link.Up, err)
	}
	// Its purpose is routes through it.
	netnstest.Cable(t, ns, "eth0", ns, "far")
	ns.Addr(t, "eth0", "10.0.0.1/24")
	route := netlinkx.Route{Dst: netip.MustParsePrefix("10.244.1.0/26"), Via: addr("10.0.0.2"), Dev: link.Index, Onlink: true}
	if err := ns.Conn.AddRoute(route); err != nil {
		t.Error(err)
	}
}

func TestMTU(t *testing.T) {
	if got := ipip.MTU(1460); got != 1440 {
		t.Errorf("tunnel MTU %d over a link of 1460, want 1440", got)
	}
}
