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
	return Finding{Kind: k, Object: "BlockAffinity/" + a.Name, Node: a.Spec.Node, Detail: fmt.Sprintf(format, args...), Fix: fix,
		Revision: a.ResourceVersion}
}

// claimed reports whether the owner of a block has an affinity to it, in whatever state: its next assignment confirms
// it.
func (c *cluster) claimed(b *inventory.Block) bool {
	return slices.ContainsFunc(c.claims[b.CIDR], func(a *api.BlockAffinity) bool { return ownerOf(a) == b.Affinity })
}

// checkClaims reports what is wrong with affinities.
func (c *cluster) checkClaims() {
	for i := range c.Affinities {
		a := &c.Affinities[i]
		if l := c.judgeClaim(a); l.Kind != "" {
			f := claimFinding(a, l.Kind, l.Fix, "%s", l.Why)
			if l.Fix == ByHand {
				f.Advice = "it goes with the block"
			}
			c.add(f)
		}
	}
	for _, cidr := range slices.SortedFunc(maps.Keys(c.claims), netip.Prefix.Compare) {
		var confirmed []*api.BlockAffinity
		for _, a := range c.claims[cidr] {
			c.checkClaimObject(a, cidr)
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

// checkClaimObject reports labels and names by which an affinity is not found.
func (c *cluster) checkClaimObject(a *api.BlockAffinity, cidr netip.Prefix) {
	if _, missing := ipam.Labelled(a); missing {
		c.add(claimFinding(a, ClaimUnlabelled, Label,
			"it lacks the labels by which Calico since 3.31 finds it: %s may claim a second block instead", a.Spec.Node))
	}
	if want := names.Affinity(a.Spec.Node, cidr); hosted(a) && a.Name != want {
		f := claimFinding(a, ClaimName, ByHand, "the claim of %s by %s should have the name %s: it is not found by this one",
			cidr, a.Spec.Node, want)
		c.add(f.advised("delete it: ipam check -fix writes the claim that is then missing"))
	}
}
