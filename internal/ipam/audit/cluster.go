package audit

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// Check returns what is wrong in a View, the gravest first.
//
// Reading a View takes a while, in which the cluster changes, so a finding may be transient; see Persisting.
func Check(v *inventory.View) []Finding {
	c := newCluster(v, v.Index())
	c.readUsers()
	c.addCandidates()
	c.checkPools()
	c.checkBlocks()
	c.checkClaims()
	c.checkHandles()
	c.checkAllocations()
	c.checkUsers()
	return sorted(c.findings)
}

// cluster is an indexed View, and the findings so far.
type cluster struct {
	*inventory.View
	index   *inventory.Index
	pools   []ipam.Pool                       // those that can be read
	blockAt map[netip.Prefix]*inventory.Block // those that can be read
	damaged []netip.Prefix                    // the ranges of the others
	claims  map[netip.Prefix][]*api.BlockAffinity

	// Of Check alone:
	heldAt   map[netip.Addr][]Held // without what cools down
	users    map[netip.Addr][]*inventory.Pod
	tunnels  map[netip.Addr]string // the nodes
	surplus  map[any]bool          // the blocks and handles among the candidates
	findings []Finding
}

// newCluster indexes what can be read.
func newCluster(v *inventory.View, index *inventory.Index) *cluster {
	c := &cluster{
		View: v, index: index, pools: readPools(v),
		blockAt: make(map[netip.Prefix]*inventory.Block, len(v.Blocks)), claims: make(map[netip.Prefix][]*api.BlockAffinity, len(v.Affinities)),
	}
	for i := range v.Blocks {
		if b := &v.Blocks[i]; b.Damage != nil {
			c.damaged = append(c.damaged, b.CIDR)
		} else {
			c.blockAt[b.CIDR] = b
		}
	}
	for i := range v.Affinities {
		a := &v.Affinities[i]
		if cidr, err := netip.ParsePrefix(a.Spec.CIDR); err == nil && cidr == cidr.Masked() && a.Spec.Node != "" {
			c.claims[cidr] = append(c.claims[cidr], a)
		}
	}
	return c
}

// readPools returns the pools that can be read.
func readPools(v *inventory.View) []ipam.Pool {
	return ipam.ValidPools(v.Pools)
}

// hosted reports whether an affinity is a node's, and not the load balancer controller's.
func hosted(a *api.BlockAffinity) bool { return a.Spec.Type == "" || a.Spec.Type == api.AffinityHost }

// ownerOf returns the spec.affinity of the affinity's block.
func ownerOf(a *api.BlockAffinity) string {
	if hosted(a) {
		return names.HostAffinity(a.Spec.Node)
	}
	return a.Spec.Type + ":" + a.Spec.Node
}

func (c *cluster) add(f Finding) {
	f.Grade = f.Kind.Grade()
	c.findings = append(c.findings, f)
}

func (c *cluster) nodeExists(name string) bool { return c.index.Node(name) != nil }

// used reports whether a pod or a tunnel names the address as its own.
func (c *cluster) used(a netip.Addr) bool { return len(c.users[a]) > 0 || c.tunnels[a] != "" }

// pooled reports whether the range lies in a pool.
func (c *cluster) pooled(r netip.Prefix) bool {
	return slices.ContainsFunc(c.pools, func(p ipam.Pool) bool { return p.Has(r) })
}

// unsure reports whether an address lies in a damaged block.
func (c *cluster) unsure(a netip.Addr) bool { return within(a, c.damaged) }

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// addCandidates reports the handles and blocks that the controllers delete; checkAllocations and checkClaims report the
// other candidates.
func (c *cluster) addCandidates() {
	for _, l := range c.candidates() {
		switch {
		case l.Handle != nil:
			c.surplus[l.Handle] = true
			c.add(handleFinding(l.Handle, l.Kind, l.Fix, "%s", l.Why))
		case l.Block != nil:
			c.surplus[l.Block] = true
			c.add(blockFinding(l.Block, l.Kind, l.Fix, "%s", l.Why))
		}
	}
}

// checkPools reports pools that cannot be read and pools that overlap, also if one is disabled.
func (c *cluster) checkPools() {
	var before []ipam.Pool
	for i, parsed := range ipam.ParsePools(c.Pools) {
		obj := &c.Pools[i]
		if parsed.Err != nil {
			c.add(poolFinding(obj, PoolDamaged, parsed.Err.Error(), "correct the IPPool: nothing is assigned from it"))
			continue
		}
		for _, other := range before {
			if other.CIDR.Overlaps(parsed.CIDR) {
				c.add(poolFinding(obj, PoolOverlap, fmt.Sprintf("it overlaps IPPool %s, %s", other.Name, other.CIDR),
					"disable one of the two, and remove it when none of its addresses is in use"))
			}
		}
		before = append(before, parsed)
	}
}

func poolFinding(p *api.IPPool, k Kind, detail, advice string) Finding {
	return Finding{Kind: k, Object: "IPPool/" + p.Name, Detail: detail, Advice: advice, Revision: p.ResourceVersion}
}

// readUsers indexes the allocated addresses, and the addresses that pods and nodes name. Pods with hostNetwork have the
// node's.
func (c *cluster) readUsers() {
	c.heldAt, c.users, c.tunnels, c.surplus = map[netip.Addr][]Held{}, map[netip.Addr][]*inventory.Pod{},
		map[netip.Addr]string{}, map[any]bool{}
	for i := range c.Blocks {
		b := &c.Blocks[i]
		for j := range b.Allocations { // none of a damaged block is known
			if a := &b.Allocations[j]; !a.Cooling() {
				c.heldAt[a.Address] = append(c.heldAt[a.Address], Held{a, b})
			}
		}
	}
	for i := range c.Pods {
		p := &c.Pods[i]
		if p.HostNetwork || p.Finished {
			continue
		}
		for _, a := range p.Addresses {
			c.users[a] = append(c.users[a], p)
		}
	}
	for i := range c.Nodes {
		for _, a := range c.Nodes[i].Tunnels {
			c.tunnels[a] = c.Nodes[i].Name
		}
	}
}

// clockTolerance is by how much the clocks of two nodes may differ.
const clockTolerance = time.Minute
