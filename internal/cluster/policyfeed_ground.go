package cluster

import (
	"net/netip"
	"slices"
)

// Ground tells whose the addresses of pools are. It does not change.
type Ground interface {
	// Place reports whether an address lies in a pool of pods, and returns the node that has its block; empty: no node is
	// known to have it.
	Place(a netip.Addr) (pooled bool, node string)
}

// word is who says that an address is a pod's.
type word uint8

const (
	// byKubelet: the status says it, and the annotation does not say another address of the family.
	byKubelet word = iota
	// byKubeletAgainst: the status says it, and the annotation says another one, or that there is none any more: the pod
	// may have another network now, and the address another pod.
	byKubeletAgainst
	// byNote: the annotation says it, and the status no address of the family.
	byNote
	// byNoteAgainst: the annotation says it, and the status another address.
	byNoteAgainst
)

// wordOn returns who says that an address is the pod's. It is reported in the status or noted in the annotation.
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

// rank is how far an address counts as a pod's. Of several pods see claims.left.
type rank uint8

const (
	// nobodys: it does not.
	nobodys rank = iota
	// possible: it may be the pod's, and counts where that denies.
	possible
	// announced: the plugin, or a user, says it of an address of the pod's node, and nobody contradicts.
	announced
	// reported: the kubelet says it, of an address that its node has borrowed, or that another program manages.
	reported
	// athome: the kubelet says it, of an address of the pod's node.
	athome
)

// rankOf judges what is said of a pod's address. A user who writes an annotation must not give his pod's rights, or
// what is denied to it, to an address of the API server, of a node or of the Internet, which are in no pool; of one in
// a pool he gets no rights unless it is one of his pod's node. A Pod without a node may stay so for ever, so that its
// annotation counts for nothing. ground is nil while it is not known: what an agent that starts programs then, as the
// API server is slow, must not deny what the one before it allowed.
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
