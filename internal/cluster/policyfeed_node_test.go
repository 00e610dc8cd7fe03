package cluster

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// A node's own packets to pods of other nodes come from any of these addresses, so a peer that selects nodes has to
// know them all.
func TestNodesAsPoliciesSeeThem(t *testing.T) {
	const tunnels = `"projectcalico.org/IPv4IPIPTunnelAddr":"10.0.4.1","projectcalico.org/IPv4VXLANTunnelAddr":"10.0.4.2",
		"projectcalico.org/IPv6VXLANTunnelAddr":"fd00::4:2","projectcalico.org/IPv4WireguardInterfaceAddr":"10.0.4.3",
		"projectcalico.org/IPv6WireguardInterfaceAddr":"fd00::4:3"`
	const status = `{"addresses":[{"type":"InternalIP","address":"192.0.2.1"},{"type":"Hostname","address":"n"}]}`
	for name, c := range map[string]struct{ annotations, want string }{
		"no tunnels":  {"", "[192.0.2.1]"},
		"all tunnels": {tunnels, "[10.0.4.1 10.0.4.2 10.0.4.3 192.0.2.1 fd00::4:2 fd00::4:3]"},
		"WireGuard":   {`"projectcalico.org/IPv4WireguardInterfaceAddr":"10.0.4.3"`, "[10.0.4.3 192.0.2.1]"},
	} {
		var n policyNode
		errtest.Must(t, json.Unmarshal([]byte(`{"metadata":{"name":"n","annotations":{`+c.annotations+`}},"status":`+status+`}`), &n))
		node, problems := n.on(ground{"10.0.4.0/24": "n", "fd00::4:0/112": "n"})
		if len(problems) > 0 {
			t.Error(problems)
		}
		difftest.Want(t, name, c.want, fmt.Sprint(node.Addresses))
	}
}
