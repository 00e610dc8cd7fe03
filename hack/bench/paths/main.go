//go:build ignore

// Command paths measures what a path between two pods carries: between the nodes themselves, between pods by routes as package fib
// makes them, through vxlan.calico as package vxlan makes it and as ip and bridge do, through tunl0 as package encap makes it, alone and
// with the agent's part of nftables, and through tunl0 as ip makes it. It prints one line, "paths " and JSON.
//
// It needs root, iperf3, ip, bridge and a kernel with VXLAN, and with IPIP unless told otherwise. Nodes are network namespaces, joined in
// pairs by a veth pair.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/guard"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/nat"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

const (
	nodeMTU   = 1500
	tunnelMTU = nodeMTU - ipip.Overhead
	vxlanMTU  = nodeMTU - vxlan.Overhead4
)

// path is a path between two endpoints, with its measurements.
type path struct {
	Name   string
	Single []float64 // bits per second of one stream, of each round
	Many   []float64 // of many streams together
	RTT    []float64 // seconds for one byte there and back, the median of each round

	from, to *netlinkx.Namespace
	addr     netip.Addr // of to
	nodes    [2]*node   // an unreferenced namespace is removed
}

func main() {
	seconds := flag.Float64("seconds", 1, "how long a stream is measured")
	rounds := flag.Int("rounds", 3, "how often each path has its turn")
	streams := flag.Int("streams", 8, "how many streams many are")
	tunnels := flag.Bool("tunnels", true, "measure tunnels too, for which the kernel must have IPIP")
	flag.Parse()
	paths, err := measure(context.Background(), *tunnels, *seconds, *rounds, *streams)
	if err == nil {
		var text []byte
		if text, err = json.Marshal(paths); err == nil {
			fmt.Printf("paths %s\n", text)
			return
		}
	}
	fmt.Fprintf(os.Stderr, "paths: %v\n", err)
	os.Exit(1)
}

func measure(ctx context.Context, tunnels bool, seconds float64, rounds, streams int) ([]*path, error) {
	var paths []*path
	makers := []func(context.Context) ([]*path, error){withoutTunnel, throughVXLAN}
	if tunnels {
		makers = append(makers, throughTunnels)
	}
	for _, some := range makers {
		more, err := some(ctx)
		if err != nil {
			return nil, err
		}
		paths = append(paths, more...)
	}
	for round := range rounds {
		for i := range paths {
			if round%2 == 1 { // in reverse order
				i = len(paths) - 1 - i
			}
			if err := paths[i].round(ctx, seconds, streams); err != nil {
				return nil, fmt.Errorf("%s: %w", paths[i].Name, err)
			}
		}
	}
	return paths, nil
}

// withoutTunnel creates a pair of nodes: the paths between themselves, and between their pods.
func withoutTunnel(ctx context.Context) ([]*path, error) {
	pair, err := newPair(ctx, nodeMTU, func(n, other *node) error {
		return n.program(ctx, routes.To(other.block, routes.Hop{Via: other.addr, Dev: "eth0"}))
	})
	if err != nil {
		return nil, fmt.Errorf("nodes without encapsulation: %w", err)
	}
	hosts := &path{Name: "hosts", from: pair[0].ns, to: pair[1].ns, addr: pair[1].addr, nodes: pair}
	return []*path{hosts, between("routes", pair)}, nil
}

// throughVXLAN creates a pair of nodes with the agent's code, and one manually, each the other's only neighbour.
func throughVXLAN(ctx context.Context) ([]*path, error) {
	agent, err := newPair(ctx, vxlanMTU, func(n, other *node) error {
		t := vxlan.Tunnel{Local: n.addr, Parent: "eth0", MAC: n.mac(), MTU: vxlanMTU, Addr: n.block.Addr(),
			Peers: []vxlan.Peer{{Addr: other.block.Addr(), MAC: other.mac(), Node: other.addr}}}
		if _, err := vxlan.New(n.conn).Merge(ctx, t); err != nil {
			return err
		}
		return n.program(ctx, routes.To(other.block, routes.Hop{Via: other.block.Addr(), Dev: vxlan.Device4, Onlink: true}))
	})
	if err != nil {
		return nil, fmt.Errorf("nodes with vxlan.calico: %w", err)
	}
	hand, err := newPair(ctx, vxlanMTU, func(n, other *node) error {
		err := n.ip(
			fmt.Sprintf("link add vxlan.calico address %s mtu %d type vxlan id %d local %s dev eth0 dstport %d nolearning", n.mac(), vxlanMTU, vxlan.DefaultVNI, n.addr, vxlan.DefaultPort),
			fmt.Sprintf("addr add %s/32 dev vxlan.calico", n.block.Addr()),
			"link set vxlan.calico up",
			fmt.Sprintf("neigh add %s lladdr %s dev vxlan.calico nud permanent", other.block.Addr(), other.mac()),
			fmt.Sprintf("route add %s via %s dev vxlan.calico onlink", other.block, other.block.Addr()))
		if err != nil {
			return err
		}
		return n.batch("bridge", fmt.Sprintf("fdb add %s dev vxlan.calico dst %s self permanent", other.mac(), other.addr))
	})
	if err != nil {
		return nil, fmt.Errorf("nodes with VXLAN by hand: %w", err)
	}
	return []*path{between("vxlan", agent), between("vxlan by hand", hand)}, nil
}

// throughTunnels creates a pair of nodes with the agent's code, and one manually.
func throughTunnels(ctx context.Context) ([]*path, error) {
	byAgent := func(n, other *node) error {
		if err := ipip.New(n.conn).Sync(ctx, ipip.Tunnel{MTU: tunnelMTU, Addr: n.block.Addr()}); err != nil {
			return err
		}
		return n.program(ctx, routes.To(other.block, routes.Hop{Via: other.addr, Dev: ipip.Device, Onlink: true}))
	}
	tunnel, err := newPair(ctx, tunnelMTU, byAgent)
	if err != nil {
		return nil, fmt.Errorf("nodes with tunl0: %w", err)
	}
	whole, err := newPair(ctx, tunnelMTU, func(n, other *node) error { return errors.Join(byAgent(n, other), n.filter(ctx, other)) })
	if err != nil {
		return nil, fmt.Errorf("nodes with tunl0 and nftables: %w", err)
	}
	hand, err := newPair(ctx, tunnelMTU, func(n, other *node) error {
		return n.ip(
			fmt.Sprintf("link set tunl0 up mtu %d", tunnelMTU),
			fmt.Sprintf("addr add %s/32 dev tunl0", n.block.Addr()),
			fmt.Sprintf("route add %s via %s dev tunl0 onlink", other.block, other.addr))
	})
	if err != nil {
		return nil, fmt.Errorf("nodes with a tunnel by hand: %w", err)
	}
	return []*path{between("tunl0", tunnel), between("by hand", hand), between("nftables", whole)}, nil
}

// between returns the path from one node's pod to the other's.
func between(name string, pair [2]*node) *path {
	return &path{Name: name, from: pair[0].pod, to: pair[1].pod, addr: pair[1].podAddr(), nodes: pair}
}

// node is a namespace that stands for a node, with one pod.
type node struct {
	ns, pod *netlinkx.Namespace
	conn    *netlinkx.Conn
	addr    netip.Addr
	block   netip.Prefix
}

func (n *node) podAddr() netip.Addr { return n.block.Addr().Next() }

func (n *node) mac() vxlan.MAC { return vxlan.MACOf(n.addr.String(), false) }

// newPair creates two connected nodes with a pod each, and routes between the pods.
func newPair(ctx context.Context, podMTU int, program func(n, other *node) error) (pair [2]*node, err error) {
	for i := range pair {
		n := &node{
			addr:  netip.AddrFrom4([4]byte{172, 30, 0, byte(i + 1)}),
			block: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i + 1), 0}), 26),
		}
		for _, ns := range []**netlinkx.Namespace{&n.ns, &n.pod} {
			if *ns, err = netnstest.NewNamespace(); err != nil {
				return pair, err
			}
		}
		if n.conn, err = netlinkx.OpenAt(n.ns); err != nil {
			return pair, err
		}
		pair[i] = n
	}
	err = pair[0].conn.AddVeth(netlinkx.Veth{Name: "eth0", PeerName: "eth0", PeerNamespace: pair[1].ns, MTU: nodeMTU, TxQueueLen: 1000, PeerTxQueueLen: 1000})
	if err != nil {
		return pair, err
	}
	for i, n := range pair {
		if err := n.start(ctx, podMTU); err != nil {
			return pair, err
		}
		if err := program(n, pair[1-i]); err != nil {
			return pair, err
		}
	}
	return pair, nil
}

// start configures the node's address and pod.
func (n *node) start(ctx context.Context, podMTU int) error {
	// Proxy ARP replies for a pod's gateway only with a route to it.
	if err := n.ip("link set lo up", "link set eth0 up", fmt.Sprintf("addr add %s/24 dev eth0", n.addr), "route add default dev eth0"); err != nil {
		return err
	}
	return n.ns.Do(func() error {
		if err := sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1"); err != nil {
			return err
		}
		_, err := podnet.Setup(ctx, podnet.Config{
			Netns: n.pod.Path(), IfName: "eth0", HostVeth: "cali0", Addresses: []netip.Addr{n.podAddr()}, MTU: podMTU,
		})
		return err
	})
}

func (n *node) program(ctx context.Context, way routes.Route) error {
	_, err := routes.New(n.conn, routes.Options{}).Sync(ctx, []routes.Route{{Dst: n.block, Type: netlinkx.Unreachable}, way})
	return err
}

// filter applies the agent's nftables rules: masquerading of packets that leave the pools, and the tunnel guard.
func (n *node) filter(ctx context.Context, other *node) error {
	table := nft.New(nil)
	return n.ns.Do(func() error {
		pool := nat.Pool{CIDR: netip.MustParsePrefix("10.244.0.0/16"), NATOutgoing: true}
		return errors.Join(
			nat.New(table).Sync(ctx, nat.Config{Pools: []nat.Pool{pool}}),
			guard.New(table).Sync(ctx, guard.Config{Nodes: []netip.Addr{n.addr, other.addr}, PodLinks: "cali", IPIP: true}))
	})
}

// ip runs commands of iproute2 on the node.
func (n *node) ip(commands ...string) error { return n.batch("ip", commands...) }

func (n *node) batch(program string, commands ...string) error {
	return n.ns.Do(func() error {
		cmd := exec.Command(program, "-batch", "-")
		cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", program, err, out)
		}
		return nil
	})
}

func (p *path) round(ctx context.Context, seconds float64, streams int) error {
	rtt, err := p.pingPong(time.Duration(seconds * float64(time.Second) / 2))
	if err != nil {
		return fmt.Errorf("request and response: %w", err)
	}
	p.RTT = append(p.RTT, rtt.Seconds())
	single, err := p.iperf(ctx, seconds, 1)
	if err != nil {
		return err
	}
	p.Single = append(p.Single, single)
	many, err := p.iperf(ctx, seconds, streams)
	if err != nil {
		return err
	}
	p.Many = append(p.Many, many)
	return nil
}

// iperf returns the bits per second that arrive.
func (p *path) iperf(ctx context.Context, seconds float64, streams int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds*float64(time.Second))+2*time.Minute)
	defer cancel()
	server := exec.CommandContext(ctx, "iperf3", "-s", "-1", "-B", p.addr.String())
	if err := p.to.Do(server.Start); err != nil {
		return 0, fmt.Errorf("start iperf3: %w", err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	for attempt := 0; ; attempt++ { // until the server listens
		bits, err := p.client(ctx, seconds, streams)
		if err == nil || attempt == 100 || ctx.Err() != nil {
			return bits, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// client runs iperf3, which reports failures only in its JSON output.
func (p *path) client(ctx context.Context, seconds float64, streams int) (float64, error) {
	var out []byte
	err := p.from.Do(func() (err error) {
		out, err = exec.CommandContext(ctx, "iperf3", "-J", "-c", p.addr.String(), "-P", fmt.Sprint(streams), "-t", fmt.Sprint(seconds)).Output()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("iperf3: %w\n%s", err, out)
	}
	var report struct {
		Error string
		End   struct {
			Received struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return 0, fmt.Errorf("iperf3's report: %w", err)
	}
	if report.Error != "" || report.End.Received.Bits <= 0 {
		return 0, fmt.Errorf("iperf3: %s\n%s", report.Error, out)
	}
	return report.End.Received.Bits, nil
}

// pingPong sends one byte in both directions over TCP repeatedly, and returns the median time.
func (p *path) pingPong(duration time.Duration) (time.Duration, error) {
	var l net.Listener
	err := p.to.Do(func() (err error) { l, err = net.Listen("tcp", netip.AddrPortFrom(p.addr, 7000).String()); return err })
	if err != nil {
		return 0, err
	}
	defer l.Close()
	go echo(l)
	var conn net.Conn
	err = p.from.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", l.Addr().String(), 30*time.Second)
		return err
	})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	b := make([]byte, 1)
	var all []time.Duration
	for begin := time.Now(); time.Since(begin) < duration || len(all) == 0; {
		start := time.Now()
		if err := conn.SetDeadline(start.Add(30 * time.Second)); err != nil {
			return 0, err
		}
		if _, err := conn.Write(b); err != nil {
			return 0, err
		}
		if _, err := conn.Read(b); err != nil {
			return 0, err
		}
		all = append(all, time.Since(start))
	}
	slices.Sort(all)
	return all[len(all)/2], nil
}

func echo(l net.Listener) {
	conn, err := l.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	b := make([]byte, 1)
	for {
		if _, err := conn.Read(b); err != nil {
			return
		}
		if _, err := conn.Write(b); err != nil {
			return
		}
	}
}
