package bgp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/wire"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/logtest"
)

// rawPeer is a TCP connection from a host, on which a test says what it likes.
type rawPeer struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.Reader
	err *logtest.Buffer
}

// connect opens a connection from an address of the host, which need not be its own in the eyes of others.
func (h *host) connect(from netip.Addr, to netip.AddrPort) *rawPeer {
	h.t.Helper()
	self, err := os.Executable()
	errtest.Must(h.t, err)
	p := &rawPeer{t: h.t, cmd: h.command(self, pipeArg, netip.AddrPortFrom(from, 0).String(), to.String()), err: &logtest.Buffer{}}
	p.cmd.Stderr = p.err
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		h.t.Fatal(err)
	}
	if p.out, err = p.cmd.StdoutPipe(); err != nil {
		h.t.Fatal(err)
	}
	errtest.Must(h.t, p.cmd.Start())
	h.t.Cleanup(p.close)
	return p
}

func (p *rawPeer) close() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *rawPeer) send(messages ...[]byte) {
	p.t.Helper()
	if _, err := p.in.Write(slices.Concat(messages...)); err != nil {
		p.t.Fatalf("raw peer: %v: %s", err, p.err)
	}
}

// read returns the next message, nil at the end of the connection.
func (p *rawPeer) read() []byte {
	p.t.Helper()
	m, err := wire.Read(p.out, make([]byte, wire.MaxLen))
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		p.t.Fatalf("raw peer reads: %v: %s", err, p.err)
	}
	return m
}

// last reads to the end and returns the NOTIFICATION before it, in words.
func (p *rawPeer) last() string {
	p.t.Helper()
	words := ""
	for m := p.read(); m != nil; m = p.read() {
		if wire.TypeOf(m) == wire.Notify {
			words = wire.ParseNotification(m).Words()
		}
	}
	return words
}

// establish does the handshake as router 10.0.0.id.
func (p *rawPeer) establish(id byte) {
	p.t.Helper()
	p.send(hello(id), keepalive)
	for _, want := range []wire.Type{wire.Open, wire.Keepalive} {
		if m := p.read(); m == nil || wire.TypeOf(m) != want {
			p.t.Fatalf("handshake: got % x, want type %d: %s", m, want, p.err)
		}
	}
}

func message(kind byte, body ...byte) []byte {
	m := append(bytes.Repeat([]byte{0xff}, 16), 0, 0, kind)
	m = append(m, body...)
	binary.BigEndian.PutUint16(m[16:], uint16(len(m)))
	return m
}

// hello is the OPEN of a router in AS 64512 with both families and graceful restart of 120 s.
func hello(id byte) []byte {
	caps := []byte{1, 4, 0, 1, 0, 1, 1, 4, 0, 2, 0, 1, 65, 4, 0, 0, 0xfc, 0, 64, 10, 0x40, 120, 0, 1, 1, 0, 0, 2, 1, 0}
	body := []byte{4, 0xfc, 0, 0, 90, 10, 0, 0, id, byte(len(caps) + 2), 2, byte(len(caps))}
	return message(1, append(body, caps...)...)
}

var keepalive = message(4)

// announce is an UPDATE of iBGP with IPv4 prefixes in wire form.
func announce(nextHop netip.Addr, prefixes ...byte) []byte {
	attributes := append([]byte{0x40, 1, 1, 0, 0x40, 2, 0, 0x40, 5, 4, 0xff, 0xff, 0xff, 0xfe, 0x40, 3, 4}, nextHop.AsSlice()...)
	body := append([]byte{0, 0, 0, byte(len(attributes))}, attributes...)
	return message(2, append(body, prefixes...)...)
}

// target starts a speaker that waits for one peer, on another host.
func target(t *testing.T, change func(*bgp.Peer)) (node *speaker, peer *host, to netip.AddrPort) {
	t.Helper()
	lan := newLAN(t)
	node, peer = lan.host(1).speak(), lan.host(2)
	node.start(64512, false)
	p := bgp.Peer{Addr: peer.v4, ASN: 64512, From: node.v4, Passive: true}
	if change != nil {
		change(&p)
	}
	node.setPeers(p)
	return node, peer, netip.AddrPortFrom(node.v4, 179)
}

func (s *speaker) waitError(peer netip.Addr, want string) bgp.PeerStatus {
	s.t.Helper()
	var p bgp.PeerStatus
	eventually(s.t, func() error {
		if p = s.peer(peer); !strings.Contains(p.LastError, want) {
			return fmt.Errorf("%s says of %s: %q, want %q", s.v4, peer, p.LastError, want)
		}
		return nil
	})
	return p
}

// What ended the process when GoBGP read it itself, and other things that no peer should send, after a proper handshake.
func TestHostilePeer(t *testing.T) {
	t.Parallel()
	node, peer, to := target(t, nil)
	for _, c := range []struct{ send, notification, reason string }{
		{string(message(77)), "Message Header Error/Bad Message Type", "Bad Message Type"},
		{string(message(2, 0, 0, 0, 15, 0x40, 1, 1, 0, 0x40, 2, 0, 0x80, 14, 5, 0, 1, 1, 16, 0)), "UPDATE Message Error/Optional Attribute Error", "MP_REACH_NLRI is cut short"},
		{string(message(2, 0, 9, 0, 0)), "UPDATE Message Error/Malformed Attribute List", "withdrawn routes"},
		{"GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n", "Message Header Error/Connection Not Synchronized", "Connection Not Synchronized"},
		{string(hello(2)), "Finite State Machine Error/Unexpected Message in Established", "out of order"},
	} {
		p := peer.connect(peer.v4, to)
		p.establish(2)
		p.send([]byte(c.send))
		if got := p.last(); got != c.notification {
			t.Errorf("% x: the peer is told %q, want %q", c.send, got, c.notification)
		}
		node.waitError(peer.v4, c.reason)
		p.close()
	}
	// Its paths went with its session, and a sound one is welcome.
	p := peer.connect(peer.v4, to)
	p.establish(2)
	p.send(announce(peer.v4, 26, 10, 1, 2, 0), message(2, 0, 0, 0, 0))
	node.waitLearned("10.1.2.0/26")
	// An announcement that is not to be trusted withdraws what it announces, and the session goes on. It is counted, and said.
	since := node.peer(peer.v4).Since
	p.send(announce(netip.MustParseAddr("127.0.0.1"), 26, 10, 1, 2, 0))
	node.waitLearned("")
	now := node.peer(peer.v4)
	if now.State != bgp.Established || !now.Since.Equal(since) {
		t.Errorf("the session after a bad next hop: %+v", now)
	}
	want := []bgp.Refusal{{Reason: "its UPDATE is malformed", Prefixes: 1, Example: netip.MustParsePrefix("10.1.2.0/26")}}
	if !slices.Equal(now.Refused, want) || now.Received != 1 {
		t.Errorf("%d received, refused: %+v, want %+v", now.Received, now.Refused, want)
	}
	counted := node.do(call{Method: "Traffic"})
	passed := counted.Traffic[peer.v4]
	if passed.Flawed != 1 || !strings.Contains(passed.LastFlaw, "NEXT_HOP") || !passed.NextTry.IsZero() {
		t.Errorf("what has passed: %+v", passed)
	}
	// Six sessions, with at least an OPEN and a KEEPALIVE in each direction.
	if total := counted.Totals; passed.Received < 12 || passed.Sent < 12 || total.Received != passed.Received || total.Sent != passed.Sent || total.Flawed != 1 {
		t.Errorf("what has passed: %+v, of all peers: %+v", passed, total)
	}
}

// Whatever comes from an address that is no peer, or before an OPEN, costs a connection and reaches nobody.
func TestGarbageOnThePort(t *testing.T) {
	t.Parallel()
	node, peer, to := target(t, nil)
	stranger := netip.MustParseAddr("10.0.0.3")
	run(t, "ip", "-n", peer.ns, "addr", "add", stranger.String()+"/24", "dev", "eth0")
	const script = `for i in $(seq 300); do exec 3<>/dev/tcp/10.0.0.1/179 && head -c 4096 /dev/urandom >&3; exec 3>&-; done 2>/dev/null; true`
	run(t, "ip", "netns", "exec", peer.ns, "bash", "-c", script)
	for range 5 {
		if p := peer.connect(stranger, to); p.read() != nil {
			t.Error("a stranger gets an answer")
		}
	}
	node.waitError(peer.v4, "Connection Not Synchronized")
	if n := node.do(call{Method: "Traffic"}).Totals.Strangers; n != 5 {
		t.Errorf("%d connections of strangers were counted", n)
	}
	p := peer.connect(peer.v4, to)
	p.establish(2)
	node.waitEstablished(peer.v4)
	node.do(call{Method: "Healthy"})
}

// A process of this host must not be able to speak for a peer to GoBGP itself.
func TestNobodyPosesAsPeerInside(t *testing.T) {
	t.Parallel()
	node, _, _ := target(t, nil)
	listeners := run(t, "ip", "netns", "exec", node.ns, "ss", "-Htln", "src", "127.0.0.0/8")
	fields := strings.Fields(listeners)
	if len(fields) < 4 || strings.Count(listeners, "\n") != 1 {
		t.Fatalf("not one listener inside:\n%s", listeners)
	}
	inside := netip.MustParseAddrPort(fields[3])
	for _, from := range []string{"127.179.1.0", "127.0.0.1"} {
		p := node.connect(netip.MustParseAddr(from), inside)
		if err := p.cmd.Wait(); err == nil || !strings.Contains(p.err.String(), "timeout") {
			t.Errorf("from %s: %v, %s; want silence", from, err, p.err)
		}
	}
	if p := node.peer(netip.MustParseAddr("10.0.0.2")); p.State == bgp.Established {
		t.Error("somebody posed as the peer")
	}
}

// memory is the process's memory of a kind, as /proc/pid/status has it, in MiB.
func (s *speaker) memory(kind string) int {
	s.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	errtest.Must(s.t, err)
	_, text, _ := strings.Cut(string(status), kind+":")
	kib, err := strconv.Atoi(strings.Fields(text)[0])
	errtest.Must(s.t, err)
	return kib / 1024
}

// A peer with a short hold time hears of us as often as is configured, and not only three times in its hold time.
func TestKeepalive(t *testing.T) {
	t.Parallel()
	node, peer, to := target(t, func(p *bgp.Peer) { p.Keepalive = time.Second })
	p := peer.connect(peer.v4, to)
	open := hello(2)
	binary.BigEndian.PutUint16(open[22:], 30)
	p.send(open, keepalive)
	began := time.Now()
	for heard := 0; heard < 5; { // the first one is the handshake's
		m := p.read()
		if m == nil {
			t.Fatalf("the session has ended: %+v", node.peer(peer.v4))
		}
		if wire.TypeOf(m) == wire.Keepalive {
			heard++
		}
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("four KEEPALIVEs, of which one is due each second, took %s", took)
	}
}

func TestFlood(t *testing.T) {
	t.Parallel()
	const most = 5000
	node, peer, to := target(t, func(p *bgp.Peer) { p.MaxPrefixes = most })
	node.do(call{Method: "Quiet"})
	p := peer.connect(peer.v4, to)
	p.establish(2)
	p.send(announce(peer.v4, 26, 10, 1, 2, 0))
	node.waitLearned("10.1.2.0/26")
	before := node.memory("VmHWM")
	go func() {
		for i := 0; i < 100000; i += 500 {
			var prefixes []byte
			for j := i; j < i+500; j++ {
				prefixes = append(prefixes, 32, 10, byte(128+j>>16), byte(j>>8), byte(j))
			}
			if _, err := p.in.Write(announce(peer.v4, prefixes...)); err != nil {
				return // the session has ended
			}
		}
	}()
	if got := p.last(); got != "Cease/Maximum Number of Prefixes Reached" {
		t.Errorf("the peer is told %q", got)
	}
	status := node.waitError(peer.v4, "maximum number of prefixes reached: it announces more than 5000")
	eventually(t, func() error {
		if status = node.peer(peer.v4); status.HeldUntil.IsZero() || status.State != bgp.Idle {
			return fmt.Errorf("not held down: %+v", status)
		}
		return nil
	})
	if left := time.Until(status.HeldUntil); left < bgp.DefaultHoldDown-sessionTimeout || left > bgp.DefaultHoldDown {
		t.Errorf("held down for %s", left)
	}
	if next := node.do(call{Method: "Traffic"}).Traffic[peer.v4].NextTry; !next.Equal(status.HeldUntil) {
		t.Errorf("held down until %s, and let in from %s on", status.HeldUntil, next)
	}
	node.waitLearned("") // graceful restart or not
	if after := node.memory("VmHWM"); after > before+48 {
		t.Errorf("memory has grown from %d to %d MiB", before, after)
	}
	again := peer.connect(peer.v4, to)
	again.send(hello(2))
	if got := again.last(); got != "Cease/Connection Rejected" {
		t.Errorf("while it is held down it is told %q", got)
	}
	// An operator who allows more does not have to wait.
	node.setPeers(bgp.Peer{Addr: peer.v4, ASN: 64512, From: node.v4, Passive: true, MaxPrefixes: 2 * most})
	third := peer.connect(peer.v4, to)
	third.establish(2)
	node.waitEstablished(peer.v4)
}

// A peer that announces our own block, with a preference that nobody has, keeps nobody from hearing ours.
func TestOwnBlockIsOurs(t *testing.T) {
	t.Parallel()
	lan := newLAN(t)
	node, friend, thief := lan.host(1).speak(), lan.host(3).speak(), lan.host(2)
	for _, s := range []*speaker{node, friend} {
		s.start(64512, false)
	}
	node.setPeers(append(node.mesh(friend.host), bgp.Peer{Addr: thief.v4, ASN: 64512, From: node.v4, Passive: true})...)
	friend.setPeers(friend.mesh(node.host)...)
	p := thief.connect(thief.v4, netip.AddrPortFrom(node.v4, 179))
	p.establish(2)
	p.send(announce(thief.v4, 26, 10, 1, 1, 0, 26, 10, 1, 2, 0))
	node.waitLearned("10.1.1.0/26 10.1.2.0/26")

	// Announced before we have the block, and again when we have it.
	node.originate("10.1.1.0/26")
	friend.waitLearned("10.1.1.0/26")
	p.send(announce(thief.v4, 26, 10, 1, 1, 0, 26, 10, 1, 3, 0))
	node.waitLearned("10.1.2.0/26 10.1.3.0/26")
	node.originate("10.1.1.0/26", "10.1.4.0/26") // what friend hears of it comes after all that it could hear before
	friend.waitLearned("10.1.1.0/26 10.1.4.0/26")
	if hop := friend.snapshot()[0].NextHop; hop != node.v4 {
		t.Errorf("next hop of our block is %s", hop)
	}
	node.originate()
	node.waitLearned("10.1.1.0/26 10.1.2.0/26 10.1.3.0/26")
}
