package policy

import (
	"net/netip"
	"slices"
)

// Decide returns the kernel's verdict for the first packet of a connection of the local pod behind the link. An unknown
// link passes nothing, or everything while there are no policies.
func (r *Ruleset) Decide(link string, d Direction, peer netip.Addr, p Packet) Verdict {
	e, known := r.Endpoints[link]
	if !known || e.Programs[d] == "" {
		return Verdict{Allow: known || !r.Closed}
	}
	return r.decide(r.Programs[e.Programs[d]], peer.Unmap(), p)
}

// Logs returns the Log rules that the packet reaches and matches, in the order of evaluation.
func (r *Ruleset) Logs(link string, d Direction, peer netip.Addr, p Packet) (found []LogRule) {
	for _, l := range r.Programs[r.Endpoints[link].Programs[d]].Logs {
		if r.decide(l.When, peer.Unmap(), p).Allow {
			found = append(found, l.LogRule)
		}
	}
	return found
}

func (r *Ruleset) decide(program Program, peer netip.Addr, p Packet) Verdict {
	return r.decideList(program.list(p), peer)
}

func (r *Ruleset) decideList(l List, peer netip.Addr) Verdict {
	for _, s := range l.Steps {
		if s.Set != 0 && slices.Contains(r.Members[peer], s.Set) || s.Set == 0 && ranges(r.Nets[s.Nets]).contains(peer) {
			return s.Verdict
		}
	}
	return l.Else
}

func (p Program) list(packet Packet) List {
	l, ok := find(p.Ports[packet.Protocol], packet.Port)
	if !ok {
		l, ok = p.Protocols[packet.Protocol]
	}
	if !ok {
		return p.Rest
	}
	if of, ok := find(l.Sources, packet.SourcePort); ok {
		return of
	}
	return l
}

func find(ranges []PortRange, port uint16) (List, bool) {
	for _, r := range ranges {
		if r.First <= port && port <= r.Last {
			return r.List, true
		}
	}
	return List{}, false
}
