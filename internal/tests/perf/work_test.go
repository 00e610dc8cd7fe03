package perf

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/pathtest"
)

// used is the processor time of this process, which leaves out what it waits for.
func used(t *testing.T, do func() error) float64 {
	t.Helper()
	now := func() float64 {
		var ts unix.Timespec
		errtest.Must(t, unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts))
		return float64(ts.Nano())
	}
	start := now()
	errtest.Must(t, do())
	return now() - start
}

// work measures the plugin's and the agent's own work, each beside the least that the kernel asks for it.
func work(t *testing.T) []figure {
	t.Helper()
	return slices.Concat(wiring(t), learning(t))
}

// wiring connects a pod, and disconnects it; at least it takes a pair of links.
func wiring(t *testing.T) []figure {
	const pods = 20
	host := netnstest.New(t)
	var setup, teardown, pair float64
	for i := range pods {
		pod := netnstest.New(t)
		c := podnet.Config{Netns: pod.Path(), IfName: "eth0", HostVeth: pathtest.PodLink, MTU: 1500, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}}
		host.Within(t, func() error {
			setup += used(t, func() error { _, err := podnet.Setup(t.Context(), c); return err })
			teardown += used(t, func() error { _, err := podnet.Teardown(t.Context(), c); return err })
			return nil
		})
		pair += used(t, func() error {
			return host.Conn.AddVeth(netlinkx.Veth{Name: pathtest.PodLink, PeerName: "eth0", PeerNamespace: pod.Namespace, MTU: 1500})
		})
		errtest.Must(t, host.Conn.DeleteLink(host.Link(t, pathtest.PodLink).Index))
	}
	return []figure{
		{"a pair of links", "pod", pair / pods, 1}, {"a pod connected", "pod", setup / pods, setup / pair}, {"a pod disconnected", "pod", teardown / pods, teardown / pair},
	}
}

// learning programs learned routes; at least it takes writing them.
func learning(t *testing.T) []figure {
	const count = 10000
	hand, agent := netnstest.New(t), netnstest.New(t)
	var raw []netlinkx.Route
	var desired []routes.Route
	for _, ns := range []*netnstest.NS{hand, agent} {
		netnstest.Cable(t, ns, "eth0", netnstest.New(t), "eth0")
		ns.Addr(t, "eth0", "172.30.0.1/24")
	}
	via, dev := netip.MustParseAddr("172.30.0.2"), hand.Link(t, "eth0").Index
	for i := range count {
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 10), byte(i >> 2), byte(i << 6)}), 26)
		raw = append(raw, netlinkx.Route{Dst: block, Via: via, Dev: dev, Protocol: routes.DefaultProtocol})
		desired = append(desired, routes.To(block, routes.Hop{Via: via, Dev: "eth0"}))
	}
	table := routes.New(agent.Conn, routes.Options{})
	sync := func() error { _, err := table.Sync(t.Context(), desired); return err }
	written := used(t, func() error {
		for _, err := range hand.Conn.AddRoutes(raw) {
			if err != nil {
				return err
			}
		}
		return nil
	})
	learned, steady := used(t, sync), used(t, sync)
	return []figure{
		{"10,000 routes written", "route", written / count, 1}, {"10,000 routes learned", "route", learned / count, learned / written},
		{"10,000 routes, nothing new", "route", steady / count, steady / written},
	}
}
