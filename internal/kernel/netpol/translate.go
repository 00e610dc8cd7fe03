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

// programKey names a program in one direction: as the peer is the packet's source in one and its destination in the
// other, both have chains of their own.
type programKey struct {
	policy.Direction
	key  string
	host bool // of a host endpoint
	// silent: nothing is rejected, as the program is for a hook that cannot.
	silent bool
}

// program is the kernel's form of a program.
type program struct {
	verdict nft.Verdict // of the elements of links
	uses                // of all its chains
}

// uses are chains, sets and members that something uses.
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

// Denied says why packets were dropped.
type Denied struct {
	policy.Direction
	// By is the policy; none if Reason is set.
	By policy.ID
	// Reason is "unknown link" or "invalid state".
	Reason string
}

// translator makes chains and sets of programs. It keeps what it has made: names are digests of content, so that it is
// right for every Ruleset that has the same member sets.
type translator struct {
	mute     bool // log nothing
	handling policy.Handling
	members  [2]nft.Set // by family: of IPv4, of IPv6
	chains   map[string]nft.Chain
	sets     map[string]nft.Set
	denied   map[string]Denied // by chain
	programs map[programKey]*program
	within   map[string]uses // what a chain uses with all that these use
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

// program translates a program of the Ruleset, unless it has been.
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
	if !key.host && !t.handling.Invalid { // those of hosts may be older than connection tracking, and their chains drop what is invalid
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

// lists lead to the lists of a program.
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

// byPort leads to the lists of ranges of destination ports; of a protocol without ports to that of port 0, which is
// theirs.
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

// logs lead to chains, which come back, that log what Log rules match.
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

// matching leads to a chain from which what a program allows goes to where the verdict says, with what that uses, and
// all else comes back.
func (b *builder) matching(prefix string, d policy.Direction, when policy.Program, to nft.Verdict, inner uses, u *uses) nft.Verdict {
	by := &builder{translator: b.translator, Ruleset: b.Ruleset, Direction: d, match: &to}
	rules := by.lists(when, &inner)
	b.err = errors.Join(b.err, by.err)
	return nft.Jump(by.chain(prefix, rules, inner, u).Chain())
}

// logging leads to a chain that logs and comes back.
func (b *builder) logging(r policy.LogRule, u *uses) nft.Verdict {
	return b.chain("logs-", []nft.Rule{nft.NewRule("", nft.Within(b.logRate()), nft.Log(LogGroup, logText(b.Direction, r)))}, uses{}, u)
}

// sequence leads to a chain for the segments up to the first to which others pass, which leads to a chain for the next.
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

// segment is a rule that leads to a chain, which comes back if the segment does not match. pass is where Pass leads to.
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

// open is the direction of a link that everything passes, while a program decides on the other.
func (t *translator) open(rs *policy.Ruleset, key programKey) *program {
	b := &builder{translator: t, Ruleset: rs, Direction: key.Direction}
	rules := []nft.Rule{nft.NewRule("", nft.Do(nft.Accept))}
	if !t.handling.Invalid {
		rules = append(joins(key.Direction.String()+" "+invalidState), rules...)
	}
	return b.finish(key, rules, uses{})
}

// joins drops what conntrack takes for a new connection in the middle of one: an answer, or a heartbeat of SCTP, in one
// that was ended, as a policy forbids it now, would make it anew from the other end. What is not tracked, as of a DNS
// cache on the node, has no beginning: policies judge each packet.
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
	match   *nft.Verdict // if set, what is allowed goes there, and all else comes back
	made    map[shared]nft.Verdict
	err     error
}

// shared is a list that ranges of ports share: Compile gives equal lists the same steps.
type shared struct {
	first *policy.Step
	end   policy.Verdict
}

// chain keeps a chain, named by its content, and says how to get there. By collects what is used.
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

// ports keeps the map of a protocol's ports to lists.
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

// list translates a list; one without steps needs no chain. It is for packets of the protocol alone, if that is not 0.
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

// step has a rule for each family: members may come in both.
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

// peer is the field of the address that a list decides by.
func (b *builder) peer(f nft.Family) nft.Field {
	if b.Direction == policy.Ingress {
		return f.Src
	}
	return f.Dest
}

// nets keeps the set of a family's ranges, and returns "" if there are none.
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

// deniedRate bounds what is logged of the packets that one policy denies in one direction.
var deniedRate = nft.Rate{Packets: 5, Seconds: 1, Burst: 5}

// verdict leads to where denied packets are logged, counted, and dropped or rejected.
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

// maxText is how long comments of rules and prefixes of logs may be.
const maxText = 127

// String is "ingress NetworkPolicy default/web", or "egress unknown link": of the rule's comment and the log's prefix.
// Of a longer name the end is a digest.
func (d Denied) String() string {
	text := d.Direction.String() + " " + d.Reason
	if d.Reason == "" {
		text = d.Direction.String() + " " + d.By.String()
	}
	return short(text)
}

// parseDenied reads what String has written; of a name that was too long, as much as is there.
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

// logged begins the prefix of the log of what a Log rule matches, which that of a denial never does.
const logged = "log "

// logText is such as "log ingress NetworkPolicy default/web rule 2".
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

// prune forgets what is not used.
func (t *translator) prune(used map[programKey]bool, w *image) {
	maps.DeleteFunc(t.programs, func(k programKey, _ *program) bool { return !used[k] })
	maps.DeleteFunc(t.chains, func(name string, _ nft.Chain) bool { _, ok := w.chains[name]; return !ok })
	maps.DeleteFunc(t.within, func(name string, _ uses) bool { _, ok := w.chains[name]; return !ok })
	maps.DeleteFunc(t.denied, func(name string, _ Denied) bool { _, ok := w.chains[name]; return !ok })
	maps.DeleteFunc(t.sets, func(name string, _ nft.Set) bool { _, ok := w.sets[name]; return !ok })
}
