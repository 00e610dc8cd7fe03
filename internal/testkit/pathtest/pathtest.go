// Package pathtest makes pairs of nodes, which are network namespaces joined by a veth pair, with a pod each, for measurements of what a path between
// pods costs. Links, routes and rules are those of the plugin and the agent. Namespaces end with the process.
package pathtest

import (
	"context"
	"errors"
	"net/netip"

	"github.com/tortie-net/tortie/internal/kernel/flowtable"
	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/hostsysctl"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/nat"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

const nodeMTU = 1500

// PodLink is the pod's link on its node, by the name that pod default/pod gives it.
var PodLink = podnet.HostVethName(podnet.DefaultVethPrefix, "default", "pod")

// Encap is how packets pass between two nodes.
type Encap struct {
	Name     string
	Overhead int  // of a packet, which the pods' MTU leaves out
	IPv6     bool // nodes and pods have IPv6 addresses, in place of IPv4
	// Program gives a node the way to the other's block.
	Program func(ctx context.Context, n, other *Node) error
	// Guard says which tunnels there are.
	Guard guard.Config
}

// The encapsulations as the agent programs them.
var (
	Routes  = Encap{Name: "routes", Program: direct}
	Routes6 = Encap{Name: "routes, IPv6", IPv6: true, Program: direct}
	IPIP    = Encap{Name: "IPIP", Overhead: ipip.Overhead, Guard: guard.Config{IPIP: true}, Program: func(ctx context.Context, n, other *Node) error {
		if err := ipip.New(n.Conn).Sync(ctx, ipip.Tunnel{MTU: nodeMTU - ipip.Overhead, Addr: n.Block.Addr()}); err != nil {
			return err
		}
		return n.route(ctx, other, routes.Hop{Via: other.Addr, Dev: ipip.Device, Onlink: true})
	}}
	VXLAN = Encap{Name: "VXLAN", Overhead: vxlan.Overhead4, Guard: guard.Config{VXLAN: true}, Program: func(ctx context.Context, n, other *Node) error {
		t := vxlan.Tunnel{Local: n.Addr, Parent: "eth0", MAC: n.MAC(), MTU: nodeMTU - vxlan.Overhead4, Addr: n.Block.Addr(),
			Peers: []vxlan.Peer{{Addr: other.Block.Addr(), MAC: other.MAC(), Node: other.Addr}}}
		if _, err := vxlan.New(n.Conn).Merge(ctx, t); err != nil {
			return err
		}
		return n.route(ctx, other, routes.Hop{Via: other.Block.Addr(), Dev: vxlan.Device4, Onlink: true})
	}}
)

// WireGuard encrypts between the nodes, whose pods' network knows nothing of pods.
var WireGuard = Encap{Name: "WireGuard", Overhead: wireguard.Overhead4, Guard: guard.Config{WireGuardPorts: []uint16{wireguard.DefaultPort4}}, Program: encrypt}

func encrypt(ctx context.Context, n, other *Node) error {
	var devices [2]wireguard.Device
	var keys [2]wireguard.Key
	for i, node := range []*Node{n, other} {
		devices[i] = wireguard.Device{Port: wireguard.DefaultPort4, MTU: nodeMTU - wireguard.Overhead4, Addr: node.Block.Addr()}
		state, err := wireguard.New(node.Conn, routes.DefaultProtocol, nil).Merge(ctx, devices[i])
		if err != nil {
			return err
		}
		keys[i] = state.Public
	}
	s, d := wireguard.New(n.Conn, routes.DefaultProtocol, nil), devices[0]
	d.Peers = []wireguard.Peer{{Key: keys[1], Endpoint: netip.AddrPortFrom(other.Addr, wireguard.DefaultPort4), Allowed: []netip.Prefix{netip.PrefixFrom(other.Addr, 32), other.Block}}}
	err := s.Peers(ctx, d)
	way := []routes.Route{routes.To(other.Block, routes.Hop{Dev: wireguard.Device4})}
	_, failed := routes.New(n.Conn, routes.Options{}).Sync(ctx, []routes.Route{{Dst: n.Block, Type: netlinkx.Unreachable}})
	return errors.Join(err, failed, s.Routes(ctx, false, way, true, routes.Predecessors{}), s.Lead(ctx, false, wireguard.DefaultPriority))
}

func direct(ctx context.Context, n, other *Node) error {
	return n.route(ctx, other, routes.Hop{Via: other.Addr, Dev: "eth0"})
}

// Node is a namespace that stands for a node, with one pod.
type Node struct {
	NS, Pod *netlinkx.Namespace
	Conn    *netlinkx.Conn
	Addr    netip.Addr
	Block   netip.Prefix
}

// PodAddr is the pod's address.
func (n *Node) PodAddr() netip.Addr { return n.Block.Addr().Next() }

// MAC is that of the node's VXLAN device.
func (n *Node) MAC() vxlan.MAC { return vxlan.MACOf(n.Addr.String(), false) }

// Pair is two nodes whose pods reach each other.
type Pair struct {
	Nodes [2]*Node
	Encap Encap
}

// New makes a pair.
func New(ctx context.Context, e Encap) (p *Pair, err error) {
	p = &Pair{Encap: e}
	for i := range p.Nodes {
		if p.Nodes[i], err = e.newNode(i + 1); err != nil {
			return nil, err
		}
	}
	cable := netlinkx.Veth{Name: "eth0", PeerName: "eth0", PeerNamespace: p.Nodes[1].NS, MTU: nodeMTU, TxQueueLen: 1000, PeerTxQueueLen: 1000}
	if err := p.Nodes[0].Conn.AddVeth(cable); err != nil {
		return nil, err
	}
	for i, n := range p.Nodes {
		if err := n.start(ctx, nodeMTU-e.Overhead); err != nil {
			return nil, err
		}
		if err := e.Program(ctx, n, p.Nodes[1-i]); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (e Encap) newNode(number int) (n *Node, err error) {
	n = &Node{Addr: netip.AddrFrom4([4]byte{172, 30, 0, byte(number)}), Block: netip.PrefixFrom(e.PoolAddr(number, 0), 26)}
	if e.IPv6 {
		n.Addr, n.Block = netip.AddrFrom16([16]byte{0xfd, 0x30, 15: byte(number)}), netip.PrefixFrom(e.PoolAddr(number, 0), 122)
	}
	for _, ns := range []**netlinkx.Namespace{&n.NS, &n.Pod} {
		if *ns, err = netnstest.NewNamespace(); err != nil {
			return nil, err
		}
	}
	n.Conn, err = netlinkx.OpenAt(n.NS)
	return n, err
}

// Pool is the one pool.
func (e Encap) Pool() netip.Prefix {
	if e.IPv6 {
		return netip.PrefixFrom(e.PoolAddr(0, 0), 64)
	}
	return netip.PrefixFrom(e.PoolAddr(0, 0), 16)
}

// PoolAddr is an address of the pool: of a place in the block, or rather the 256 addresses, with a number.
func (e Encap) PoolAddr(number, place int) netip.Addr {
	if e.IPv6 {
		return netip.AddrFrom16([16]byte{0xfd, 0x44, 13: byte(number), 15: byte(place)})
	}
	return netip.AddrFrom4([4]byte{10, 244, byte(number), byte(place)})
}

// start configures the node's address and its pod, as the plugin does.
func (n *Node) start(ctx context.Context, podMTU int) error {
	bits, all := 24, netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if n.Addr.Is6() {
		bits, all = 64, netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	set := func(value string, key ...string) error { return sysctl.DefaultRoot.Set(sysctl.Key(key), value) }
	err := n.NS.Do(func() error {
		return errors.Join(set("1", "net", "ipv4", "ip_forward"), set("1", "net", "ipv6", "conf", "all", "forwarding"),
			set("0", "net", "ipv6", "conf", "eth0", "accept_dad"))
	})
	for _, name := range []string{"lo", "eth0"} {
		link, e := n.Conn.LinkByName(name)
		if err = errors.Join(err, e); err == nil {
			err = n.Conn.SetUp(link.Index)
		}
		if err == nil && name == "eth0" { // proxy ARP answers for a pod's gateway only with a route to it
			err = errors.Join(n.Conn.AddUniqueAddr(link.Index, netip.PrefixFrom(n.Addr, bits)),
				n.Conn.AddRoute(netlinkx.Route{Dst: all, Scope: netlinkx.ScopeLink, Dev: link.Index}))
		}
	}
	if err != nil {
		return err
	}
	return n.NS.Do(func() error {
		_, err := podnet.Setup(ctx, podnet.Config{Netns: n.Pod.Path(), IfName: "eth0", HostVeth: PodLink, Addresses: []netip.Addr{n.PodAddr()}, MTU: podMTU})
		return err
	})
}

func (n *Node) route(ctx context.Context, other *Node, hop routes.Hop) error {
	_, err := routes.New(n.Conn, routes.Options{}).Sync(ctx, []routes.Route{{Dst: n.Block, Type: netlinkx.Unreachable}, routes.To(other.Block, hop)})
	return err
}

// AddRules programs the agent's rules for a pool with natOutgoing: masquerading, and what guards the node and its tunnel.
func (p *Pair) AddRules(ctx context.Context) error {
	pool := nat.Pool{CIDR: p.Encap.Pool(), NATOutgoing: true}
	for i, n := range p.Nodes {
		config := p.Encap.Guard
		config.Nodes, config.PodLinks = []netip.Addr{n.Addr, p.Nodes[1-i].Addr}, "cali"
		err := n.NS.Do(func() error {
			table := nft.New(nil)
			return errors.Join(nat.New(table).Sync(ctx, nat.Config{Pools: []nat.Pool{pool}}), guard.New(table).Sync(ctx, config))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Track has the kernel track and translate connections, as it does for kube-proxy on every node of a cluster, until it is called without.
func (p *Pair) Track(ctx context.Context, with bool) error {
	part := nft.Part{Prefixes: []string{"proxy-"}, Former: []string{"proxy-forward", "proxy-prerouting", "proxy-postrouting"}}
	if with {
		never := nft.NewRule("", nft.Invalid.In(), nft.Do(nft.Drop))
		part.Chains = []nft.Chain{
			{Name: "proxy-forward", Hook: &nft.Hook{Type: nft.Filter, Number: nft.Forward}, Rules: []nft.Rule{never}},
			{Name: "proxy-prerouting", Hook: &nft.Hook{Type: nft.NAT, Number: nft.Prerouting, Priority: -nft.PrioritySNAT}, Rules: []nft.Rule{never}},
			{Name: "proxy-postrouting", Hook: &nft.Hook{Type: nft.NAT, Number: nft.Postrouting, Priority: nft.PrioritySNAT}, Rules: []nft.Rule{never}},
		}
	}
	for _, n := range p.Nodes {
		if _, err := nft.New(n.NS).Sync(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// Other is the other node than n.
func (p *Pair) Other(n *Node) *Node {
	if n == p.Nodes[0] {
		return p.Nodes[1]
	}
	return p.Nodes[0]
}

// AddFlowtable has established connections pass from device to device, as the agent does where the kernel gains by it; added is false where it does not.
func (p *Pair) AddFlowtable(ctx context.Context) (added bool, err error) {
	for _, n := range p.Nodes {
		c, err := p.Flowtable(n)
		if err == nil {
			err = errors.Join(flowtable.New(n.NS).Sync(ctx, c), p.SyncPeers(ctx, n, c.Peers))
		}
		if err != nil {
			return false, err
		}
		added = len(c.Devices) > 0
	}
	return added, nil
}

// SyncPeers makes a node's devices for single nodes.
func (p *Pair) SyncPeers(ctx context.Context, n *Node, peers []ipip.Peer) error {
	links, err := n.Conn.Links()
	if err != nil {
		return err
	}
	want := ipip.Peers{Local: n.Addr, MTU: nodeMTU - ipip.Overhead}
	for _, peer := range peers {
		want.Nodes = append(want.Nodes, peer.Node)
	}
	return ipip.New(n.Conn).SyncPeers(ctx, links, want, func(devices []string) error {
		return n.NS.Do(func() error { return hostsysctl.Sync(sysctl.DefaultRoot, hostsysctl.Config{Tunnels: devices}) })
	})
}

// Flowtable is what the agent would have of a node's links in its flowtable.
func (p *Pair) Flowtable(n *Node) (flowtable.Config, error) {
	fabric := flowtable.Fabric{IPIP: p.Encap.Guard.IPIP, VXLAN: p.Encap.Guard.VXLAN, Underlay: "eth0", Kernel: flowtable.Running()}
	if !fabric.IPIP && !fabric.VXLAN {
		fabric.Uplinks = []string{"eth0"}
	}
	links, err := n.Conn.Links()
	if fabric.ByPeers(links) {
		other := p.Other(n)
		fabric.Peers = ipip.ChoosePeers(n.Addr, []ipip.Way{{Dst: n.Block}, {Dst: other.Block, Node: other.Addr}}, ipip.MaxPeers)
	}
	return flowtable.Choose(fabric, podnet.DefaultVethPrefix, links), err
}
