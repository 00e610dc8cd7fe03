package audit

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/ipam"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// Check says what is wrong in a View: the gravest first.
//
// Reading a View takes a while, in which the cluster goes on. What is found once may be on its way to be right; see Persisting.
func Check(v *inventory.View) []Finding {
	c := newCluster(v)
	c.readPools()
	c.readBlocks()
	c.readClaims()
	c.readUsers()
	c.checkBlocks()
	c.checkClaims()
	c.checkHandles()
	c.checkAllocations()
	c.checkUsers()
	return sorted(c.findings)
}

// cluster is a View in the form in which questions to it are asked, and the findings so far.
type cluster struct {
	*inventory.View
	index    *inventory.Index
	pools    []ipam.Pool
	blockAt  map[netip.Prefix]*inventory.Block // those that can be read
	damaged  []netip.Prefix                    // the ranges of the others
	claims   map[netip.Prefix][]*api.BlockAffinity
	heldAt   map[netip.Addr][]held // without what cools down
	users    map[netip.Addr][]*inventory.Pod
	tunnels  map[netip.Addr]string // the nodes
	findings []Finding
}

// held is an address that somebody has, and the block that says so.
type held struct {
	*inventory.Allocation
	block *inventory.Block
}

func newCluster(v *inventory.View) *cluster {
	return &cluster{
		View: v, index: inventory.NewIndex(v.Nodes, v.Pods), blockAt: map[netip.Prefix]*inventory.Block{}, claims: map[netip.Prefix][]*api.BlockAffinity{},
		heldAt: map[netip.Addr][]held{}, users: map[netip.Addr][]*inventory.Pod{}, tunnels: map[netip.Addr]string{},
	}
}

func (c *cluster) add(f Finding) {
	f.Grade = f.Kind.Grade()
	c.findings = append(c.findings, f)
}

func (c *cluster) nodeExists(name string) bool { return c.index.Node(name) != nil }

// used reports whether a pod or a tunnel says that it has the address.
func (c *cluster) used(a netip.Addr) bool { return len(c.users[a]) > 0 || c.tunnels[a] != "" }

// pooled reports whether the range, or address, is a pool's.
func (c *cluster) pooled(r netip.Prefix) bool {
	return slices.ContainsFunc(c.pools, func(p ipam.Pool) bool { return p.CIDR.Overlaps(r) && p.CIDR.Bits() <= r.Bits() })
}

// unsure reports whether an address may be held in a block that cannot be read.
func (c *cluster) unsure(a netip.Addr) bool { return within(a, c.damaged) }

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// readPools indexes the pools that can be read, and reports the others and those that overlap.
func (c *cluster) readPools() {
	for i := range c.Pools {
		obj := &c.Pools[i]
		parsed, err := ipam.ParsePool(obj)
		if err != nil {
			c.add(poolFinding(obj, PoolDamaged, err.Error(), "correct the IPPool: nothing is assigned from it"))
			continue
		}
		for _, other := range c.pools {
			if other.CIDR.Overlaps(parsed.CIDR) {
				c.add(poolFinding(obj, PoolOverlap, fmt.Sprintf("it overlaps IPPool %s, %s", other.Name, other.CIDR),
					"disable one of the two, and remove it when nobody uses it"))
			}
		}
		c.pools = append(c.pools, parsed)
	}
}

func poolFinding(p *api.IPPool, k Kind, detail, advice string) Finding {
	return Finding{Kind: k, Object: "IPPool/" + p.Name, Detail: detail, Advice: advice, Revision: p.ResourceVersion}
}

// readBlocks indexes blocks and what they hold, and reports those that contradict themselves.
func (c *cluster) readBlocks() {
	for i := range c.Blocks {
		b := &c.Blocks[i]
		if b.Damage != nil {
			c.add(blockFinding(b, BlockDamaged, ByHand, "%v", b.Damage).advised(
				"nothing is assigned from it or released into it: correct it by hand, or start its pods anew and remove it"))
			c.damaged = append(c.damaged, b.CIDR)
			continue
		}
		c.blockAt[b.CIDR] = b
		for j := range b.Allocations {
			if a := &b.Allocations[j]; !a.Cooling() {
				c.heldAt[a.Address] = append(c.heldAt[a.Address], held{a, b})
			}
		}
	}
}

// readUsers indexes the addresses that pods and nodes say they have. A pod in its node's network has the node's.
func (c *cluster) readUsers() {
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
