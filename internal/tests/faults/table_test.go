package faults

import "github.com/tortie-net/tortie/internal/agent/nodestatus"

// firewall is a table of another program on node2.
func firewall(hook, rule string) []step {
	return []step{{"node2", `nft "add table inet hostfw; add chain inet hostfw c { type filter hook ` + hook + `; }` + rule + `"`}}
}

var noFirewall = []step{{"node2", "nft delete table inet hostfw"}}

// faults are numbered as when they were first looked for. 15, a clock that steps, cannot be made: nodes of a lab share the machine's.
var faults = []fault{
	{
		number: "1", what: "ip_forward is 0", traffic: short,
		inject: []step{{"node2", "sysctl -w net.ipv4.ip_forward=0"}},
		told:   []told{event{"Node", "node2", "Repaired", "net.ipv4.ip_forward was 0, set to 1"}},
	},
	{
		number: "2", what: "a firewall of the host drops VXLAN", traffic: cut, checks: []string{"peer-vxlan", "peer-path"},
		inject: firewall("input priority -10", "; add rule inet hostfw c udp dport 4789 drop"), undo: noFirewall,
		told: []told{
			event{"Node", "node2", "PathDown", "node2 is not reached by pods of node1 (VXLAN, since ...: see on node2 that firewalls let VXLAN pass, UDP port 4789"},
			line{"node1", "Paths ... pods do not reach node2 (VXLAN)"},
			finding{"node1", "peer-vxlan", nodestatus.Problem, "VXLAN is dropped", "allow UDP port 4789 between the nodes in firewalls and security groups"},
			finding{"node2", "peer-vxlan", nodestatus.Problem, "VXLAN is dropped", "allow UDP port 4789 between the nodes in firewalls and security groups"},
		},
	},
	{
		number: "3", what: "the tunnel's device is deleted", traffic: short,
		inject: []step{{"node1", "ip link delete vxlan.calico"}},
		told:   []told{event{"Node", "node1", "Repaired", "link vxlan.calico was missing, made again"}},
	},
}
