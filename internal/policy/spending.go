package policy

const (
	// mostElements bounds the networks, and the terms of sets, that the programs of a namespace's pods on this node look
	// up. Rules with overlapping ranges of ports make a list for each range, which grow as the square of the rules:
	// 10,000, which one object has room for, would take all memory of the agent and of the kernel. 700 rules that all
	// overlap, each with one network, reach the limit.
	//
	// The conditions that pods are tried with count too, for selectors without a distinguishing label. They grow as the
	// square of the selectors, and do not depend on pods, which other users create: 700 reach the limit, and cost 50 µs
	// per pod. The subjects of a namespace's policies are bounded likewise, separately. Selectors of policies without a
	// namespace do not count for its pods: administrators write them, and they would close tenants' pods.
	mostElements = 250_000
	// mostWork bounds the elements merged for these programs.
	mostWork = 1_000_000
	// mostTries bounds the conditions that network sets are tried with for the rules of a namespace's policies, and the
	// networks that are then joined: 10,000 selectors with 2,000 sets would take a minute of each Compile.
	mostTries = 5_000_000
	// triesOfNet is the cost in tries of joining one network.
	triesOfNet = 4
	// mostForeign bounds how much of each selection, and of each list, counts that other users have written, so that they
	// cannot close pods of the namespace.
	mostForeign = 10_000
	// workOfRanges is the number of ranges that cost as much merging as one term.
	workOfRanges = 8
)

// TooLargeText explains TooLarge, with the remedy.
const TooLargeText = "the policies of the namespace are too large for one node, so that its pods pass nothing where their rules would " +
	"be: use fewer different, overlapping ranges of ports, or fewer peers and selectors"

// spending is the cost of the programs of a namespace's pods. What exceeds the limits is closed: the policies are the
// namespace's, too.
type spending struct {
	namespace      string // empty: of host endpoints
	elements, work int
	tries          int
	largest        ID             // the largest policy of the program that exceeded a limit
	counted        map[int32]bool // numbers of sets, and ^number of networks
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
	// doubt: the Deny that follows a Pass, see Rule.doubtful.
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

// exhaust puts the namespace over the limit, because of a policy.
func (s *spending) exhaust(by ID) { s.elements, s.largest = mostElements+1, by }

func (s *spending) over() bool {
	return s.elements > mostElements || s.work > mostWork || s.tries > mostTries
}

// count counts each set and each list of networks once: programs share them.
func (s *spending) count(what int32, elements int) {
	if !s.counted[what] {
		s.counted[what] = true
		s.elements += elements
	}
}

// affords counts the selectors of a rule, each once, and reports whether the rule may be used. Administrators'
// selectors count for host endpoints only.
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

// trySets counts the conditions that network sets are tried with because of a policy of the namespace, and their
// networks that are joined.
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

// bounded returns the counted part of what the namespace and others have written.
func bounded(own, foreign int) int { return own + min(foreign, mostForeign) }

// try counts the conditions that pods are tried with because of a selection.
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
