package audit

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// Candidate is a finding that the controllers repair when it is older than its grace period: something that is kept
// without a use, or that a crash left half-way. Fix determines which field is set: Free the Holder, RemoveHandle the
// Handle, RemoveBlock the Block, RemoveClaim or Claim (which confirms it) the Claim.
type Candidate struct {
	Kind   Kind // empty for a holder: its addresses have a kind each
	Fix    Fix
	Why    string
	Holder *Holder
	Handle *inventory.Handle
	Block  *inventory.Block
	Claim  *api.BlockAffinity
}

// Object names the candidate for people: as KIND/NAME, or a Holder by its addresses.
func (c *Candidate) Object() string {
	switch {
	case c.Handle != nil:
		return "IPAMHandle/" + c.Handle.Name
	case c.Block != nil:
		return blockName(c.Block)
	case c.Claim != nil:
		return "BlockAffinity/" + c.Claim.Name
	}
	texts := make([]string, len(c.Holder.Addresses))
	for i, a := range c.Holder.Addresses {
		texts[i] = a.String()
	}
	return strings.Join(texts, ", ")
}

// Candidates returns the candidates in a View, in the order of their repair. Some may be transient: package gc waits
// until one is older than its grace period.
func Candidates(v *inventory.View, index *inventory.Index) []Candidate {
	return newCluster(v, index).candidates()
}

func (c *cluster) candidates() []Candidate {
	unused := slices.DeleteFunc(Holders(c.View, c.index), func(h *Holder) bool { return !h.Unused })
	all := make([]Candidate, 0, len(unused))
	for _, h := range unused {
		all = append(all, Candidate{Fix: Free, Why: h.Why, Holder: h})
	}
	all = append(all, c.emptyHandles()...)
	all = append(all, c.surplusBlocks()...)
	for i := range c.Affinities {
		if l := c.judgeClaim(&c.Affinities[i]); l.Fix != ByHand {
			all = append(all, l)
		}
	}
	return all
}

// emptyHandles finds the handles that hold nothing, as far as blocks can be read.
func (c *cluster) emptyHandles() []Candidate {
	var all []Candidate
	holding := Holding(c.Blocks)
	for i := range c.Handles {
		h := &c.Handles[i]
		if holding[h.Name] || !h.Named && (OfTunnel(c.index, h) || MayHold(h, c.damaged)) {
			continue
		}
		l := Candidate{Kind: HandleEmpty, Fix: RemoveHandle, Why: "it holds nothing", Handle: h}
		switch {
		case !h.Named && h.Name != names.Handle(h.ID):
			l.Kind, l.Why = HandleName, misnamed(h)
		case len(h.Blocks) > 0:
			l.Why = fmt.Sprintf("it says that it holds %s, and holds nothing", counts(h.Blocks))
		}
		all = append(all, l)
	}
	return all
}

// OfTunnel reports whether a handle belongs to a tunnel of an existing node. The agent may use it again at any time, so
// it never counts as unused. A handle that only has the name, with another node's annotation or capitals in its ID,
// keeps the agent from creating its own. The ID is unknown if only the metadata was read.
func OfTunnel(index *inventory.Index, h *inventory.Handle) bool {
	node, ok := names.TunnelNode(h.Name)
	return ok && index.Node(node) != nil && (h.Node == "" || h.Node == node) && (h.Named || h.ID == h.Name)
}

// MayHold reports whether a handle may hold something in a damaged block: it names the block, as an assignment writes
// the handle first. A damaged block without a valid name may be any.
func MayHold(h *inventory.Handle, damaged []netip.Prefix) bool {
	return slices.ContainsFunc(damaged, func(cidr netip.Prefix) bool {
		_, names := h.Blocks[cidr]
		return names || len(h.Odd) > 0 || len(h.Blocks) > 0 && !cidr.IsValid()
	})
}

// family is one of the two address families of a node.
type family struct {
	node string
	v6   bool
}

// surplusBlocks finds the idle blocks that are not needed, in the order of their ranges. A node keeps one idle block of
// a family, for the next pod, unless it has another block with allocations. It must be one that the node can use: with
// a confirmed affinity, and of a pool that selects the node.
func (c *cluster) surplusBlocks() []Candidate {
	served := map[family]bool{}
	var idle []*inventory.Block
	for _, b := range sortedBlocks(c.View) {
		if c.idle(b) {
			idle = append(idle, b)
		} else if node, ok := b.Owner(); ok && b.Damage == nil {
			served[family{node, b.CIDR.Addr().Is6()}] = true
		}
	}
	var all []Candidate
	for _, b := range idle {
		node, hosted := b.Owner()
		of := family{node, b.CIDR.Addr().Is6()}
		l := Candidate{Kind: BlockSurplus, Fix: RemoveBlock, Block: b,
			Why: fmt.Sprintf("no address of %s is in use, and its node %s has another or cannot use it", b.CIDR, node)}
		switch {
		case b.Affinity == "":
			l.Kind, l.Why = BlockOfNobody, fmt.Sprintf("%s has no owner, and no address in it is in use", b.CIDR)
		case b.Affinity == names.LoadBalancer:
			l.Why = fmt.Sprintf("no address of %s is in use", b.CIDR)
		case !hosted:
			continue
		case !c.nodeExists(node):
			l.Kind, l.Why = BlockOfDeadNode, fmt.Sprintf("its node %s does not exist, and no address of %s is in use", node, b.CIDR)
		case !served[of] && c.stands(b) && c.selected(b.CIDR, node):
			served[of] = true
			continue
		}
		all = append(all, l)
	}
	return all
}

// idle reports whether no address is in use or cools down. Cooled addresses become free with the block's next write.
func (c *cluster) idle(b *inventory.Block) bool {
	if b.Damage != nil || b.DeletionTimestamp != "" {
		return false
	}
	cooldown := time.Duration(c.Config.IPCooldownSeconds) * time.Second
	return !slices.ContainsFunc(b.Allocations, func(a inventory.Allocation) bool {
		if a.Cooling() {
			return c.Taken.Sub(a.Released) < cooldown
		}
		return a.Class != inventory.Windows
	})
}

// stands reports whether the owner of a block has a confirmed affinity to it.
func (c *cluster) stands(b *inventory.Block) bool {
	return slices.ContainsFunc(c.claims[b.CIDR], func(a *api.BlockAffinity) bool { return ownerOf(a) == b.Affinity && a.Confirmed() })
}

// selected reports whether the pool of a block selects a node. A block without a pool is selected for none; while a
// pool can't be parsed, any block may lie in it.
func (c *cluster) selected(cidr netip.Prefix, node string) bool {
	if len(c.pools) < len(c.Pools) {
		return true
	}
	labels := c.index.Node(node).Labels
	for _, p := range c.pools {
		if p.Has(cidr) && p.Nodes.Matches(labels) {
			return true
		}
	}
	return false
}

// judgeClaim returns a candidate if an affinity, its node and its block contradict each other, else one without Kind.
// An affinity goes with its block if that is about to be deleted.
func (c *cluster) judgeClaim(a *api.BlockAffinity) Candidate {
	l := func(kind Kind, fix Fix, format string, args ...any) Candidate {
		return Candidate{Kind: kind, Fix: fix, Why: fmt.Sprintf(format, args...), Claim: a}
	}
	cidr, err := netip.ParsePrefix(a.Spec.CIDR)
	switch {
	case err != nil || cidr != cidr.Masked():
		return l(ClaimDamaged, RemoveClaim, "spec.cidr %q is no range of addresses", a.Spec.CIDR)
	case a.Spec.Node == "":
		return l(ClaimDamaged, RemoveClaim, "spec.node is empty: no node claims %s", cidr)
	case slices.Contains(c.damaged, cidr):
		return Candidate{} // the damaged block has a finding of its own
	}
	b, state := c.blockAt[cidr], cmp.Or(a.Spec.State, api.AffinityConfirmed)
	owned := b != nil && b.Affinity == ownerOf(a)
	switch gone := hosted(a) && !c.nodeExists(a.Spec.Node); {
	case gone && owned:
		return l(ClaimOfDeadNode, ByHand, "its node %s does not exist", a.Spec.Node)
	case gone:
		return l(ClaimOfDeadNode, RemoveClaim, "its node %s does not exist", a.Spec.Node)
	case b != nil && !owned && a.Confirmed():
		return l(ClaimForeign, RemoveClaim, "it is confirmed, and %s belongs to %s", cidr, cmp.Or(b.Affinity, "no node"))
	case b != nil && !owned: // the node's next assignment takes care, too
		return l(ClaimPending, RemoveClaim, "it is %s, and %s belongs to %s", state, cidr, cmp.Or(b.Affinity, "no node"))
	case a.Confirmed() && b == nil:
		return l(ClaimNoBlock, RemoveClaim,
			"it is confirmed, and there is no block %s: %s announces addresses that are not assigned", cidr, a.Spec.Node)
	case a.Confirmed():
		return Candidate{}
	case b == nil:
		return l(ClaimPending, RemoveClaim, "it is %s, and there is no block %s: who wrote it was interrupted, or is at work", state, cidr)
	case c.idle(b):
		return l(ClaimPending, ByHand, "it is %s, and no address of block %s is in use: its writer was interrupted, or is at work", state, cidr)
	}
	return l(ClaimPending, Claim, "it is %s, though the block %s is %s's: who wrote it was interrupted, or is at work",
		state, cidr, a.Spec.Node)
}
