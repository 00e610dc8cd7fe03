package relay_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp/policy"
	"github.com/tortie-net/tortie/internal/bgp/relay"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
)

var (
	blockA = relay.Originated{Prefix: netip.MustParsePrefix("10.1.5.0/26")}
	blockB = relay.Originated{Prefix: netip.MustParsePrefix("10.1.6.0/26")}
	other6 = relay.Originated{Prefix: netip.MustParsePrefix("fd01::/122")} // which is not for a session of IPv4
)

// alone is a session that the relay carries without the speaker behind, and the peer's end of it.
type alone struct {
	t     *testing.T
	relay *relay.Relay
	link  *relay.Link
	conn  net.Conn
}

func newAlone(t *testing.T, behind relay.Behind, hold uint16, originated ...relay.Originated) *alone {
	t.Helper()
	a := &alone{t: t, relay: newRelay(time.Now)}
	a.relay.SetOriginated(originated)
	a.link, a.conn, _ = agreedWith(t, a.relay, behind, time.Time{}, false, hold)
	t.Cleanup(func() { a.link.Retire(); a.link.Release() })
	return a
}

func (a *alone) send(messages ...[]byte) {
	for _, m := range messages {
		_, _ = a.conn.Write(m)
	}
}

// hears fails the test unless the peer is told these next, each a type and a body in hexadecimal digits, apart from
// KEEPALIVEs.
func (a *alone) hears(want ...string) {
	a.t.Helper()
	for _, w := range want {
		kind, body := read(a.conn)
		for kind == bgptest.Keepalive && !strings.HasPrefix(w, "4 ") {
			kind, body = read(a.conn)
		}
		if got := fmt.Sprintf("%d %s", kind, hex.EncodeToString(body)); got != strings.ReplaceAll(w, "_", "") {
			a.t.Fatalf("the peer is told\n%s, want\n%s", got, w)
		}
	}
}

// start reads the handshake.
func (a *alone) start() {
	a.t.Helper()
	for _, want := range []byte{bgptest.Open, bgptest.Keepalive} {
		if kind, _ := read(a.conn); kind != want {
			a.t.Fatalf("message of type %d in the handshake, want %d", kind, want)
		}
	}
}

// What the peer is told of blocks: ORIGIN IGP, an empty AS_PATH, our end as NEXT_HOP, LOCAL_PREF 100.
const (
	attributes = "_40010100_400200_4003047f000001_40050400000064_"
	announcesA = "2 0000_0015" + attributes + "1a0a010500"
	announcesB = "2 0000_0015" + attributes + "1a0a010600"
	withdrawsA = "2 0005_1a0a010500_0000"
	endOfRIB   = "2 00000000"
)

// The peer is told what this node originates, its changes, and all again when it asks for it, when rules change, or
// when it is touched.
func TestAloneAnnounces(t *testing.T) {
	t.Parallel()
	a := newAlone(t, keeper{mute{t}, nil}, 90, blockA, other6)
	a.start()
	a.hears(announcesA, endOfRIB)
	a.relay.SetOriginated([]relay.Originated{blockB})
	a.hears(withdrawsA, announcesB)
	a.relay.SetOriginated([]relay.Originated{blockB})
	a.send(bgptest.Message(5, 0, 1, 0, 1)) // ROUTE-REFRESH
	a.hears(announcesB)
	a.relay.TouchOriginated(func(p netip.Prefix) bool { return p == blockA.Prefix })
	a.relay.TouchOriginated(func(p netip.Prefix) bool { return p == blockB.Prefix })
	a.hears(announcesB)
	elsewhere := blockB
	elsewhere.NextHop = netip.MustParseAddr("10.9.9.9")
	a.relay.SetOriginated([]relay.Originated{elsewhere})
	a.hears(strings.Replace(announcesB, "7f000001", "0a090909", 1))
	silent := rulesOf(false)
	silent.Base = hiding(blockB.Prefix)
	a.link.SetRules(silent)
	a.relay.TouchOriginated(func(netip.Prefix) bool { return true })
	a.hears("2 0005_1a0a010600_0000")
	a.relay.SetOriginated(nil) // the peer has nothing of it any more
	a.relay.SetOriginated([]relay.Originated{blockA})
	a.hears(announcesA)
	a.link.Retire()
	a.link.Release()
	a.hears("3 0603", "0 ")
}

// The peer hears of this node three times in its hold time, and is told when it has been silent for as long.
func TestAloneKeepsTime(t *testing.T) {
	t.Parallel()
	a := newAlone(t, keeper{mute{t}, nil}, 3)
	a.start()
	a.hears(endOfRIB, "4 ", "4 ")
	a.hears("3 0400", "0 ") // NOTIFICATION: the hold timer has expired, not before two KEEPALIVEs a second apart
	bgptest.Eventually(t, func() error {
		if s := a.link.Status(); !s.Restarting && s.Up {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// A peer that reads nothing is no hindrance to the others, and can be removed.
func TestAloneWithADeafPeer(t *testing.T) {
	t.Parallel()
	a := newAlone(t, keeper{mute{t}, nil}, 90)
	a.start()
	many := make([]relay.Originated, 0, 1<<20)
	for i := range 1 << 20 { // more than sockets take
		prefix, _ := netip.AddrFrom4([4]byte{10, byte(i >> 14), byte(i >> 6), byte(i << 2)}).Prefix(30)
		many = append(many, relay.Originated{Prefix: prefix})
	}
	bgptest.Eventually(t, func() error {
		if s := a.link.Status(); !s.Up {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	for i := range 3 {
		a.relay.SetOriginated(many[i:])
	}
	a.link.Retire()
	a.link.Release()
	a.link.Wait(t.Context())
	_, _ = io.Copy(io.Discard, a.conn)
}

// When other peers are to be told, the speaker behind takes the session as it is: it is told what the peer has
// announced, and announces from then on. The peer notices nothing.
func TestSessionIsHandedOver(t *testing.T) {
	t.Parallel()
	behind := &taker{mute: mute{t}, conns: make(chan net.Conn, 1), announces: make(chan struct{})}
	a := newAlone(t, behind, 90, blockA)
	a.start()
	a.hears(announcesA, endOfRIB)
	next := netip.MustParseAddr("10.0.0.2")
	a.send(bgptest.UpdateMessage(next, 100, netip.MustParsePrefix("10.1.2.0/26")), bgptest.Message(bgptest.Update, 0, 0, 0, 0))
	bgptest.Eventually(t, func() error {
		if s := a.link.Status(); s.Received != 1 || s.TableEnded.IsZero() {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	select {
	case <-behind.conns:
		t.Fatal("the speaker behind got the session of a peer of which nobody is told")
	default:
	}
	a.link.SetRules(rulesOf(true))
	speaker := <-behind.conns
	a.relay.SetOriginated([]relay.Originated{blockB}) // which the speaker might not tell any more
	a.hears(withdrawsA, announcesB)
	close(behind.announces)
	_ = speaker.SetDeadline(time.Now().Add(20 * time.Second))
	told := func(suffix string) {
		t.Helper()
		kind, body := read(speaker)
		for kind == bgptest.Keepalive {
			kind, body = read(speaker)
		}
		if got := hex.EncodeToString(body); kind != bgptest.Update || !strings.HasSuffix(got, suffix) {
			t.Fatalf("the speaker behind is told %d %s, want ...%s", kind, got, suffix)
		}
	}
	told("1a0a010200")
	told("00000000")
	a.send(bgptest.UpdateMessage(next, 100, netip.MustParsePrefix("10.1.3.0/26")))
	told("1a0a010300")
	a.relay.SetOriginated([]relay.Originated{blockA}) // is the speaker's to say
	_, _ = speaker.Write(bgptest.UpdateMessage(netip.MustParseAddr("127.0.0.1"), 100, blockA.Prefix))
	_, _ = speaker.Write(bgptest.Message(bgptest.Update, 0, 0, 0, 0))
	a.hears(announcesA)
	_ = speaker.Close()
	if kind, _ := read(a.conn); kind != 0 {
		t.Errorf("message of type %d, want the end of the connection", kind)
	}
}

// taker is a speaker whose connections a test has.
type taker struct {
	mute

	conns     chan net.Conn
	announces chan struct{} // closed when it announces
}

func (b *taker) Announces(context.Context) error { <-b.announces; return nil }

func (b *taker) Attach(context.Context, []byte) (net.Conn, error) {
	ours, theirs := net.Pipe()
	b.conns <- ours
	return theirs, nil
}

// hiding are rules for every peer by which a prefix is not announced.
func hiding(prefix netip.Prefix) *policy.Base { return &policy.Base{Hidden: []netip.Prefix{prefix}} }
