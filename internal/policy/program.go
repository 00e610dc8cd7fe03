package policy

import (
	"cmp"
	"iter"
	"maps"
	"slices"
)

// Lists yields all lists of a program except in its Logs.
func (p Program) Lists() iter.Seq[List] {
	return func(yield func(List) bool) {
		more := p.Rest.all(yield)
		for _, l := range p.Protocols {
			more = more && l.all(yield)
		}
		for _, ranges := range p.Ports {
			for _, r := range ranges {
				more = more && r.List.all(yield)
			}
		}
		for _, s := range p.Sequence {
			for l := range s.When.Lists() {
				more = more && yield(l)
			}
			more = more && (s.Own == nil || s.Own.all(yield))
		}
	}
}

// all yields the list, and its lists for source ports.
func (l List) all(yield func(List) bool) bool {
	more := yield(l)
	for _, r := range l.Sources {
		more = more && yield(r.List)
	}
	return more
}

// tierRules are the rules of a tier for a subject: indexes of builder.items.
type tierRules struct {
	// end is the verdict on what no rule matches, if the tier ends with Deny.
	end   *Verdict
	items []int32
	// union: all rules allow, and their networks count for pods too, so their order does not matter.
	union bool
}

// builder makes the program of one subject and direction.
type builder struct {
	*compiler
	tiers []tierRules
	items []item
	end   ending
	lists map[string]*listing // by the items that match
	spent *spending
	// merged caches merged clauses by the clauses of unbounded items.
	merged map[string]*clause
	// any: an address that several pods may have matches if one of them does.
	any bool
}

// listing is a List with its canonical form.
type listing struct {
	list List
	key  string
}

// build makes the program of a subject. policies are those that select it, in the order of evaluation.
func (c *compiler) build(d Direction, policies []int, subject *Pod, end ending) *Program {
	if len(policies) == 0 {
		return &Program{Rest: List{Else: end.Verdict}}
	}
	b := &builder{compiler: c, end: end, lists: map[string]*listing{}, spent: c.spendingOf(subject.Namespace)}
	all := policies
	for len(policies) > 0 && !b.spent.over() {
		n := c.sameTier(policies)
		b.addTier(d, policies[:n], subject)
		policies = policies[n:]
	}
	p := b.program()
	if p.Logs = b.logs(d, all, subject); !b.spent.over() {
		return &p
	}
	return c.closed(b.spent, all, d)
}

// closed returns the program of policies that are too large, which denies everything.
func (c *compiler) closed(spent *spending, policies []int, d Direction) *Program {
	if spent.largest == (ID{}) {
		spent.largest = c.policies[slices.MaxFunc(policies, func(x, y int) int { return c.blames(x, y, d, spent.namespace) })].ID
	}
	closed := &Program{Rest: List{Else: Verdict{By: spent.largest}}}
	c.tooLarge[closed] = spent.largest
	return closed
}

// blames compares policies by blame for the size: policies of the namespace first, then by size.
func (c *compiler) blames(x, y int, d Direction, namespace string) int {
	a, b := &c.policies[x], &c.policies[y]
	return cmp.Or(int(boolByte(a.Namespace == namespace))-int(boolByte(b.Namespace == namespace)), cmp.Compare(a.size(d), b.size(d)))
}

// size returns the number of rules, peers and ports in a direction.
func (p *Policy) size(d Direction) (size int) {
	for _, r := range p.Rules[d] {
		size += 1 + len(r.Peers) + len(r.Ports)
	}
	return size
}

func (b *builder) addTier(d Direction, policies []int, subject *Pod) {
	first := b.policies[policies[0]]
	tier := tierRules{}
	if first.Tier.End == Deny && !b.end.passes {
		tier.end = &Verdict{By: first.ID}
	}
	items := make([]item, 0, len(policies))
	for _, p := range policies {
		items = append(items, b.itemsOf(d, p, len(b.policies[p].Rules[d]), subject)...)
	}
	if tier.union = !slices.ContainsFunc(items,
		func(it item) bool { return !it.verdict.Allow || it.clause.outer != it.clause.nets }); tier.union {
		items = b.bundle(items)
	}
	b.add(tier, items)
}

// itemsOf returns the items of the first rules of a policy.
func (b *builder) itemsOf(d Direction, policy, rules int, subject *Pod) (items []item) {
	for k := range b.keys(d, policy, rules, false) {
		if b.rule(k).Action != Log && b.affords(b.spent, k) {
			items = append(items, b.itemsOnce(k, subject)...)
		}
	}
	return items
}

func (b *builder) add(tier tierRules, items []item) {
	tier.items, b.items = slices.Grow(tier.items, len(items)), slices.Grow(b.items, len(items))
	for _, it := range items {
		tier.items = append(tier.items, int32(len(b.items)))
		b.items = append(b.items, it)
	}
	b.tiers = append(b.tiers, tier)
}

// sameTier returns how many of the policies are of the first one's tier.
func (c *compiler) sameTier(policies []int) int {
	n := 1
	for n < len(policies) && c.policies[policies[n]].Tier == c.policies[policies[0]].Tier {
		n++
	}
	return n
}

// bundle joins the items with the same ports, the widest first; bounded items are joined separately.
func (b *builder) bundle(items []item) []item {
	byPorts := map[string][]*clause{}
	bundles := map[string]item{}
	for _, it := range items {
		key := string(append(appendText([]byte{boolByte(it.bounded)}, it.ports.key()), it.sources.key()...))
		byPorts[key] = append(byPorts[key], it.clause)
		bundles[key] = it
	}
	joined := make([]item, 0, len(bundles))
	for _, key := range slices.Sorted(maps.Keys(bundles)) {
		it := bundles[key]
		it.clause = b.merge(byPorts[key])
		joined = append(joined, it)
	}
	slices.SortStableFunc(joined, func(x, y item) int { return cmp.Compare(y.ports.width(), x.ports.width()) })
	return joined
}

// merge returns the clause that matches what one of the clauses matches; its networks match any address.
func (c *compiler) merge(clauses []*clause) *clause {
	if len(clauses) == 1 {
		return clauses[0]
	}
	m := &clause{}
	var nets ranges
	for _, cl := range clauses {
		m.any = m.any || cl.any
		m.terms = append(m.terms, cl.terms...)
		m.counted += cl.counted
		if cl.nets != none {
			nets = append(nets, c.terms.nets[cl.nets]...)
		}
	}
	slices.Sort(m.terms)
	m.terms, m.nets = slices.Compact(m.terms), c.terms.addNets(normal(nets))
	m.outer, m.counted = m.nets, min(m.counted, c.rangesIn(m.nets))
	return m
}

// program cuts the ports of each protocol into ranges with a constant list.
func (b *builder) program() Program {
	var always, rest, open []int32
	byProtocol := map[uint8][]int32{}
	for i, it := range b.items {
		id := int32(i)
		if it.ports.any && it.sources.any {
			rest = append(rest, id)
		}
		switch all := it.ports.all() && it.sources.all(); {
		case all:
			always = append(always, id)
			continue
		case it.ports.any:
			open = append(open, id)
		}
		for _, s := range slices.Concat(it.ports.spans, it.sources.spans) {
			ids := byProtocol[s.protocol]
			if !it.ports.any && (len(ids) == 0 || ids[len(ids)-1] != id) {
				ids = append(ids, id)
			}
			byProtocol[s.protocol] = ids
		}
	}
	other := b.list(rest)
	p := Program{Ports: map[uint8][]PortRange{}, Protocols: map[uint8]List{}, Rest: other.list}
	for _, protocol := range slices.Sorted(maps.Keys(byProtocol)) {
		candidates := append(slices.Clone(open), byProtocol[protocol]...)
		slices.Sort(candidates)
		ports, l := b.ports(protocol, always, candidates)
		if len(ports) > 0 {
			p.Ports[protocol] = ports
		}
		if l.key != other.key {
			p.Protocols[protocol] = l.list
		}
	}
	return p
}

// ports returns the ranges of destination ports with another list than the protocol's other ports.
func (b *builder) ports(protocol uint8, always, candidates []int32) ([]PortRange, *listing) {
	candidates = slices.DeleteFunc(candidates, func(i int32) bool {
		sources := &b.items[i].sources
		return !sources.all() && len(sources.of(protocol)) == 0
	})
	spans := func(it *item) []span { return it.ports.of(protocol) }
	return b.sweep(always, candidates, spans, func(active []int32) *listing { return b.bySource(protocol, active) })
}

// bySource is the list for items that match a range of destination ports: with others in it for ranges of source ports.
func (b *builder) bySource(protocol uint8, active []int32) *listing {
	whole := func(i int32) bool { return b.items[i].sources.whole(protocol) }
	narrow := func(i int32) bool { return !whole(i) }
	if !slices.ContainsFunc(active, narrow) {
		return b.list(active)
	}
	always, candidates := slices.DeleteFunc(slices.Clone(active), narrow), slices.DeleteFunc(slices.Clone(active), whole)
	ranges, other := b.sweep(always, candidates, func(it *item) []span { return it.sources.of(protocol) }, b.list)
	if len(ranges) == 0 {
		return other
	}
	l := other.list
	l.Sources = ranges
	return &listing{l, string(appendList(nil, l))}
}

// sweep cuts the ports that candidates match into ranges with a constant list. It returns the ranges with another list
// than the other ports, and the list of the other ports. Items in always are active in all lists.
func (b *builder) sweep(always, candidates []int32, spans func(*item) []span, list func([]int32) *listing) ([]PortRange, *listing) {
	active := slices.Clone(always)
	starts, ends := map[int][]int32{}, map[int][]int32{}
	for _, i := range candidates {
		for _, s := range spans(&b.items[i]) {
			if s.whole() {
				active = insert(active, i)
			} else {
				starts[int(s.first)], ends[int(s.last)+1] = append(starts[int(s.first)], i), append(ends[int(s.last)+1], i)
			}
		}
	}
	other := list(active)
	edges := slices.Concat(slices.Collect(maps.Keys(starts)), slices.Collect(maps.Keys(ends)))
	slices.Sort(edges)
	cuts := []portCut{{0, other}}
	for _, edge := range slices.Compact(edges) {
		for _, i := range ends[edge] {
			active = remove(active, i)
		}
		for _, i := range starts[edge] {
			active = insert(active, i)
		}
		cuts = append(cuts, portCut{edge, list(active)})
	}
	return portRanges(cuts, other), other
}

// portCut is the first port for which a list counts.
type portCut struct {
	first int
	*listing
}

func portRanges(cuts []portCut, other *listing) (found []PortRange) {
	cuts = slices.CompactFunc(cuts, func(a, b portCut) bool { return a.key == b.key })
	for i, c := range cuts {
		last := lastPort
		if i+1 < len(cuts) {
			last = cuts[i+1].first - 1
		}
		if c.key != other.key && c.first <= lastPort {
			found = append(found, PortRange{uint16(c.first), uint16(last), c.list})
		}
	}
	return found
}

func insert(ids []int32, id int32) []int32 {
	i, _ := slices.BinarySearch(ids, id)
	return slices.Insert(ids, i, id)
}

func remove(ids []int32, id int32) []int32 {
	i, _ := slices.BinarySearch(ids, id)
	return slices.Delete(ids, i, i+1)
}
