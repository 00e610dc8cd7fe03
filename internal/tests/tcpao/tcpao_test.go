//go:debug multipathtcp=0
package tcpao

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/tcpao"
	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/sysctl"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
)

func TestMain(m *testing.M) {
	os.Exit(bgptest.Main(m.Run))
}

const (
	one   = "1 hmac-sha1-96 one\n"
	two   = "2 aes-128-cmac-96 0123456789abcdef\n"
	three = "3 hmac-sha256-128 three\n"
)

func keys(t *testing.T, text string) tcpao.Keys {
	t.Helper()
	k, err := tcpao.Parse(text)
	errtest.Must(t, err)
	return k
}

// peer is the other end of a speaker, of which the one with the lesser address waits.
func peer(self, other *bgptest.Speaker, ao tcpao.Keys) bgp.Peer {
	return bgp.Peer{Addr: other.V4, From: self.V4, ASN: 64512, Passive: bgp.Waits(self.V4, other.V4), AO: ao}
}

func peer6(self, other *bgptest.Speaker, ao tcpao.Keys) bgp.Peer {
	return bgp.Peer{Addr: other.V6, From: self.V6, ASN: 64512, Passive: bgp.Waits(self.V6, other.V6), AO: ao}
}

func needKernel(t *testing.T) {
	t.Helper()
	needtest.More(t, "a kernel with TCP-AO")
	if err := tcpao.Check(); err != nil {
		t.Fatalf("%v: go test -exec \"lab vmtest -newest -bird\"", err)
	}
	bgptest.KeepAO(t)
}

func start(t *testing.T, n int) []*bgptest.Speaker {
	t.Helper()
	needKernel(t)
	lan := bgptest.NewLAN(t)
	all := make([]*bgptest.Speaker, n)
	for i := range all {
		all[i] = lan.Host(i + 1).Speaker()
		all[i].Start(64512, false)
		all[i].Originate(fmt.Sprintf("10.1.%d.0/26", i+1))
	}
	return all
}

// Keys are rolled over while a session is up in each family, and neither of them ends: which key signs is seen on the
// wire.
func TestRollOver(t *testing.T) {
	s := start(t, 2)
	set := func(i int, text string) {
		t.Helper()
		ao := keys(t, text)
		s[i].SetPeers(peer(s[i], s[1-i], ao), peer6(s[i], s[1-i], ao))
	}
	set(0, one)
	set(1, one)
	s[0].WaitEstablished(s[1].V4, s[1].V6)
	s[1].WaitEstablished(s[0].V4, s[0].V6)
	wire := listen(t, s[0].Host)
	since := func() (all []time.Time) {
		for i := range s {
			for _, p := range s[i].Peers() {
				if p.State != bgp.Established || p.LastError != "" {
					t.Fatalf("session of %s: %+v", s[i].V4, p)
				}
				all = append(all, p.Since)
			}
		}
		return all
	}
	before := since()
	for _, step := range []struct {
		what           string
		at             int
		keys           string
		byOurs, byPeer int // which key each end sends by
	}{
		{"the second key comes, at one end", 0, one + two, 1, 1},
		{"at the other", 1, one + two, 1, 1},
		{"this end asks for it", 0, two + one, 1, 2},
		{"the other, too", 1, two + one, 2, 2},
		{"the first key goes", 0, two, 2, 2},
		{"at the other end", 1, two, 2, 2},
		{"one end has a third key only: none is used that the other does not know", 0, three, 2, 2},
		{"the other end has it", 1, three, 3, 3},
		{"IDs are used again once they are free", 0, three + "1 hmac-sha256-96 new", 3, 3},
		{"for the first key", 1, "1 hmac-sha256-96 new\n" + three, 1, 3},
		{"and for both ends", 0, "1 hmac-sha256-96 new\n" + three, 1, 1},
	} {
		if step.what == "IDs are used again once they are free" {
			time.Sleep(6 * time.Second) //nolint:forbidigo // longer than the interval at which keys are removed that were in use
		}
		set(step.at, step.keys)
		wire.await(t, step.what, s[0].V4, s[1].V4, step.byOurs, step.byPeer)
		wire.await(t, step.what, s[0].V6, s[1].V6, step.byOurs, step.byPeer)
		if now := since(); !slices.EqualFunc(now, before, time.Time.Equal) {
			t.Fatalf("%s: sessions since %s, before since %s", step.what, now, before)
		}
	}
	s[1].Originate("10.1.2.0/26", "10.1.2.64/26")
	bgptest.Eventually(t, func() error {
		if paths := s[0].LearnedFrom(s[1].V4); len(paths) != 2 {
			return fmt.Errorf("paths %v", paths)
		}
		return nil
	})
}

// wrongKey are keys of an end that waits and of one that connects, which do not match, and what is said of it.
type wrongKey struct {
	what, waits, connects, atWaiting, atConnecting string
	counter                                        func(netlinkx.AOSegments) uint64 // of the waiting end's kernel
	named                                          string                           // there, by the peer's segments
}

// check has two ends use the keys, and then the same ones.
func (c wrongKey) check(t *testing.T, s []*bgptest.Speaker) {
	t.Helper()
	set := func(i int, text string) {
		var ao tcpao.Keys
		if text != "" {
			ao = keys(t, text)
		}
		s[i].SetPeers(peer(s[i], s[1-i], ao))
	}
	count := func() (n netlinkx.AOSegments) {
		s[0].Within(t, func() error { n = netlinkx.ReadAO(); return nil })
		return n
	}
	for i := range s {
		s[i].SetPeers()
	}
	before := count()
	set(0, c.waits)
	set(1, c.connects)
	s[1].WaitError(s[0].V4, c.atConnecting)
	if c.atWaiting != "" {
		s[0].WaitError(s[1].V4, c.atWaiting)
	}
	bgptest.Eventually(t, func() error {
		if p := s[0].Peer(s[1].V4); p.WrongKeys != c.named || p.State == bgp.Established {
			return fmt.Errorf("%s: %+v, want wrong keys %q", c.what, p, c.named)
		}
		return nil
	})
	now := count()
	if c.counter(now) == c.counter(before) {
		t.Errorf("%s: the kernel counts %+v, before %+v", c.what, now, before)
	}
	set(0, one)
	set(1, one)
	s[0].WaitEstablished(s[1].V4)
	if p := s[0].Peer(s[1].V4); p.WrongKeys != "" || count().Good == now.Good {
		t.Errorf("%s: mended: %+v, segments %+v", c.what, p, count())
	}
}

// A wrong key, and one at one end only, is refused and named; the right one is taken.
func TestWrongKey(t *testing.T) {
	s := start(t, 2)
	const mismatch = "TCP-AO key wrong or missing on one side"
	const refuses = "no connection from it, and this kernel refuses TCP segments for their TCP-AO signature: " + mismatch
	const silent = "no TCP answer on port 179"
	bad := func(s netlinkx.AOSegments) uint64 { return s.Bad }
	notFound := func(s netlinkx.AOSegments) uint64 { return s.KeyNotFound }
	unsigned := func(s netlinkx.AOSegments) uint64 { return s.Unsigned }
	for _, c := range []wrongKey{
		{"secret", one, "1 hmac-sha1-96 other", refuses, silent + ": " + mismatch, bad, "1/1"},
		{"algorithm", one, "1 hmac-sha256-96 one", refuses, silent + ": " + mismatch, bad, "1/1"},
		{"ID", one, "4 hmac-sha1-96 one", refuses, silent + ": " + mismatch, notFound, ""},
		{"none at the connecting end", one, "", refuses, silent, unsigned, ""},
		{"none at the waiting end", "", one, "", silent + ": " + mismatch, notFound, ""},
	} {
		c.check(t, s)
	}
	// Another secret under the same ID takes a session of its own.
	before := s[0].Peer(s[1].V4).Since
	for i := range s {
		s[i].SetPeers(peer(s[i], s[1-i], keys(t, "1 hmac-sha1-96 changed")))
	}
	bgptest.Eventually(t, func() error {
		if p := s[0].Peer(s[1].V4); p.State != bgp.Established || !p.Since.After(before) {
			return fmt.Errorf("no new session: %+v", p)
		}
		return nil
	})
}

// Peers with keys, with a password and with nothing share a listener, and each can get another of the three.
func TestBesidePasswords(t *testing.T) {
	s := start(t, 4)
	forms := []func(p bgp.Peer) bgp.Peer{
		func(p bgp.Peer) bgp.Peer { p.Password = "sesame"; return p },
		func(p bgp.Peer) bgp.Peer { p.AO = keys(t, one); return p },
		func(p bgp.Peer) bgp.Peer { return p },
	}
	for turn := range 2 * len(forms) {
		var peers []bgp.Peer
		var others []netip.Addr
		for i, other := range s[1:] {
			form := forms[(turn+i)%len(forms)]
			if turn >= len(forms) { // all alike: passwords share one key of the listener
				form = forms[turn%len(forms)]
			}
			peers = append(peers, form(peer(s[0], other, "")))
			other.SetPeers(form(peer(other, s[0], "")))
			others = append(others, other.V4)
		}
		s[0].SetPeers(peers...)
		s[0].WaitEstablished(others...)
		for i, other := range s[1:] {
			bgptest.Eventually(t, func() error {
				if p := other.Peer(s[0].V4); p.State != bgp.Established {
					return fmt.Errorf("turn %d, peer %d: %+v", turn, i, p)
				}
				return nil
			})
		}
	}
}

// Keys that the kernel refuses cost their peer its session, and no other one anything.
func TestRefusedKeys(t *testing.T) {
	s := start(t, 3)
	s[0].Within(t, func() error { return sysctl.DefaultRoot.Set(sysctl.Key{"net", "core", "optmem_max"}, "4096") })
	var many strings.Builder
	for id := range 100 {
		fmt.Fprintf(&many, "%d hmac-sha1-96 secret\n", id)
	}
	s[0].SetPeers(peer(s[0], s[1], keys(t, many.String())), peer(s[0], s[2], ""))
	s[1].SetPeers(peer(s[1], s[0], keys(t, "0 hmac-sha1-96 secret")))
	s[2].SetPeers(peer(s[2], s[0], ""))
	s[0].WaitError(s[1].V4, "no session: the kernel refuses its TCP-AO keys")
	s[0].WaitEstablished(s[2].V4)
	if p := s[0].Peer(s[1].V4); p.State == bgp.Established {
		t.Errorf("%+v", p)
	}
	s[0].Within(t, func() error { return sysctl.DefaultRoot.Set(sysctl.Key{"net", "core", "optmem_max"}, "1048576") })
	s[0].SetPeers(peer(s[0], s[1], keys(t, many.String())), peer(s[0], s[2], ""))
	s[0].WaitEstablished(s[1].V4, s[2].V4)
}

// Sessions between link-local addresses are signed, whichever end connects, and their keys are rolled over.
func TestLinkLocalKeys(t *testing.T) {
	s := start(t, 2)
	addr := func(i int) netip.Addr { return s[i].LinkLocal(t, "eth0").WithZone("eth0") }
	for _, passive := range []int{0, 1, -1} {
		set := func(i int, text string) {
			t.Helper()
			s[i].SetPeers(bgp.Peer{Addr: addr(1 - i), ASN: 64512, Passive: i == passive, AO: keys(t, text)})
		}
		set(0, one)
		set(1, "1 hmac-sha1-96 other")
		if passive == 0 {
			bgptest.Eventually(t, func() error {
				if p := s[0].Peer(addr(1)); p.WrongKeys != "1/1" {
					return fmt.Errorf("%+v", p)
				}
				return nil
			})
		}
		set(1, one)
		s[0].WaitEstablished(addr(1))
		s[1].WaitEstablished(addr(0))
		since := s[0].Peer(addr(1)).Since
		wire := listen(t, s[0].Host)
		set(0, two+one)
		set(1, two+one)
		wire.await(t, "rolled over", addr(0).WithZone(""), addr(1).WithZone(""), 2, 2)
		set(0, two)
		set(1, two)
		for i := range s {
			s[i].Originate(fmt.Sprintf("10.1.%d.0/26", i+1), fmt.Sprintf("10.2.%d.0/26", i+1))
		}
		bgptest.Eventually(t, func() error {
			if p := s[0].Peer(addr(1)); p.State != bgp.Established || !p.Since.Equal(since) || len(s[0].LearnedFrom(addr(1))) != 2 {
				return fmt.Errorf("passive %d, session since %s: %+v, learned %v", passive, since, p, s[0].LearnedFrom(addr(1)))
			}
			return nil
		})
		for i := range s {
			s[i].SetPeers()
		}
	}
}

// A listener on all addresses cannot tell peers with one link-local address apart: of two with different keys one is
// refused, for else each could pose as the other.
func TestOneAddressOnTwoLinks(t *testing.T) {
	s := start(t, 1)[0]
	s.SetLocal(bgp.Local{ASN: 64512, Listen: []netip.Addr{netip.IPv6Unspecified()}})
	first, second := netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("fe80::1%eth1")
	set := func(text string) {
		t.Helper()
		s.SetPeers(bgp.Peer{Addr: first, ASN: 64512, Passive: true, AO: keys(t, one)},
			bgp.Peer{Addr: second, ASN: 64512, Passive: true, AO: keys(t, text)})
	}
	set(two)
	s.WaitError(second, "no session: the kernel refuses its TCP-AO keys: fe80::1%eth0 has not the same")
	if p := s.Peer(first); p.State != bgp.Active || p.LastError != "" {
		t.Errorf("%+v", p)
	}
	active := func() {
		t.Helper()
		bgptest.Eventually(t, func() error {
			if p := s.Peer(second); p.State != bgp.Active {
				return fmt.Errorf("%+v", p)
			}
			return nil
		})
	}
	set(one)
	active()
	s.SetPeers(bgp.Peer{Addr: second, ASN: 64512, Passive: true, AO: keys(t, two)})
	active()
	set(two) // the one that is there keeps its keys
	s.WaitError(first, "no session: the kernel refuses its TCP-AO keys: fe80::1%eth1 has not the same")
	active()
}
