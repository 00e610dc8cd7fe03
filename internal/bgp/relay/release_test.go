package relay_test

import (
	"context"
	"encoding/binary"
	"fmt"
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

// mute is a speaker that takes a session and then says nothing, whatever it is told.
type mute struct{ t *testing.T }

func (mute) Ready(context.Context) error { return nil }

func (m mute) Attach(context.Context, []byte) (net.Conn, error) {
	ours, theirs := net.Pipe()
	m.t.Cleanup(func() { ours.Close() })
	go func() { _, _ = io.Copy(io.Discard, ours) }()
	return theirs, nil
}

func (mute) Throttle(context.Context) {}
func (mute) Changed()                 {}
func (mute) Drain(context.Context)    {}
func (mute) Session(bool)             {}
func (m mute) Failed(reason string)   { m.t.Log(reason) }

// read returns the next message, of type 0 at the end.
func read(conn net.Conn) (kind byte, body []byte) {
	header := make([]byte, 19)
	if _, err := io.ReadFull(conn, header); err != nil {
		return 0, nil
	}
	body = make([]byte, binary.BigEndian.Uint16(header[16:])-19)
	_, _ = io.ReadFull(conn, body)
	return header[18], body
}

// established makes a link whose session is up, and returns the peer's end, and how to replace the link.
func established(t *testing.T, behind relay.Behind) (link *relay.Link, conn net.Conn, replace func() *relay.Link) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	local := netip.MustParseAddr("127.0.0.1")
	r := relay.New(slog.New(slog.DiscardHandler), time.Now, relay.Config{ASN: 64512, RouterID: netip.MustParseAddr("10.0.0.1")})
	rules := &relay.Rules{Base: &policy.Base{}, Session: policy.Session{LocalASN: 64512, PeerASN: 64512}}
	peer := relay.Peer{
		Addr: local, From: local, Port: uint16(l.Addr().(*net.TCPAddr).Port), ASN: 64512, ConnectRetry: time.Second, HoldTime: 90 * time.Second, MaxPrefixes: 10,
	}
	link = r.Add(peer, rules, behind)
	if conn, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = conn.Write(bgptest.OpenMessage(64512, netip.MustParseAddr("10.0.0.2"), true, 90, 120))
	_, _ = conn.Write(bgptest.Message(bgptest.Keepalive))
	for kind := byte(0); kind != bgptest.Keepalive; {
		if kind, _ = read(conn); kind == 0 {
			t.Fatal("there is no session")
		}
	}
	return link, conn, func() *relay.Link { return r.Replace(link, peer, rules, behind) }
}

// A link that is replaced loses no path, at no moment: the new one has those of the old one's session, stale.
func TestReplaceKeepsPaths(t *testing.T) {
	t.Parallel()
	link, conn, replace := established(t, mute{t})
	block := netip.MustParsePrefix("10.1.2.0/26")
	_, _ = conn.Write(bgptest.UpdateMessage(netip.MustParseAddr("10.0.0.2"), 100, block))
	stale := func() (all []bool) {
		link.Paths(func(p relay.Path) { all = append(all, p.Prefix == block && p.Stale) })
		return all
	}
	bgptest.Eventually(t, func() error {
		if got := stale(); len(got) != 1 || got[0] {
			return fmt.Errorf("paths that are stale: %v", got)
		}
		return nil
	})
	link = replace()
	defer func() { link.Retire(); link.Release() }()
	if got := stale(); len(got) != 1 || !got[0] {
		t.Errorf("paths that are stale after the link was replaced: %v", got)
	}
	if status := link.Status(); !status.Restarting || status.Received != 1 {
		t.Errorf("after the link was replaced: %+v", status)
	}
}

// A peer that is removed hears Cease, also if the speaker behind does not come to saying it.
func TestReleaseSaysCease(t *testing.T) {
	t.Parallel()
	link, conn, _ := established(t, mute{t})
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
