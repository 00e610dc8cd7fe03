package perf

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/pathtest"
)

// used is the processor time of this process, which leaves out what it waits for.
func used(t *testing.T, do func() error) float64 {
	t.Helper()
	now := func() float64 {
		var ts unix.Timespec
		errtest.Must(t, unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts))
		return float64(ts.Nano())
	}
	start := now()
	errtest.Must(t, do())
	return now() - start
}

// work measures the plugin's and the agent's own work, each beside the least that the kernel asks for it.
func work(t *testing.T) []figure {
	t.Helper()
	all := slices.Concat(wiring(t), programming(t))
	if !*quick {
		all = append(all, encrypting(t)...)
	}
	return all
}

// wiring connects a pod, and disconnects it; at least it takes a pair of links.
func wiring(t *testing.T) []figure {
	const pods = 20
	host := netnstest.New(t)
	var setup, teardown, pair []float64
	for i := range pods {
		pod := netnstest.New(t)
		c := podnet.Config{Netns: pod.Path(), IfName: "eth0", HostVeth: pathtest.PodLink, MTU: 1500,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}}
		host.Within(t, func() error {
			setup = append(setup, used(t, func() error { _, err := podnet.Setup(t.Context(), c); return err }))
			teardown = append(teardown, used(t, func() error { _, err := podnet.Teardown(t.Context(), c); return err }))
			return nil
		})
		pair = append(pair, used(t, func() error {
			return host.Conn.AddVeth(netlinkx.Veth{Name: pathtest.PodLink, PeerName: "eth0", PeerNamespace: pod.Namespace, MTU: 1500})
		}))
		errtest.Must(t, host.Conn.DeleteLink(host.Link(t, pathtest.PodLink).Index))
	}
	least := middle(pair)
	return []figure{
		{"a pair of links", "pod", least, 1}, {"a pod connected", "pod", middle(setup), middle(setup) / least},
		{"a pod disconnected", "pod", middle(teardown), middle(teardown) / least},
	}
}

// programming programs learned routes, once it is decided what of another node's paths becomes one; at least it takes
// writing them.
func programming(t *testing.T) []figure {
	var written, decided, programmed, steady []float64
	for range 5 { // runs differ by up to a tenth
		w, d, p, s := program(t, 10000)
		written, decided, programmed, steady = append(written, w), append(decided, d), append(programmed, p), append(steady, s)
	}
	least := middle(written)
	return []figure{
		{"10,000 routes written", "route", least, 1}, {"10,000 paths decided", "route", middle(decided), middle(decided) / least},
		{"10,000 routes programmed", "route", middle(programmed), middle(programmed) / least},
		{"10,000 routes, nothing new", "route", middle(steady), middle(steady) / least},
	}
}

// program does so once, and returns the costs of a route.
func program(t *testing.T, count int) (written, decided, programmed, steady float64) {
	hand, agent := netnstest.New(t), netnstest.New(t)
	var raw []netlinkx.Route
	var learned []bgp.Path
	for _, ns := range []*netnstest.NS{hand, agent} {
		netnstest.Cable(t, ns, "eth0", netnstest.New(t), "eth0")
		ns.Addr(t, "eth0", "172.30.0.1/24")
	}
	via, dev := netip.MustParseAddr("172.30.0.2"), hand.Link(t, "eth0").Index
	for i := range count {
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 10), byte(i >> 2), byte(i << 6)}), 26)
		raw = append(raw, netlinkx.Route{Dst: block, Via: via, Dev: dev, Protocol: routes.DefaultProtocol})
		learned = append(learned, bgp.Path{Prefix: block, NextHop: via, From: via})
	}
	s, problems := desired.Build(desired.Self{Name: "self", Addr: netip.MustParsePrefix("172.30.0.1/24"), Link: "eth0", LinkMTU: 1500},
		state.Cluster{
			Pools: []api.IPPool{{Meta: api.Meta{Name: "pool"}, Spec: api.IPPoolSpec{CIDR: "10.0.0.0/12"}}},
			Nodes: []api.Node{{Meta: api.Meta{Name: "other", Annotations: map[string]string{api.AnnotationIPv4Address: via.String() + "/24"}}}},
		})
	errtest.Must(t, errors.Join(problems...))
	var wanted []routes.Route
	decided = used(t, func() error {
		judge := s.By(desired.Grounds{})
		accepted, refused := judge.Accept(learned, nil)
		ways, _ := judge.DesiredRoutes(accepted)
		if wanted = desired.RoutesOf(ways); len(wanted) != count {
			return fmt.Errorf("%d routes, refused %v", len(wanted), refused)
		}
		return nil
	})
	table := routes.New(agent.Conn, routes.Options{})
	sync := func() error { _, err := table.Sync(t.Context(), wanted); return err }
	written = used(t, func() error { return errors.Join(hand.Conn.AddRoutes(raw)...) })
	programmed, steady = used(t, sync), used(t, sync)
	each := float64(count)
	return written / each, decided / each, programmed / each, steady / each
}

// manyPeers begins the names of what encrypting measures.
const manyPeers = "1,000 WireGuard peers"

// maxPeers is the most that a node's agent may take for a thousand peers: a second of a processor that takes a
// nanosecond for an instruction.
const maxPeers = 1e9

// encrypting programs a node's WireGuard for a thousand others, and the routes to their blocks; at least it takes
// writing them. Threads of the kernel begin handshakes meanwhile, with those peers that the node greets: the time until
// all is programmed has them, too, where there is one processor.
func encrypting(t *testing.T) []figure {
	const count = 1000
	d, ways := thousand(count)
	hand, agent := newGate(t), newGate(t)
	index := hand.encrypt(t, "wg0", d)
	var changes []netlinkx.WireGuardChange
	for _, p := range d.Peers {
		peer := netlinkx.WireGuardPeer{Public: p.Key, Endpoint: p.Endpoint, AllowedIPs: p.Allowed}
		changes = append(changes, netlinkx.WireGuardChange{WireGuardPeer: peer})
	}
	var raw []netlinkx.Route
	for _, r := range ways {
		raw = append(raw,
			netlinkx.Route{Dst: r.Dst, Dev: index, Scope: netlinkx.ScopeLink, Table: wireguard.Table4, Protocol: routes.DefaultProtocol})
	}
	written := used(t, func() error {
		return errors.Join(append(hand.Conn.AddRoutes(raw), hand.Conn.ChangeWireGuardPeers(index, changes))...)
	})
	index = agent.encrypt(t, wireguard.Device4, d)
	s := wireguard.New(agent.Conn, routes.DefaultProtocol, nil)
	made, err := agent.Conn.WireGuard(index)
	errtest.Must(t, err)
	s.Believe(made.Public)
	_, err = s.Merge(t.Context(), d)
	errtest.Must(t, err)
	program := func() error {
		_, err := s.Peers(t.Context(), d)
		return errors.Join(err, s.Routes(t.Context(), false, ways, true, routes.Predecessors{}))
	}
	start := time.Now()
	programmed := used(t, program)
	until := float64(time.Since(start))
	if programmed > maxPeers && *kernel != "" {
		t.Errorf("1,000 WireGuard peers: %.0f instructions, more than %.0f", programmed, maxPeers)
	}
	have, err := agent.Conn.WireGuard(index)
	errtest.Must(t, err)
	if len(have.Peers) != count {
		t.Errorf("the kernel has %d peers, want %d", len(have.Peers), count)
	}
	steady := used(t, program)
	return []figure{
		{manyPeers + " written", "peer", written / count, 1},
		{manyPeers + " programmed", "peer", programmed / count, programmed / written},
		{manyPeers + ", with handshakes meanwhile", "peer", until / count, until / written},
		{manyPeers + ", nothing new", "peer", steady / count, steady / written},
	}
}

// thousand is a node's device for count others, which have two blocks each, and the ways to these.
func thousand(count int) (d wireguard.Device, ways []routes.Route) {
	d = wireguard.Device{Port: wireguard.DefaultPort4, MTU: 1440, Addr: netip.AddrFrom4([4]byte{10, 255, 0, 1})}
	for i := range count {
		node := netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)})
		p := wireguard.Peer{Key: sha256.Sum256([]byte(node.String())), Endpoint: netip.AddrPortFrom(node, d.Port)}
		p.Allowed = append(p.Allowed, netip.PrefixFrom(node, 32))
		for b := range 2 {
			block := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 7), byte(i << 1), byte(b << 6)}), 26)
			p.Allowed = append(p.Allowed, block)
			ways = append(ways, routes.To(block, routes.Hop{Dev: wireguard.Device4}))
		}
		d.Peers = append(d.Peers, p)
	}
	return d, ways
}

// gate is a node with its network behind a router.
type gate struct{ *netnstest.NS }

func newGate(t *testing.T) gate {
	t.Helper()
	g, router := gate{netnstest.New(t)}, netnstest.New(t)
	netnstest.Cable(t, g.NS, "eth0", router, "eth0")
	g.Addr(t, "eth0", "172.30.0.1/24")
	router.Addr(t, "eth0", "172.30.0.2/24")
	g.Route(t, "0.0.0.0/0", "172.30.0.2", "eth0")
	return g
}

// encrypt makes the node's device without peers. Its key is the same in each run: the kernel greets peers with greater
// keys.
func (g gate) encrypt(t *testing.T, name string, d wireguard.Device) (index int) {
	t.Helper()
	errtest.Must(t, g.Conn.AddWireGuard(name, d.MTU))
	index = g.Link(t, name).Index
	errtest.Must(t, errors.Join(g.Conn.SetWireGuardKey(index, wireguard.Key{1}), g.Conn.SetWireGuardPort(index, d.Port), g.Conn.SetUp(index)))
	return index
}
