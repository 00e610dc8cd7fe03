package audit

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

func claimFinding(a *api.BlockAffinity, k Kind, fix Fix, format string, args ...any) Finding {
	return Finding{Kind: k, Object: "BlockAffinity/" + a.Name, Node: a.Spec.Node, Detail: fmt.Sprintf(format, args...), Fix: fix, Revision: a.ResourceVersion}
}

// readClaims indexes the affinities that can be read, and reports the others.
func (c *cluster) readClaims() {
	for i := range c.Affinities {
		a := &c.Affinities[i]
		cidr, err := netip.ParsePrefix(a.Spec.CIDR)
		switch {
		case err != nil || cidr != cidr.Masked():
			c.add(claimFinding(a, ClaimDamaged, RemoveClaim, "spec.cidr %q is no range of addresses", a.Spec.CIDR))
		case a.Spec.Node == "":
			c.add(claimFinding(a, ClaimDamaged, RemoveClaim, "spec.node is empty: nobody claims %s", cidr))
		default:
			c.claims[cidr] = append(c.claims[cidr], a)
		}
	}
}

// virtual reports whether a claim is of no node, but of those who give addresses to Services.
func virtual(a *api.BlockAffinity) bool { return a.Spec.Type == api.AffinityVirtual }

// ownerOf is what a block of the claim says.
func ownerOf(a *api.BlockAffinity) string {
	if virtual(a) {
		return api.AffinityVirtual + ":" + a.Spec.Node
	}
	return names.HostAffinity(a.Spec.Node)
}

// claimed reports whether the owner of a block has a claim of it, in whatever state: its next assignment confirms it.
func (c *cluster) claimed(b *inventory.Block) bool {
	return slices.ContainsFunc(c.claims[b.CIDR], func(a *api.BlockAffinity) bool { return ownerOf(a) == b.Affinity })
}

// checkClaims says what is wrong with affinities, each for itself and with its block.
func (c *cluster) checkClaims() {
	for _, cidr := range slices.SortedFunc(maps.Keys(c.claims), netip.Prefix.Compare) {
		var confirmed []*api.BlockAffinity
		for _, a := range c.claims[cidr] {
			c.checkClaim(a, cidr)
			if a.Confirmed() {
				confirmed = append(confirmed, a)
			}
		}
		for i := 1; i < len(confirmed); i++ {
			f := claimFinding(confirmed[i], ClaimTwice, ByHand, "%s and %s both have a confirmed claim of %s: both announce it",
				confirmed[0].Spec.Node, confirmed[i].Spec.Node, cidr)
			c.add(f.advised("the claim of whom the block does not name is to go"))
		}
	}
}

func (c *cluster) checkClaim(a *api.BlockAffinity, cidr netip.Prefix) {
	if _, missing := ipam.Labelled(a); missing {
		c.add(claimFinding(a, ClaimUnlabelled, Label, "it lacks the labels by which Calico since 3.31 finds it: %s may claim a second block instead", a.Spec.Node))
	}
	if want := names.Affinity(a.Spec.Node, cidr); !virtual(a) && a.Name != want {
		c.add(claimFinding(a, ClaimName, RemoveClaim, "the claim of %s by %s should have the name %s: nobody finds it by this one", cidr, a.Spec.Node, want))
	}
	b, owned := c.blockAt[cidr], false
	if b != nil {
		owned = b.Affinity == ownerOf(a)
	}
	dead := !virtual(a) && !c.nodeExists(a.Spec.Node)
	switch {
	case slices.Contains(c.damaged, cidr):
		// The block has a finding of its own, and nobody can tell whose it is.
	case dead && owned:
		c.add(claimFinding(a, ClaimOfDeadNode, ByHand, "its node %s does not exist", a.Spec.Node).advised("it goes with the block"))
	case dead:
		c.add(claimFinding(a, ClaimOfDeadNode, RemoveClaim, "its node %s does not exist", a.Spec.Node))
	case b != nil && !owned:
		c.add(foreign(a, b))
	case !a.Confirmed():
		c.add(unfinished(a, b))
	case b == nil:
		c.add(claimFinding(a, ClaimNoBlock, RemoveClaim, "it is confirmed, and there is no block %s: %s announces addresses that nobody has", cidr, a.Spec.Node))
	}
}

// foreign is of a claim whose block is another's. Only a confirmed one is acted on: of one that is not, the node's next assignment
// takes care.
func foreign(a *api.BlockAffinity, b *inventory.Block) Finding {
	kind, owner := ClaimForeign, b.Affinity
	if owner == "" {
		owner = "nobody"
	}
	if !a.Confirmed() {
		kind = ClaimPending
	}
	return claimFinding(a, kind, RemoveClaim, "it is %s, and %s belongs to %s", stateOf(a), b.CIDR, owner)
}

// unfinished is of a claim that was begun, or given up, by a process that did not come to the end. b is nil if there is no block.
func unfinished(a *api.BlockAffinity, b *inventory.Block) Finding {
	if b == nil {
		return claimFinding(a, ClaimPending, RemoveClaim, "it is %s, and there is no block %s: who wrote it was interrupted, or is at work", stateOf(a), a.Spec.CIDR)
	}
	return claimFinding(a, ClaimPending, Claim, "it is %s, though the block %s is %s's: who wrote it was interrupted, or is at work", stateOf(a), a.Spec.CIDR, a.Spec.Node)
}

func stateOf(a *api.BlockAffinity) api.AffinityState {
	if a.Spec.State == "" {
		return api.AffinityConfirmed
	}
	return a.Spec.State
}
