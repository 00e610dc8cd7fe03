package mesh

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
	"github.com/tortie-net/tortie/internal/testkit/usagetest"
)

// learner is a BGP speaker that programs learned routes into its kernel, with a BIRD 2 as its only peer.
type learner struct {
	name, control string // of the peer's control socket
	protocol      byte   // of its routes
	pid           int
	events        chan uint16 // kinds of its routes' events
}

const ownProtocol = 84 // of the agent's routes

// A BIRD 2 announces blocks to another BIRD 2 and withdraws them, and then does the same with the agent: each block
// becomes a route in the receiver's kernel, and is removed. hack/bench measures how soon.
func TestLearned(t *testing.T) {
	tier.All(t)
	count := meshtest.Repeat(500, 10_000)
	c := meshtest.NewCluster(t)
	c.Create(t, meshtest.NewPool("learned", "10.160.0.0/12", api.EncapNever))
	learners := []*learner{newLearner(t, c, "BIRD 2", unix.RTPROT_BIRD, 40, count), newLearner(t, c, "the agent", ownProtocol, 50, count)}
	// In the first round programs are read from disk, and the agent removes the stale routes of its start.
	for round := range meshtest.Repeat(2, 10) {
		for _, l := range learners {
			l.round(t, count, round > 0)
		}
	}
}

// newLearner starts a peer and a receiver, on nodes with the last parts of addresses from host on.
func newLearner(t *testing.T, c *meshtest.Cluster, name string, protocol byte, host, count int) *learner {
	peer, receiver := c.NewNode(t, fmt.Sprint("peer-", host), 0, host), c.NewNode(t, fmt.Sprint("receiver-", host), 0, host+1)
	l := &learner{name: name, protocol: protocol, control: filepath.Join(peer.Dir, "ctl"), events: make(chan uint16, 1<<16)}
	(&monitor{node: receiver}).subscribe(t, unix.NETLINK_ROUTE, unix.RTMGRP_IPV4_ROUTE, func(m syscall.NetlinkMessage) {
		const protocolAt = 5 // of struct rtmsg
		if len(m.Data) > protocolAt && m.Data[protocolAt] == protocol {
			l.events <- m.Header.Type
		}
	})
	var blocks strings.Builder
	for i := range count {
		fmt.Fprintf(&blocks, "  route %s blackhole;\n",
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(160 + i>>10), byte(i >> 2), byte(i << 6)}), 26))
	}
	bird(t, peer, fmt.Sprintf(`protocol static blocks {
  disabled;
  ipv4;
%s}
protocol bgp session {
  local %s as 64512;
  neighbor %s as 64512;
  passive on;
  ipv4 { import none; export where source = RTS_STATIC; next hop self; };
}
`, blocks.String(), peer.Prefix.Addr(), receiver.Prefix.Addr()))
	if protocol == ownProtocol {
		address := peer.Prefix.String()
		peer.Annotate(t, api.AnnotationIPv4Address, &address)
		meshtest.Start(t, receiver)
		l.pid = receiver.Cmd.Process.Pid
	} else {
		l.pid = bird(t, receiver, fmt.Sprintf(`protocol kernel { ipv4 { import none; export all; }; }
protocol bgp session {
  local %s as 64512;
  neighbor %s as 64512;
  direct;
  connect delay time 1;
  ipv4 { import all; export none; };
}
`, receiver.Prefix.Addr(), peer.Prefix.Addr()))
	}
	meshtest.Eventually(t, func() error {
		text, err := l.ask("show protocols session")
		if err == nil && !strings.Contains(text, "Established") {
			err = fmt.Errorf("the session of %s: %s", name, text)
		}
		return err
	})
	return l
}

// bird starts a BIRD 2 on a node.
func bird(t *testing.T, n *meshtest.Node, config string) (pid int) {
	file := filepath.Join(n.Dir, "bird.conf")
	errtest.Must(t, os.WriteFile(file, fmt.Appendf(nil, "router id %s;\nprotocol device {}\n%s", n.Prefix.Addr(), config), 0o644))
	return n.NS.Start(t, "bird", "-f", "-c", file, "-s", filepath.Join(n.Dir, "ctl"), "-P", filepath.Join(n.Dir, "pid"))
}

// ask sends a command to the peer's control socket and returns the answer; its last line begins with a code and a
// space. Starting birdc would take a part of the measured time.
func (l *learner) ask(command string) (string, error) {
	conn, err := net.Dial("unix", l.control)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	if _, err := r.ReadString('\n'); err != nil { // the banner
		return "", err
	}
	if _, err := fmt.Fprintln(conn, command); err != nil {
		return "", err
	}
	var answer strings.Builder
	for {
		line, err := r.ReadString('\n')
		answer.WriteString(line)
		if err != nil || len(line) > 4 && line[4] == ' ' && line[0] >= '0' && line[0] <= '9' {
			return answer.String(), err
		}
	}
}

// round makes the peer announce its blocks and take them back.
func (l *learner) round(t *testing.T, count int, measure bool) {
	t.Helper()
	before := usagetest.Of(t, l.pid)
	record := func(what, unit string, value float64) {
		if measure {
			meshtest.Record(fmt.Sprintf("routes | %s | %d | %s", l.name, count, what), unit, value)
		}
	}
	for _, step := range []struct {
		command, what string
		kind          uint16
	}{{"enable blocks", "until the last route", unix.RTM_NEWROUTE}, {"disable blocks", "until all are gone", unix.RTM_DELROUTE}} {
		begun := time.Now()
		_, err := l.ask(step.command)
		errtest.Must(t, err)
		deadline := time.After(meshtest.Patience * meshtest.TimeScale)
		for have := 0; have < count; {
			select {
			case kind := <-l.events:
				if kind == step.kind {
					have++
				}
			case <-deadline:
				t.Fatalf("%s, %s: %d of %d routes", l.name, step.command, have, count)
			}
		}
		record(step.what, "ms", float64(time.Since(begun))/float64(time.Millisecond))
	}
	after := usagetest.Of(t, l.pid)
	record("CPU of both", "ms", float64((after.CPU - before.CPU).Milliseconds()))
	record("memory", "MiB", float64(after.RSS)/1024)
}
