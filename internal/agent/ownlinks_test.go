package agent

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
)

func TestOwnLinks(t *testing.T) {
	node := netip.MustParseAddr("192.0.2.2")
	peer := netlinkx.Link{Kind: "ipip", Name: ipip.PeerDevice(node), Tunnel: netlinkx.Tunnel{Remote: node}}
	moved := peer
	moved.Peer = netlinkx.PeerElsewhere
	one := netip.MustParsePrefix("198.51.100.7/24")
	for _, c := range []struct {
		what string
		link netlinkx.Link
		addr *netlinkx.Addr
		want bool
	}{
		{"the node's address is on it", netlinkx.Link{Name: "eth0", Kind: "veth"}, nil, true},
		{"the node's address is on it, the peer elsewhere", netlinkx.Link{Name: "eth0", Kind: "veth", Peer: netlinkx.PeerElsewhere}, nil, true},
		{"with an address, the peer elsewhere", netlinkx.Link{Name: "eth1", Kind: "veth", Peer: netlinkx.PeerElsewhere},
			&netlinkx.Addr{Prefix: one}, true},
		{"a VLAN with an address, on a link of another namespace", netlinkx.Link{Name: "vlan9", Kind: "vlan", Peer: netlinkx.PeerElsewhere},
			&netlinkx.Addr{Prefix: one}, false},
		{"a tunnel with an address", netlinkx.Link{Name: "vxlan.calico", Kind: "vxlan", Peer: netlinkx.PeerHere},
			&netlinkx.Addr{Prefix: one}, true},
		{"a tunnel with an address, of another namespace", netlinkx.Link{Name: "vxlan.calico", Kind: "vxlan", Peer: netlinkx.PeerElsewhere},
			&netlinkx.Addr{Prefix: one}, false},
		{"a tunnel with an address, of a namespace that ends", netlinkx.Link{Name: "vxlan.calico", Kind: "vxlan", Peer: netlinkx.PeerGone},
			&netlinkx.Addr{Prefix: one}, false},
		{"hardware", netlinkx.Link{Name: "eth1", Kind: "device"}, nil, true},
		{"with an address", netlinkx.Link{Name: "vlan9", Kind: "vlan"}, &netlinkx.Addr{Prefix: one}, true},
		{"of a pod", netlinkx.Link{Name: "x0", Kind: "veth"}, nil, false},
		{"with an address that the kernel makes", netlinkx.Link{Name: "x0", Kind: "veth"},
			&netlinkx.Addr{Prefix: netip.MustParsePrefix("fe80::1/64")}, false},
		{"with an address of a router's", netlinkx.Link{Name: "x0", Kind: "veth"},
			&netlinkx.Addr{Prefix: netip.MustParsePrefix("2001:db8::1/64"), Ending: true}, false},
		{"a bridge with an address, which a pod's link can join", netlinkx.Link{Name: "docker0", Kind: "bridge"},
			&netlinkx.Addr{Prefix: one}, false},
		{"a bridge of hardware", netlinkx.Link{Name: "br0", Kind: "bridge", Index: 90}, nil, true},
		{"a VRF", netlinkx.Link{Name: "red", Kind: "vrf"}, nil, true},
		{"of a tunnel's peer", peer, nil, true},
		{"of a tunnel's peer, of another namespace", moved, nil, false},
		{"called like a tunnel's peer", netlinkx.Link{Name: peer.Name, Kind: "veth"}, nil, false},
		{"named by a BGPPeer", netlinkx.Link{Name: "up0", Kind: "veth"}, nil, true},
		{"WireGuard's next, while it is off", netlinkx.Link{Name: wireguard.Second4, Kind: "wireguard"}, nil, false},
		{"another tunnel", netlinkx.Link{Name: "t0", Kind: "ipip"}, nil, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			if c.link.Index == 0 {
				c.link.Index = 7
			}
			links := []netlinkx.Link{{Name: "cali1", Kind: "veth", Index: 5}, c.link, {Name: "eth9", Kind: "device", Index: 91, Master: 90}}
			var addrs []netlinkx.Addr
			if c.addr != nil {
				c.addr.Link = c.link.Index
				addrs = append(addrs, *c.addr)
			}
			s := desired.Snapshot{Self: desired.Self{Link: "eth0", Addr: one}, Pools: []desired.Pool{{
				Pool: ipam.Pool{CIDR: netip.MustParsePrefix("10.0.0.0/8")}, IPIP: api.EncapAlways, VXLAN: api.EncapNever,
			}}}
			s.Peering.Peers = []bgp.Peer{{Addr: netip.MustParseAddr("fe80::1%up0")}}
			if got := ownLinks(&s, links, addrs); slices.Contains(got, c.link.Index) != c.want || slices.Contains(got, 5) {
				t.Errorf("own links %v", got)
			}
		})
	}
}
