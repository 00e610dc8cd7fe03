package nft

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// content is one owner's content of the table in the kernel.
type content struct {
	exists  bool   // the table
	dormant bool   // its chains are disabled
	uses    uint32 // chains and sets in the table, of all owners
	chains  map[string]*chainContent
	sets    map[string]*setContent
}

type chainContent struct {
	base  bool
	hook  Hook
	drops bool // its policy is drop
	rules []ruleContent
}

type ruleContent struct {
	Rule
	handle uint64
}

// setContent is a set and its elements. kind holds the properties that cannot be changed in an existing set.
type setContent struct {
	kind     setKind
	elements []Element
}

type setKind struct {
	flags, keyType, keySize, valueType uint32
	timeout                            bool
}

// read collects the content of p's owner. The kernel cannot list the chains of one table, so they are found by their
// rules and names.
func (s socket) read(p Part) (*content, error) {
	c := &content{chains: map[string]*chainContent{}, sets: map[string]*setContent{}}
	if err := s.readTable(c); err != nil || !c.exists {
		return c, s.explain(err)
	}
	if err := s.readSets(p, c); err != nil {
		return nil, s.explain(err)
	}
	if err := s.readChains(p, c); err != nil {
		return nil, s.explain(err)
	}
	return c, nil
}

func (s socket) readTable(c *content) error {
	var a nlmsg.Attributes
	a.Text(unix.NFTA_TABLE_NAME, s.table)
	err := s.ask(message(unix.NFT_MSG_GETTABLE, 0, a), func(_ uint8, part []byte) {
		c.exists = true
		c.uses = nlmsg.Number(nlmsg.Find(part, unix.NFTA_TABLE_USE))
		c.dormant = nlmsg.Number(nlmsg.Find(part, unix.NFTA_TABLE_FLAGS))&unix.NFT_TABLE_F_DORMANT != 0
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read nftables table inet %s: %w", s.table, err)
	}
	return nil
}

func (s socket) readSets(p Part, c *content) error {
	var a nlmsg.Attributes
	a.Text(unix.NFTA_SET_TABLE, s.table)
	err := s.ask(message(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, a), func(_ uint8, part []byte) {
		if name := nlmsg.Text(nlmsg.Find(part, unix.NFTA_SET_NAME)); p.owns(name) {
			c.sets[name] = &setContent{kind: setKind{
				flags: nlmsg.Number(nlmsg.Find(part, unix.NFTA_SET_FLAGS)), timeout: nlmsg.Find(part, unix.NFTA_SET_TIMEOUT) != nil,
				keyType: nlmsg.Number(nlmsg.Find(part, unix.NFTA_SET_KEY_TYPE)), keySize: nlmsg.Number(nlmsg.Find(part, unix.NFTA_SET_KEY_LEN)),
				valueType: nlmsg.Number(nlmsg.Find(part, unix.NFTA_SET_DATA_TYPE)),
			}}
		}
	})
	if err != nil {
		return fmt.Errorf("list sets of table inet %s: %w", s.table, err)
	}
	for name, set := range c.sets {
		if set.elements, err = s.readElements(name, set.kind); err != nil {
			return fmt.Errorf("list elements of set %s: %w", name, err)
		}
	}
	return nil
}

func (s socket) readElements(set string, kind setKind) ([]Element, error) {
	var a nlmsg.Attributes
	a.Text(unix.NFTA_SET_ELEM_LIST_TABLE, s.table)
	a.Text(unix.NFTA_SET_ELEM_LIST_SET, set)
	var bounds []bound
	var malformed error
	err := s.ask(message(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, a), func(_ uint8, part []byte) {
		err := nlmsg.Each(nlmsg.Find(part, unix.NFTA_SET_ELEM_LIST_ELEMENTS),
			func(_ uint16, b []byte) { bounds = append(bounds, decodeElement(b)) })
		malformed = cmp.Or(malformed, err)
	})
	if err = cmp.Or(err, malformed); err != nil {
		return nil, err
	}
	if kind.flags&unix.NFT_SET_INTERVAL != 0 && kind.flags&setConcat == 0 {
		return join(bounds), nil
	}
	elements := make([]Element, len(bounds))
	for i, b := range bounds {
		elements[i] = b.Element
	}
	return elements, nil
}

func decodeElement(b []byte) bound {
	e := bound{
		Element: Element{
			First: string(nlmsg.Find(nlmsg.Find(b, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE)),
			Last:  string(nlmsg.Find(nlmsg.Find(b, setElemKeyEnd), unix.NFTA_DATA_VALUE)),
		},
		end: nlmsg.Number(nlmsg.Find(b, unix.NFTA_SET_ELEM_FLAGS))&unix.NFT_SET_ELEM_INTERVAL_END != 0,
	}
	e.Comment = decodeComment(nlmsg.Find(b, unix.NFTA_SET_ELEM_USERDATA))
	if value := nlmsg.Find(b, unix.NFTA_SET_ELEM_DATA); value != nil {
		e.Value = string(nlmsg.Find(value, unix.NFTA_DATA_VALUE))
		if v := nlmsg.Find(value, unix.NFTA_DATA_VERDICT); v != nil {
			e.Verdict = decodeVerdict(v)
		}
	}
	return e
}

func (s socket) readChains(p Part, c *content) error {
	rules, err := s.rules()
	if err != nil {
		return err
	}
	names := slices.Clone(p.Former)
	for _, chain := range p.Chains {
		names = append(names, chain.Name)
	}
	for name := range rules {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if !p.owns(name) {
			continue
		}
		chain, err := s.readChain(name)
		if err != nil {
			return fmt.Errorf("read chain %s of table inet %s: %w", name, s.table, err)
		}
		if chain != nil {
			chain.rules = rules[name]
			c.chains[name] = chain
		}
	}
	return nil
}

// rules lists all rules of the table, by chain.
func (s socket) rules() (map[string][]ruleContent, error) {
	var a nlmsg.Attributes
	a.Text(unix.NFTA_RULE_TABLE, s.table)
	rules := map[string][]ruleContent{}
	err := s.ask(message(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, a), func(_ uint8, part []byte) {
		r := ruleContent{Rule: decodeRule(bytes.Clone(nlmsg.Find(part, unix.NFTA_RULE_EXPRESSIONS))),
			handle: nlmsg.Number64(nlmsg.Find(part, unix.NFTA_RULE_HANDLE))}
		r.Comment = decodeComment(nlmsg.Find(part, unix.NFTA_RULE_USERDATA))
		chain := nlmsg.Text(nlmsg.Find(part, unix.NFTA_RULE_CHAIN))
		rules[chain] = append(rules[chain], r)
	})
	if err != nil {
		return nil, fmt.Errorf("list rules of table inet %s: %w", s.table, err)
	}
	return rules, nil
}

// readChain returns nil for a chain that does not exist.
func (s socket) readChain(name string) (*chainContent, error) {
	var a nlmsg.Attributes
	a.Text(unix.NFTA_CHAIN_TABLE, s.table)
	a.Text(unix.NFTA_CHAIN_NAME, name)
	chain := &chainContent{}
	err := s.ask(message(unix.NFT_MSG_GETCHAIN, 0, a), func(_ uint8, part []byte) {
		hook := nlmsg.Find(part, unix.NFTA_CHAIN_HOOK)
		chain.base = hook != nil
		chain.hook = Hook{
			Type:     ChainType(nlmsg.Text(nlmsg.Find(part, unix.NFTA_CHAIN_TYPE))),
			Number:   HookNumber(nlmsg.Number(nlmsg.Find(hook, unix.NFTA_HOOK_HOOKNUM))),
			Priority: int32(nlmsg.Number(nlmsg.Find(hook, unix.NFTA_HOOK_PRIORITY))),
		}
		chain.drops = chain.base && nlmsg.Number(nlmsg.Find(part, unix.NFTA_CHAIN_POLICY)) == 0
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return chain, err
}

// The user data of rules, sets and elements has nft's format: a byte for the type, a byte for the size, and the data.
const (
	udataComment  = 0 // of a rule or an element
	udataKeyOrder = 0 // of a set
)

func encodeComment(comment string) []byte {
	b := []byte{udataComment, byte(len(comment) + 1)}
	return append(append(b, comment...), 0)
}

func decodeComment(b []byte) string {
	for len(b) >= 2 {
		size := int(b[1])
		if 2+size > len(b) {
			break
		}
		if b[0] == udataComment {
			return nlmsg.Text(b[2 : 2+size])
		}
		b = b[2+size:]
	}
	return ""
}
