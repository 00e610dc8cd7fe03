package tcpao

import (
	"fmt"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
)

// The keys of BIRD, and the same at this end.
var (
	birdOne   = bgptest.AOKey{Send: 11, Recv: 1, Secret: "one", Algorithm: "hmac sha1", Use: preferred}
	birdTwo   = bgptest.AOKey{Send: 12, Recv: 2, Secret: "0123456789abcdef", Algorithm: "cmac aes128"}
	birdThree = bgptest.AOKey{Send: 13, Recv: 3, Secret: "three", Algorithm: "hmac sha256"}
)

const (
	ourOne   = "1/11 hmac-sha1-96 one\n"
	ourTwo   = "2/12 aes-128-cmac-96 0123456789abcdef\n"
	ourThree = "3/13 hmac-sha256-96 three\n"

	preferred, deprecated = "preferred;", "deprecated;"
)

func used(k bgptest.AOKey, use string) bgptest.AOKey { k.Use = use; return k }

// withBIRD is a session with a BIRD that connects to it: BIRD would take a connection that crosses its own for a
// restart of the other end.
type withBIRD struct {
	*bgptest.Speaker
	t     *testing.T
	bird  *bgptest.AOBird
	peer  bgp.Peer // without keys
	since time.Time
}

func startBIRD(t *testing.T, keys string, birds ...bgptest.AOKey) *withBIRD {
	t.Helper()
	needKernel(t)
	lan := bgptest.NewLAN(t)
	s := &withBIRD{Speaker: lan.Host(1).Speaker(), t: t}
	s.Start(64512, false)
	s.bird = lan.Host(2).AOBird(s.V4, false, birds...)
	s.peer = bgp.Peer{Addr: s.bird.V4, From: s.V4, ASN: 65000, Passive: true, HoldTime: 9 * time.Second}
	s.set(keys)
	s.WaitEstablished(s.bird.V4)
	s.WaitLearned("192.0.2.0/24")
	s.since = s.Peer(s.bird.V4).Since
	return s
}

// set changes the keys at this end.
func (s *withBIRD) set(text string) {
	s.t.Helper()
	p := s.peer
	p.AO = keys(s.t, text)
	s.SetPeers(p)
}

// same returns the state of the session, which must be the one that it was.
func (s *withBIRD) same(what string) bgp.PeerStatus {
	s.t.Helper()
	p := s.Peer(s.bird.V4)
	if p.State != bgp.Established || !p.Since.Equal(s.since) || p.LastError != "" {
		s.t.Fatalf("%s: %+v, before since %s", what, p, s.since)
	}
	return p
}

// Keys are rolled over with BIRD at the other end, by each of the algorithms that both have, while the session stays
// up.
func TestBIRD(t *testing.T) {
	s := startBIRD(t, ourOne, birdOne)
	wire := listen(t, s.Host)
	for _, step := range []struct {
		what          string
		ours          string
		birds         []bgptest.AOKey
		byOurs, birdy int
	}{
		{"a second key at this end", ourOne + ourTwo, nil, 1, 11},
		{"and at BIRD's", "", []bgptest.AOKey{birdOne, birdTwo}, 1, 11},
		{"this end asks for it", ourTwo + ourOne, nil, 1, 12},
		{"BIRD, too", "", []bgptest.AOKey{used(birdOne, deprecated), used(birdTwo, preferred)}, 2, 12},
		{"the first goes at BIRD's end", "", []bgptest.AOKey{used(birdTwo, preferred)}, 2, 12},
		{"and at this", ourTwo, nil, 2, 12},
		{"BIRD has a third key", "", []bgptest.AOKey{used(birdTwo, preferred), birdThree}, 2, 12},
		{"this end has it alone", ourThree, nil, 2, 13},
		{"BIRD asks for it", "", []bgptest.AOKey{used(birdTwo, deprecated), used(birdThree, preferred)}, 3, 13},
		{"BIRD has it alone", "", []bgptest.AOKey{used(birdThree, preferred)}, 3, 13},
	} {
		if step.ours != "" {
			s.set(step.ours)
		} else {
			s.bird.Set(step.birds...)
		}
		wire.await(t, step.what, s.V4, s.bird.V4, step.byOurs, step.birdy)
		s.same(step.what)
	}
	s.bird.OneSession()
}

// BIRD asks for the second key and goes on signing by the first one, as it lacks the third, which it is asked for: at
// this end both stay as long as BIRD needs them, and are named. Once it has the third they go.
func TestPeerKeepsOldKey(t *testing.T) {
	s := startBIRD(t, ourOne+ourTwo, used(birdOne, ""), used(birdTwo, preferred))
	wire := listen(t, s.Host)
	wire.await(t, "before", s.V4, s.bird.V4, 2, 11)
	named := func(want string) {
		t.Helper()
		bgptest.Eventually(t, func() error {
			if got := s.same("named").OldKeys; got != want {
				return fmt.Errorf("old keys %q, want %q", got, want)
			}
			return nil
		})
	}
	s.set(ourThree)
	time.Sleep(40 * time.Second) //nolint:forbidigo // BIRD would miss our KEEPALIVEs, and this end BIRD's: longer than the hold time
	if p := s.same("all keys changed"); p.OldKeys != "" {
		t.Errorf("named within a minute: %+v", p)
	}
	named("1/11 2/12")
	wire.await(t, "named", s.V4, s.bird.V4, 2, 11)

	s.bird.Set(used(birdOne, ""), used(birdTwo, ""), used(birdThree, preferred))
	wire.await(t, "BIRD has the third key", s.V4, s.bird.V4, 3, 13)
	named("")
	s.bird.OneSession()
}
