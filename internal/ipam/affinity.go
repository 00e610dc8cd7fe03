package ipam

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
)

// newAffinity returns a pending affinity of an owner for a block: of a node, or of names.LoadBalancer.
func newAffinity(owner string, cidr netip.Prefix) *api.BlockAffinity {
	affinityType, name := names.SplitOwner(owner)
	labels := names.AffinityLabels(name, affinityType, cidr)
	m := api.Meta{Name: names.Affinity(name, cidr), Labels: labels}
	names.SetMetadata(&m, labels, nil)
	return &api.BlockAffinity{
		Meta: m,
		Spec: api.BlockAffinitySpec{
			State: api.AffinityPending,
			Node:  name,
			Type:  affinityType,
			CIDR:  cidr.String(),
		},
	}
}

// withState returns the affinity to write next, with the labels that Calico rewrites on each write too.
func withState(a *api.BlockAffinity, cidr netip.Prefix, state api.AffinityState) *api.BlockAffinity {
	next := newAffinity(claimant(a), cidr)
	next.UID, next.ResourceVersion = a.UID, a.ResourceVersion
	next.Spec.State = state
	return next
}

// claimant returns the owner of an affinity in newAffinity's form.
func claimant(a *api.BlockAffinity) string {
	if a.Spec.Type == api.AffinityVirtual {
		return api.AffinityVirtual + ":" + a.Spec.Node
	}
	return a.Spec.Node
}

// Labelled returns an affinity with the labels by which Calico, since 3.31, lists them, and whether they were missing:
// Calico before 3.31 wrote none.
func Labelled(a *api.BlockAffinity) (next *api.BlockAffinity, missing bool) {
	cidr, err := netip.ParsePrefix(a.Spec.CIDR)
	if err != nil || a.MarkedDeleted() {
		return a, false
	}
	next = withState(a, cidr, a.Spec.State)
	if maps.Equal(a.Labels, next.Labels) {
		return a, false
	}
	next.Name = a.Name // whatever it is: others must find this object
	return next, true
}

// claimedBlock returns the range that an affinity of a State claims.
func claimedBlock(a *api.BlockAffinity) netip.Prefix {
	cidr, err := netip.ParsePrefix(a.Spec.CIDR)
	if err != nil {
		panic("storeAffinity accepts no affinity without a CIDR: " + err.Error())
	}
	return cidr
}

func affinityOf(st *State, cidr netip.Prefix) *api.BlockAffinity {
	text := cidr.String()
	for _, a := range st.Affinities {
		if a.Spec.CIDR == text {
			return a
		}
	}
	return nil
}

// ownAffinities splits the host's affinities in the pools. own are confirmed or can be completed, in the order to try
// their blocks; stale ones are to a block of another owner.
func ownAffinities(st *State, host string, pools []Pool) (own, stale []*api.BlockAffinity) {
	for _, a := range st.Affinities {
		cidr := claimedBlock(a)
		if !inPools(cidr, pools) {
			continue
		}
		if b := st.Blocks[cidr]; b != nil && !b.OwnedBy(host) {
			stale = append(stale, a)
			continue
		}
		own = append(own, a)
	}
	slices.SortStableFunc(own, func(a, b *api.BlockAffinity) int {
		return cmp.Or(
			st.room(b)-st.room(a),
			// The youngest block is the one that is being filled.
			cmp.Compare(b.CreationTimestamp, a.CreationTimestamp),
			cmp.Compare(a.Name, b.Name),
		)
	})
	return own, stale
}

// room is the estimated number of free addresses in an affinity's block; 1 if there is no estimate.
func (st *State) room(a *api.BlockAffinity) int {
	if n, ok := st.Room[claimedBlock(a)]; ok {
		return max(n, 0)
	}
	return 1
}

// unread returns a need for the host's unread blocks that may have a free address: first for the most promising one,
// then for all but known full ones; nil if there are none. Blocks that are estimated to be full are read together with
// the names of all blocks in the cluster.
func unread(st *State, own []*api.BlockAffinity, full []netip.Prefix) *need {
	var missing []netip.Prefix
	hope, first := false, true
	for _, a := range own {
		cidr := claimedBlock(a)
		if slices.Contains(full, cidr) {
			continue
		}
		if _, read := st.Blocks[cidr]; read || st.Damaged[cidr] != nil {
			first = false
			continue
		}
		missing = append(missing, cidr)
		hope = hope || st.room(a) > 0
	}
	switch {
	case len(missing) == 0:
		return nil
	case !hope:
		return &need{blocks: missing, names: !st.HaveTaken}
	case first:
		return &need{blocks: missing[:1], likely: missing[:1]}
	}
	return &need{blocks: missing}
}

// reclaimAge is how long a block must have had its owner before another node may take it: the owner may be about to use
// it. The number is Calico's.
const reclaimAge = 60 * time.Second

// reclaimable returns an idle block in the pools that has another owner or none; nil if there is none.
func reclaimable(st *State, req *Request, pools []Pool) *Block {
	for _, b := range st.Cluster {
		owner, isHost := b.host()
		if owner == req.Host || !isHost && !b.Orphan() || st.Needed[b.cidr] {
			continue
		}
		if !b.Empty() || !b.claimedBefore(st.Now.Add(-reclaimAge)) {
			continue
		}
		if _, ok := coveredBy(b.cidr, st.Reserved); ok {
			continue
		}
		// A smaller block than the pool's would leave no room for one.
		if slices.ContainsFunc(pools, func(p Pool) bool { return p.Has(b.cidr) && b.cidr.Bits() <= p.BlockBits }) {
			return b
		}
	}
	return nil
}
