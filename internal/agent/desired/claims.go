package desired

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/bgp"
)

// Claim is a single address that a node announces although another node owns its block: a pod there has a borrowed
// address.
type Claim struct {
	Addr netip.Addr
	Node string
	// Elsewhere: a router announces the address, so its node is unknown; it is not Node.
	Elsewhere bool
}

// Verdict is whether the IPAMBlock confirms a claim. The zero value means that it was not read yet.
type Verdict struct {
	Confirmed bool
	Why       string // why it is not confirmed, or not yet
	Pending   bool   // the IPAMBlock is unread, or could not be read
}

// Claimed is the block that a claimed address lies in, and the peer that announces it.
type Claimed struct {
	Block netip.Prefix
	// By is that peer, with the next hop's node if the peer is a reflector or a router; the node alone if the claim was
	// not learned from BGP.
	By string
}

// Claims holds the claims that paths make.
type Claims map[Claim]Claimed

// Add adds the claim that a path makes, if any. Of several peers with the same claim the next hop itself has
// precedence.
func (s *Snapshot) Add(claims Claims, p bgp.Path) {
	c, block, ok := s.claimOf(p.Prefix, p.NextHop)
	if !ok {
		return
	}
	if _, known := claims[c]; !known || p.From == p.NextHop {
		claims[c] = Claimed{block, s.claimant(c, p.From)}
	}
}

// claimant returns Claimed.By for a path from a peer.
func (s *Snapshot) claimant(c Claim, from netip.Addr) string {
	m, isNode := s.MemberAt(from)
	switch {
	case !from.IsValid():
		return c.Node
	case isNode && m.Reflector:
		return m.Name + " " + c.Node
	case isNode:
		return m.Name
	}
	return from.String() + " " + c.Node
}

// claimOf returns the claim that a path to p by hop makes, if any.
func (s *Snapshot) claimOf(p netip.Prefix, hop netip.Addr) (c Claim, block netip.Prefix, ok bool) {
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

// Sessionless returns the confirmed claims for which down returns true: the node has no session.
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
