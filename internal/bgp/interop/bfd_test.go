package interop_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/bfd"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// bfdOf enables BFD for peers.
func bfdOf(interval time.Duration, auth bfd.Auth) func(*bgp.Peer) {
	return func(p *bgp.Peer) { p.BFD = bfd.Config{Interval: interval, Multiplier: 3, Auth: auth} }
}

// withBFD enables BFD at the daemon's end.
func withBFD(interval time.Duration) func(*bgptest.Session) {
	return func(s *bgptest.Session) { s.BFD = interval }
}

// waitBFD waits until the BFD sessions with a host are in a state, in both families. For Up it also waits until the
// router has announced that it sends more often than once a second: before that, its stop is detected that much later
// (RFC 5880 section 6.8.3).
func waitBFD(t *testing.T, node *bgptest.Speaker, host *bgptest.Host, want bfd.State) {
	t.Helper()
	bgptest.Eventually(t, func() error {
		for _, addr := range host.Addrs() {
			p := node.Peer(addr)
			if p.State != bgp.Established || p.BFD == nil || p.BFD.State != want || want == bfd.Up && p.BFD.Detection > 2*time.Second {
				return fmt.Errorf("session with %s: %s, %q, BFD %+v, want %s", addr, p.State, p.LastError, p.BFD, want)
			}
		}
		return nil
	})
}

// newerKinds returns all but BIRD 1.6. On a busy machine it ends live BFD sessions; it takes no end of BFD for a
// restart, and it has no IPv4 prefixes with IPv6 next hops.
func newerKinds() []bgptest.Kind {
	return slices.DeleteFunc(bgptest.Kinds(), func(k bgptest.Kind) bool { return k == bgptest.BIRD1 })
}

// A router that stops silently is detected in the detection time, for each kind of daemon. Its paths, which graceful
// restart keeps, yield to the other router's, and count again when it is back.
func TestSilentRouter(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{300 * time.Millisecond, 50 * time.Millisecond} {
		for _, kind := range newerKinds() {
			t.Run(fmt.Sprintf("%s %s", kind, interval), func(t *testing.T) {
				t.Parallel()
				lan, node := node(t)
				one, other := lan.Host(10), lan.Host(11)
				shared := append(blocksOf(10), blocksOf(11)...)
				stopped := one.Daemon(kind, announcing(partner(10, node.Host, withBFD(interval)), shared))
				other.Daemon(bgptest.BIRD(), announcing(partner(11, node.Host), shared))
				node.SetPeers(append(peers(node.Host, one, bfdOf(interval, bfd.Auth{})), peers(node.Host, other)...)...)
				waitBFD(t, node, one, bfd.Up)
				waitHops(t, node, one, other)
				bgptest.Eventually(t, func() error {
					for _, addr := range one.Addrs() {
						if got := node.Peer(addr).BFD; got.Detection != 3*interval {
							return fmt.Errorf("detection time is %s, want 3 x %s", got.Detection, interval)
						}
					}
					return nil
				})

				stopped.Signal(syscall.SIGSTOP)
				bgptest.Eventually(t, func() error {
					all := hops(node)
					for _, addr := range one.Addrs() {
						p := node.Peer(addr)
						silent := p.State != bgp.Established && strings.HasPrefix(p.LastError, "BFD is down: Control Detection Time Expired")
						if slices.Contains(all, addr) || !silent {
							return fmt.Errorf("next hops are %s, session with the stopped %s is %s: %q", all, addr, p.State, p.LastError)
						}
					}
					return nil
				})
				stopped.Signal(syscall.SIGCONT)
				waitBFD(t, node, one, bfd.Up)
				waitHops(t, node, one, other)
			})
		}
	}
}

func announcing(c bgptest.Config, prefixes []netip.Prefix) bgptest.Config {
	c.Announce = prefixes
	return c
}

// hops returns the next hops of all learned paths.
func hops(node *bgptest.Speaker) []netip.Addr {
	var all []netip.Addr
	for _, p := range node.Snapshot() {
		all = append(all, p.NextHop)
	}
	return all
}

// waitHops waits until the paths lead to all hosts.
func waitHops(t *testing.T, node *bgptest.Speaker, hosts ...*bgptest.Host) {
	t.Helper()
	bgptest.Eventually(t, func() error {
		all := hops(node)
		for _, h := range hosts {
			for _, addr := range h.Addrs() {
				if !slices.Contains(all, addr) {
					return fmt.Errorf("next hops are %s, want %s among them", all, addr)
				}
			}
		}
		return nil
	})
}

// The only path to a prefix stays while its router, which restarts gracefully, is silent.
func TestSilentRouterWithoutAnother(t *testing.T) {
	const interval = 300 * time.Millisecond
	forEachKind(t, func(t *testing.T, kind bgptest.Kind) {
		lan, node := node(t)
		host := lan.Host(10)
		daemon := host.Daemon(kind, partner(10, node.Host, withBFD(interval)))
		node.SetPeers(peers(node.Host, host, bfdOf(interval, bfd.Auth{}))...)
		waitBFD(t, node, host, bfd.Up)
		waitPaths(t, node, blocksOf(10), false)
		daemon.Signal(syscall.SIGSTOP)
		node.WaitError(host.V4, "BFD is down")
		node.WaitError(host.V6, "BFD is down")
		waitPaths(t, node, blocksOf(10), true)
		daemon.Signal(syscall.SIGCONT)
	})
}

// A peer without BFD keeps its session.
func TestPeerWithoutBFD(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind bgptest.Kind) {
		lan, node := node(t)
		host := lan.Host(10)
		host.Daemon(kind, partner(10, node.Host))
		node.SetPeers(peers(node.Host, host, bfdOf(50*time.Millisecond, bfd.Auth{}))...)
		waitBFD(t, node, host, bfd.Down)
		waitPackets(t, host, "in", "udp dport 3784", 3)
		for _, addr := range host.Addrs() {
			if p := node.Peer(addr); p.State != bgp.Established || p.LastError != "" || p.BFD.Heard {
				t.Errorf("session with %s: %+v, BFD %+v", addr, p, p.BFD)
			}
		}
	})
}

// saysDown matches BFD packets in state Down: the first two bits of their second byte (RFC 5880 section 4.1).
const saysDown = "udp dport 3784 @th,72,2 1"

// silence makes the host drop its own BFD packets.
func silence(t *testing.T, host *bgptest.Host) {
	t.Helper()
	host.Run(t, "nft",
		"add table inet cut; add chain inet cut out { type filter hook output priority 0; }; add rule inet cut out udp dport 3784 drop")
}

// Packet loss towards this end alone ends the session once, by either end. The next session stays up although BFD is
// down.
func TestOneWayLoss(t *testing.T) {
	const interval = 300 * time.Millisecond
	forEachKind(t, func(t *testing.T, kind bgptest.Kind) {
		lan, node := node(t)
		host := lan.Host(10)
		host.Daemon(kind, partner(10, node.Host, withBFD(interval)))
		node.SetPeers(peers(node.Host, host, bfdOf(interval, bfd.Auth{}))...)
		waitBFD(t, node, host, bfd.Up)
		first := node.Peer(host.V4).Since
		silence(t, host)
		bgptest.Eventually(t, func() error {
			if p := node.Peer(host.V4); p.Since == first {
				return fmt.Errorf("the session is still up: %+v", p)
			}
			return nil
		})
		waitPackets(t, host, "in", saysDown, 2) // so the other end has acted, too
		waitBFD(t, node, host, bfd.Down)
		since := node.Peer(host.V4).Since
		waitPackets(t, host, "in", saysDown, 3)
		if p := node.Peer(host.V4); p.State != bgp.Established || p.Since != since {
			t.Errorf("the session was ended once more: %+v", p)
		}
	})
}

// quiet is a bfd.Watcher that does nothing.
type quiet struct{}

func (quiet) Changed()                  {}
func (quiet) Lost(netip.Addr, bfd.Loss) {}

// When the peer's operator ends BFD the session stays; silence ends it with the NOTIFICATION of RFC 9384.
func TestBFDNotification(t *testing.T) {
	t.Parallel()
	lan, node := node(t)
	host := lan.Host(10)
	const interval = 100 * time.Millisecond
	watched := func(p *bgp.Peer) { p.Passive = true; bfdOf(interval, bfd.Auth{})(p) }
	node.SetPeers(peers(node.Host, host, watched)[:1]...)
	engine := bfd.NewEngine(slog.New(slog.DiscardHandler), quiet{})
	set := func(on bool) {
		config := bfd.Config{From: host.V4, Interval: interval, Multiplier: 10}
		// 10.0.0.99 keeps the socket open: a process started by another test might keep it, too.
		want := map[netip.Addr]bfd.Config{netip.MustParseAddr("10.0.0.99"): config}
		if on {
			want[node.V4] = config
		}
		host.Within(t, func() error { engine.Set(want); return nil })
	}
	t.Cleanup(func() { engine.Set(nil) })
	host.V6 = netip.Addr{}

	conn := host.Dial(node.V4)
	if _, err := conn.TryHandshake(ourASN, 0); err != nil {
		t.Fatal(err)
	}
	set(true)
	waitBFD(t, node, host, bfd.Up)
	since := node.Peer(host.V4).Since
	set(false)
	waitBFD(t, node, host, bfd.Down)
	set(true)
	waitBFD(t, node, host, bfd.Up)
	if p := node.Peer(host.V4); p.Since != since || p.LastError != "" {
		t.Errorf("the session was ended: %+v", p)
	}
	silence(t, host)
	body, err := conn.Until(bgptest.Notification)
	if err != nil || !bytes.Equal(body[:2], []byte{6, 10}) {
		t.Errorf("NOTIFICATION is %v, %v, want 6, 10", body, err)
	}
}

// A node whose agent is killed loses no route at routers that are configured to take the end of BFD for a restart (its
// C bit is not set).
func TestNodeRestartsUnderBFD(t *testing.T) {
	const slow = 600 * time.Millisecond // the first restart should take less than three of these
	t.Parallel()
	for _, kind := range newerKinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			lan, node := node(t)
			host := lan.Host(10)
			daemon := host.Daemon(kind, partner(10, node.Host, withBFD(slow), func(s *bgptest.Session) { s.BFDGraceful = true }))
			watched := peers(node.Host, host, bfdOf(slow, bfd.Auth{}))
			node.SetPeers(watched...)
			waitBFD(t, node, host, bfd.Up)
			waitKernels(t, host, node.Host, ownBlocks...)
			record := host.Monitor()
			for round := range 2 { // before the end of BFD's detection time, and after it
				node.End(syscall.SIGKILL)
				if round == 1 {
					waitPackets(t, host, "out", saysDown, 1)
				}
				node = node.Host.Speaker()
				node.Start(ourASN, true)
				node.Originate(ownBlocks...)
				if kind == bgptest.FRR {
					// FRR 8.4 drops stale routes if BFD comes up while it accepts the connection of the node that has restarted.
					node.SetPeers(peers(node.Host, host)...)
					waitConfirmed(t, node, daemon, 2+round)
				}
				node.SetPeers(watched...)
				waitBFD(t, node, host, bfd.Up)
				waitConfirmed(t, node, daemon, round) // stale paths are dropped when a session ends (RFC 4724 section 4.2)
			}
			for _, prefix := range ownBlocks {
				if lost := record.Lost(prefix); len(lost) > 0 {
					t.Errorf("%s on the kernel of %s: %q", prefix, kind, lost)
				}
			}
		})
	}
}

// BIRD authenticates BFD by the same keys, and keeps the session up.
func TestBFDAuthentication(t *testing.T) {
	t.Parallel()
	for kind, words := range map[bfd.AuthType]string{
		bfd.KeyedMD5: "keyed md5", bfd.MeticulousMD5: "meticulous keyed md5", bfd.KeyedSHA1: "keyed sha1",
		bfd.MeticulousSHA1: "meticulous keyed sha1",
	} {
		t.Run(words, func(t *testing.T) {
			t.Parallel()
			lan, node := node(t)
			host := lan.Host(10)
			host.Daemon(bgptest.BIRD(),
				partner(10, node.Host, withBFD(300*time.Millisecond), func(s *bgptest.Session) { s.BFDAuth, s.BFDKey = words, "of-both-ends" }))
			sessions := func(key string) []bgp.Peer {
				return peers(node.Host, host, bfdOf(300*time.Millisecond, bfd.Auth{Type: kind, KeyID: 7, Key: key}))
			}
			node.SetPeers(sessions("of-both-ends")...)
			waitBFD(t, node, host, bfd.Up)
			since := node.Peer(host.V4).BFD.Since
			waitPackets(t, node.Host, "in", "udp dport 3784", 5)
			if got := node.Peer(host.V4).BFD; got.State != bfd.Up || got.Since != since {
				t.Errorf("session did not stay up: %+v", got)
			}
			node.SetPeers(sessions("of-another")...)
			waitBFD(t, node, host, bfd.Down)
			bgptest.Eventually(t, func() error {
				if got := node.Peer(host.V4).BFD.Fault; !errtest.Has(got, "digest key") {
					return fmt.Errorf("fault is %q, want one of the key", got)
				}
				return nil
			})
		})
	}
}
