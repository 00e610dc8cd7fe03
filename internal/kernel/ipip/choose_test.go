package ipip_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/kernel/ipip"
)

func way(dst, node string) ipip.Way {
	w := ipip.Way{Dst: netip.MustParsePrefix(dst)}
	if node != "" {
		w.Node = addr(node)
	}
	return w
}

func span(first, last string) ipip.Range { return ipip.Range{First: addr(first), Last: addr(last)} }

// The ranges behind a node are its routes' destinations, without more specific routes elsewhere.
func TestChoosePeersRanges(t *testing.T) {
	ways := []ipip.Way{
		way("10.1.0.64/26", "172.30.0.2"),
		way("10.1.0.70/32", "172.30.0.3"), way("10.1.0.64/32", ""), way("10.1.0.127/32", "172.30.0.3"), // borrowed, or pods of this node
		way("10.1.0.0/26", ""), way("10.1.0.128/26", "172.30.0.3"),
		way("10.2.0.0/16", "172.30.0.4"), way("10.2.1.0/24", "172.30.0.5"), way("10.2.1.7/32", "172.30.0.4"),
		way("255.255.255.255/32", "172.30.0.6"), way("0.0.0.0/0", ""), way("fd00::/64", ""),
	}
	want := []ipip.Peer{
		{Node: addr("172.30.0.2"), Ranges: []ipip.Range{span("10.1.0.65", "10.1.0.69"), span("10.1.0.71", "10.1.0.126")}},
		{Node: addr("172.30.0.3"),
			Ranges: []ipip.Range{span("10.1.0.70", "10.1.0.70"), span("10.1.0.127", "10.1.0.127"), span("10.1.0.128", "10.1.0.191")}},
		{Node: addr("172.30.0.4"),
			Ranges: []ipip.Range{span("10.2.0.0", "10.2.0.255"), span("10.2.1.7", "10.2.1.7"), span("10.2.2.0", "10.2.255.255")}},
		{Node: addr("172.30.0.5"), Ranges: []ipip.Range{span("10.2.1.0", "10.2.1.6"), span("10.2.1.8", "10.2.1.255")}},
		{Node: addr("172.30.0.6"), Ranges: []ipip.Range{span("255.255.255.255", "255.255.255.255")}},
	}
	for range ways { // in whatever order
		ways = append(ways[1:], ways[0])
		got := ipip.ChoosePeers(addr("172.30.0.1"), ways, 64)
		for _, p := range got {
			slices.SortFunc(p.Ranges, func(a, b ipip.Range) int { return a.First.Compare(b.First) })
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	}
}

// Nodes with most routes come first, both nodes of a pair choose alike, and nodes choose different others.
func TestChoosePeersLimit(t *testing.T) {
	const count = 30
	node := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{172, 30, 1, byte(i)}) }
	chosen := map[netip.Addr]map[netip.Addr]bool{}
	for self := range count {
		var ways []ipip.Way
		for i := range count {
			if i != self {
				ways = append(ways, way(fmt.Sprintf("10.1.%d.0/26", i), node(i).String()))
			}
		}
		ways = append(ways, way("10.9.0.0/26", node(29).String()))
		peers := ipip.ChoosePeers(node(self), ways, 5)
		if len(peers) != 5 || self != 29 && peers[4].Node != node(29) {
			t.Errorf("node %d: %v, want 5 with the one of two blocks", self, peers)
		}
		chosen[node(self)] = map[netip.Addr]bool{}
		for _, p := range peers {
			chosen[node(self)][p.Node] = true
		}
	}
	times, mutual := map[netip.Addr]int{}, 0
	for self, peers := range chosen {
		for p := range peers {
			if times[p]++; chosen[p][self] {
				mutual++
			}
		}
	}
	delete(times, node(29))
	for n, by := range times {
		if by > 15 {
			t.Errorf("%d of %d nodes choose %s", by, count, n)
		}
	}
	if mutual < count {
		t.Errorf("%d choices of %d are mutual", mutual, 5*count)
	}
}

// Each address is behind the node of the longest prefix with it, and behind no other, whatever prefixes there are.
func TestChoosePeersRandom(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	for range 300 {
		var ways []ipip.Way
		there := map[netip.Prefix]bool{}
		for range 1 + r.IntN(12) {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(32))}), 27+r.IntN(6)).Masked()
			if there[p] {
				continue
			}
			there[p] = true
			ways = append(ways, way(p.String(), []string{"", "172.30.0.2", "172.30.0.3"}[r.IntN(3)]))
		}
		peers := ipip.ChoosePeers(addr("172.30.0.1"), ways, ipip.MaxPeers)
		for i := range 32 {
			a, best := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), ipip.Way{}
			for _, w := range ways {
				if w.Dst.Contains(a) && (!best.Dst.IsValid() || w.Dst.Bits() > best.Dst.Bits()) {
					best = w
				}
			}
			var behind []netip.Addr
			for _, p := range peers {
				for _, s := range p.Ranges {
					if s.First.Compare(a) <= 0 && a.Compare(s.Last) <= 0 {
						behind = append(behind, p.Node)
					}
				}
			}
			if best.Node.IsValid() != (len(behind) == 1) || len(behind) > 1 || len(behind) == 1 && behind[0] != best.Node {
				t.Fatalf("seed %d, %v: %s is behind %v, want %s", seed, ways, a, behind, best.Node)
			}
		}
	}
}
