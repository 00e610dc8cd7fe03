package bgp_test

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// pair starts speakers on two new hosts that are each other's peers in both families. As text, the address of nine is
// the greater one, so that nine connects and ten waits.
func pair(t *testing.T) (nine, ten *bgptest.Speaker) {
	t.Helper()
	lan := bgptest.NewLAN(t)
	nine, ten = lan.Host(9).Speaker(), lan.Host(10).Speaker()
	for _, s := range []*bgptest.Speaker{nine, ten} {
		s.Start(64512, false)
	}
	return nine, ten
}

func dualStackMesh(self, other *bgptest.Host) []bgp.Peer {
	return append(mesh(self, other), bgp.Peer{Addr: other.V6, From: self.V6, ASN: 64512, Passive: bgp.Waits(self.V6, other.V6)})
}

// mesh returns the host's IPv4 sessions to others, all in AS 64512.
func mesh(self *bgptest.Host, others ...*bgptest.Host) []bgp.Peer {
	var peers []bgp.Peer
	for _, o := range others {
		peers = append(peers, bgp.Peer{Addr: o.V4, From: self.V4, ASN: 64512, Passive: bgp.Waits(self.V4, o.V4)})
	}
	return peers
}

// GoBGP has each session that a node has: in a mesh, on a reflector and its clients, and with a router in another AS.
func TestGoBGPHasEverySession(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		star bool   // others have sessions with the first one alone, which reflects if they are in its AS
		asn  uint32 // of the others
	}{"mesh": {asn: 64512}, "reflector": {star: true, asn: 64512}, "routers": {star: true, asn: 64999}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lan := bgptest.NewLAN(t)
			var all []*bgptest.Speaker
			for n := range 4 {
				s := lan.Host(1 + n).Speaker()
				local := bgp.Local{ASN: 64512}
				switch {
				case n > 0:
					local.ASN = c.asn
				case c.star && c.asn == local.ASN:
					local.ClusterID = s.V4
				}
				s.StartLocal(local)
				all = append(all, s)
			}
			for i, s := range all {
				var peers []bgp.Peer
				for j, other := range all {
					if i == j || c.star && i > 0 && j > 0 {
						continue
					}
					p := mesh(s.Host, other.Host)[0]
					if j > 0 {
						p.ASN, p.Client = c.asn, c.star && c.asn == p.ASN
					}
					peers = append(peers, p)
				}
				s.SetPeers(peers...)
			}
			for i, s := range all {
				want := 3
				if c.star && i > 0 {
					want = 1
				}
				bgptest.Eventually(t, func() error {
					up := 0
					for _, p := range s.Call(bgptest.Call{Method: "Peers"}).Peers {
						if p.State == bgp.Established {
							up++
						}
					}
					if has := string(s.Call(bgptest.Call{Method: "Neighbours"}).Text); up != want || has != strconv.Itoa(up) {
						return fmt.Errorf("%s has %d sessions, GoBGP %s, want %d", s.V4, up, has, want)
					}
					return nil
				})
			}
		})
	}
}

func TestSessionsOfTwoNodes(t *testing.T) {
	t.Parallel()
	nine, ten := pair(t)
	nine.Originate("10.1.9.0/26", "10.200.0.9/32", "fd01:9::/122")
	ten.Originate("10.1.10.0/26")
	nine.SetPeers(dualStackMesh(nine.Host, ten.Host)...)
	ten.SetPeers(dualStackMesh(ten.Host, nine.Host)...)
	nine.WaitEstablished(ten.V4, ten.V6)
	ten.WaitEstablished(nine.V4, nine.V6)
	nine.Call(bgptest.Call{Method: "Second"})

	t.Run("who connects", func(t *testing.T) {
		for _, side := range []struct {
			*bgptest.Speaker
			want int // sessions that came in on port 179
		}{{nine, 0}, {ten, 2}} {
			got := strings.Count(side.Run(t, "ss", "-Htn", "state", "established", "( sport = :179 )"), "\n")
			if got != side.want {
				t.Errorf("%s has accepted %d sessions, want %d", side.V4, got, side.want)
			}
		}
	})

	t.Run("learned paths", func(t *testing.T) {
		ten.WaitLearned("10.1.9.0/26 10.200.0.9/32 fd01:9::/122")
		want := []bgp.Path{
			{Prefix: netip.MustParsePrefix("10.1.9.0/26"), NextHop: nine.V4, From: nine.V4, LocalPref: 100},
			{Prefix: netip.MustParsePrefix("10.200.0.9/32"), NextHop: nine.V4, From: nine.V4, LocalPref: 100},
			{Prefix: netip.MustParsePrefix("fd01:9::/122"), NextHop: nine.V6, From: nine.V6, LocalPref: 100},
		}
		difftest.Want(t, "snapshot", want, ten.Snapshot())
		inside := ten.Call(bgptest.Call{Method: "Snapshot", Within: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}).Paths
		difftest.Want(t, "snapshot within 10.1.0.0/16", want[:1], inside)
		nine.WaitLearned("10.1.10.0/26")
	})

	t.Run("prefixes are counted by session", func(t *testing.T) {
		p := ten.Peer(nine.V4)
		if p.Received != 2 || p.Sent != 1 {
			t.Errorf("IPv4 session: %d received, %d sent, want 2 and 1", p.Received, p.Sent)
		}
		if p = ten.Peer(nine.V6); p.Received != 1 || p.Sent != 0 {
			t.Errorf("IPv6 session: %d received, %d sent, want 1 and 0", p.Received, p.Sent)
		}
	})

	t.Run("announce, withdraw and replace", func(t *testing.T) {
		drain(ten)
		nine.Originate("10.1.9.64/26", "fd01:9::/122")
		ten.Call(bgptest.Call{Method: "Dirty"})
		ten.WaitLearned("10.1.9.64/26 fd01:9::/122")
		elsewhere := bgp.Path{Prefix: netip.MustParsePrefix("10.1.9.64/26"), NextHop: netip.MustParseAddr("10.0.0.99")}
		nine.Call(bgptest.Call{Method: "SetOriginated", Paths: []bgp.Path{elsewhere}})
		ten.WaitLearned("10.1.9.64/26")
		if got := ten.Snapshot()[0].NextHop; got != elsewhere.NextHop {
			t.Errorf("next hop %s, want %s", got, elsewhere.NextHop)
		}
	})

	t.Run("a prefix of our own is never learned", func(t *testing.T) {
		ten.Originate("10.1.9.64/26")
		if got := ten.Learned(); got != "" {
			t.Errorf("learned %q", got)
		}
		ten.Originate()
		ten.WaitLearned("10.1.9.64/26")
	})

	t.Run("unchanged sessions are not touched", func(t *testing.T) {
		before := nine.Peer(ten.V4)
		dead := bgp.Peer{Addr: netip.MustParseAddr("10.0.0.200"), ASN: 64512, From: nine.V4}
		peers := dualStackMesh(nine.Host, ten.Host)
		neighbour := func(peer netip.Addr) bool {
			return strings.Contains(nine.Log(), `msg="Add a peer configuration" peer=`+peer.String()+"\n")
		}
		nine.SetPeers(append(peers, dead)...)
		if !neighbour(ten.V4) || neighbour(dead.Addr) {
			t.Error("GoBGP is to be told of a peer that has answered, and of no other")
		}
		nine.SetPeers(peers...)
		// A changed peer is a new session, and only that one.
		peers[1].HoldTime = 30 * time.Second
		nine.SetPeers(peers...)
		bgptest.Eventually(t, func() error {
			if p := nine.Peer(ten.V6); p.State != bgp.Established || !p.Since.After(before.Since) {
				return fmt.Errorf("IPv6 session is %s since %s", p.State, p.Since)
			}
			return nil
		})
		if d := cmp.Diff(before, nine.Peer(ten.V4), difftest.Netip, cmpopts.IgnoreFields(bgp.PeerStatus{}, "Sent", "Received")); d != "" {
			t.Errorf("IPv4 session (-before +after):\n%s", d)
		}
	})

	t.Run("a removed peer's paths are gone", func(t *testing.T) {
		nine.Originate("10.1.9.0/26")
		ten.WaitLearned("10.1.9.0/26")
		drain(ten)
		ten.SetPeers()
		ten.Call(bgptest.Call{Method: "Dirty"})
		if got := ten.Learned(); got != "" {
			t.Errorf("learned %q", got)
		}
	})
}

func drain(s *bgptest.Speaker) {
	for s.Try(bgptest.Call{Method: "Dirty", Timeout: 200 * time.Millisecond}).Err == "" {
	}
}

// In eBGP every speaker passes on its paths unless a policy prevents it.
func TestLearnedPathsAreNotPassedOn(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	var nodes []*bgptest.Speaker
	for i := 1; i <= 3; i++ {
		s := lan.Host(i).Speaker()
		s.Start(64512+uint32(i), false)
		s.Originate(fmt.Sprintf("10.1.%d.0/26", i))
		nodes = append(nodes, s)
	}
	left, middle, right := nodes[0], nodes[1], nodes[2]
	link := func(a, b *bgptest.Speaker, asn uint32) bgp.Peer {
		return bgp.Peer{Addr: b.V4, ASN: asn, From: a.V4, Passive: a == middle}
	}
	left.SetPeers(link(left, middle, 64514))
	middle.SetPeers(link(middle, left, 64513), link(middle, right, 64515))
	right.SetPeers(link(right, middle, 64514))

	middle.WaitLearned("10.1.1.0/26 10.1.3.0/26")
	left.WaitLearned("10.1.2.0/26")
	want := []bgp.Path{{Prefix: netip.MustParsePrefix("10.1.2.0/26"), NextHop: middle.V4, From: middle.V4, ASPath: "64514", LocalPref: 100}}
	// What middle sends after 10.1.5.0/26 comes after everything that it could have passed on before.
	left.Originate("10.1.1.0/26", "10.1.4.0/26")
	middle.WaitLearned("10.1.1.0/26 10.1.3.0/26 10.1.4.0/26")
	middle.Originate("10.1.2.0/26", "10.1.5.0/26")
	right.WaitLearned("10.1.2.0/26 10.1.5.0/26")
	difftest.Want(t, "snapshot", want, right.Snapshot()[:1])
}

func TestExitKeepsPathsCeaseDropsThem(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	watcher, exits, ceases := lan.Host(1).Speaker(), lan.Host(2).Speaker(), lan.Host(3).Speaker()
	for i, s := range []*bgptest.Speaker{watcher, exits, ceases} {
		s.Start(64512, false)
		s.Originate(fmt.Sprintf("10.1.%d.0/26", i+1))
	}
	watcher.SetPeers(mesh(watcher.Host, exits.Host, ceases.Host)...)
	exits.SetPeers(mesh(exits.Host, watcher.Host)...)
	ceases.SetPeers(mesh(ceases.Host, watcher.Host)...)
	watcher.WaitLearned("10.1.2.0/26 10.1.3.0/26")

	for _, s := range []struct {
		*bgptest.Speaker
		mode bgp.Mode
	}{{exits, bgp.Exit}, {ceases, bgp.Cease}} {
		s.Call(bgptest.Call{Method: "Stop", Mode: s.mode})
		for _, method := range []string{"Start", "SetPeers", "SetOriginated", "Snapshot", "Peers"} {
			c := bgptest.Call{Method: method, Local: bgp.Local{ASN: 1, RouterID: s.V4, Listen: []netip.Addr{s.V4}}}
			if r := s.Try(c); !r.Stopped {
				t.Errorf("%s after Stop: %q, want ErrStopped", method, r.Err)
			}
		}
		s.Call(bgptest.Call{Method: "Healthy"})
		s.Exit()
	}
	bgptest.Eventually(t, func() error {
		for _, s := range []*bgptest.Speaker{exits, ceases} {
			if p := watcher.Peer(s.V4); p.State == bgp.Established {
				return fmt.Errorf("session to %s is still up", s.V4)
			}
		}
		return nil
	})
	watcher.WaitLearned("10.1.2.0/26")
	if p := watcher.Peer(exits.V4); !p.Restarting || !strings.Contains(p.LastError, "connection lost") {
		t.Errorf("after Exit: %+v", p)
	}
	if p := watcher.Peer(ceases.V4); p.Restarting || !strings.Contains(p.LastError, "closed by the peer: Cease/Hard Reset") {
		t.Errorf("after Cease: %+v", p)
	}
}

func TestStartNamesWhatHinders(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	first := lan.Host(1).Speaker()
	if r := first.Try(bgptest.Call{Method: "SetPeers"}); !r.NotStarted {
		t.Errorf("SetPeers before Start: %q, want ErrNotStarted", r.Err)
	}
	first.Call(bgptest.Call{Method: "Healthy"})
	first.Start(64512, false)

	start := func(addrs ...netip.Addr) bgptest.Call {
		return bgptest.Call{Method: "Start", Timeout: time.Second, Local: bgp.Local{ASN: 64512, RouterID: first.V4, Listen: addrs}}
	}
	second := first.Host.Speaker()
	other := lan.Host(2)
	first.IP("addr", "add", other.V4.String()+"/32", "dev", "lo") // an address that is free
	// It must not be kept when the second one fails, or no later attempt could succeed.
	r := second.Try(start(other.V4, first.V4))
	if !errtest.Has(r.Err, "10.0.0.1:179 BIRD") {
		t.Errorf("port is taken: %q", r.Err)
	}
	r = second.Try(start(netip.MustParseAddr("10.0.0.77")))
	if !errtest.Has(r.Err, "10.0.0.77:179 interface") {
		t.Errorf("address is absent: %q", r.Err)
	}
	weak := first.Host.Speaker("setpriv", "--bounding-set", "-net_bind_service")
	patient := start(other.V4)
	patient.Timeout = time.Minute
	// It does not try until the deadline, which the error would name.
	if r = weak.Try(patient); !strings.Contains(r.Err, "NET_BIND_SERVICE") || strings.Contains(r.Err, context.DeadlineExceeded.Error()) {
		t.Errorf("no capability: %q", r.Err)
	}

	// Start goes on trying: the port becomes free while it waits.
	done := make(chan bgptest.Reply)
	patient.Local.Listen = []netip.Addr{other.V4, first.V4}
	go func() { done <- second.Try(patient) }()
	// A hindrance is logged when it changes: this is the third above.
	bgptest.Eventually(t, func() error {
		if n := strings.Count(second.Log(), "BGP speaker waits for its address"); n != 3 {
			return fmt.Errorf("%d addresses were waited for", n)
		}
		return nil
	})
	first.End(syscall.SIGKILL)
	if r := <-done; r.Err != "" {
		t.Errorf("Start when the port has become free: %s", r.Err)
	}
	// A speaker that started after its caller had returned at the deadline counts as started, and can restart with another
	// identity.
	if r := second.Try(patient); r.Err != "" {
		t.Errorf("second Start: %s", r.Err)
	}
	patient.Local.ASN = 64513
	if r := second.Try(patient); r.Err != "" {
		t.Errorf("Start with another AS number: %s", r.Err)
	}
}

// A Start whose caller has returned at the deadline does not block the next: a busy node once stayed without BGP for
// ever.
func TestStartThatIsLate(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	slow, other := lan.Host(1).Speaker("env", slowEnv+"=1s"), lan.Host(2).Speaker()
	call := bgptest.Call{Method: "Start", Timeout: 100 * time.Millisecond,
		Local: bgp.Local{ASN: 64512, RouterID: slow.V4, Listen: []netip.Addr{slow.V4}}}
	if r := slow.Try(call); !strings.Contains(r.Err, "deadline") {
		t.Fatalf("Start: %q, want one that ends at its deadline", r.Err)
	}
	call.Timeout = time.Minute
	slow.Call(call)
	other.Start(64512, false)
	slow.SetPeers(mesh(slow.Host, other.Host)...)
	other.SetPeers(mesh(other.Host, slow.Host)...)
	slow.WaitEstablished(other.V4)
}

// A loop that hangs makes calls fail at their deadlines, and the health check with them.
func TestStuckLoop(t *testing.T) {
	t.Parallel()
	node := bgptest.NewLAN(t).Host(1).Speaker()
	node.Start(64512, false)
	node.Call(bgptest.Call{Method: "Wedge"})
	passesOn := bgp.Policy{Transit: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
	for _, c := range []struct {
		bgptest.Call
		want string
	}{
		{bgptest.Call{Method: "SetPolicy", Policy: passesOn}, "speaker answer deadline"},
		{bgptest.Call{Method: "Snapshot"}, "speaker busy deadline"},
		{bgptest.Call{Method: "Healthy"}, "loop deadline"},
		{bgptest.Call{Method: "Healthy"}, "loop earlier deadline"},
		{bgptest.Call{Method: "Stop"}, "speaker busy deadline"},
	} {
		c.Timeout = 200 * time.Millisecond
		if r := node.Try(c.Call); !errtest.Has(r.Err, c.want) {
			t.Errorf("%s: %q, want %q", c.Method, r.Err, c.want)
		}
	}
}

// The texts in PeerStatus are checked on sessions that really fail.
func TestDiagnoseRealSessions(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	node := lan.Host(1).Speaker()
	node.Start(64512, false)
	silent, stranger, foreign, garbage := lan.Host(2), lan.Host(3).Speaker(), lan.Host(4).Speaker(), lan.Host(5)
	stranger.Start(64512, false) // does not know node
	foreign.Start(64999, false)
	foreign.SetPeers(bgp.Peer{Addr: node.V4, ASN: 64512, From: foreign.V4, Passive: true})

	absent := netip.MustParseAddr("10.0.0.200")
	peers := []bgp.Peer{}
	for _, addr := range []netip.Addr{silent.V4, stranger.V4, foreign.V4, absent} {
		peers = append(peers, bgp.Peer{Addr: addr, ASN: 64512, From: node.V4})
	}
	node.SetPeers(append(peers, bgp.Peer{Addr: garbage.V4, ASN: 64512, From: node.V4, Passive: true})...)
	const badLength = `\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x01`
	garbage.Run(t, "bash", "-c", `exec 3<>/dev/tcp/10.0.0.1/179; printf '`+badLength+`' >&3; cat <&3 >/dev/null`)
	for addr, want := range map[netip.Addr]string{
		silent.V4:   "TCP refused on port 179",
		stranger.V4: "closed the connection during the handshake",
		foreign.V4:  "peer is AS 64999, configured 64512",
		absent:      "host unreachable",
		garbage.V4:  "Message Header Error/Bad Message Length",
	} {
		bgptest.Eventually(t, func() error {
			p := node.Peer(addr)
			if p.State == bgp.Established || !strings.Contains(p.LastError, want) || p.LastErrorAt.Before(p.Since) {
				return fmt.Errorf("peer %s: %+v, want the error %q", addr, p, want)
			}
			return nil
		})
	}
	bgptest.Eventually(t, func() error {
		if p := foreign.Peer(node.V4); !strings.Contains(p.LastError, "closed by the peer: OPEN Message Error/Bad Peer AS") {
			return fmt.Errorf("the refused side says %q", p.LastError)
		}
		return nil
	})
}
