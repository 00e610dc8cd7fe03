package policy

import (
	"net/netip"
	"slices"
)

// Decide returns the verdict for the first packet of a connection of the local pod behind the link, as the kernel gives it. A link that is not known passes nothing, or everything while there are no policies.
func (r *Ruleset) Decide(link string, d Direction, peer netip.Addr, p Packet) Verdict {
	e, known := r.Endpoints[link]
	if !known || e.Programs[d] == "" {
		return Verdict{Allow: known || !r.Closed}
	}
	peer = peer.Unmap()
	l := r.Programs[e.Programs[d]].list(p.Protocol, p.Port)
	for _, s := range l.Steps {
		if s.Set != 0 && slices.Contains(r.Members[peer], s.Set) || s.Set == 0 && ranges(r.Nets[s.Nets]).contains(peer) {
			return s.Verdict
		}
	}
	return l.Else
}

func (p Program) list(protocol uint8, port uint16) List {
	for _, r := range p.Ports[protocol] {
		if r.First <= port && port <= r.Last {
			return r.List
		}
	}
	if l, ok := p.Protocols[protocol]; ok {
		return l
	}
	return p.Rest
}
