package bgptest

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/logtest"
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
	l.ns.Run(t, "ip", "link", "add", "br0", "up", "type", "bridge")
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

// SharedHosts returns hosts with one IPv4 address each that share one namespace, for hundreds of speakers on one machine.
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
type Monitor struct{ log logtest.Buffer }

// Monitor records changes of the host's routes until the test ends.
func (h *Host) Monitor() *Monitor {
	h.T.Helper()
	m := &Monitor{}
	cmd := exec.Command("ip", "monitor", "route")
	cmd.Stdout = &m.log
	h.Within(h.T, cmd.Start)
	h.T.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	// ip monitor does not report when it has subscribed: a route that the test adds shows it.
	const probe = "198.51.100.1"
	Eventually(h.T, func() error {
		h.IP("route", "replace", "unreachable", probe)
		h.IP("route", "del", "unreachable", probe)
		if !strings.Contains(m.log.String(), probe) {
			return fmt.Errorf("the route monitor on %s receives no events", h.V4)
		}
		return nil
	})
	return m
}

// Lost returns the events that removed the route to prefix or made it a blackhole.
func (m *Monitor) Lost(prefix string) []string {
	var lost []string
	for line := range strings.Lines(m.log.String()) {
		if !strings.Contains(line, prefix) {
			continue
		}
		for _, word := range []string{"Deleted", "unreachable", "blackhole", "prohibit"} {
			if strings.Contains(line, word) {
				lost = append(lost, strings.TrimSpace(line))
				break
			}
		}
	}
	return lost
}

// Patience is the limit of Eventually: handshakes take milliseconds, but speakers wait before they reconnect and machines are busy.
const Patience = 60 * time.Second

// Eventually polls until check returns nil, for at most Patience.
func Eventually(t testing.TB, check func() error) {
	t.Helper()
	waittest.For(t, Patience, check)
}
