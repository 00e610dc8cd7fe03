package bgp_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
)

// withPassword gives all peers a password.
func withPassword(password string, peers []bgp.Peer) []bgp.Peer {
	for i := range peers {
		peers[i].Password = password
	}
	return peers
}

func TestPasswords(t *testing.T) {
	t.Parallel()
	nine, ten := pair(t)
	nine.originate("10.1.9.0/26", "fd01:9::/122")
	nine.setPeers(withPassword("sesame", dualStackMesh(nine.host, ten.host))...)
	ten.setPeers(withPassword("simsim", dualStackMesh(ten.host, nine.host))...)
	for _, addr := range []netip.Addr{ten.v4, ten.v6} {
		nine.waitError(addr, "MD5 password wrong or missing on one side")
	}
	for _, addr := range []netip.Addr{nine.v4, nine.v6} {
		ten.waitError(addr, "for their MD5 signature: MD5 password wrong or missing on one side")
	}

	ten.setPeers(withPassword("sesame", dualStackMesh(ten.host, nine.host))...)
	nine.waitEstablished(ten.v4, ten.v6)
	ten.waitLearned("10.1.9.0/26 fd01:9::/122")

	// One side takes it away, for IPv4: that session ends, and can't come back; the other one stays.
	since := ten.peer(nine.v6).Since
	peers := withPassword("sesame", dualStackMesh(nine.host, ten.host))
	peers[0].Password = ""
	nine.setPeers(peers...)
	nine.waitError(ten.v4, "it expects an MD5 password")
	if p := ten.peer(nine.v4); p.State == bgp.Established {
		t.Errorf("the session without a password: %+v", p)
	}
	if p := ten.peer(nine.v6); p.State != bgp.Established || !p.Since.Equal(since) {
		t.Errorf("the other session: %+v", p)
	}
	// The other side follows.
	peers = withPassword("sesame", dualStackMesh(ten.host, nine.host))
	peers[0].Password = ""
	ten.setPeers(peers...)
	ten.waitEstablished(nine.v4, nine.v6)
	for _, s := range []*speaker{nine, ten} {
		if log := s.log.String(); strings.Contains(log, "sesame") || strings.Contains(log, "simsim") {
			t.Errorf("the log of %s has the password", s.v4)
		}
	}
}

// A password is changed on one side first and on the other some time later; nobody loses a path over it.
func TestPasswordIsChanged(t *testing.T) {
	t.Parallel()
	nine, ten := pair(t)
	nine.originate("10.1.9.0/26")
	ten.originate("10.1.10.0/26")
	set := func(password string, s, other *speaker) { s.setPeers(withPassword(password, s.mesh(other.host))...) }
	set("sesame", nine, ten)
	set("sesame", ten, nine)
	nine.waitLearned("10.1.10.0/26")
	ten.waitLearned("10.1.9.0/26")
	for _, password := range []string{"simsim", "simsala", ""} {
		since := ten.peer(nine.v4).Since
		set(password, nine, ten)
		for s, want := range map[*speaker]string{nine: "10.1.10.0/26", ten: "10.1.9.0/26"} {
			eventually(t, func() error {
				paths := s.snapshot()
				if len(paths) != 1 || paths[0].Prefix.String() != want {
					t.Fatalf("%s has %v, and has lost %s", s.v4, paths, want)
				}
				if !paths[0].Stale {
					return fmt.Errorf("the session of %s is not broken", s.v4)
				}
				return nil
			})
		}
		set(password, ten, nine)
		for s, want := range map[*speaker]string{nine: "10.1.10.0/26", ten: "10.1.9.0/26"} {
			eventually(t, func() error {
				paths := s.snapshot()
				if len(paths) != 1 || paths[0].Prefix.String() != want {
					t.Fatalf("%s has %v, and has lost %s", s.v4, paths, want)
				}
				if paths[0].Stale {
					return fmt.Errorf("%s has not heard its path again", s.v4)
				}
				return nil
			})
		}
		if p := ten.peer(nine.v4); !p.Since.After(since) {
			t.Errorf("no new session: %+v", p)
		}
	}
}

// Peers with passwords of their own, and one without, on one listener.
func TestPasswordsOfSeveralPeers(t *testing.T) {
	t.Parallel()
	lan := newLAN(t)
	node := lan.host(1).speak()
	node.start(64512, false)
	var peers []bgp.Peer
	var others []netip.Addr
	for i, password := range []string{"two", "three", ""} {
		other := lan.host(i + 2).speak()
		other.start(64512, false)
		other.setPeers(bgp.Peer{Addr: node.v4, ASN: 64512, From: other.v4, Password: password})
		peers = append(peers, bgp.Peer{Addr: other.v4, ASN: 64512, From: node.v4, Passive: true, Password: password})
		others = append(others, other.v4)
	}
	node.setPeers(peers[0]) // one key for all
	node.waitEstablished(others[0])
	node.setPeers(peers...) // one for each
	node.waitEstablished(others...)
}

// Both ends connect, as ends of a BGPPeer do that says nothing else.
func TestBothEndsConnect(t *testing.T) {
	t.Parallel()
	nine, ten := pair(t)
	nine.originate("10.1.9.0/26")
	for _, s := range [][2]*speaker{{nine, ten}, {ten, nine}} {
		s[0].setPeers(bgp.Peer{Addr: s[1].v4, ASN: 64512, From: s[0].v4})
	}
	for range 3 {
		nine.waitEstablished(ten.v4)
		ten.waitLearned("10.1.9.0/26")
		ten.waitEstablished(nine.v4)
		before := nine.peer(ten.v4).Since
		// Both begin anew at once.
		for _, s := range [][2]*speaker{{nine, ten}, {ten, nine}} {
			s[0].setPeers()
		}
		for _, s := range [][2]*speaker{{nine, ten}, {ten, nine}} {
			s[0].setPeers(bgp.Peer{Addr: s[1].v4, ASN: 64512, From: s[0].v4})
		}
		eventually(t, func() error {
			if p := nine.peer(ten.v4); p.State != bgp.Established || !p.Since.After(before) {
				return fmt.Errorf("session is %s since %s: %s", p.State, p.Since, p.LastError)
			}
			return nil
		})
	}
	// One session, and it stays.
	since := ten.peer(nine.v4).Since
	time.Sleep(time.Second)
	if p := ten.peer(nine.v4); p.State != bgp.Established || !p.Since.Equal(since) {
		t.Errorf("session flaps: %+v", p)
	}
	if n := strings.Count(run(t, "ip", "netns", "exec", nine.ns, "ss", "-Htn", "state", "established", "dst", ten.v4.String()), "\n"); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// GoBGP alone needs five seconds in Idle and one or two more to connect. The bound is for a busy machine; what it takes on a
// quiet one is BenchmarkReconnect's.
func TestFastReconnect(t *testing.T) {
	t.Parallel()
	nine, ten := pair(t)
	ten.originate("10.1.10.0/26")
	nine.setPeers(nine.mesh(ten.host)...)
	ten.setPeers(ten.mesh(nine.host)...)
	nine.waitEstablished(ten.v4)
	for range 3 {
		ten.setPeers()
		eventually(t, func() error {
			if p := nine.peer(ten.v4); p.State == bgp.Established {
				return fmt.Errorf("session is %s", p.State)
			}
			return nil
		})
		begin := time.Now()
		ten.setPeers(ten.mesh(nine.host)...)
		nine.waitEstablished(ten.v4)
		if took := time.Since(begin); took > 4*time.Second {
			t.Errorf("the session came back after %s", took)
		}
	}
}

// A peer that vanishes without a word and comes back is served at once: the dead connection does not keep it out for the
// hold time, and its paths stay meanwhile. Its kernel resets what it does not know, or a firewall in front of it drops that.
func TestPeerThatVanished(t *testing.T) {
	t.Parallel()
	for name, fate := range map[string]string{"reset": "reject with tcp reset", "dropped": "drop"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node, peer, to := target(t, nil)
			first := peer.connect(peer.v4, to)
			first.establish(2)
			first.send(announce(peer.v4, 26, 10, 1, 2, 0), message(2, 0, 0, 0, 0))
			node.waitLearned("10.1.2.0/26")
			node.waitEstablished(peer.v4)
			since := node.peer(peer.v4).Since
			peer.lose(fate)
			second := peer.connect(peer.v4, to)
			second.send(restarted(2), keepalive)
			eventually(t, func() error {
				if p := node.peer(peer.v4); p.State != bgp.Established || !p.Since.After(since) {
					return fmt.Errorf("session is %s since %s", p.State, p.Since)
				}
				return nil
			})
			if paths := node.snapshot(); len(paths) != 1 || !paths[0].Stale {
				t.Errorf("paths %v, want the one of before, stale", paths)
			}
			second.send(announce(peer.v4, 26, 10, 1, 3, 0), message(2, 0, 0, 0, 0))
			node.waitLearned("10.1.3.0/26")
		})
	}
}

// restarted is the OPEN of a router that says that it has restarted.
func restarted(id byte) []byte {
	open := hello(id)
	open[bytes.Index(open, []byte{64, 10})+2] |= 0x80 // the R bit of graceful restart
	return open
}

// lose makes the host deaf on its connections to BGP's port that are: what arrives on them is dropped, or answered as by a kernel
// that knows nothing of them. They say nothing any more.
func (h *host) lose(fate string) {
	h.t.Helper()
	run(h.t, "ip", "netns", "exec", h.ns, "nft", "add table inet lost; add chain inet lost in { type filter hook input priority 0; }; add chain inet lost out { type filter hook output priority 0; }")
	for line := range strings.Lines(run(h.t, "ip", "netns", "exec", h.ns, "ss", "-Htn", "state", "established", "dport", "=", ":179")) {
		local := netip.MustParseAddrPort(strings.Fields(line)[2])
		run(h.t, "ip", "netns", "exec", h.ns, "nft", fmt.Sprintf("add rule inet lost in tcp dport %d %s; add rule inet lost out tcp sport %d tcp flags & rst == 0 drop", local.Port(), fate, local.Port()))
	}
}

// A second connection from the peer's address does not end a session whose connection is alive, whatever router it says it is: a pod
// whose packets are masqueraded to its node's address may have opened it.
func TestTakeover(t *testing.T) {
	t.Parallel()
	node, peer, to := target(t, nil)
	first := peer.connect(peer.v4, to)
	first.establish(2)
	first.send(announce(peer.v4, 26, 10, 1, 2, 0), message(2, 0, 0, 0, 0))
	node.waitLearned("10.1.2.0/26")
	time.Sleep(3500 * time.Millisecond) // later than a connection could cross the first one
	since := node.peer(peer.v4).Since
	for name, open := range map[string][]byte{"another router": hello(77), "the same router": hello(2), "another that has restarted": restarted(77), "the same, restarted": restarted(2)} {
		second := peer.connect(peer.v4, to)
		second.send(open, keepalive)
		if got := second.last(); got != "Cease/Connection Collision Resolution" {
			t.Errorf("%s is told %q", name, got)
		}
		if p := node.peer(peer.v4); p.State != bgp.Established || !p.Since.Equal(since) {
			t.Errorf("%s: the session is %s since %s: %s", name, p.State, p.Since, p.LastError)
		}
	}
	first.send(announce(peer.v4, 26, 10, 1, 3, 0))
	node.waitLearned("10.1.2.0/26 10.1.3.0/26")
}

// eBGP and IPv6: each session has its own end's address as the next hop.
func TestNextHops(t *testing.T) {
	t.Parallel()
	nine, ten := pair(t)
	nine.do(call{Method: "Stop"}) // it stays in AS 64512; another process takes its place
	nine.kill()
	outside := nine.host.speak()
	outside.start(64513, false)
	outside.originate("10.1.9.0/26", "fd01:9::/122")
	peers := func(self, other *host, asn uint32) []bgp.Peer {
		return []bgp.Peer{{Addr: other.v4, ASN: asn, From: self.v4}, {Addr: other.v6, ASN: asn, From: self.v6}}
	}
	outside.setPeers(peers(outside.host, ten.host, 64512)...)
	ten.setPeers(peers(ten.host, outside.host, 64513)...)
	ten.waitLearned("10.1.9.0/26 fd01:9::/122")
	for i, want := range []netip.Addr{outside.v4, outside.v6} {
		if p := ten.snapshot()[i]; p.NextHop != want || p.From != want || p.ASPath != "64513" {
			t.Errorf("%+v, want %s", p, want)
		}
	}
}

func TestHostIsGone(t *testing.T) {
	t.Parallel()
	lan := newLAN(t)
	node, peer := lan.host(1).speak(), lan.host(2)
	node.start(64512, false)
	// A firewall that drops, and an address of ours that is not there.
	run(t, "ip", "-n", peer.ns, "link", "set", "eth0", "down")
	run(t, "ip", "-n", node.ns, "neigh", "replace", peer.v4.String(), "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0")
	gone := netip.MustParseAddr("10.0.0.77")
	node.setPeers(
		bgp.Peer{Addr: peer.v4, ASN: 64512, From: node.v4},
		bgp.Peer{Addr: netip.MustParseAddr("10.0.0.3"), ASN: 64512, From: gone},
		bgp.Peer{Addr: netip.MustParseAddr("192.0.2.1"), ASN: 64512, From: node.v4})
	node.waitError(peer.v4, "no TCP answer on port 179: the node is down, a firewall drops")
	node.waitError(netip.MustParseAddr("10.0.0.3"), "our own address 10.0.0.77 is not on this node any more")
	node.waitError(netip.MustParseAddr("192.0.2.1"), "network unreachable")
	eventually(t, func() error {
		next := node.do(call{Method: "Traffic"}).Traffic[netip.MustParseAddr("192.0.2.1")].NextTry
		if wait := time.Until(next); next.IsZero() || wait > 2*bgp.DefaultConnectRetry {
			return fmt.Errorf("the next attempt is at %s", next)
		}
		return nil
	})
}

// Without TCP MD5 in the kernel a session with a password is not opened without one, and all others are.
func TestKernelWithoutMD5(t *testing.T) {
	t.Parallel()
	lan := newLAN(t)
	node, friend, secret := lan.host(1).speak("env", noMD5Env+"=1"), lan.host(2).speak(), lan.host(3).speak()
	for _, s := range []*speaker{node, friend, secret} {
		s.start(64512, false)
	}
	node.setPeers(
		bgp.Peer{Addr: friend.v4, ASN: 64512, From: node.v4},
		bgp.Peer{Addr: secret.v4, ASN: 64512, From: node.v4, Password: "sesame"})
	for _, s := range []*speaker{friend, secret} {
		s.setPeers(bgp.Peer{Addr: node.v4, ASN: 64512, From: s.v4})
	}
	node.waitEstablished(friend.v4)
	if p := node.waitError(secret.v4, "no session: it has a password, and the kernel has no TCP MD5 signatures"); p.State != bgp.Idle {
		t.Errorf("session with a password: %+v", p)
	}
	secret.waitError(node.v4, "closed the connection during the handshake")
	if !strings.Contains(node.log.String(), "can pose as a peer") {
		t.Error("no warning")
	}
	node.do(call{Method: "Healthy"})
	node.setPeers()
}
