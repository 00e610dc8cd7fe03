package node

import (
	"github.com/tortie-net/tortie/internal/bgp"
)

// sessions are those that a snapshot leads to.
func sessions(s *Snapshot) []bgp.Peer {
	new(deciding).decide(s, 1)
	return s.Peering.Peers
}
