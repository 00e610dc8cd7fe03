package ipip_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// kept is a namespace in which a loop keeps tunl0 and the routes through it, woken by the kernel's events as the agent
// is.
type kept struct {
	*netnstest.NS
	t      *testing.T
	routes []routes.Route
}

func keep(t *testing.T) *kept {
	t.Helper()
	k := &kept{NS: newNS(t), t: t, routes: []routes.Route{
		{Dst: netip.MustParsePrefix("10.244.1.0/26"), Type: netlinkx.Unreachable},
		routes.To(netip.MustParsePrefix("10.244.2.0/26"), routes.Hop{Via: addr("172.30.0.2"), Dev: ipip.Device, Onlink: true}),
		routes.To(netip.MustParsePrefix("10.244.3.0/26"), routes.Hop{Via: addr("172.30.9.3"), Dev: ipip.Device, Onlink: true}),
		// CrossSubnet, or without encapsulation
		routes.To(netip.MustParsePrefix("10.244.4.0/26"), routes.Hop{Via: addr("172.30.0.4"), Dev: "eth0"}),
	}}
	netnstest.Cable(t, k.NS, "eth0", k.NS, "far")
	k.Addr(t, "eth0", "172.30.0.1/24")
	events, err := k.Conn.SubscribeToOthers(t.Context(), netlinkx.LinkEvents|netlinkx.AddrEvents|netlinkx.RouteEvents, routes.DefaultProtocol)
	errtest.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			k.pass(ctx)
			select {
			case <-events:
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return k
}

// pass may fail while a device is being changed under it: then another event follows.
func (k *kept) pass(ctx context.Context) {
	link, err := k.Conn.LinkByName("eth0")
	if err == nil {
		_, err = ipip.New(k.Conn).Sync(ctx, ipip.Tunnel{MTU: ipip.MTU(link.MTU), Addr: addr("10.244.1.0")})
	}
	if err == nil {
		tb := routes.New(k.Conn, routes.Options{TakeOver: []netlinkx.Protocol{netlinkx.ProtocolBIRD}, Devices: []string{ipip.Device}})
		_, err = tb.Sync(ctx, k.routes)
	}
	if err != nil && ctx.Err() == nil {
		k.t.Logf("a pass failed: %v", err)
	}
}

// await waits until device and routes are as they should be.
func (k *kept) await(what string, mtu int) {
	k.t.Helper()
	waittest.For(k.t, 30*time.Second, func() error {
		if is := k.wrong(mtu); is != "" {
			return fmt.Errorf("%s: %s", what, is)
		}
		return nil
	})
}

// wrong describes the first difference from the desired device, empty without one.
func (k *kept) wrong(mtu int) string {
	link, err := k.Conn.LinkByName(ipip.Device)
	if err != nil {
		return err.Error()
	}
	if !link.Up || link.MTU != mtu || !link.Tunnel.PMTUDisc {
		return fmt.Sprintf("the device is up %v, MTU %d, path MTU discovery %v", link.Up, link.MTU, link.Tunnel.PMTUDisc)
	}
	addrs, err := k.Conn.Addrs(link.Index, netlinkx.IPv4)
	if err != nil || len(addrs) != 1 || addrs[0].Prefix.String() != "10.244.1.0/32" {
		return "the device has other addresses"
	}
	var lines []string
	for _, protocol := range []netlinkx.Protocol{routes.DefaultProtocol, netlinkx.ProtocolBIRD} {
		routes, err := k.Conn.Routes(netlinkx.RouteFilter{Protocol: protocol})
		if err != nil {
			return err.Error()
		}
		for _, r := range routes {
			lines = append(lines, strings.ReplaceAll(r.String(), "#"+fmt.Sprint(link.Index)+" ", "tunl0 "))
		}
	}
	return cmp.Diff([]string{
		"unreachable 10.244.1.0/26 proto 84", "10.244.2.0/26 via 172.30.0.2 dev tunl0 proto 84",
		"10.244.3.0/26 via 172.30.9.3 dev tunl0 proto 84",
		"10.244.4.0/26 via 172.30.0.4 dev #" + fmt.Sprint(k.Link(k.t, "eth0").Index) + " proto 84",
	}, lines)
}

// TestDeviceByHand does to tunl0 and to the node's link what people and their tools do.
func TestDeviceByHand(t *testing.T) {
	k := keep(t)
	k.await("from nothing", 1480)
	device := func() int { return k.Link(t, ipip.Device).Index }
	other, err := netlinkx.OpenAt(k.Namespace)
	errtest.Must(t, err)
	defer other.Close()
	errtest.Must(t, other.SetDown(device()))
	k.await("taken down", 1480)
	errtest.Must(t, other.SetMTU(device(), 1300))
	k.await("other MTU", 1480)
	errtest.Must(t, other.SetMTU(k.Link(t, "eth0").Index, 1400))
	k.await("smaller MTU of the node's link", 1380)
	errtest.Must(t, other.SetMTU(k.Link(t, "eth0").Index, 9000))
	k.await("larger MTU of the node's link", 8980)
	errtest.Must(t, other.DeleteAddr(device(), netip.MustParsePrefix("10.244.1.0/32")))
	k.await("address taken away", 8980)
	errtest.Must(t, other.AddUniqueAddr(device(), netip.MustParsePrefix("10.244.9.9/32")))
	k.await("another address", 8980)
	routes, err := other.Routes(netlinkx.RouteFilter{Protocol: routes.DefaultProtocol})
	errtest.Must(t, err)
	for _, err := range other.DeleteRoutes(routes) {
		errtest.Must(t, err)
	}
	k.await("routes deleted", 8980)
	// What BIRD left on the device goes with the next pass, which nothing of BIRD's wakes.
	errtest.Must(t, other.AddRoute(netlinkx.Route{
		Dst: netip.MustParsePrefix("10.244.7.0/26"), Via: addr("172.30.0.7"), Dev: device(), Onlink: true,
		Protocol: netlinkx.ProtocolBIRD, Metric: 1024,
	}))
	errtest.Must(t, other.SetDown(k.Link(t, "far").Index))
	errtest.Must(t, other.SetUp(k.Link(t, "far").Index))
	k.await("routes of a predecessor", 8980)
}

// fallback is the parameter by which the kernel makes no tunl0 in namespaces other than the first. Only a tunl0 that is
// not the kernel's own can be deleted.
const fallback = "/proc/sys/net/core/fb_tunnels_only_for_init_net"

func TestWithoutKernelsOwnDevice(t *testing.T) {
	needtest.Root(t, fallback)
	before, err := os.ReadFile(fallback)
	errtest.Must(t, err)
	set := func(value []byte) {
		errtest.Must(t, os.WriteFile(fallback, value, 0o644))
	}
	set([]byte("1"))
	t.Cleanup(func() { set(before) })
	probe := newNS(t)
	links, err := probe.Conn.Links()
	if err != nil || slices.ContainsFunc(links, func(l netlinkx.Link) bool { return l.Name == ipip.Device }) {
		t.Fatalf("%s is not honoured: %v, %v", fallback, links, err)
	}
	k := keep(t)
	k.await("made", 1480)
	for range 3 {
		old := k.Link(t, ipip.Device)
		errtest.Must(t, k.Conn.DeleteLink(old.Index))
		k.await("deleted", 1480)
		if link := k.Link(t, ipip.Device); link.Index == old.Index {
			t.Errorf("the device was not deleted: %+v", link)
		}
	}
	errtest.Must(t, k.Conn.SetTunnelPMTUDisc(k.Link(t, ipip.Device), false))
	k.pass(t.Context()) // the change has no event
	k.await("path MTU discovery switched off", 1480)
}
