package bgp_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// ourASN is the node's AS number, Calico's default.
const ourASN = 64512

// ownBlocks are the prefixes that the node announces by default.
var ownBlocks = []string{"10.1.5.0/26", "10.200.0.5/32", "fd01:5::/122"}

// node starts our speaker on host 5 of a new network.
func node(t *testing.T) (*bgptest.LAN, *bgptest.Speaker) {
	t.Helper()
	lan := bgptest.NewLAN(t)
	s := lan.Host(5).Speaker()
	s.Start(ourASN, false)
	s.Originate(ownBlocks...)
	return lan, s
}

// pods are the prefixes inside of which learned paths are passed on.
var pods = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd01::/16")}

// neighbour is a daemon and our end of the session to it, in IPv4.
type neighbour struct {
	bgptest.Daemon
	peer bgp.Peer
	n    int
}

// beside starts a daemon on host n, in an AS, with a session to our speaker for which it waits.
func beside(lan *bgptest.LAN, s *bgptest.Speaker, kind bgptest.Kind, n int, asn uint32, edits ...func(*bgptest.Config)) *neighbour {
	host := lan.Host(n)
	block := netip.MustParsePrefix(fmt.Sprintf("10.1.%d.0/26", n))
	config := bgptest.Config{ASN: asn, Announce: []netip.Prefix{block}, Readvertise: true,
		Sessions: []bgptest.Session{{Peer: s.V4, ASN: ourASN, Passive: true}}}
	for _, edit := range edits {
		edit(&config)
	}
	return &neighbour{Daemon: host.Daemon(kind, config), peer: bgp.Peer{Addr: host.V4, From: s.V4, ASN: asn}, n: n}
}

func (n *neighbour) block() string { return fmt.Sprintf("10.1.%d.0/26", n.n) }

// learns waits until the daemon has learned exactly these paths from us, each as "prefix via next hop (AS path)".
func (n *neighbour) learns(t *testing.T, from netip.Addr, want ...string) {
	t.Helper()
	slices.Sort(want)
	bgptest.Eventually(t, func() error {
		var got []string
		for _, r := range n.Learned(from) {
			got = append(got, fmt.Sprintf("%s via %s (%s)", r.Prefix, r.NextHop, r.ASPath))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("host %d has learned\n%s\nwant\n%s", n.n, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		return nil
	})
}

// setPeers sets our sessions to these.
func setPeers(s *bgptest.Speaker, all ...*neighbour) {
	var peers []bgp.Peer
	for _, n := range all {
		peers = append(peers, n.peer)
	}
	s.SetPeers(peers...)
}

// undisturbed returns a check that fails the test if a session was reset since.
func undisturbed(t *testing.T, s *bgptest.Speaker, all ...*neighbour) (check func()) {
	t.Helper()
	since := make(map[netip.Addr]time.Time)
	for _, n := range all {
		s.WaitEstablished(n.peer.Addr)
		since[n.peer.Addr] = s.Peer(n.peer.Addr).Since
	}
	return func() {
		t.Helper()
		for addr, was := range since {
			if now := s.Peer(addr); now.State != bgp.Established || !now.Since.Equal(was) {
				t.Errorf("the session to %s was touched: %+v, established since %s before", addr, now, was)
			}
		}
	}
}

// A reflector passes on the paths of clients to all, and the paths of others to clients, inside of the passable
// prefixes, with the learned next hops. The prefixes and its cluster ID change while it runs.
func TestReflection(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	s := lan.Host(5).Speaker()
	local := bgp.Local{ASN: ourASN, ClusterID: netip.MustParseAddr("10.0.0.5")}
	s.StartLocal(local)
	s.SetPolicy(bgp.Policy{Transit: pods}, nil)
	one, two := beside(lan, s, bgptest.BIRD2, 1, ourASN), beside(lan, s, bgptest.FRR, 2, ourASN)
	three, four := beside(lan, s, bgptest.BIRD1, 3, ourASN), beside(lan, s, bgptest.BIRD2, 4, ourASN)
	one.peer.Client, two.peer.Client = true, true
	all := []*neighbour{one, two, three, four}
	setPeers(s, all...)
	check := undisturbed(t, s, all...)

	via := func(n *neighbour) string { return fmt.Sprintf("%s via %s ()", n.block(), n.peer.Addr) }
	one.learns(t, s.V4, via(two), via(three), via(four))
	two.learns(t, s.V4, via(one), via(three), via(four))
	three.learns(t, s.V4, via(one), via(two))
	four.learns(t, s.V4, via(one), via(two))

	s.SetPolicy(bgp.Policy{Transit: pods, Hidden: []netip.Prefix{netip.MustParsePrefix("10.1.2.0/24")}}, nil)
	one.learns(t, s.V4, via(three), via(four))
	three.learns(t, s.V4, via(one))
	s.SetPolicy(bgp.Policy{Transit: pods}, nil)
	one.learns(t, s.V4, via(two), via(three), via(four))
	three.learns(t, s.V4, via(one), via(two))
	two.peer.Client = false
	setPeers(s, all...)
	three.learns(t, s.V4, via(one))
	two.learns(t, s.V4, via(one))
	one.learns(t, s.V4, via(two), via(three), via(four))
	two.peer.Client = true
	setPeers(s, all...)
	three.learns(t, s.V4, via(one), via(two))
	two.learns(t, s.V4, via(one), via(three), via(four))
	check()

	kernel := one.On().Monitor()
	local.ClusterID = netip.MustParseAddr("10.9.9.9")
	s.SetLocal(local)
	for _, n := range all {
		bgptest.Eventually(t, func() error {
			if p := s.Peer(n.peer.Addr); p.State != bgp.Established || !p.EndOfTable() {
				return fmt.Errorf("%+v", p)
			}
			return nil
		})
	}
	one.learns(t, s.V4, via(two), via(three), via(four))
	three.learns(t, s.V4, via(one), via(two))
	for _, n := range []*neighbour{two, three, four} {
		if lost := kernel.Lost(n.block()); len(lost) > 0 {
			t.Errorf("another cluster ID has cost the way to %s: %s", n.block(), lost)
		}
	}
	two.Announce()
	one.learns(t, s.V4, via(three), via(four))

	// It reflects no more.
	local.ClusterID = netip.Addr{}
	s.SetLocal(local)
	for _, n := range all {
		n.peer.Client = false
	}
	setPeers(s, all...)
	one.learns(t, s.V4)
	three.learns(t, s.V4)
}

// Paths of one AS go to another one and to our own, with the next hop that each peer needs; a change does not touch the
// session.
func TestTransit(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	s := lan.Host(5).Speaker()
	s.Start(ourASN, false)
	s.Originate("10.1.5.0/26")
	s.SetPolicy(bgp.Policy{Transit: pods}, nil)
	rack, core := beside(lan, s, bgptest.BIRD2, 1, 64901), beside(lan, s, bgptest.FRR, 2, 64902)
	inside := beside(lan, s, bgptest.BIRD2, 3, ourASN)
	rack.Announce(append([]netip.Prefix{netip.MustParsePrefix("10.1.1.0/26")}, netip.MustParsePrefix("10.66.0.0/24"))...) // not a pod's
	all := []*neighbour{rack, core, inside}
	setPeers(s, all...)
	check := undisturbed(t, s, all...)

	own := fmt.Sprintf("10.1.5.0/26 via %s", s.V4)
	for _, c := range []struct {
		mode         bgp.NextHopMode
		core, inside netip.Addr
	}{
		{bgp.NextHopAuto, s.V4, rack.peer.Addr},
		{bgp.NextHopSelf, s.V4, s.V4},
		{bgp.NextHopKeep, rack.peer.Addr, rack.peer.Addr},
		{bgp.NextHopAuto, s.V4, rack.peer.Addr},
	} {
		core.peer.NextHop, inside.peer.NextHop = c.mode, c.mode
		setPeers(s, all...)
		far := s.V4 // next hop of the inside node's paths
		if c.mode == bgp.NextHopKeep {
			far = inside.peer.Addr
		}
		core.learns(t, s.V4, own+" (64512)", fmt.Sprintf("10.1.1.0/26 via %s (64512 64901)", c.core),
			fmt.Sprintf("10.1.3.0/26 via %s (64512)", far))
		way := c.inside
		if c.mode == bgp.NextHopAuto || c.mode == bgp.NextHopKeep {
			inside.learns(t, s.V4, own+" ()", "10.1.1.0/26 via 10.0.0.1 (64901)", "10.1.2.0/26 via 10.0.0.2 (64902)")
			continue
		}
		inside.learns(t, s.V4, own+" ()", fmt.Sprintf("10.1.1.0/26 via %s (64901)", way), fmt.Sprintf("10.1.2.0/26 via %s (64902)", way))
	}
	check()
	rack.Announce()
	core.learns(t, s.V4, own+" (64512)", "10.1.3.0/26 via 10.0.0.5 (64512)")
}

// The address of a Service that another node announces is not passed on with this node as next hop, which would not
// forward there, whatever filters accept and whether it reflects. With its own next hop it is, and so is the range.
func TestServicesOfOthers(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	s := lan.Host(5).Speaker()
	s.StartLocal(bgp.Local{ASN: ourASN, ClusterID: netip.MustParseAddr("10.0.0.5")})
	s.Originate("10.1.5.0/26")
	node, client := beside(lan, s, bgptest.BIRD1, 1, ourASN), beside(lan, s, bgptest.BIRD2, 2, ourASN)
	router, other := beside(lan, s, bgptest.FRR, 3, 64903), beside(lan, s, bgptest.BIRD2, 4, 64904)
	router.peer.NextHop, other.peer.NextHop, client.peer.Client = bgp.NextHopAuto, bgp.NextHopKeep, true
	for _, n := range []*neighbour{client, router, other} {
		n.Announce()
	}
	service, services := netip.MustParsePrefix("203.0.113.8/32"), netip.MustParsePrefix("203.0.113.0/24")
	node.Announce(service, services)
	accept := api.BGPFilterSpec{ExportV4: []api.BGPFilterRule{{Action: "Accept"}}}
	filters := map[netip.Addr]api.BGPFilterSpec{client.peer.Addr: accept, router.peer.Addr: accept, other.peer.Addr: accept}
	policy := bgp.Policy{Served: []netip.Prefix{services}, Transit: []netip.Prefix{services}}
	s.SetPolicy(policy, filters)
	setPeers(s, node, client, router, other)
	check := undisturbed(t, s, node, client, router, other)

	learns := func(n *neighbour, path string, hop netip.Addr, more ...netip.Prefix) {
		t.Helper()
		want := []string{fmt.Sprintf("10.1.5.0/26 via %s (%s)", s.V4, path)}
		for _, p := range more {
			want = append(want, fmt.Sprintf("%s via %s (%s)", p, hop, path))
		}
		n.learns(t, s.V4, want...)
	}
	learns(client, "", node.peer.Addr, service, services)
	learns(other, "64512", node.peer.Addr, service, services)
	learns(router, "64512", s.V4, services)
	s.SetPolicy(policy, nil)
	learns(router, "64512", s.V4, services)
	policy.Served = nil
	s.SetPolicy(policy, filters)
	learns(router, "64512", s.V4, service, services)
	if told := s.Call(bgptest.Call{Method: "Traffic"}).Told; !slices.Equal(told,
		[]netip.Prefix{netip.MustParsePrefix("10.1.5.0/26"), services, service}) {
		t.Errorf("peers were told %v", told)
	}
	policy.Served = []netip.Prefix{services}
	client.peer.NextHop = bgp.NextHopSelf
	s.SetPolicy(policy, filters)
	setPeers(s, node, client, router, other)
	learns(router, "64512", s.V4, services)
	learns(client, "", s.V4, services)
	s.Originate("10.1.5.0/26", service.String())
	learns(router, "64512", s.V4, service, services)
	check()
}

// A filter is in force at once, in both directions, for what was announced before it, and gone at once; sessions stay.
func TestFilter(t *testing.T) {
	t.Parallel()
	lan, s := node(t)
	bird, frr := beside(lan, s, bgptest.BIRD2, 1, ourASN), beside(lan, s, bgptest.FRR, 2, ourASN)
	setPeers(s, bird, frr)
	check := undisturbed(t, s, bird, frr)
	learned := func(want ...string) {
		t.Helper()
		bgptest.Eventually(t, func() error {
			var got []string
			for _, p := range s.Snapshot() {
				got = append(got, p.Prefix.String())
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("learned %s, want %s", got, want)
			}
			return nil
		})
	}
	all := []string{"10.1.5.0/26 via 10.0.0.5 ()", "10.200.0.5/32 via 10.0.0.5 ()"}
	learned("10.1.1.0/26", "10.1.2.0/26")
	bird.learns(t, s.V4, all...)

	reject := []api.BGPFilterRule{{CIDR: "10.1.0.0/16", MatchOperator: "In", Action: "Reject"}}
	filter := api.BGPFilterSpec{ImportV4: reject, ExportV4: reject}
	s.SetPolicy(bgp.Policy{}, map[netip.Addr]api.BGPFilterSpec{bird.peer.Addr: filter})
	learned("10.1.2.0/26")
	bird.learns(t, s.V4, all[1:]...)
	frr.learns(t, s.V4, all...)
	if p := s.Peer(bird.peer.Addr); len(p.Refused) != 1 || p.Refused[0].Prefixes != 1 || p.Received != 1 || p.Sent != 1 {
		t.Errorf("the filtered session: %+v", p)
	}
	s.SetPolicy(bgp.Policy{}, nil)
	learned("10.1.1.0/26", "10.1.2.0/26")
	bird.learns(t, s.V4, all...)
	if p := s.Peer(bird.peer.Addr); len(p.Refused) != 0 || !p.EndOfTable() || !strings.Contains(p.Supports, "route refresh") {
		t.Errorf("the session without a filter: %+v", p)
	}
	check()
}

// A path with our own AS number in it is a loop, unless allowed: racks of one AS are connected by routers of another.
func TestOwnASN(t *testing.T) {
	t.Parallel()
	lan, s := node(t)
	router := beside(lan, s, bgptest.FRR, 1, 64901, func(c *bgptest.Config) {
		c.Announce = nil
		c.Sessions = append(c.Sessions, bgptest.Session{Peer: netip.MustParseAddr("10.0.0.2"), ASN: ourASN})
	})
	lan.Host(2).Daemon(bgptest.BIRD2, bgptest.Config{ASN: ourASN, Announce: []netip.Prefix{netip.MustParsePrefix("10.1.2.0/26")},
		Sessions: []bgptest.Session{{Peer: router.peer.Addr, ASN: 64901}}})
	setPeers(s, router)
	check := undisturbed(t, s, router)
	bgptest.Eventually(t, func() error {
		p := s.Peer(router.peer.Addr)
		if len(p.Refused) != 1 || p.Refused[0].Prefixes < 1 || len(s.Snapshot()) != 0 {
			return fmt.Errorf("%+v, learned %v", p, s.Snapshot())
		}
		return nil
	})
	s.SetPolicy(bgp.Policy{Transit: pods}, nil)
	core := beside(lan, s, bgptest.FRR, 3, 64902)
	own := []string{"10.1.5.0/26 via 10.0.0.5 (64512)", "10.200.0.5/32 via 10.0.0.5 (64512)"}
	setPeers(s, router, core)
	core.learns(t, s.V4, own...)
	router.peer.AllowOwnASN = 1
	setPeers(s, router, core)
	core.learns(t, s.V4, append(own, "10.1.2.0/26 via 10.0.0.5 (64512 64901 64512)")...)
	bgptest.Eventually(t, func() error {
		if paths := s.LearnedFrom(router.peer.Addr); len(paths) != 1 || paths[0].ASPath != "64901 64512" ||
			paths[0].Prefix.String() != "10.1.2.0/26" {
			return fmt.Errorf("learned %v", paths)
		}
		return nil
	})
	check()
}

// Towards a peer we can be in another AS, and use whichever address leads there; it may connect to any of ours.
func TestLocalASN(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	s := lan.Host(5).Speaker()
	any4, any6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	s.StartLocal(bgp.Local{ASN: ourASN})
	s.SetLocal(bgp.Local{ASN: ourASN, Listen: []netip.Addr{any4, any6}})
	s.Originate(ownBlocks...)
	s.SetPolicy(bgp.Policy{Transit: pods}, nil)
	other := func(c *bgptest.Config) { c.Sessions[0].ASN = 64777 }
	waits := beside(lan, s, bgptest.BIRD2, 1, 64901, other)
	dials := beside(lan, s, bgptest.FRR, 2, 64777, other, func(c *bgptest.Config) { c.Sessions[0].Passive = false })
	for _, n := range []*neighbour{waits, dials} {
		n.peer.LocalASN, n.peer.From, n.peer.Passive = 64777, netip.Addr{}, n == dials
	}
	setPeers(s, waits, dials)
	own := []string{"10.1.5.0/26 via 10.0.0.5", "10.200.0.5/32 via 10.0.0.5"}
	waits.learns(t, s.V4, own[0]+" (64777)", own[1]+" (64777)", "10.1.2.0/26 via 10.0.0.5 (64777)")
	dials.learns(t, s.V4, own[0]+" ()", own[1]+" ()", "10.1.1.0/26 via 10.0.0.1 (64901)")
	if p := s.Peer(dials.peer.Addr); p.LocalASN != 64777 {
		t.Errorf("%+v", p)
	}
	lone := lan.Host(6)
	s.SetPeers(waits.peer, dials.peer, bgp.Peer{Addr: lone.V6, ASN: 64999, Passive: true})
	raw, _ := lone.Establish(s.V6, 64999, 0)
	bgptest.Eventually(t, func() error {
		body, err := raw.Until(bgptest.Update)
		if err == nil && !strings.Contains(string(body), string(s.V6.AsSlice())) {
			err = fmt.Errorf("the next hop of an IPv6 path is not our end: % x", body)
		}
		return err
	})
}

// TTL security accepts near peers only, also with a password; it is turned on and off while the speaker runs.
func TestTTLSecurity(t *testing.T) {
	t.Parallel()
	lan, s := node(t)
	guarded := func(c *bgptest.Config) {
		c.Sessions[0].TTLSecurity, c.Sessions[0].Password = 1, "secret"
	}
	bird, frr := beside(lan, s, bgptest.BIRD2, 1, 64901, guarded), beside(lan, s, bgptest.FRR, 2, 64902, guarded)
	for _, n := range []*neighbour{bird, frr} {
		n.peer.TTLSecurity, n.peer.Password = 1, "secret"
	}
	far := lan.Host(6)
	stranger := bgp.Peer{Addr: far.V4, From: s.V4, ASN: ourASN, Passive: true, TTLSecurity: 1}
	s.SetPeers(bird.peer, frr.peer, stranger)
	s.WaitEstablished(bird.peer.Addr, frr.peer.Addr)
	bird.learns(t, s.V4, "10.1.5.0/26 via 10.0.0.5 (64512)", "10.200.0.5/32 via 10.0.0.5 (64512)")
	frr.learns(t, s.V4, "10.1.5.0/26 via 10.0.0.5 (64512)", "10.200.0.5/32 via 10.0.0.5 (64512)")

	// A connection's packets have TTL 64 by default, as if they had come over many routers. None is answered, from the
	// first packet on.
	six := bgp.Peer{Addr: far.V6, From: s.V6, ASN: ourASN, Passive: true, TTLSecurity: 1}
	s.SetPeers(bird.peer, frr.peer, stranger, six)
	for from, to := range map[netip.Addr]netip.Addr{far.V4: s.V4, far.V6: s.V6} {
		err := far.Do(func() error {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}, Timeout: 2 * time.Second}
			conn, err := dialer.Dial("tcp", netip.AddrPortFrom(to, 179).String())
			if err == nil {
				_ = conn.Close()
			}
			return err
		})
		if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
			t.Errorf("what came from afar, %s: %v, want silence", from, err)
		}
	}
	stranger.TTLSecurity = 0
	s.SetPeers(bird.peer, frr.peer, stranger, six)
	far.Establish(s.V4, ourASN, 0)
	s.WaitEstablished(far.V4)
}

// Equal-cost paths are all in the snapshot; a worse one is not, and takes over when they go.
func TestEqualPaths(t *testing.T) {
	t.Parallel()
	lan, s := node(t)
	shared := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	announce := func(c *bgptest.Config) { c.Announce = shared }
	left, right := beside(lan, s, bgptest.BIRD2, 1, 64901, announce), beside(lan, s, bgptest.FRR, 2, 64902, announce)
	inside := beside(lan, s, bgptest.BIRD2, 3, ourASN, announce)
	setPeers(s, left, right, inside)
	hops := func(want ...string) {
		t.Helper()
		bgptest.Eventually(t, func() error {
			var got []string
			for _, p := range s.Snapshot() {
				got = append(got, p.NextHop.String())
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				return fmt.Errorf("next hops %s, want %s", got, want)
			}
			return nil
		})
	}
	// The path inside of our AS is the shortest one.
	hops("10.0.0.3")
	inside.Announce()
	hops("10.0.0.1", "10.0.0.2")
	right.Announce()
	hops("10.0.0.1")
}

// Two reflectors with the same clients, which are each other's peers, agree on the paths and drop withdrawn ones:
// neither keeps a path because it has it from the other.
func TestTwoReflectors(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	var reflectors []*bgptest.Speaker
	hosts := []*bgptest.Host{lan.Host(5), lan.Host(6)}
	for _, h := range hosts {
		s := h.Speaker()
		s.StartLocal(bgp.Local{ASN: ourASN, ClusterID: h.V4})
		s.SetPolicy(bgp.Policy{Transit: pods}, nil)
		reflectors = append(reflectors, s)
	}
	// Router IDs below and above those of the reflectors: by these alone each would prefer the path that the other one
	// reflects.
	clients := make(map[int]bgptest.Daemon)
	for n, kind := range map[int]bgptest.Kind{1: bgptest.BIRD2, 2: bgptest.FRR, 9: bgptest.BIRD2} {
		var sessions []bgptest.Session
		for _, h := range hosts {
			sessions = append(sessions, bgptest.Session{Peer: h.V4, ASN: ourASN, Passive: true})
		}
		clients[n] = lan.Host(n).Daemon(kind, bgptest.Config{ASN: ourASN, Announce: blocks(n), Sessions: sessions})
	}
	peersOf := func(i int, nodes ...int) []bgp.Peer {
		own, other := hosts[i], hosts[1-i]
		list := []bgp.Peer{{Addr: other.V4, From: own.V4, ASN: ourASN, Passive: i == 0}}
		for _, n := range nodes {
			list = append(list, bgp.Peer{Addr: clients[n].On().V4, From: own.V4, ASN: ourASN, Client: true})
		}
		return list
	}
	see := func(want ...string) {
		t.Helper()
		for i, s := range reflectors {
			bgptest.Eventually(t, func() error {
				var got []string
				for _, p := range s.Snapshot() {
					got = append(got, fmt.Sprintf("%s via %s", p.Prefix, p.NextHop))
				}
				if !slices.Equal(got, want) {
					return fmt.Errorf("reflector %d has %s, want %s", i, got, want)
				}
				return nil
			})
		}
	}
	for i, s := range reflectors {
		s.SetPeers(peersOf(i, 1, 2, 9)...)
	}
	see("10.1.1.0/26 via 10.0.0.1", "10.1.2.0/26 via 10.0.0.2", "10.1.9.0/26 via 10.0.0.9")
	for _, h := range hosts {
		(&neighbour{Daemon: clients[1], n: 1}).learns(t, h.V4, "10.1.2.0/26 via 10.0.0.2 ()", "10.1.9.0/26 via 10.0.0.9 ()")
		(&neighbour{Daemon: clients[2], n: 2}).learns(t, h.V4, "10.1.1.0/26 via 10.0.0.1 ()", "10.1.9.0/26 via 10.0.0.9 ()")
	}
	for i, s := range reflectors {
		for _, p := range s.LearnedFrom(hosts[1-i].V4) {
			t.Errorf("reflector %d prefers what the other one has reflected to what the client itself says: %v", i, p)
		}
	}
	// The first one loses its session with a client: it then has the path from the other one, and no client loses it.
	kernel := clients[1].On().Monitor()
	reflectors[0].SetPeers(peersOf(0, 1, 2)...)
	see("10.1.1.0/26 via 10.0.0.1", "10.1.2.0/26 via 10.0.0.2", "10.1.9.0/26 via 10.0.0.9")
	(&neighbour{Daemon: clients[1], n: 1}).learns(t, hosts[0].V4, "10.1.2.0/26 via 10.0.0.2 ()", "10.1.9.0/26 via 10.0.0.9 ()")
	if lost := kernel.Lost("10.1.9.0/26"); len(lost) > 0 {
		t.Errorf("a session that one reflector has lost costs the way: %s", lost)
	}
	clients[9].Announce()
	see("10.1.1.0/26 via 10.0.0.1", "10.1.2.0/26 via 10.0.0.2")
	for _, h := range hosts {
		(&neighbour{Daemon: clients[1], n: 1}).learns(t, h.V4, "10.1.2.0/26 via 10.0.0.2 ()")
	}
	// Both have it from the client, then both lose it at once.
	clients[9].Announce(blocks(9)...)
	see("10.1.1.0/26 via 10.0.0.1", "10.1.2.0/26 via 10.0.0.2", "10.1.9.0/26 via 10.0.0.9")
	clients[2].Announce()
	see("10.1.1.0/26 via 10.0.0.1", "10.1.9.0/26 via 10.0.0.9")
}

// blocks returns the prefixes that host n announces.
func blocks(n int) []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.1.%d.0/26", n))}
}

// external is an UPDATE from another AS.
func external(hop netip.Addr, prefix string, path ...uint32) []byte {
	attrs := []byte{0x40, 1, 1, 0, 0x40, 2, byte(2 + 4*len(path)), 2, byte(len(path))}
	for _, asn := range path {
		attrs = binary.BigEndian.AppendUint32(attrs, asn)
	}
	attrs = append(append(attrs, 0x40, 3, 4), hop.AsSlice()...)
	return bgptest.Message(bgptest.Update, bgptest.UpdateBody(nil, attrs, bgptest.NLRI(netip.MustParsePrefix(prefix)))...)
}

// Forbidden announcements are refused by reason, counted and shown; the peer's other ones are accepted, and all
// sessions go on. Withdrawn ones are no longer counted.
func TestRefusals(t *testing.T) {
	t.Parallel()
	lan, s := node(t)
	bird := beside(lan, s, bgptest.BIRD2, 1, ourASN)
	far := lan.Host(6)
	own := netip.PrefixFrom(s.V4, 32)
	s.SetPolicy(bgp.Policy{Refuse: []netip.Prefix{own}}, nil)
	s.SetPeers(bird.peer, bgp.Peer{Addr: far.V4, From: s.V4, ASN: 64901, Passive: true})
	check := undisturbed(t, s, bird)
	raw, _ := far.Establish(s.V4, 64901, 0)
	raw.Send(
		external(far.V4, "10.7.0.0/24", 64901, 64999),
		external(far.V4, own.String(), 64901),
		external(far.V4, "127.0.0.0/8", 64901),
		external(far.V4, "169.254.9.0/24", 64901),
		external(far.V4, "10.7.1.0/24", 64999, 64901),
		external(far.V4, "10.7.2.0/24", 64901, ourASN),
		external(s.V4, "10.7.3.0/24", 64901),
	)
	refused := func(want ...int) {
		t.Helper()
		bgptest.Eventually(t, func() error {
			p := s.Peer(far.V4)
			var counts []int
			for _, r := range p.Refused {
				counts = append(counts, r.Prefixes)
			}
			slices.Sort(counts)
			if !slices.Equal(counts, want) {
				return fmt.Errorf("%+v, want %v refused", p, want)
			}
			return nil
		})
	}
	// Refusals are known before GoBGP has processed the accepted paths.
	learned := func(prefix, path string) {
		t.Helper()
		bgptest.Eventually(t, func() error {
			if paths := s.LearnedFrom(far.V4); len(paths) != 1 || paths[0].Prefix.String() != prefix || paths[0].ASPath != path {
				return fmt.Errorf("learned %v, want %s by way of %s", paths, prefix, path)
			}
			return nil
		})
	}
	refused(1, 1, 1, 1, 2)
	if p := s.Peer(far.V4); p.Received != 7 {
		t.Errorf("%d prefixes received, want all 7", p.Received)
	}
	learned("10.7.0.0/24", "64901 64999")
	// One becomes valid, one is withdrawn, and a valid one becomes invalid.
	raw.Send(
		external(far.V4, "10.7.1.0/24", 64901),
		bgptest.Message(bgptest.Update, bgptest.UpdateBody(bgptest.NLRI(netip.MustParsePrefix("127.0.0.0/8")), nil, nil)...),
		external(far.V4, "10.7.0.0/24", 64901, ourASN),
	)
	refused(1, 1, 1, 2)
	learned("10.7.1.0/24", "64901")
	check()
}

// The port and the listen addresses change while sessions are up, which stay; an address that cannot be bound changes
// nothing.
func TestListensElsewhere(t *testing.T) {
	t.Parallel()
	lan, s := node(t)
	bird := beside(lan, s, bgptest.BIRD2, 1, ourASN)
	far := lan.Host(6)
	s.SetPeers(bird.peer, bgp.Peer{Addr: far.V4, From: s.V4, ASN: ourASN, Passive: true})
	check := undisturbed(t, s, bird)
	reach := func(port uint16, want bool) {
		t.Helper()
		err := far.Do(func() error {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: far.V4.AsSlice()}, Timeout: 10 * time.Second}
			conn, err := dialer.Dial("tcp", netip.AddrPortFrom(s.V4, port).String())
			if err == nil {
				_ = conn.Close()
			}
			return err
		})
		// The listener resets the second connection of a peer within a second.
		if errors.Is(err, syscall.ECONNREFUSED) == want {
			t.Errorf("port %d: %v, want somebody to listen: %t", port, err, want)
		}
	}
	reach(179, true)
	s.SetLocal(bgp.Local{ASN: ourASN, Port: 1790})
	reach(179, false)
	reach(1790, true)
	if err := s.TrySetLocal(bgp.Local{ASN: ourASN, Port: 1791, Listen: []netip.Addr{netip.MustParseAddr("10.99.99.99")}}); !errtest.Names(err,
		"10.99.99.99:1791") {
		t.Errorf("an address that this node does not have: %v", err)
	}
	reach(1790, true)
	s.SetLocal(bgp.Local{ASN: ourASN, Listen: []netip.Addr{netip.IPv4Unspecified()}})
	reach(179, true)
	if err := s.TrySetLocal(bgp.Local{ASN: ourASN + 1}); !errtest.Names(err, "64513 64512 10.0.0.5") {
		t.Errorf("another AS number: %v", err)
	}
	check()
}
