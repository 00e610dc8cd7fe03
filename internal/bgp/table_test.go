package bgp_test

import (
	"encoding/binary"
	"encoding/json"
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

// babbler is a peer that sends valid random UPDATEs.
type babbler struct {
	*bgptest.Host
	id   byte
	asn  uint32
	conn *rawPeer
	// bird, if not nil, receives the same on another session.
	bird  bgptest.Daemon
	other *rawPeer
}

// begin opens a session, and sends the end of its table.
func (b *babbler) begin(s *bgptest.Speaker) {
	b.T.Helper()
	open := bgptest.OpenMessage(b.asn, b.V4, true, 90, 120)
	b.conn = established(b.Host, netip.AddrPortFrom(s.V4, 179), open)
	if b.bird != nil {
		b.other = established(b.Host, netip.AddrPortFrom(b.bird.On().V4, 179), open)
	}
	b.send(bgptest.Message(2, 0, 0, 0, 0))
	s.WaitEstablished(b.V4)
}

// send sends a message to the speaker and to bird.
func (b *babbler) send(message []byte) {
	b.T.Helper()
	b.conn.send(message)
	if b.other != nil {
		b.other.send(message)
	}
}

// leave breaks the connection.
func (b *babbler) leave(s *bgptest.Speaker) {
	b.T.Helper()
	b.conn.Close()
	if b.other != nil {
		b.other.Close()
	}
	bgptest.Eventually(b.T, func() error {
		if p := s.Peer(b.V4); p.State == bgp.Established {
			return fmt.Errorf("the session to %s is still there", b.V4)
		}
		return nil
	})
}

// goodbye ends the session with a NOTIFICATION, and returns when the speaker has closed as well: a connection that is
// closed with unread data is reset, and unsent data is lost.
func (b *babbler) goodbye(s *bgptest.Speaker) {
	b.T.Helper()
	b.send(bgptest.Message(3, 6, 2))
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
	b.send(bgptest.Message(2, bgptest.UpdateBody(withdrawn, attrs, announced)...))
}

// babble returns a speaker, and peers in these ASes that must still be set and begun.
func babble(t *testing.T, asns ...uint32) (s *bgptest.Speaker, lan *bgptest.LAN, peers []bgp.Peer, babblers []*babbler) {
	t.Helper()
	lan = bgptest.NewLAN(t)
	s = lan.Host(1).Speaker()
	s.Call(bgptest.Call{Method: "Quiet"})
	s.Start(64512, false)
	s.Originate(ownPrefix)
	for i, asn := range asns {
		h := lan.Host(10 + i)
		peers = append(peers, bgp.Peer{Addr: h.V4, From: s.V4, ASN: asn, Passive: true})
		babblers = append(babblers, &babbler{Host: h, id: byte(10 + i), asn: asn})
	}
	return s, lan, peers, babblers
}

// The speaker chooses the same paths as BIRD among random paths of peers inside of our AS and outside, which both
// receive, while sessions break and come back.
func TestChoiceIsBIRDs(t *testing.T) {
	t.Parallel()
	s, lan, peers, babblers := babble(t, 64512, 64512, 64512, 64901)
	s.SetPeers(peers...)
	config := bgptest.Config{ASN: 64512}
	for _, b := range babblers {
		config.Sessions = append(config.Sessions, bgptest.Session{Peer: b.V4, ASN: b.asn, Passive: true})
	}
	bird := lan.Host(2).Daemon(bgptest.BIRD2, config)
	for _, b := range babblers {
		b.bird = bird
		b.begin(s)
	}
	random := rand.New(rand.NewPCG(5, 64512))
	prefixes := 0
	for round := range 40 {
		for i, b := range babblers {
			if i != round/10 || round%10 < 5 {
				b.say(random)
			}
		}
		switch b := babblers[round/10]; round % 10 {
		case 5: // the connection breaks, or a NOTIFICATION ends the session
			if round > 20 {
				b.goodbye(s)
			} else {
				b.leave(s)
			}
		case 9:
			b.begin(s)
			b.say(random)
		}
		var chosen map[string][]string
		bgptest.Eventually(t, func() error {
			inParts := s.Snapshot()
			s.Call(bgptest.Call{Method: "ReadAnew"})
			if d := cmp.Diff(s.Snapshot(), inParts, difftest.Netip); d != "" {
				return fmt.Errorf("round %d (-read whole +read in parts):\n%s", round, d)
			}
			chosen = nextHops(inParts)
			if d := cmp.Diff(inKernel(bird.On()), chosen); d != "" {
				return fmt.Errorf("round %d (-BIRD +Tortie):\n%s", round, d)
			}
			return nil
		})
		prefixes += len(chosen)
	}
	if prefixes < 200 {
		t.Errorf("%d prefixes in all: nothing was compared", prefixes)
	}
}

// ownPrefix is originated by the speaker of babble, and not learned.
const ownPrefix = "10.7.3.0/24"

// nextHops returns the next hops of each prefix, in ascending order.
func nextHops(paths []bgp.Path) map[string][]string {
	hops := map[string][]string{}
	for _, p := range paths {
		hops[p.Prefix.String()] = append(hops[p.Prefix.String()], p.NextHop.String())
	}
	for _, of := range hops {
		slices.Sort(of)
	}
	return hops
}

// inKernel returns the next hops in BIRD's kernel, without ownPrefix.
func inKernel(h *bgptest.Host) map[string][]string {
	h.T.Helper()
	var routes []struct {
		Dst, Gateway string
		NextHops     []struct{ Gateway string }
	}
	text := h.IP("-j", "route", "show", "proto", "bird")
	if err := json.Unmarshal([]byte(text), &routes); err != nil {
		h.T.Fatalf("%s: %v", text, err)
	}
	hops := map[string][]string{}
	for _, r := range routes {
		if r.Dst == ownPrefix {
			continue
		}
		if r.Gateway != "" {
			hops[r.Dst] = append(hops[r.Dst], r.Gateway)
		}
		for _, n := range r.NextHops {
			hops[r.Dst] = append(hops[r.Dst], n.Gateway)
		}
		slices.Sort(hops[r.Dst])
	}
	return hops
}

// A peer's paths are kept while it restarts, also if it is reflected to from then on, and dropped when it comes back
// without them.
func TestKeptPaths(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*bgptest.Speaker, []bgp.Peer){
		"nothing":    func(*bgptest.Speaker, []bgp.Peer) {},
		"router":     func(s *bgptest.Speaker, peers []bgp.Peer) { s.SetPeers(peers...) },
		"cluster ID": func(s *bgptest.Speaker, _ []bgp.Peer) { s.SetLocal(bgp.Local{ASN: 64512, ClusterID: s.V4}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _, peers, babblers := babble(t, 64512, 64901)
			s.SetPeers(peers[0])
			b := babblers[0]
			b.begin(s)
			random := rand.New(rand.NewPCG(7, 64512))
			for range 20 {
				b.say(random)
			}
			bgptest.Eventually(t, func() error { return some(s.Snapshot(), true) })
			b.leave(s)
			change(s, peers)
			bgptest.Eventually(t, func() error {
				if p := s.Peer(b.V4); !p.Restarting || p.Received == 0 {
					return fmt.Errorf("while it restarts: %+v", p)
				}
				for _, p := range s.Snapshot() {
					if !p.Stale {
						return fmt.Errorf("not stale while the peer restarts: %+v", p)
					}
				}
				return some(s.Snapshot(), true)
			})
			b.begin(s)
			bgptest.Eventually(t, func() error { return some(s.Snapshot(), false) })
		})
	}
}

// some returns an error unless there are paths, or none if want is false.
func some(paths []bgp.Path, want bool) error {
	if len(paths) > 0 != want {
		return fmt.Errorf("%d paths, want some: %t", len(paths), want)
	}
	return nil
}
