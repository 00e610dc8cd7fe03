package policy

import (
	"encoding/binary"
	"fmt"
	"slices"
)

const (
	// mostGroups bounds the sets, and the networks, that a list of one tier's Allow rules looks up.
	mostGroups = 4
	// mostDenying bounds the policies of a tier that deny by their own sets and networks.
	mostDenying = 4
)

// part is the rules of a tier that remain for a range of ports.
type part struct {
	rules []*item // none matches any peer
	union bool
}

// list returns the list for the items that match a range of ports; active is ascending.
func (b *builder) list(active []int32) *listing {
	if b.spent.over() {
		return &listing{} // discarded with the program
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

// parts splits the items by tiers, up to the tier that decides on everything that reaches it; end is its verdict.
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

// cut drops what follows a rule that matches any peer. It returns the verdict on all remaining packets if none gets to
// the next tier.
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

// trim drops rules that have the end's verdict anyway.
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

// lookup is the compiled form of a part: steps by sets, a step for the pods that its networks must not match, and steps
// by networks.
type lookup struct {
	sets, spared, nets []Step
}

// compile makes the steps of a list. The networks of a tier must not match a pod that the tier passes on. If there may
// be such pods, all sets come first, with all that their rules match, and then these pods, for which the end counts.
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

// spend counts the needs of bounded rules.
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

// rulesOf numbers the verdicts of an ordered part: 0 is the verdict on what the part's rules leave to other parts, or
// the final verdict.
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

// number returns the number of a verdict. If too many policies deny, the others share one verdict that names only their
// kind.
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

// networksByValue returns the numbers of networks by value, without value 0.
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

// groups returns the steps of rules that all allow. Rules are grouped by common ports, so that the lists of many ports
// share sets.
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

// grouped merges rules if there are too many. Bounded rules are merged separately: networks of other authors must not
// be in lists of the ports that they name.
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

// widest keeps the first rules and merges the rest.
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

// mergeOnce merges clauses. It caches the result for rules that are not bounded: their work does not count.
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
