package bgp_test

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Each end of a session is recorded with both sides' messages, also for the next process.
func TestEndsOfSessions(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	node, peer := lan.Host(1).Speaker(), lan.Host(2)
	node.Start(ourASN, false)
	config := bgp.Peer{Addr: peer.V4, From: node.V4, ASN: ourASN, Passive: true, HoldTime: 3 * time.Second}
	node.SetPeers(config)
	ends := func() []bgp.End { return node.Call(bgptest.Call{Method: "Ends", From: []netip.Addr{peer.V4}}).Ends }
	// waits waits for the number of ends and returns the last one.
	waits := func(n int) (last bgp.End) {
		t.Helper()
		bgptest.Eventually(t, func() error {
			all := ends()
			if len(all) != n {
				return fmt.Errorf("%d ends, want %d: %+v", len(all), n, all)
			}
			last = all[0]
			return nil
		})
		return last
	}
	up := func() *bgptest.Raw {
		t.Helper()
		session, _ := peer.Establish(node.V4, ourASN, 0)
		node.WaitEstablished(peer.V4)
		return session
	}
	ignore := cmpopts.IgnoreFields(bgp.End{}, "At", "Since", "First", "Error")
	wants := func(n int, want bgp.End) bgp.End {
		t.Helper()
		got := waits(n)
		difftest.Want(t, "end", want, got, ignore)
		if got.Since.IsZero() != (want.Times > 0) || got.At.Before(got.Since) {
			t.Errorf("at %s, up since %s", got.At, got.Since)
		}
		return got
	}

	hostile := "works\x1b[2J\n\u202eevil" + strings.Repeat("x", 255-len("works\x1b[2J\n\u202eevil"))
	up().Send(bgptest.Message(bgptest.Notification, append([]byte{6, 2, byte(len(hostile))}, hostile...)...))
	shutdown := "Cease/Administrative Shutdown: works[2Jevil" + strings.Repeat("x", 255-len("works\x1b[2J\n\u202eevil"))
	wants(1, bgp.End{By: "peer", Reason: "closed by the peer: " + shutdown, Received: shutdown})
	for _, e := range ends() {
		if strings.ContainsFunc(e.Reason+e.Received, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q has what could change a terminal", e.Reason)
		}
	}

	up().Send([]byte("this is not BGP, and long enough"))
	wants(2, bgp.End{By: "this node", Reason: "Message Header Error/Connection Not Synchronized",
		Sent: "Message Header Error/Connection Not Synchronized"})

	silent := up()
	wants(3, bgp.End{By: "hold timer", Reason: "nothing heard from it for the hold time", Sent: "Hold Timer Expired"})
	_ = silent.Close()

	broken := up()
	errtest.Must(t, broken.Conn.(*net.TCPConn).SetLinger(0))
	errtest.Must(t, broken.Close())
	if e := wants(4, bgp.End{By: "connection", Reason: "connection lost"}); !strings.Contains(e.Error, syscall.ECONNRESET.Error()) {
		t.Errorf("TCP error %q", e.Error)
	}

	// Failures of one kind are one end.
	bgptest.Eventually(t, func() error {
		if e := ends()[0]; e.Times >= 3 {
			return nil
		}
		wrong := peer.Dial(node.V4) // reset while the connection before is remembered
		defer wrong.Close()
		wrong.Send(bgptest.OpenMessage(64999, peer.V4, true, 90, 0))
		_, _ = wrong.Until(bgptest.Notification)
		return fmt.Errorf("%+v", ends()[0])
	})
	wants(5, bgp.End{By: "this node", Times: ends()[0].Times, Reason: "peer is AS 64999, configured 64512",
		Sent: "OPEN Message Error/Bad Peer AS"})

	// The next process has all ends, and adds the end of the session that was up.
	last := up()
	before := ends()
	text := node.Call(bgptest.Call{Method: "Ends"}).Text
	node.End(syscall.SIGKILL)
	_ = last.Close()
	node = node.Host.Speaker()
	for _, other := range []string{"{", "[]", `{"version":2,"peers":{}}`} {
		if r := node.Try(bgptest.Call{Method: "Recall", Text: []byte(other)}); r.Err == "" {
			t.Errorf("%s is taken for ends", other)
		}
	}
	node.Call(bgptest.Call{Method: "Recall", Text: text})
	node.Start(ourASN, true)
	node.SetPeers(config)
	wants(6, bgp.End{By: "agent", Reason: ends()[0].Reason})
	difftest.Want(t, "earlier ends", before, ends()[1:])

	// Removing a peer is an end by this node; the peer's ends stay for a while.
	gone := up()
	node.SetPeers()
	if _, err := gone.Until(bgptest.Notification); err != nil {
		t.Error(err)
	}
	wants(7, bgp.End{By: "this node", Reason: "closed by this node: Cease/Peer De-configured", Sent: "Cease/Peer De-configured"})
}

// Records are bounded, for each peer, for all, and when read from a file.
func TestEndsAreBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	clock := func() time.Time { return now }
	ends := bgp.NewEnds(clock)
	text := func(peer, count int) string {
		var all []string
		for i := range count {
			all = append(all, fmt.Sprintf(`{"at":%q,"since":%q,"reason":"%d %s"}`, now.Add(time.Duration(i)*time.Second).Format(time.RFC3339),
				now.Format(time.RFC3339), i, strings.Repeat("\u00e9", 2000)))
		}
		return fmt.Sprintf(`"10.0.%d.%d":{"ends":[%s]}`, peer/250, peer%250, strings.Join(all, ","))
	}
	var peers []string
	for peer := range 300 {
		peers = append(peers, text(peer, 30))
	}
	errtest.Must(t, ends.Recall([]byte(`{"version":1,"peers":{`+strings.Join(peers, ",")+`,"10.9.9.9":null}}`)))
	all := 0
	for peer := range 300 {
		of := ends.Of(netip.AddrFrom4([4]byte{10, 0, byte(peer / 250), byte(peer % 250)}))
		if len(of) > bgp.MostEnds {
			t.Fatalf("%d ends of one peer", len(of))
		}
		for _, e := range of {
			if len(e.Reason) > 512 || !strings.HasPrefix(e.Reason, "2") {
				t.Fatalf("%d bytes: %.20q is not among the last", len(e.Reason), e.Reason)
			}
		}
		all += len(of)
	}
	// 300 peers have ended at the same times.
	if all == 0 || all > 2000+300 {
		t.Errorf("%d ends are remembered", all)
	}
	now = now.Add(8 * 24 * time.Hour)
	if left, err := ends.Text(); err != nil || strings.Contains(string(left), "10.0.") {
		t.Errorf("of peers that are gone for long is kept: %.100s (%v)", left, err)
	}
}
