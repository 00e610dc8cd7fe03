package policy

import (
	"maps"
	"net/netip"
	"slices"
)

// hostEnd is a host endpoint's end of a connection, which may have any address.
type hostEnd struct {
	addr   netip.Addr
	pod    *Pod // with the address; nil: none
	passes bool // tiers that end with Deny pass
	// pods and peers are the possible pods of the two ends, if rules are a sequence.
	pods, peers []*Pod
}

// HostLinks returns the links with a host endpoint of this node, ascending; AllInterfaces stands for the links without
// one of their own.
func (j *Judge) HostLinks() []string { return slices.Sorted(maps.Keys(j.selection.hosts)) }

// Governs reports whether a host endpoint judges packets of a link that is no pod's.
func (j *Judge) Governs(link string) bool {
	_, governed := j.selection.host(link)
	return governed
}

func (s *Selection) host(link string) (host ofHost, ok bool) {
	if host, ok = s.hosts[link]; !ok {
		host, ok = s.hosts[AllInterfaces]
	}
	return host, ok
}

// JudgeHost is Judge for a link that is no pod's, between the link's end and the peer, as DecideHost decides. known is
// false if no host endpoint governs the link. Without a Tier the profiles decided; Pod names the host endpoint, without
// a namespace.
func (j *Judge) JudgeHost(link string, stage Stage, d Direction, own, peer netip.Addr, packet Packet) (judged *Judgement, known bool) {
	host, known := j.selection.host(link)
	if all, there := j.selection.hosts[AllInterfaces]; there && stage == Untranslated && len(host.policies[stage][Ingress]) == 0 {
		host = all // as Governor does
	}
	if !known {
		return &Judgement{Direction: d, Rule: -1}, false
	}
	end := host.ending(stage)
	judged = &Judgement{Pod: PodKey{Name: host.Name}, Direction: d, Rule: -1, Verdict: end.Verdict}
	party := Party{Address: peer.Unmap()}
	ownPod, _ := j.Pod(own)
	other, _ := j.Pod(peer)
	if other != nil {
		party.Pod = other.PodKey
	}
	c := connection{d, party, other, j.others(other, peer), packet, &hostEnd{addr: own.Unmap(), pod: ownPod, passes: end.passes}}
	if sequential(j.selection.policies, d, host.policies[stage][d], end) {
		c.host.pods, c.host.peers = append(j.others(ownPod, own), ownPod), append(c.others, other)
		c.others = nil
	}
	judged.decide(j.state, host.subject(), j.selection.all(host.policies[stage][d]), c)
	if judged.Tier != "" && judged.Verdict.Allow {
		judged.Verdict = end.allowed()
	}
	return judged, true
}

// all returns the policies with the indexes.
func (s *Selection) all(indexes []int) (policies []*Policy) {
	for _, i := range indexes {
		policies = append(policies, &s.policies[i])
	}
	return policies
}

// Spares reports whether the node's own programs may open or accept a connection regardless of host endpoints'
// policies. It ignores Open and neighbour discovery.
func (r *HostRules) Spares(d Direction, peer netip.Addr, packet Packet) bool {
	failsafes := r.Inbound
	if d == Egress {
		failsafes = r.Outbound
	}
	peer = peer.Unmap()
	if slices.ContainsFunc(failsafes, func(f Failsafe) bool {
		return f.Protocol == packet.Protocol && f.Port == packet.Port && (!f.Net.IsValid() || f.Net.Contains(peer))
	}) {
		return true
	}
	const ipip = 4
	encapsulated := r.IPIP && packet.Protocol == ipip || packet.Protocol == UDP && slices.Contains(r.TunnelPorts(), packet.Port)
	return encapsulated && slices.ContainsFunc(r.Nodes, func(a netip.Addr) bool { return a.Unmap() == peer })
}

// TunnelPorts are the UDP ports to which nodes send encapsulated packets to each other.
func (r *HostRules) TunnelPorts() []uint16 {
	if r.VXLANPort == 0 {
		return r.WireGuardPorts
	}
	return append([]uint16{r.VXLANPort}, r.WireGuardPorts...)
}

// Spares is HostRules.Spares of the State.
func (j *Judge) Spares(d Direction, peer netip.Addr, packet Packet) bool {
	return j.state.Host.Spares(d, peer, packet)
}
