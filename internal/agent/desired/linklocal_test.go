package desired

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/nodeaddr"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// unnumbered is racked with routers at the same link-local address behind eth0 and eth1; this node has fe80::a on eth0
// and fe80::b on eth1.
func unnumbered(t *testing.T, change func(*state.Cluster)) *Snapshot {
	s := racked(t, change)
	for a, link := range map[string]string{"fe80::a/64": "eth0", "fe80::b/64": "eth1"} {
		s.Self.Found = append(s.Self.Found, nodeaddr.Candidate{Addr: prefix(a), Link: link})
	}
	for _, tor := range []string{"fe80::1%eth0", "fe80::1%eth1", "fe80::1%tunl0", "fe80::1%cali123"} {
		s.Peering.Sources[addr(tor)] = peering.Source{Peer: "tor"}
	}
	return s
}

// TestLinkLocalRouters: a router at a link-local address is believed as others are, and its paths lead to its own link.
func TestLinkLocalRouters(t *testing.T) {
	const notOnLink = "no: its next hop is a link-local address on "
	for name, tc := range map[string]struct {
		learned []string
		want    []string // each is the beginning of a line of the outcome
	}{
		"a block by one router": {[]string{"192.168.5.0/26 via fe80::1%eth0"}, []string{"192.168.5.0/26 via inet6 fe80::1 dev eth0"}},
		"a block by two": {
			[]string{"192.168.5.0/26 via fe80::1%eth0", "192.168.5.0/26 via fe80::1%eth1"},
			[]string{"192.168.5.0/26 nexthop via inet6 fe80::1 dev eth0 weight 1 nexthop via inet6 fe80::1 dev eth1 weight 1"},
		},
		"a block by one of each kind": {
			[]string{"192.168.5.0/26 via 10.0.0.254", "192.168.5.0/26 via fe80::1%eth1"},
			[]string{"192.168.5.0/26 nexthop via 10.0.0.254 dev eth0 weight 1 nexthop via inet6 fe80::1 dev eth1 weight 1"},
		},
		"another host on the router's link": {[]string{"192.168.5.0/26 via fe80::77%eth0 from fe80::1%eth0"},
			[]string{"192.168.5.0/26 via inet6 fe80::77 dev eth0"}},
		"a next hop of the prefix's family": {[]string{"192.168.5.0/26 via 10.0.0.254 from fe80::1%eth0"},
			[]string{"192.168.5.0/26 via 10.0.0.254 dev eth0"}},
		"outside": {[]string{"172.20.0.0/16 via fe80::1%eth0"},
			[]string{"172.20.0.0/16 via inet6 fe80::1 dev eth0 metric 1024"}},
		"outside, IPv6": {[]string{"2001:db8:9::/48 via fe80::1%eth1"},
			[]string{"2001:db8:9::/48 via fe80::1 dev eth1 metric 1024"}},
		"default routes": {[]string{"0.0.0.0/0 via fe80::1%eth0", "::/0 via fe80::1%eth0"},
			[]string{"0.0.0.0/0 via inet6 fe80::1 dev eth0 metric 1024", "::/0 via fe80::1 dev eth0 metric 1024"}},
		"a next hop by another path": {
			[]string{"172.16.9.0/24 via fe80::1%eth0", "172.20.0.0/16 via 172.16.9.1 from 10.0.0.254"},
			[]string{"172.16.9.0/24 via inet6 fe80::1 dev eth0 metric 1024", "172.20.0.0/16 via inet6 fe80::1 dev eth0 metric 1024"},
		},
		"a node in a subnet that a router announces": {
			[]string{"10.9.0.0/24 via fe80::1%eth0", "192.168.7.0/26 via 10.9.0.9 from fe80::1%eth0"},
			[]string{"10.9.0.0/24 via inet6 fe80::1 dev eth0 metric 1024", "192.168.7.0/26 via inet6 fe80::1 dev eth0"},
		},
		"an address borrowed from us": {[]string{"192.168.1.9/32 via fe80::1%eth0"}, []string{"192.168.1.9/32 via inet6 fe80::1 dev eth0"}},

		"the next hop of another link":       {[]string{"192.168.5.0/26 via fe80::1%eth1 from fe80::1%eth0"}, []string{notOnLink + "eth1"}},
		"outside by another link":            {[]string{"172.20.0.0/16 via fe80::1%eth1 from fe80::1%eth0"}, []string{notOnLink + "eth1"}},
		"from a router with another address": {[]string{"192.168.5.0/26 via fe80::1%eth0 from 10.0.0.254"}, []string{notOnLink + "eth0"}},
		"from a node":                        {[]string{"192.168.5.0/26 via fe80::1%eth0 from 10.0.0.2"}, []string{notOnLink + "eth0"}},
		"without a link": {[]string{"192.168.5.0/26 via fe80::1 from fe80::1%eth0"},
			[]string{"no: its next hop is of the other address family"}},
		"another family, not link-local": {[]string{"192.168.5.0/26 via 2001:db8:1::fe"},
			[]string{"no: its next hop is of the other address family"}},
		"IPv6 by IPv4": {[]string{"2001:db8:9::/48 via 10.0.0.254 from fe80::1%eth0"},
			[]string{"no: its next hop is of the other address family"}},
		"a zone of what is no link-local": {[]string{"192.168.5.0/26 via 2001:db8:1::fe%eth0 from fe80::1%eth0"},
			[]string{"no: its next hop is in no subnet"}},
		"this node": {[]string{"192.168.5.0/26 via fe80::a%eth0 from fe80::1%eth0"},
			[]string{"no: its next hop fe80::a%eth0 is this node itself"}},
		"this node, outside": {[]string{"172.20.0.0/16 via fe80::a%eth0 from fe80::1%eth0"},
			[]string{"no: its next hop is this node itself"}},
		"another with this node's, elsewhere": {[]string{"192.168.5.0/26 via fe80::a%eth1 from fe80::1%eth1"},
			[]string{"192.168.5.0/26 via inet6 fe80::a dev eth1"}},
		"in a tunnel": {[]string{"192.168.5.0/26 via fe80::1%tunl0"}, []string{"no: its next hop is in no subnet"}},
		"a pod":       {[]string{"172.20.0.0/16 via fe80::1%cali123"}, []string{"no: its next hop is in no subnet"}},
		"a part of our block": {[]string{"192.168.1.32/27 via fe80::1%eth0"},
			[]string{"no: it lies in this node's own block 192.168.1.0/26"}},
		"an address stolen from us": {[]string{"192.168.1.10/32 via fe80::1%eth0"}, []string{"no: its block's record is being read"}},
		"an address of a pod here":  {[]string{"192.168.1.12/32 via fe80::1%eth0"}, []string{"no: a pod on this node"}},
		"that of no read block":     {[]string{"192.168.1.13/32 via fe80::1%eth0"}, []string{"no: a pod on this node"}},
		"services": {[]string{"10.96.0.0/12 via fe80::1%eth0"},
			[]string{"no: it lies in 10.96.0.0/12, the addresses of services"}},
		"our address": {[]string{"10.0.0.1/32 via fe80::1%eth0"}, []string{"no: it is this node's own address"}},
		"our subnet": {[]string{"10.1.0.0/24 via fe80::1%eth0"},
			[]string{"no: this node is in the subnet 10.1.0.0/24 itself, by eth1"}},
		"link-local addresses": {[]string{"fe80::/64 via fe80::1%eth0"}, []string{"no: no router has a way"}},
		// a missing link shows when the route is made
		"a link that the host does not have": {[]string{"192.168.5.0/26 via fe80::1%eth9 from fe80::2%eth9"},
			[]string{"192.168.5.0/26 via inet6 fe80::1 dev eth9"}},
		"an address of a node": {[]string{"10.9.0.9/32 via fe80::1%eth0"},
			[]string{"10.9.0.9/32 via inet6 fe80::1 dev eth0 metric 1024"}},
		"a peer with a gateway of the operator": {[]string{"10.255.0.1/32 via fe80::1%eth1"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := unnumbered(t, nil)
			s.Self.Pods = []netip.Addr{addr("192.168.1.12"), addr("192.168.1.13")}
			borrowed := map[Claim]Verdict{
				{addr("192.168.1.9"), "node1", true}: {Confirmed: true}, {addr("192.168.1.12"), "node1", true}: {Confirmed: true},
			}
			got := outcome(s, borrowed, learn(tc.learned...))
			if !slices.EqualFunc(got, tc.want, strings.HasPrefix) {
				t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

// TestLinkLocalIsNoTunnel: whatever a pool's encapsulation is or was, a router at a link-local address is no end of a
// tunnel.
func TestLinkLocalIsNoTunnel(t *testing.T) {
	for _, mode := range []func(*api.IPPoolSpec){
		func(p *api.IPPoolSpec) { p.IPIPMode = api.EncapAlways },
		func(p *api.IPPoolSpec) { p.IPIPMode = api.EncapCrossSubnet },
		func(p *api.IPPoolSpec) { p.VXLANMode = api.EncapAlways },
		func(p *api.IPPoolSpec) { p.VXLANMode = api.EncapCrossSubnet },
	} {
		s := unnumbered(t, pool(mode))
		s.Self.Addr6, s.Self.Link6 = prefix("2001:db8:1::1/64"), "eth1"
		want := []string{"no: the next hop is no node of the cluster, so it cannot be the end of a tunnel"}
		difftest.Want(t, "", want, outcome(s, nil, learn("192.168.5.0/26 via fe80::1%eth0"))[:1]) // node2's end of VXLAN is awaited
		for _, fresh := range []bool{true, false} {
			s := unnumbered(t, nil)
			s.Self.Addr6, s.Self.Link6 = prefix("2001:db8:1::1/64"), "eth1"
			was := unnumbered(t, pool(mode))
			s.Pools[0].Former = former{modes: was.Pools[0].modes(), fresh: fresh}
			difftest.Want(t, "of a pool that was so", []string{"192.168.5.0/26 via inet6 fe80::1 dev eth0"},
				outcome(s, nil, learn("192.168.5.0/26 via fe80::1%eth0")))
		}
	}
}
