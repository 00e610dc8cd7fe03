package mesh

import (
	"net/netip"
	"regexp"
	"strconv"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// The counter counts packets that a rule drops, that the sender's kernel refuses, and that are translated.
func TestStreamCounts(t *testing.T) {
	a, b := pairOfPods(t)
	const some = 100
	var s *meshtest.Stream
	more := func() { s.Await(t, s.Arrived()+some, meshtest.Patience) }
	hole := func() int {
		b.Run(t, "nft",
			"add table ip hole; add chain ip hole in { type filter hook input priority 0; }; add rule ip hole in udp dport 7001 counter drop")
		dropped := func() int {
			found := regexp.MustCompile(`counter packets (\d+)`).FindStringSubmatch(b.Run(t, "nft", "list", "table", "ip", "hole"))
			n, err := strconv.Atoi(found[1])
			errtest.Must(t, err)
			return n
		}
		waittest.Until(t, meshtest.Patience, "dropped", func() bool { return dropped() >= some })
		b.Run(t, "nft", "insert rule ip hole in udp dport 7001 accept")
		more()
		n := dropped()
		b.Run(t, "nft", "delete", "table", "ip", "hole")
		return n
	}
	s = meshtest.StartStream(t, "dropped", a, b)
	more()
	dropped := hole()
	if c := s.End(); c.Lost != dropped || c.Lost == 0 || c.Lost == c.Sent || c.Overrun+uint32(c.Duplicated) != 0 {
		t.Errorf("%s, but the rule dropped %d", c, dropped)
	}
	s = meshtest.StartStream(t, "refused", a, b)
	a.Run(t, "ip", "route", "add", "unreachable", b.V4.String(), "table", "9")
	a.Run(t, "ip", "rule", "add", "pref", "0", "to", b.V4.String(), "table", "9")
	waittest.Until(t, meshtest.Patience, "refused", func() bool { return s.Refused() >= some })
	a.Run(t, "ip", "rule", "del", "pref", "0", "table", "9")
	if c := s.End(); c.Lost == 0 || len(c.Refused) == 0 {
		t.Errorf("%s", c)
	}
	s = meshtest.StartStream(t, "translated", a, b)
	a.Run(t, "nft", "add table ip n; add chain ip n p { type nat hook postrouting priority 100; }; add rule ip n p snat to 10.0.0.3")
	a.Addr(t, "eth0", "10.0.0.3/24")
	more()
	a.Run(t, "nft", "delete", "table", "ip", "n")
	if c := s.End(); c.Translated == 0 || c.Lost != 0 {
		t.Errorf("%s", c)
	}
}

// pairOfPods returns two pods connected by a veth pair.
func pairOfPods(t *testing.T) (a, b *meshtest.Pod) {
	t.Helper()
	a = &meshtest.Pod{NS: netnstest.New(t), V4: netip.MustParseAddr("10.0.0.1")}
	b = &meshtest.Pod{NS: netnstest.New(t), V4: netip.MustParseAddr("10.0.0.2")}
	netnstest.Cable(t, a.NS, "eth0", b.NS, "eth0")
	a.Addr(t, "eth0", "10.0.0.1/24")
	b.Addr(t, "eth0", "10.0.0.2/24")
	return a, b
}
