package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Encap is an encapsulation between the nodes: the chart's values, and the steps that show it with their expectations.
type Encap struct {
	// values are options of helm install in addition to the image's.
	values string
	// device is the tunnel device, and mtu the MTU of it and of the pods.
	device string
	mtu    int
	// handle is the prefix of the handle of a node's tunnel address.
	handle string
	// pool are lines of the IPPool.
	pool []string
	// printed is the text of `kubectl get ippools` below IPIP.
	printed string

	routes, wire step
}

// IPIP needs the kernel's module ipip.
var IPIP = &Encap{
	device: "tunl0", mtu: 1480, handle: "ipip-tunnel-addr-", pool: []string{"ipipMode: Always", "vxlanMode: Never"}, printed: "Always",
	routes: step{"Routes to the other nodes' blocks",
		"What the peers have announced is in the kernel: one route for each block, through the tunnel device, to the node that owns it.",
		(*Demo).ipipRoutes},
	wire: step{"IPIP on the wire",
		"One tunnel device for all peers. On node2's interface the pod's packets arrive inside packets from node to node, of IP protocol 4.",
		(*Demo).ipipWire},
}

// VXLAN is available in every kernel that Tortie supports.
var VXLAN = &Encap{
	values: ",ipPool.ipipMode=Never,ipPool.vxlanMode=Always",
	device: "vxlan.calico", mtu: 1450, handle: "vxlan-tunnel-addr-", pool: []string{"ipipMode: Never", "vxlanMode: Always"}, printed: "Never",
	routes: step{"Routes to the other nodes' blocks",
		`Each node has noted on its Node object where its end of the tunnel is. What affinities say is in the kernel: one route for each block,
through the tunnel device, to the end of the node that owns it. The blocks of a pool with VXLAN wait for no peer.`,
		(*Demo).vxlanRoutes},
	wire: step{"VXLAN on the wire",
		`One tunnel device for all peers. It learns nothing: the agent has written down which MAC the other ends have, and to which nodes
frames for these go. On node2's interface the pod's packets arrive inside packets from node to node, of UDP port 4789.`,
		(*Demo).vxlanWire},
}

// others returns the nodes except one.
func others(node string) []string {
	var names []string
	for _, n := range Nodes {
		if n != node {
			names = append(names, n)
		}
	}
	return names
}

func (d *Demo) ipipRoutes(ctx context.Context) error { return d.routes(ctx, d.facts.addresses) }

// vxlanRoutes reads the other tunnel addresses from the Nodes' annotations, like all agents.
func (d *Demo) vxlanRoutes(ctx context.Context) error {
	out, err := d.kubectl(ctx,
		`kubectl get nodes --no-headers -o custom-columns='NODE:.metadata.name,END:.metadata.annotations.projectcalico\.org/IPv4VXLANTunnelAddr'`)
	if err != nil {
		return err
	}
	d.facts.ends = columns(out)
	var errs []error
	for _, n := range Nodes {
		errs = append(errs, firstOf(d.facts.ends[n], d.facts.blocks[n]))
	}
	return errors.Join(append(errs, d.routes(ctx, d.facts.ends))...)
}

// firstOf returns an error unless addr is the first address of a block.
func firstOf(addr, block string) error {
	p, err := netip.ParsePrefix(block)
	if err != nil {
		return err
	}
	if addr != p.Addr().String() {
		return fmt.Errorf("%q is not the first address of the node's block %s", addr, block)
	}
	return nil
}

// routes expects one route through the tunnel device for each block of another node, via that node's gateway.
func (d *Demo) routes(ctx context.Context, gateways map[string]string) error {
	var errs []error
	for _, n := range Nodes {
		out, err := d.node(ctx, n, "ip route | grep "+d.Encap.device)
		if err != nil {
			return err
		}
		errs = append(errs, expectLines(out, len(Nodes)-1, quote(d.Encap.device)))
		for _, other := range others(n) {
			errs = append(errs,
				expect(out, `^`+quote(d.facts.blocks[other])+` via `+quote(gateways[other])+` dev `+quote(d.Encap.device)+` .*onlink`))
		}
	}
	return errors.Join(errs...)
}

func (d *Demo) ipipWire(ctx context.Context) error {
	link, err := d.node(ctx, "node1", "ip -d link show tunl0 | head -3 | sed -E 's, (mode|addrgenmode) .*,,'")
	if err != nil {
		return err
	}
	wire, counters, err := d.capture(ctx, "ip proto 4")
	if err != nil {
		return err
	}
	return errors.Join(
		expect(link, `^\d+: tunl0@NONE: <NOARP,UP,LOWER_UP> mtu 1480 `, `ipip any remote any local any`),
		expect(wire, `^IP `+d.outer("", "")+`: IP \S+ > `+quote(d.facts.pod2IP)+`: ICMP echo request`),
		expectLines(wire, captured, `: IP \S+ > \S+: ICMP echo re(quest|ply)`),
		counted(counters))
}

// vxlanWire reads two lines for each packet: for the outer and the inner one.
func (d *Demo) vxlanWire(ctx context.Context) error {
	link, err := d.node(ctx, "node1", "ip -d link show vxlan.calico | head -3 | sed -E 's, (mode|addrgenmode) .*,,'")
	if err != nil {
		return err
	}
	neighbours, err := d.node(ctx, "node1", "ip neigh show dev vxlan.calico")
	if err != nil {
		return err
	}
	forwarding, err := d.node(ctx, "node1", "bridge fdb show dev vxlan.calico")
	if err != nil {
		return err
	}
	wire, counters, err := d.capture(ctx, "udp port 4789")
	if err != nil {
		return err
	}
	return errors.Join(
		expect(link, `^\d+: vxlan\.calico: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1450 `,
			`vxlan id 4096 local `+quote(d.facts.addresses["node1"])+` dev eth0 .*dstport 4789 nolearning`),
		d.expectEnds(neighbours, forwarding),
		expect(wire,
			`^IP `+d.outer(`\.\d+`, `\.4789`)+`: VXLAN, flags \[I\] \(0x08\), vni 4096\nIP \S+ > `+quote(d.facts.pod2IP)+`: ICMP echo request`),
		expectLines(wire, captured, `^IP \S+ > \S+\.4789: VXLAN,`),
		expectLines(wire, captured, `^IP \S+ > \S+: ICMP echo re(quest|ply)`), counted(counters))
}

// expectEnds checks that node1 knows the MAC of each other tunnel endpoint, and that frames to it go to that node.
func (d *Demo) expectEnds(neighbours, forwarding string) error {
	errs := []error{expectLines(neighbours, len(Nodes)-1, `.`), expectLines(forwarding, len(Nodes)-1, ` dst `)}
	for _, n := range others("node1") {
		errs = append(errs, expect(neighbours, `^`+quote(d.facts.ends[n])+` lladdr \S+ PERMANENT`))
		for line := range strings.Lines(neighbours) {
			if f := strings.Fields(line); len(f) > 2 && f[0] == d.facts.ends[n] {
				errs = append(errs, expect(forwarding, `^`+quote(f[2])+` dst `+quote(d.facts.addresses[n])+` self permanent`))
			}
		}
	}
	return errors.Join(errs...)
}

// captured is the number of captured packets: requests and replies.
const captured = 4

// capture captures on the interface of node2 while the debug pod pings, and then reads the tunnel's counters.
func (d *Demo) capture(ctx context.Context, filter string) (wire, counters string, err error) {
	ping := "kubectl exec debug -- ping -q -c 60 -i 0.5 " + d.facts.pod2IP
	d.show("$ " + ping + " &")
	stop := d.background(ctx, ping)
	wire, err = d.node(ctx, "node2", fmt.Sprintf("tcpdump -nn -t -c %d -i eth0 '%s' 2>/dev/null", captured, filter))
	if pingErr := stop(); err != nil {
		return "", "", errors.Join(err, pingErr)
	}
	counters, err = d.node(ctx, "node2", "ip -s link show "+d.Encap.device+" | tail -4")
	return wire, counters, err
}

// outer returns tcpdump's text for the direction from node1 to node2; ports are patterns.
func (d *Demo) outer(from, to string) string {
	return quote(d.facts.addresses["node1"]) + from + " > " + quote(d.facts.addresses["node2"]) + to
}

// counted checks for some tens of bytes and packets.
func counted(counters string) error { return expect(counters, `^\s+[1-9]\d+\s+[1-9]\d+`) }
