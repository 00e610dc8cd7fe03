package relay_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
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

func (mute) Announces(context.Context) error { return nil }

func (mute) Throttle(context.Context) {}
func (mute) Changed()                 {}
func (mute) Drain(context.Context)    {}
func (mute) Session(bool)             {}
func (m mute) Failed(reason string)   { m.t.Log(reason) }
func (m mute) Ended(end relay.End)    { m.t.Logf("%+v", end) }

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

// established makes a link whose session is up, which the speaker behind has, and returns the peer's end, and how to
// replace the link.
func established(t *testing.T, now func() time.Time, behind relay.Behind) (link *relay.Link, conn net.Conn, replace func() *relay.Link) {
	t.Helper()
	link, conn, replace = agreed(t, now, behind, time.Time{}, true)
	for kind := byte(0); kind != bgptest.Keepalive; {
		if kind, _ = read(conn); kind == 0 {
			t.Fatal("there is no session")
		}
	}
	return link, conn, replace
}

// rulesOf are those of a peer in our own AS of whose paths others are told, or are not.
func rulesOf(told bool) *relay.Rules {
	return &relay.Rules{Base: &policy.Base{}, Session: policy.Session{LocalASN: 64512, PeerASN: 64512}, Told: told}
}

// newRelay is a relay in AS 64512.
func newRelay(now func() time.Time) *relay.Relay {
	return relay.New(slog.New(slog.DiscardHandler), now, relay.Config{ASN: 64512, RouterID: netip.MustParseAddr("10.0.0.1")})
}

// agreed makes a link whose peer has agreed to a session, and has kept what it had of this node until then.
func agreed(t *testing.T, now func() time.Time, behind relay.Behind, kept time.Time,
	told bool) (link *relay.Link, conn net.Conn, replace func() *relay.Link) {
	t.Helper()
	return agreedWith(t, newRelay(now), behind, kept, told, 90)
}

// agreedWith is agreed with a relay, and the hold time of the peer in seconds.
func agreedWith(t *testing.T, r *relay.Relay, behind relay.Behind, kept time.Time, told bool,
	hold uint16) (link *relay.Link, conn net.Conn, replace func() *relay.Link) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	errtest.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	local := netip.MustParseAddr("127.0.0.1")
	rules := rulesOf(told)
	peer := relay.Peer{
		Addr: local, From: local, Port: uint16(l.Addr().(*net.TCPAddr).Port), ASN: 64512, ConnectRetry: time.Second,
		HoldTime: 90 * time.Second, MaxPrefixes: 10,
		KeptUntil: kept,
	}
	link = r.Add(peer, rules, behind)
	if conn, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = conn.Write(bgptest.OpenMessage(64512, netip.MustParseAddr("10.0.0.2"), true, hold, 120))
	_, _ = conn.Write(bgptest.Message(bgptest.Keepalive))
	return link, conn, func() *relay.Link { return r.Replace(link, peer, rules, behind) }
}

// A link that is replaced loses no path, at no moment: the new one has those of the old one's session, stale.
func TestReplaceKeepsPaths(t *testing.T) {
	t.Parallel()
	link, conn, replace := established(t, time.Now, mute{t})
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

// busy is a speaker that needs a while to take a session, and then tells its table, which is empty.
type busy struct{ mute }

func (b busy) Attach(context.Context, []byte) (net.Conn, error) {
	time.Sleep(300 * time.Millisecond) //nolint:forbidigo // longer than it is held without an answer
	ours, theirs := net.Pipe()
	b.t.Cleanup(func() { ours.Close() })
	go func() { _, _ = ours.Write(bgptest.Message(bgptest.Update, 0, 0, 0, 0)) }()
	return theirs, nil
}

// After a restart the peer has our KEEPALIVE together with our table, also if that takes longer than a peer that says
// nothing is waited for: the session is up for it, so that it drops what it has kept of us if the next restart comes
// between the two (RFC 4724 section 4.2).
func TestTableComesWithKeepalive(t *testing.T) {
	link, conn, _ := agreed(t, time.Now, busy{mute{t}}, time.Now().Add(time.Hour), true)
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

// keeper is a speaker that shows what it is told: the OPEN of each session, all UPDATEs, and nothing at the end of a
// session.
type keeper struct {
	mute
	told chan []byte
}

func (k keeper) Attach(_ context.Context, open []byte) (net.Conn, error) {
	ours, theirs := net.Pipe()
	k.t.Cleanup(func() { ours.Close() })
	k.told <- open[19:]
	go func() {
		for kind, body := read(ours); ; kind, body = read(ours) {
			if kind == 0 || kind == bgptest.Update {
				k.told <- body
			}
			if kind == 0 {
				return
			}
		}
	}()
	return theirs, nil
}

// What is kept of a peer is told when others are to be told of it, once, and for what is left of the restart time.
func TestKeptIsToldLater(t *testing.T) {
	t.Parallel()
	var late atomic.Int64
	behind := keeper{mute{t}, make(chan []byte, 16)}
	next := func() []byte {
		select {
		case told := <-behind.told:
			return told
		case <-time.After(20 * time.Second):
			t.Fatal("the speaker behind is told of nothing")
		}
		return nil
	}
	restartTime := func(open []byte) int { // is at the end of the capability's first two octets, before one family
		return int(binary.BigEndian.Uint16(open[len(open)-6:]) & 0xfff)
	}
	link, conn, _ := agreed(t, func() time.Time { return time.Now().Add(time.Duration(late.Load())) }, behind, time.Time{}, false)
	defer func() { link.Retire(); link.Release() }()
	block := netip.MustParsePrefix("10.1.2.0/26")
	_, _ = conn.Write(bgptest.UpdateMessage(netip.MustParseAddr("10.0.0.2"), 100, block))
	has := func(restarting bool) {
		t.Helper()
		bgptest.Eventually(t, func() error {
			if got := link.Status(); got.Received != 1 || got.Restarting != restarting {
				return fmt.Errorf("%+v", got)
			}
			return nil
		})
	}
	has(false)
	_ = conn.Close()
	has(true)
	late.Store(int64(50 * time.Second))
	link.SetRules(rulesOf(true))
	if got := restartTime(next()); got < 60 || got > 70 {
		t.Errorf("50 s after the end of the session the restart time is %d s, want what is left of 120 s", got)
	}
	if told := next(); !bytes.HasSuffix(told, []byte{26, 10, 1, 2, 0}) {
		t.Errorf("told %x, want %s", told, block)
	}
	if told := next(); told != nil {
		t.Errorf("told %x, want the end", told)
	}
}

// A peer that is removed hears Cease, also if the speaker behind does not come to saying it.
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
