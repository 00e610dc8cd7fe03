package nft

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// TableName is the name of the project's one table, of family inet.
const TableName = "tortie"

// Part is all that one owner has in the table. A Part without chains and sets is empty; the table is removed with the
// last part. It must not be changed after it was given to Sync.
type Part struct {
	// Prefixes begin the names of all chains and sets of the owner. Sync removes such chains and sets that are not in the
	// part. No two owners may share a prefix.
	Prefixes []string
	// Former are names of the owner's chains that may exist although the part does not have them. Other chains are found
	// by their rules, which every chain has when it is written.
	Former []string

	Chains []Chain
	Sets   []Set
}

// Chain is a list of rules.
type Chain struct {
	Name string
	// Hook is where packets enter the chain, nil for a chain that rules jump to. Packets that no rule decides on pass.
	Hook  *Hook
	Rules []Rule // at least one
}

// Hook is a netfilter hook with a priority.
type Hook struct {
	Type     ChainType
	Number   HookNumber
	Priority int32 // lesser priorities come first
}

// ChainType is the type of a chain: filter, nat or route.
type ChainType string

// The types of chains.
const (
	Filter ChainType = "filter"
	NAT    ChainType = "nat"
)

// HookNumber is the kernel's number of a hook.
type HookNumber uint32

// The hooks of family inet.
const (
	Prerouting HookNumber = iota
	Input
	Forward
	Output
	Postrouting
)

// The kernel's own priorities, as nft names them.
const (
	PriorityRaw    = -300
	PriorityMangle = -150
	PriorityDNAT   = -100
	PriorityFilter = 0
	PrioritySNAT   = 100
)

// Set is a set of keys, or with a Value a map from keys to values.
type Set struct {
	Name string
	// Key is one type, or several for a concatenation.
	Key []Type
	// Value is VerdictType for a verdict map, zero for a plain set.
	Value Type
	// Interval: elements may be ranges.
	Interval bool
	// Size is the maximum number of elements, for sets that become large: the kernel allocates them at once, and refuses
	// more with ENFILE. 0: it allocates them as they come, and a large transaction is slow.
	Size uint32
	// Timeout is the lifetime of elements; 0: until they are deleted.
	Timeout  time.Duration
	Elements []Element
}

// Type is a type of keys and values: its number in nft, and its size in bytes.
type Type struct {
	number uint32
	size   int
}

// The types of keys and values.
var (
	IPv4Addr    = Type{7, 4}
	IPv6Addr    = Type{8, 16}
	Protocol    = Type{12, 1}
	Port        = Type{13, 2}
	Mark        = Type{19, 4} // in host byte order, like a packet's mark
	LinkIndex   = Type{20, 4}
	LinkName    = Type{41, 16} // padded with zero bytes
	NFProtoType = Type{2, 1}
	ICMPv6Type  = Type{29, 1}
	VerdictType = Type{0xffffff00, 0}
)

// Element is an element of a set. Keys and values are in the form that the kernel compares, see Key.
type Element struct {
	// First is the key. In a set of intervals First and Last are the bounds, both inclusive; in others Last is empty. An
	// element with an empty First matches when no other does.
	First, Last string
	Verdict     Verdict // of a verdict map
	Value       string  // of another map
	// Comment appears in nft's list: up to 127 bytes.
	Comment string
}

// Verdict is the decision on a packet, in nft's terms.
type Verdict string

// The verdicts without a chain.
const (
	Accept Verdict = "accept"
	Drop   Verdict = "drop"
	Return Verdict = "return"
)

// Jump goes to a chain and comes back.
func Jump(chain string) Verdict { return Verdict("jump " + chain) }

// Goto goes to a chain for good.
func Goto(chain string) Verdict { return Verdict("goto " + chain) }

// verdictCodes are the kernel's codes.
var verdictCodes = map[string]int32{"accept": 1, "drop": 0, "return": -5, "jump": -3, "goto": -4}

// split returns the kernel's code and the chain.
func (v Verdict) split() (code int32, chain string) {
	word, chain, _ := strings.Cut(string(v), " ")
	return verdictCodes[word], chain
}

// Chain returns the chain that v leads to, empty if none.
func (v Verdict) Chain() string {
	_, chain := v.split()
	return chain
}

// Key joins the parts of a key, one for each type of the set. Of several parts, each is padded to four bytes, like the
// kernel's registers.
func Key(parts ...string) string {
	if len(parts) == 1 {
		return parts[0]
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p)
		b.WriteString(strings.Repeat("\x00", nlmsg.Aligned(len(p))-len(p)))
	}
	return b.String()
}

// keySize returns the number of bytes of a key.
func (s Set) keySize() int {
	if len(s.Key) == 1 {
		return s.Key[0].size
	}
	size := 0
	for _, t := range s.Key {
		size += nlmsg.Aligned(t.size)
	}
	return size
}

func (p Part) owns(name string) bool {
	return slices.ContainsFunc(p.Prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

func (p Part) owner() string { return strings.Join(p.Prefixes, " ") }

func (p Part) empty() bool { return len(p.Chains) == 0 && len(p.Sets) == 0 }

// maxName is one less than the kernel's limit for names of chains, sets and comments of rules.
const maxName = 127

// validate reports errors for which the kernel would return only an error number.
func (p Part) validate() error {
	chains, sets := map[string]bool{}, map[string]bool{}
	for _, c := range p.Chains {
		if err := p.name("chain", c.Name, chains); err != nil {
			return err
		}
		if len(c.Rules) == 0 {
			return fmt.Errorf("chain %s has no rule: leave it out", c.Name)
		}
	}
	for _, s := range p.Sets {
		if err := p.name("set", s.Name, sets); err != nil {
			return err
		}
	}
	for _, c := range p.Chains {
		if err := c.references(chains, sets); err != nil {
			return fmt.Errorf("chain %s: %w", c.Name, err)
		}
	}
	for _, s := range p.Sets {
		if err := s.validate(chains); err != nil {
			return fmt.Errorf("set %s: %w", s.Name, err)
		}
	}
	return nil
}

func (p Part) name(kind, name string, seen map[string]bool) error {
	switch {
	case name == "" || len(name) > maxName:
		return fmt.Errorf("%s name %q: must have 1 to %d characters", kind, name, maxName)
	case !p.owns(name):
		return fmt.Errorf("%s %s: name must begin with one of the owner's prefixes %q", kind, name, p.Prefixes)
	case seen[name]:
		return fmt.Errorf("%s %s is there twice", kind, name)
	}
	seen[name] = true
	return nil
}

// references reports a chain or set that a rule names and the part does not have, and a comment that is too long.
func (c Chain) references(chains, sets map[string]bool) error {
	for _, r := range c.Rules {
		for _, e := range r.exprs {
			if e.set != "" && !sets[e.set] {
				return fmt.Errorf("rule uses set %s, which is not in the part", e.set)
			}
			if e.chain != "" && !chains[e.chain] {
				return fmt.Errorf("rule leads to chain %s, which is not in the part", e.chain)
			}
		}
		if len(r.Comment) > maxName {
			return fmt.Errorf("rule's comment %q has more than %d characters", r.Comment, maxName)
		}
	}
	return nil
}

func (s Set) validate(chains map[string]bool) error {
	size := s.keySize()
	for _, e := range s.Elements {
		switch chain := e.Verdict.Chain(); {
		case e.First == "" && (e.Last != "" || s.Value == Type{}):
			return fmt.Errorf("element %q has no key", e)
		case e.First != "" && len(e.First) != size, e.Last != "" && len(e.Last) != size:
			return fmt.Errorf("element %x-%x: keys must have %d bytes", e.First, e.Last, size)
		case s.Interval != (e.Last != "") && e.First != "":
			return fmt.Errorf("element %x-%x: only elements of a set of intervals have, and must have, both bounds", e.First, e.Last)
		case s.Interval && e.First > e.Last && len(s.Key) == 1:
			return fmt.Errorf("element %x-%x ends before it begins", e.First, e.Last)
		case (s.Value == VerdictType) != (e.Verdict != "") || len(e.Value) != s.Value.size:
			return fmt.Errorf("element %x: its value is not of the map's type", e.First)
		case chain != "" && !chains[chain]:
			return fmt.Errorf("element %x leads to chain %s, which is not in the part", e.First, chain)
		}
	}
	if s.Interval && len(s.Key) == 1 {
		return disjoint(s.Elements)
	}
	return nil
}
