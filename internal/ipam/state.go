package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
)

// State holds the objects read from the datastore: all that a plan depends on.
type State struct {
	Now      time.Time
	Config   api.IPAMConfigSpec
	Reserved []netip.Prefix
	Pools    []Pool
	// NodeLabels are the labels of the request's host.
	NodeLabels map[string]string
	// HaveLabels: NodeLabels are known.
	HaveLabels bool
	// Affinities are the host's affinities.
	Affinities []*api.BlockAffinity
	// Room is the estimated number of free addresses in blocks of the host, where there is an estimate.
	Room map[netip.Prefix]int
	// Blocks are the blocks read one by one; nil means that there is none of that CIDR.
	Blocks map[netip.Prefix]*Block
	// Taken has the CIDRs of all blocks of the cluster, perhaps stale.
	Taken []netip.Prefix
	// HaveTaken: Taken was listed.
	HaveTaken bool
	// Cluster has all blocks of the cluster, perhaps stale.
	Cluster []*Block
	// HaveCluster: Cluster was listed; Taken is complete then too.
	HaveCluster bool
	// Damaged has the errors of blocks that contradict themselves. Nothing is assigned from them.
	Damaged map[netip.Prefix]error
	// Flaws has the errors of other objects, which are ignored.
	Flaws []error
	// refused has the reasons why the pools of Flaws cannot be used, by name and by CIDR.
	refused map[string]string
	// Needed are blocks that could not be taken from their owners.
	Needed map[netip.Prefix]bool
	// Handle is the request's handle, if it exists and was read.
	Handle *api.IPAMHandle
	// HandleNew: the handle was just created, and no address can have been assigned to it yet.
	HandleNew bool
}

// newState returns a State in which nothing was read.
func newState(now time.Time) *State {
	return &State{
		Now: now, Room: map[netip.Prefix]int{}, Blocks: map[netip.Prefix]*Block{},
		Damaged: map[netip.Prefix]error{}, Needed: map[netip.Prefix]bool{},
	}
}

// need lists the input that a plan lacks. It asks for as little as may suffice.
type need struct {
	blocks  []netip.Prefix // to be read one by one
	labels  bool           // the node's
	names   bool           // of the cluster's blocks
	cluster bool           // the cluster's blocks themselves
	reclaim *Block         // to be taken from its owner

	// likely are the blocks that the addresses will come from if the estimates are right; unlikely: for one of the
	// families there is no estimate.
	likely   []netip.Prefix
	unlikely bool
}

func (n *need) Error() string { return fmt.Sprintf("more must be read: %+v", *n) }

func (n *need) any() bool {
	return len(n.blocks) > 0 || n.labels || n.names || n.cluster || n.reclaim != nil
}

// add adds what another family needs.
func (n *need) add(m *need) {
	n.blocks = append(n.blocks, m.blocks...)
	n.likely = append(n.likely, m.likely...)
	n.labels, n.names, n.cluster = n.labels || m.labels, n.names || m.names, n.cluster || m.cluster
	n.unlikely = n.unlikely || len(m.likely) == 0
	if n.reclaim == nil {
		n.reclaim = m.reclaim
	}
}

// guess adds the block that the next family's address will come from.
func (n *need) guess(block netip.Prefix) { n.likely = append(n.likely, block) }

// handle returns the handle that the addresses will need, if their blocks can be predicted.
func (n *need) handle(id, host string) (*api.IPAMHandle, bool) {
	if n.unlikely {
		return nil, false
	}
	h := hostHandle(id, host)
	for _, cidr := range n.likely {
		h.Spec.Block[cidr.String()]++
	}
	return h, true
}

// handleReadable returns a need for the blocks that the handle names, or an error if one of them is damaged: the
// handle's addresses there are unknown.
func (st *State) handleReadable() error {
	if st.HandleNew {
		return nil
	}
	var n need
	for _, cidr := range handleBlocks(st.Handle) {
		if err := st.Damaged[cidr]; err != nil {
			return err
		}
		if _, read := st.Blocks[cidr]; !read {
			n.blocks = append(n.blocks, cidr)
		}
	}
	if n.any() {
		n.unlikely = true
		return &n
	}
	return nil
}

// store adds a block that was read; nil for one that does not exist.
func (st *State) store(cidr netip.Prefix, b *Block, err error) {
	if err != nil {
		st.Damaged[cidr] = err
		return
	}
	if b != nil {
		b.FreeCooled(cooldown(st.Config, st.Now))
	}
	st.Blocks[cidr] = b
	delete(st.Damaged, cidr)
}

// storeCluster adds a list of all blocks. Of a damaged one only the range is known.
func (st *State) storeCluster(items []api.IPAMBlock) {
	st.Cluster, st.Taken = nil, nil
	st.HaveCluster, st.HaveTaken = true, true
	for i := range items {
		b, err := ParseBlock(&items[i])
		if err == nil {
			b.FreeCooled(cooldown(st.Config, st.Now))
			st.Cluster = append(st.Cluster, b)
			st.Taken = append(st.Taken, b.cidr)
			continue
		}
		if cidr, ok := names.ParseBlock(items[i].Name); ok {
			st.Taken = append(st.Taken, cidr)
			st.Damaged[cidr] = err
			continue
		}
		st.Flaws = append(st.Flaws, err)
	}
	slices.SortFunc(st.Cluster, func(a, b *Block) int { return a.cidr.Compare(b.cidr) })
}

// storeNames adds a list of all blocks' names. Objects with other names are ignored: blocks are found by their names
// only.
func (st *State) storeNames(items []api.IPAMBlock) {
	st.Taken, st.HaveTaken = nil, true
	for i := range items {
		if cidr, ok := names.ParseBlock(items[i].Name); ok {
			st.Taken = append(st.Taken, cidr)
		}
	}
}

// storePools adds a list of pools. One that contradicts itself is ignored: others may serve.
func (st *State) storePools(items []api.IPPool) {
	for i, p := range ParsePools(items) {
		if p.Err == nil {
			st.Pools = append(st.Pools, p)
			continue
		}
		st.Flaws = append(st.Flaws, p.Err)
		if st.refused == nil {
			st.refused = map[string]string{}
		}
		text := "cannot be used: " + p.Why
		st.refused[p.Name], st.refused[items[i].Spec.CIDR] = text, text
	}
}

// storeReservations adds a list of reservations. One that can't be parsed is an error: it is unknown which addresses
// must not be assigned.
func (st *State) storeReservations(items []api.IPReservation) error {
	for _, r := range items {
		for _, text := range r.Spec.ReservedCIDRs {
			p, err := ParseRange(text)
			if err != nil {
				return fmt.Errorf("IPReservation %s: spec.reservedCIDRs: %w", r.Name, err)
			}
			st.Reserved = append(st.Reserved, p)
		}
	}
	return nil
}

// ParseRange reads a CIDR or a single address.
func ParseRange(text string) (netip.Prefix, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Masked(), nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is neither a CIDR nor an address", text)
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}

// storeAffinity adds an affinity of the host.
func (st *State) storeAffinity(a *api.BlockAffinity) {
	cidr, err := netip.ParsePrefix(a.Spec.CIDR)
	if err != nil || cidr != cidr.Masked() || a.Name != names.Affinity(a.Spec.Node, cidr) {
		st.Flaws = append(st.Flaws, fmt.Errorf("BlockAffinity %s: spec.cidr %q is not the range that the name stands for", a.Name, a.Spec.CIDR))
		return
	}
	st.Affinities = append(st.Affinities, a)
}

// storeClaims replaces the host's affinities.
func (st *State) storeClaims(affinities []*api.BlockAffinity) {
	st.Affinities = nil
	for _, a := range affinities {
		st.storeAffinity(a)
	}
}

// storeKnown adds the agent's cached view.
func (st *State) storeKnown(k *Known, host string) error {
	st.Config = k.Config
	st.NodeLabels, st.HaveLabels = k.NodeLabels, true
	st.storePools(k.Pools)
	for i := range k.Claims {
		c := &k.Claims[i]
		if claimant(&c.BlockAffinity) != host {
			continue
		}
		st.storeAffinity(&c.BlockAffinity)
		if cidr, err := netip.ParsePrefix(c.Spec.CIDR); err == nil && c.Free != nil {
			st.Room[cidr] = *c.Free
		}
	}
	return st.storeReservations(k.Reservations)
}

// forgetBlocks drops the blocks that were read, since one of them has changed.
func (st *State) forgetBlocks() {
	clear(st.Blocks)
	st.Taken, st.HaveTaken, st.Cluster, st.HaveCluster = nil, false, nil, false
}

// drop drops a block that was deleted.
func (st *State) drop(cidr netip.Prefix) {
	st.Blocks[cidr] = nil
	st.Taken = slices.DeleteFunc(st.Taken, func(p netip.Prefix) bool { return p == cidr })
	st.Cluster = slices.DeleteFunc(st.Cluster, func(b *Block) bool { return b.cidr == cidr })
}

// flaws returns the errors of ignored objects, for the end of an error.
func (st *State) flaws() string {
	errs := slices.Clone(st.Flaws)
	for _, err := range st.Damaged {
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return ""
	}
	text := strings.Split(errors.Join(errs...).Error(), "\n")
	slices.Sort(text)
	const most = 5
	if len(text) > most {
		text = append(text[:most], fmt.Sprintf("and %d more", len(text)-most))
	}
	return "; passed over: " + strings.Join(text, "; ")
}
