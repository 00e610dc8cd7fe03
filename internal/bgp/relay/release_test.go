package relay_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp/policy"
	"github.com/tortie-net/tortie/internal/bgp/relay"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// mute is a speaker that takes a session and sends nothing.
type mute struct{ t *testing.T }

func (mute) Ready(context.Context) error { return nil }

func (m mute) Attach(context.Context, []byte) (net.Conn, error) {
	ours, theirs := net.Pipe()
	m.t.Cleanup(func() { ours.Close() })
	go func() { _, _ = io.Copy(io.Discard, ours) }()
	return theirs, nil
}

func (mute) Throttle(context.Context, []byte) {}
func (mute) Drain(context.Context)            {}
func (mute) Session(bool)                     {}
func (m mute) Failed(reason string)           { m.t.Log(reason) }
func (m mute) Ended(end relay.End)            { m.t.Logf("%+v", end) }

// read returns the next message, type 0 at the end of the connection.
func read(conn net.Conn) (kind byte, body []byte) {
	header := make([]byte, 19)
	if _, err := io.ReadFull(conn, header); err != nil {
		return 0, nil
	}
	body = make([]byte, binary.BigEndian.Uint16(header[16:])-19)
	_, _ = io.ReadFull(conn, body)
	return header[18], body
}

// established returns a link with a session that is up, the peer's end of it, and a function that replaces the link.
func established(t *testing.T, now func() time.Time, behind relay.Behind) (link *relay.Link, conn net.Conn, replace func() *relay.Link) {
	t.Helper()
	link, conn, replace = agreed(t, now, behind, time.Time{})
	for kind := byte(0); kind != bgptest.Keepalive; {
		if kind, _ = read(conn); kind == 0 {
			t.Fatal("there is no session")
		}
	}
	return link, conn, replace
}

// rules returns the rules for a peer in our own AS.
func rules() *relay.Rules {
	return &relay.Rules{Base: &policy.Base{}, Session: policy.Session{LocalASN: 64512, PeerASN: 64512}}
}

// newRelay returns a relay that listens nowhere.
func newRelay(now func() time.Time) *relay.Relay {
	return relay.New(slog.New(slog.DiscardHandler), now, relay.Config{})
}

// agreed returns a link whose peer has agreed to a session, and keeps paths of this node until kept.
func agreed(t *testing.T, now func() time.Time, behind relay.Behind,
	kept time.Time) (link *relay.Link, conn net.Conn, replace func() *relay.Link) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	local := netip.MustParseAddr("127.0.0.1")
	peer := relay.Peer{
		SpeakerASN: 64512, RouterID: netip.MustParseAddr("10.0.0.1"),
		Addr: local, From: local, Port: uint16(l.Addr().(*net.TCPAddr).Port), ASN: 64512, ConnectRetry: time.Second,
		HoldTime: 90 * time.Second, MaxPrefixes: 10,
		KeptUntil: kept,
	}
	r := newRelay(now)
	link = r.Add(peer, rules(), behind)
	if conn, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = conn.Write(bgptest.OpenMessage(64512, netip.MustParseAddr("10.0.0.2"), true, 90, 120))
	_, _ = conn.Write(bgptest.Message(bgptest.Keepalive))
	return link, conn, func() *relay.Link { return r.Replace(link, peer, rules(), behind) }
}

// busy is a speaker that needs a while to take a session, and then sends End-of-RIB of an empty table.
type busy struct{ mute }

func (b busy) Attach(context.Context, []byte) (net.Conn, error) {
	time.Sleep(300 * time.Millisecond) //nolint:forbidigo // longer than it is held without an answer
	ours, theirs := net.Pipe()
	b.t.Cleanup(func() { ours.Close() })
	go func() { _, _ = ours.Write(bgptest.Message(bgptest.Update, 0, 0, 0, 0)) }()
	return theirs, nil
}

// After a restart the peer gets our KEEPALIVE together with our table, even if the table takes longer than heldTime.
// Else the peer would consider the session up, and drop our old paths if the next restart came before the table (RFC
// 4724 section 4.2).
func TestTableComesWithKeepalive(t *testing.T) {
	link, conn, _ := agreed(t, time.Now, busy{mute{t}}, time.Now().Add(time.Hour))
	defer func() { link.Retire(); link.Release() }()
	if kind, _ := read(conn); kind != bgptest.Open {
		t.Fatalf("a message of type %d, want an OPEN", kind)
	}
	buf := make([]byte, 4096)
	n, err := conn.Read(buf)
	errtest.Must(t, err)
	want := append(bgptest.Message(bgptest.Keepalive), bgptest.Message(bgptest.Update, 0, 0, 0, 0)...)
	if !bytes.Equal(buf[:n], want) {
		t.Errorf("the peer is told % x at once, want % x", buf[:n], want)
	}
}

// A removed peer receives Cease, even if the speaker behind does not send it.
func TestReleaseSaysCease(t *testing.T) {
	t.Parallel()
	link, conn, _ := established(t, time.Now, mute{t})
	link.Retire()
	link.Release()
	for {
		kind, body := read(conn)
		if kind == bgptest.Notification {
			if len(body) < 2 || body[0] != 6 || body[1] != 3 {
				t.Errorf("NOTIFICATION %x, want Cease, peer de-configured", body)
			}
			return
		}
		if kind == 0 {
			t.Fatal("the connection ended without a word")
		}
	}
}
