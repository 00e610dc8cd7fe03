package bgp_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/testkit/bgptest"
)

// A speaker changes its AS number back and forth. A router, for which its number stays, keeps the paths meanwhile; a
// node is configured with the new number, and learns the paths again. Nothing old is left.
func TestAnotherASNumber(t *testing.T) {
	t.Parallel()
	lan := bgptest.NewLAN(t)
	s, router, node := lan.Host(1).Speaker(), lan.Host(2).Speaker(), lan.Host(3).Speaker()
	router.Start(64999, false)
	router.Originate("10.244.2.0/26")
	router.SetPeers(bgp.Peer{Addr: s.V4, From: router.V4, ASN: 64500, Passive: true})
	node.Start(65001, false)
	node.Originate("10.244.3.0/26")
	set := func(asn uint32) {
		s.Originate("10.244.1.0/26")
		s.SetPolicy(bgp.Policy{Transit: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}, nil)
		s.SetPeers(bgp.Peer{Addr: router.V4, From: s.V4, ASN: 64999, LocalASN: 64500}, bgp.Peer{Addr: node.V4, From: s.V4, ASN: 65001})
		node.SetPeers(bgp.Peer{Addr: s.V4, From: node.V4, ASN: asn, Passive: true})
		s.WaitLearned("10.244.2.0/26 10.244.3.0/26")
		node.WaitLearned("10.244.1.0/26 10.244.2.0/26")
		bgptest.Eventually(t, func() error {
			paths := router.Snapshot()
			if len(paths) != 2 || paths[0].Stale || paths[1].Stale || paths[0].ASPath != "64500" || paths[1].ASPath != "64500 65001" {
				return fmt.Errorf("the router has %+v", paths)
			}
			return nil
		})
		for _, p := range node.Snapshot() {
			if want := fmt.Sprint(asn); p.ASPath != want && p.ASPath != want+" 64999" {
				t.Errorf("%s has AS path %q, want it by %s", p.Prefix, p.ASPath, want)
			}
		}
	}
	number := func(method string) int {
		n, err := strconv.Atoi(string(s.Call(bgptest.Call{Method: method}).Text))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	// ends returns the ends of sessions that were up.
	ends := func() []bgp.End {
		all := router.Call(bgptest.Call{Method: "Ends", From: []netip.Addr{s.V4}}).Ends
		return slices.DeleteFunc(all, func(e bgp.End) bool { return e.Since.IsZero() })
	}

	s.Start(ourASN, false)
	set(ourASN)
	goroutines := number("Goroutines")
	for i, asn := range []uint32{64514, ourASN, 64514, ourASN} {
		s.Start(asn, true)
		bgptest.Eventually(t, func() error {
			if all := ends(); len(all) <= i || all[0].Received != "" || all[0].Sent != "" {
				return fmt.Errorf("the router has seen %+v, want a lost connection", all)
			}
			return nil
		})
		if left := s.Snapshot(); len(left) > 0 || number("Neighbours") > 0 {
			t.Errorf("in AS %d it has %+v, and %d sessions in GoBGP", asn, left, number("Neighbours"))
		}
		bgptest.Eventually(t, func() error {
			if paths := router.Snapshot(); len(paths) != 2 || !paths[0].Stale || !paths[1].Stale {
				return fmt.Errorf("the router has %+v, want both paths, stale", paths)
			}
			return nil
		})
		set(asn)
		if number("Neighbours") != 2 {
			t.Errorf("GoBGP has sessions with %d peers, want 2", number("Neighbours"))
		}
	}
	bgptest.Eventually(t, func() error {
		if now := number("Goroutines"); now > goroutines {
			return fmt.Errorf("%d goroutines, there were %d", now, goroutines)
		}
		return nil
	})
}
