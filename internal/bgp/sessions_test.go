package bgp_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

var cmpNetip = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// pair starts speakers on two new hosts that are each other's peers in both families. As text, the address of nine is
// the greater one, so that nine connects and ten waits.
func pair(t *testing.T) (nine, ten *speaker) {
	t.Helper()
	lan := newLAN(t)
	nine, ten = lan.host(9).speak(), lan.host(10).speak()
	for _, s := range []*speaker{nine, ten} {
		s.start(64512, false)
	}
	return nine, ten
}

func dualStackMesh(self, other *host) []bgp.Peer {
	return append(
		bgp.Mesh(bgp.Member{Addr: self.v4, ASN: 64512}, []bgp.Member{{Addr: other.v4, ASN: 64512}}),
		bgp.Mesh(bgp.Member{Addr: self.v6, ASN: 64512}, []bgp.Member{{Addr: other.v6, ASN: 64512}})...)
}

func TestSessionsOfTwoNodes(t *testing.T) {
	t.Parallel()
	nine, ten := pair(t)
	nine.originate("10.1.9.0/26", "10.200.0.9/32", "fd01:9::/122")
	ten.originate("10.1.10.0/26")
	nine.setPeers(dualStackMesh(nine.host, ten.host)...)
	ten.setPeers(dualStackMesh(ten.host, nine.host)...)
	nine.waitEstablished(ten.v4, ten.v6)
	ten.waitEstablished(nine.v4, nine.v6)

	t.Run("who connects", func(t *testing.T) {
		for _, side := range []struct {
			*speaker
			want int // sessions that came in on port 179
		}{{nine, 0}, {ten, 2}} {
			got := strings.Count(run(t, "ip", "netns", "exec", side.ns, "ss", "-Htn", "state", "established", "( sport = :179 )"), "\n")
			if got != side.want {
				t.Errorf("%s has accepted %d sessions, want %d", side.v4, got, side.want)
			}
		}
	})

	t.Run("learned paths", func(t *testing.T) {
		ten.waitLearned("10.1.9.0/26 10.200.0.9/32 fd01:9::/122")
		want := []bgp.Path{
			{Prefix: netip.MustParsePrefix("10.1.9.0/26"), NextHop: nine.v4, From: nine.v4, LocalPref: 100},
			{Prefix: netip.MustParsePrefix("10.200.0.9/32"), NextHop: nine.v4, From: nine.v4, LocalPref: 100},
			{Prefix: netip.MustParsePrefix("fd01:9::/122"), NextHop: nine.v6, From: nine.v6, LocalPref: 100},
		}
		if d := cmp.Diff(want, ten.snapshot(), cmpNetip); d != "" {
			t.Errorf("snapshot (-want +got):\n%s", d)
		}
		inside := ten.do(call{Method: "Snapshot", Within: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}).Paths
		if d := cmp.Diff(want[:1], inside, cmpNetip); d != "" {
			t.Errorf("snapshot within 10.1.0.0/16 (-want +got):\n%s", d)
		}
		nine.waitLearned("10.1.10.0/26")
	})

	t.Run("prefixes are counted by session", func(t *testing.T) {
		p := ten.peer(nine.v4)
		if p.Received != 2 || p.Sent != 1 {
			t.Errorf("IPv4 session: %d received, %d sent, want 2 and 1", p.Received, p.Sent)
		}
		if p = ten.peer(nine.v6); p.Received != 1 || p.Sent != 0 {
			t.Errorf("IPv6 session: %d received, %d sent, want 1 and 0", p.Received, p.Sent)
		}
	})

	t.Run("announce, withdraw and replace", func(t *testing.T) {
		drain(ten)
		nine.originate("10.1.9.64/26", "fd01:9::/122")
		ten.do(call{Method: "Dirty"})
		ten.waitLearned("10.1.9.64/26 fd01:9::/122")
		elsewhere := bgp.Path{Prefix: netip.MustParsePrefix("10.1.9.64/26"), NextHop: netip.MustParseAddr("10.0.0.99")}
		nine.do(call{Method: "SetOriginated", Paths: []bgp.Path{elsewhere}})
		ten.waitLearned("10.1.9.64/26")
		if got := ten.snapshot()[0].NextHop; got != elsewhere.NextHop {
			t.Errorf("next hop %s, want %s", got, elsewhere.NextHop)
		}
	})

	t.Run("a prefix of our own is never learned", func(t *testing.T) {
		ten.originate("10.1.9.64/26")
		if got := ten.learned(); got != "" {
			t.Errorf("learned %q", got)
		}
		ten.originate()
		ten.waitLearned("10.1.9.64/26")
	})

	t.Run("unchanged sessions are not touched", func(t *testing.T) {
		before := nine.peer(ten.v4)
		dead := bgp.Peer{Addr: netip.MustParseAddr("10.0.0.200"), ASN: 64512, From: nine.v4}
		peers := dualStackMesh(nine.host, ten.host)
		nine.setPeers(append(peers, dead)...)
		nine.setPeers(peers...)
		// A changed peer is a new session, and only that one.
		peers[1].HoldTime = 30 * time.Second
		nine.setPeers(peers...)
		eventually(t, func() error {
			if p := nine.peer(ten.v6); p.State != bgp.Established || !p.Since.After(before.Since) {
				return fmt.Errorf("IPv6 session is %s since %s", p.State, p.Since)
			}
			return nil
		})
		if d := cmp.Diff(before, nine.peer(ten.v4), cmpNetip, cmpopts.IgnoreFields(bgp.PeerStatus{}, "Sent", "Received")); d != "" {
			t.Errorf("IPv4 session (-before +after):\n%s", d)
		}
	})

	t.Run("a removed peer's paths are gone", func(t *testing.T) {
		nine.originate("10.1.9.0/26")
		ten.waitLearned("10.1.9.0/26")
		drain(ten)
		ten.setPeers()
		ten.do(call{Method: "Dirty"})
		if got := ten.learned(); got != "" {
			t.Errorf("learned %q", got)
		}
	})
}

func drain(s *speaker) {
	for s.try(call{Method: "Dirty", Timeout: 200 * time.Millisecond}).Err == "" {
	}
}

// In eBGP every speaker passes on what it knows, if no policy keeps it from it.
func TestLearnedPathsAreNotPassedOn(t *testing.T) {
	t.Parallel()
	lan := newLAN(t)
	var nodes []*speaker
	for i := 1; i <= 3; i++ {
		s := lan.host(i).speak()
		s.start(64512+uint32(i), false)
		s.originate(fmt.Sprintf("10.1.%d.0/26", i))
		nodes = append(nodes, s)
	}
	left, middle, right := nodes[0], nodes[1], nodes[2]
	link := func(a, b *speaker, asn uint32) bgp.Peer {
		return bgp.Peer{Addr: b.v4, ASN: asn, From: a.v4, Passive: a == middle}
	}
	left.setPeers(link(left, middle, 64514))
	middle.setPeers(link(middle, left, 64513), link(middle, right, 64515))
	right.setPeers(link(right, middle, 64514))

	middle.waitLearned("10.1.1.0/26 10.1.3.0/26")
	left.waitLearned("10.1.2.0/26")
	want := []bgp.Path{{Prefix: netip.MustParsePrefix("10.1.2.0/26"), NextHop: middle.v4, From: middle.v4, ASPath: "64514", LocalPref: 100}}
	// What middle sends after 10.1.5.0/26 comes after all that it could have passed on before.
	left.originate("10.1.1.0/26", "10.1.4.0/26")
	middle.waitLearned("10.1.1.0/26 10.1.3.0/26 10.1.4.0/26")
	middle.originate("10.1.2.0/26", "10.1.5.0/26")
	right.waitLearned("10.1.2.0/26 10.1.5.0/26")
	if d := cmp.Diff(want, right.snapshot()[:1], cmpNetip); d != "" {
		t.Errorf("snapshot (-want +got):\n%s", d)
	}
}

func TestKilledSpeakerComesBack(t *testing.T) {
	t.Parallel()
	nine, ten := pair(t)
	nine.originate("10.1.9.0/26", "10.1.9.64/26")
	nine.setPeers(nine.mesh(ten.host)...)
	ten.setPeers(ten.mesh(nine.host)...)
	ten.waitLearned("10.1.9.0/26 10.1.9.64/26")

	nine.kill()
	eventually(t, func() error {
		if p := ten.peer(nine.v4); p.State == bgp.Established || !p.Restarting || p.LastError == "" {
			return fmt.Errorf("session to the killed peer: %+v", p)
		}
		return nil
	})
	eventually(t, func() error {
		paths := ten.snapshot()
		if len(paths) != 2 {
			t.Fatalf("paths of the killed peer: %v", paths)
		}
		for _, p := range paths {
			if !p.Stale {
				return fmt.Errorf("path %s of the killed peer is not stale", p.Prefix)
			}
		}
		return nil
	})

	again := nine.host.speak()
	again.do(call{Method: "Start", Local: bgp.Local{
		ASN: 64512, RouterID: nine.v4, Listen: []netip.Addr{nine.v6, nine.v4}, Restarting: true,
	}})
	again.originate("10.1.9.0/26") // the second block was released meanwhile
	peers := again.mesh(ten.host)
	peers[0].RestartTime = 3 * time.Second
	again.setPeers(peers...)
	eventually(t, func() error {
		paths := ten.snapshot()
		if len(paths) == 0 || paths[0].Prefix != netip.MustParsePrefix("10.1.9.0/26") {
			t.Fatalf("the path was lost on the way: %v", paths)
		}
		if paths[0].Stale || len(paths) != 1 {
			return fmt.Errorf("paths not yet confirmed: %v", paths)
		}
		return nil
	})
	if p := again.peer(ten.v4); p.State != bgp.Established || p.LastErrorAt.After(p.Since) {
		t.Errorf("session after the restart: %+v", p)
	}
}

func TestExitKeepsPathsCeaseDropsThem(t *testing.T) {
	t.Parallel()
	lan := newLAN(t)
	watcher, exits, ceases := lan.host(1).speak(), lan.host(2).speak(), lan.host(3).speak()
	for i, s := range []*speaker{watcher, exits, ceases} {
		s.start(64512, false)
		s.originate(fmt.Sprintf("10.1.%d.0/26", i+1))
	}
	watcher.setPeers(watcher.mesh(exits.host, ceases.host)...)
	exits.setPeers(exits.mesh(watcher.host)...)
	ceases.setPeers(ceases.mesh(watcher.host)...)
	watcher.waitLearned("10.1.2.0/26 10.1.3.0/26")

	for _, s := range []struct {
		*speaker
		mode bgp.Mode
	}{{exits, bgp.Exit}, {ceases, bgp.Cease}} {
		s.do(call{Method: "Stop", Mode: s.mode})
		for _, method := range []string{"Start", "SetPeers", "SetOriginated", "Snapshot", "Peers"} {
			c := call{Method: method, Local: bgp.Local{ASN: 1, RouterID: s.v4, Listen: []netip.Addr{s.v4}}}
			if r := s.try(c); !r.Stopped {
				t.Errorf("%s after Stop: %q, want ErrStopped", method, r.Err)
			}
		}
		s.do(call{Method: "Healthy"})
		s.exit()
	}
	eventually(t, func() error {
		for _, s := range []*speaker{exits, ceases} {
			if p := watcher.peer(s.v4); p.State == bgp.Established {
				return fmt.Errorf("session to %s is still up", s.v4)
			}
		}
		return nil
	})
	watcher.waitLearned("10.1.2.0/26")
	if p := watcher.peer(exits.v4); !p.Restarting || !strings.Contains(p.LastError, "connection lost") {
		t.Errorf("after Exit: %+v", p)
	}
	if p := watcher.peer(ceases.v4); p.Restarting || !strings.Contains(p.LastError, "closed by the peer: Cease/Hard Reset") {
		t.Errorf("after Cease: %+v", p)
	}
}

func TestStartNamesWhatHinders(t *testing.T) {
	t.Parallel()
	lan := newLAN(t)
	first := lan.host(1).speak()
	if r := first.try(call{Method: "SetPeers"}); !r.NotStarted {
		t.Errorf("SetPeers before Start: %q, want ErrNotStarted", r.Err)
	}
	first.do(call{Method: "Healthy"})
	first.start(64512, false)

	start := func(addrs ...netip.Addr) call {
		return call{Method: "Start", Timeout: time.Second, Local: bgp.Local{ASN: 64512, RouterID: first.v4, Listen: addrs}}
	}
	second := first.host.speak()
	other := lan.host(2)
	run(t, "ip", "-n", first.ns, "addr", "add", other.v4.String()+"/32", "dev", "lo") // an address that is free
	// It must not be kept when the second one fails, or no later attempt could succeed.
	r := second.try(start(other.v4, first.v4))
	if !strings.Contains(r.Err, "10.0.0.1:179") || !strings.Contains(r.Err, "another BGP speaker") {
		t.Errorf("port is taken: %q", r.Err)
	}
	r = second.try(start(netip.MustParseAddr("10.0.0.77")))
	if !strings.Contains(r.Err, "10.0.0.77:179") || !strings.Contains(r.Err, "not yet, on an interface") {
		t.Errorf("address is absent: %q", r.Err)
	}
	weak := first.host.speak("setpriv", "--bounding-set", "-net_bind_service")
	patient := start(other.v4)
	patient.Timeout = time.Minute
	begin := time.Now()
	if r = weak.try(patient); !strings.Contains(r.Err, "NET_BIND_SERVICE") || time.Since(begin) > patient.Timeout/2 {
		t.Errorf("no capability, after %s: %q", time.Since(begin), r.Err)
	}

	// Start goes on trying: the port becomes free while it waits.
	done := make(chan reply)
	patient.Local.Listen = []netip.Addr{other.v4, first.v4}
	go func() { done <- second.try(patient) }()
	time.Sleep(500 * time.Millisecond)
	first.kill()
	if r := <-done; r.Err != "" {
		t.Errorf("Start when the port has become free: %s", r.Err)
	}
	if r := second.try(patient); !strings.Contains(r.Err, "started") {
		t.Errorf("second Start: %q", r.Err)
	}
}

// A loop that hangs makes calls fail at their deadlines, and the health check with them.
func TestStuckLoop(t *testing.T) {
	t.Parallel()
	node := newLAN(t).host(1).speak()
	node.start(64512, false)
	node.do(call{Method: "Wedge"})
	peer := bgp.Peer{Addr: netip.MustParseAddr("10.0.0.2"), ASN: 64512, From: node.v4}
	for _, c := range []struct {
		call
		want string
	}{
		{call{Method: "SetPeers", Peers: []bgp.Peer{peer}}, "speaker answer deadline"},
		{call{Method: "Snapshot"}, "speaker busy deadline"},
		{call{Method: "Healthy"}, "loop deadline"},
		{call{Method: "Healthy"}, "loop earlier deadline"},
		{call{Method: "Stop"}, "speaker busy deadline"},
	} {
		c.Timeout = 200 * time.Millisecond
		if r := node.try(c.call); !errtest.Has(r.Err, c.want) {
			t.Errorf("%s: %q, want %q", c.Method, r.Err, c.want)
		}
	}
}

// The words in PeerStatus are proved on sessions that really fail.
func TestDiagnoseRealSessions(t *testing.T) {
	t.Parallel()
	lan := newLAN(t)
	node := lan.host(1).speak()
	node.start(64512, false)
	silent, stranger, foreign, garbage := lan.host(2), lan.host(3).speak(), lan.host(4).speak(), lan.host(5)
	stranger.start(64512, false) // does not know node
	foreign.start(64999, false)
	foreign.setPeers(bgp.Peer{Addr: node.v4, ASN: 64512, From: foreign.v4, Passive: true})

	absent := netip.MustParseAddr("10.0.0.200")
	peers := []bgp.Peer{}
	for _, addr := range []netip.Addr{silent.v4, stranger.v4, foreign.v4, absent} {
		peers = append(peers, bgp.Peer{Addr: addr, ASN: 64512, From: node.v4})
	}
	node.setPeers(append(peers, bgp.Peer{Addr: garbage.v4, ASN: 64512, From: node.v4, Passive: true})...)
	const badLength = `\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x01`
	if out, err := garbage.command("bash", "-c", `exec 3<>/dev/tcp/10.0.0.1/179; printf '`+badLength+`' >&3; cat <&3 >/dev/null`).CombinedOutput(); err != nil {
		t.Fatalf("send garbage: %v: %s", err, out)
	}
	for addr, want := range map[netip.Addr]string{
		silent.v4:   "TCP refused on port 179",
		stranger.v4: "closed the connection during the handshake",
		foreign.v4:  "peer is AS 64999, configured 64512",
		absent:      "host unreachable",
		garbage.v4:  "Message Header Error/Bad Message Length",
	} {
		eventually(t, func() error {
			p := node.peer(addr)
			if p.State == bgp.Established || !strings.Contains(p.LastError, want) || p.LastErrorAt.Before(p.Since) {
				return fmt.Errorf("peer %s: %+v, want the error %q", addr, p, want)
			}
			return nil
		})
	}
	eventually(t, func() error {
		if p := foreign.peer(node.v4); !strings.Contains(p.LastError, "closed by the peer: OPEN Message Error/Bad Peer AS") {
			return fmt.Errorf("the refused side says %q", p.LastError)
		}
		return nil
	})
}
