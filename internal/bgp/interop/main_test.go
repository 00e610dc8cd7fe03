//go:debug multipathtcp=0

// Package interop_test tests this project's BGP speaker in a mesh with Debian's BIRD 1.6, BIRD 2, FRR and, in a virtual
// machine, BIRD 3, over real TCP between real kernels, and with peers that violate the protocol. It uses only the
// speaker's interface, bgp.Speaker. Package bgptest configures the other speakers; docs/lab.md describes how to run one
// by hand.
package interop_test

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
)

func TestMain(m *testing.M) {
	os.Exit(bgptest.Main(func() int {
		flag.Parse()
		// These tests wait for timers most of the time.
		if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
			if err := f.Value.Set("16"); err != nil {
				panic(err)
			}
		}
		return m.Run()
	}))
}

// ourASN is the node's AS number, Calico's default for every node.
const ourASN = 64512

// ownBlocks are the node's default announcements: two blocks and a borrowed address.
var ownBlocks = []string{"10.1.5.0/26", "10.200.0.5/32", "fd01:5::/122"}

// forEachKind runs a test for each kind of daemon, in parallel.
func forEachKind(t *testing.T, test func(t *testing.T, kind bgptest.Kind)) {
	t.Parallel()
	for _, kind := range bgptest.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

// node starts our speaker on host 5 of a new network.
func node(t *testing.T) (*bgptest.LAN, *bgptest.Speaker) {
	t.Helper()
	lan := bgptest.NewLAN(t)
	s := lan.Host(5).Speaker()
	s.Start(ourASN, false)
	s.Originate(ownBlocks...)
	return lan, s
}

// peers returns our ends of the sessions to another host in both families, changed by edits.
func peers(s *bgptest.Host, other *bgptest.Host, edits ...func(*bgp.Peer)) []bgp.Peer {
	list := []bgp.Peer{{Addr: other.V4, From: s.V4, ASN: ourASN}, {Addr: other.V6, From: s.V6, ASN: ourASN}}
	for i := range list {
		for _, edit := range edits {
			edit(&list[i])
		}
	}
	return list
}

// blocksOf returns the announcements of the daemon on host n.
func blocksOf(n int) []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("10.1.%d.0/26", n)),
		netip.MustParsePrefix(fmt.Sprintf("fd01:%d::/122", n)),
	}
}

// partner configures a daemon in the node's AS that announces the blocks of host n, with sessions in both families,
// changed by edits.
func partner(n int, s *bgptest.Host, edits ...func(*bgptest.Session)) bgptest.Config {
	c := bgptest.Config{ASN: ourASN, Announce: blocksOf(n)}
	for _, addr := range s.Addrs() {
		session := bgptest.Session{Peer: addr, ASN: ourASN}
		for _, edit := range edits {
			edit(&session)
		}
		c.Sessions = append(c.Sessions, session)
	}
	return c
}

// family returns the prefixes of an address's family.
func family(addr netip.Addr, prefixes ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range prefixes {
		if p := netip.MustParsePrefix(text); p.Addr().Is4() == addr.Is4() {
			list = append(list, p)
		}
	}
	return list
}

// waitPackets waits until at least packets of each family that match have come to a host ("in") or left it ("out").
func waitPackets(t *testing.T, h *bgptest.Host, way, match string, packets int) {
	t.Helper()
	h.Run(t, "nft", fmt.Sprintf("add table inet counted; add chain inet counted c { type filter hook %sput priority -300; }; "+
		"add rule inet counted c meta nfproto ipv4 %[2]s counter; add rule inet counted c meta nfproto ipv6 %[2]s counter", way, match))
	defer h.Run(t, "nft", "delete", "table", "inet", "counted")
	bgptest.Eventually(t, func() error {
		text := h.Run(t, "nft", "list", "table", "inet", "counted")
		for _, found := range counter.FindAllStringSubmatch(text, -1) {
			if n, err := strconv.Atoi(found[1]); err != nil || n < packets {
				return fmt.Errorf("want %d packets of each:\n%s", packets, text)
			}
		}
		return nil
	})
}

var counter = regexp.MustCompile(`counter packets (\d+)`)
