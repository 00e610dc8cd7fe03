package nft

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// content is what the kernel has of one owner.
type content struct {
	exists  bool   // the table
	dormant bool   // somebody has switched it off
	uses    uint32 // chains and sets in the table, whosever they are
	chains  map[string]*chainContent
	sets    map[string]*setContent
}

type chainContent struct {
	base  bool
	hook  Hook
	drops bool // packets that no rule decides on
	rules []ruleContent
}

type ruleContent struct {
	Rule
	handle uint64
}

// setContent is a set and its elements. Kind is what cannot be changed of one that exists.
type setContent struct {
	kind     setKind
	elements []Element
}

type setKind struct {
	flags, keyType, keySize, valueType uint32
	timeout                            bool
}

// read collects what p's owner has. Chains cannot be listed of one table alone, so they are found by their rules and names.
func (s socket) read(p Part) (*content, error) {
	c := &content{chains: map[string]*chainContent{}, sets: map[string]*setContent{}}
	if err := s.readTable(c); err != nil || !c.exists {
		return c, explain(err)
	}
	if err := s.readSets(p, c); err != nil {
		return nil, explain(err)
	}
	if err := s.readChains(p, c); err != nil {
		return nil, explain(err)
	}
	return c, nil
}

func (s socket) readTable(c *content) error {
	var a attributes
	a.text(unix.NFTA_TABLE_NAME, TableName)
	answer, err := s.ask(unix.NFT_MSG_GETTABLE, 0, a)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read nftables table inet %s: %w", TableName, err)
	}
	for _, part := range answer {
		c.exists = true
		c.uses = number(find(part, unix.NFTA_TABLE_USE))
		c.dormant = number(find(part, unix.NFTA_TABLE_FLAGS))&unix.NFT_TABLE_F_DORMANT != 0
	}
	return nil
}

func (s socket) readSets(p Part, c *content) error {
	var a attributes
	a.text(unix.NFTA_SET_TABLE, TableName)
	answer, err := s.ask(unix.NFT_MSG_GETSET, netlink.Dump, a)
	if err != nil {
		return fmt.Errorf("list sets of table inet %s: %w", TableName, err)
	}
	for _, part := range answer {
		name := text(find(part, unix.NFTA_SET_NAME))
		if !p.owns(name) {
			continue
		}
		set := &setContent{kind: setKind{
			flags: number(find(part, unix.NFTA_SET_FLAGS)), timeout: find(part, unix.NFTA_SET_TIMEOUT) != nil,
			keyType: number(find(part, unix.NFTA_SET_KEY_TYPE)), keySize: number(find(part, unix.NFTA_SET_KEY_LEN)),
			valueType: number(find(part, unix.NFTA_SET_DATA_TYPE)),
		}}
		if set.elements, err = s.readElements(name, set.kind); err != nil {
			return fmt.Errorf("list elements of set %s: %w", name, err)
		}
		c.sets[name] = set
	}
	return nil
}

func (s socket) readElements(set string, kind setKind) ([]Element, error) {
	var a attributes
	a.text(unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
	a.text(unix.NFTA_SET_ELEM_LIST_SET, set)
	answer, err := s.ask(unix.NFT_MSG_GETSETELEM, netlink.Dump, a)
	if err != nil {
		return nil, err
	}
	var bounds []bound
	for _, part := range answer {
		err := each(find(part, unix.NFTA_SET_ELEM_LIST_ELEMENTS), func(_ uint16, b []byte) { bounds = append(bounds, decodeElement(b)) })
		if err != nil {
			return nil, err
		}
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
			First: string(find(find(b, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE)),
			Last:  string(find(find(b, setElemKeyEnd), unix.NFTA_DATA_VALUE)),
		},
		end: number(find(b, unix.NFTA_SET_ELEM_FLAGS))&unix.NFT_SET_ELEM_INTERVAL_END != 0,
	}
	if value := find(b, unix.NFTA_SET_ELEM_DATA); value != nil {
		e.Value = string(find(value, unix.NFTA_DATA_VALUE))
		if v := find(value, unix.NFTA_DATA_VERDICT); v != nil {
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
			return fmt.Errorf("read chain %s of table inet %s: %w", name, TableName, err)
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
	var a attributes
	a.text(unix.NFTA_RULE_TABLE, TableName)
	answer, err := s.ask(unix.NFT_MSG_GETRULE, netlink.Dump, a)
	if err != nil {
		return nil, fmt.Errorf("list rules of table inet %s: %w", TableName, err)
	}
	rules := map[string][]ruleContent{}
	for _, part := range answer {
		r := ruleContent{Rule: decodeRule(find(part, unix.NFTA_RULE_EXPRESSIONS)), handle: number64(find(part, unix.NFTA_RULE_HANDLE))}
		r.Comment = decodeComment(find(part, unix.NFTA_RULE_USERDATA))
		chain := text(find(part, unix.NFTA_RULE_CHAIN))
		rules[chain] = append(rules[chain], r)
	}
	return rules, nil
}

// readChain returns nil for a chain that is not there.
func (s socket) readChain(name string) (*chainContent, error) {
	var a attributes
	a.text(unix.NFTA_CHAIN_TABLE, TableName)
	a.text(unix.NFTA_CHAIN_NAME, name)
	answer, err := s.ask(unix.NFT_MSG_GETCHAIN, 0, a)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	chain := &chainContent{}
	for _, part := range answer {
		hook := find(part, unix.NFTA_CHAIN_HOOK)
		chain.base = hook != nil
		chain.hook = Hook{
			Type:     ChainType(text(find(part, unix.NFTA_CHAIN_TYPE))),
			Number:   HookNumber(number(find(hook, unix.NFTA_HOOK_HOOKNUM))),
			Priority: int32(number(find(hook, unix.NFTA_HOOK_PRIORITY))),
		}
		chain.drops = chain.base && number(find(part, unix.NFTA_CHAIN_POLICY)) == 0
	}
	return chain, nil
}

// Rules' and sets' user data is nft's own: a byte for what it is, a byte for its size, and the data.
const (
	udataComment  = 0 // of a rule
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
			return text(b[2 : 2+size])
		}
		b = b[2+size:]
	}
	return ""
}
