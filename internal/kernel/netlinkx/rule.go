package netlinkx

import (
	"github.com/vishvananda/netlink"
)

// Rule is a rule that chooses a routing table, of those that a packet's mark decides on.
type Rule struct {
	Family   Family
	Priority int
	Table    int
	Mark     uint32 // 0: the rule is about something else
}

// Rules lists the rules of both families.
func (c *Conn) Rules() ([]Rule, error) {
	var rules []Rule
	for _, family := range []Family{IPv4, IPv6} {
		found, err := retryDump("rules", func() ([]netlink.Rule, error) { return c.requests.RuleList(int(family)) })
		if err != nil {
			return nil, err
		}
		for _, r := range found {
			rules = append(rules, Rule{Family: family, Priority: r.Priority, Table: r.Table, Mark: r.Mark})
		}
	}
	return rules, nil
}
