package node

import (
	"net/netip"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/nodeaddr"
)

// Local returns this node's end of all sessions. The error is for the operator.
func (s *Snapshot) Local() (bgp.Local, error) {
	id, err := nodeaddr.RouterID(s.Self.RouterID, s.Self.Name, s.Self.Addr.Addr())
	return bgp.Local{ASN: s.asn(s.Self.ASN), RouterID: id, Listen: s.Self.addrs(), Port: s.Port, ClusterID: s.Peering.ClusterID}, err
}

func (s *Snapshot) asn(own uint32) uint32 {
	if own != 0 {
		return own
	}
	return s.ASN
}

// Originated returns what this node announces: its own confirmed blocks, each pod whose address was borrowed from another node's
// block, and addresses of services; but nothing of pools that keep out of BGP, nor of a family in which it has no address.
func (s *Snapshot) Originated() []bgp.Path {
	var paths []bgp.Path
	announce := func(p netip.Prefix) {
		self, _ := s.Self.towards(p.Addr())
		if pool, ok := s.poolOf(p); ok && !pool.NoExport && self.IsValid() {
			paths = append(paths, bgp.Path{Prefix: p})
		}
	}
	for _, b := range s.Blocks {
		announce(b)
	}
	for _, pod := range s.Self.Pods {
		single := netip.PrefixFrom(pod, pod.BitLen())
		if _, owner, ok := s.blockOf(single); !ok || owner.Node != s.Self.Name {
			announce(single)
		}
	}
	for _, p := range s.Services {
		self, _ := s.Self.towards(p.Addr())
		if pool, ok := s.poolOf(p); self.IsValid() && (!ok || !pool.NoExport) {
			paths = append(paths, bgp.Path{Prefix: p})
		}
	}
	return paths
}
