package bgp

import (
	"net/netip"
	"slices"
)

// Member is one node's end of the node-to-node mesh, in one address family. A node with two families is two members.
type Member struct {
	Addr netip.Addr
	ASN  uint32
	Port uint16 // DefaultPort if 0
}

// Mesh returns self's sessions to all others of its family, ordered by address. Members without a usable address and
// those with self's own are left out; of several with one address the first counts.
func Mesh(self Member, others []Member) []Peer {
	peers := make([]Peer, 0, len(others))
	seen := map[netip.Addr]bool{self.Addr: true}
	for _, other := range others {
		if checkAddr(other.Addr) != nil || other.Addr.Is4() != self.Addr.Is4() || seen[other.Addr] {
			continue
		}
		seen[other.Addr] = true
		peers = append(peers, Peer{
			Addr:    other.Addr,
			ASN:     other.ASN,
			Port:    other.Port,
			From:    self.Addr,
			Passive: Waits(self.Addr, other.Addr),
		}.withDefaults())
	}
	slices.SortFunc(peers, func(a, b Peer) int { return a.Addr.Compare(b.Addr) })
	return peers
}

// Waits reports that of two nodes self is the passive one. Of each pair exactly one is, by the rule of Calico's BIRD templates,
// which is a comparison of the addresses as text ("10.0.0.9" is greater than "10.0.0.10"): the node whose peer has the greater
// text waits. Any other rule would leave pairs with a Calico node where nobody connects.
func Waits(self, peer netip.Addr) bool { return peer.String() > self.String() }
