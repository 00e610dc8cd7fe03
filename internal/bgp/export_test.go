package bgp

import (
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/bgp/relay"
)

// ForgetMD5 makes this process believe that the kernel can't sign TCP segments.
func ForgetMD5() { checkMD5 = func() error { return relay.ErrNoMD5 } }

// AskGoBGP has the next Snapshot ask GoBGP for its table.
func (s *Server) AskGoBGP() {
	s.neighbours.mu.Lock()
	defer s.neighbours.mu.Unlock()
	for _, known := range s.neighbours.all {
		known.mu.Lock()
		known.kept = true
		known.mu.Unlock()
	}
	s.version.Add(1)
}

// AskRelay has the next Snapshot read the table anew, from the relay if it can.
func (s *Server) AskRelay() { s.version.Add(1) }

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
