package wireguard

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/hostsysctl"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// How packets travel.
const (
	inClear     = "clear"
	byIPIP      = "IPIP"
	byVXLAN     = "VXLAN"
	byWireGuard = "WireGuard"
)

var ofPort = map[uint16]string{vxlan.DefaultPort: byVXLAN, wireguard.DefaultPort4: byWireGuard, wireguard.DefaultPort6: byWireGuard}

// tunnels makes what a host's agent makes before it knows of keys: the devices of pools, and the guard.
func (h *host) tunnels(t *testing.T, s *desired.Snapshot) {
	t.Helper()
	want := s.Tunnels()
	if want.IPIP != nil {
		_, err := ipip.New(h.Conn).Sync(t.Context(), *want.IPIP)
		errtest.Must(t, err)
	}
	for _, v := range []*vxlan.Tunnel{want.VXLAN, want.VXLANv6} {
		if v != nil {
			_, err := vxlan.New(h.Conn).Merge(t.Context(), *v)
			errtest.Must(t, err)
		}
	}
	errtest.Must(t, guard.New(nft.New(h.Namespace)).Sync(t.Context(), s.Guard()))
	h.Within(t, func() error { return hostsysctl.Sync(sysctl.DefaultRoot, s.Host()) })
}

// main makes the routes of the main table.
func (h *host) main(t *testing.T, judge *desired.Judge, accepted []bgp.Path) {
	t.Helper()
	ways, _ := judge.DesiredRoutes(accepted)
	_, err := routes.New(h.Conn, routes.Options{}).Sync(t.Context(), desired.RoutesOf(ways))
	errtest.Must(t, err)
}

// carried is how packets travel between a host and another one, of an address family.
type carried struct {
	other *host
	v6    bool
	how   string
}

// carry counts the packets of pods on a host's link until it is stopped.
func (n *network) carry(t *testing.T, h *host) (stop func() map[carried]int) {
	t.Helper()
	seen, by := map[carried]int{}, map[netip.Addr]*host{}
	for _, other := range n.hosts {
		for i := range pools {
			by[netip.MustParsePrefix(fmt.Sprintf(addresses[i], other.number)).Addr()] = other
			by[netip.MustParseAddr(fmt.Sprintf(pods[i], other.number))] = other
		}
	}
	pools4, pools6 := netip.MustParsePrefix(pools[0]), netip.MustParsePrefix(pools[1])
	end := h.Watch(t, "eth0", func(p []byte) {
		src, dst, protocol, rest := outer(p)
		c := carried{other: by[src], v6: src.Is6()}
		if c.other == h {
			c.other = by[dst]
		}
		switch {
		case pools4.Contains(src) || pools6.Contains(src):
			c.how = inClear
		case protocol == unix.IPPROTO_IPIP:
			c.how = byIPIP
		case protocol == unix.IPPROTO_UDP:
			c.how = ofPort[binary.BigEndian.Uint16(rest[2:])]
		}
		if c.how != "" { // else of the nodes' own
			seen[c]++
		}
	})
	return func() map[carried]int {
		end()
		return seen
	}
}

// travels checks how the packets of flows between a host and each other travel, from now on.
func (n *network) travels(t *testing.T, h *host, want map[*host][2]string) {
	t.Helper()
	stop := n.carry(t, h)
	for range 5 {
		n.round(t)
	}
	seen := stop()
	for other, hows := range want {
		for i, how := range hows {
			c := carried{other, i == 1, how}
			if seen[c] < 20 {
				t.Errorf("%d packets between %s and %s, IPv6 %v, by %s: the test shows nothing", seen[c], h.name(), other.name(), c.v6, how)
			}
			delete(seen, c)
		}
	}
	for c, count := range seen {
		t.Errorf("%d packets between %s and %s, IPv6 %v, by %s", count, h.name(), c.other.name(), c.v6, c.how)
	}
}

// TestBesideTunnels: of three nodes, with pools in IPIP and VXLAN, the last one has no key. What the others send to
// each other is encrypted, what they and the last one do travels by the pools' tunnels, until it has a key, under
// traffic.
func TestBesideTunnels(t *testing.T) {
	n := newNetwork(t, 3)
	n.encap = [2]string{byIPIP, byVXLAN}
	a, b, last := n.hosts[0], n.hosts[1], n.hosts[2]
	last.keyless = true
	two := network{hosts: []*host{a, b}}
	n.until(t, "two encrypt to each other", func() bool { return two.by(false, a, b) })
	stop := n.flows(t, a, 25)
	crypt := [2]string{byWireGuard, byWireGuard}
	n.travels(t, a, map[*host][2]string{b: crypt, last: n.encap})
	last.keyless = false
	n.until(t, "all encrypt to all", func() bool { return n.by(false, n.hosts...) })
	n.travels(t, a, map[*host][2]string{b: crypt, last: crypt})
	stop(0)
}
