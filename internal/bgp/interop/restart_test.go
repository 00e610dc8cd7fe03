package interop_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
)

// A node whose process is killed, terminated, or killed again before it has sent anything loses no route in its peers'
// kernels.
func TestNodeRestarts(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind bgptest.Kind) {
		lan, node := node(t)
		host := lan.Host(10)
		daemon := host.Daemon(kind, partner(10, node.Host, func(p *bgptest.Session) { p.Password = secret }))
		node.SetPeers(signed(node.Host, host)...)
		waitKernels(t, host, node.Host, ownBlocks...)
		record := host.Monitor()

		node = again(node, host, syscall.SIGKILL)
		waitConfirmed(t, node, daemon, 1)
		node = again(node, host, syscall.SIGTERM)
		if kind == bgptest.FRR {
			// When a connection closes, FRR forgets messages that it has read and not processed, but not that the session was
			// up.
			waitConfirmed(t, node, daemon, 3)
			node = again(node, host, syscall.SIGKILL)
		} else {
			node = hurry(node, host)
		}
		waitConfirmed(t, node, daemon, 2)

		for _, prefix := range ownBlocks {
			if lost := record.Lost(prefix); len(lost) > 0 {
				t.Errorf("%s on the kernel of %s: %q", prefix, kind, lost)
			}
		}

		// Prefixes that are not announced again are dropped.
		node.End(syscall.SIGKILL)
		last := node.Host.Speaker()
		last.Start(ourASN, true)
		last.Originate(ownBlocks[0], ownBlocks[2])
		last.SetPeers(signed(node.Host, host)...)
		bgptest.Eventually(t, func() error {
			if route := host.KernelRoute(ownBlocks[1]); route != "" {
				return fmt.Errorf("%s still has %s", kind, route)
			}
			return nil
		})
	})
}

// secret is the password of these sessions: segments of connections of a killed process are signed, too.
const secret = "between-restarts"

func signed(s, other *bgptest.Host) []bgp.Peer {
	return peers(s, other, func(p *bgp.Peer) { p.Password = secret })
}

// hurry kills the node's process repeatedly, within the first one's restart time and at any moment of a handshake.
func hurry(node *bgptest.Speaker, host *bgptest.Host) *bgptest.Speaker {
	for range 20 {
		node = again(node, host, syscall.SIGKILL)
		time.Sleep(rand.N(20 * time.Millisecond)) //nolint:forbidigo // any moment of a session's beginning
	}
	return node
}

// A lost connection between live ends costs no route either: the node's OPEN has the forwarding bit.
func TestConnectionIsLost(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind bgptest.Kind) {
		lan, node := node(t)
		host := lan.Host(10)
		daemon := host.Daemon(kind, partner(10, node.Host))
		node.SetPeers(peers(node.Host, host)...)
		waitKernels(t, host, node.Host, ownBlocks...)
		waitPaths(t, node, blocksOf(10), false)
		record := host.Monitor()
		for round := range 2 {
			before := node.Peer(host.V4).Since
			node.Run(t, "ss", "-K", "state", "established", "( sport = :179 or dport = :179 )")
			bgptest.Eventually(t, func() error {
				if p := node.Peer(host.V4); p.State != bgp.Established || !p.Since.After(before) {
					return fmt.Errorf("session to %s: %+v, want a new one", host.V4, p)
				}
				return nil
			})
			waitPaths(t, node, blocksOf(10), false)
			waitConfirmed(t, node, daemon, round)
		}
		for _, prefix := range ownBlocks {
			if lost := record.Lost(prefix); len(lost) > 0 {
				t.Errorf("%s on the kernel of %s: %q", prefix, kind, lost)
			}
		}
	})
}

// again replaces the node's process.
func again(node *bgptest.Speaker, host *bgptest.Host, signal syscall.Signal) *bgptest.Speaker {
	node.End(signal)
	next := node.Host.Speaker()
	next.Start(ourASN, true)
	next.Originate(ownBlocks...)
	next.SetPeers(signed(node.Host, host)...)
	return next
}

// waitConfirmed waits until the daemon has all announcements of the node: it has processed a prefix that was announced
// last. Round makes that prefix a new one.
func waitConfirmed(t *testing.T, node *bgptest.Speaker, d bgptest.Daemon, round int) {
	t.Helper()
	node.WaitEstablished(d.On().Addrs()...)
	bgptest.Eventually(t, func() error {
		for _, addr := range d.On().Addrs() {
			if p := node.Peer(addr); p.Sent == 0 {
				return fmt.Errorf("nothing is sent to %s yet", addr)
			}
		}
		return nil
	})
	markers := []string{fmt.Sprintf("10.99.%d.0/26", round), fmt.Sprintf("fd99:%d::/122", round)}
	node.Originate(slices.Concat(ownBlocks, markers)...)
	waitKernels(t, d.On(), node.Host, markers...)
}

// waitKernels waits until the kernel of a host has routes via another one.
func waitKernels(t *testing.T, h, via *bgptest.Host, prefixes ...string) {
	t.Helper()
	for _, prefix := range prefixes {
		next := via.V4
		if strings.Contains(prefix, ":") {
			next = via.V6
		}
		bgptest.WaitKernel(t, h, prefix, next)
	}
}

// The paths of a peer whose process is killed stay, stale, until it has announced them again.
func TestPeerRestarts(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind bgptest.Kind) {
		lan, node := node(t)
		host := lan.Host(10)
		config := partner(10, node.Host)
		released := netip.MustParsePrefix("10.1.10.64/26")
		config.Announce = append(config.Announce, released)
		daemon := host.Daemon(kind, config)
		node.SetPeers(peers(node.Host, host)...)
		waitPaths(t, node, config.Announce, false)

		daemon.Signal(syscall.SIGKILL)
		waitPaths(t, node, blocksOf(10), true)
		for _, addr := range host.Addrs() {
			if p := node.Peer(addr); !p.Restarting || p.LastError == "" {
				t.Errorf("session to the killed %s: %+v", kind, p)
			}
		}
		waitPaths(t, node, []netip.Prefix{released}, true)
		daemon.Restart(blocksOf(10)...)
		waitPaths(t, node, blocksOf(10), false)
		// Its End-of-RIB ends the paths that it has not announced again.
		bgptest.Eventually(t, func() error {
			for _, p := range node.Snapshot() {
				if p.Prefix == released {
					return fmt.Errorf("it was not announced again: %+v", p)
				}
			}
			return nil
		})
		node.WaitEstablished(host.Addrs()...)
	})
}

// A peer that restarts may begin a session that does not come up: its process is not ready, or both ends connect and it
// keeps the other connection. Its paths stay until its restart time is over.
func TestHandshakesThatFail(t *testing.T) {
	lan, node := node(t)
	host := lan.Host(10)
	block := netip.MustParsePrefix("10.1.10.0/26")
	node.SetPeers(peers(node.Host, host)...)
	session, _ := host.Establish(node.V4, ourASN, 120)
	session.Send(bgptest.UpdateMessage(host.V4, 100, block), bgptest.Message(bgptest.Update, 0, 0, 0, 0))
	waitPaths(t, node, []netip.Prefix{block}, false)
	_ = session.Close()
	waitPaths(t, node, []netip.Prefix{block}, true)

	open := bgptest.OpenMessage(ourASN, host.V4, true, 90, 120)
	l := host.Listen(host.V4)
	for name, attempt := range map[string]func() *bgptest.Raw{
		"its end closes what this node has opened": func() *bgptest.Raw { return host.Accept(l) },
		"what this node has opened ends after the OPEN": func() *bgptest.Raw {
			conn := host.Accept(l)
			conn.Send(open)
			return conn
		},
		"what the peer has opened ends after the OPEN": func() *bgptest.Raw {
			conn := host.Dial(node.V4)
			conn.Send(open)
			return conn
		},
		"the peer refuses": func() *bgptest.Raw {
			conn := host.Accept(l)
			conn.Send(open, bgptest.Message(bgptest.Notification, 6, 5))
			return conn
		},
	} {
		before := node.Peer(host.V4).LastErrorAt
		conn := attempt()
		if _, err := conn.Until(bgptest.Open); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_ = conn.Close()
		bgptest.Eventually(t, func() error {
			if p := node.Peer(host.V4); !p.LastErrorAt.After(before) {
				return fmt.Errorf("%s: no failure was noted: %+v", name, p)
			}
			return nil
		})
		if paths := node.Snapshot(); len(paths) != 1 || paths[0].Prefix != block || !paths[0].Stale {
			t.Fatalf("%s: paths %+v, want %s, stale", name, paths, block)
		}
	}
	_ = l.Close()
	session, _ = host.Establish(node.V4, ourASN, 120)
	waitPaths(t, node, []netip.Prefix{block}, true)
	session.Send(bgptest.UpdateMessage(host.V4, 100, block), bgptest.Message(bgptest.Update, 0, 0, 0, 0))
	waitPaths(t, node, []netip.Prefix{block}, false)
}

// waitPaths waits until the paths to prefixes are, or are not, stale, and fails if one is missing meanwhile.
func waitPaths(t *testing.T, node *bgptest.Speaker, prefixes []netip.Prefix, stale bool) {
	t.Helper()
	var seen bool
	bgptest.Eventually(t, func() error {
		var wrong error
		paths := node.Snapshot()
		for _, prefix := range prefixes {
			i := slices.IndexFunc(paths, func(p bgp.Path) bool { return p.Prefix == prefix })
			switch {
			case i < 0 && seen:
				t.Fatalf("the path to %s was lost: %v", prefix, paths)
			case i < 0:
				return fmt.Errorf("no path to %s yet", prefix)
			case paths[i].Stale != stale:
				wrong = fmt.Errorf("path to %s: stale is %t, want %t", prefix, paths[i].Stale, stale)
			}
		}
		seen = true
		return wrong
	})
}

// The paths of a peer that does not come back are dropped after the restart time that it requested.
func TestPeerIsGone(t *testing.T) {
	forEachKind(t, func(t *testing.T, kind bgptest.Kind) {
		lan, node := node(t)
		host := lan.Host(10)
		config := partner(10, node.Host)
		config.RestartTime = 4 * time.Second
		daemon := host.Daemon(kind, config)
		node.SetPeers(peers(node.Host, host)...)
		waitPaths(t, node, blocksOf(10), false)
		daemon.Signal(syscall.SIGKILL)
		waitPaths(t, node, blocksOf(10), true)
		bgptest.Eventually(t, func() error {
			if paths := node.Snapshot(); len(paths) > 0 {
				return fmt.Errorf("paths of a peer that is gone: %v", paths)
			}
			return nil
		})
		for _, addr := range host.Addrs() {
			if p := node.Peer(addr); p.Restarting {
				t.Errorf("session to a peer that is gone: %+v", p)
			}
		}
	})
}
