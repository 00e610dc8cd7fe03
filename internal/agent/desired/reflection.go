package desired

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/peering"
	"github.com/tortie-net/tortie/internal/bgp/reflectors"
)

// Refusal says why this node can have no part in the agreement; empty if it can.
func (s *Snapshot) Refusal() string {
	switch {
	case !s.Mesh:
		return "the mesh is off (BGPConfiguration default, nodeToNodeMeshEnabled), so that there is nothing that reflectors could stand in for"
	case s.Self.Reflector:
		return "annotation " + api.AnnotationReflector + " makes this node a route reflector"
	case s.OwnASN() != s.ASN:
		return fmt.Sprintf("this node is in AS %d and the cluster in AS %d: routes are reflected inside of one AS", s.Self.ASN, s.ASN)
	}
	return ""
}

// Roll lists the nodes that can take part, this one among them.
func (s *Snapshot) Roll(nodes []api.Node) *reflectors.Roll {
	announces := s.announcing()
	all := make([]reflectors.Node, 0, len(nodes))
	for _, n := range nodes {
		m, ok := s.Member(n.Name)
		if n.Name == s.Self.Name {
			m, ok = &Member{Name: n.Name, Addr: announcedAddr(n, api.AnnotationIPv4Address),
				Addr6: announcedAddr(n, api.AnnotationIPv6Address)}, true
		}
		if !ok {
			continue // its agent has not come up yet
		}
		entry := reflectors.Node{
			Name: n.Name, Zone: n.Labels[api.LabelZone], Says: reflectors.Word(n.Annotations[api.AnnotationReflection]),
			Barred: barred(&n), Families: m.families(), Announces: announces[n.Name],
		}
		if m.Reflector || cmp.Or(m.ASN, s.ASN) != s.ASN {
			entry.Says = reflectors.Nothing // it may have said something before
		}
		all = append(all, entry)
	}
	return reflectors.NewRoll(all)
}

func barred(n *api.Node) bool {
	_, label := n.Labels[api.NoReflector]
	_, annotation := n.Annotations[api.NoReflector]
	return label || annotation
}

// announcedAddr is invalid for what is no address: it is complained of elsewhere.
func announcedAddr(n api.Node, key string) netip.Addr {
	p, _ := netip.ParsePrefix(n.Annotations[key])
	return p.Addr()
}

func (m *Member) families() (f reflectors.Families) {
	if m.Addr.IsValid() {
		f |= reflectors.IPv4
	}
	if m.Addr6.IsValid() {
		f |= reflectors.IPv6
	}
	return f
}

// announcing tells in which families other nodes have blocks that BGP shows.
func (s *Snapshot) announcing() map[string]reflectors.Families {
	all := map[string]reflectors.Families{}
	for block, owner := range s.Owners {
		if pool, ok := s.poolOf(block); !ok || pool.NoExport {
			continue
		}
		if block.Addr().Is4() {
			all[owner.Node] |= reflectors.IPv4
		} else {
			all[owner.Node] |= reflectors.IPv6
		}
	}
	return all
}

// ReflectorSessions returns how it stands with reflectors, and the addresses of those that have told all.
func (s *Snapshot) ReflectorSessions(names []string,
	peers []bgp.PeerStatus) (sessions map[string]reflectors.Session, complete []netip.Addr) {
	sessions = map[string]reflectors.Session{}
	ends := map[netip.Addr]string{}
	for _, name := range names {
		for _, self := range s.Self.addrs() {
			if m, ok := s.Member(name); ok && m.In(self).IsValid() {
				ends[m.In(self)] = name
				sessions[name] = reflectors.Session{Established: true, Complete: true}
			}
		}
	}
	for _, p := range peers {
		name, ok := ends[p.Addr]
		if !ok {
			continue
		}
		delete(ends, p.Addr)
		was, up := sessions[name], p.State == bgp.Established
		sessions[name] = reflectors.Session{Established: was.Established && up, Complete: was.Complete && up && p.EndOfTable()}
		if up && p.EndOfTable() {
			complete = append(complete, p.Addr)
		}
	}
	for _, name := range ends { // not configured yet
		sessions[name] = reflectors.Session{}
	}
	return sessions, complete
}

// Unreflected reports whether no reflector that serves an address's family has been heard of for a while: then BGP's
// silence about a node with which there is no session means nothing.
func (s *Snapshot) Unreflected(of netip.Addr, silent map[netip.Addr]bool) bool {
	if s.Automatic == nil || s.Automatic.Role != peering.Client {
		return false
	}
	for name := range s.Automatic.Reflectors {
		if m, ok := s.Member(name); ok {
			if quiet, known := silent[m.In(of)]; known && !quiet {
				return false
			}
		}
	}
	return true
}
