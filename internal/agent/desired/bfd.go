package desired

import (
	"fmt"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
)

// bfdPatience is how long BFD may receive nothing from a peer with an established BGP session before that is a problem.
const bfdPatience = 30 * time.Second

// FarBFD returns a problem for each object that asks for BFD with peers behind routers. The problem names one such
// peer; the BFD status of each gets the cause. The evidence is silence: a peer that answers is near, whatever its
// address. A packet that has passed a router has a TTL below 255, which BFD over one hop rejects.
func (s *Snapshot) FarBFD(peers []bgp.PeerStatus, now time.Time) (problems []error) {
	told := map[string]bool{}
	for _, p := range peers {
		if p.BFD == nil || p.BFD.Heard || p.BFD.Fault != "" || p.State != bgp.Established || now.Sub(p.Since) < bfdPatience ||
			now.Sub(p.BFD.Since) < bfdPatience {
			continue
		}
		if _, near := s.connected(p.Addr); near {
			continue
		}
		source := s.Peering.Sources[p.Addr]
		why := "it is in no subnet of this node, and BFD works over one hop only (RFC 5881): "
		if source.Node != "" {
			why += "ask for it in BGPPeers between the nodes of each subnet only"
		} else {
			why += "remove the annotation, or set spec.peerIP to an address of the peer in a subnet of the node"
		}
		p.BFD.Fault = "no packets come: " + why
		if !told[source.Peer] {
			told[source.Peer] = true
			problems = append(problems,
				s.askedFor(source.Peer, fmt.Errorf("annotation %s: no packets come from peer %s: %s", api.AnnotationBFD, p.Addr, why)))
		}
	}
	return problems
}

// askedFor names a BGPPeer as the object of an error, or the BGPConfiguration (the mesh) if peer is empty.
func (s *Snapshot) askedFor(peer string, err error) error {
	if peer == "" {
		return inBGP(err)
	}
	t := (*api.BGPPeer)(nil).ResourceType()
	return InObject(t, api.Meta{Name: peer, UID: s.uidOf(t, peer)}, err)
}
