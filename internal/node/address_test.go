package node

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/netlinkx"
)

func TestChooseAddress(t *testing.T) {
	links := []netlinkx.Link{{Index: 1, Name: "lo", MTU: 65536}, {Index: 2, Name: "eth0", MTU: 1500}, {Index: 3, Name: "bond0", MTU: 9000}}
	addrs := []netlinkx.Addr{
		{Prefix: prefix("127.0.0.1/8"), Link: 1}, {Prefix: prefix("10.0.0.5/24"), Link: 2}, {Prefix: prefix("172.16.0.5/20"), Link: 3},
	}
	node := func(addresses ...api.NodeAddress) *api.Node {
		return &api.Node{Meta: api.Meta{Name: "n"}, Status: api.NodeStatus{Addresses: addresses}}
	}
	internal := node(
		api.NodeAddress{Type: "Hostname", Address: "n"},
		api.NodeAddress{Type: "InternalIP", Address: "fd00::5"},
		api.NodeAddress{Type: "InternalIP", Address: "10.0.0.5"},
		api.NodeAddress{Type: "InternalIP", Address: "172.16.0.5"},
	)
	for name, tc := range map[string]struct {
		configured netip.Prefix
		node       *api.Node
		want       NodeAddress
		err        string
	}{
		"the first IPv4 InternalIP":       {node: internal, want: NodeAddress{prefix("10.0.0.5/24"), "InternalIP of node n", "eth0", 1500}},
		"a configured address":            {prefix("172.16.0.5/32"), internal, NodeAddress{prefix("172.16.0.5/20"), "environment variable IP", "bond0", 9000}, ""},
		"a configured address and subnet": {prefix("172.16.0.5/24"), internal, NodeAddress{prefix("172.16.0.5/24"), "environment variable IP", "bond0", 9000}, ""},
		"an address of another host":      {prefix("10.0.0.6/32"), internal, NodeAddress{}, "10.0.0.6 (environment variable IP) is on no interface of this host, which has 127.0.0.1/8, 10.0.0.5/24"},
		"no InternalIP":                   {node: node(api.NodeAddress{Type: "ExternalIP", Address: "10.0.0.5"}), err: "no IPv4 InternalIP"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := chooseAddress(tc.configured, tc.node, links, addrs)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want one with %q", err, tc.err)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Errorf("got %+v, %v; want %+v", got, err, tc.want)
			}
		})
	}
}
