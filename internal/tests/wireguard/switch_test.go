package wireguard

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/agent/desired"
	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/kernel/wireguard"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/pathtest"
)

// node is a node whose agent makes a pass when it is told to.
type node struct {
	*pathtest.Node
	host, pod *netnstest.NS
	name      string
	syncer    *wireguard.Syncer

	on     bool
	crypts desired.Crypts
	state  [2]wireguard.State
	says   string // the key that it announces
	hears  string // what it knows of the other's
}

func newNodes(t *testing.T) (nodes [2]*node) {
	t.Helper()
	if netnstest.WireGuard() != nil {
		needtest.More(t, "a kernel with WireGuard")
	}
	p, err := pathtest.New(t.Context(), pathtest.Routes)
	errtest.Must(t, err)
	for i, n := range p.Nodes {
		nodes[i] = &node{
			Node: n, host: &netnstest.NS{Namespace: n.NS, Conn: n.Conn}, pod: &netnstest.NS{Namespace: n.Pod}, name: []string{"a", "b"}[i],
			syncer: wireguard.New(n.Conn, routes.DefaultProtocol, nil),
		}
	}
	return nodes
}

// pass does what the agent does in one, in its order, at a time.
func (n *node) pass(t *testing.T, other *node, now time.Time) {
	t.Helper()
	peer := api.Node{Meta: api.Meta{Name: other.name, Annotations: map[string]string{
		api.AnnotationIPv4Address: other.Node.Addr.String() + "/24", api.AnnotationWireGuardKey: n.hears,
	}}}
	s, problems := desired.Build(desired.Self{Name: n.name, Addr: netip.PrefixFrom(n.Node.Addr, 24), Link: "eth0", LinkMTU: 1500},
		state.Cluster{
			Nodes: []api.Node{peer},
			Pools: []api.IPPool{{Meta: api.Meta{Name: "pool"}, Spec: api.IPPoolSpec{CIDR: pathtest.Routes.Pool().String()}}},
			Affinities: []api.BlockAffinity{
				{Meta: api.Meta{Name: "own"}, Spec: api.BlockAffinitySpec{Node: n.name, CIDR: n.Block.String(), State: api.AffinityConfirmed}},
				{Meta: api.Meta{Name: "other"},
					Spec: api.BlockAffinitySpec{Node: other.name, CIDR: other.Block.String(), State: api.AffinityConfirmed}},
			},
		})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	s.Self.WireGuard, s.Felix.WireGuard.On[0] = n.Block.Addr(), n.on
	n.crypts.Follow(&s, n.state, now)
	d := s.WireGuard(false)
	if d == nil {
		n.says, n.state[0] = "", wireguard.State{}
		errtest.Must(t, n.syncer.Remove(t.Context(), false, routes.Predecessors{}))
		return
	}
	var err error
	n.state[0], err = n.syncer.Merge(t.Context(), *d)
	errtest.Must(t, err)
	if n.says = ""; s.Announces(false) {
		n.says = n.state[0].Public.String()
	}
	judge := s.By(desired.Grounds{})
	accepted, _ := judge.Accept(nil, nil)
	var ways []routes.Route
	d.Peers, _, ways = judge.Encrypted(false, accepted)
	_, err = n.syncer.Peers(t.Context(), *d)
	errtest.Must(t, err)
	errtest.Must(t, n.syncer.Routes(t.Context(), false, ways, true, routes.Predecessors{}))
	errtest.Must(t, n.syncer.Lead(t.Context(), false, judge.RulePriority()))
	errtest.Must(t, n.syncer.Prune(t.Context(), *d))
}

// encrypts reports whether the node sends encrypted packets.
func (n *node) encrypts(t *testing.T, other *node) bool {
	t.Helper()
	found, err := n.host.Conn.Routes(netlinkx.RouteFilter{Table: wireguard.Table4})
	errtest.Must(t, err)
	for _, r := range found {
		if r.Dst == other.Block && r.Dev != 0 {
			return true
		}
	}
	return false
}

// stream sends numbered datagrams from one pod to another until it is stopped, and returns how many were sent and how
// many of them did not arrive.
func stream(t *testing.T, from, to *node, port uint16) (stop func() (sent, lost int)) {
	t.Helper()
	dst := netip.AddrPortFrom(to.PodAddr(), port)
	server, client := to.pod.ListenUDP(t, dst.String()), from.pod.ListenUDP(t, "0.0.0.0:0")
	var arrived atomic.Int64
	go func() {
		seen, b := map[uint32]bool{}, make([]byte, 64)
		for {
			n, err := server.Read(b)
			if err != nil {
				return
			}
			if number := binary.BigEndian.Uint32(b); n == 4 && !seen[number] {
				seen[number] = true
				arrived.Add(1)
			}
		}
	}()
	ended, sent := make(chan struct{}), make(chan int)
	go func() {
		count := 0
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-ended:
				tick.Stop()
				sent <- count
				return
			case <-tick.C:
				if _, err := client.WriteToUDPAddrPort(binary.BigEndian.AppendUint32(nil, uint32(count)), dst); err == nil {
					count++
				}
			}
		}
	}()
	return func() (int, int) {
		close(ended)
		count := <-sent
		for tick, left := time.Tick(100*time.Millisecond), 50; int(arrived.Load()) != count && left > 0; left-- {
			<-tick
		}
		return count, count - int(arrived.Load())
	}
}

// TestSwitch has two nodes turn WireGuard on and off at different times. What one node knows of the other is late, too.
func TestSwitch(t *testing.T) {
	nodes := newNodes(t)
	a, b := nodes[0], nodes[1]
	a.pod.EchoUDP(t, netip.AddrPortFrom(a.PodAddr(), 6999).String())
	if _, err := b.pod.AskUDP(t, "", netip.AddrPortFrom(a.PodAddr(), 6999).String(), "addresses are resolved", time.Minute); err != nil {
		t.Fatal(err)
	}
	port := uint16(7000)
	there, back := stream(t, a, b, port), stream(t, b, a, port+1)
	start, ahead := time.Now(), time.Duration(0)
	tick := time.Tick(200 * time.Millisecond)
	rounds := func(n int) {
		for range n {
			for i, n := range nodes {
				n.pass(t, nodes[1-i], start.Add(time.Since(start)+ahead))
			}
			<-tick
		}
	}
	intact := func(what string) {
		t.Helper()
		for _, stop := range []func() (int, int){there, back} {
			if sent, lost := stop(); lost != 0 || sent < 50 {
				t.Errorf("%s: %d of %d packets lost", what, lost, sent)
			} else {
				t.Logf("%s: none of %d packets lost", what, sent)
			}
		}
		port += 2
		there, back = stream(t, a, b, port), stream(t, b, a, port+1)
	}

	a.on = true
	rounds(3)
	b.hears = a.says // which does not use it yet
	rounds(3)
	b.on = true
	rounds(10)
	if a.encrypts(t, b) || b.encrypts(t, a) {
		t.Error("encrypted to a node that cannot decrypt yet")
	}
	a.hears = b.says
	deadline := time.Now().Add(time.Minute)
	for !a.encrypts(t, b) || !b.encrypts(t, a) {
		if rounds(1); time.Now().After(deadline) {
			t.Fatal("no handshake")
		}
	}
	intact("on")

	var clear, encrypted atomic.Int64
	stop := a.host.Watch(t, "eth0", func(p []byte) {
		switch {
		case p[0]>>4 != 4:
		case p[9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(p[22:]) == wireguard.DefaultPort4:
			encrypted.Add(1)
		case p[9] == unix.IPPROTO_UDP:
			clear.Add(1)
		}
	})
	rounds(10)
	stop()
	if clear.Load() != 0 || encrypted.Load() < 50 {
		t.Errorf("%d packets in the clear, %d encrypted", clear.Load(), encrypted.Load())
	}
	intact("steady")

	a.on = false
	rounds(5)
	if a.says != "" || a.encrypts(t, b) || !b.encrypts(t, a) {
		t.Errorf("a, which is off, says %q, encrypts: %v; b, which has not heard of it, %v", a.says, a.encrypts(t, b), b.encrypts(t, a))
	}
	b.hears = ""
	rounds(5)
	b.on, a.hears = false, ""
	rounds(5)
	ahead = time.Hour
	rounds(2)
	intact("off")
	for _, n := range nodes {
		if _, err := n.host.Conn.LinkByName(wireguard.Device4); !netlinkx.IsNotExist(err) {
			t.Errorf("%s still has its device: %v", n.name, err)
		}
	}
}
