package policy

import (
	"encoding/binary"
	"fmt"
	"slices"
)

const (
	// mostGroups bounds the sets, and the networks, that a list of one tier's Allow rules looks up.
	mostGroups = 4
	// mostDenying bounds the policies of a tier that deny by sets, and networks, of their own.
	mostDenying = 4
)

// part is what is left of a tier for a range of ports.
type part struct {
	rules []*item // none matches any peer
	union bool
}

// list returns the list for the items that match a range of ports, which are ascending.
func (b *builder) list(active []int32) *listing {
	if b.spent.over() {
		return &listing{} // nobody will see it
	}
	key := make([]byte, 0, 4*len(active))
	for _, i := range active {
		key = binary.BigEndian.AppendUint32(key, uint32(i))
	}
	if l := b.lists[string(key)]; l != nil {
		return l
	}
	parts, end := b.parts(active)
	parts = trim(parts, end)
	l := &listing{list: b.compile(parts, end)}
	l.key = string(appendList(nil, l.list))
	if same := b.listings[l.key]; same != nil {
		l = same
	}
	b.listings[l.key], b.lists[string(key)] = l, l
	return l
}

// parts splits the items by tiers, up to the one that decides on all that gets there; end is what it decides.
func (b *builder) parts(active []int32) (parts []part, end Verdict) {
	for _, t := range b.tiers {
		n := 0
		for n < len(active) && len(t.items) > 0 && active[n] <= t.items[len(t.items)-1] {
			n++
		}
		p := part{rules: make([]*item, n, n+1), union: t.union}
		for at, i := range active[:n] {
			p.rules[at] = &b.items[i]
		}
		active = active[n:]
		if last := p.cut(t.end); last != nil {
			return append(parts, p), *last
		}
		parts = append(parts, p)
	}
	return parts, b.end.Verdict
}

// cut drops what follows a rule that matches any peer, and returns the verdict if then nothing gets to the next tier.
func (p *part) cut(end *Verdict) *Verdict {
	if i := slices.IndexFunc(p.rules, func(it *item) bool { return it.clause.any }); i >= 0 {
		end = nil
		if it := p.rules[i]; !it.pass {
			end = &it.verdict
		}
		if p.rules = p.rules[:i]; p.union {
			p.rules = nil
		}
	}
	passes := slices.ContainsFunc(p.rules, func(it *item) bool { return it.pass })
	if end != nil && passes {
		p.rules = append(p.rules, &item{verdict: *end, clause: &clause{any: true}})
		return nil
	}
	return end
}

// trim drops rules that decide as the end does anyway.
func trim(parts []part, end Verdict) []part {
	for len(parts) > 0 {
		p := &parts[len(parts)-1]
		for n := len(p.rules); n > 0 && (p.rules[n-1].pass || p.rules[n-1].verdict == end); n-- {
			p.rules = p.rules[:n-1]
		}
		if len(p.rules) > 0 {
			break
		}
		parts = parts[:len(parts)-1]
	}
	return slices.DeleteFunc(parts, func(p part) bool { return len(p.rules) == 0 })
}

// lookup is what a part becomes: steps by sets, a step for the pods that are spared from its networks, and steps by
// networks.
type lookup struct {
	sets, spared, nets []Step
}

// compile makes the steps of a list. A pod that a tier passes on must not be caught by the networks of that tier. If
// there may be such pods, all sets come first, with all that their rules match, and then these pods, to whom the end
// applies.
func (b *builder) compile(parts []part, end Verdict) List {
	whole := false
	for i, p := range parts[:max(0, len(parts)-1)] {
		whole = whole || !p.union && spares(b.rulesOf(parts[i], nil, nil))
	}
	all := make([]lookup, len(parts))
	for i, p := range parts {
		final := (*Verdict)(nil)
		if i == len(parts)-1 {
			final = &end
		}
		all[i] = b.lookup(p, final, end, whole)
	}
	l := List{Else: end}
	for _, x := range all {
		if l.Steps = append(l.Steps, x.sets...); !whole {
			l.Steps = append(append(l.Steps, x.spared...), x.nets...)
		}
	}
	for _, x := range all {
		if whole {
			l.Steps = append(l.Steps, x.spared...)
		}
	}
	for _, x := range all {
		if whole {
			l.Steps = append(l.Steps, x.nets...)
		}
	}
	return l
}

func (b *builder) lookup(p part, final *Verdict, end Verdict, whole bool) lookup {
	if p.union {
		return b.groups(p.rules, whole)
	}
	var verdicts []Verdict
	st := b.sets.stage(b.rulesOf(p, final, &verdicts), whole, b.any)
	verdicts[0] = end
	var x lookup
	for _, value := range st.values() {
		step := Step{Set: SetID(st.sets[value] + 1), Verdict: verdicts[value]}
		if value == 0 {
			x.spared = append(x.spared, step)
		} else {
			x.sets = append(x.sets, step)
		}
	}
	x.nets = b.networksOf(st, verdicts)
	b.spend(p.rules, st, x.nets)
	return x
}

// spend counts what rules of policies need that are bounded.
func (b *builder) spend(rules []*item, st *stage, nets []Step) {
	terms, ranges := 0, 0
	for _, it := range rules {
		if it.bounded {
			terms += len(it.clause.terms)
			ranges += it.clause.counted
			b.spent.work += 1 + len(it.clause.terms) + ranges/workOfRanges
		}
	}
	for _, set := range st.sets {
		b.spent.count(set, terms)
	}
	for _, s := range nets {
		if id := b.terms.netIDs[s.Nets]; ranges > 0 {
			b.spent.count(^id, min(b.rangesIn(id), ranges+mostForeign))
		}
	}
}

// rulesOf numbers the verdicts of an ordered part: 0 is what the rules of the part leave to others, or the final
// verdict.
func (b *builder) rulesOf(p part, final *Verdict, verdicts *[]Verdict) []stageRule {
	known := []Verdict{{}, {Allow: true}}
	rules := make([]stageRule, len(p.rules))
	for i, it := range p.rules {
		rules[i] = stageRule{terms: it.clause.terms, nets: it.clause.nets, outer: it.clause.outer}
		if it.clause.any {
			rules[i].nets = b.terms.addNets(everywhere)
			rules[i].outer = rules[i].nets
		}
		if !it.pass && (final == nil || it.verdict != *final) {
			rules[i].value = number(&known, it.verdict)
		}
	}
	if verdicts != nil {
		*verdicts = known
	}
	return rules
}

// number finds a verdict. When too many policies deny, the others share one verdict, which names their kind only.
func number(known *[]Verdict, v Verdict) uint8 {
	for pass := 0; ; pass++ {
		if i := slices.Index((*known)[1:], v); i >= 0 {
			return uint8(i + 1)
		}
		if len(*known) < 2+mostDenying || pass > 0 {
			*known = append(*known, v)
			return uint8(len(*known) - 1)
		}
		v.By = ID{Kind: v.By.Kind}
	}
}

// networksOf gives each address that a network of a rule contains the value of the first such rule.
func (b *builder) networksOf(st *stage, verdicts []Verdict) (steps []Step) {
	if st.nets == nil {
		st.nets = b.networksByValue(st.rules, len(verdicts))
	}
	for value, id := range st.nets {
		if id != none {
			steps = append(steps, Step{Nets: b.terms.netKeys[id], Verdict: verdicts[value+1]})
		}
	}
	return steps
}

// networksByValue are the numbers of networks by value, of which 0 is left out.
func (b *builder) networksByValue(rules []stageRule, values int) []int32 {
	var covered ranges
	byValue := make([]ranges, values)
	for _, r := range rules {
		if r.outer == none {
			continue
		}
		nets := b.terms.nets[r.outer]
		byValue[r.value] = union(byValue[r.value], minus(nets, covered))
		covered = union(covered, nets)
	}
	ids := make([]int32, values-1)
	for i, nets := range byValue[1:] {
		ids[i] = b.terms.addNets(nets)
	}
	return ids
}

// groups are the steps of rules that all allow: by the ports that they have in common, so that sets are shared by the
// lists of many ports.
func (b *builder) groups(rules []*item, whole bool) (x lookup) {
	for _, it := range b.grouped(rules) {
		terms := it.clause.terms
		if nets := it.clause.nets; nets != none {
			x.nets = append(x.nets, Step{Nets: b.terms.netKeys[nets], Verdict: Verdict{Allow: true}})
			b.countIf(it.bounded, ^nets, it.clause.counted)
			if whole {
				terms = append(slices.Clone(terms), b.terms.add(term{pods: none, nets: nets, declared: none, absent: none}))
				slices.Sort(terms)
			}
		}
		if len(terms) > 0 {
			set := b.sets.union(terms)
			x.sets = append(x.sets, Step{Set: SetID(set + 1), Verdict: Verdict{Allow: true}})
			b.countIf(it.bounded, set, len(terms))
		}
	}
	return x
}

func (b *builder) countIf(bounded bool, what int32, elements int) {
	if bounded {
		b.spent.count(what, elements)
	}
}

// grouped merges rules if there are too many. Those whose size counts are merged apart: others' networks must not be in
// lists of the ports that they name.
func (b *builder) grouped(rules []*item) []*item {
	if len(rules) <= mostGroups {
		return rules
	}
	var free, counting []*item
	for _, it := range rules {
		if it.bounded {
			counting = append(counting, it)
		} else {
			free = append(free, it)
		}
	}
	most := mostGroups
	if len(free) > 0 && len(counting) > 0 {
		most /= 2
	}
	return append(b.widest(free, most), b.widest(counting, most)...)
}

// widest leaves the rules that come first, and merges the rest of them.
func (b *builder) widest(rules []*item, most int) []*item {
	if len(rules) <= most {
		return rules
	}
	var rest []*clause
	for _, it := range rules[most-1:] {
		rest = append(rest, it.clause)
		if it.bounded {
			b.spent.work += 1 + len(it.clause.terms) + it.clause.counted
		}
	}
	return append(slices.Clone(rules[:most-1]), &item{clause: b.mergeOnce(rest, rules[0].bounded), bounded: rules[0].bounded})
}

// mergeOnce merges clauses; those that do not count once, as the work does not count either.
func (b *builder) mergeOnce(clauses []*clause, bounded bool) *clause {
	if bounded {
		return b.merge(clauses)
	}
	var key []byte
	for _, cl := range clauses {
		key = fmt.Appendf(key, "%p ", cl)
	}
	if b.merged == nil {
		b.merged = map[string]*clause{}
	}
	if b.merged[string(key)] == nil {
		b.merged[string(key)] = b.merge(clauses)
	}
	return b.merged[string(key)]
}
