package bgp_test

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/tcpao"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// withPassword sets a password for all peers.
func withPassword(password string, peers []bgp.Peer) []bgp.Peer {
	for i := range peers {
		peers[i].Password = password
	}
	return peers
}

// A password changes on one side first and on the other some time later; no path is lost.
func TestPasswordIsChanged(t *testing.T) {
	t.Parallel()
	nine, ten := pair(t)
	nine.Originate("10.1.9.0/26")
	ten.Originate("10.1.10.0/26")
	set := func(password string, s, other *bgptest.Speaker) {
		s.SetPeers(withPassword(password, mesh(s.Host, other.Host))...)
	}
	set("sesame", nine, ten)
	set("sesame", ten, nine)
	nine.WaitLearned("10.1.10.0/26")
	ten.WaitLearned("10.1.9.0/26")
	for _, password := range []string{"simsim", "simsala", ""} {
		since := ten.Peer(nine.V4).Since
		set(password, nine, ten)
		for s, want := range map[*bgptest.Speaker]string{nine: "10.1.10.0/26", ten: "10.1.9.0/26"} {
			bgptest.Eventually(t, func() error {
				paths := s.Snapshot()
				if len(paths) != 1 || paths[0].Prefix.String() != want {
					t.Fatalf("%s has %v, and has lost %s", s.V4, paths, want)
				}
				if !paths[0].Stale {
					return fmt.Errorf("the session of %s is not broken", s.V4)
				}
				return nil
			})
		}
		set(password, ten, nine)
		for s, want := range map[*bgptest.Speaker]string{nine: "10.1.10.0/26", ten: "10.1.9.0/26"} {
			bgptest.Eventually(t, func() error {
				paths := s.Snapshot()
				if len(paths) != 1 || paths[0].Prefix.String() != want {
					t.Fatalf("%s has %v, and has lost %s", s.V4, paths, want)
				}
				if paths[0].Stale {
					return fmt.Errorf("%s has not heard its path again", s.V4)
				}
				return nil
			})
		}
		if p := ten.Peer(nine.V4); !p.Since.After(since) {
			t.Errorf("no new session: %+v", p)
		}
	}
}

// Peers with passwords of their own, and one without, on one listener.
func TestPasswordsOfSeveralPeers(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	node := lan.Host(1).Speaker()
	node.Start(64512, false)
	var peers []bgp.Peer
	var others []netip.Addr
	for i, password := range []string{"two", "three", ""} {
		other := lan.Host(i + 2).Speaker()
		other.Start(64512, false)
		other.SetPeers(bgp.Peer{Addr: node.V4, ASN: 64512, From: other.V4, Password: password})
		peers = append(peers, bgp.Peer{Addr: other.V4, ASN: 64512, From: node.V4, Passive: true, Password: password})
		others = append(others, other.V4)
	}
	node.SetPeers(peers[0]) // one key, for all addresses
	node.WaitEstablished(others[0])
	node.SetPeers(peers...) // one for each
	node.WaitEstablished(others...)
}

// Both ends connect, which is the default of a BGPPeer.
func TestBothEndsConnect(t *testing.T) {
	t.Parallel()
	nine, ten := pair(t)
	nine.Originate("10.1.9.0/26")
	for _, s := range [][2]*bgptest.Speaker{{nine, ten}, {ten, nine}} {
		s[0].SetPeers(bgp.Peer{Addr: s[1].V4, ASN: 64512, From: s[0].V4})
	}
	for range 3 {
		nine.WaitEstablished(ten.V4)
		ten.WaitLearned("10.1.9.0/26")
		ten.WaitEstablished(nine.V4)
		before := nine.Peer(ten.V4).Since
		// Both begin anew at once.
		for _, s := range [][2]*bgptest.Speaker{{nine, ten}, {ten, nine}} {
			s[0].SetPeers()
		}
		for _, s := range [][2]*bgptest.Speaker{{nine, ten}, {ten, nine}} {
			s[0].SetPeers(bgp.Peer{Addr: s[1].V4, ASN: 64512, From: s[0].V4})
		}
		bgptest.Eventually(t, func() error {
			if p := nine.Peer(ten.V4); p.State != bgp.Established || !p.Since.After(before) {
				return fmt.Errorf("session is %s since %s: %s", p.State, p.Since, p.LastError)
			}
			return nil
		})
	}
	// One session on one connection, and it stays while both ends announce more.
	bgptest.Eventually(t, func() error {
		if all := nine.Run(t, "ss", "-Htn", "dst", ten.V4.String()); strings.Count(all, "\n") != 1 || !strings.HasPrefix(all, "ESTAB") {
			return fmt.Errorf("connections:\n%s", all)
		}
		return nil
	})
	ten.WaitEstablished(nine.V4)
	since := ten.Peer(nine.V4).Since
	nine.Originate("10.1.9.0/26", "10.1.9.64/26")
	ten.WaitLearned("10.1.9.0/26 10.1.9.64/26")
	ten.Originate("10.1.10.0/26")
	nine.WaitLearned("10.1.10.0/26")
	if p := ten.Peer(nine.V4); p.State != bgp.Established || !p.Since.Equal(since) {
		t.Errorf("session flaps: %+v", p)
	}
}

// GoBGP alone needs five seconds in Idle and one or two more to connect. The relay tries again within a second;
// BenchmarkReconnect measures how long a session takes to come back.
func TestFastReconnect(t *testing.T) {
	t.Parallel()
	nine, ten := pair(t)
	ten.Originate("10.1.10.0/26")
	nine.SetPeers(mesh(nine.Host, ten.Host)...)
	ten.SetPeers(mesh(ten.Host, nine.Host)...)
	nine.WaitEstablished(ten.V4)
	for range 3 {
		ten.SetPeers()
		bgptest.Eventually(t, func() error {
			p := nine.Peer(ten.V4)
			next := nine.Call(bgptest.Call{Method: "Traffic"}).Traffic[ten.V4].NextTry
			if p.State == bgp.Established || next.IsZero() || next.Sub(p.LastErrorAt) > time.Second {
				return fmt.Errorf("session is %s since %s, the next attempt is at %s", p.State, p.LastErrorAt, next)
			}
			return nil
		})
		ten.SetPeers(mesh(ten.Host, nine.Host)...)
		nine.WaitEstablished(ten.V4)
	}
}

// A peer that vanishes silently and comes back is served at once: the dead connection does not block it for the hold
// time, and its paths stay meanwhile. Its kernel resets unknown connections, or a firewall in front of it drops their
// packets.
func TestPeerThatVanished(t *testing.T) {
	t.Parallel()
	for name, fate := range map[string]string{"reset": "reject with tcp reset", "dropped": "drop"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node, peer, to := target(t, nil)
			first := established(peer, to, hello(2))
			first.send(announce(peer.V4, 26, 10, 1, 2, 0), bgptest.Message(2, 0, 0, 0, 0))
			node.WaitLearned("10.1.2.0/26")
			node.WaitEstablished(peer.V4)
			since := node.Peer(peer.V4).Since
			lose(peer, fate)
			second := connect(peer, to)
			second.send(restarted(2), keepalive)
			bgptest.Eventually(t, func() error {
				if p := node.Peer(peer.V4); p.State != bgp.Established || !p.Since.After(since) {
					return fmt.Errorf("session is %s since %s", p.State, p.Since)
				}
				return nil
			})
			if paths := node.Snapshot(); len(paths) != 1 || !paths[0].Stale {
				t.Errorf("paths %v, want the one of before, stale", paths)
			}
			second.send(announce(peer.V4, 26, 10, 1, 3, 0), bgptest.Message(2, 0, 0, 0, 0))
			node.WaitLearned("10.1.3.0/26")
		})
	}
}

// The peer has our OPEN and KEEPALIVE on the connection that we opened, and regards the session as established, when a
// connection that it opened before arrives: the first stays, although the peer's router ID is the higher one.
func TestCollisionWithAnEstablishedEnd(t *testing.T) {
	t.Parallel()
	var l net.Listener
	node, peer, to := target(t, func(p *bgp.Peer) { p.Passive = false })
	peer.Within(t, func() (err error) { l, err = net.Listen("tcp", peer.V4.String()+":179"); return err })
	defer l.Close()
	conn, err := l.Accept()
	errtest.Must(t, err)
	first := &rawPeer{t: t, Conn: conn}
	first.send(hello(77))
	for range 2 { // OPEN, KEEPALIVE
		first.read()
	}
	second := connect(peer, to)
	defer second.Close()
	second.send(hello(77))
	bgptest.Eventually(t, func() error { // the node has read the OPEN
		addr := second.LocalAddr().String()
		ends := strings.Fields(node.Run(t, "ss", "-Htn", "dst", addr) + peer.Run(t, "ss", "-Htn", "src", addr))
		if len(ends) != 10 || ends[1] != "0" || ends[7] != "0" {
			return fmt.Errorf("not read or not sent: %q", ends)
		}
		return nil
	})
	first.send(keepalive)
	node.WaitEstablished(peer.V4)
	if got := second.last(); got != "Cease/Connection Collision Resolution" {
		t.Errorf("the second connection is told %q", got)
	}
	first.send(announce(peer.V4, 26, 10, 1, 2, 0))
	node.WaitLearned("10.1.2.0/26")
}

// restarted returns the OPEN of a router with the R bit set.
func restarted(id byte) []byte {
	open := hello(id)
	open[bytes.Index(open, []byte{64, 10})+2] |= 0x80 // the R bit of graceful restart
	return open
}

// lose cuts the host's connections to BGP's port: packets to it are dropped, or reset as by a kernel that does not know
// the connection. It sends nothing but resets.
func lose(h *bgptest.Host, fate string) {
	h.T.Helper()
	h.Run(h.T, "nft", "add table inet lost; add chain inet lost in { type filter hook input priority 0; }; add chain inet lost out { type "+
		"filter hook output priority 0; }")
	for line := range strings.Lines(h.Run(h.T, "ss", "-Htn", "state", "established", "dport", "=", ":179")) {
		local := netip.MustParseAddrPort(strings.Fields(line)[2])
		h.Run(h.T, "nft", fmt.Sprintf("add rule inet lost in tcp dport %d %s; add rule inet lost out tcp sport %d tcp flags & rst == 0 drop",
			local.Port(), fate, local.Port()))
	}
}

// A second connection from the peer's address does not end a session whose connection is alive, whatever its router ID:
// a pod whose packets are masqueraded to its node's address may have opened it.
func TestTakeover(t *testing.T) {
	t.Parallel()
	node, peer, to := target(t, nil)
	first := established(peer, to, hello(2))
	first.send(announce(peer.V4, 26, 10, 1, 2, 0), bgptest.Message(2, 0, 0, 0, 0))
	node.WaitLearned("10.1.2.0/26")
	since := node.Peer(peer.V4).Since
	waittest.Until(t, time.Minute, "later than a connection could cross the first one", func() bool {
		return time.Since(since) > 3500*time.Millisecond
	})
	for name, open := range map[string][]byte{"another router": hello(77), "the same router": hello(2),
		"another that has restarted": restarted(77), "the same, restarted": restarted(2)} {
		told(peer, to, "Cease/Connection Collision Resolution", open, keepalive)
		if p := node.Peer(peer.V4); p.State != bgp.Established || !p.Since.Equal(since) {
			t.Errorf("%s: the session is %s since %s: %s", name, p.State, p.Since, p.LastError)
		}
	}
	first.send(announce(peer.V4, 26, 10, 1, 3, 0))
	node.WaitLearned("10.1.2.0/26 10.1.3.0/26")
}

// eBGP and IPv6: each session has its own end's address as the next hop.
func TestNextHops(t *testing.T) {
	t.Parallel()
	nine, ten := pair(t)
	nine.Call(bgptest.Call{Method: "Stop"}) // it stays in AS 64512; another process takes its place
	nine.End(syscall.SIGKILL)
	outside := nine.Host.Speaker()
	outside.Start(64513, false)
	outside.Originate("10.1.9.0/26", "fd01:9::/122")
	peers := func(self, other *bgptest.Host, asn uint32) []bgp.Peer {
		return []bgp.Peer{{Addr: other.V4, ASN: asn, From: self.V4}, {Addr: other.V6, ASN: asn, From: self.V6}}
	}
	outside.SetPeers(peers(outside.Host, ten.Host, 64512)...)
	ten.SetPeers(peers(ten.Host, outside.Host, 64513)...)
	ten.WaitLearned("10.1.9.0/26 fd01:9::/122")
	for i, want := range []netip.Addr{outside.V4, outside.V6} {
		if p := ten.Snapshot()[i]; p.NextHop != want || p.From != want || p.ASPath != "64513" {
			t.Errorf("%+v, want %s", p, want)
		}
	}
}

func TestHostIsGone(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	node, peer := lan.Host(1).Speaker(), lan.Host(2)
	node.Start(64512, false)
	// A firewall that drops, and an address of ours that is not there.
	peer.IP("link", "set", "eth0", "down")
	node.IP("neigh", "replace", peer.V4.String(), "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0")
	gone := netip.MustParseAddr("10.0.0.77")
	node.SetPeers(
		bgp.Peer{Addr: peer.V4, ASN: 64512, From: node.V4},
		bgp.Peer{Addr: netip.MustParseAddr("10.0.0.3"), ASN: 64512, From: gone},
		bgp.Peer{Addr: netip.MustParseAddr("192.0.2.1"), ASN: 64512, From: node.V4})
	node.WaitError(peer.V4, "no TCP answer on port 179: the node is down, a firewall drops")
	node.WaitError(netip.MustParseAddr("10.0.0.3"), "our own address 10.0.0.77 is not on this node any more")
	node.WaitError(netip.MustParseAddr("192.0.2.1"), "network unreachable")
	bgptest.Eventually(t, func() error {
		next := node.Call(bgptest.Call{Method: "Traffic"}).Traffic[netip.MustParseAddr("192.0.2.1")].NextTry
		if wait := time.Until(next); next.IsZero() || wait > 2*bgp.DefaultConnectRetry {
			return fmt.Errorf("the next attempt is at %s", next)
		}
		return nil
	})
}

// Without TCP MD5 and TCP-AO in the kernel, sessions with a password or keys are not opened; all others are.
func TestKernelWithoutSigning(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	node, friend, secret := lan.Host(1).Speaker("env", noSigningEnv+"=1"), lan.Host(2).Speaker(), lan.Host(3).Speaker()
	for _, s := range []*bgptest.Speaker{node, friend, secret} {
		s.Start(64512, false)
	}
	keys, err := tcpao.Parse("1 hmac-sha1-96 secret")
	errtest.Must(t, err)
	node.SetPeers(
		bgp.Peer{Addr: friend.V4, ASN: 64512, From: node.V4},
		bgp.Peer{Addr: secret.V4, ASN: 64512, From: node.V4, Password: "sesame"},
		bgp.Peer{Addr: secret.V6, ASN: 64512, From: node.V6, AO: keys})
	for _, s := range []*bgptest.Speaker{friend, secret} {
		s.SetPeers(bgp.Peer{Addr: node.V4, ASN: 64512, From: s.V4})
	}
	node.WaitEstablished(friend.V4)
	if p := node.WaitError(secret.V4, "no session: it has a password, and the kernel has no TCP MD5 signatures"); p.State != bgp.Idle {
		t.Errorf("session with a password: %+v", p)
	}
	if p := node.WaitError(secret.V6, "no session: it has TCP-AO keys, and the kernel has no TCP-AO"); p.State != bgp.Idle {
		t.Errorf("session with keys: %+v", p)
	}
	secret.WaitError(node.V4, "closed the connection during the handshake")
	if !strings.Contains(node.Log(), "can pose as a peer") {
		t.Error("no warning")
	}
	node.Call(bgptest.Call{Method: "Healthy"})
	node.SetPeers()
}
