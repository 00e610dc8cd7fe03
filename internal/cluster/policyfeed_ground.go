package cluster

import (
	"net/netip"
	"slices"
)

// Ground knows the owners of pool addresses. It does not change.
type Ground interface {
	// Place reports whether an address lies in a pool of pods, and returns the node that owns its block; empty: no known
	// node.
	Place(a netip.Addr) (pooled bool, node string)
}

// word is the source of a pod's address, and whether the other source contradicts.
type word uint8

const (
	// byKubelet: the status has the address, and the annotation has no other address of the family.
	byKubelet word = iota
	// byKubeletAgainst: the status has the address, and the annotation has another one, or was emptied: the pod may have
	// another network now, and another pod the address.
	byKubeletAgainst
	// byNote: the annotation has the address, and the status has no address of the family.
	byNote
	// byNoteAgainst: the annotation has the address, and the status has another one of the family.
	byNoteAgainst
)

// wordOn returns the source of an address, which is in the status (reported) or the annotation (noted).
func wordOn(a netip.Addr, reported, noted []netip.Addr, emptied bool) word {
	ofFamily := func(other netip.Addr) bool { return other.BitLen() == a.BitLen() }
	switch {
	case slices.Contains(reported, a) && (slices.Contains(noted, a) || !emptied && !slices.ContainsFunc(noted, ofFamily)):
		return byKubelet
	case slices.Contains(reported, a):
		return byKubeletAgainst
	case slices.ContainsFunc(reported, ofFamily):
		return byNoteAgainst
	}
	return byNote
}

// rank is how far an address counts as a pod's. For several pods with the address see claims.left.
type rank uint8

const (
	// nobodys: the address does not count.
	nobodys rank = iota
	// possible: the address may be the pod's, and counts for denials.
	possible
	// announced: the plugin, or a user, has annotated an address of the pod's node, without contradiction.
	announced
	// reported: the kubelet reports an address that its node has borrowed, or that another program manages.
	reported
	// athome: the kubelet reports an address of the pod's node.
	athome
)

// rankOf ranks a pod's address. A user may write annotations. This must not extend the rights of his pod, or the
// denials to it, to addresses outside of pools: the API server's, a node's or the Internet's. An address in a pool gets
// no rights unless the pod's node owns it. A Pod may stay without a node for ever, so its annotation does not count.
// ground is nil while it is not known: an agent that starts beside a slow API server must not deny what the agent
// before it allowed.
func rankOf(ground Ground, node string, a netip.Addr, by word) rank {
	pooled, owner := place(ground, a)
	switch {
	case by == byKubeletAgainst:
		return possible
	case by == byKubelet && owner != "" && owner == node:
		return athome
	case by == byKubelet:
		return reported
	case node == "" || ground != nil && !pooled:
		return nobodys
	case by == byNote && (owner == node || ground == nil):
		return announced
	}
	return possible
}
