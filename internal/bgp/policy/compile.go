package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp/wire"
)

// Compile compiles one of a BGPFilter's four lists. Each error names a rule that cannot be used, its field, the value
// and a remedy; the rules are nil then. The filter's other lists must then not be used either: half of a filter may
// accept paths that the other half should stop.
func Compile(name string, spec *api.BGPFilterSpec, d Direction, family wire.Family) (*Rules, []error) {
	list, from := listOf(spec, d, family)
	var rules []Rule
	var errs []error
	for i := range from {
		rule, err := compileRule(&from[i], family)
		if err != nil {
			errs = append(errs, fmt.Errorf("spec.%s[%d].%w", list, i, err))
			continue
		}
		if rule.outcome.Verdict == Reject {
			rule.outcome.Reason = fmt.Sprintf("filter %s rule %d", name, i+1)
		}
		rules = append(rules, rule)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return Join(&Rules{rules: rules}), nil
}

// listOf returns the list and its name in the object.
func listOf(spec *api.BGPFilterSpec, d Direction, family wire.Family) (string, []api.BGPFilterRule) {
	switch {
	case d == Import && family == wire.IPv4:
		return "importV4", spec.ImportV4
	case d == Import:
		return "importV6", spec.ImportV6
	case family == wire.IPv4:
		return "exportV4", spec.ExportV4
	}
	return "exportV6", spec.ExportV6
}

// compileRule checks a rule. Its error begins with the field.
func compileRule(from *api.BGPFilterRule, family wire.Family) (Rule, error) {
	r := Rule{family: family}
	for _, step := range []func(*api.BGPFilterRule) error{
		func(from *api.BGPFilterRule) error { return r.setPrefix(from, family) },
		r.setSource, r.setPeerType, r.setInterface, r.setCommunity, r.setPath, r.setPriority, r.setAction,
	} {
		if err := step(from); err != nil {
			return Rule{}, err
		}
	}
	return r, nil
}

func bitsOf(family wire.Family) int {
	if family == wire.IPv4 {
		return 32
	}
	return 128
}

// setPrefix reads cidr, matchOperator and prefixLength.
func (r *Rule) setPrefix(from *api.BGPFilterRule, family wire.Family) error {
	if from.CIDR == "" {
		return orphans(from)
	}
	p, err := netip.ParsePrefix(from.CIDR)
	switch {
	case err != nil || wire.FamilyOf(p.Addr()) != family || p.Addr().Is4In6():
		return fmt.Errorf("cidr %q: write a prefix of %s such as %s", from.CIDR, family, example(family))
	case p != p.Masked():
		return fmt.Errorf("cidr %q: there are bits behind its length: write %s", from.CIDR, p.Masked())
	}
	r.prefix, r.least, r.most = p, p.Bits(), bitsOf(family)
	switch from.MatchOperator {
	case api.FilterEqual, api.FilterNotEqual:
		r.most = p.Bits()
	case api.FilterIn, api.FilterNotIn:
	case "":
		return errors.New("matchOperator is missing: a rule with a cidr needs one of Equal, NotEqual, In and NotIn")
	default:
		return fmt.Errorf("matchOperator %q: use Equal, NotEqual, In or NotIn", from.MatchOperator)
	}
	r.not = from.MatchOperator == api.FilterNotEqual || from.MatchOperator == api.FilterNotIn
	return r.bound(from.PrefixLength, bitsOf(family))
}

// orphans returns an error for a field that has no meaning without a cidr.
func orphans(from *api.BGPFilterRule) error {
	if from.MatchOperator != "" {
		return fmt.Errorf("matchOperator %q: there is no cidr: set one, or leave the operator out", from.MatchOperator)
	}
	if from.PrefixLength != nil {
		return errors.New("prefixLength: there is no cidr: set one, 0.0.0.0/0 or ::/0 for all prefixes")
	}
	return nil
}

func example(family wire.Family) string {
	if family == wire.IPv4 {
		return "10.0.0.0/8"
	}
	return "fd00::/8"
}

// bound narrows the range of prefix lengths. A minimum shorter than the cidr means the cidr's, as in Calico.
func (r *Rule) bound(length *api.BGPFilterPrefixLength, longest int) error {
	if length == nil {
		return nil
	}
	low, high := 0, longest
	for _, end := range []struct {
		name string
		from *int32
		to   *int
	}{{"min", length.Min, &low}, {"max", length.Max, &high}} {
		if end.from == nil {
			continue
		}
		if *end.from < 0 || int(*end.from) > longest {
			return fmt.Errorf("prefixLength.%s %d: write a length from 0 to %d", end.name, *end.from, longest)
		}
		*end.to = int(*end.from)
	}
	low = max(low, r.prefix.Bits())
	if low > high {
		return fmt.Errorf("prefixLength.max %d: no prefix in %s is so short, or min is greater: write %d or more", high, r.prefix, low)
	}
	// Equal matches one length only: with a range that excludes it the rule matches nothing.
	r.least, r.most = max(low, r.least), min(high, r.most)
	return nil
}

func (r *Rule) setSource(from *api.BGPFilterRule) error {
	r.learned = from.Source == api.FilterRemotePeers
	if from.Source != "" && !r.learned {
		return fmt.Errorf("source %q: use %s or leave it out", from.Source, api.FilterRemotePeers)
	}
	return nil
}

func (r *Rule) setPeerType(from *api.BGPFilterRule) error {
	r.external, r.internal = from.PeerType == api.FilterEBGP, from.PeerType == api.FilterIBGP
	if from.PeerType != "" && !r.external && !r.internal {
		return fmt.Errorf("peerType %q: use %s, %s or leave it out", from.PeerType, api.FilterEBGP, api.FilterIBGP)
	}
	return nil
}

// interfaceName is Calico's pattern of the field.
var interfaceName = regexp.MustCompile(`^[a-zA-Z0-9_.*-]{1,15}$`)

func (r *Rule) setInterface(from *api.BGPFilterRule) error {
	r.iface = from.Interface
	if r.iface != "" && !interfaceName.MatchString(r.iface) {
		return fmt.Errorf("interface %q: write a name of up to 15 letters, digits, dots, hyphens and underscores, with * for any text", r.iface)
	}
	return nil
}

func (r *Rule) setCommunity(from *api.BGPFilterRule) (err error) {
	if from.Communities == nil {
		return nil
	}
	if n := len(from.Communities.Values); n != 1 {
		return fmt.Errorf("communities.values has %d values: write one, and a rule for each other one", n)
	}
	r.has = true
	if r.community, err = ParseCommunity(from.Communities.Values[0]); err != nil {
		return fmt.Errorf("communities.values: %w", err)
	}
	return nil
}

func (r *Rule) setPath(from *api.BGPFilterRule) error {
	r.path = slices.Clone(from.ASPathPrefix)
	return checkNumbers("asPathPrefix", r.path)
}

func checkNumbers(field string, numbers []uint32) error {
	if slices.Contains(numbers, 0) {
		return fmt.Errorf("%s %v: no AS has the number 0: write numbers from 1 to 4294967295", field, numbers)
	}
	return nil
}

func (r *Rule) setPriority(from *api.BGPFilterRule) (err error) {
	if from.Priority != nil {
		r.priority, err = checkPriority("priority", *from.Priority)
	}
	return err
}

func checkPriority(field string, value int) (uint32, error) {
	if value < 1 || value >= maxPriority {
		return 0, fmt.Errorf("%s %d: write a number from 1 to %d; %d is normal", field, value, maxPriority-1, NormalPriority)
	}
	return uint32(value), nil
}

// maxItems bounds the operations of a rule and the AS numbers of an operation, and so the growth of a path.
const maxItems = 10

func (r *Rule) setAction(from *api.BGPFilterRule) error {
	switch {
	case from.Action != api.FilterAccept && from.Action != api.FilterReject:
		return fmt.Errorf("action %q: use %s or %s", from.Action, api.FilterAccept, api.FilterReject)
	case from.Action == api.FilterReject && len(from.Operations) > 0:
		return fmt.Errorf("operations: a route that is rejected can't be changed: leave them out, or make the action %s", api.FilterAccept)
	case from.Action == api.FilterReject:
		r.outcome = reject("")
		return nil
	case len(from.Operations) > maxItems:
		return fmt.Errorf("operations has %d: write %d at most", len(from.Operations), maxItems)
	}
	r.outcome.Verdict = Accept
	for i := range from.Operations {
		if err := operate(&r.outcome.Change, &from.Operations[i]); err != nil {
			return fmt.Errorf("operations[%d]%w", i, err)
		}
	}
	return nil
}

// operate adds an operation to a change. Its error begins with the dot before the field, or with a colon.
func operate(c *wire.Change, op *api.BGPFilterOperation) error {
	set := 0
	for _, is := range []bool{op.AddCommunity != nil, op.PrependASPath != nil, op.SetPriority != nil} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		return fmt.Errorf(": it has %d of addCommunity, prependASPath and setPriority: write one operation for each", set)
	case op.AddCommunity != nil:
		community, err := ParseCommunity(op.AddCommunity.Value)
		if err != nil {
			return fmt.Errorf(".addCommunity.value: %w", err)
		}
		if !slices.Contains(c.Add, community) {
			c.Add = append(c.Add, community)
		}
	case op.PrependASPath != nil:
		numbers := op.PrependASPath.Prefix
		if len(numbers) == 0 || len(numbers) > maxItems {
			return fmt.Errorf(".prependASPath.prefix has %d numbers: write 1 to %d", len(numbers), maxItems)
		}
		if err := checkNumbers(".prependASPath.prefix", numbers); err != nil {
			return err
		}
		c.Prepend = slices.Concat(numbers, c.Prepend) // the last operation's numbers come first
	default:
		priority, err := checkPriority(".setPriority.value", op.SetPriority.Value)
		if err != nil {
			return err
		}
		c.SetLocalPref, c.LocalPref = true, LocalPref(priority)
	}
	return nil
}
