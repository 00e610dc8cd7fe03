package netpol_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

const echoRequest4, echoRequest6 = 8, 128

// echoes checks whether requests of ICMP, or ICMPv6, with a code reach the other pod and are answered.
func (c *cluster) echoes(t *testing.T, passes bool, from int, to netip.Addr, code byte) {
	t.Helper()
	network, request := "ip4:icmp", byte(echoRequest4)
	if to.Is6() {
		network, request = "ip6:ipv6-icmp", echoRequest6
	}
	wait := 10 * time.Second
	if !passes {
		wait = 300 * time.Millisecond
	}
	err := c.pods[from].Do(func() error {
		conn, err := net.Dial(network, to.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(wait))
		message := []byte{request, code, 0, 0, 0, 1, 0, 1}
		if to.Is4() { // of IPv6 the kernel writes the checksum
			binary.BigEndian.PutUint16(message[2:], ^(uint16(request)<<8 + uint16(code) + 2))
		}
		if _, err := conn.Write(message); err != nil {
			return err
		}
		_, err = conn.Read(make([]byte, 1500))
		return err
	})
	if (err == nil) != passes {
		t.Errorf("pod %d to %s code %d: %v, want it to pass: %v", from, to, code, err, passes)
	}
}

func (c *cluster) bothEcho(t *testing.T, passes bool, code byte) {
	t.Helper()
	c.echoes(t, passes, 1, pod4(2), code)
	c.echoes(t, passes, 1, pod6(2), code)
}

// calico is a program with all that only Calico's policies need.
func calico() policy.Program {
	list := func(v policy.Verdict) policy.List { return policy.List{Else: v} }
	udp := list(deny("udp"))
	udp.Sources = []policy.PortRange{{First: 4000, Last: 4001, List: list(allow)}, {First: 4002, Last: 4002, List: bySets(deny("udp"), "", 5)}}
	when := policy.Program{
		Ports: map[uint8][]policy.PortRange{unix.IPPROTO_UDP: {{First: 9, Last: 9, List: bySets(policy.Verdict{}, "", 5)}}},
	}
	return policy.Program{
		Ports: map[uint8][]policy.PortRange{
			unix.IPPROTO_ICMP: {{First: echoRequest4 << 8, Last: echoRequest4 << 8, List: list(allow)},
				{First: echoRequest4<<8 | 2, Last: lastPort, List: list(allow)}},
			unix.IPPROTO_ICMPV6: {{First: echoRequest6 << 8, Last: echoRequest6 << 8, List: list(allow)},
				{First: echoRequest6<<8 | 2, Last: lastPort, List: list(allow)}},
			unix.IPPROTO_UDP: {{First: 8, Last: 9, List: udp}},
		},
		Rest: list(deny("rest")),
		Logs: []policy.Logging{{LogRule: policy.LogRule{Policy: np("watch"), Rule: 3}, When: when}},
	}
}

const lastPort = 65535

// Types and codes of ICMP, source ports, and Log rules decide on packets as the program does.
func TestCalicoPackets(t *testing.T) {
	c := newCluster(t, 3)
	c.echo(t, 7, 8, 9)
	logs, err := netpol.Drops(t.Context(), c.host.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	rs := c.local(2, policy.Ingress, calico())
	rs.Members = map[netip.Addr][]policy.SetID{pod4(1): {5}, pod6(1): {5}}
	mustSync(t, c.Engine, rs)
	t.Run("ICMP", func(t *testing.T) {
		for code, passes := range map[byte]bool{0: true, 1: false, 2: true, 255: true} {
			c.bothEcho(t, passes, code)
		}
	})
	t.Run("ports of the source", func(t *testing.T) {
		for port, passes := range map[uint16][2]bool{3999: {}, 4000: {true, true}, 4001: {true, true}, 4002: {true, false}, 4003: {}} {
			c.fromPort(t, passes[0], 1, port, 8)
			c.fromPort(t, passes[1], 3, port, 8)
			c.fromPort(t, false, 1, port, 7)
		}
	})
	t.Run("log", func(t *testing.T) {
		c.fromPort(t, false, 3, 5000, 9) // denied, and not reached by the rule
		c.fromPort(t, false, 1, 5001, 9) // denied
		c.fromPort(t, true, 1, 4000, 9)  // allowed
		c.wantLogged(t, logs, map[uint16]bool{5001: true, 4000: true})
	})
	steady(t, c.host, c.Engine, rs)
	restorable(t, c.host)
	c.compares(t, rs)
}

// fromPort checks both families with a port of the source.
func (c *cluster) fromPort(t *testing.T, passes bool, from int, source, port uint16) {
	t.Helper()
	wait := 10 * time.Second
	if !passes {
		wait = 100 * time.Millisecond
	}
	for _, ends := range [][2]netip.Addr{{pod4(from), pod4(2)}, {pod6(from), pod6(2)}} {
		local, to := netip.AddrPortFrom(ends[0], source), netip.AddrPortFrom(ends[1], port)
		if _, err := c.pods[from].AskUDP(t, local.String(), to.String(), "x", wait); (err == nil) != passes {
			t.Errorf("%s to %s: %v, want it to pass: %v", local, to, err, passes)
		}
	}
}

// wantLogged waits until a Log rule has logged packets from the ports, in both families, and asserts that it logged no
// others.
func (c *cluster) wantLogged(t *testing.T, logs <-chan netpol.Drop, ports map[uint16]bool) {
	t.Helper()
	seen := map[netip.AddrPort]bool{}
	timeout := time.After(10 * time.Second)
	for len(seen) < 2*len(ports) {
		select {
		case d := <-logs:
			if !d.Logged {
				continue
			}
			if d.Why != "ingress NetworkPolicy default/watch rule 3" || !ports[d.SrcPort] || d.DstPort != 9 {
				t.Errorf("logged %+v", d)
			}
			seen[netip.AddrPortFrom(d.Src, d.SrcPort)] = true
		case <-timeout:
			t.Fatalf("logged only %v", seen)
		}
	}
}

// compares asserts that the kernel matches the Ruleset, and that a chain without its logging is noticed.
func (c *cluster) compares(t *testing.T, rs *policy.Ruleset) {
	t.Helper()
	compare := func() string {
		var found *netpol.Comparison
		c.host.Within(t, func() (err error) { found, err = netpol.Compare(t.Context(), "cali", rs); return err })
		return found.Link("cali2", policy.Ingress)
	}
	if text := compare(); text != "" {
		t.Errorf("differs: %s", text)
	}
	flush(t, c.host, "log-")
	if text := compare(); text == "" {
		t.Error("a chain without its rules is not noticed")
	}
}

// flush removes the rules of the chain with a prefix.
func flush(t *testing.T, ns *netnstest.NS, prefix string) {
	t.Helper()
	ns.Run(t, "sh", "-c",
		`nft list chains | awk '/chain `+prefix+`/ {print $2}' | while read name; do nft flush chain inet `+netpol.TableName+` "$name"; done`)
}
