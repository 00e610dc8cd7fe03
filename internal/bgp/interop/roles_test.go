package interop_test

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/policy"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
)

// role is the relation of a daemon to the nodes.
type role struct {
	name      string
	asn       uint32 // of the daemon
	otherASN  uint32 // of the other node
	passesOn  bool
	reflector bool
	// nodeASPath is the AS path in the daemon's routes from the node, ownASPath in its own announcements, passedASPath in
	// paths that it passes on.
	nodeASPath, ownASPath, passedASPath string
}

func roles() []role {
	return []role{
		{name: "mesh member", asn: ourASN, otherASN: ourASN},
		{name: "reflector", asn: ourASN, otherASN: ourASN, passesOn: true, reflector: true},
		{name: "router", asn: 64999, otherASN: 64513, passesOn: true, nodeASPath: "64512", ownASPath: "64999", passedASPath: "64999 64513"},
	}
}

// config returns the configuration of the daemon on host 10, with signed sessions to hosts, from one hop away.
func (r role) config(hosts map[*bgptest.Host]uint32) bgptest.Config {
	c := bgptest.Config{
		ASN: r.asn, Announce: blocksOf(10), Communities: []string{"64999:100", "64999:1:2"}, Readvertise: r.passesOn,
	}
	if r.reflector {
		c.ClusterID = netip.MustParseAddr("10.0.0.10")
	}
	for host, asn := range hosts {
		for _, addr := range host.Addrs() {
			c.Sessions = append(c.Sessions, bgptest.Session{Peer: addr, ASN: asn, Password: secret, TTLSecurity: 1, Client: r.reflector})
		}
	}
	return c
}

// towards returns a node's ends of the sessions with the daemon.
func (r role) towards(s, daemon *bgptest.Host) []bgp.Peer {
	return peers(s, daemon, func(p *bgp.Peer) { p.ASN, p.Password, p.TTLSecurity = r.asn, secret, 1 })
}

// Each kind of daemon in each role, in both families, with passwords, TTL security and communities in both directions:
// its own and passed-on paths are learned correctly, and survive its restart.
func TestRoles(t *testing.T) {
	t.Parallel()
	for _, kind := range bgptest.Kinds() {
		for _, r := range roles() {
			t.Run(fmt.Sprintf("%s as %s", kind, r.name), func(t *testing.T) {
				t.Parallel()
				inRole(t, kind, r)
			})
		}
	}
}

func inRole(t *testing.T, kind bgptest.Kind, r role) {
	lan, node := node(t)
	other, host := lan.Host(6).Speaker(), lan.Host(10)
	other.Start(r.otherASN, false)
	others := blocksOf(6)
	other.Originate(others[0].String(), others[1].String())
	node.SetPolicy(tagged(), nil)
	daemon := host.Daemon(kind, r.config(map[*bgptest.Host]uint32{node.Host: ourASN, other.Host: r.otherASN}))
	node.SetPeers(r.towards(node.Host, host)...)
	other.SetPeers(r.towards(other.Host, host)...)

	node.WaitEstablished(host.Addrs()...)
	for i, addr := range host.Addrs() {
		bgptest.WaitState(t, daemon, node.Addrs()[i], "Established")
		waitAnnounced(t, r, daemon, node.Addrs()[i])
		waitLearned(t, node, r, addr, blocksOf(10)[i], others[i], other.Addrs()[i])
	}

	daemon.Signal(syscall.SIGKILL)
	waitPaths(t, node, blocksOf(10), true)
	daemon.Restart()
	waitPaths(t, node, blocksOf(10), false)
	for i, addr := range host.Addrs() {
		waitLearned(t, node, r, addr, blocksOf(10)[i], others[i], other.Addrs()[i])
	}
}

// tagged returns a policy that adds two communities to the node's announcements.
func tagged() bgp.Policy {
	return bgp.Policy{Tags: []policy.Tag{{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Communities: ourCommunities},
		{Prefix: netip.MustParsePrefix("fd00::/8"), Communities: ourCommunities}}}
}

var ourCommunities = []policy.Community{{A: 64512, B: 7}, {Large: true, A: 64512, B: 1, C: 2}}

// waitAnnounced waits until the daemon has the node's announcements, with their communities.
func waitAnnounced(t *testing.T, r role, d bgptest.Daemon, ours netip.Addr) {
	t.Helper()
	want := family(ours, ownBlocks...)
	bgptest.Eventually(t, func() error {
		have := d.Learned(ours)
		if len(have) != len(want) {
			return fmt.Errorf("learned from %s: %+v, want %s", ours, have, want)
		}
		for i, route := range have {
			if route.Prefix != want[i] || route.NextHop != ours || route.ASPath != r.nodeASPath || route.Communities != "64512:7 64512:1:2" {
				return fmt.Errorf("learned from %s: %+v, want %s with path %q", ours, route, want[i], r.nodeASPath)
			}
		}
		return nil
	})
}

// waitLearned waits until the node has the daemon's own prefix and, if it passes on, the other node's.
func waitLearned(t *testing.T, node *bgptest.Speaker, r role, daemon netip.Addr, own, others netip.Prefix, other netip.Addr) {
	t.Helper()
	bgptest.Eventually(t, func() error {
		paths := node.LearnedFrom(daemon)
		i := slices.IndexFunc(paths, func(p bgp.Path) bool { return p.Prefix == own })
		if i < 0 || paths[i].NextHop != daemon || paths[i].ASPath != r.ownASPath || paths[i].Communities != "64999:100 64999:1:2" {
			return fmt.Errorf("learned from %s: %+v, want %s with path %q", daemon, paths, own, r.ownASPath)
		}
		i = slices.IndexFunc(paths, func(p bgp.Path) bool { return p.Prefix == others })
		switch {
		case r.passesOn && i < 0:
			return fmt.Errorf("learned from %s: %+v, want %s passed on", daemon, paths, others)
		case !r.passesOn && i >= 0:
			t.Fatalf("learned from %s: %+v, which is not its own", daemon, paths)
		case i < 0:
			return nil
		}
		// A router on the same network may name the other node as next hop, which then gets packets directly.
		p := paths[i]
		if p.ASPath != r.passedASPath || p.NextHop != other && (r.reflector || p.NextHop != daemon) {
			return fmt.Errorf("learned from %s: %+v, want path %q", daemon, p, r.passedASPath)
		}
		return nil
	})
}

// Packets of a peer allowed one hop away are dropped from further away, also on a session that is up, and accepted when
// it comes closer.
func TestTTLSecurity(t *testing.T) {
	t.Parallel()
	for _, kind := range bgptest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			lan, node := node(t)
			host := lan.Host(10)
			near := roles()[2]
			host.Daemon(kind, near.config(map[*bgptest.Host]uint32{node.Host: ourASN}))
			node.SetPeers(near.towards(node.Host, host)...)
			node.WaitEstablished(host.Addrs()...)

			// Its packets look as if they had passed a router.
			host.Run(t, "nft", "add table inet far; add chain inet far out { type filter hook output priority 0; }; "+
				"add rule inet far out tcp dport 179 ip ttl set 254; add rule inet far out tcp sport 179 ip ttl set 254; "+
				"add rule inet far out tcp dport 179 ip6 hoplimit set 254; add rule inet far out tcp sport 179 ip6 hoplimit set 254")
			node.Run(t, "ss", "-K", "state", "established", "( sport = :179 or dport = :179 )")
			bgptest.Eventually(t, func() error {
				for _, addr := range host.Addrs() {
					if p := node.Peer(addr); p.State == bgp.Established || p.LastError == "" {
						return fmt.Errorf("the session with %s, who is far away, is %s: %s", addr, p.State, p.LastError)
					}
				}
				return nil
			})
			lost := map[netip.Addr]time.Time{}
			for _, addr := range host.Addrs() {
				lost[addr] = node.Peer(addr).Since
			}
			waitPackets(t, host, "out", "meta l4proto tcp", 6) // of several attempts
			for _, addr := range host.Addrs() {
				if p := node.Peer(addr); p.State == bgp.Established || !p.Since.Equal(lost[addr]) {
					t.Errorf("there is or was a session with %s, who is far away: %+v", addr, p)
				}
			}
			host.Run(t, "nft", "delete", "table", "inet", "far")
			node.WaitEstablished(host.Addrs()...)
		})
	}
}
