// Package pathtest makes two nodes, which are network namespaces joined by a veth pair, or three on a bridge, with a
// pod each, to measure the cost of a path between pods. Links, routes and rules are the plugin's and the agent's.
// Namespaces end with the process.
package pathtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

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

// Program makes a node's routes to other nodes' blocks.
type Program func(ctx context.Context, n *Node, others ...*Node) error

// Encap is the encapsulation of packets between two nodes.
type Encap struct {
	Name     string
	Overhead int  // of a packet, which the pods' MTU leaves out
	IPv6     bool // nodes and pods have IPv6 addresses, in place of IPv4
	Program  Program
	// Guard lists the tunnels.
	Guard guard.Config
}

// The encapsulations as the agent programs them.
var (
	Routes  = Encap{Name: "routes", Program: direct}
	Routes6 = Encap{Name: "routes, IPv6", IPv6: true, Program: direct}
	IPIP    = Encap{Name: "IPIP", Overhead: ipip.Overhead, Guard: guard.Config{IPIP: true}, Program: throughIPIP}
	VXLAN   = Encap{Name: "VXLAN", Overhead: vxlan.Overhead4, Guard: guard.Config{VXLAN: true}, Program: throughVXLAN}
	VXLAN6  = Encap{Name: "VXLAN, IPv6", Overhead: vxlan.Overhead6, IPv6: true, Guard: guard.Config{VXLAN: true}, Program: throughVXLAN}
)

func throughIPIP(ctx context.Context, n *Node, others ...*Node) error {
	if _, err := ipip.New(n.Conn).Sync(ctx, ipip.Tunnel{MTU: nodeMTU - ipip.Overhead, Addr: n.Block.Addr()}); err != nil {
		return err
	}
	return n.route(ctx, others, func(o *Node) routes.Hop { return routes.Hop{Via: o.Addr, Dev: ipip.Device, Onlink: true} })
}

func throughVXLAN(ctx context.Context, n *Node, others ...*Node) error {
	v6 := n.Addr.Is6()
	t := vxlan.Tunnel{Local: n.Addr, Parent: "eth0", MAC: n.MAC(), MTU: vxlan.MTU(nodeMTU, v6), Addr: n.Block.Addr()}
	for _, o := range others {
		t.Peers = append(t.Peers, vxlan.Peer{Addr: o.Block.Addr(), MAC: o.MAC(), Node: o.Addr})
	}
	if _, err := vxlan.New(n.Conn).Merge(ctx, t); err != nil {
		return err
	}
	return n.route(ctx, others, func(o *Node) routes.Hop { return routes.Hop{Via: o.Block.Addr(), Dev: vxlan.Device(v6), Onlink: true} })
}

// By hand tunnels of two nodes are made by netlink alone.
var (
	IPIPByHand  = Encap{Name: "IPIP by hand", Overhead: ipip.Overhead, Program: ipipByHand}
	VXLANByHand = Encap{Name: "VXLAN by hand", Overhead: vxlan.Overhead4, Program: vxlanByHand}
)

func ipipByHand(_ context.Context, n *Node, others ...*Node) error {
	link, err := n.Conn.LinkByName("tunl0")
	if err != nil {
		return err
	}
	return errors.Join(n.Conn.SetMTU(link.Index, nodeMTU-ipip.Overhead),
		n.tunnelByHand(link, netlinkx.Route{Dst: others[0].Block, Via: others[0].Addr}))
}

func vxlanByHand(_ context.Context, n *Node, others ...*Node) error {
	const name = "vxlan.calico"
	other := others[0]
	parent, err := n.Conn.LinkByName("eth0")
	if err == nil {
		device := netlinkx.VXLAN{ID: vxlan.DefaultVNI, Port: vxlan.DefaultPort, Local: n.Addr, Parent: parent.Index}
		err = n.Conn.AddVXLAN(name, n.MAC(), vxlan.MTU(nodeMTU, false), device)
	}
	if err != nil {
		return err
	}
	link, err := n.Conn.LinkByName(name)
	if err != nil {
		return err
	}
	err = n.tunnelByHand(link, netlinkx.Route{Dst: other.Block, Via: other.Block.Addr()})
	return errors.Join(append(n.Conn.AddNeighbours([]netlinkx.Neighbour{
		{Link: link.Index, Addr: other.Block.Addr(), MAC: other.MAC(), Permanent: true},
		{Link: link.Index, Forward: true, Addr: other.Addr, MAC: other.MAC(), Permanent: true},
	}), err)...)
}

func (n *Node) tunnelByHand(link netlinkx.Link, r netlinkx.Route) error {
	r.Dev, r.Onlink = link.Index, true
	addr := n.Conn.AddUniqueAddr(link.Index, netip.PrefixFrom(n.Block.Addr(), n.Block.Addr().BitLen()))
	return errors.Join(addr, n.Conn.SetUp(link.Index), n.Conn.AddRoute(r))
}

// WireGuard encrypts between the nodes; the network between them has no routes to pods.
var (
	WireGuard  = encrypted("WireGuard", false, encrypt)
	WireGuard6 = encrypted("WireGuard, IPv6", true, encrypt)
)

// WireGuard by hand is made only by netlink: a device, its peers, and routes. The routes are in the main table, or in
// another one, to which a rule leads all packets except the device's own, as wg-quick and Calico make it.
var (
	WireGuardByHand  = encrypted("WireGuard by hand", false, byHand(0))
	WireGuardByHand6 = encrypted("WireGuard by hand, IPv6", true, byHand(0))
	WireGuardByRule  = encrypted("WireGuard by hand and rule", false, byHand(quickMark))
	WireGuardByRule6 = encrypted("WireGuard by hand and rule, IPv6", true, byHand(quickMark))
)

// quickMark is the mark, and the table, that wg-quick tries first.
const quickMark = 51820

func encrypted(name string, v6 bool, program Program) Encap {
	config := guard.Config{WireGuardPorts: []uint16{wireguardPort(v6), wireguardPort(v6) + 2}} // and a second device's
	return Encap{Name: name, Overhead: nodeMTU - wireguard.MTU(nodeMTU, v6), IPv6: v6, Guard: config, Program: program}
}

func wireguardPort(v6 bool) uint16 {
	if v6 {
		return wireguard.DefaultPort6
	}
	return wireguard.DefaultPort4
}

// device returns the agent's configuration of the node's WireGuard, without its peers.
func (n *Node) device() wireguard.Device {
	v6 := n.Addr.Is6()
	return wireguard.Device{V6: v6, Port: wireguardPort(v6), MTU: wireguard.MTU(nodeMTU, v6), Addr: n.Block.Addr()}
}

// wireGuard is the node's one Syncer, which knows the keys that it has made.
func (n *Node) wireGuard() *wireguard.Syncer {
	if n.syncer == nil {
		n.syncer = wireguard.New(n.Conn, routes.DefaultProtocol, nil)
	}
	return n.syncer
}

func encrypt(ctx context.Context, n *Node, others ...*Node) error {
	s, d := n.wireGuard(), n.device()
	_, err := s.Merge(ctx, d)
	var ways []routes.Route
	for _, o := range others {
		state, e := o.wireGuard().Merge(ctx, o.device())
		err = errors.Join(err, e)
		allowed := []netip.Prefix{netip.PrefixFrom(o.Addr, o.Addr.BitLen()), o.Block}
		d.Peers = append(d.Peers, wireguard.Peer{Key: state.Public, Endpoint: netip.AddrPortFrom(o.Addr, d.Port), Allowed: allowed})
		ways = append(ways, routes.To(o.Block, routes.Hop{Dev: wireguard.Name(d.V6)}))
	}
	if err != nil {
		return err
	}
	_, failed := routes.New(n.Conn, routes.Options{}).Sync(ctx, []routes.Route{{Dst: n.Block, Type: netlinkx.Unreachable}})
	_, err = s.Peers(ctx, d)
	return errors.Join(err, failed, s.Routes(ctx, d.V6, ways, true, routes.Predecessors{}), s.Lead(ctx, d.V6, wireguard.DefaultPriority))
}

// byHand makes WireGuard with routes in a table, and its number as the device's mark; 0: in the main table, without a
// mark.
func byHand(table uint32) Program {
	return func(_ context.Context, n *Node, others ...*Node) error {
		link, _, err := n.plainWireGuard()
		if err == nil && table != 0 {
			rule := netlinkx.Rule{Family: netlinkx.IPv4, Priority: wireguard.DefaultPriority, Table: int(table), Mark: table,
				Mask: ^uint32(0), Not: true}
			if n.Addr.Is6() {
				rule.Family = netlinkx.IPv6
			}
			err = errors.Join(n.Conn.SetWireGuardMark(link, table), n.Conn.AddRule(rule))
		}
		for _, o := range others {
			_, key, e := o.plainWireGuard()
			if err = errors.Join(err, e); err != nil {
				return err
			}
			peer := netlinkx.WireGuardPeer{Public: key, Endpoint: netip.AddrPortFrom(o.Addr, wireguardPort(o.Addr.Is6())),
				AllowedIPs: []netip.Prefix{o.Block}}
			err = errors.Join(n.Conn.ChangeWireGuardPeers(link, []netlinkx.WireGuardChange{{WireGuardPeer: peer}}),
				n.Conn.AddRoute(netlinkx.Route{Dst: o.Block, Dev: link, Scope: netlinkx.ScopeLink, Table: int(table)}))
		}
		return err
	}
}

// plainWireGuard returns the node's device by hand, which it makes if there is none, and its public key.
func (n *Node) plainWireGuard() (index int, public wireguard.Key, err error) {
	const name = "wg0"
	link, err := n.Conn.LinkByName(name)
	if netlinkx.IsNotExist(err) {
		var private wireguard.Key
		_, _ = rand.Read(private[:]) // it never fails
		if err = n.Conn.AddWireGuard(name, n.device().MTU); err == nil {
			link, err = n.Conn.LinkByName(name)
		}
		if err == nil {
			err = errors.Join(n.Conn.SetWireGuardKey(link.Index, private), n.Conn.SetWireGuardPort(link.Index, n.device().Port),
				n.Conn.SetUp(link.Index))
		}
	}
	if err != nil {
		return 0, public, err
	}
	have, err := n.Conn.WireGuard(link.Index)
	return link.Index, have.Public, err
}

// ownLinks returns the indexes of the links that the agent treats as the node's, its link to the network first.
func (n *Node) ownLinks() (indexes []int, err error) {
	uplink, err := n.Conn.LinkByName("eth0")
	if err != nil {
		return nil, err
	}
	links, err := n.Conn.Links()
	indexes = []int{uplink.Index}
	for _, l := range links {
		if l.Kind != "veth" && !l.Loopback {
			indexes = append(indexes, l.Index)
		}
	}
	return indexes, err
}

func direct(ctx context.Context, n *Node, others ...*Node) error {
	return n.route(ctx, others, func(o *Node) routes.Hop { return routes.Hop{Via: o.Addr, Dev: "eth0"} })
}

// Node is a namespace that stands for a node, with one pod.
type Node struct {
	NS, Pod *netlinkx.Namespace
	Conn    *netlinkx.Conn
	Addr    netip.Addr
	Block   netip.Prefix
	syncer  *wireguard.Syncer // nil: not needed yet
}

// PodAddr returns the pod's address.
func (n *Node) PodAddr() netip.Addr { return n.Block.Addr().Next() }

// MAC returns the MAC address of the node's VXLAN device.
func (n *Node) MAC() vxlan.MAC { return vxlan.MACOf(n.Addr.String(), n.Addr.Is6()) }

// Mesh is nodes with pods that reach each other.
type Mesh struct {
	Nodes []*Node
	Encap Encap

	guarded bool // AddRules was called
}

// New makes two nodes, joined by a veth pair.
func New(ctx context.Context, e Encap) (*Mesh, error) {
	m, err := e.newMesh(2)
	if err == nil {
		err = m.Nodes[0].Conn.AddVeth(cable(m.Nodes[1].NS, "eth0"))
	}
	if err != nil {
		return nil, err
	}
	return m, m.start(ctx)
}

// NewThree makes three nodes on a bridge, which is in a namespace of its own.
func NewThree(ctx context.Context, e Encap) (*Mesh, error) {
	m, err := e.newMesh(3)
	if err != nil {
		return nil, err
	}
	lan, err := netnstest.NewNamespace()
	if err != nil {
		return nil, err
	}
	commands := []string{"ip link add lan type bridge", "ip link set lan up"}
	for i, n := range m.Nodes {
		port := fmt.Sprint("port", i+1)
		if err := n.Conn.AddVeth(cable(lan, port)); err != nil {
			return nil, err
		}
		commands = append(commands, "ip link set "+port+" up master lan")
	}
	if err := run(ctx, lan, commands...); err != nil {
		return nil, err
	}
	return m, m.start(ctx)
}

// cable returns the veth from a node to a link in another namespace.
func cable(to *netlinkx.Namespace, link string) netlinkx.Veth {
	return netlinkx.Veth{Name: "eth0", PeerName: link, PeerNamespace: to, MTU: nodeMTU, TxQueueLen: 1000, PeerTxQueueLen: 1000}
}

// run runs commands in a namespace.
func run(ctx context.Context, ns *netlinkx.Namespace, commands ...string) error {
	return ns.Do(func() error {
		for _, c := range commands {
			words := strings.Fields(c)
			if out, err := exec.CommandContext(ctx, words[0], words[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", c, err, out)
			}
		}
		return nil
	})
}

func (e Encap) newMesh(count int) (*Mesh, error) {
	m := &Mesh{Encap: e}
	for i := range count {
		n, err := e.newNode(i + 1)
		if err != nil {
			return nil, err
		}
		m.Nodes = append(m.Nodes, n)
	}
	return m, nil
}

// start configures the nodes. Their links must exist.
func (m *Mesh) start(ctx context.Context) error {
	for _, n := range m.Nodes {
		if err := n.start(ctx, nodeMTU-m.Encap.Overhead); err != nil {
			return err
		}
		if err := m.Encap.Program(ctx, n, m.Others(n)...); err != nil {
			return err
		}
	}
	return nil
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

// Pool returns the one pool.
func (e Encap) Pool() netip.Prefix {
	if e.IPv6 {
		return netip.PrefixFrom(e.PoolAddr(0, 0), 64)
	}
	return netip.PrefixFrom(e.PoolAddr(0, 0), 16)
}

// PoolAddr returns the address of the pool at a place in the block with a number; a block has 256 addresses.
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
		_, err := podnet.Setup(ctx,
			podnet.Config{Netns: n.Pod.Path(), IfName: "eth0", HostVeth: PodLink, Addresses: []netip.Addr{n.PodAddr()}, MTU: podMTU})
		return err
	})
}

func (n *Node) route(ctx context.Context, others []*Node, hop func(*Node) routes.Hop) error {
	all := []routes.Route{{Dst: n.Block, Type: netlinkx.Unreachable}}
	for _, o := range others {
		all = append(all, routes.To(o.Block, hop(o)))
	}
	_, err := routes.New(n.Conn, routes.Options{}).Sync(ctx, all)
	return err
}

// AddRules programs the agent's rules for a pool with natOutgoing: masquerading, and the guard of the node and its
// tunnel. It must be called again when a node has a new tunnel, as the guard accepts packets of any source from the
// links that it knows.
func (m *Mesh) AddRules(ctx context.Context) error {
	pool := nat.Pool{CIDR: m.Encap.Pool(), NATOutgoing: true}
	config := m.Encap.Guard
	config.PodLinks, config.Pools = "cali", []netip.Prefix{pool.CIDR}
	m.guarded = true
	for _, n := range m.Nodes {
		config.Nodes = append(config.Nodes, n.Addr)
	}
	for _, n := range m.Nodes {
		own, err := n.ownLinks()
		if err != nil {
			return err
		}
		config.OwnLinks = own
		err = n.NS.Do(func() error {
			table := nft.New(nil)
			return errors.Join(nat.New(table).Sync(ctx, nat.Config{Pools: []nat.Pool{pool}}), guard.New(table).Sync(ctx, config))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Track makes the kernel track and translate connections, as it does for kube-proxy on every node of a cluster, until
// it is called with false.
func (m *Mesh) Track(ctx context.Context, with bool) error {
	part := nft.Part{Prefixes: []string{"proxy-"}, Former: []string{"proxy-forward", "proxy-prerouting", "proxy-postrouting"}}
	if with {
		never := nft.NewRule("", nft.Invalid.In(), nft.Do(nft.Drop))
		part.Chains = []nft.Chain{
			{Name: "proxy-forward", Hook: &nft.Hook{Type: nft.Filter, Number: nft.Forward}, Rules: []nft.Rule{never}},
			{Name: "proxy-prerouting", Hook: &nft.Hook{Type: nft.NAT, Number: nft.Prerouting, Priority: -nft.PrioritySNAT},
				Rules: []nft.Rule{never}},
			{Name: "proxy-postrouting", Hook: &nft.Hook{Type: nft.NAT, Number: nft.Postrouting, Priority: nft.PrioritySNAT},
				Rules: []nft.Rule{never}},
		}
	}
	for _, n := range m.Nodes {
		if _, err := nft.New(n.NS).Sync(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// Others returns the nodes except n.
func (m *Mesh) Others(n *Node) []*Node {
	return slices.DeleteFunc(slices.Clone(m.Nodes), func(o *Node) bool { return o == n })
}

// Other returns the other node of two.
func (m *Mesh) Other(n *Node) *Node { return m.Others(n)[0] }

// AddFlowtable makes established connections pass from device to device, as the agent does if the kernel gains by it;
// added is false if it does not.
func (m *Mesh) AddFlowtable(ctx context.Context) (added bool, err error) {
	for _, n := range m.Nodes {
		c, err := m.Flowtable(n)
		if err == nil {
			err = errors.Join(flowtable.New(n.NS).Sync(ctx, c), m.SyncPeers(ctx, n, c.Peers))
		}
		if err != nil {
			return false, err
		}
		added = len(c.Devices) > 0
	}
	return added, nil
}

// SyncPeers makes a node's devices for single nodes.
func (m *Mesh) SyncPeers(ctx context.Context, n *Node, peers []ipip.Peer) error {
	links, err := n.Conn.Links()
	if err != nil {
		return err
	}
	want := ipip.Peers{Local: n.Addr, MTU: nodeMTU - ipip.Overhead}
	for _, peer := range peers {
		want.Nodes = append(want.Nodes, peer.Node)
	}
	return ipip.New(n.Conn).SyncPeers(ctx, links, want, func(devices []string) error {
		err := n.NS.Do(func() error { return hostsysctl.Sync(sysctl.DefaultRoot, hostsysctl.Config{Tunnels: devices}) })
		if err == nil && m.guarded {
			err = m.AddRules(ctx)
		}
		return err
	})
}

// Flowtable returns the agent's configuration of the flowtable on a node.
func (m *Mesh) Flowtable(n *Node) (flowtable.Config, error) {
	fabric := flowtable.Fabric{IPIP: m.Encap.Guard.IPIP, VXLAN: m.Encap.Guard.VXLAN, Underlay: "eth0", Kernel: flowtable.Running()}
	if !fabric.IPIP && !fabric.VXLAN && len(m.Encap.Guard.WireGuardPorts) == 0 {
		fabric.Uplinks = []string{"eth0"}
	}
	links, err := n.Conn.Links()
	if fabric.ByPeers(links) {
		ways := []ipip.Way{{Dst: n.Block}}
		for _, o := range m.Others(n) {
			ways = append(ways, ipip.Way{Dst: o.Block, Node: o.Addr})
		}
		fabric.Peers = ipip.ChoosePeers(n.Addr, ways, ipip.MaxPeers)
	}
	return flowtable.Choose(fabric, podnet.DefaultVethPrefix, links), err
}
