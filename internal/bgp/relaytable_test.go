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
		{0x80, 4, 4, 0, 0, 0, byte(random.IntN(2))}, {0x40, 5, 4, 0, 0, 0, byte(100 + 50*random.IntN(2))}, {0xc0, 8, 4, 0, 1, 0, byte(random.IntN(3))},
		{0x80, 10, 4, 10, 0, 0, 77}, {0xc0, 8, 4, 0xff, 0xff, 0, 6}, {0xc0, 32, 12, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3},
	} {
		if random.IntN(3) == 0 {
			attrs = append(attrs, attr...)
		}
	}
	b.conn.send(bgptest.Message(2, bgptest.UpdateBody(withdrawn, attrs, announced)...))
}

// The table that is read from the relay is GoBGP's: random paths of peers inside of our AS and outside, withdrawn and announced anew,
// while sessions break and come back.
func TestTableIsGoBGPs(t *testing.T) {
	t.Parallel()
	l := bgptest.NewLAN(t)
	s := l.Host(1).Speaker()
	s.Call(bgptest.Call{Method: "Quiet"})
	s.Start(64512, false)
	s.Originate("10.7.3.0/24")
	var peers []bgp.Peer
	var babblers []*babbler
	for i, asn := range []uint32{64512, 64512, 64512, 64901} {
		h := l.Host(10 + i)
		peers = append(peers, bgp.Peer{Addr: h.V4, From: s.V4, ASN: asn, Passive: true})
		babblers = append(babblers, &babbler{Host: h, id: byte(10 + i), asn: asn})
	}
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
				b.conn.send(bgptest.Message(3, 6, 2))
			}
			b.conn.Close()
			bgptest.Eventually(t, func() error {
				if p := s.Peer(b.V4); p.State == bgp.Established {
					return fmt.Errorf("the session to %s is still there", b.V4)
				}
				return nil
			})
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
