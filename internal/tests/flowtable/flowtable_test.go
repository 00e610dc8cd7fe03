package flowtable

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/flowtable"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/kernel/podnet"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/kernel/vxlan"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/pathtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// patience bounds what has a bound of its own, soon is the bound.
const (
	patience = 20 * time.Second
	soon     = time.Second
)

// rig is a pair of nodes with rules and flowtables.
type rig struct {
	*pathtest.Mesh
	fast [2]*flowtable.Syncer
}

func newRig(t *testing.T, e pathtest.Encap) *rig {
	t.Helper()
	needtest.More(t, "a kernel with flowtables, as in the virtual machine: lab vmtest -nft")
	p, err := pathtest.New(t.Context(), e)
	errtest.Must(t, err)
	errtest.Must(t, p.AddRules(t.Context()))
	r := &rig{Mesh: p}
	for i, n := range p.Nodes {
		r.fast[i] = flowtable.New(n.NS)
		t.Cleanup(r.fast[i].Close)
		c := r.choose(t, n)
		errtest.Must(t, n.Conn.CountFlows(sysctl.DefaultRoot))
		errtest.Must(t, errors.Join(r.fast[i].Sync(t.Context(), c), r.SyncPeers(t.Context(), n, c.Peers)))
	}
	return r
}

func (r *rig) choose(t *testing.T, n *pathtest.Node) flowtable.Config {
	t.Helper()
	c, err := r.Flowtable(n)
	errtest.Must(t, err)
	return c
}

// talk is a connection with an echo at its other end.
type talk struct{ net.Conn }

// open makes a connection between namespaces, whose server has an address; it ends with the test.
func open(t *testing.T, network string, from, to *netlinkx.Namespace, addr netip.Addr, port int) talk {
	t.Helper()
	at := netip.AddrPortFrom(addr, uint16(port))
	errtest.Must(t, to.Do(func() error { return echo(t, network, at.String()) }))
	c, err := dial(t, network, from, at, patience)
	errtest.Must(t, err)
	return c
}

// dial makes a connection from a namespace; it ends with the test.
func dial(t *testing.T, network string, from *netlinkx.Namespace, at netip.AddrPort, within time.Duration) (c talk, err error) {
	err = from.Do(func() (err error) {
		c.Conn, err = net.DialTimeout(network, at.String(), within)
		return err
	})
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// echo answers all that comes.
func echo(t *testing.T, network, at string) error {
	if network == "udp" {
		c, err := net.ListenPacket(network, at)
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		go func() {
			b := make([]byte, 1)
			for {
				_, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = c.WriteTo(b, from)
			}
		}()
		return nil
	}
	l, err := net.Listen(network, at)
	if err != nil {
		return err
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		t.Cleanup(func() { c.Close() })
		b := make([]byte, 1)
		for {
			if _, err := c.Read(b); err != nil {
				return
			}
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	}()
	return nil
}

// exchange sends bytes, each after the answer to the one before.
func (c talk) exchange(times int, within time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	for i := range times {
		b := []byte{byte(i)}
		if _, err := c.Write(b); err != nil {
			return err
		}
		if n, err := c.Read(b); n != 1 || b[0] != byte(i) {
			return errors.Join(fmt.Errorf("byte %d: %d instead of %d", i, b[:n], byte(i)), err)
		}
	}
	return nil
}

// offloaded reports whether a node has a connection to a port in its flowtable.
func offloaded(t *testing.T, n *pathtest.Node, port int) (is bool) {
	t.Helper()
	errtest.Must(t, n.Conn.Flows(func(f netlinkx.TrackedFlow) { is = is || f.Offloaded && int(f.Port) == port }))
	return is
}

// settle exchanges bytes until the connection is in the flowtables of nodes.
func (c talk) settle(t *testing.T, port int, nodes ...*pathtest.Node) {
	t.Helper()
	waittest.For(t, patience, func() error {
		if err := c.exchange(20, patience); err != nil {
			t.Fatal(err)
		}
		for i, n := range nodes {
			if !offloaded(t, n, port) {
				return fmt.Errorf("node %d has no connection to port %d in its flowtable", i, port)
			}
		}
		return nil
	})
}

// passed counts the packets that a node forwards by its rules from now on.
func passed(t *testing.T, n *pathtest.Node) func() uint64 {
	t.Helper()
	table := nft.New(n.NS)
	part := nft.Part{Prefixes: []string{"count-"}, Chains: []nft.Chain{
		{Name: "count-forward", Hook: &nft.Hook{Type: nft.Filter, Number: nft.Forward}, Rules: []nft.Rule{nft.NewRule("all", nft.Count())}},
	}}
	_, err := table.Sync(t.Context(), part)
	errtest.Must(t, err)
	return func() uint64 {
		counters, err := table.Counters(t.Context(), "count-")
		errtest.Must(t, err)
		return counters["all"].Packets
	}
}

// fast fails the test if a node forwards more of a connection's packets by its rules than those around the start of the
// count.
func (c talk) fast(t *testing.T, nodes ...*pathtest.Node) {
	t.Helper()
	var counts []func() uint64
	var before []uint64
	for _, n := range nodes {
		count := passed(t, n)
		counts, before = append(counts, count), append(before, count())
	}
	errtest.Must(t, c.exchange(200, patience))
	for i, count := range counts {
		if by := count() - before[i]; by > 10 {
			t.Errorf("%v: %s has forwarded %d packets of 400 by its rules", c.RemoteAddr().Network(), nodes[i].Addr, by)
		}
	}
}

// traffic is what a pod has exchanged by a server's port: Out to it, In from it, and Arrived if the pod is the server.
type traffic struct{ Out, In, Arrived netlinkx.Count }

// meter counts in a pod's own namespace, from now on.
func meter(t *testing.T, pod *netlinkx.Namespace, port int) func() traffic {
	t.Helper()
	prefix, at := fmt.Sprintf("port-%d-", port), nft.PortKey(uint16(port))
	in, out := nft.Hook{Type: nft.Filter, Number: nft.Input}, nft.Hook{Type: nft.Filter, Number: nft.Output}
	table := nft.New(pod)
	_, err := table.Sync(t.Context(), nft.Part{Prefixes: []string{prefix}, Chains: []nft.Chain{
		{Name: prefix + "in", Hook: &in, Rules: []nft.Rule{
			nft.NewRule("in", nft.SrcPort.Is(at), nft.Count()), nft.NewRule("arrived", nft.DestPort.Is(at), nft.Count()),
		}},
		{Name: prefix + "out", Hook: &out, Rules: []nft.Rule{nft.NewRule("out", nft.DestPort.Is(at), nft.Count())}},
	}})
	errtest.Must(t, err)
	return func() traffic {
		t.Helper()
		c, err := table.Counters(t.Context(), prefix)
		errtest.Must(t, err)
		return traffic{netlinkx.Count(c["out"]), netlinkx.Count(c["in"]), netlinkx.Count(c["arrived"])}
	}
}

// udpFirst is an order in which conntrack counts all: not counted is a SYN that is sent again because the first one
// waits for neighbours' addresses.
var udpFirst = []string{"udp", "tcp"}

// counted waits until nodes have counted as many packets and bytes of a connection to a server's port as its client,
// most of them in a flowtable.
func counted(t *testing.T, client func() traffic, port int, nodes ...*pathtest.Node) {
	t.Helper()
	waittest.For(t, patience, func() (err error) {
		want := client()
		for _, n := range nodes {
			var got traffic
			errtest.Must(t, n.Conn.Flows(func(f netlinkx.TrackedFlow) {
				if int(f.Port) == port {
					got = traffic{Out: f.Sent, In: f.Received}
				}
			}))
			if got != want || want.Out.Packets < 200 {
				err = errors.Join(err, fmt.Errorf("%s counts %+v, the client %+v", n.Addr, got, want))
			}
		}
		return err
	})
}

// TestPasses: packets of established connections of TCP, and of UDP that last, pass no rule, by all ways that gain;
// those of a new connection do. Conntrack counts all of them.
func TestPasses(t *testing.T) {
	for _, e := range []pathtest.Encap{pathtest.Routes, pathtest.Routes6, pathtest.VXLAN, pathtest.VXLAN6, pathtest.IPIP} {
		t.Run(e.Name, func(t *testing.T) {
			r := newRig(t, e)
			from, to := r.Nodes[0], r.Nodes[1]
			if want := e.Guard.IPIP && !flowtable.Running().Before(6, 19); r.byPeers(t) != want {
				t.Errorf("on Linux %v there is a device for the other node: %v, want %v", flowtable.Running(), !want, want)
			}
			for i, network := range udpFirst {
				port := 7000 + i
				has := meter(t, from.Pod, port)
				c := open(t, network, from.Pod, to.Pod, to.PodAddr(), port)
				c.settle(t, port, from, to)
				c.fast(t, from, to)
				counted(t, has, port, from, to)
			}
		})
	}
}

// TestMasquerade: a connection out of the pools is translated in the flowtable as it is by rules.
func TestMasquerade(t *testing.T) {
	r := newRig(t, pathtest.Routes)
	from, to := r.Nodes[0], r.Nodes[1]
	c := open(t, "tcp", from.Pod, to.NS, to.Addr, 7000)
	c.settle(t, 7000, from)
	c.fast(t, from)
	seen := false
	errtest.Must(t, to.Conn.Flows(func(f netlinkx.TrackedFlow) { seen = seen || f.Port == 7000 && f.Client == from.Addr }))
	if !seen {
		t.Error("the other node has not seen a connection from the node's address")
	}
}

// TestRouteChange: a connection in the flowtable follows a route to another device, and one that leads nowhere stops
// it.
func TestRouteChange(t *testing.T) {
	r := newRig(t, pathtest.Routes)
	from, to := r.Nodes[0], r.Nodes[1]
	c := open(t, "tcp", from.Pod, to.Pod, to.PodAddr(), 7000)
	c.settle(t, 7000, from, to)
	r.Encap = pathtest.VXLAN
	for i, n := range r.Nodes {
		errtest.Must(t, pathtest.VXLAN.Program(t.Context(), n, r.Nodes[1-i]))
	}
	counts := []func() uint64{received(t, from, "vxlan.calico"), received(t, to, "vxlan.calico")}
	before := []uint64{counts[0](), counts[1]()}
	errtest.Must(t, c.exchange(50, soon))
	for i, count := range counts {
		if by := count() - before[i]; by < 50 {
			t.Errorf("node %d has received %d packets by VXLAN, want 50 at least", i, by)
		}
	}
	for i, n := range r.Nodes {
		errtest.Must(t, r.fast[i].Sync(t.Context(), r.choose(t, n))) // VXLAN's device in place of the other
	}
	c.settle(t, 7000, from, to)
	blocked := netlinkx.Route{Dst: netip.PrefixFrom(to.PodAddr(), 32), Type: netlinkx.Unreachable}
	errtest.Must(t, from.Conn.AddRoute(blocked))
	if err := c.exchange(1, soon); err == nil {
		t.Error("a packet has passed a route that leads nowhere")
	}
	errtest.Must(t, from.Conn.DeleteRoute(blocked))
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("there is an answer after the end of the wait")
	}
}

// TestWaysDiffer: of a connection whose nodes send to each other by different devices, as while a pool changes its
// encapsulation, nothing is lost.
func TestWaysDiffer(t *testing.T) {
	r := newRig(t, pathtest.Routes)
	from, to := r.Nodes[0], r.Nodes[1]
	for i, n := range r.Nodes {
		errtest.Must(t, pathtest.VXLAN.Program(t.Context(), n, r.Nodes[1-i]))
		c := r.choose(t, n)
		c.Devices = slices.Sorted(slices.Values(append(c.Devices, vxlan.Device4)))
		errtest.Must(t, r.fast[i].Sync(t.Context(), c))
	}
	errtest.Must(t, pathtest.Routes.Program(t.Context(), to, from))
	errtest.Must(t, r.AddRules(t.Context()))
	for i, network := range udpFirst {
		c := open(t, network, from.Pod, to.Pod, to.PodAddr(), 7000+i)
		// UDP is taken when it has lasted for two seconds.
		for tick, end := time.Tick(50*time.Millisecond), time.Now().Add(4*time.Second); time.Now().Before(end); <-tick {
			if err := c.exchange(10, soon); err != nil {
				t.Fatalf("%s: %v", network, err)
			}
		}
	}
}

// received returns how many packets a link has received.
func received(t *testing.T, n *pathtest.Node, link string) func() uint64 {
	return func() (count uint64) {
		t.Helper()
		errtest.Must(t, n.NS.Do(func() error {
			text, err := os.ReadFile("/proc/thread-self/net/dev")
			for line := range strings.Lines(string(text)) {
				if name, rest, found := strings.Cut(strings.TrimSpace(line), ":"); found && name == link {
					count, err = strconv.ParseUint(strings.Fields(rest)[1], 10, 64)
				}
			}
			return err
		}))
		return count
	}
}

// TestPodGoes: the plugin removes a pod with a connection in the flowtable, and the kernel forgets it before the plugin
// returns; the next pod by the same name of a link takes part.
func TestPodGoes(t *testing.T) {
	r := newRig(t, pathtest.Routes)
	from, to := r.Nodes[0], r.Nodes[1]
	c := open(t, "tcp", from.Pod, to.Pod, to.PodAddr(), 7000)
	c.settle(t, 7000, from, to)
	errtest.Must(t, to.NS.Do(func() error {
		start := time.Now()
		_, err := podnet.Teardown(t.Context(), podnet.Config{Netns: to.Pod.Path(), IfName: "eth0", HostVeth: pathtest.PodLink})
		if took := time.Since(start); took > soon {
			t.Errorf("the pod's end took %v", took)
		}
		return err
	}))
	errtest.Must(t, to.Conn.Flows(func(f netlinkx.TrackedFlow) {
		if f.Port == 7000 {
			t.Errorf("a connection of the pod that has gone: %+v", f)
		}
	}))
	errtest.Must(t, to.NS.Do(func() error {
		_, err := podnet.Setup(t.Context(),
			podnet.Config{Netns: to.Pod.Path(), IfName: "eth0", HostVeth: pathtest.PodLink, Addresses: []netip.Addr{to.PodAddr()}, MTU: 1500})
		return err
	}))
	errtest.Must(t, r.fast[1].Sync(t.Context(), r.choose(t, to)))
	c = open(t, "tcp", from.Pod, to.Pod, to.PodAddr(), 7001)
	c.settle(t, 7001, from, to)
}

// TestIdle: connections that are idle leave the flowtable, are still tracked, and come back.
func TestIdle(t *testing.T) {
	r := newRig(t, pathtest.Routes)
	from, to := r.Nodes[0], r.Nodes[1]
	for i, network := range []string{"tcp", "udp"} {
		port := 7000 + i
		errtest.Must(t, to.NS.Do(func() error {
			return sysctl.DefaultRoot.Set(sysctl.Key{"net", "netfilter", "nf_flowtable_" + network + "_timeout"}, "1")
		}))
		c := open(t, network, from.Pod, to.Pod, to.PodAddr(), port)
		c.settle(t, port, from, to)
		waittest.Until(t, patience, network+": the connection leaves the flowtable", func() bool { return !offloaded(t, to, port) })
		tracked := false
		errtest.Must(t, to.Conn.Flows(func(f netlinkx.TrackedFlow) { tracked = tracked || int(f.Port) == port && !f.Closed }))
		if !tracked {
			t.Errorf("%s: the connection is not tracked any more", network)
		}
		c.settle(t, port, from, to)
		c.fast(t, from, to)
	}
}

// TestSync: an agent that starts leaves connections in the flowtable, devices come and go without harm to them, what
// another program changes is put right, and without devices nothing is left.
func TestSync(t *testing.T) {
	r := newRig(t, pathtest.Routes)
	from, to := r.Nodes[0], r.Nodes[1]
	c := open(t, "tcp", from.Pod, to.Pod, to.PodAddr(), 7000)
	c.settle(t, 7000, from, to)
	want := r.choose(t, to)
	restarted := flowtable.New(to.NS)
	defer restarted.Close()
	errtest.Must(t, restarted.Sync(t.Context(), want))
	more := want
	more.Devices = slices.Clone(want.Devices)
	for i := range 150 { // more than the kernel takes in one request
		a, b := fmt.Sprintf("cali-a%d", i), fmt.Sprintf("cali-b%d", i)
		errtest.Must(t,
			to.Conn.AddVeth(netlinkx.Veth{Name: a, PeerName: b, PeerNamespace: to.NS, MTU: 1500, TxQueueLen: 1000, PeerTxQueueLen: 1000}))
		more.Devices = append(more.Devices, a, b)
	}
	slices.Sort(more.Devices)
	for _, config := range []flowtable.Config{more, want, more} {
		errtest.Must(t, restarted.Sync(t.Context(), config))
		wantDevices(t, to, config.Devices)
	}
	if !offloaded(t, to, 7000) {
		t.Error("the connection has left the flowtable")
	}
	owned := nft.NewOwned(to.NS, flowtable.TableName)
	defer owned.Close()
	change := owned.Change()
	change.Flush("forward")
	errtest.Must(t, owned.Commit(t.Context(), change))
	errtest.Must(t, restarted.Sync(t.Context(), want))
	wantDevices(t, to, want.Devices)
	c.settle(t, 7000, from, to)
	errtest.Must(t, restarted.Sync(t.Context(), flowtable.Config{}))
	if exists, err := owned.Exists(t.Context()); exists || err != nil {
		t.Errorf("there is a table without devices: %v", err)
	}
	errtest.Must(t, c.exchange(50, patience))
	gone := want
	gone.Devices = append(slices.Clone(want.Devices), "none")
	if err := restarted.Sync(t.Context(), gone); !netlinkx.IsNotExist(err) && err != nil {
		t.Errorf("with a device that has gone: %v", err)
	}
}

// TestLeaves: where rules have to see each packet, and after a change of what pods may send, connections pass rules
// again, and lose nothing.
func TestLeaves(t *testing.T) {
	r := newRig(t, pathtest.Routes)
	from, to := r.Nodes[0], r.Nodes[1]
	c := open(t, "tcp", from.Pod, to.Pod, to.PodAddr(), 7000)
	c.settle(t, 7000, from, to)
	config, fast := r.choose(t, to), r.fast[1]
	slow := func(what string) {
		t.Helper()
		waittest.Until(t, soon, what+": the connection leaves the flowtable", func() bool { return !offloaded(t, to, 7000) })
	}
	errtest.Must(t, fast.Permit(t.Context(), false))
	errtest.Must(t, fast.Sync(t.Context(), config))
	slow("no permit")
	errtest.Must(t, c.exchange(50, patience))
	slow("no permit, packets")
	errtest.Must(t, fast.Permit(t.Context(), true))
	c.settle(t, 7000, from, to)
	config.Guard = "another"
	errtest.Must(t, fast.Sync(t.Context(), config))
	slow("another guard")
	c.settle(t, 7000, from, to)
	fast.Await()
	errtest.Must(t, fast.Sync(t.Context(), flowtable.Config{}))
	errtest.Must(t, c.exchange(50, patience))
	if !offloaded(t, to, 7000) {
		t.Error("while it is not decided whether there may be one the flowtable of an earlier agent has gone")
	}
	errtest.Must(t, fast.Permit(t.Context(), true))
	slow("without devices")
}

func wantDevices(t *testing.T, n *pathtest.Node, want []string) {
	t.Helper()
	owned := nft.NewOwned(n.NS, flowtable.TableName)
	defer owned.Close()
	got, exists, err := owned.Devices(t.Context(), "pods")
	if err != nil || !exists || !slices.Equal(got, want) {
		t.Errorf("%d devices, want %d: %v", len(got), len(want), err)
	}
}
