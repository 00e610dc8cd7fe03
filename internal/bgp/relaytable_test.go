package bgp_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
)

// babbler is a peer that says random things in an orderly way.
type babbler struct {
	*bgptest.Host
	id   byte
	asn  uint32
	conn *rawPeer
}

// begin opens a session, and says the end of its table.
func (b *babbler) begin(s *bgptest.Speaker) {
	b.T.Helper()
	b.conn = established(b.Host, netip.AddrPortFrom(s.V4, 179), bgptest.OpenMessage(b.asn, b.V4, true, 90, 120))
	b.conn.send(bgptest.Message(2, 0, 0, 0, 0))
	s.WaitEstablished(b.V4)
}

// leave breaks the connection.
func (b *babbler) leave(s *bgptest.Speaker) {
	b.T.Helper()
	b.conn.Close()
	bgptest.Eventually(b.T, func() error {
		if p := s.Peer(b.V4); p.State == bgp.Established {
			return fmt.Errorf("the session to %s is still there", b.V4)
		}
		return nil
	})
}

// goodbye ends the session with a NOTIFICATION, and returns when the speaker has closed as well: a connection that is
// closed with something unread is reset, and what was not sent yet is lost.
func (b *babbler) goodbye(s *bgptest.Speaker) {
	b.T.Helper()
	b.conn.send(bgptest.Message(3, 6, 2))
	b.conn.last()
	b.leave(s)
}

// say withdraws some prefixes and announces others.
func (b *babbler) say(random *rand.Rand) {
	b.T.Helper()
	one := func() []byte { return []byte{24, 10, 7, byte(random.IntN(12))} }
	withdrawn, announced := one(), append(one(), one()...)
	path := []byte{0x40, 2, 0}
	if b.asn != 64512 {
		numbers := append([]uint32{b.asn}, [][]uint32{nil, {64999}, {65000, 64999}}[random.IntN(3)]...)
		path = []byte{0x40, 2, byte(2 + 4*len(numbers)), 2, byte(len(numbers))}
		for _, n := range numbers {
			path = binary.BigEndian.AppendUint32(path, n)
		}
	}
	attrs := append([]byte{0x40, 1, 1, byte(random.IntN(2))}, path...)
	attrs = append(attrs, 0x40, 3, 4, 10, 0, 0, byte(100+random.IntN(4)))
	for _, attr := range [][]byte{
		{0x80, 4, 4, 0, 0, 0, byte(random.IntN(2))}, {0x40, 5, 4, 0, 0, 0, byte(100 + 50*random.IntN(2))},
		{0xc0, 8, 4, 0, 1, 0, byte(random.IntN(3))},
		{0x80, 10, 4, 10, 0, 0, 77}, {0xc0, 8, 4, 0xff, 0xff, 0, 6}, {0xc0, 32, 12, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3},
	} {
		if random.IntN(3) == 0 {
			attrs = append(attrs, attr...)
		}
	}
	b.conn.send(bgptest.Message(2, bgptest.UpdateBody(withdrawn, attrs, announced)...))
}

// babble returns a speaker, and peers in these ASes that are still to be set and to begin.
func babble(t *testing.T, asns ...uint32) (s *bgptest.Speaker, peers []bgp.Peer, babblers []*babbler) {
	t.Helper()
	l := bgptest.NewLAN(t)
	s = l.Host(1).Speaker()
	s.Call(bgptest.Call{Method: "Quiet"})
	s.Start(64512, false)
	s.Originate("10.7.3.0/24")
	for i, asn := range asns {
		h := l.Host(10 + i)
		peers = append(peers, bgp.Peer{Addr: h.V4, From: s.V4, ASN: asn, Passive: true})
		babblers = append(babblers, &babbler{Host: h, id: byte(10 + i), asn: asn})
	}
	return s, peers, babblers
}

// The table that is read from the relay is GoBGP's: random paths of peers inside of our AS and outside, withdrawn and
// announced anew, while sessions break and come back.
func TestTableIsGoBGPs(t *testing.T) {
	t.Parallel()
	s, peers, babblers := babble(t, 64512, 64512, 64512, 64901)
	s.SetPeers(peers...)
	for _, b := range babblers {
		b.begin(s)
	}
	random := rand.New(rand.NewPCG(5, 64512))
	paths := 0
	for round := range 40 {
		for i, b := range babblers {
			if i != round/10 || round%10 < 5 {
				b.say(random)
			}
		}
		switch b := babblers[round/10]; round % 10 {
		case 5: // the connection breaks, or it says goodbye
			if round > 20 {
				b.goodbye(s)
			} else {
				b.leave(s)
			}
		case 9:
			b.begin(s)
			b.say(random)
		}
		paths += len(sameTables(t, s, fmt.Sprintf("round %d", round)))
	}
	if paths < 200 {
		t.Errorf("%d paths in all: nothing was compared", paths)
	}
}

// GoBGP hears of what peers announce only while another peer may be told of it: from the moment when there is one.
func TestUntoldPaths(t *testing.T) {
	t.Parallel()
	s, peers, babblers := babble(t, 64512, 64512, 64901)
	router := babblers[2]
	random := rand.New(rand.NewPCG(6, 64512))
	say := func(babblers ...*babbler) {
		for range 20 {
			for _, b := range babblers {
				b.say(random)
			}
		}
	}
	none := func(when string) {
		t.Helper()
		bgptest.Eventually(t, func() error {
			s.Call(bgptest.Call{Method: "AskRelay"})
			relayed := len(s.Snapshot())
			s.Call(bgptest.Call{Method: "AskGoBGP"})
			if asked := len(s.Snapshot()); relayed == 0 || asked > 0 {
				return fmt.Errorf("%s: the relay has %d paths and GoBGP %d, want some and none", when, relayed, asked)
			}
			return nil
		})
	}
	s.SetPeers(peers[:2]...)
	for _, b := range babblers[:2] {
		b.begin(s)
	}
	say(babblers[:2]...)
	none("without a peer to tell")
	s.SetPeers(peers...)
	sameTables(t, s, "with a router that has not connected")
	router.begin(s)
	say(babblers...)
	sameTables(t, s, "with a router")
	s.SetPeers(peers[:2]...)
	say(babblers[:2]...)
	sameTables(t, s, "in sessions that began with a router")
	for _, b := range babblers[:2] {
		b.goodbye(s)
		b.begin(s)
	}
	say(babblers[:2]...)
	none("without a peer to tell any more")
	s.SetPeers(peers...)
	if len(sameTables(t, s, "with the router once more")) == 0 {
		t.Error("no paths were compared")
	}
}

// GoBGP has the paths that are kept of a restarting peer, too, when another peer may be told of them: the first one in
// another AS, or this node becomes a reflector.
func TestUntoldKeptPaths(t *testing.T) {
	t.Parallel()
	for name, tell := range map[string]func(*bgptest.Speaker, []bgp.Peer){
		"router":     func(s *bgptest.Speaker, peers []bgp.Peer) { s.SetPeers(peers...) },
		"cluster ID": func(s *bgptest.Speaker, _ []bgp.Peer) { s.SetLocal(bgp.Local{ASN: 64512, ClusterID: s.V4}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, peers, babblers := babble(t, 64512, 64901)
			s.SetPeers(peers[0])
			b := babblers[0]
			b.begin(s)
			random := rand.New(rand.NewPCG(7, 64512))
			for range 20 {
				b.say(random)
			}
			bgptest.Eventually(t, func() error { return some(s.Snapshot(), true) })
			b.leave(s)
			tell(s, peers)
			bgptest.Eventually(t, func() error { return some(sameTables(t, s, "while the peer restarts"), true) })
			b.begin(s)
			bgptest.Eventually(t, func() error { return some(sameTables(t, s, "after a restart with nothing to announce"), false) })
		})
	}
}

// some is an error unless there are paths, or none if that is wanted.
func some(paths []bgp.Path, want bool) error {
	if len(paths) > 0 != want {
		return fmt.Errorf("%d paths, want some: %t", len(paths), want)
	}
	return nil
}

// sameTables compares both ways to read the table, when it is at rest.
func sameTables(t *testing.T, s *bgptest.Speaker, when string) (asked []bgp.Path) {
	t.Helper()
	bgptest.Eventually(t, func() error {
		s.Call(bgptest.Call{Method: "AskRelay"})
		relayed := s.Snapshot()
		s.Call(bgptest.Call{Method: "AskGoBGP"})
		asked = s.Snapshot()
		if again := s.Snapshot(); !slices.Equal(asked, again) {
			return fmt.Errorf("%s: it still changes", when)
		}
		if d := cmp.Diff(asked, relayed, difftest.Netip); d != "" {
			return fmt.Errorf("%s (-GoBGP +relay):\n%s", when, d)
		}
		return nil
	})
	return asked
}
