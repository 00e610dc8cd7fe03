package netpol

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"github.com/tortie-net/tortie/internal/kernel/nft"
)

// portion bounds the elements of one transaction, if there are more than that in all: a large one makes other nftables
// writers wait.
const portion = 50_000

// planner makes the changes from a state to an image.
type planner struct {
	*Engine
	have *state
	want *image
}

// later makes a change when it is due: the messages of all portions at once would take the most memory of the agent.
type later func() *nft.Change

// plan yields transactions in an order that never allows what neither the old nor the new Ruleset does. First comes
// what no rule in force looks for or leads to, then in one transaction all that decides, then the removal of unused
// content. Less than a portion is at most three transactions. They must be separate: a packet judged while the
// generation changes finds old chains with new sets, which would lack what old rules look for; new chains are empty for
// it; and new interval sets are empty until their transaction has ended, some 0.1 to 1 ms after its rules are in force
// (Linux 6.18). A new table, or one made anew, is always one transaction: without it, or its base chains, everything
// passes.
func (e *Engine) plan(have *state, want *image) iter.Seq[*nft.Change] {
	p := planner{e, have, want}
	if have.remake {
		p.have = emptyState()
	}
	m := p.moves()
	first := slices.Concat([]later{func() *nft.Change { return p.ground(have.remake) }}, p.early(m), []later{p.lead})
	decide := func() *nft.Change { return p.decide(m) }
	last := p.portions(m.late, func(part []move) *nft.Change { return p.members(m, nil, part) })
	all := slices.Concat(first, []later{decide}, last)
	switch few := p.elements(m) <= e.portion; {
	case have.remake || few && !have.table:
		all = []later{p.joined(all)}
	case few:
		all = []later{p.joined(first), decide, p.joined(last)}
	}
	return func(yield func(*nft.Change) bool) {
		for _, change := range all {
			if c := change(); !c.Empty() && !yield(c) {
				return
			}
		}
	}
}

func (p *planner) joined(all []later) later {
	return func() *nft.Change {
		one := p.table.Change()
		for _, change := range all {
			one.Append(change())
		}
		return one
	}
}

// elements returns how many elements change.
func (p *planner) elements(m *moves) int {
	c := p.table.Change()
	p.placed(c)
	total := c.Elements + len(m.early) + len(m.added) + len(m.gone) + len(m.late)
	for name, s := range p.want.sets {
		if !has(p.have.sets, name) {
			total += len(s.Elements)
		}
	}
	return total
}

// moves compares the members. Sets that must be made count as empty.
func (p *planner) moves() *moves {
	m := &moves{}
	have, old := p.have.members, p.have.ids
	if _, ok := p.have.sets[p.want.family[0].Name]; !ok {
		have, old = nil, nil
	}
	for a, ids := range p.want.members {
		m.compare(a, have[a], ids, old, p.want.ids)
	}
	for a, ids := range have {
		if _, ok := p.want.members[a]; !ok {
			m.compare(a, ids, nil, old, p.want.ids)
		}
	}
	return m
}

// ground makes the table and the sets, still unused.
func (p *planner) ground(remake bool) *nft.Change {
	c := p.table.Change()
	if remake {
		c.RemoveTable()
	}
	if !p.have.table {
		c.MakeTable(false)
	}
	for _, name := range slices.Sorted(maps.Keys(p.want.sets)) {
		if _, ok := p.have.sets[name]; !ok {
			c.MakeSet(p.want.sets[name])
		}
	}
	return c
}

// early fills sets that are new, and adds members that no rule in force looks for.
func (p *planner) early(m *moves) []later {
	var all []later
	for _, name := range slices.Sorted(maps.Keys(p.want.sets)) {
		s := p.want.sets[name]
		if _, ok := p.have.sets[name]; ok || s.Value == nft.VerdictType {
			continue
		}
		for part := range slices.Chunk(s.Elements, p.portion) {
			all = append(all, func() *nft.Change {
				c := p.table.Change()
				c.Add(s, part)
				return c
			})
		}
	}
	return append(all, p.portions(m.early, func(part []move) *nft.Change { return p.members(m, part, nil) })...)
}

func (p *planner) portions(of []move, change func([]move) *nft.Change) (all []later) {
	for part := range slices.Chunk(of, p.portion) {
		all = append(all, func() *nft.Change { return change(part) })
	}
	return all
}

// inRequest is the approximate number of members that fill a request.
const inRequest = 3000

func (p *planner) members(m *moves, added, gone []move) *nft.Change {
	c := p.table.Change()
	for i, s := range p.want.family {
		for part := range slices.Chunk(gone, inRequest) {
			c.Delete(s, m.elements(part, i))
		}
		for part := range slices.Chunk(added, inRequest) {
			c.Add(s, m.elements(part, i))
		}
	}
	return c
}

// lead makes the new chains to which nothing leads yet, and the maps among them.
func (p *planner) lead() *nft.Change {
	c := p.table.Change()
	var made []nft.Chain
	for _, name := range slices.Sorted(maps.Keys(p.want.chains)) {
		if chain := p.want.chains[name]; chain.Hook == nil && !has(p.have.chains, name) {
			c.MakeChain(chain)
			made = append(made, chain)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.want.sets)) {
		if s := p.want.sets[name]; s.Value == nft.VerdictType && !has(p.have.sets, name) {
			c.Add(s, s.Elements)
		}
	}
	for _, chain := range made {
		c.AddRules(chain)
	}
	return c
}

func has(names map[string]bool, name string) bool {
	_, ok := names[name]
	return ok
}

// decide changes everything that decides on packets, which must be in one transaction.
func (p *planner) decide(m *moves) *nft.Change {
	c := p.table.Change()
	p.repair(c)
	for _, name := range slices.Sorted(maps.Keys(p.want.chains)) {
		chain := p.want.chains[name]
		switch exists := has(p.have.chains, name); {
		case p.have.chains[name], !exists && chain.Hook == nil:
			continue
		case !exists:
			c.MakeChain(chain)
		case p.have.rules[name]:
			c.Flush(name)
		}
		c.AddRules(chain)
	}
	p.placed(c)
	c.Append(p.members(m, m.added, m.gone))
	p.remove(c)
	return c
}

// placed updates the elements of links.
func (p *planner) placed(c *nft.Change) {
	for d := range p.want.links {
		p.links(c, d)
	}
	p.close(c)
}

// repair refills sets of fixed content that differ.
func (p *planner) repair(c *nft.Change) {
	for _, name := range slices.Sorted(maps.Keys(p.want.sets)) {
		if right, exists := p.have.sets[name]; exists && !right {
			c.Empties(name)
			c.Add(p.want.sets[name], p.want.sets[name].Elements)
		}
	}
}

// links updates the elements of links in a direction.
func (p *planner) links(c *nft.Change, d int) {
	var gone, added []nft.Element
	for _, name := range slices.Sorted(maps.Keys(p.have.links[d])) {
		if e := p.have.links[d][name]; p.want.links[d][name] != e {
			gone = append(gone, e)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.want.links[d])) {
		if e := p.want.links[d][name]; p.have.links[d][name] != e {
			added = append(added, e)
		}
	}
	c.Delete(linkSets[d], gone)
	c.Add(linkSets[d], added)
}

// close opens or closes unknown links.
func (p *planner) close(c *nft.Change) {
	var want []nft.Element
	if p.want.closed {
		want = closedElements
	}
	order := func(a, b nft.Element) int { return cmp.Compare(a.First, b.First) }
	have := slices.SortedFunc(slices.Values(p.have.closed), order)
	if !slices.Equal(have, want) {
		c.Delete(closed, have)
		c.Add(closed, want)
	}
}

// remove removes unused chains and sets: rules first, as they use sets, then sets, as they lead to chains.
func (p *planner) remove(c *nft.Change) {
	unwanted := func(name string) bool { _, ok := p.want.chains[name]; return ok }
	chains := slices.DeleteFunc(slices.Sorted(maps.Keys(p.have.chains)), unwanted)
	for _, name := range chains {
		if p.have.chains[name] || p.have.rules[name] {
			c.Flush(name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.have.sets)) {
		if _, ok := p.want.sets[name]; !ok {
			c.RemoveSet(name)
		}
	}
	for _, name := range chains {
		c.RemoveChain(name)
	}
}
