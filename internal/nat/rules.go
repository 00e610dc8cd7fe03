package nat

import (
	"reflect"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// family is what differs between IPv4 and IPv6.
type family struct {
	is4      bool
	nfproto  byte
	keyType  nftables.SetDatatype
	pools    string // name of the set with all pools
	outgoing string // name of the set with those that have natOutgoing

	// Where the addresses are in the header, and how long.
	source, destination, length uint32
}

var families = []family{
	{true, unix.NFPROTO_IPV4, nftables.TypeIPAddr, "pools-v4", "nat-outgoing-v4", 12, 16, 4},
	{false, unix.NFPROTO_IPV6, nftables.TypeIP6Addr, "pools-v6", "nat-outgoing-v6", 8, 24, 16},
}

func desiredSets(t *nftables.Table) []*nftables.Set {
	var sets []*nftables.Set
	for _, f := range families {
		for _, name := range []string{f.outgoing, f.pools} {
			sets = append(sets, &nftables.Set{Table: t, Name: name, KeyType: f.keyType, Interval: true})
		}
	}
	return sets
}

// desiredSet returns nil for a name that is not one of ours.
func desiredSet(t *nftables.Table, name string) *nftables.Set {
	for _, set := range desiredSets(t) {
		if set.Name == name {
			return set
		}
	}
	return nil
}

func sameSet(have, want *nftables.Set) bool {
	return have.Interval == want.Interval && have.KeyType.GetNFTMagic() == want.KeyType.GetNFTMagic() &&
		!have.IsMap && !have.HasTimeout && !have.Dynamic && !have.Constant && !have.Concatenation
}

func desiredChain(t *nftables.Table) *nftables.Chain {
	accept := nftables.ChainPolicyAccept
	return &nftables.Chain{
		Table: t, Name: Chain, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource, Policy: &accept,
	}
}

func sameChain(have, want *nftables.Chain) bool {
	return have != nil && have.Type == want.Type && reflect.DeepEqual(have.Hooknum, want.Hooknum) &&
		reflect.DeepEqual(have.Priority, want.Priority) && reflect.DeepEqual(have.Policy, want.Policy)
}

// rule is a rule's expressions.
type rule = []expr.Any

func desiredRules() []rule {
	var rules []rule
	for _, f := range families {
		rules = append(rules, f.masquerade())
	}
	return rules
}

// masquerade is, in nft's words, "ip saddr @nat-outgoing-v4 ip daddr != @pools-v4 masquerade fully-random".
func (f family) masquerade() rule {
	const register = 1
	load := func(offset uint32) expr.Any {
		return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.length}
	}
	return rule{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: register},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{f.nfproto}},
		load(f.source),
		&expr.Lookup{SourceRegister: register, SetName: f.outgoing},
		load(f.destination),
		&expr.Lookup{SourceRegister: register, SetName: f.pools, Invert: true},
		// Ports chosen in order collide when two CPUs translate at once, and the kernel then drops a packet: DNS queries
		// that two threads of one pod send together are the usual victims.
		&expr.Masq{FullyRandom: true},
	}
}

// sameRule compares expressions. The kernel gives sets' names back, and not the numbers that a transaction has for them.
func sameRule(have *nftables.Rule, want rule) bool {
	if len(have.Exprs) != len(want) {
		return false
	}
	for i, e := range have.Exprs {
		if l, ok := e.(*expr.Lookup); ok {
			plain := *l
			plain.SetID = 0
			e = &plain
		}
		if !reflect.DeepEqual(e, want[i]) {
			return false
		}
	}
	return true
}
