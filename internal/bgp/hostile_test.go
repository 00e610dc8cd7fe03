package bgp_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/wire"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// rawPeer is a TCP connection from a host, on which a test sends any bytes.
type rawPeer struct {
	net.Conn
	t testing.TB
}

// connect opens a connection from the host's IPv4 address. It retries, as a speaker may still be closing the one
// before.
func connect(h *bgptest.Host, to netip.AddrPort) *rawPeer {
	h.T.Helper()
	p := &rawPeer{t: h.T}
	bgptest.Eventually(h.T, func() (err error) {
		p.Conn, err = h.DialFrom(h.V4, to)
		return err
	})
	return p
}

// established returns a connection on which the speaker has accepted the OPEN. It retries as connect does.
func established(h *bgptest.Host, to netip.AddrPort, open []byte) (p *rawPeer) {
	h.T.Helper()
	bgptest.Eventually(h.T, func() error {
		p = connect(h, to)
		p.send(open, keepalive)
		for _, want := range []wire.Type{wire.Open, wire.Keepalive} {
			if m := p.read(); m == nil || wire.TypeOf(m) != want {
				return errors.Join(fmt.Errorf("handshake: got % x, want type %d", m, want), p.Close())
			}
		}
		return nil
	})
	return p
}

// told connects, sends, and waits for the speaker's NOTIFICATION.
func told(h *bgptest.Host, to netip.AddrPort, notification string, messages ...[]byte) {
	h.T.Helper()
	bgptest.Eventually(h.T, func() error {
		p := connect(h, to)
		defer p.Close()
		p.send(messages...)
		if got := p.last(); got != notification {
			return fmt.Errorf("the peer is told %q, want %q", got, notification)
		}
		return nil
	})
}

// send ignores that the speaker has closed the connection; read reports it.
func (p *rawPeer) send(messages ...[]byte) { _, _ = p.Write(slices.Concat(messages...)) }

// read returns the next message, nil at the end of the connection.
func (p *rawPeer) read() []byte {
	p.t.Helper()
	m, err := wire.Read(p, make([]byte, wire.MaxLen))
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	errtest.Must(p.t, err)
	return m
}

// last reads to the end and returns the NOTIFICATION before it, as text.
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

// hello is the OPEN of a router in AS 64512 with both families and graceful restart of 120 s.
func hello(id byte) []byte {
	caps := []byte{1, 4, 0, 1, 0, 1, 1, 4, 0, 2, 0, 1, 65, 4, 0, 0, 0xfc, 0, 64, 10, 0x40, 120, 0, 1, 1, 0, 0, 2, 1, 0}
	body := []byte{4, 0xfc, 0, 0, 90, 10, 0, 0, id, byte(len(caps) + 2), 2, byte(len(caps))}
	return bgptest.Message(1, append(body, caps...)...)
}

var keepalive = bgptest.Message(4)

// announce is an UPDATE of iBGP with IPv4 prefixes in wire form.
func announce(nextHop netip.Addr, prefixes ...byte) []byte {
	attributes := append([]byte{0x40, 1, 1, 0, 0x40, 2, 0, 0x40, 5, 4, 0xff, 0xff, 0xff, 0xfe, 0x40, 3, 4}, nextHop.AsSlice()...)
	body := append([]byte{0, 0, 0, byte(len(attributes))}, attributes...)
	return bgptest.Message(2, append(body, prefixes...)...)
}

// target starts a speaker that waits for one peer, on another host.
func target(t *testing.T, change func(*bgp.Peer)) (node *bgptest.Speaker, peer *bgptest.Host, to netip.AddrPort) {
	t.Helper()
	lan := bgptest.NewLAN(t)
	node, peer = lan.Host(1).Speaker(), lan.Host(2)
	node.Start(64512, false)
	p := bgp.Peer{Addr: peer.V4, ASN: 64512, From: node.V4, Passive: true}
	if change != nil {
		change(&p)
	}
	node.SetPeers(p)
	return node, peer, netip.AddrPortFrom(node.V4, 179)
}

// Messages that ended the process when GoBGP itself read them, and others that no peer should send, after a proper
// handshake.
func TestHostilePeer(t *testing.T) {
	t.Parallel()
	node, peer, to := target(t, nil)
	for _, c := range []struct{ send, notification, reason string }{
		{string(bgptest.Message(77)), "Message Header Error/Bad Message Type", "Bad Message Type"},
		{string(bgptest.Message(2, 0, 0, 0, 15, 0x40, 1, 1, 0, 0x40, 2, 0, 0x80, 14, 5, 0, 1, 1, 16, 0)),
			"UPDATE Message Error/Optional Attribute Error", "MP_REACH_NLRI is cut short"},
		{string(bgptest.Message(2, 0, 9, 0, 0)), "UPDATE Message Error/Malformed Attribute List", "withdrawn routes"},
		{"GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n", "Message Header Error/Connection Not Synchronized", "Connection Not Synchronized"},
		{string(hello(2)), "Finite State Machine Error/Unexpected Message in Established", "out of order"},
	} {
		p := established(peer, to, hello(2))
		p.send([]byte(c.send))
		if got := p.last(); got != c.notification {
			t.Errorf("% x: the peer is told %q, want %q", c.send, got, c.notification)
		}
		node.WaitError(peer.V4, c.reason)
		p.Close()
	}
	// Its paths went with its session, and a sound one is welcome.
	p := established(peer, to, hello(2))
	p.send(announce(peer.V4, 26, 10, 1, 2, 0), bgptest.Message(2, 0, 0, 0, 0))
	node.WaitLearned("10.1.2.0/26")
	// A faulty announcement withdraws its prefix, and the session goes on. It is counted and reported.
	since := node.Peer(peer.V4).Since
	p.send(announce(netip.MustParseAddr("127.0.0.1"), 26, 10, 1, 2, 0))
	node.WaitLearned("")
	now := node.Peer(peer.V4)
	if now.State != bgp.Established || !now.Since.Equal(since) {
		t.Errorf("the session after a bad next hop: %+v", now)
	}
	want := []bgp.Refusal{{Reason: "its UPDATE is malformed", Prefixes: 1, Example: netip.MustParsePrefix("10.1.2.0/26")}}
	if !slices.Equal(now.Refused, want) || now.Received != 1 {
		t.Errorf("%d received, refused: %+v, want %+v", now.Received, now.Refused, want)
	}
	counted := node.Call(bgptest.Call{Method: "Traffic"})
	passed := counted.Traffic[peer.V4]
	if passed.Flawed != 1 || !strings.Contains(passed.LastFlaw, "NEXT_HOP") || !passed.NextTry.IsZero() {
		t.Errorf("what has passed: %+v", passed)
	}
	// Six sessions, with at least an OPEN and a KEEPALIVE in each direction.
	if total := counted.Totals; passed.Received < 12 || passed.Sent < 12 || total.Received != passed.Received ||
		total.Sent != passed.Sent || total.Flawed != 1 {
		t.Errorf("what has passed: %+v, of all peers: %+v", passed, total)
	}
}

// Bytes from an address that is no peer, or before an OPEN, cost a connection and reach no session.
func TestGarbageOnThePort(t *testing.T) {
	t.Parallel()
	node, peer, to := target(t, nil)
	stranger := netip.MustParseAddr("10.0.0.3")
	peer.IP("addr", "add", stranger.String()+"/24", "dev", "eth0")
	const script = `for i in $(seq 300); do exec 3<>/dev/tcp/10.0.0.1/179 && head -c 4096 /dev/urandom >&3; exec 3>&-; done 2>/dev/null; true`
	peer.Run(t, "bash", "-c", script)
	for range 5 {
		conn, err := peer.DialFrom(stranger, to)
		if err == nil && (&rawPeer{conn, t}).read() != nil {
			t.Error("a stranger gets an answer")
		}
	}
	node.WaitError(peer.V4, "Connection Not Synchronized")
	if n := node.Call(bgptest.Call{Method: "Traffic"}).Totals.Strangers; n != 5 {
		t.Errorf("%d connections of strangers were counted", n)
	}
	established(peer, to, hello(2))
	node.WaitEstablished(peer.V4)
	node.Call(bgptest.Call{Method: "Healthy"})
}

// A process of this host cannot pose as a peer towards GoBGP.
func TestNobodyPosesAsPeerInside(t *testing.T) {
	t.Parallel()
	node, _, _ := target(t, nil)
	listeners := node.Run(t, "ss", "-Htln", "src", "127.0.0.0/8")
	fields := strings.Fields(listeners)
	if len(fields) < 4 || strings.Count(listeners, "\n") != 1 {
		t.Fatalf("not one listener inside:\n%s", listeners)
	}
	inside := netip.MustParseAddrPort(fields[3])
	// A listener that takes the segments answers at once, and the kernel sends them again after one second and after
	// three.
	for _, from := range []string{"127.179.1.0:0", "127.0.0.1:0"} {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from)), Timeout: 4 * time.Second}
		err := node.Do(func() error {
			_, err := d.DialContext(t.Context(), "tcp", inside.String())
			return err
		})
		if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
			t.Errorf("from %s: %v, want silence", from, err)
		}
	}
	if p := node.Peer(netip.MustParseAddr("10.0.0.2")); p.State == bgp.Established {
		t.Error("somebody posed as the peer")
	}
}

// A peer with a short hold time receives KEEPALIVEs as often as configured, not only three times in its hold time.
func TestKeepalive(t *testing.T) {
	t.Parallel()
	node, peer, to := target(t, func(p *bgp.Peer) { p.Keepalive = time.Second })
	p := connect(peer, to)
	open := hello(2)
	binary.BigEndian.PutUint16(open[22:], 30)
	p.send(open, keepalive)
	// The peer is silent from here on: three in its hold time are four, with the handshake's, when the session ends.
	for heard := 0; heard < 6; {
		m := p.read()
		if m == nil {
			t.Fatalf("the session has ended: %+v", node.Peer(peer.V4))
		}
		if wire.TypeOf(m) == wire.Keepalive {
			heard++
		}
	}
}

func TestFlood(t *testing.T) {
	t.Parallel()
	const most = 5000
	node, peer, to := target(t, func(p *bgp.Peer) { p.MaxPrefixes = most })
	node.Call(bgptest.Call{Method: "Quiet"})
	p := established(peer, to, hello(2))
	p.send(announce(peer.V4, 26, 10, 1, 2, 0))
	node.WaitLearned("10.1.2.0/26")
	before := node.Usage().Peak >> 10
	go func() {
		for i := 0; i < 100000; i += 500 {
			var prefixes []byte
			for j := i; j < i+500; j++ {
				prefixes = append(prefixes, 32, 10, byte(128+j>>16), byte(j>>8), byte(j))
			}
			if _, err := p.Write(announce(peer.V4, prefixes...)); err != nil {
				return // the session has ended
			}
		}
	}()
	if got := p.last(); got != "Cease/Maximum Number of Prefixes Reached" {
		t.Errorf("the peer is told %q", got)
	}
	status := node.WaitError(peer.V4, "maximum number of prefixes reached: it announces more than 5000")
	bgptest.Eventually(t, func() error {
		if status = node.Peer(peer.V4); status.HeldUntil.IsZero() || status.State != bgp.Idle {
			return fmt.Errorf("not held down: %+v", status)
		}
		return nil
	})
	if left := time.Until(status.HeldUntil); left < bgp.DefaultHoldDown-bgptest.Patience || left > bgp.DefaultHoldDown {
		t.Errorf("held down for %s", left)
	}
	if next := node.Call(bgptest.Call{Method: "Traffic"}).Traffic[peer.V4].NextTry; !next.Equal(status.HeldUntil) {
		t.Errorf("held down until %s, and let in from %s on", status.HeldUntil, next)
	}
	node.WaitLearned("") // graceful restart or not
	if after := node.Usage().Peak >> 10; after > before+48 {
		t.Errorf("memory has grown from %d to %d MiB", before, after)
	}
	told(peer, to, "Cease/Connection Rejected", hello(2))
	// An operator who allows more does not have to wait.
	node.SetPeers(bgp.Peer{Addr: peer.V4, ASN: 64512, From: node.V4, Passive: true, MaxPrefixes: 2 * most})
	established(peer, to, hello(2))
	node.WaitEstablished(peer.V4)
}

// A peer that announces our own block, with the highest preference, keeps no other peer from receiving ours.
func TestOwnBlockIsOurs(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	node, friend, thief := lan.Host(1).Speaker(), lan.Host(3).Speaker(), lan.Host(2)
	for _, s := range []*bgptest.Speaker{node, friend} {
		s.Start(64512, false)
	}
	node.SetPeers(append(mesh(node.Host, friend.Host), bgp.Peer{Addr: thief.V4, ASN: 64512, From: node.V4, Passive: true})...)
	friend.SetPeers(mesh(friend.Host, node.Host)...)
	p := established(thief, netip.AddrPortFrom(node.V4, 179), hello(2))
	p.send(announce(thief.V4, 26, 10, 1, 1, 0, 26, 10, 1, 2, 0))
	node.WaitLearned("10.1.1.0/26 10.1.2.0/26")

	// Announced before we have the block, and again when we have it.
	node.Originate("10.1.1.0/26")
	friend.WaitLearned("10.1.1.0/26")
	p.send(announce(thief.V4, 26, 10, 1, 1, 0, 26, 10, 1, 3, 0))
	node.WaitLearned("10.1.2.0/26 10.1.3.0/26")
	node.Originate("10.1.1.0/26", "10.1.4.0/26") // friend receives this after everything before it
	friend.WaitLearned("10.1.1.0/26 10.1.4.0/26")
	if hop := friend.Snapshot()[0].NextHop; hop != node.V4 {
		t.Errorf("next hop of our block is %s", hop)
	}
	node.Originate()
	node.WaitLearned("10.1.1.0/26 10.1.2.0/26 10.1.3.0/26")
}
