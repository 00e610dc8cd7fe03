package reflectors

import (
	"cmp"
	"hash/fnv"
	"slices"
	"strings"
)

// Word is the value of a Node's annotation: the role that the node announces.
type Word string

// The roles. A node with another value takes no part: its agent may be a newer version, and the mesh serves it.
const (
	Nothing   Word = ""
	Client    Word = "client"
	Reflector Word = "reflector"
	// Retiring reflects until others stand in for it.
	Retiring Word = "retiring"
)

func (w Word) known() bool { return w == Client || w.reflects() }

func (w Word) reflects() bool { return w == Reflector || w == Retiring }

// Families is a set of address families.
type Families uint8

// Families.
const (
	IPv4 Families = 1 << iota
	IPv6
)

// Node is the known state of one node.
type Node struct {
	Name string
	// Zone is where it is; all that do not say are in one zone.
	Zone string
	Says Word
	// Barred: it is not to be a reflector, as its operator says.
	Barred bool
	// Families are those of its addresses, Announces those in which it has blocks to announce.
	Families, Announces Families
}

// Roll is all nodes of a cluster in the order in which they are asked to reflect. It is made once of what a watch has
// shown and not changed.
type Roll struct {
	nodes      []Node         // that take part, in their order
	zone       []int          // of each
	zones      int            // how many there are
	index      map[string]int // places in nodes
	outside    map[string]bool
	reflecting []int // places in nodes
	// families are those that at least half of them have: a reflector that lacks one would be no use to most.
	families Families
}

// NewRoll orders nodes by a hash of their names: all nodes compute the same order, and a node keeps its place.
func NewRoll(nodes []Node) *Roll {
	r := &Roll{index: make(map[string]int, len(nodes)), outside: map[string]bool{}}
	for _, n := range nodes {
		if n.Says.known() {
			r.nodes = append(r.nodes, n)
		} else {
			r.outside[n.Name] = true
		}
	}
	r.sort()
	with, zones := map[Families]int{}, map[string]int{}
	r.zone = make([]int, len(r.nodes))
	for i, n := range r.nodes {
		r.index[n.Name] = i
		if _, known := zones[n.Zone]; !known {
			zones[n.Zone] = len(zones)
		}
		r.zone[i] = zones[n.Zone]
		if n.Says.reflects() {
			r.reflecting = append(r.reflecting, i)
		}
		with[n.Families&IPv4]++
		with[n.Families&IPv6]++
	}
	r.zones = len(zones)
	for _, f := range []Families{IPv4, IPv6} {
		if with[f] > 0 && 2*with[f] >= len(r.nodes) {
			r.families |= f
		}
	}
	return r
}

func (r *Roll) sort() {
	type ranked struct {
		hash uint64
		node Node
	}
	all := make([]ranked, len(r.nodes))
	for i, n := range r.nodes {
		all[i] = ranked{hash(n.Name), n}
	}
	slices.SortFunc(all, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), strings.Compare(a.node.Name, b.node.Name))
	})
	for i, n := range all {
		r.nodes[i] = n.node
	}
}

// hash spreads names evenly, also those that differ in their last digit only.
func hash(texts ...string) uint64 {
	h := fnv.New64a()
	for _, text := range texts {
		_, _ = h.Write([]byte(text)) // never fails
		_, _ = h.Write([]byte{0})
	}
	x := h.Sum64()
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// Len is how many nodes take part.
func (r *Roll) Len() int { return len(r.nodes) }

// Reflecting returns the names of those that say that they reflect, in their order.
func (r *Roll) Reflecting() []string {
	names := make([]string, len(r.reflecting))
	for i, at := range r.reflecting {
		names[i] = r.nodes[at].Name
	}
	return names
}

// Has reports whether a node takes part.
func (r *Roll) Has(name string) bool {
	_, ok := r.index[name]
	return ok
}

// Names returns all that take part, in their order.
func (r *Roll) Names() []string {
	names := make([]string, len(r.nodes))
	for i := range r.nodes {
		names[i] = r.nodes[i].Name
	}
	return names
}

// Get returns what is known of a node that takes part.
func (r *Roll) Get(name string) (Node, bool) {
	if i, ok := r.index[name]; ok {
		return r.nodes[i], true
	}
	return Node{}, false
}

// fit reports whether a node may be a reflector for good.
func (r *Roll) fit(i int) bool {
	n := &r.nodes[i]
	return !n.Barred && n.Says != Retiring && n.Families&r.families == r.families
}

// eligible is how many may be.
func (r *Roll) eligible() (count int) {
	for i := range r.nodes {
		if r.fit(i) {
			count++
		}
	}
	return count
}

// seats chooses who of some should go on to reflect, at most count: as many zones as there are, and in each zone those
// that come first. Given what it has chosen, it chooses the same.
func (r *Roll) seats(count int, of []int) []int {
	used := make([]int, r.zones)
	left := slices.Clone(of)
	slices.Sort(left)
	var chosen []int
	for len(chosen) < count && len(left) > 0 {
		best := 0
		for i := range left {
			if used[r.zone[left[i]]] < used[r.zone[left[best]]] {
				best = i
			}
		}
		chosen = append(chosen, left[best])
		used[r.zone[left[best]]]++
		left = slices.Delete(left, best, best+1)
	}
	return chosen
}

// used counts nodes by their zone.
func (r *Roll) used(of []int) []int {
	used := make([]int, r.zones)
	for _, i := range of {
		used[r.zone[i]]++
	}
	return used
}

// successor is a node's place among those that could be asked to reflect beside others, from 0: by zones, those that
// have fewest reflectors first, and by order alone.
type successor struct{ spread, plain int }

// place finds it; sitting are those that do reflect.
func (r *Roll) place(self int, sitting []int) successor {
	used := r.used(sitting)
	level := make([]int, len(r.nodes))
	for i := range r.nodes { // as if all were chosen one after another
		level[i] = -1
		if r.fit(i) && !r.nodes[i].Says.reflects() {
			level[i] = used[r.zone[i]]
			used[r.zone[i]]++
		}
	}
	var p successor
	for i, l := range level {
		if l < 0 || i == self {
			continue
		}
		if l < level[self] || l == level[self] && i < self {
			p.spread++
		}
		if i < self {
			p.plain++
		}
	}
	return p
}
