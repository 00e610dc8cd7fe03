package node

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/bgp"
)

// refusal is a learned path that must not become a route, and why.
type refusal struct {
	path bgp.Path
	why  string
}

func refusals(refused []refusal) []error {
	errs := make([]error, len(refused))
	for i, r := range refused {
		errs[i] = fmt.Errorf("BGP peer %s: %s via %s: %s", r.path.From, r.path.Prefix, r.path.NextHop, r.why)
	}
	return errs
}

// Judge decides which paths become routes. Affinities say who owns a block, BGP says the way to it:
//
//   - A learned path is refused if its next hop is not the node that owns the block. A mistaken or hostile peer cannot take
//     a block that way.
//   - A block whose owner BGP knows no path to is reached by the owner's address: when a session drops, or before the first
//     one is up, the pods behind it stay reachable. The route goes when the affinity or the Node goes.
//
// A block without an affinity is taken as announced, since the API may lag behind BGP; so is a single address, which a node
// has borrowed from another's block.
func (s *Snapshot) Judge(learned []bgp.Path) (accepted []bgp.Path, refused []refusal) {
	known := make(map[netip.Prefix]bool, len(learned))
	for _, p := range learned {
		if slices.Contains(s.Blocks, p.Prefix) {
			continue // our own, whatever a peer says of it
		}
		if why := s.objection(p); why != "" {
			refused = append(refused, refusal{p, why})
			continue
		}
		known[p.Prefix] = true
		accepted = append(accepted, p)
	}
	for block, owner := range s.Owners {
		if !known[block] {
			accepted = append(accepted, bgp.Path{Prefix: block, NextHop: owner})
		}
	}
	slices.SortFunc(accepted, func(a, b bgp.Path) int { return a.Prefix.Compare(b.Prefix) })
	return accepted, refused
}

// objection says why a path must not become a route; empty if it may.
func (s *Snapshot) objection(p bgp.Path) string {
	pool, ok := s.poolOf(p.Prefix)
	if !ok {
		return "it lies in no IPPool"
	}
	if p.Prefix.Bits() < pool.BlockBits {
		return fmt.Sprintf("it is larger than a block of IPPool %s (/%d)", pool.Name, pool.BlockBits)
	}
	hop := slices.IndexFunc(s.Others, func(m Member) bool { return m.Addr == p.NextHop })
	owner, owned := s.Owners[p.Prefix]
	switch {
	case hop < 0 && pool.encapsulates():
		return "the next hop is no node of the cluster, so it cannot be the end of a tunnel"
	case hop >= 0 && owned && owner != p.NextHop:
		return fmt.Sprintf("the block belongs to the node at %s, not to %s", owner, s.Others[hop].Name)
	}
	return ""
}
