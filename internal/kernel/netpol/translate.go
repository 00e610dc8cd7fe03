package netpol

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/policy"
)

// programKey names a program in one direction. Both directions have chains of their own: the peer is the packet's
// source in one and its destination in the other.
type programKey struct {
	policy.Direction
	key  string
	host bool // of a host endpoint
	// silent: nothing is rejected, as the program's hook cannot reject.
	silent bool
}

// program is a program as chains and sets.
type program struct {
	verdict nft.Verdict // of the elements of links
	uses                // by all its chains
}

// uses lists the chains, sets and members in use.
type uses struct {
	chains, sets []string
	ids          []policy.SetID
}

func (u *uses) add(other uses) {
	u.chains = append(u.chains, other.chains...)
	u.sets = append(u.sets, other.sets...)
	u.ids = append(u.ids, other.ids...)
}

func (u *uses) compact() {
	u.chains = slices.Compact(sorted(u.chains))
	u.sets = slices.Compact(sorted(u.sets))
	slices.Sort(u.ids)
	u.ids = slices.Compact(u.ids)
}

func sorted(s []string) []string { slices.Sort(s); return s }

// Denied is the reason why packets were dropped.
type Denied struct {
	policy.Direction
	// By is the policy; empty if Reason is set.
	By policy.ID
	// Reason is "unknown link", "invalid state" or "from pod to its node".
	Reason string
}

// translator makes chains and sets of programs, and keeps them: names are digests of content, so it serves every
// Ruleset with the same member sets.
type translator struct {
	mute     bool // log nothing
	handling policy.Handling
	members  [2]nft.Set // by family: IPv4, IPv6
	chains   map[string]nft.Chain
	sets     map[string]nft.Set
	denied   map[string]Denied // by chain
	programs map[programKey]*program
	within   map[string]uses // everything that a chain uses, directly or not
}

var families = [2]nft.Family{nft.IPv4, nft.IPv6}

func newTranslator(size uint32, mute bool, handling policy.Handling) *translator {
	t := &translator{mute: mute, handling: handling, chains: map[string]nft.Chain{}, sets: map[string]nft.Set{}, denied: map[string]Denied{},
		programs: map[programKey]*program{}, within: map[string]uses{}}
	for i, f := range families {
		t.members[i] = nft.Set{Name: memberSet(i, size), Key: []nft.Type{nft.Mark, f.Addr}, Size: size}
	}
	return t
}

func memberSet(family int, size uint32) string {
	return fmt.Sprintf("members%d-%d", []int{4, 6}[family], size)
}

// program returns a translated program of the Ruleset, from its cache if it can.
func (t *translator) program(rs *policy.Ruleset, key programKey) (*program, error) {
	if p := t.programs[key]; p != nil {
		return p, nil
	}
	if key.key == "" {
		return t.open(rs, key), nil
	}
	from, ok := rs.Programs[key.key]
	if !ok {
		return nil, fmt.Errorf("program %s is not in the ruleset", key.key)
	}
	b := &builder{translator: t, Ruleset: rs, Direction: key.Direction, rejects: t.handling.Reject && !key.silent}
	var rules []nft.Rule
	if !key.host && !t.handling.Invalid { // hosts' base chains drop invalid packets
		rules = append(append(rules, nft.NewRule(invalidState, nft.Invalid.In(), nft.Count(), nft.Do(nft.Drop))), joins(invalidState)...)
	}
	var u uses
	if len(from.Sequence) > 0 {
		rules = append(rules, nft.NewRule("", nft.Do(b.sequence(from.Sequence, &u))))
	} else {
		rules = append(append(rules, b.logs(from.Logs, &u)...), b.lists(from, &u)...)
	}
	if b.err != nil {
		return nil, b.err
	}
	return b.finish(key, rules, u), nil
}

// lists returns rules to the lists of a program.
func (b *builder) lists(from policy.Program, u *uses) (rules []nft.Rule) {
	for _, protocol := range slices.Sorted(maps.Keys(protocols(from))) {
		is := nft.L4Proto.Is(nft.ByteKey(protocol))
		if ranges := from.Ports[protocol]; len(ranges) > 0 {
			rules = append(rules, b.byPort(protocol, ranges, u)...)
		}
		if list, ok := from.Protocols[protocol]; ok {
			rules = append(rules, nft.NewRule("", is, nft.Do(b.list(protocol, list, u))))
		}
	}
	return append(rules, nft.NewRule("", nft.Do(b.list(0, from.Rest, u))))
}

// byPort returns rules to the lists of ranges of destination ports. A protocol without ports has the list of port 0.
func (b *builder) byPort(protocol uint8, ranges []policy.PortRange, u *uses) (rules []nft.Rule) {
	is := nft.L4Proto.Is(nft.ByteKey(protocol))
	switch {
	case policy.HasPorts(protocol):
		return []nft.Rule{nft.NewRule("", is, nft.Map(b.ports(protocol, ranges, u), nft.DestPort))}
	case protocol == unix.IPPROTO_ICMP || protocol == unix.IPPROTO_ICMPV6:
		for _, r := range ranges {
			between := nft.ICMPTypeCode.Between(nft.PortKey(r.First), nft.PortKey(r.Last))
			rules = append(rules, nft.NewRule("", is, between, nft.Do(b.list(protocol, r.List, u))))
		}
	case ranges[0].First == 0:
		rules = append(rules, nft.NewRule("", is, nft.Do(b.list(protocol, ranges[0].List, u))))
	}
	return rules
}

// logs returns rules that log what Log rules match, and go on.
func (b *builder) logs(logs []policy.Logging, u *uses) (rules []nft.Rule) {
	if b.mute {
		return nil
	}
	for _, l := range logs {
		var inner uses
		to := b.logging(l.LogRule, &inner)
		rules = append(rules, nft.NewRule("", nft.Do(b.matching("log-", b.Direction, l.When, to, inner, u))))
	}
	return rules
}

// matching returns a jump to a chain that sends what a program allows to the verdict to; all else returns. inner is
// what to uses.
func (b *builder) matching(prefix string, d policy.Direction, when policy.Program, to nft.Verdict, inner uses, u *uses) nft.Verdict {
	by := &builder{translator: b.translator, Ruleset: b.Ruleset, Direction: d, match: &to}
	rules := by.lists(when, &inner)
	b.err = errors.Join(b.err, by.err)
	return nft.Jump(by.chain(prefix, rules, inner, u).Chain())
}

// logging returns the verdict that leads to a chain which logs and returns.
func (b *builder) logging(r policy.LogRule, u *uses) nft.Verdict {
	return b.chain("logs-", []nft.Rule{nft.NewRule("", nft.Within(b.logRate()), nft.Log(LogGroup, logText(b.Direction, r)))}, uses{}, u)
}

// sequence returns the verdict that leads to a chain for the segments up to the first Pass target, which leads to a
// chain for the next segments.
func (b *builder) sequence(all []policy.Segment, u *uses) nft.Verdict {
	starts := map[int]nft.Verdict{}
	within := map[int]uses{}
	passed := map[int]bool{0: true}
	for _, s := range all {
		passed[s.Next] = passed[s.Next] || s.Then == policy.Pass
	}
	var rules []nft.Rule
	var inner uses
	for i := len(all) - 1; i >= 0; i-- {
		s := all[i]
		inner.add(within[s.Next])
		rules = append(b.segment(s, starts[s.Next], &inner), rules...)
		if passed[i] {
			var of uses
			starts[i] = b.chain("s-", rules, inner, &of)
			within[i] = of
			rules, inner = []nft.Rule{nft.NewRule("", nft.Do(starts[i]))}, of
		}
	}
	u.add(within[0])
	return starts[0]
}

// segment returns the rule for a segment; it goes on if the segment does not match. pass is the target of Pass.
func (b *builder) segment(s policy.Segment, pass nft.Verdict, u *uses) []nft.Rule {
	var inner uses
	to := pass
	switch {
	case s.Then == policy.Log && b.mute:
		return nil
	case s.Then == policy.Log:
		to = b.logging(s.Log, &inner)
	case s.Then != policy.Pass:
		to = b.verdict(s.Verdict, &inner)
	}
	var when uses
	jump := b.matching("m-", b.Direction, s.When, to, inner, &when)
	if s.Own != nil {
		own := policy.Program{Rest: *s.Own}
		var of uses
		jump = b.matching("o-", 1-b.Direction, own, nft.Goto(jump.Chain()), when, &of)
		when = of
	}
	u.add(when)
	return []nft.Rule{nft.NewRule("", nft.Do(jump))}
}

// open returns the program of a direction in which everything passes, while a program decides on the other direction.
func (t *translator) open(rs *policy.Ruleset, key programKey) *program {
	b := &builder{translator: t, Ruleset: rs, Direction: key.Direction}
	rules := []nft.Rule{nft.NewRule("", nft.Do(nft.Accept))}
	if !t.handling.Invalid {
		rules = append(joins(key.Direction.String()+" "+invalidState), rules...)
	}
	return b.finish(key, rules, uses{})
}

// joins drops packets that conntrack takes for a new connection, but that are from the middle of one. In a connection
// ended by a policy, an answer, or an SCTP heartbeat, would begin it anew from the other end. Untracked packets, such
// as of a DNS cache on the node, are excluded: policies judge each.
func joins(comment string) []nft.Rule {
	in := func(protocol uint8, middle nft.Term) nft.Rule {
		return nft.NewRule(comment, nft.L4Proto.Is(nft.ByteKey(protocol)), nft.Opens.In(), middle, nft.Count(), nft.Do(nft.Drop))
	}
	return []nft.Rule{in(unix.IPPROTO_TCP, nft.JoinsTCP()), in(unix.IPPROTO_SCTP, nft.JoinsSCTP())}
}

func (b *builder) finish(key programKey, rules []nft.Rule, u uses) *program {
	p := &program{}
	p.verdict = b.chain("p-", rules, u, &p.uses)
	p.compact()
	b.denied[p.verdict.Chain()] = Denied{Direction: key.Direction, Reason: invalidState}
	b.programs[key] = p
	return p
}

func protocols(p policy.Program) map[uint8]bool {
	all := map[uint8]bool{}
	for n := range p.Ports {
		all[n] = true
	}
	for n := range p.Protocols {
		all[n] = true
	}
	return all
}

// builder makes the chains and sets of one program.
type builder struct {
	*translator
	*policy.Ruleset
	policy.Direction
	rejects bool
	match   *nft.Verdict // if set, what is allowed goes there, and all else returns
	made    map[shared]nft.Verdict
	err     error
}

// shared identifies a list that ranges of ports share: Compile gives equal lists the same steps.
type shared struct {
	first *policy.Step
	end   policy.Verdict
}

// chain adds a chain, named by its content, and returns the verdict that leads to it. by collects the uses.
func (b *builder) chain(prefix string, rules []nft.Rule, u uses, by *uses) nft.Verdict {
	c := nft.Chain{Rules: rules}
	c.Name = prefix + c.Digest()
	if _, ok := b.chains[c.Name]; !ok {
		u.chains = append(u.chains, c.Name)
		u.compact()
		b.chains[c.Name], b.within[c.Name] = c, u
	}
	by.add(b.within[c.Name])
	return nft.Goto(c.Name)
}

// ports adds the map of a protocol's ports to lists, and returns its name.
func (b *builder) ports(protocol uint8, ranges []policy.PortRange, u *uses) string {
	s := nft.Set{Key: []nft.Type{nft.Port}, Value: nft.VerdictType, Interval: true}
	for _, r := range ranges {
		s.Elements = append(s.Elements, nft.Element{First: nft.PortKey(r.First), Last: nft.PortKey(r.Last), Verdict: b.list(protocol, r.List, u)})
	}
	s.Name = "ports-" + s.Digest()
	b.sets[s.Name] = s
	u.sets = append(u.sets, s.Name)
	return s.Name
}

// list translates a list; without steps it needs no chain. It is only for packets of the protocol, if that is not 0.
func (b *builder) list(protocol uint8, l policy.List, u *uses) nft.Verdict {
	var key shared
	if len(l.Steps) > 0 && len(l.Sources) == 0 {
		key = shared{&l.Steps[0], l.Else}
	}
	if v, ok := b.made[key]; ok {
		u.add(b.within[v.Chain()])
		return v
	}
	var inner uses
	var rules []nft.Rule
	if len(l.Sources) > 0 && policy.HasPorts(protocol) {
		sources := nft.Map(b.ports(protocol, l.Sources, &inner), nft.SrcPort)
		rules = append(rules, nft.NewRule("", nft.L4Proto.Is(nft.ByteKey(protocol)), sources))
	} else if len(l.Sources) > 0 && l.Sources[0].First == 0 {
		l = l.Sources[0].List
	}
	for _, step := range l.Steps {
		rules = append(rules, b.step(step, &inner)...)
	}
	end := b.verdict(l.Else, &inner)
	if len(rules) == 0 {
		u.add(inner)
		return end
	}
	v := b.chain("l-", append(rules, nft.NewRule("", nft.Do(end))), inner, u)
	if key.first != nil {
		if b.made == nil {
			b.made = map[shared]nft.Verdict{}
		}
		b.made[key] = v
	}
	return v
}

// step returns a rule for each family: a set may have members of both.
func (b *builder) step(s policy.Step, u *uses) []nft.Rule {
	v := nft.Do(b.verdict(s.Verdict, u))
	var rules []nft.Rule
	if s.Set != 0 {
		u.ids = append(u.ids, s.Set)
		for i, f := range families {
			rules = append(rules, nft.NewRule("", f.Is(), nft.In(b.members[i].Name, nft.Constant(uint32(s.Set)), b.peer(f)), v))
		}
		return rules
	}
	for i, f := range families {
		if set := b.nets(i, s.Nets); set != "" {
			u.sets = append(u.sets, set)
			rules = append(rules, nft.NewRule("", f.Is(), nft.In(set, b.peer(f)), v))
		}
	}
	return rules
}

// peer returns the field of the address by which a list decides.
func (b *builder) peer(f nft.Family) nft.Field {
	if b.Direction == policy.Ingress {
		return f.Src
	}
	return f.Dest
}

// nets adds the set of a family's ranges and returns its name, or "" if there are no ranges.
func (b *builder) nets(family int, key string) string {
	ranges, ok := b.Nets[key]
	if !ok {
		b.err = fmt.Errorf("networks %s are not in the ruleset", key)
	}
	s := nft.Set{Name: fmt.Sprintf("nets%d-%s", []int{4, 6}[family], key), Key: []nft.Type{families[family].Addr}, Interval: true}
	if _, ok := b.sets[s.Name]; ok {
		return s.Name
	}
	for _, r := range ranges {
		if r.First.Is4() == (family == 0) {
			s.Elements = append(s.Elements, nft.Element{First: nft.AddrKey(r.First), Last: nft.AddrKey(r.Last)})
		}
	}
	if len(s.Elements) == 0 {
		return ""
	}
	b.sets[s.Name] = s
	return s.Name
}

// deniedRate bounds the log of packets that one policy denies in one direction.
var deniedRate = nft.Rate{Packets: 5, Seconds: 1, Burst: 5}

// verdict translates a verdict. A denial leads to a chain that logs, counts, and drops or rejects.
func (b *builder) verdict(v policy.Verdict, u *uses) nft.Verdict {
	switch {
	case b.match != nil && v.Allow:
		return *b.match
	case b.match != nil:
		return nft.Return
	case v.NoTrack:
		return b.chain("notrack-", []nft.Rule{nft.NewRule("", nft.NoTrack(), nft.SetMark(finalMark), nft.Do(nft.Accept))}, uses{}, u)
	case v.Final:
		return b.chain("final-", []nft.Rule{nft.NewRule("", nft.SetMark(finalMark), nft.Do(nft.Accept))}, uses{}, u)
	case v.Allow:
		return nft.Accept
	}
	denied := Denied{Direction: b.Direction, By: v.By}
	text, end := denied.String(), nft.Do(nft.Drop)
	if b.rejects {
		end = nft.Reject()
	}
	rules := []nft.Rule{nft.NewRule("", nft.Within(deniedRate), nft.Log(LogGroup, text)), nft.NewRule(text, nft.Count(), end)}
	if b.mute {
		rules = rules[1:]
	}
	to := b.chain("deny-", rules, uses{}, u)
	b.denied[to.Chain()] = denied
	return to
}

// maxText is the longest text in comments of rules and prefixes of logs.
const maxText = 127

// String returns "ingress NetworkPolicy default/web", or "egress unknown link", for the rule's comment and the log's
// prefix. A digest replaces the end of a long name.
func (d Denied) String() string {
	text := d.Direction.String() + " " + d.Reason
	if d.Reason == "" {
		text = d.Direction.String() + " " + d.By.String()
	}
	return short(text)
}

// parseDenied parses the result of String; a name that was too long stays cut.
func parseDenied(text string) (d Denied, ok bool) {
	direction, by, found := strings.Cut(text, " ")
	switch direction {
	case policy.Ingress.String():
	case policy.Egress.String():
		d.Direction = policy.Egress
	default:
		return d, false
	}
	if !found {
		return d, false
	}
	kind, name, named := strings.Cut(by, " ")
	if !named || !strings.HasSuffix(kind, "Policy") {
		d.Reason = by
		return d, true
	}
	d.By.Kind, d.By.Name = kind, name
	if namespace, inside, ok := strings.Cut(name, "/"); ok {
		d.By.Namespace, d.By.Name = namespace, inside
	}
	return d, true
}

// logged begins the log prefix of Log rules; prefixes of denials never begin so.
const logged = "log "

// logText returns a text such as "log ingress NetworkPolicy default/web rule 2".
func logText(d policy.Direction, r policy.LogRule) string {
	return short(fmt.Sprintf("%s%s %s rule %d", logged, d, r.Policy, r.Rule))
}

func short(text string) string {
	if len(text) <= maxText {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	end := "~" + hex.EncodeToString(sum[:5])
	return text[:maxText-len(end)] + end
}

// prune drops what is not used.
func (t *translator) prune(used map[programKey]bool, w *image) {
	maps.DeleteFunc(t.programs, func(k programKey, _ *program) bool { return !used[k] })
	maps.DeleteFunc(t.chains, func(name string, _ nft.Chain) bool { _, ok := w.chains[name]; return !ok })
	maps.DeleteFunc(t.within, func(name string, _ uses) bool { _, ok := w.chains[name]; return !ok })
	maps.DeleteFunc(t.denied, func(name string, _ Denied) bool { _, ok := w.chains[name]; return !ok })
	maps.DeleteFunc(t.sets, func(name string, _ nft.Set) bool { _, ok := w.sets[name]; return !ok })
}
