package desired

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Floating is a floating address of a pod of this node, assigned by IPAM.
type Floating struct {
	Addr netip.Addr
	Link string     // the pod's link
	Pod  netip.Addr // the pod's own address of that family; invalid if there is none
}

// Floats returns the floating addresses that are in force, and problems about the others. An address of a node or a
// Service is never in force, whatever IPAM has assigned: else an annotation of a pod would take over its connections.
func (s *Snapshot) Floats() (all []Floating, problems []error) {
	for _, f := range s.Self.Floating {
		if why := s.unfloated(f); why != "" {
			problems = append(problems,
				InSelf("FloatingAddressUnused", fmt.Errorf("floating address %s of the pod behind link %s is not in force: %s", f.Addr, f.Link, why)))
			continue
		}
		all = append(all, f)
	}
	return all, problems
}

// unfloated returns why a floating address is not in force; empty if it is.
func (s *Snapshot) unfloated(f Floating) string {
	single := netip.PrefixFrom(f.Addr, f.Addr.BitLen())
	_, ofNode := s.MemberAt(f.Addr)
	_, pooled := s.poolOf(single)
	switch {
	case !s.Felix.Floats:
		return "set floatingIPs to Enabled in FelixConfiguration default, or remove annotation cni.projectcalico.org/floatingIPs"
	case !f.Pod.IsValid() || s.hasOwn(f.Addr):
		return "the node has no pod, or another one, with an address for it: delete the pod, and let its owner make it anew"
	case ofNode || slices.Contains(s.ownAddresses(), single):
		return "it is a node's address: choose another"
	case slices.ContainsFunc(s.ServiceRanges, func(r netip.Prefix) bool { return r.Contains(f.Addr) }):
		return "it lies in a range of Services that BGPConfiguration announces: choose another"
	case !pooled:
		return "it lies in no IPPool: choose another, or create the pool again"
	}
	return ""
}

// floats reports whether an address is a floating address in force of a pod of this node.
func (s *Snapshot) floats(a netip.Addr) bool {
	i, found := slices.BinarySearchFunc(s.Self.Floating, a, func(f Floating, a netip.Addr) int { return f.Addr.Compare(a) })
	return found && s.unfloated(s.Self.Floating[i]) == ""
}

// SortFloating sorts floating addresses in ascending order.
func SortFloating(all []Floating) {
	slices.SortFunc(all, func(a, b Floating) int { return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Link, b.Link)) })
}
