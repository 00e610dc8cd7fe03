package desired

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/bgp"
	"github.com/tortie-net/tortie/internal/bgp/policy"
)

// mostRefusals bounds how many refused paths are named: a peer can announce thousands.
const mostRefusals = 20

// Refusals describes refused paths for people, except pending and usual ones.
func Refusals(refused []bgp.Objection) []error {
	var errs []error
	more := 0
	for _, r := range refused {
		switch {
		case r.Pending, r.Usual:
		case len(errs) == mostRefusals:
			more++
		default:
			source := "BlockAffinity"
			if r.Path.From.IsValid() {
				source = fmt.Sprintf("BGP peer %s", r.Path.From)
			}
			errs = append(errs, fmt.Errorf("%s: %s via %s: %s", source, r.Path.Prefix, r.Path.NextHop, r.Why))
		}
	}
	if more > 0 {
		errs = append(errs, fmt.Errorf("%d more paths are refused", more))
	}
	return errs
}

// Accept decides which paths become routes. Affinities name the owner of a block, BGP the way to it:
//
//   - A learned path is refused unless its next hop is the node that owns the block that it equals or lies in. So a
//     mistaken or hostile peer cannot take over a block with an owner, or a part of one.
//   - A block without a BGP path is reached by its owner's address: when a session drops, or before the first one is
//     up, the pods stay reachable. The route goes with the affinity or the Node.
//   - A single address may lead elsewhere than its block if the IPAMBlock confirms that the other node has borrowed it.
//     While BGP has no session with that node, the route stays.
//   - A router that an operator has made a peer is believed in pools without encapsulation, and outside of pools in
//     prefixes without nodes. It is not believed about this node's own blocks and addresses, about addresses of
//     services, if its next hop is not reachable, or about a link-local next hop on another link than its own. A node
//     of the cluster is no router, even if a BGPPeer names it: it is believed as far as a BGPFilter of the operator
//     accepts the prefix. A link-local next hop identifies no node, so it counts as a router.
//   - Whatever the pool, claim or path: nothing in a pool takes an address of a node, of the API server or of a
//     service, or a subnet that this node is in.
//
// Several paths of one prefix keep their order. A block without an affinity is accepted from any node, since the API
// may lag behind BGP. The learned paths have passed Objection. met are the objections to others, which Accept returns
// with its own: one that waits for the IPAMBlock of an address that a pod here has needs no IPAMBlock.
func (j *Judge) Accept(learned []bgp.Path, met []bgp.Objection) (accepted []bgp.Path, refused []bgp.Objection) {
	known := make(map[netip.Prefix]bool, len(learned))
	accepted = make([]bgp.Path, 0, len(learned)+len(j.Owners))
	for _, p := range learned {
		if j.owns(p.Prefix) {
			continue // our own block, whatever a peer announces
		}
		if o := j.ofPod(p); o.Why != "" {
			refused = append(refused, o)
			continue
		}
		known[p.Prefix] = true
		accepted = append(accepted, p)
	}
	for _, p := range j.known() {
		if known[p.Prefix] {
			continue
		}
		if why := j.takes(p.Prefix, p.NextHop); why != "" {
			refused = append(refused, bgp.Objection{Path: p, Why: why})
			continue
		}
		accepted = append(accepted, p)
	}
	for _, o := range met {
		if of := j.ofPod(o.Path); o.Pending && of.Why != "" {
			o = of
		}
		refused = append(refused, o)
	}
	slices.SortStableFunc(accepted, func(a, b bgp.Path) int { return a.Prefix.Compare(b.Prefix) })
	return accepted, refused
}

// ofPod refuses the address of a pod of this node.
func (s *Snapshot) ofPod(p bgp.Path) bgp.Objection {
	if !p.Prefix.IsSingleIP() || !s.hasPod(p.Prefix.Addr()) {
		return bgp.Objection{}
	}
	return bgp.Objection{Path: p, Why: "a pod on this node has the address"}
}

// known returns the paths that need no BGP: to the blocks of other nodes, and to confirmed borrowed addresses in Held.
func (j *Judge) known() []bgp.Path {
	paths := make([]bgp.Path, 0, len(j.Owners)+len(j.Held))
	for block, owner := range j.Owners {
		self, _ := j.Self.towards(block.Addr())
		if _, ok := j.poolOf(block); ok && owner.Addr.IsValid() && owner.Addr != self.Addr() {
			paths = append(paths, bgp.Path{Prefix: block, NextHop: owner.Addr})
		}
	}
	for _, c := range j.Held {
		m, ok := j.Member(c.Node)
		if !ok || !m.In(c.Addr).IsValid() {
			continue
		}
		p := bgp.Path{Prefix: netip.PrefixFrom(c.Addr, c.Addr.BitLen()), NextHop: m.In(c.Addr)}
		if !j.hasPod(c.Addr) && j.Objection(p).Why == "" {
			paths = append(paths, p)
		}
	}
	return paths
}

// Judging returns a Judge whose Objections stay valid until the next one is not deeply equal. Later changes of s do not
// reach it. It lacks the fields that change often and have no part in an Objection.
func (s *Snapshot) Judging(g Grounds) *Judge {
	s.local()
	c := *s
	c.Self.Pods, c.Self.Floating, c.Services, c.Aggregates, c.crypt = nil, nil, nil, nil, [2]crypt{}
	return c.By(g)
}

// Objection implements bgp.Judge.
func (j *Judge) Objection(p bgp.Path) bgp.Objection {
	no := func(format string, args ...any) bgp.Objection {
		return bgp.Objection{Path: p, Why: fmt.Sprintf(format, args...)}
	}
	if r := j.reserved(p); r.Why != "" {
		return r
	}
	if zone := p.NextHop.Zone(); zone != p.From.Zone() && zone != "" {
		return no("its next hop is a link-local address on %s, and the peer is not on that link", zone)
	}
	pool, ok := j.poolOf(p.Prefix)
	if !ok {
		return j.outside(p)
	}
	if why := j.takes(p.Prefix, p.NextHop); why != "" {
		return bgp.Objection{Path: p, Why: why}
	}
	hop, isNode := j.MemberAt(p.NextHop)
	_, fromNode := j.MemberAt(p.From)
	switch {
	case p.Prefix.Bits() < pool.BlockBits && (isNode || pool.encapsulates() || !j.believed(p)) && !j.ownsOdd(hop, p.Prefix):
		return no("it is larger than a block of IPPool %s (/%d)", pool.Name, pool.BlockBits)
	case !isNode && pool.encapsulates():
		return no("the next hop is no node of the cluster, so it cannot be the end of a tunnel")
	case !isNode && fromNode && !j.believed(p):
		return no("the next hop is no node of the cluster, and nodes announce themselves")
	case !isNode:
		return j.byRouter(p)
	}
	return j.ownership(p, pool, hop)
}

// ownsOdd reports whether a prefix is a block that the next hop's node owns, be it larger than its pool's present
// blocks.
func (s *Snapshot) ownsOdd(hop *Member, p netip.Prefix) bool {
	owner, ok := s.Owners[p]
	return ok && hop != nil && owner.Node == hop.Name
}

// reserved refuses prefixes that BGP must not route.
func (s *Snapshot) reserved(p bgp.Path) bgp.Objection {
	if i := slices.IndexFunc(s.ServiceRanges, func(r netip.Prefix) bool { return inside(p.Prefix, r) }); i >= 0 {
		return bgp.Objection{Path: p,
			Why: fmt.Sprintf("it lies in %s, the addresses of services, which each node serves itself", s.ServiceRanges[i]), Usual: true}
	}
	if policy.Martian(p.Prefix) {
		return bgp.Objection{Path: p, Why: "no router has a way to such addresses"}
	}
	if p.Prefix.IsSingleIP() && s.isSelf(p.Prefix.Addr()) {
		return bgp.Objection{Path: p, Why: "it is this node's own address"}
	}
	return bgp.Objection{}
}

// outside judges a path that lies in no pool.
func (j *Judge) outside(p bgp.Path) bgp.Objection {
	if source := j.Peering.Sources[p.From]; source.Peer == "" {
		return bgp.Objection{Path: p, Why: "it lies in no IPPool, and is learned from a node of the mesh", Usual: true}
	}
	if !j.believed(p) {
		return bgp.Objection{Path: p, Why: "it lies in no IPPool, and is learned from a node: a BGPFilter of the BGPPeer can accept it"}
	}
	for _, at := range j.local().subnets {
		if inside(p.Prefix, at.prefix) {
			return bgp.Objection{Path: p, Why: fmt.Sprintf("this node is in the subnet %s itself, by %s", at.prefix, at.link)}
		}
	}
	if i := slices.IndexFunc(j.Blocks, func(b netip.Prefix) bool { return inside(p.Prefix, b) }); i >= 0 {
		return bgp.Objection{Path: p, Why: fmt.Sprintf("it lies in this node's own block %s", j.Blocks[i])}
	}
	return j.reached(p)
}

// byRouter judges a path inside a pool through a router: a peer of a BGPPeer, or learned from one. It does not override
// this node's own blocks.
func (j *Judge) byRouter(p bgp.Path) bgp.Objection {
	block, owner, owned := j.blockOf(p.Prefix)
	switch {
	case !owned || owner.Node != j.Self.Name:
		return j.reached(p)
	case !p.Prefix.IsSingleIP() || block == p.Prefix:
		return bgp.Objection{Path: p, Why: fmt.Sprintf("it lies in this node's own block %s", block)}
	}
	if r := j.borrowing(p, Claim{p.Prefix.Addr(), j.Self.Name, true}); r.Why != "" {
		return r
	}
	return j.reached(p)
}

// leadsTo reports whether a route to a prefix can have a next hop: the same family, or link-local IPv6 for IPv4 (RFC
// 8950).
func leadsTo(hop netip.Addr, p netip.Prefix) bool {
	return hop.Is4() == p.Addr().Is4() || hop.Zone() != ""
}

// reached refuses a path if its next hop cannot be resolved.
func (j *Judge) reached(p bgp.Path) bgp.Objection {
	switch {
	case !leadsTo(p.NextHop, p.Prefix):
		return bgp.Objection{Path: p, Why: "its next hop is of the other address family"}
	case j.isSelf(p.NextHop):
		return bgp.Objection{Path: p, Why: "its next hop is this node itself"}
	case len(j.resolve(p.NextHop)) == 0:
		return bgp.Objection{Path: p,
			Why: "its next hop is in no subnet of this node, and no route but a default one leads there: a BGPPeer's reachableBy can name a gateway"}
	}
	return bgp.Objection{}
}

// inside reports whether a prefix equals another, or lies in it.
func inside(p, in netip.Prefix) bool { return in.Bits() <= p.Bits() && in.Contains(p.Addr()) }

// ownership compares the next hop's node with the owner of the block.
func (j *Judge) ownership(p bgp.Path, pool *Pool, hop *Member) bgp.Objection {
	block, owner, owned := j.blockOf(p.Prefix)
	single := p.Prefix.IsSingleIP() && (owned || p.Prefix.Bits() != pool.BlockBits)
	switch {
	case owned && owner.Node == hop.Name, !owned && p.Prefix.Bits() == pool.BlockBits:
		return bgp.Objection{Path: p}
	case single:
		return j.borrowing(p, Claim{Addr: p.Prefix.Addr(), Node: hop.Name})
	case !owned:
		return bgp.Objection{Path: p, Why: fmt.Sprintf("it is no block of IPPool %s (/%d)", pool.Name, pool.BlockBits)}
	case block == p.Prefix:
		return bgp.Objection{Path: p, Why: fmt.Sprintf("the block belongs to node %s, not to %s", owner, hop.Name)}
	}
	return bgp.Objection{Path: p, Why: fmt.Sprintf("it is part of block %s, which belongs to node %s, not to %s", block, owner, hop.Name)}
}

// borrowing judges a single address by its IPAMBlock.
func (j *Judge) borrowing(p bgp.Path, c Claim) bgp.Objection {
	v, ok := j.Borrowed[c]
	switch {
	case !ok:
		return bgp.Objection{Path: p, Why: "its block's record is being read", Pending: true}
	case v.Confirmed:
		return bgp.Objection{Path: p}
	}
	return bgp.Objection{Path: p, Why: v.Why, Pending: v.Pending}
}

// hasPod reports whether a pod of this node has the address, as its own or as a floating one.
func (s *Snapshot) hasPod(a netip.Addr) bool { return s.hasOwn(a) || s.floats(a) }

// hasOwn reports whether the kernel has a route to a pod with the address.
func (s *Snapshot) hasOwn(a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(s.Self.Pods, a, netip.Addr.Compare)
	return found
}

// String returns the node and its address.
func (o Owner) String() string {
	if !o.Addr.IsValid() {
		return o.Node
	}
	return fmt.Sprintf("%s at %s", o.Node, o.Addr)
}

// Objections counts the refusals that are not usual.
func Objections(refused []bgp.Objection) int {
	n := 0
	for _, r := range refused {
		if !r.Usual {
			n++
		}
	}
	return n
}
