package netpol_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// cluster is a node with pods: pod i has link "cali<i>", addresses 10.1.i.2 and fd01:i::2, and echoes UDP on some
// ports.
type cluster struct {
	host *netnstest.NS
	pods []*netnstest.NS // from 1 on
	*netpol.Engine
}

func pod4(i int) netip.Addr { return addr(fmt.Sprintf("10.1.%d.2", i)) }
func pod6(i int) netip.Addr { return addr(fmt.Sprintf("fd01:%d::2", i)) }

func newCluster(t testing.TB, pods int) *cluster {
	t.Helper()
	c := &cluster{host: netnstest.New(t), pods: make([]*netnstest.NS, pods+1)}
	c.Engine = newEngine(t, c.host)
	c.host.Within(t, func() error {
		return errors.Join(sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv4", "ip_forward"}, "1"),
			sysctl.DefaultRoot.Set(sysctl.Key{"net", "ipv6", "conf", "all", "forwarding"}, "1"))
	})
	for i := 1; i <= pods; i++ {
		pod := netnstest.New(t)
		link := fmt.Sprintf("cali%d", i)
		netnstest.Cable(t, c.host, link, pod, "eth0")
		c.host.Addr(t, link, fmt.Sprintf("10.1.%d.1/24", i))
		c.host.Addr(t, link, fmt.Sprintf("fd01:%d::1/64", i))
		pod.Addr(t, "eth0", pod4(i).String()+"/24")
		pod.Addr(t, "eth0", pod6(i).String()+"/64")
		pod.Route(t, "0.0.0.0/0", fmt.Sprintf("10.1.%d.1", i), "")
		pod.Route(t, "::/0", fmt.Sprintf("fd01:%d::1", i), "")
		c.pods[i] = pod
	}
	return c
}

// echo makes every pod answer on a port.
func (c *cluster) echo(t testing.TB, ports ...uint16) {
	t.Helper()
	for i := 1; i < len(c.pods); i++ {
		for _, port := range ports {
			c.pods[i].EchoUDP(t, netip.AddrPortFrom(pod4(i), port).String())
			c.pods[i].EchoUDP(t, netip.AddrPortFrom(pod6(i), port).String())
		}
	}
}

// want checks whether packets of one pod reach a port of another.
func (c *cluster) want(t *testing.T, passes bool, from int, to netip.Addr, port uint16) {
	t.Helper()
	wait := 10 * time.Second
	if !passes {
		wait = 300 * time.Millisecond
	}
	_, err := c.pods[from].AskUDP(t, "", netip.AddrPortFrom(to, port).String(), "x", wait)
	if (err == nil) != passes {
		t.Errorf("pod %d to %s port %d: %v, want it to pass: %v", from, to, port, err, passes)
	}
}

// both checks it in both families.
func (c *cluster) both(t *testing.T, passes bool, from, to int, port uint16) {
	t.Helper()
	c.want(t, passes, from, pod4(to), port)
	c.want(t, passes, from, pod6(to), port)
}

// local are pods without policies but for one program.
func (c *cluster) local(pod int, d policy.Direction, p policy.Program) *policy.Ruleset {
	key := fmt.Sprint(p)
	rs := &policy.Ruleset{Closed: true, Endpoints: map[string]policy.Endpoint{}, Programs: map[string]policy.Program{key: p}}
	for i := 1; i < len(c.pods); i++ {
		endpoint := policy.Endpoint{UID: fmt.Sprint("uid-", i)}
		if i == pod {
			endpoint.Programs[d] = key
		}
		rs.Endpoints[fmt.Sprintf("cali%d", i)] = endpoint
	}
	return rs
}

func TestPackets(t *testing.T) {
	c := newCluster(t, 3)
	c.echo(t, 7, 8, 9)
	c.both(t, true, 1, 2, 7)

	t.Run("denied by default", func(t *testing.T) {
		mustSync(t, c.Engine, c.local(2, policy.Ingress, policy.Program{Rest: policy.List{Else: deny("none")}}))
		c.both(t, false, 1, 2, 7)
		c.both(t, true, 2, 1, 7)
		counters, err := c.Counters(t.Context())
		if n := counters[netpol.Denied{Direction: policy.Ingress, By: np("none")}].Packets; err != nil || n < 2 {
			t.Errorf("counters %v, %v, want two packets at least", counters, err)
		}
		c.host.Within(t, func() error {
			compared, err := netpol.Compare(t.Context(), "cali", c.local(2, policy.Ingress, policy.Program{Rest: policy.List{Else: deny("none")}}))
			if n := compared.Denied(policy.Ingress, np("none")); n < 2 || compared.Denied(policy.Egress, np("none")) != 0 {
				t.Errorf("%d packets are shown to be denied", n)
			}
			return err
		})
		if _, err := c.host.AskUDP(t, "", netip.AddrPortFrom(pod4(2), 7).String(), "x", 10*time.Second); err != nil {
			t.Errorf("the host does not reach its pod: %v", err)
		}
	})
	t.Run("members", func(t *testing.T) {
		rs := c.local(2, policy.Ingress, policy.Program{Rest: bySets(deny("some"), "", 0xabcdef01)})
		rs.Members = map[netip.Addr][]policy.SetID{pod4(1): {0xabcdef01}, pod6(1): {7, 0xabcdef01}, pod4(3): {7}}
		mustSync(t, c.Engine, rs)
		c.both(t, true, 1, 2, 8)
		c.both(t, false, 3, 2, 8)
	})
	t.Run("networks", func(t *testing.T) {
		rs := c.local(2, policy.Egress,
			policy.Program{Rest: policy.List{Else: allow, Steps: []policy.Step{{Nets: "third", Verdict: deny("third")}}}})
		rs.Nets = map[string][]policy.Range{"third": ranges("10.1.3.0-10.1.3.255", "fd01:3::-fd01:3::ff")}
		mustSync(t, c.Engine, rs)
		c.both(t, true, 2, 1, 8)
		c.both(t, false, 2, 3, 8)
	})
	t.Run("ports", func(t *testing.T) {
		udp := []policy.PortRange{{First: 7, Last: 7, List: policy.List{Else: allow}}, {First: 8, Last: 8, List: bySets(deny("eight"), "", 5)}}
		rs := c.local(2, policy.Ingress, policy.Program{
			Ports:     map[uint8][]policy.PortRange{unix.IPPROTO_UDP: udp},
			Protocols: map[uint8]policy.List{unix.IPPROTO_UDP: {Else: deny("udp")}}, Rest: policy.List{Else: allow},
		})
		rs.Members = map[netip.Addr][]policy.SetID{pod4(3): {5}, pod6(3): {5}}
		mustSync(t, c.Engine, rs)
		c.both(t, true, 1, 2, 7)
		c.both(t, false, 1, 2, 8)
		c.both(t, true, 3, 2, 8)
		c.both(t, false, 3, 2, 9)
		if err := c.pods[1].SendTCP(t, c.pods[2], netip.AddrPortFrom(pod4(2), 9).String()); err != nil {
			t.Errorf("another protocol: %v", err)
		}
	})
	t.Run("unknown link", func(t *testing.T) {
		rs := c.local(0, policy.Ingress, policy.Program{})
		delete(rs.Endpoints, "cali3")
		mustSync(t, c.Engine, rs)
		c.both(t, false, 3, 1, 8)
		c.both(t, false, 1, 3, 8)
		c.both(t, true, 1, 2, 8)
		rs.Closed = false
		mustSync(t, c.Engine, rs)
		c.both(t, true, 3, 1, 8)
	})
	t.Run("own host", func(t *testing.T) {
		c.host.EchoUDP(t, "10.1.2.1:7")
		mustSync(t, c.Engine, c.local(2, policy.Egress, policy.Program{Rest: policy.List{Else: deny("host")}}))
		c.want(t, false, 2, addr("10.1.2.1"), 7)
		c.want(t, true, 1, addr("10.1.2.1"), 7)
	})
	t.Run("neighbours", func(t *testing.T) {
		rs := c.local(2, policy.Egress, policy.Program{Rest: bySets(deny("host"), "", 9)})
		rs.Members = map[netip.Addr][]policy.SetID{pod6(1): {9}}
		mustSync(t, c.Engine, rs)
		c.pods[2].Run(t, "ip", "-6", "neigh", "flush", "dev", "eth0")
		c.host.Run(t, "ip", "-6", "neigh", "flush", "dev", "cali2")
		c.want(t, true, 2, pod6(1), 9)
	})
}

// TestEstablished: a connection goes on under a policy that denies its first packet.
func TestEstablished(t *testing.T) {
	c := newCluster(t, 2)
	mustSync(t, c.Engine, c.local(0, policy.Ingress, policy.Program{}))
	var l net.Listener
	c.pods[2].Within(t, func() (err error) { l, err = net.Listen("tcp", netip.AddrPortFrom(pod4(2), 80).String()); return err })
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		lines := bufio.NewReader(conn)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			conn.Write([]byte(line))
		}
	}()
	dial := func(wait time.Duration) (conn net.Conn, err error) {
		err = c.pods[1].Do(func() (err error) { conn, err = net.DialTimeout("tcp", l.Addr().String(), wait); return err })
		return conn, err
	}
	conn, err := dial(10 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	lines := bufio.NewReader(conn)
	say := func(when string) {
		t.Helper()
		if _, err := conn.Write([]byte("x\n")); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
	}
	say("before")
	mustSync(t, c.Engine, c.local(2, policy.Ingress, policy.Program{Rest: policy.List{Else: deny("none")}}))
	say("under the policy")
	if _, err := dial(300 * time.Millisecond); !isTimeout(err) {
		t.Errorf("a new connection: %v, want a timeout", err)
	}
	say("at the end")
}

// TestUntrackedByOthers: a DNS cache on the node keeps its packets out of connection tracking, so that each is judged
// as a first one. Connections of TCP pass all the same, under policies of either direction, and denied ones do not.
func TestUntrackedByOthers(t *testing.T) {
	c := newCluster(t, 1)
	c.host.Run(t, "nft", `add table inet cache; add chain inet cache in { type filter hook prerouting priority raw; };
		add chain inet cache out { type filter hook output priority raw; }; add rule inet cache in tcp dport 53 notrack;
			add rule inet cache out tcp sport 53 notrack`)
	for name, f := range map[string]struct{ pod, host netip.Addr }{"IPv4": {pod4(1), addr("10.1.1.1")}, "IPv6": {pod6(1), addr("fd01:1::1")}} {
		t.Run(name, func(t *testing.T) {
			listen(t, c.host, netip.AddrPortFrom(f.host, 53))
			for _, rs := range []*policy.Ruleset{c.local(1, policy.Ingress, policy.Program{Rest: policy.List{Else: deny("ingress")}}),
				c.local(1, policy.Egress, tcp("egress", 53))} {
				mustSync(t, c.Engine, rs)
				conn, err := dial(t, c.pods[1], netip.AddrPortFrom(f.host, 53), 10*time.Second)
				errtest.Must(t, err)
				speaks(t, conn)
			}
			mustSync(t, c.Engine, c.local(1, policy.Egress, tcp("egress", 54)))
			reaches(t, false, c.pods[1], f.host, 53)
		})
	}
}

func isTimeout(err error) bool {
	var timed net.Error
	return errors.As(err, &timed) && timed.Timeout()
}

// TestDrops: a listener gets the denied packets.
func TestDrops(t *testing.T) {
	c := newCluster(t, 2)
	drops, err := netpol.Drops(t.Context(), c.host.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := netpol.Drops(t.Context(), c.host.Namespace); !errors.Is(err, unix.EPERM) {
		t.Errorf("a second listener: %v, want EPERM", err)
	}
	mustSync(t, c.Engine, c.local(2, policy.Ingress, policy.Program{Rest: policy.List{Else: deny("none")}}))
	for _, to := range []netip.Addr{pod4(2), pod6(2)} {
		from, size := pod4(1), uint64(29)
		if to.Is6() {
			from, size = pod6(1), 49
		}
		c.pods[1].AskUDP(t, netip.AddrPortFrom(from, 4000).String(), netip.AddrPortFrom(to, 7).String(), "x", time.Millisecond)
		want := netpol.Drop{Why: "ingress NetworkPolicy default/none", Src: from, Dst: to, Protocol: unix.IPPROTO_UDP,
			SrcPort: 4000, DstPort: 7, Bytes: size}
		select {
		case got := <-drops:
			if got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no packet to %s was told", to)
		}
	}
}

// TestNeverOpens alternates between two Rulesets in many transactions each. Neither allows pod 1: it is in neither's
// allowed set. But members that change before rules, or rules before members, would allow it.
func TestNeverOpens(t *testing.T) {
	c := newCluster(t, 2)
	ruleset := func(set, pod policy.SetID, others int) *policy.Ruleset {
		rs := c.local(2, policy.Ingress, policy.Program{Rest: bySets(deny("some"), "", set)})
		rs.Members = map[netip.Addr][]policy.SetID{pod4(1): {pod}}
		for i := range others {
			rs.Members[netip.AddrFrom4([4]byte{10, 9, byte(others), byte(i)})] = []policy.SetID{set}
		}
		return rs
	}
	both := []*policy.Ruleset{ruleset(1, 2, 200), ruleset(2, 1, 201)}
	mustSync(t, c.Engine, both[0])
	received := c.pods[2].ListenUDP(t, netip.AddrPortFrom(pod4(2), 7).String())
	conn := c.pods[1].ListenUDP(t, "0.0.0.0:0")
	for i := range 4 {
		steps := 0
		err := c.StepByStep(t.Context(), both[(i+1)%2], 50, func() {
			steps++
			conn.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(pod4(2), 7))
			received.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if _, from, err := received.ReadFromUDPAddrPort(make([]byte, 10)); err == nil {
				t.Errorf("a packet from %s was let through after transaction %d", from, steps)
			}
		})
		if err != nil || steps < 5 {
			t.Fatalf("%d transactions, %v: want more", steps, err)
		}
	}
	if n, err := c.Counters(t.Context()); err != nil || n[netpol.Denied{Direction: policy.Ingress, By: np("some")}].Packets == 0 {
		t.Errorf("counters %v, %v: no packet came so far", n, err)
	}
	steady(t, c.host, c.Engine, both[0])
}
