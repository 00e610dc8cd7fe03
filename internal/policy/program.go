package policy

import (
	"cmp"
	"encoding/binary"
	"iter"
	"maps"
	"slices"
)

// Lists are all lists of a program.
func (p Program) Lists() iter.Seq[List] {
	return func(yield func(List) bool) {
		if !yield(p.Rest) {
			return
		}
		for _, l := range p.Protocols {
			if !yield(l) {
				return
			}
		}
		for _, ranges := range p.Ports {
			for _, r := range ranges {
				if !yield(r.List) {
					return
				}
			}
		}
	}
}

// tierRules are the rules of a tier for a subject: numbers of builder.items.
type tierRules struct {
	// end is what becomes of what no rule matches, if the tier ends with Deny.
	end   *Verdict
	items []int32
	// union: all rules allow, so that their order does not matter.
	union bool
}

// builder makes the program of one subject and direction.
type builder struct {
	*compiler
	tiers []tierRules
	items []item
	lists map[string]*listing // by the items that match
	spent *spending
}

// listing is a List with its canonical form.
type listing struct {
	list List
	key  string
}

// build makes the program of a subject that the policies select, which are in the order of evaluation.
func (c *compiler) build(d Direction, policies []int, subject *Pod) *Program {
	if len(policies) == 0 {
		return &Program{Rest: List{Else: Verdict{Allow: true}}}
	}
	b := &builder{compiler: c, lists: map[string]*listing{}, spent: c.spendingOf(subject.Namespace)}
	all := policies
	for len(policies) > 0 && !b.spent.over() {
		tier := c.policies[policies[0]].Tier
		n := 1
		for n < len(policies) && c.policies[policies[n]].Tier == tier {
			n++
		}
		b.addTier(d, policies[:n], subject)
		policies = policies[n:]
	}
	p := b.program()
	if !b.spent.over() {
		return &p
	}
	if b.spent.largest == (ID{}) {
		b.spent.largest = c.policies[slices.MaxFunc(all, func(x, y int) int { return cmp.Compare(c.policies[x].size(d), c.policies[y].size(d)) })].ID
	}
	closed := &Program{Rest: List{Else: Verdict{By: b.spent.largest}}}
	c.tooLarge[closed] = b.spent.largest
	return closed
}

// size is how much the policy has to say.
func (p *Policy) size(d Direction) (size int) {
	for _, r := range p.Rules[d] {
		size += 1 + len(r.Peers) + len(r.Ports)
	}
	return size
}

func (b *builder) addTier(d Direction, policies []int, subject *Pod) {
	first := b.policies[policies[0]]
	tier := tierRules{}
	if first.Tier.End == Deny {
		tier.end = &Verdict{By: first.ID}
	}
	var items []item
	for _, p := range policies {
		for rule := range b.policies[p].Rules[d] {
			if b.affords(b.spent, ruleKey{p, d, rule}) {
				items = append(items, b.compiler.items(p, d, rule, subject)...)
			}
		}
	}
	if tier.union = !slices.ContainsFunc(items, func(it item) bool { return !it.verdict.Allow }); tier.union {
		items = b.bundle(items)
	}
	for _, it := range items {
		tier.items = append(tier.items, int32(len(b.items)))
		b.items = append(b.items, it)
	}
	b.tiers = append(b.tiers, tier)
}

// bundle joins the items that have the same ports, the widest first.
func (b *builder) bundle(items []item) []item {
	byPorts := map[string][]*clause{}
	bundles := map[string]item{}
	for _, it := range items {
		key := spansKey(it)
		byPorts[key] = append(byPorts[key], it.clause)
		bundles[key] = it
	}
	joined := make([]item, 0, len(bundles))
	for _, key := range slices.Sorted(maps.Keys(bundles)) {
		it := bundles[key]
		it.clause = b.merge(byPorts[key])
		joined = append(joined, it)
	}
	slices.SortStableFunc(joined, func(x, y item) int { return cmp.Compare(y.width(), x.width()) })
	return joined
}

func spansKey(it item) string {
	if it.anyPort {
		return "any"
	}
	var b []byte
	for _, s := range it.spans {
		b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(append(b, s.protocol), s.first), s.last)
	}
	return string(b)
}

func (it item) width() (ports int) {
	if it.anyPort {
		return 1 << 30
	}
	for _, s := range it.spans {
		ports += int(s.last) - int(s.first) + 1
	}
	return ports
}

// merge is the clause that matches what one of the clauses matches.
func (c *compiler) merge(clauses []*clause) *clause {
	if len(clauses) == 1 {
		return clauses[0]
	}
	m := &clause{nets: none}
	var nets ranges
	for _, cl := range clauses {
		m.any = m.any || cl.any
		m.terms = append(m.terms, cl.terms...)
		if cl.nets != none {
			nets = append(nets, c.terms.nets[cl.nets]...)
		}
	}
	slices.Sort(m.terms)
	m.terms, m.nets = slices.Compact(m.terms), c.terms.addNets(normal(nets))
	return m
}

// program cuts the ports of each protocol into ranges with a constant list.
func (b *builder) program() Program {
	anywhere, byProtocol := []int32{}, map[uint8][]int32{}
	for i, it := range b.items {
		if it.anyPort {
			anywhere = append(anywhere, int32(i))
			continue
		}
		for _, s := range it.spans {
			if ids := byProtocol[s.protocol]; len(ids) == 0 || ids[len(ids)-1] != int32(i) {
				byProtocol[s.protocol] = append(ids, int32(i))
			}
		}
	}
	rest := b.list(anywhere)
	p := Program{Ports: map[uint8][]PortRange{}, Protocols: map[uint8]List{}, Rest: rest.list}
	for _, protocol := range slices.Sorted(maps.Keys(byProtocol)) {
		ports, other := b.ports(protocol, anywhere, byProtocol[protocol])
		if len(ports) > 0 {
			p.Ports[protocol] = ports
		}
		if other.key != rest.key {
			p.Protocols[protocol] = other.list
		}
	}
	return p
}

// ports returns the ranges whose list is not that of the protocol's other ports.
func (b *builder) ports(protocol uint8, anywhere, candidates []int32) ([]PortRange, *listing) {
	active := slices.Clone(anywhere)
	starts, ends := map[int][]int32{}, map[int][]int32{}
	for _, i := range candidates {
		for _, s := range b.items[i].spans {
			switch {
			case s.protocol != protocol:
			case s.whole():
				active = insert(active, i)
			default:
				starts[int(s.first)], ends[int(s.last)+1] = append(starts[int(s.first)], i), append(ends[int(s.last)+1], i)
			}
		}
	}
	other := b.list(active)
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
		cuts = append(cuts, portCut{edge, b.list(active)})
	}
	return portRanges(cuts, other), other
}

// portCut is a port from which on a list counts.
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
