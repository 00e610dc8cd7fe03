package agent

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/config"
	"github.com/tortie-net/tortie/internal/kernel/flowtable"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/labstore"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// TestByIPv6: a link on which IPv4 packets go to IPv6 next hops is found by any program's routes, and by desired ones.
func TestByIPv6(t *testing.T) {
	way := func(dst, via string) desired.DesiredRoute {
		return desired.DesiredRoute{Route: routes.To(prefix(dst), routes.Hop{Via: addr(via), Dev: "eth1"})}
	}
	for name, tc := range map[string]struct {
		route []string
		ways  []desired.DesiredRoute
		want  []string
	}{
		"IPv4 by IPv4": {route: []string{"10.9.0.0/16", "via", "192.0.2.9", "dev", "eth0"}},
		"IPv6 by IPv6": {route: []string{"2001:db8:9::/48", "via", "fe80::1", "dev", "eth0"},
			ways: []desired.DesiredRoute{way("2001:db8:9::/48", "fe80::1")}},
		"a default route": {route: []string{"0.0.0.0/0", "via", "inet6", "fe80::1", "dev", "eth0", "proto", "bgp"},
			want: []string{"eth0"}},
		"one hop of two": {route: []string{"10.9.0.0/16", "nexthop", "via", "192.0.2.9", "dev", "eth0", "nexthop", "via", "inet6",
			"fe80::1", "dev", "eth1"}, want: []string{"eth1"}},
		"by another link": {route: []string{"10.9.0.0/16", "via", "inet6", "fe80::1", "dev", "eth2"}},
		"a route to come": {ways: []desired.DesiredRoute{way("10.9.0.0/16", "192.0.2.9"), way("10.9.1.0/24", "fe80::1")},
			want: []string{"eth1"}},
		"a route by IPv4 to come": {ways: []desired.DesiredRoute{way("10.9.0.0/16", "192.0.2.9")}},
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			for i := range 3 {
				netnstest.Cable(t, ns, fmt.Sprint("eth", i), ns, fmt.Sprint("far", i))
				ns.Addr(t, fmt.Sprint("eth", i), fmt.Sprintf("192.0.%d.1/24", i+2))
			}
			if tc.route != nil {
				ns.Run(t, "ip", append([]string{"route", "add"}, tc.route...)...)
			}
			links, err := ns.Conn.Links()
			errtest.Must(t, err)
			a := &Agent{Deps: Deps{Dataplane: Dataplane{Kernel: ns.Conn}}}
			a.links = links
			difftest.Want(t, "links", tc.want, a.byIPv6([]string{"eth0", "eth1", ""}, tc.ways))
		})
	}
}

// With a flowtable configured an agent follows the links of pods; if the kernel has none it reports that, and serves.
// An agent without it configured removes it.
func TestAgentFlowtable(t *testing.T) {
	r := newRig(t)
	labstore.Make(t, r.store, &api.IPPool{Meta: api.Meta{Name: "fast"}, Spec: api.IPPoolSpec{CIDR: "10.98.0.0/16", BlockSize: 26}})
	mode := config.FlowtableAuto
	r.configure = func(c *config.Node) { c.Flowtable = mode }
	r.ns.Run(t, "ip", "link", "add", "cali0000000001", "type", "veth", "peer", "name", "pod")
	status, stop := r.agent(t, newPeers())
	waittest.Until(t, 2*soon, "ready", func() bool { return status.Report().Ready })
	probe := netnstest.New(t)
	netnstest.Cable(t, probe, "eth0", netnstest.New(t), "eth0")
	if err := flowtable.New(probe.Namespace).Sync(t.Context(), flowtable.Config{PodLinks: "cali", Devices: []string{"eth0"}}); errors.Is(err,
		flowtable.ErrUnsupported) {
		named(t, status, flowtable.ErrUnsupported.Error())
		return
	}
	table := nft.NewOwned(r.ns.Namespace, flowtable.TableName)
	defer table.Close()
	await := func(want ...string) {
		t.Helper()
		waittest.For(t, soon, func() error {
			if got, exists, err := table.Devices(t.Context(), "pods"); err != nil || exists != (want != nil) || !slices.Equal(got, want) {
				return fmt.Errorf("devices %q, %v; want %q", got, err, want)
			}
			return nil
		})
	}
	await("cali0000000001", "eth0")
	r.ns.Run(t, "ip", "link", "add", "cali0000000002", "type", "veth", "peer", "name", "pod2")
	await("cali0000000001", "cali0000000002", "eth0")
	r.ns.Run(t, "ip", "link", "del", "cali0000000001")
	await("cali0000000002", "eth0")
	stop()
	mode = config.FlowtableOff
	r.agent(t, newPeers())
	await()
	exists, err := table.Exists(t.Context())
	errtest.Must(t, err)
	if exists {
		t.Error("there is a table that nobody has asked for")
	}
}
