package interop_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// The reason for a session that is down is a text, whichever end found the cause.
func TestReasonsInWords(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind bgptest.Kind) {
		lan, node := node(t)
		shuts, stops := lan.Host(10), lan.Host(11)
		other, theirs, port := lan.Host(12), lan.Host(13), lan.Host(14)
		asks := func(p *bgptest.Session) { p.HoldTime = 3 * time.Second }
		waits := func(p *bgptest.Session) { p.Passive = true }
		wrong := func(p *bgptest.Session) { p.ASN = 65001 }
		shut := shuts.Daemon(kind, partner(10, node.Host))
		stop := stops.Daemon(kind, partner(11, node.Host, asks))
		foreign := partner(12, node.Host, waits)
		foreign.ASN = 64999 // another AS than the node expects
		other.Daemon(kind, foreign)
		theirs.Daemon(kind, partner(13, node.Host, waits, wrong)) // it expects another AS than the node's
		port.Daemon(kind, partner(14, node.Host, waits))

		var all []bgp.Peer
		for _, h := range []*bgptest.Host{shuts, stops, other, theirs} {
			all = append(all, peers(node.Host, h)...)
		}
		all = append(all, peers(node.Host, port, func(p *bgp.Peer) { p.Port = 1790 })...)
		node.SetPeers(all...)

		node.WaitEstablished(shuts.V4, shuts.V6, stops.V4, stops.V6)
		for _, addr := range node.Addrs() {
			shut.Shutdown(addr, "moving to rack 7")
		}
		stop.Signal(syscall.SIGSTOP)
		want := map[netip.Addr][]string{}
		for _, c := range []struct {
			host  *bgptest.Host
			words []string
		}{
			{shuts, []string{"Shutdown", "moving to rack 7"}},
			{stops, []string{"hold time"}},
			{other, []string{"64512", "64999"}},
			{theirs, []string{"by the peer", "AS"}},
			{port, []string{"TCP refused on port 1790"}},
		} {
			for _, addr := range c.host.Addrs() {
				want[addr] = c.words
			}
		}
		node.WaitErrors(want)
		stop.Signal(syscall.SIGCONT)
		node.WaitEstablished(stops.Addrs()...)
	})
}

// Sessions are signed with a password. A wrong password has another reason than a dead peer, and both ends can change
// the password of a running session.
func TestPassword(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind bgptest.Kind) {
		lan, node := node(t)
		unsigned, connects, waits := lan.Host(10), lan.Host(11), lan.Host(12)
		password := func(text string) func(*bgptest.Session) { return func(p *bgptest.Session) { p.Password = text } }
		unsigned.Daemon(kind, partner(10, node.Host))
		daemons := map[*bgptest.Host]bgptest.Daemon{
			connects: connects.Daemon(kind, partner(11, node.Host, password("first"))),
			waits:    waits.Daemon(kind, partner(12, node.Host, password("first"), func(p *bgptest.Session) { p.Passive = true })),
		}
		set := func(text string) {
			all := peers(node.Host, unsigned)
			all = append(all, peers(node.Host, connects, func(p *bgp.Peer) { p.Passive, p.Password = true, text })...)
			all = append(all, peers(node.Host, waits, func(p *bgp.Peer) { p.Password = text })...)
			node.SetPeers(all...)
		}
		set("first")
		node.WaitEstablished(unsigned.Addrs()...)
		before := node.Peer(unsigned.V4).Since
		for h := range daemons {
			node.WaitEstablished(h.Addrs()...)
		}

		set("second")
		want := map[netip.Addr][]string{}
		for h := range daemons {
			for _, addr := range h.Addrs() {
				want[addr] = []string{"password"}
			}
		}
		node.WaitErrors(want)
		for h, d := range daemons {
			for _, addr := range node.Addrs() {
				d.SetPassword(addr, "second")
			}
			node.WaitEstablished(h.Addrs()...)
		}
		set("") // the node has none: neither end accepts segments of the other
		for h := range daemons {
			for _, addr := range h.Addrs() {
				bgptest.Eventually(t, func() error {
					if p := node.Peer(addr); p.State == bgp.Established || p.LastError == "" {
						return fmt.Errorf("session to %s without a password: %+v", addr, p)
					}
					return nil
				})
			}
		}
		if p := node.Peer(unsigned.V4); p.State != bgp.Established || !p.Since.Equal(before) {
			t.Errorf("the session that has no password was touched: %+v, was up since %s", p, before)
		}
		if log := node.Log(); strings.Contains(log, "second") {
			t.Errorf("the log has the password:\n%s", log)
		}
	})
}

// The restart and forwarding bits of RFC 4724 keep routes in the peers' kernels. The OPEN has them after a restart, for
// the session's family, and not before.
func TestRestartBitsOnTheWire(t *testing.T) {
	t.Parallel()
	lan, node := node(t)
	first, second := lan.Host(10), lan.Host(11)
	waits := func(p *bgp.Peer) { p.Passive, p.ConnectRetry, p.RestartTime = true, time.Second, 100*time.Second }
	set := func(s *bgptest.Speaker) {
		s.SetPeers(append(peers(s.Host, first, waits), peers(s.Host, second, waits)...)...)
	}
	set(node)
	for i, addr := range node.Addrs() {
		session, open := first.Establish(addr, ourASN, 120)
		checkRestart(t, open, byte(i+1), false, false)
		// Only the connection is lost: the node has forwarded all the time.
		_ = session.Close()
		_, open = first.Establish(addr, ourASN, 120)
		checkRestart(t, open, byte(i+1), false, true)
	}
	node.End(syscall.SIGKILL)
	next := node.Host.Speaker()
	next.Start(ourASN, true)
	next.Originate(ownBlocks...)
	set(next)
	// The second session comes up after all messages of the first one.
	for _, h := range []*bgptest.Host{first, second} {
		for i, addr := range next.Addrs() {
			session, open := h.Establish(addr, ourASN, 120)
			checkRestart(t, open, byte(i+1), true, true)
			session.Send(endOfRIB(addr))
			bgptest.Eventually(t, func() error {
				if p := next.Peer(h.Addrs()[i]); p.Sent == 0 {
					return fmt.Errorf("nothing is sent to %s", h.Addrs()[i])
				}
				return nil
			})
		}
	}
}

// checkRestart checks the graceful restart capability of an OPEN: flags, time, and one family with its flags.
func checkRestart(t *testing.T, open []byte, afi byte, restarted, preserved bool) {
	t.Helper()
	caps, err := bgptest.Capabilities(open)
	errtest.Must(t, err)
	const restartBit, forwardingBit, timeMask = 0x8000, 0x80, 0x0fff
	value := caps[64]
	if len(value) != 6 {
		t.Fatalf("graceful restart capability %x, want one family", value)
	}
	head := binary.BigEndian.Uint16(value)
	if got := head&restartBit != 0; got != restarted {
		t.Errorf("restart bit of %x is %t, want %t", value, got, restarted)
	}
	if head&timeMask != 100 {
		t.Errorf("restart time of %x is %d, want 100", value, head&timeMask)
	}
	if value[2] != 0 || value[3] != afi || value[4] != 1 {
		t.Errorf("family of %x: want %d/1", value, afi)
	}
	if got := value[5]&forwardingBit != 0; got != preserved {
		t.Errorf("forwarding bit of %x is %t, want %t", value, got, preserved)
	}
}

// endOfRIB returns the End-of-RIB in the family of an address, RFC 4724.
func endOfRIB(addr netip.Addr) []byte {
	if addr.Is4() {
		return bgptest.Message(bgptest.Update, bgptest.UpdateBody(nil, nil, nil)...)
	}
	return bgptest.Message(bgptest.Update, bgptest.UpdateBody(nil, []byte{0x80, 15, 3, 0, 2, 1}, nil)...)
}
