package bgp_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/tortie-net/tortie/internal/bgp/wire"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
)

// listener is a peer that records the UPDATEs that it receives.
type listener struct {
	*babbler
	kept netip.Prefix // always announced

	mu     sync.Mutex // guards the rest
	has    map[netip.Prefix]bool
	faults []string
}

// listen reads until the connection ends.
func (l *listener) listen() {
	defer l.fault("the connection has ended")
	buf := make([]byte, wire.Room)
	for {
		m, err := wire.Read(l.conn, buf)
		if err != nil {
			return
		}
		switch wire.TypeOf(m) {
		case wire.Notify:
			l.fault(wire.ParseNotification(m).Words())
		case wire.Update:
			l.note(m)
		}
	}
}

func (l *listener) fault(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = append(l.faults, text)
}

// note applies an UPDATE. During the session only announced prefixes are withdrawn, and never kept.
func (l *listener) note(m []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	withdrawn := func(p netip.Prefix) bool {
		if p == l.kept || !l.has[p] {
			l.faults = append(l.faults, "withdrawn: "+p.String())
		}
		delete(l.has, p)
		return true
	}
	wire.Prune(m, wire.FamilyIn(m), withdrawn, func(p netip.Prefix) { l.has[p] = true })
}

// While this node's own prefixes change, and the first peer in another AS is added, no session breaks, no prefix that
// stays is withdrawn, and each peer has the current prefixes in the end.
func TestOriginatedChanges(t *testing.T) {
	t.Parallel()
	s, _, peers, babblers := babble(t, 64512, 64512, 64512, 64901)
	inside, kept := babblers[:3], netip.MustParsePrefix("10.7.100.0/24")
	random := rand.New(rand.NewPCG(8, 64512))
	originate := func() map[netip.Prefix]bool {
		want := map[netip.Prefix]bool{kept: true}
		for range random.IntN(6) {
			want[netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 7, 100 + byte(random.IntN(8)), 0}), 24)] = true
		}
		var texts []string
		for p := range want {
			texts = append(texts, p.String())
		}
		s.Originate(texts...)
		return want
	}
	originate()
	s.SetPeers(peers[:3]...)
	var listeners []*listener
	for round := range 6 {
		for _, b := range inside {
			b.begin(s)
			b.say(random)
			l := &listener{babbler: b, kept: kept, has: map[netip.Prefix]bool{}}
			listeners = append(listeners, l)
			go l.listen()
		}
		var want map[netip.Prefix]bool
		for i, when := 0, random.IntN(10); i < 40; i++ {
			if i == when {
				s.SetPeers(peers...)
			}
			want = originate()
		}
		for _, b := range inside {
			b.say(random)
		}
		bgptest.Eventually(t, func() error { return some(s.Snapshot(), true) })
		for _, l := range listeners {
			bgptest.Eventually(t, func() error {
				l.mu.Lock()
				defer l.mu.Unlock()
				if len(l.faults) > 0 {
					t.Fatalf("round %d: %s: %q", round, l.V4, l.faults)
				}
				if !maps.Equal(l.has, want) {
					return fmt.Errorf("round %d: %s has %v, want %v", round, l.V4, slices.Collect(maps.Keys(l.has)), slices.Collect(maps.Keys(want)))
				}
				return nil
			})
		}
		s.SetPeers(peers[:3]...)
		for _, l := range listeners {
			l.conn.Conn.(*net.TCPConn).SetLinger(0)
			l.leave(s)
		}
		listeners = nil
	}
}
