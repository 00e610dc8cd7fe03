package nft

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// batch collects the requests of one transaction about one table.
type batch struct {
	table    string
	requests []nlmsg.Message
	sets     uint32   // number of sets made
	objects  []string // the chain or set of each request
	object   string   // the chain or set of the next request
}

// plan returns the requests that turn have into p; none if they are equal. With rebuild it first removes all of have.
func plan(have *content, p Part, rebuild bool) []nlmsg.Message {
	b := batch{table: TableName}
	if p.empty() {
		b.leave(have)
		return b.requests
	}
	if !have.exists || have.dormant {
		b.ofTable(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
	}
	if rebuild || !have.sound(p) {
		b.remove(have)
		have = &content{}
	}
	// Chains are made before the elements that lead to them, and sets before the rules that use them; rules and elements
	// that lead to a chain are removed before it.
	for _, c := range p.Chains {
		if have.chains[c.Name] == nil {
			b.newChain(c)
		}
	}
	for _, s := range p.Sets {
		b.syncSet(have.sets[s.Name], s)
	}
	for _, c := range p.Chains {
		b.syncRules(have.chains[c.Name], c)
	}
	b.remove(have.not(p))
	return b.requests
}

// sound reports whether present chains and sets are of the wanted kinds, as chains' hooks and sets' types can't change.
func (have *content) sound(p Part) bool {
	for _, c := range p.Chains {
		if is := have.chains[c.Name]; is != nil && !is.kindOf(c) {
			return false
		}
	}
	for _, s := range p.Sets {
		if is := have.sets[s.Name]; is != nil && is.kind != s.kind() {
			return false
		}
	}
	return true
}

func (have *chainContent) kindOf(c Chain) bool {
	if c.Hook == nil {
		return !have.base
	}
	return have.base && have.hook == *c.Hook && !have.drops
}

func (s Set) kind() setKind {
	k := setKind{keySize: uint32(s.keySize()), valueType: s.Value.number}
	for _, t := range s.Key {
		// nft has six bits for each type of a concatenation.
		k.keyType = k.keyType<<6 | t.number
	}
	if s.Interval {
		k.flags |= unix.NFT_SET_INTERVAL
		if len(s.Key) > 1 {
			k.flags |= setConcat
		}
	}
	if s.Value != (Type{}) {
		k.flags |= unix.NFT_SET_MAP
	}
	if s.Timeout > 0 {
		k.flags |= unix.NFT_SET_TIMEOUT
		k.timeout = true
	}
	return k
}

// not returns the objects that exist and are not wanted.
func (have *content) not(p Part) *content {
	rest := &content{chains: map[string]*chainContent{}, sets: map[string]*setContent{}}
	for name, c := range have.chains {
		if !slices.ContainsFunc(p.Chains, func(c Chain) bool { return c.Name == name }) {
			rest.chains[name] = c
		}
	}
	for name, s := range have.sets {
		if !slices.ContainsFunc(p.Sets, func(s Set) bool { return s.Name == name }) {
			rest.sets[name] = s
		}
	}
	return rest
}

// sameRules reports whether the chains that both parts have are equal.
func sameRules(a, b Part) bool {
	chains := make(map[string]Chain, len(a.Chains))
	for _, c := range a.Chains {
		chains[c.Name] = c
	}
	return !slices.ContainsFunc(b.Chains, func(c Chain) bool {
		other, ok := chains[c.Name]
		return ok && !reflect.DeepEqual(c, other)
	})
}

// contentOf returns the kernel's content after a part was written, except the handles of rules and the uses of the
// table.
func contentOf(p Part) *content {
	have := &content{exists: true, chains: map[string]*chainContent{}, sets: map[string]*setContent{}}
	for _, c := range p.Chains {
		chain := &chainContent{base: c.Hook != nil}
		if c.Hook != nil {
			chain.hook = *c.Hook
		}
		for _, r := range c.Rules {
			chain.rules = append(chain.rules, ruleContent{Rule: r})
		}
		have.chains[c.Name] = chain
	}
	for _, s := range p.Sets {
		have.sets[s.Name] = &setContent{kind: s.kind(), elements: s.Elements}
	}
	return have
}

// leave removes the content, and the table if it has no other.
func (b *batch) leave(have *content) {
	switch {
	case !have.exists:
	case have.uses == uint32(len(have.chains)+len(have.sets)):
		b.ofTable(unix.NFT_MSG_DELTABLE, 0)
	default:
		b.remove(have)
	}
}

func (b *batch) request(kind int, flags uint16, attrs nlmsg.Attributes) {
	b.requests = append(b.requests, message(kind, flags, attrs))
	b.objects = append(b.objects, b.object)
}

func (b *batch) ofTable(kind int, flags uint16) {
	var a nlmsg.Attributes
	b.object = ""
	a.Text(unix.NFTA_TABLE_NAME, b.table)
	a.Number(unix.NFTA_TABLE_FLAGS, 0)
	b.request(kind, flags, a)
}

// From linux/netfilter/nf_tables.h, where the library lacks them.
const (
	setConcat      = 0x80 // NFT_SET_CONCAT
	setDescSize    = 1    // NFTA_SET_DESC_SIZE
	setDescConcat  = 2    // NFTA_SET_DESC_CONCAT
	setFieldLen    = 1    // NFTA_SET_FIELD_LEN
	setElemKeyEnd  = 10   // NFTA_SET_ELEM_KEY_END
	setElemForRest = 2    // NFT_SET_ELEM_CATCHALL
)

// in returns the attributes that name an object of the table. The table's attribute has one number in all kinds of
// objects.
func (b *batch) in(nameType uint16, name string) (a nlmsg.Attributes) {
	b.object = name
	a.Text(unix.NFTA_TABLE_NAME, b.table)
	a.Text(nameType, name)
	return a
}

// remove deletes chains and sets: rules first, as they use sets, then sets, as their elements may lead to chains.
func (b *batch) remove(have *content) {
	for name, c := range have.chains {
		if len(c.rules) > 0 {
			b.request(unix.NFT_MSG_DELRULE, 0, b.in(unix.NFTA_RULE_CHAIN, name))
		}
	}
	for name := range have.sets {
		b.request(unix.NFT_MSG_DELSET, 0, b.in(unix.NFTA_SET_NAME, name))
	}
	for name := range have.chains {
		b.request(unix.NFT_MSG_DELCHAIN, 0, b.in(unix.NFTA_CHAIN_NAME, name))
	}
}

func (b *batch) newChain(c Chain) {
	a := b.in(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Hook != nil {
		var hook nlmsg.Attributes
		hook.Number(unix.NFTA_HOOK_HOOKNUM, uint32(c.Hook.Number))
		hook.Number(unix.NFTA_HOOK_PRIORITY, uint32(c.Hook.Priority))
		a.Nest(unix.NFTA_CHAIN_HOOK, hook)
		a.Number(unix.NFTA_CHAIN_POLICY, uint32(verdictCodes[string(Accept)]))
		a.Text(unix.NFTA_CHAIN_TYPE, string(c.Hook.Type))
	}
	b.request(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, a)
}

// syncSet makes the set if have is nil, and brings the elements up to date. Deletions go first: the kernel refuses a
// range that overlaps one that the same transaction does not delete until later.
func (b *batch) syncSet(have *setContent, want Set) {
	if have == nil {
		b.newSet(want)
		have = &setContent{}
	}
	gone, added := compare(have.elements, want.Elements)
	b.elements(unix.NFT_MSG_DELSETELEM, 0, want, gone)
	b.elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, want, added)
}

// byteOrder returns user data for nft with the byte order of a key: 2 is network order, 1 host order.
func (s Set) byteOrder() []byte {
	order := uint32(2)
	if len(s.Key) == 1 && slices.Contains([]Type{LinkIndex, LinkName, Mark}, s.Key[0]) {
		order = 1
	}
	return binary.NativeEndian.AppendUint32([]byte{udataKeyOrder, 4}, order)
}

func (b *batch) newSet(s Set) {
	b.sets++
	kind := s.kind()
	a := b.in(unix.NFTA_SET_NAME, s.Name)
	a.Number(unix.NFTA_SET_FLAGS, kind.flags)
	a.Number(unix.NFTA_SET_KEY_TYPE, kind.keyType)
	a.Number(unix.NFTA_SET_KEY_LEN, kind.keySize)
	if s.Value != (Type{}) {
		a.Number(unix.NFTA_SET_DATA_TYPE, s.Value.number)
		a.Number(unix.NFTA_SET_DATA_LEN, uint32(s.Value.size))
	}
	if kind.timeout {
		a.Add(unix.NFTA_SET_TIMEOUT, binary.BigEndian.AppendUint64(nil, uint64(s.Timeout.Milliseconds())))
	}
	a.Number(unix.NFTA_SET_ID, b.sets)
	if kind.flags&setConcat != 0 || s.Size > 0 {
		a.Nest(unix.NFTA_SET_DESC, s.description())
	}
	a.Add(unix.NFTA_SET_USERDATA, s.byteOrder())
	b.request(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|unix.NLM_F_EXCL, a)
}

// description encodes NFTA_SET_DESC: the set's size, and field lengths for concatenated intervals only; the kernel
// refuses them elsewhere.
func (s Set) description() (a nlmsg.Attributes) {
	if s.Size > 0 {
		a.Number(setDescSize, s.Size)
	}
	if s.kind().flags&setConcat == 0 {
		return a
	}
	var parts nlmsg.Attributes
	for _, t := range s.Key {
		var field nlmsg.Attributes
		field.Number(setFieldLen, uint32(t.size))
		parts.Nest(unix.NFTA_LIST_ELEM, field)
	}
	a.Nest(setDescConcat, parts)
	return a
}

// portion bounds the bytes of elements in one request: a netlink attribute holds 64 KiB.
const portion = 60 << 10

// elementRoom is an upper estimate of an element's bytes.
const elementRoom = 96

func (b *batch) elements(kind int, flags uint16, s Set, all []Element) {
	of := s.kind()
	var a nlmsg.Attributes
	list := 0
	for i, e := range all {
		if a == nil {
			a = append(make(nlmsg.Attributes, 0, min(portion, len(all[i:])*elementRoom)+2*elementRoom), b.in(unix.NFTA_SET_ELEM_LIST_SET, s.Name)...)
			list = a.Open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		}
		of.append(&a, e)
		if len(a) > portion || i == len(all)-1 {
			a.Close(list)
			b.request(kind, flags, a)
			a = nil
		}
	}
}

// append appends an element in the kernel's form: two elements for a range in a set with a key of one type.
func (kind setKind) append(a *nlmsg.Attributes, e Element) {
	pair := kind.flags&unix.NFT_SET_INTERVAL != 0 && kind.flags&setConcat == 0
	at := a.Open(unix.NFTA_LIST_ELEM)
	if e.First == "" {
		a.Number(unix.NFTA_SET_ELEM_FLAGS, setElemForRest)
	} else {
		appendKey(a, unix.NFTA_SET_ELEM_KEY, e.First)
	}
	if e.Last != "" && !pair {
		appendKey(a, setElemKeyEnd, e.Last)
	}
	switch {
	case e.Verdict != "":
		a.Nest(unix.NFTA_SET_ELEM_DATA, e.Verdict.data())
	case e.Value != "":
		appendKey(a, unix.NFTA_SET_ELEM_DATA, e.Value)
	}
	if e.Comment != "" {
		a.Add(unix.NFTA_SET_ELEM_USERDATA, encodeComment(e.Comment))
	}
	a.Close(at)
	if end, ok := next(e.Last); pair && ok {
		at := a.Open(unix.NFTA_LIST_ELEM)
		a.Number(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
		appendKey(a, unix.NFTA_SET_ELEM_KEY, end)
		a.Close(at)
	}
}

func appendKey(a *nlmsg.Attributes, kind uint16, key string) {
	at := a.Open(kind)
	a.Bytes(unix.NFTA_DATA_VALUE, key)
	a.Close(at)
}

// syncRules replaces the rules between the right ones at the beginning and at the end, which keep their counters.
func (b *batch) syncRules(have *chainContent, want Chain) {
	if have == nil {
		have = &chainContent{}
	}
	is, wanted := have.rules, want.Rules
	for len(is) > 0 && len(wanted) > 0 && is[0].normal() == wanted[0].normal() {
		is, wanted = is[1:], wanted[1:]
	}
	var behind uint64 // the handle of the first rule that stays behind the new ones
	for len(is) > 0 && len(wanted) > 0 && is[len(is)-1].normal() == wanted[len(wanted)-1].normal() {
		behind = is[len(is)-1].handle
		is, wanted = is[:len(is)-1], wanted[:len(wanted)-1]
	}
	for _, r := range wanted {
		b.newRule(want.Name, r, behind)
	}
	for _, r := range is {
		a := b.in(unix.NFTA_RULE_CHAIN, want.Name)
		a.Add(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, r.handle))
		b.request(unix.NFT_MSG_DELRULE, 0, a)
	}
}

// newRule adds a rule in front of the rule with the handle behind, or at the chain's end if that is 0.
func (b *batch) newRule(chain string, r Rule, behind uint64) {
	a := b.in(unix.NFTA_RULE_CHAIN, chain)
	a.Nest(unix.NFTA_RULE_EXPRESSIONS, r.encode())
	flags := uint16(unix.NLM_F_CREATE | unix.NLM_F_APPEND)
	if behind != 0 {
		flags = unix.NLM_F_CREATE
		a.Add(unix.NFTA_RULE_POSITION, binary.BigEndian.AppendUint64(nil, behind))
	}
	if r.Comment != "" {
		a.Add(unix.NFTA_RULE_USERDATA, encodeComment(r.Comment))
	}
	b.request(unix.NFT_MSG_NEWRULE, flags, a)
}

// String formats an element for errors and tests.
func (e Element) String() string {
	return fmt.Sprintf("%x-%x %s%x", e.First, e.Last, e.Verdict, e.Value)
}
