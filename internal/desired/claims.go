package desired

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/bgp"
)

// Claim is a single address that a node announces although its block is another's: what a pod has that borrowed its address.
type Claim struct {
	Addr netip.Addr
	Node string
	// Elsewhere: which node announces it is not known, as a router is on the way; not the one that is named.
	Elsewhere bool
}

// Verdict is what the block's record says of a claim. The zero value is that it has not been read yet.
type Verdict struct {
	Confirmed bool
	Why       string // not, or not yet
	Pending   bool   // it could not be read
}

// Claims returns the claims that paths make, with the block of each.
func (s *Snapshot) Claims(paths []bgp.Path) map[Claim]netip.Prefix {
	claims := map[Claim]netip.Prefix{}
	for _, p := range paths {
		if c, block, ok := s.ClaimOf(p.Prefix, p.NextHop); ok {
			claims[c] = block
		}
	}
	return claims
}

// ClaimOf returns the claim that a path is, if it is one.
func (s *Snapshot) ClaimOf(p netip.Prefix, hop netip.Addr) (c Claim, block netip.Prefix, ok bool) {
	if !p.IsSingleIP() {
		return Claim{}, netip.Prefix{}, false
	}
	pool, inPool := s.poolOf(p)
	m, isNode := s.MemberAt(hop)
	if !inPool || s.hasPod(p.Addr()) {
		return Claim{}, netip.Prefix{}, false
	}
	block, owner, owned := s.blockOf(p)
	if !isNode {
		ours := owned && owner.Node == s.Self.Name && block != p && !pool.encapsulates()
		return Claim{p.Addr(), s.Self.Name, true}, block, ours
	}
	if owned && owner.Node == m.Name || !owned && p.Bits() == pool.BlockBits {
		return Claim{}, netip.Prefix{}, false
	}
	if !owned {
		block = netip.PrefixFrom(p.Addr(), pool.BlockBits).Masked()
	}
	return Claim{Addr: p.Addr(), Node: m.Name}, block, true
}

// Sessionless returns the confirmed claims of nodes that there is no session with.
func Sessionless(verdicts map[Claim]Verdict, down func(Claim) bool) []Claim {
	var held []Claim
	for c, v := range verdicts {
		if v.Confirmed && down(c) {
			held = append(held, c)
		}
	}
	slices.SortFunc(held, func(a, b Claim) int {
		if d := a.Addr.Compare(b.Addr); d != 0 {
			return d
		}
		return strings.Compare(a.Node, b.Node)
	})
	return held
}
