package policy

// logs returns a program for each Log rule of a subject's policies, which are in the order of evaluation.
func (b *builder) logs(d Direction, policies []int, subject *Pod) (found []Logging) {
	for n, i := range policies {
		for rule := range b.policies[i].Rules[d] {
			k := ruleKey{policy: i, direction: d, rule: rule}
			if b.rule(k).Action != Log || !b.affords(b.spent, k) {
				continue
			}
			if when := b.logging(k, policies[:n], subject); !when.denies() {
				found = append(found, Logging{LogRule{b.policies[i].ID, rule}, when})
			}
		}
	}
	return found
}

// logging returns the program that allows what passes everything before a Log rule and matches the rule. before are the
// policies before the rule's policy.
func (b *builder) logging(k ruleKey, before []int, subject *Pod) Program {
	l := &builder{compiler: b.compiler, lists: map[string]*listing{}, spent: b.spent, end: ending{passes: b.end.passes}}
	tier := b.policies[k.policy].Tier
	for len(before) > 0 && b.policies[before[0]].Tier != tier {
		n := b.sameTier(before)
		items, end := l.decided(k.direction, before[:n], subject), (*Verdict)(nil)
		if b.policies[before[0]].Tier.End == Deny && !b.end.passes {
			end = &Verdict{}
		}
		l.add(tierRules{end: end}, items)
		before = before[n:]
	}
	items := append(l.decided(k.direction, before, subject), decided(l.itemsOf(k.direction, k.policy, k.rule, subject))...)
	for _, it := range b.compiler.items(k, subject) {
		it.verdict = Verdict{Allow: true}
		items = append(items, it)
	}
	l.add(tierRules{end: &Verdict{}}, items)
	return l.program()
}

// decided returns the items of policies, all with the zero verdict: only what passes goes on.
func (b *builder) decided(d Direction, policies []int, subject *Pod) (items []item) {
	for _, p := range policies {
		items = append(items, decided(b.itemsOf(d, p, len(b.policies[p].Rules[d]), subject))...)
	}
	return items
}

func decided(items []item) []item {
	for i := range items {
		items[i].verdict = Verdict{}
	}
	return items
}

// denies reports whether the program denies everything.
func (p *Program) denies() bool {
	return len(p.Ports) == 0 && len(p.Protocols) == 0 && len(p.Rest.Steps) == 0 && !p.Rest.Else.Allow
}
