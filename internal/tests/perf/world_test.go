package perf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/selector"
	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/nat"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

const (
	nodeMTU = 1500
	podLink = "cali0"
	port    = 7000
)

// encap is how packets pass between two nodes, as the agent programs it, without its rules.
type encap struct {
	name     string
	v6       bool
	overhead int
	program  func(ctx context.Context, n, other *node) (routes.Hop, error)
	guard    guard.Config
}

var encaps = []encap{
	{name: "routes", program: func(_ context.Context, _, other *node) (routes.Hop, error) {
		return routes.Hop{Via: other.addr, Dev: "eth0"}, nil
	}},
	{name: "routes, IPv6", v6: true, program: func(_ context.Context, _, other *node) (routes.Hop, error) {
		return routes.Hop{Via: other.addr, Dev: "eth0"}, nil
	}},
	{name: "IPIP", overhead: ipip.Overhead, guard: guard.Config{IPIP: true}, program: func(ctx context.Context, n, other *node) (routes.Hop, error) {
		err := ipip.New(n.Conn).Sync(ctx, ipip.Tunnel{MTU: nodeMTU - ipip.Overhead, Addr: n.block.Addr()})
		return routes.Hop{Via: other.addr, Dev: ipip.Device, Onlink: true}, err
	}},
	{name: "VXLAN", overhead: vxlan.Overhead4, guard: guard.Config{VXLAN: true}, program: func(ctx context.Context, n, other *node) (routes.Hop, error) {
		_, err := vxlan.New(n.Conn).Merge(ctx, vxlan.Tunnel{Local: n.addr, Parent: "eth0", MAC: n.mac(), MTU: nodeMTU - vxlan.Overhead4, Addr: n.block.Addr(),
			Peers: []vxlan.Peer{{Addr: other.block.Addr(), MAC: other.mac(), Node: other.addr}}})
		return routes.Hop{Via: other.block.Addr(), Dev: vxlan.Device4, Onlink: true}, err
	}},
}

// poolAddr is an address of the pool.
func (e encap) poolAddr(third, fourth int) netip.Addr {
	if e.v6 {
		a := netip.MustParseAddr("fd44::").As16()
		a[13], a[15] = byte(third), byte(fourth)
		return netip.AddrFrom16(a)
	}
	return netip.AddrFrom4([4]byte{10, 244, byte(third), byte(fourth)})
}

func (e encap) blockSize() int {
	if e.v6 {
		return 122
	}
	return 26
}

func (e encap) pool() netip.Prefix {
	if e.v6 {
		return netip.MustParsePrefix("fd44::/64")
	}
	return netip.MustParsePrefix("10.244.0.0/16")
}

// node is a namespace that stands for a node, with one pod.
type node struct {
	*netnstest.NS
	pod   *netnstest.NS
	addr  netip.Addr
	block netip.Prefix
	all   netip.Prefix // of its family
}

func (n *node) podAddr() netip.Addr { return n.block.Addr().Next() }

func (n *node) mac() vxlan.MAC { return vxlan.MACOf(n.addr.String(), false) }

// pair is two nodes, joined by a veth pair, whose pods reach each other.
type pair struct {
	nodes [2]*node
	encap encap
}

func newPair(t *testing.T, e encap) *pair {
	t.Helper()
	p := &pair{encap: e}
	for i := range p.nodes {
		n := &node{NS: netnstest.New(t), pod: netnstest.New(t), addr: netip.AddrFrom4([4]byte{172, 30, 0, byte(i + 1)}),
			block: netip.PrefixFrom(e.poolAddr(i+1, 0), e.blockSize()), all: netip.MustParsePrefix("0.0.0.0/0")}
		if e.v6 {
			n.addr, n.all = netip.MustParseAddr(fmt.Sprint("fd30::", i+1)), netip.MustParsePrefix("::/0")
		}
		p.nodes[i] = n
	}
	netnstest.Cable(t, p.nodes[0].NS, "eth0", p.nodes[1].NS, "eth0")
	for i, n := range p.nodes {
		n.start(t, nodeMTU-e.overhead)
		hop, err := e.program(t.Context(), n, p.nodes[1-i])
		errtest.Must(t, err)
		_, err = routes.New(n.Conn, routes.Options{}).Sync(t.Context(), []routes.Route{
			{Dst: n.block, Type: netlinkx.Unreachable}, routes.To(p.nodes[1-i].block, hop)})
		errtest.Must(t, err)
	}
	return p
}

// start configures the node's address and its pod, as the plugin does.
func (n *node) start(t *testing.T, podMTU int) {
	t.Helper()
	bits := 24
	if n.addr.Is6() {
		bits = 64
	}
	n.Addr(t, "eth0", netip.PrefixFrom(n.addr, bits).String())
	n.Route(t, n.all.String(), "", "eth0") // proxy ARP answers for a pod's gateway only with a route to it
	n.Within(t, func() error {
		err := errors.Join(sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1"),
			sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv6", "conf", "all", "forwarding"}, "1"))
		if err != nil {
			return err
		}
		_, err = podnet.Setup(t.Context(), n.wiring(podMTU))
		return err
	})
}

func (n *node) wiring(mtu int) podnet.Config {
	return podnet.Config{Netns: n.pod.Path(), IfName: "eth0", HostVeth: podLink, Addresses: []netip.Addr{n.podAddr()}, MTU: mtu}
}

// addRules programs the agent's rules for a pool with natOutgoing: masquerading, and what guards the node and its tunnel.
func (p *pair) addRules(t *testing.T) {
	t.Helper()
	pool := nat.Pool{CIDR: p.encap.pool(), NATOutgoing: true}
	for i, n := range p.nodes {
		config := p.encap.guard
		config.Nodes, config.PodLinks = []netip.Addr{n.addr, p.nodes[1-i].addr}, "cali"
		n.Within(t, func() error {
			table := nft.New(nil)
			return errors.Join(nat.New(table).Sync(t.Context(), nat.Config{Pools: []nat.Pool{pool}}), guard.New(table).Sync(t.Context(), config))
		})
	}
}

// addPolicies programs so many policies for ingress of the second node's pod. Each allows three ports from one other pod; the last one allows
// what is measured.
func (p *pair) addPolicies(t *testing.T, count int) {
	t.Helper()
	from, to := p.nodes[0], p.nodes[1]
	key := policy.PodKey{Namespace: "default", Name: "to"}
	s := policy.State{Local: map[string]policy.PodKey{podLink: key}, Pods: map[policy.PodKey]*policy.Pod{}, Namespaces: map[string]map[string]string{"default": {}}}
	s.Pods[key] = &policy.Pod{PodKey: key, UID: "to", Labels: map[string]string{"role": "to"}, Addresses: []netip.Addr{to.podAddr()}}
	for i := range count {
		group := fmt.Sprint("from-", i)
		peer := policy.PodKey{Namespace: "default", Name: group}
		addr := p.encap.poolAddr(128+i>>8, i)
		if i == count-1 {
			addr = from.podAddr()
		}
		s.Pods[peer] = &policy.Pod{PodKey: peer, UID: group, Labels: map[string]string{"role": group}, Addresses: []netip.Addr{addr}}
		s.Policies = append(s.Policies, allow(t, i, group, port-6*(count-1-i)))
	}
	e := netpol.New(to.Namespace, "cali")
	t.Cleanup(e.Close)
	if _, err := e.Sync(t.Context(), &policy.Compile(s).Ruleset, nil); err != nil && !errors.Is(err, netpol.ErrNoLog) {
		t.Fatal(err)
	}
}

func allow(t *testing.T, i int, group string, first int) policy.Policy {
	t.Helper()
	peer := selected(t, group)
	var ports []policy.Port
	for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		for _, more := range []int{0, 2, 4} {
			n := uint16(first + more)
			ports = append(ports, policy.Port{Protocol: protocol, First: n, Last: n})
		}
	}
	return policy.Policy{
		ID: policy.ID{Kind: "NetworkPolicy", Namespace: "default", Name: fmt.Sprint("allow-", i)}, Tier: policy.TierDefault,
		Subject: selected(t, "to"), Applies: [2]bool{policy.Ingress: true},
		Rules: [2][]policy.Rule{policy.Ingress: {{Peers: []policy.Peer{{Pods: &peer}}, Ports: ports}}},
	}
}

// selected are the pods of a role.
func selected(t *testing.T, role string) policy.Pods {
	t.Helper()
	s, err := selector.FromLabels(api.LabelSelector{MatchLabels: map[string]string{"role": role}})
	errtest.Must(t, err)
	return policy.Pods{Namespace: "default", Labels: s}
}
