package bgptest

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// LAN is a bridge in a namespace of its own, to which hosts are attached.
type LAN struct {
	t  testing.TB
	ns *netnstest.NS
}

// NewLAN returns a LAN without hosts.
func NewLAN(t testing.TB) *LAN {
	t.Helper()
	l := &LAN{t: t, ns: netnstest.New(t)}
	l.ns.Run(t, "ip", "link", "add", "br0", "type", "bridge")
	l.ns.Up(t, "br0")
	return l
}

// Host is a namespace with the addresses of its speaker. Without V6 it has no IPv6 sessions.
type Host struct {
	*netnstest.NS
	T      testing.TB
	V4, V6 netip.Addr
}

// Host adds a host with the addresses 10.0.0.n and fd00::n.
func (l *LAN) Host(n int) *Host {
	l.t.Helper()
	h := &Host{
		NS: netnstest.New(l.t), T: l.t,
		V4: netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", n)),
		V6: netip.MustParseAddr(fmt.Sprintf("fd00::%d", n)),
	}
	port := fmt.Sprintf("port%d", n)
	netnstest.Cable(l.t, h.NS, "eth0", l.ns, port)
	l.ns.Run(l.t, "ip", "link", "set", port, "master", "br0")
	h.Addr(l.t, "eth0", h.V4.String()+"/24")
	h.Addr(l.t, "eth0", h.V6.String()+"/64")
	return h
}

// Addrs returns the host's addresses, IPv4 first.
func (h *Host) Addrs() []netip.Addr {
	if !h.V6.IsValid() {
		return []netip.Addr{h.V4}
	}
	return []netip.Addr{h.V4, h.V6}
}

// SharedHosts returns hosts with one IPv4 address each that share one namespace, for hundreds of speakers on one
// machine.
func SharedHosts(t testing.TB, count int) []*Host {
	t.Helper()
	ns := netnstest.New(t)
	ns.Up(t, "lo")
	hosts := make([]*Host, count)
	for i := range hosts {
		hosts[i] = &Host{NS: ns, T: t, V4: netip.AddrFrom4([4]byte{10, 0, byte(1 + i/250), byte(1 + i%250)})}
		ns.Addr(t, "lo", hosts[i].V4.String()+"/16")
	}
	return hosts
}

// IP runs ip(8) on the host and returns its output.
func (h *Host) IP(args ...string) string {
	h.T.Helper()
	return h.Run(h.T, "ip", args...)
}

// KernelRoute returns the host's route to exactly prefix in the output format of ip(8), or "".
func (h *Host) KernelRoute(prefix string) string {
	h.T.Helper()
	family := "-4"
	if strings.Contains(prefix, ":") {
		family = "-6"
	}
	return strings.TrimSpace(h.IP(family, "route", "show", "exact", prefix))
}

// Monitor is a record of changes of a host's routes.
type Monitor struct {
	h      *Host
	events *nlmsg.Events
	lost   []string
}

// Monitor records changes of the host's routes until the test ends.
func (h *Host) Monitor() *Monitor {
	h.T.Helper()
	m := &Monitor{h: h}
	const buffer = 8 << 20 // for all changes of a test
	h.Within(h.T, func() (err error) {
		m.events, err = nlmsg.ListenUnwatched(unix.NETLINK_ROUTE, []int{unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE}, buffer)
		return err
	})
	h.T.Cleanup(func() { _ = m.events.Close() })
	return m
}

// Lost returns the events that removed the route to prefix or made it another than to a next hop, such as a blackhole.
func (m *Monitor) Lost(prefix string) (lost []string) {
	m.h.T.Helper()
	errtest.Must(m.h.T, m.events.Drain(make([]byte, 1<<16), m.take))
	for _, e := range m.lost {
		if strings.HasPrefix(e, prefix+" ") {
			lost = append(lost, e)
		}
	}
	return lost
}

func (m *Monitor) take(datagram []byte, err error) {
	m.h.T.Helper()
	for len(datagram) > 0 && err == nil {
		var msg nlmsg.Message
		if msg, datagram, err = nlmsg.Next(datagram); err != nil {
			break
		}
		destination, _ := netip.AddrFromSlice(nlmsg.Find(msg.Body[unix.SizeofRtMsg:], unix.RTA_DST))
		if bits, kind := int(msg.Body[1]), msg.Body[7]; msg.Kind == unix.RTM_DELROUTE || kind != unix.RTN_UNICAST {
			m.lost = append(m.lost, fmt.Sprintf("%s message %d, route of type %d", netip.PrefixFrom(destination, bits), msg.Kind, kind))
		}
	}
	errtest.Must(m.h.T, err)
}

// Patience is the limit of Eventually: handshakes take milliseconds, but speakers wait before they reconnect and
// machines are busy.
const Patience = 60 * time.Second

// Eventually polls until check returns nil, for at most Patience.
func Eventually(t testing.TB, check func() error) {
	t.Helper()
	waittest.For(t, Patience, check)
}
