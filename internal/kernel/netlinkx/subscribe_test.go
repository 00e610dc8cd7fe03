package netlinkx_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"

	"golang.org/x/sys/unix"
)

const agentEvents = netlinkx.LinkEvents | netlinkx.AddrEvents | netlinkx.RouteEvents

// others subscribes like an agent with routes of protocol 84.
func others(t *testing.T, ns *netnstest.NS) <-chan struct{} {
	t.Helper()
	wake, err := ns.Conn.SubscribeToOthers(t.Context(), agentEvents, 84, netlinkx.ProtocolBoot)
	errtest.Must(t, err)
	return wake
}

// heard opens the socket of such a subscription, and returns a function that counts the events on it since the last
// call: of routes, and all. The kernel queues them before it answers the request that causes them, so that no wait is
// needed. Links have events of the kernel's own.
func heard(t *testing.T, ns *netnstest.NS) func() (routes, all int) {
	t.Helper()
	socket, err := ns.Conn.ListenToOthers(agentEvents, 84, netlinkx.ProtocolBoot)
	errtest.Must(t, err)
	return counted(t, socket)
}

func counted(t *testing.T, socket *nlmsg.Events) func() (routes, all int) {
	t.Cleanup(func() { socket.Close() })
	b := make([]byte, 1<<16)
	return func() (routes, all int) {
		t.Helper()
		errtest.Must(t, socket.Drain(b, func(datagram []byte, err error) {
			errtest.Must(t, err)
			for m, rest, err := nlmsg.Next(datagram); err == nil; m, rest, err = nlmsg.Next(rest) {
				if all++; m.Kind == unix.RTM_NEWROUTE || m.Kind == unix.RTM_DELROUTE {
					routes++
				}
			}
		}))
		return routes, all
	}
}

func anotherConn(t *testing.T, ns *netnstest.NS) *netlinkx.Conn {
	t.Helper()
	c, err := netlinkx.OpenAt(ns.Namespace)
	errtest.Must(t, err)
	t.Cleanup(c.Close)
	return c
}

func TestSubscribeToOthers(t *testing.T) {
	ns, _ := scratchRoutes(t)
	ns.Run(t, "ip", strings.Fields("route add 10.2.0.0/26 via 10.0.0.2 proto 84")...)
	ns.Run(t, "ip", strings.Fields("-6 route add 2001:db8:2::/122 via fe80::1 dev a proto 84")...)
	for _, tt := range []struct {
		wakes   bool
		command string
	}{
		{true, "route add 10.3.0.0/26 via 10.0.0.2"}, // protocol boot
		{true, "route add 10.3.0.64/26 via 10.0.0.2 proto 84"},
		{true, "route del 10.3.0.64/26"},
		{false, "route add 10.4.0.0/26 via 10.0.0.2 proto bird"},
		{false, "route del 10.4.0.0/26"},
		{false, "route add 10.4.0.0/26 via 10.0.0.2 table 100 proto 84"},
		{true, "route replace 10.2.0.0/26 via 10.0.0.3 proto bird"},
		{true, "-6 route add 2001:db8:3::/122 via fe80::1 dev a proto 84"},
		{true, "-6 route del 2001:db8:3::/122"},
		{false, "-6 route add 2001:db8:4::/122 via fe80::1 dev a proto bird"},
		{false, "-6 route del 2001:db8:4::/122"},
		{true, "-6 route replace 2001:db8:2::/122 via fe80::3 dev a proto bird"},
		{true, "link set dev a mtu 1400"},
		{true, "addr add 10.7.0.1/32 dev a"},
	} {
		count := heard(t, ns)
		ns.Run(t, "ip", strings.Fields(tt.command)...)
		if routes, all := count(); tt.wakes && all == 0 || !tt.wakes && routes > 0 {
			t.Errorf("ip %s: %d events of routes, %d of all kinds, want any: %v", tt.command, routes, all, tt.wakes)
		}
	}
}

// settle consumes wake-ups under way.
func settle(wake <-chan struct{}) {
	for within(wake, 100*time.Millisecond) {
	}
}

func within(wake <-chan struct{}, d time.Duration) bool {
	select {
	case _, ok := <-wake:
		return ok
	case <-time.After(d):
		return false
	}
}

// TestOwnBatchesWakeNobody: a program's own batches of routes do not wake it.
func TestOwnBatchesWakeNobody(t *testing.T) {
	ns, a := scratchRoutes(t)
	count := heard(t, ns)
	routes := manyRoutes(300, 100, a.Index, 84)
	for _, change := range []func([]netlinkx.Route) []error{ns.Conn.AddRoutes, ns.Conn.ReplaceRoutes, ns.Conn.DeleteRoutes} {
		for _, err := range change(routes) {
			errtest.Must(t, err)
		}
	}
	if n, _ := count(); n > 0 {
		t.Errorf("%d events of own changes", n)
	}
	anotherConn(t, ns).AddRoutes(routes[:1])
	if n, _ := count(); n != 1 {
		t.Errorf("%d events of another's change", n)
	}
}

// TestNoWakeUpIsLost floods the socket, so that the kernel drops most events. The last change wakes all the same, and
// the flood wakes no more often than documented.
func TestNoWakeUpIsLost(t *testing.T) {
	ns, a := scratchRoutes(t)
	for name, subscribe := range map[string]func() <-chan struct{}{
		"to all": func() <-chan struct{} {
			wake, err := ns.Conn.Subscribe(t.Context(), netlinkx.RouteEvents)
			errtest.Must(t, err)
			return wake
		},
		"to others": func() <-chan struct{} { return others(t, ns) },
	} {
		t.Run(name, func(t *testing.T) {
			wake := subscribe()
			settle(wake)
			conn, routes := anotherConn(t, ns), manyRoutes(2000, 100, a.Index, 84)
			begin, wakes := time.Now(), 0
			for range 5 {
				for within(wake, 0) {
					wakes++
				}
				conn.AddRoutes(routes)
				conn.DeleteRoutes(routes)
			}
			before := wakes
			for within(wake, time.Second) {
				wakes++
			}
			if wakes == before {
				t.Error("no wake-up after the end of a flood")
			}
			if most := 10 + int(time.Since(begin)/(200*time.Millisecond)) + 2; name == "to others" && wakes > most {
				t.Errorf("%d wake-ups in %v, want at most %d", wakes, time.Since(begin), most)
			}
			if anotherConn(t, ns).AddRoutes(routes[:1]); !within(wake, 10*time.Second) {
				t.Error("a change after the flood does not wake")
			}
			anotherConn(t, ns).DeleteRoutes(routes[:1])
			settle(wake)
		})
	}
}

// TestDaemonsFloodWakesNobody: a routing daemon on the same machine changes its table without an end.
func TestDaemonsFloodWakesNobody(t *testing.T) {
	ns, a := scratchRoutes(t)
	count := heard(t, ns)
	daemon, routes := anotherConn(t, ns), manyRoutes(5000, 100, a.Index, netlinkx.ProtocolBIRD)
	for range 3 {
		daemon.AddRoutes(routes)
		daemon.DeleteRoutes(routes)
	}
	if n, _ := count(); n > 0 {
		t.Errorf("%d events of a foreign daemon's changes", n)
	}
}

func TestSubscriptionEnds(t *testing.T) {
	ns, _ := scratchRoutes(t)
	ctx, cancel := context.WithCancel(t.Context())
	wake, err := ns.Conn.SubscribeToOthers(ctx, netlinkx.RuleEvents|netlinkx.LinkEvents, 84)
	errtest.Must(t, err)
	ns.Run(t, "ip", "rule", "add", "pref", "99", "table", "100")
	if !within(wake, 10*time.Second) {
		t.Error("a rule does not wake")
	}
	cancel()
	select {
	case _, ok := <-wake:
		for ok {
			_, ok = <-wake
		}
	case <-time.After(10 * time.Second):
		t.Error("the channel is not closed")
	}
}

// Changes of the parameters that the agent sets wake, by whatever program.
func TestSubscribeToSettings(t *testing.T) {
	ns := netnstest.New(t)
	netnstest.Cable(t, ns, "a", netnstest.New(t), "b")
	wake, err := ns.Conn.Subscribe(t.Context(), netlinkx.SettingEvents)
	errtest.Must(t, err)
	settle(wake)
	for _, key := range []string{"net.ipv4.ip_forward", "net.ipv4.conf.a.rp_filter", "net.ipv4.conf.all.rp_filter",
		"net.ipv6.conf.all.forwarding"} {
		was := strings.TrimSpace(ns.Run(t, "sysctl", "-n", key))
		to := map[string]string{"0": "1", "1": "0", "2": "0"}[was]
		ns.Run(t, "sysctl", "-qw", key+"="+to)
		if !within(wake, 10*time.Second) {
			t.Errorf("%s from %s to %s: not told", key, was, to)
		}
		settle(wake)
	}
}
