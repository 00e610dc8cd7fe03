package node

import (
	"cmp"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/duties"
	"github.com/tortie-net/tortie/internal/encap"
)

// Tunnel returns the tunnel device that this node should have; ok is false if no pool encapsulates. A pool that is disabled, or
// that other nodes use, counts: its pods are still to be reached. Then the device may have no address, which only this node's
// own packets need.
func (s *Snapshot) Tunnel() (t encap.Tunnel, ok bool) {
	if !s.needsTunnel() {
		return encap.Tunnel{}, false
	}
	return encap.Tunnel{MTU: s.tunnelMTU(), Addr: s.Self.TunnelAddr}, true
}

func (s *Snapshot) needsTunnel() bool {
	if !s.Self.Addr.IsValid() {
		return false // its outer packets are IPv4
	}
	return slices.ContainsFunc(s.Pools, Pool.encapsulates)
}

func (p Pool) encapsulates() bool { return p.IPIP == api.EncapAlways || p.IPIP == api.EncapCrossSubnet }

// Limits of an MTU of tunl0: the least of an IPv4 link, and what an IPv4 packet can have.
const (
	minTunnelMTU = 68
	maxTunnelMTU = 65535
)

// tunnelMTU is that of the environment, else of the FelixConfiguration, else what fits the link.
func (s *Snapshot) tunnelMTU() int {
	return cmp.Or(s.Self.TunnelMTU, s.settings.tunnelMTU, encap.MTU(s.Self.LinkMTU))
}

// PodMTU returns the MTU of pods' interfaces: what fits through every way that a pod's packets can take.
func (s *Snapshot) PodMTU() int {
	mtu := s.Self.LinkMTU
	if s.needsTunnel() {
		mtu = s.tunnelMTU()
	}
	if s.Self.LinkMTU6 != 0 && (mtu == 0 || s.Self.LinkMTU6 < mtu) {
		mtu = s.Self.LinkMTU6
	}
	return mtu
}

// tunnelRanges say where the address of tunl0 may lie.
func (s *Snapshot) tunnelRanges() duties.Ranges {
	var r duties.Ranges
	for _, p := range s.Pools {
		if !p.encapsulates() || !p.CIDR.Addr().Is4() {
			continue
		}
		r.Keep = append(r.Keep, p.CIDR)
		if p.Enabled && slices.Contains(p.Uses, api.UseTunnel) && p.Nodes.Matches(s.Self.Labels) {
			r.Assign = append(r.Assign, p.CIDR)
		}
	}
	return r
}
