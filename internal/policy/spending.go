package policy

const (
	// mostElements bounds the networks, and the terms of sets, that the programs of a namespace's pods on this node look
	// up. Rules whose ranges of ports overlap make lists of their own for each range, which grow as the square of the
	// rules: 10,000, which one object has room for, would take all memory of the agent and of the kernel. The limit is
	// reached by 700 rules that all overlap, each with one network. What pods are tried with counts, too: the conditions
	// of different selectors that no label tells apart. It grows as their square, and does not depend on pods, which are
	// other users': 700 reach the limit, and cost 50 µs for a pod. So it is with the subjects of a namespace's policies,
	// by themselves. Selectors of policies that are of no namespace do not count for its pods: administrators have written
	// them, and they would close tenants' pods.
	mostElements = 250_000
	// mostWork bounds what is merged for them.
	mostWork = 1_000_000
	// mostTries bounds the conditions that network sets are tried with for the rules of a namespace's policies, and the
	// networks that are then joined: 10,000 selectors with 2,000 sets would take a minute of each Compile.
	mostTries = 5_000_000
	// triesOfNet is how many tries the joining of one network counts for.
	triesOfNet = 4
	// mostForeign bounds what counts of that which others have written, so that they close no pods of the namespace: so
	// much of each selection, and of each list.
	mostForeign = 10_000
	// workOfRanges is how many ranges of addresses are merged for the work of one term.
	workOfRanges = 8
)

// TooLargeText says what TooLarge means, and what to do.
const TooLargeText = "the policies of the namespace are too large for one node, so that its pods pass nothing where their rules would " +
	"be: use fewer different, overlapping ranges of ports, or fewer peers and selectors"

// spending is what the programs of a namespace's pods need. What is over the limits is closed: the policies are of that
// namespace, too.
type spending struct {
	namespace      string // empty: of host endpoints
	elements, work int
	tries          int
	largest        ID             // of the policies of the program that went over
	counted        map[int32]bool // sets, and complements of the numbers of networks
	rules          map[ruleKey]bool
	selections     map[string]bool
	ofSets         map[string]bool // selections that network sets were tried with
	conditions     map[place]int
}

// ruleKey names a rule.
type ruleKey struct {
	policy    int
	direction Direction
	rule      int
	// doubt: of a Pass, the Deny that follows it, see Rule.doubtful.
	doubt bool
}

func (c *compiler) spendingOf(namespace string) *spending {
	s := c.spent[namespace]
	if s == nil {
		s = &spending{namespace: namespace, counted: map[int32]bool{}, rules: map[ruleKey]bool{}, selections: map[string]bool{},
			ofSets: map[string]bool{}, conditions: map[place]int{}}
		c.spent[namespace] = s
	}
	return s
}

// exhaust leaves nothing, because of a policy.
func (s *spending) exhaust(by ID) { s.elements, s.largest = mostElements+1, by }

func (s *spending) over() bool {
	return s.elements > mostElements || s.work > mostWork || s.tries > mostTries
}

// count counts each set and each list of networks once, as programs share them.
func (s *spending) count(what int32, elements int) {
	if !s.counted[what] {
		s.counted[what] = true
		s.elements += elements
	}
}

// affords counts the selectors of a rule, each once, and reports whether the rule may be used. Administrators'
// selectors count for host endpoints alone.
func (c *compiler) affords(s *spending, k ruleKey) bool {
	policy, rule := &c.policies[k.policy], c.rule(k)
	if s.rules[k] || policy.Namespace != s.namespace {
		return !s.over()
	}
	s.rules[k] = true
	for _, peer := range rule.Peers {
		pods := peer.Pods
		if peer.Match != nil {
			pods = peer.Match.Select
		}
		if pods != nil && !s.over() {
			s.try(pods)
		}
		c.trySets(s, policy.Namespace, peer.Match, rule.Action)
	}
	c.trySets(s, policy.Namespace, rule.Own, rule.Action)
	return !s.over()
}

// trySets counts what network sets are tried with because of a policy of the namespace, and what is joined of theirs.
func (c *compiler) trySets(s *spending, namespace string, m *Match, action Action) {
	if namespace == "" || m == nil || m.Select == nil || s.over() {
		return
	}
	key := m.Select.identity()
	if s.ofSets[key] {
		return
	}
	s.ofSets[key] = true
	x := c.networkSets()
	candidates := x.candidates(m.Select)
	own := len(x.of(candidates, namespace))
	s.tries += m.Select.size() * bounded(own, len(candidates)-own)
	if !s.over() {
		s.tries += triesOfNet * c.selectedBy(m, action).of(namespace)
	}
}

// bounded is how much counts of what the namespace and others have written.
func bounded(own, foreign int) int { return own + min(foreign, mostForeign) }

// try counts what pods are tried with because of a selection.
func (s *spending) try(pods *Pods) {
	key := pods.identity()
	if s.selections[key] {
		return
	}
	s.selections[key] = true
	size := pods.size()
	places, tries := pods.places(func(p place) int { return s.conditions[p] })
	s.elements += size * (tries + size - 1)
	for _, p := range places {
		s.conditions[p] += size
	}
}

func (c *compiler) rangesIn(nets int32) int {
	if nets == none {
		return 0
	}
	return len(c.terms.nets[nets])
}
