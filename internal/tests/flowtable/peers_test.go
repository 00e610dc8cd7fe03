package flowtable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/flowtable"
	"github.com/tortie-net/tortie/internal/kernel/ipip"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/routes"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/pathtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// newPeerRig is a rig whose nodes have devices for each other: kernels gain by them since Linux 6.19.
func newPeerRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, pathtest.IPIP)
	if !r.byPeers(t) {
		t.Fatalf("Linux %v has no device for the other node, 6.19 has: lab vmtest -newest", flowtable.Running())
	}
	return r
}

// byPeers reports whether a node has a device for the other one.
func (r *rig) byPeers(t *testing.T) bool {
	t.Helper()
	links, err := r.Nodes[0].Conn.Links()
	errtest.Must(t, err)
	return slices.ContainsFunc(links, ipip.IsPeer)
}

// follow has a node send to others as told, in the agent's order: what takes part is narrowed, routes, the flowtable,
// devices.
func (r *rig) follow(t *testing.T, i int, ways ...ipip.Way) {
	t.Helper()
	n := r.Nodes[i]
	peers := ipip.ChoosePeers(n.Addr, append(ways, ipip.Way{Dst: n.Block}), ipip.MaxPeers)
	c := r.choose(t, n)
	c.Peers = peers
	errtest.Must(t, r.fast[i].Narrow(t.Context(), c))
	all := []routes.Route{{Dst: n.Block, Type: netlinkx.Unreachable}}
	for _, w := range ways {
		all = append(all, routes.To(w.Dst, routes.Hop{Via: w.Node, Dev: ipip.Device, Onlink: true}))
	}
	_, err := routes.New(n.Conn, routes.Options{}).Sync(t.Context(), all)
	errtest.Must(t, err)
	r.shortcut(t, i, peers)
}

// shortcut has connections with peers pass the flowtable.
func (r *rig) shortcut(t *testing.T, i int, peers []ipip.Peer) {
	t.Helper()
	c := r.choose(t, r.Nodes[i])
	c.Peers = peers
	errtest.Must(t, errors.Join(r.fast[i].Sync(t.Context(), c), r.SyncPeers(t.Context(), r.Nodes[i], peers)))
}

// off removes the flowtable and the devices.
func (r *rig) off(t *testing.T, i int) {
	t.Helper()
	errtest.Must(t, errors.Join(r.fast[i].Sync(t.Context(), flowtable.Config{}), r.SyncPeers(t.Context(), r.Nodes[i], nil)))
}

// carried are the addresses of a packet in a tunnel; one without a tunnel has no outer ones.
type carried struct{ outerSrc, outerDst, src, dst netip.Addr }

// tap counts the packets of pods on a node's link to others.
type tap struct {
	mu   sync.Mutex
	seen map[carried]int
}

func newTap(t *testing.T, n *pathtest.Node) *tap {
	t.Helper()
	const all = 0x0300 // ETH_P_ALL in network order
	link, err := n.Conn.LinkByName("eth0")
	errtest.Must(t, err)
	var fd int
	errtest.Must(t, n.NS.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all)
		return err
	}))
	errtest.Must(t, errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index})))
	w, done := &tap{seen: map[carried]int{}}, make(chan struct{})
	var g errgroup.Group
	g.Go(func() error {
		for buf := make([]byte, 65536); ; {
			select {
			case <-done:
				return unix.Close(fd)
			default:
			}
			if size, _, err := unix.Recvfrom(fd, buf, 0); err == nil && size >= 40 && buf[0]>>4 == 4 {
				w.note(buf[:size])
			}
		}
	})
	t.Cleanup(func() { close(done); errtest.Must(t, g.Wait()) })
	return w
}

func (w *tap) note(packet []byte) {
	at := func(offset int) netip.Addr { return netip.AddrFrom4([4]byte(packet[offset : offset+4])) }
	c := carried{src: at(12), dst: at(16)}
	if packet[9] == unix.IPPROTO_IPIP {
		c = carried{at(12), at(16), at(32), at(36)}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[c]++
}

// take returns what was seen so far, and begins anew.
func (w *tap) take() map[carried]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.seen
	w.seen = map[carried]int{}
	return seen
}

// between fails the test for packets of two nodes' pods with other outer addresses than the nodes', and if there are
// none of a direction.
func (w *tap) between(t *testing.T, nodes []*pathtest.Node) {
	t.Helper()
	found := [2]int{}
	for c, count := range w.take() {
		for i, n := range nodes {
			if c.src == n.PodAddr() {
				if found[i] += count; c.outerSrc != n.Addr || c.outerDst != nodes[1-i].Addr {
					t.Errorf("%d packets from %s to %s travel from %s to %s", count, c.src, c.dst, c.outerSrc, c.outerDst)
				}
			}
		}
	}
	if found[0] < 100 || found[1] < 100 {
		t.Errorf("%d packets are seen: the test shows nothing", found)
	}
}

// resent is how many segments of TCP pods have sent again.
func resent(t *testing.T, nodes []*pathtest.Node) (count int) {
	t.Helper()
	for _, n := range nodes {
		errtest.Must(t, n.Pod.Do(func() error {
			text, err := os.ReadFile("/proc/thread-self/net/snmp")
			var in, out, segments, again int
			for line := range strings.Lines(string(text)) {
				var skip [9]int
				if k, _ := fmt.Sscanf(line, "Tcp: %d %d %d %d %d %d %d %d %d %d %d %d", &skip[0], &skip[1], &skip[2], &skip[3], &skip[4], &skip[5],
					&skip[6], &skip[7], &skip[8], &in, &out, &again); k == 12 {
					segments, count = segments+out, count+again
				}
			}
			if segments == 0 {
				return errors.Join(err, errors.New("the pod has sent no segment"))
			}
			return err
		}))
	}
	return count
}

// TestPeersUnderTraffic makes and removes devices at both ends of connections in both directions: nothing is lost, and
// every packet travels between the two nodes. What is in a flowtable stays when its device goes.
func TestPeersUnderTraffic(t *testing.T) {
	r := newPeerRig(t)
	wire := newTap(t, r.Nodes[0])
	var g errgroup.Group
	stop := make(chan struct{})
	var exchanges atomic.Int64
	for i, n := range r.Nodes {
		for k, network := range []string{"tcp", "udp"} {
			other := r.Other(n)
			c := open(t, network, n.Pod, other.Pod, other.PodAddr(), 7000+2*i+k)
			g.Go(func() error {
				for tick := time.Tick(5 * time.Millisecond); ; {
					select {
					case <-stop:
						return nil
					case <-tick:
					}
					if err := c.exchange(20, patience); err != nil {
						return fmt.Errorf("%s from pod %d: %w", network, i, err)
					}
					exchanges.Add(1)
				}
			})
		}
	}
	ways := [2][]ipip.Way{}
	for i, n := range r.Nodes {
		ways[i] = []ipip.Way{{Dst: r.Other(n).Block, Node: r.Other(n).Addr}}
	}
	for round := range 6 {
		for i, n := range r.Nodes {
			waittest.Until(t, patience, "all connections are in flowtables", func() bool {
				for port := 7000; port < 7004; port++ {
					if !offloaded(t, n, port) {
						return false
					}
				}
				return true
			})
			if round%2 == 0 {
				r.shortcut(t, i, nil)
			} else {
				r.off(t, i)
			}
			before := exchanges.Load()
			waittest.Until(t, patience, "bytes are exchanged meanwhile", func() bool { return exchanges.Load() > before+20 })
			r.follow(t, i, ways[i]...)
		}
	}
	close(stop)
	if err := g.Wait(); err != nil {
		t.Errorf("lost: %v", err)
	}
	if n := resent(t, r.Nodes); n > 0 {
		t.Errorf("%d segments of TCP were sent again", n)
	}
	wire.between(t, r.Nodes)
}

// third is a node that others send to, and does not answer.
var third = netip.AddrFrom4([4]byte{172, 30, 0, 3})

// addThird lets a node send to the third one.
func addThird(t *testing.T, n *pathtest.Node) {
	t.Helper()
	link, err := n.Conn.LinkByName("eth0")
	errtest.Must(t, err)
	errtest.Must(t, errors.Join(
		n.Conn.AddNeighbours([]netlinkx.Neighbour{{Link: link.Index, Addr: third, MAC: [6]byte{2, 0, 0, 0, 0, 0x99}, Permanent: true}})...))
}

// forge sends a datagram in a tunnel to a node, from an address of the sender's choice.
func forge(t *testing.T, from, to *pathtest.Node, src, dst netip.AddrPort) {
	t.Helper()
	_, inner := netnstest.Datagram(src, dst, []byte{1})
	outer := make([]byte, 20, 20+len(inner))
	outer[0], outer[8], outer[9] = 0x45, 64, unix.IPPROTO_IPIP
	binary.BigEndian.PutUint16(outer[2:], uint16(20+len(inner)))
	copy(outer[12:], from.Addr.AsSlice())
	copy(outer[16:], to.Addr.AsSlice())
	errtest.Must(t, from.NS.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, append(outer, inner...), 0, &unix.SockaddrInet4{Addr: to.Addr.As4()})
	}))
}

// TestPeersSource: a node sends from an address of another node's block. The answers go where the route leads, however
// long it does so: else it would have them. That the kernel sends them back by the device that packets came in by is
// shown where all addresses count as behind it.
func TestPeersSource(t *testing.T) {
	r := newPeerRig(t)
	from, to := r.Nodes[0], r.Nodes[1]
	addThird(t, to)
	block := netip.PrefixFrom(r.Encap.PoolAddr(3, 0), 26)
	own, foreign := ipip.Way{Dst: from.Block, Node: from.Addr}, ipip.Way{Dst: block, Node: third}
	r.follow(t, 1, own, foreign)
	src, dst := netip.AddrPortFrom(block.Addr().Next(), 7777), netip.AddrPortFrom(to.PodAddr(), 7000)
	errtest.Must(t, to.Pod.Do(func() error { return echo(t, "udp", dst.String()) }))
	wire := newTap(t, to)
	answers := func() (by map[netip.Addr]int) {
		by = map[netip.Addr]int{}
		for c, count := range wire.take() {
			if c.dst == src.Addr() {
				by[c.outerDst] += count
			}
		}
		return by
	}
	for tick, n := time.Tick(100*time.Millisecond), 50; n > 0; n-- {
		forge(t, from, to, src, dst)
		<-tick
	}
	if by := answers(); offloaded(t, to, 7000) || by[third] < 40 || len(by) != 1 {
		t.Errorf("the answers go to %v, all of 50 should to %s", by, third)
	}
	everywhere := []ipip.Range{{First: r.Encap.PoolAddr(0, 0), Last: r.Encap.PoolAddr(255, 255)}}
	r.shortcut(t, 1, []ipip.Peer{{Node: from.Addr, Ranges: everywhere}})
	waittest.Until(t, patience, "an answer goes to the sender", func() bool {
		forge(t, from, to, src, dst)
		return answers()[from.Addr] > 0
	})
}

// TestPeersRouteChange: the route to a block moves to another node while the old one goes on sending from it: from then
// on nothing goes to the old one, and all comes back when the route does.
func TestPeersRouteChange(t *testing.T) {
	r := newPeerRig(t)
	from, to := r.Nodes[0], r.Nodes[1]
	addThird(t, to)
	c := open(t, "udp", from.Pod, to.Pod, to.PodAddr(), 7000)
	c.settle(t, 7000, from, to)
	wire := newTap(t, to)
	r.fast[1] = flowtable.New(to.NS) // of an agent that has been restarted
	t.Cleanup(r.fast[1].Close)
	r.follow(t, 1, ipip.Way{Dst: from.Block, Node: third})
	wire.take()
	for tick, n := time.Tick(50*time.Millisecond), 50; n > 0; n-- {
		_, err := c.Write([]byte{1})
		errtest.Must(t, err)
		<-tick
	}
	went := 0
	for c, count := range wire.take() {
		if c.dst == from.PodAddr() {
			if went += count; c.outerDst != third {
				t.Errorf("%d packets go to %s", count, c.outerDst)
			}
		}
	}
	if went < 40 {
		t.Errorf("%d answers to 50 packets were sent: the test shows nothing", went)
	}
	r.follow(t, 1, ipip.Way{Dst: from.Block, Node: from.Addr})
	again := open(t, "udp", from.Pod, to.Pod, to.PodAddr(), 7001)
	again.settle(t, 7001, from, to)
}
