package ipip

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
)

// MaxPeers bounds the devices for single nodes: each costs some 30 KiB of the kernel's memory, and every dump of links
// includes them.
const MaxPeers = 64

// Way is an IPv4 destination and the node that packets to it are sent to in a tunnel; the zero Node means no tunnel.
type Way struct {
	Dst  netip.Prefix
	Node netip.Addr
}

// Peer is a node with a device of its own, and the addresses that routes lead to by it.
type Peer struct {
	Node   netip.Addr
	Ranges []Range
}

// Range is a range of addresses, both ends included.
type Range struct{ First, Last netip.Addr }

// ChoosePeers returns the nodes that have a device of their own on node self, at most limit, in ascending order: the
// nodes that most routes lead to. A node's number of blocks grows with its pods, and costs nothing to know. Bytes
// cannot be counted: for packets that pass a flowtable the kernel updates no device's counters. Among nodes with
// equally many routes, both nodes of a pair rank each other alike, and different nodes choose different peers.
func ChoosePeers(self netip.Addr, ways []Way, limit int) []Peer {
	routes := map[netip.Addr]int{}
	for _, w := range ways {
		if w.Node.Is4() {
			routes[w.Node]++
		}
	}
	nodes := slices.SortedFunc(maps.Keys(routes), func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(routes[b], routes[a]), cmp.Compare(lot(self, a), lot(self, b)), a.Compare(b))
	})
	ranges := rangesOf(ways)
	var peers []Peer
	for _, n := range nodes[:min(len(nodes), limit)] {
		peers = append(peers, Peer{n, ranges[n]})
	}
	slices.SortFunc(peers, func(a, b Peer) int { return a.Node.Compare(b.Node) })
	return peers
}

// lot returns a pseudo-random number of a pair of nodes, in either order.
func lot(a, b netip.Addr) uint64 {
	if b.Less(a) {
		a, b = b, a
	}
	sum := sha256.Sum256(append(a.AsSlice(), b.AsSlice()...))
	return binary.BigEndian.Uint64(sum[:])
}

// span is a range of addresses and the node that they are behind.
type span struct {
	first, last uint64
	node        netip.Addr
}

// rangesOf returns the ranges behind each node: its destinations without the more specific ones of other nodes.
func rangesOf(ways []Way) map[netip.Addr][]Range {
	sorted := slices.Clone(ways)
	slices.SortStableFunc(sorted, func(a, b Way) int {
		return cmp.Or(a.Dst.Masked().Addr().Compare(b.Dst.Masked().Addr()), cmp.Compare(a.Dst.Bits(), b.Dst.Bits()))
	})
	behind := map[netip.Addr][]Range{}
	add := func(s span) {
		if s.node.Is4() && s.first <= s.last {
			behind[s.node] = append(behind[s.node], Range{addrAt(s.first), addrAt(s.last)})
		}
	}
	var open []span // each nested in the one before; first is where the last nested one ended
	for _, w := range sorted {
		if !w.Dst.Addr().Is4() {
			continue
		}
		first := uint64(binary.BigEndian.Uint32(w.Dst.Masked().Addr().AsSlice()))
		s := span{first, first | (1<<(32-w.Dst.Bits()) - 1), w.Node}
		for len(open) > 0 && open[len(open)-1].last < s.first {
			add(open[len(open)-1])
			open = open[:len(open)-1]
		}
		if len(open) > 0 {
			outer := &open[len(open)-1]
			if outer.first < s.first {
				add(span{outer.first, s.first - 1, outer.node})
			}
			outer.first = s.last + 1
		}
		open = append(open, s)
	}
	for _, s := range slices.Backward(open) {
		add(s)
	}
	return behind
}

func addrAt(n uint64) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(n))))
}
