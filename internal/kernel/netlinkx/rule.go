package netlinkx

import (
	"fmt"

	"github.com/vishvananda/netlink"
)

// Rule is a policy routing rule that chooses a table by a packet's mark.
type Rule struct {
	Family   Family
	Priority int
	Table    int
	Mark     uint32 // 0: the rule is about something else
	Mask     uint32 // the bits of the mark that count
	Not      bool   // for packets without the mark
	Protocol Protocol
	// More marks a listed rule with further conditions, or with an action other than a table lookup.
	More bool
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
			rules = append(rules, ruleFrom(family, r))
		}
	}
	return rules, nil
}

func ruleFrom(family Family, r netlink.Rule) Rule {
	rule := Rule{
		Family: family, Priority: r.Priority, Table: r.Table, Mark: r.Mark, Not: r.Invert, Protocol: Protocol(r.Protocol),
		More: r.Src != nil || r.Dst != nil || r.IifName != "" || r.OifName != "" || r.Tos != 0 || r.TunID != 0 || r.IPProto != 0 ||
			r.Dport != nil || r.Sport != nil || r.UIDRange != nil || r.Goto >= 0 || r.SuppressPrefixlen >= 0 || r.SuppressIfgroup >= 0,
	}
	if r.Mask != nil {
		rule.Mask = *r.Mask
	}
	return rule
}

// AddRule adds a rule; IsExist holds for the error if there is an equal one.
func (c *Conn) AddRule(r Rule) error {
	if err := c.requests.RuleAdd(r.request()); err != nil {
		return fmt.Errorf("add ip rule %d for table %d: %w", r.Priority, r.Table, err)
	}
	return nil
}

// DeleteRule deletes a rule; IsNotExist holds for the error if there is none.
func (c *Conn) DeleteRule(r Rule) error {
	if err := c.requests.RuleDel(r.request()); err != nil {
		return fmt.Errorf("delete ip rule %d for table %d: %w", r.Priority, r.Table, err)
	}
	return nil
}

func (r Rule) request() *netlink.Rule {
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Table, rule.Mark, rule.Mask = int(r.Family), r.Priority, r.Table, r.Mark, &r.Mask
	rule.Invert, rule.Protocol = r.Not, uint8(r.Protocol)
	return rule
}
