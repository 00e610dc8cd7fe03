package policy

const (
	// mostElements bounds the networks, and the terms of sets, that the programs of a namespace's pods on this node look up. Rules whose ranges of
	// ports overlap make lists of their own for each range, which grow as the square of the rules: 10,000, which one object has room for, would take
	// all memory of the agent and of the kernel. The limit is reached by 700 rules that all overlap, each with one network.
	mostElements = 250_000
	// mostWork bounds what is merged for them.
	mostWork = 1_000_000
)

// TooLargeText says what TooLarge means, and what to do.
const TooLargeText = "the policies of the namespace are too large for one node, so that its pods pass nothing where their rules would be: use fewer different, " +
	"overlapping ranges of ports, or fewer peers"

// spending is what the programs of a namespace's pods need. What is over the limits is closed: the policies are of that namespace, too.
type spending struct {
	elements, work int
	counted        map[int32]bool // sets, and complements of the numbers of networks
}

func (c *compiler) spendingOf(namespace string) *spending {
	s := c.spent[namespace]
	if s == nil {
		s = &spending{counted: map[int32]bool{}}
		c.spent[namespace] = s
	}
	return s
}

func (s *spending) over() bool { return s.elements > mostElements || s.work > mostWork }

// count counts each set and each list of networks once, as programs share them.
func (s *spending) count(what int32, elements int) {
	if !s.counted[what] {
		s.counted[what] = true
		s.elements += elements
	}
}

func (c *compiler) rangesIn(nets int32) int {
	if nets == none {
		return 0
	}
	return len(c.terms.nets[nets])
}
