package policy

import (
	"maps"
	"net/netip"
	"slices"
)

// hostEnd is a host endpoint's end of a connection, which may have any address.
type hostEnd struct {
	addr   netip.Addr
	pod    *Pod // that has the address; nil: none
	passes bool // no tier decides by its end
	// pods and peers are those that the ends may be, if rules are a sequence.
	pods, peers []*Pod
}

// HostLinks are the links with a host endpoint of this node, in ascending order: AllInterfaces stands for those that
// are not named.
func (j *Judge) HostLinks() []string { return slices.Sorted(maps.Keys(j.selection.hosts)) }

// Governs reports whether there is a host endpoint for what passes a link, which is no pod's.
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
// false if no host endpoint governs it. Without a Tier the profiles decided; Pod is the host endpoint, which has no
// namespace.
func (j *Judge) JudgeHost(link string, stage Stage, d Direction, own, peer netip.Addr, packet Packet) (judged *Judgement, known bool) {
	host, known := j.selection.host(link)
	if all, there := j.selection.hosts[AllInterfaces]; there && stage == Untranslated && len(host.policies[stage][Ingress]) == 0 {
		host = all // as Governor says
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

// all are the policies of the indexes.
func (s *Selection) all(indexes []int) (policies []*Policy) {
	for _, i := range indexes {
		policies = append(policies, &s.policies[i])
	}
	return policies
}

// Spares reports whether the node's own programs receive or send what opens a connection whatever policies of host
// endpoints say, but for Open and neighbours.
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

// Spares is that of the State's HostRules.
func (j *Judge) Spares(d Direction, peer netip.Addr, packet Packet) bool {
	return j.state.Host.Spares(d, peer, packet)
}
