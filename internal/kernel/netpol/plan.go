package netpol

import (
	"cmp"
	"maps"
	"slices"

	"github.com/tortie-net/tortie/internal/kernel/nft"
)

// portion is how many elements go into one transaction, if there are more than that: a large one keeps other writers of nftables waiting.
const portion = 50_000

// planner collects what makes a state an image.
type planner struct {
	*Engine
	have *state
	want *image
}

// plan returns transactions in an order that never lets through what neither the old nor the new Ruleset does: elements that no rule in
// force looks for come first, then in one transaction all that decides, then what nothing uses any more goes. Less than a portion is one
// transaction.
func (e *Engine) plan(have *state, want *image) []*nft.Change {
	p := planner{e, have, want}
	if have.remake {
		p.have = emptyState()
	}
	m := p.moves()
	early, late := p.early(m), p.portions(m.late, func(part []move) *nft.Change { return p.members(nil, part) })
	all := slices.Concat([]*nft.Change{p.ground(have.remake)}, early, []*nft.Change{p.decide(m)}, late)
	total := 0
	for _, c := range all {
		total += c.Elements
	}
	if total > portion && !have.remake {
		return slices.DeleteFunc(all, (*nft.Change).Empty)
	}
	one := p.table.Change()
	for _, c := range all {
		one.Append(c)
	}
	return slices.DeleteFunc([]*nft.Change{one}, (*nft.Change).Empty)
}

// moves compares the members. Nothing has come into sets that are to be made.
func (p *planner) moves() (m moves) {
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

// ground makes the table and the sets, which nothing uses yet.
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
func (p *planner) early(m moves) []*nft.Change {
	var all []*nft.Change
	for _, name := range slices.Sorted(maps.Keys(p.want.sets)) {
		s := p.want.sets[name]
		if _, ok := p.have.sets[name]; ok || s.Value == nft.VerdictType {
			continue
		}
		for part := range slices.Chunk(s.Elements, portion) {
			c := p.table.Change()
			c.Add(s, part)
			all = append(all, c)
		}
	}
	return append(all, p.portions(m.early, func(part []move) *nft.Change { return p.members(part, nil) })...)
}

func (p *planner) portions(of []move, change func([]move) *nft.Change) (all []*nft.Change) {
	for part := range slices.Chunk(of, portion) {
		all = append(all, change(part))
	}
	return all
}

func (p *planner) members(added, gone []move) *nft.Change {
	c := p.table.Change()
	for i, s := range p.want.family {
		c.Delete(s, elements(gone, i))
		c.Add(s, elements(added, i))
	}
	return c
}

// decide is all that decides about packets: it has to be in one transaction.
func (p *planner) decide(m moves) *nft.Change {
	c := p.table.Change()
	chains := slices.Sorted(maps.Keys(p.want.chains))
	for _, name := range chains {
		if _, ok := p.have.chains[name]; !ok {
			c.MakeChain(p.want.chains[name])
		}
	}
	p.verdicts(c)
	for _, name := range chains {
		if !p.have.chains[name] {
			if p.have.rules[name] {
				c.Flush(name)
			}
			c.AddRules(p.want.chains[name])
		}
	}
	for d := range p.want.links {
		p.links(c, d)
	}
	p.close(c)
	c.Append(p.members(m.added, m.gone))
	p.remove(c)
	return c
}

// verdicts fills the maps that lead to chains, and repairs sets of fixed content.
func (p *planner) verdicts(c *nft.Change) {
	for _, name := range slices.Sorted(maps.Keys(p.want.sets)) {
		right, exists := p.have.sets[name]
		switch s := p.want.sets[name]; {
		case exists && !right:
			c.Empties(name)
			c.Add(s, s.Elements)
		case !exists && s.Value == nft.VerdictType:
			c.Add(s, s.Elements)
		}
	}
}

// links brings the elements of a direction's links up to date.
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

// close lets unknown links pass, or not.
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

// remove removes chains and sets that nothing uses any more: rules first, as they use sets, then sets, as they lead to chains.
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
