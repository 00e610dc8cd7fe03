package nft

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// Closing is a base chain of the forward hook that drops or rejects packets which none of its rules accepts: by its
// policy, or by a last rule without a condition.
type Closing struct {
	Place
	// How is "policy drop", "last rule drop" or "last rule reject".
	How string
	// Chains are the names of all chains of its table: they show which program made it.
	Chains []string
	// Values are the values that rules of the table compare parts of a packet with: names of links, addresses.
	Values [][]byte
	// Sets: a rule looks up a part of a packet in a set.
	Sets bool
}

// Verdicts of chains and rules, as in linux/netfilter.h.
const (
	verdictDrop   = 0
	verdictAccept = 1
)

// Closings lists the base chains of the forward hook that drop or reject packets which none of their rules accepts.
func (t *Table) Closings(ctx context.Context) (all []Closing, err error) {
	s, err := dial(ctx, t.ns)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	names := map[Place][]string{}
	var bases []Closing
	err = s.list(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC, nil, func(family uint8, b []byte) {
		p := chainPlace(family, b)
		table := Place{Family: family, Table: p.Table}
		names[table] = append(names[table], p.Chain)
		if isForward(family, b) {
			bases = append(bases, Closing{Place: p})
			if policy := nlmsg.Find(b, unix.NFTA_CHAIN_POLICY); len(policy) >= 4 && binary.BigEndian.Uint32(policy) == verdictDrop {
				bases[len(bases)-1].How = "policy drop"
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list chains of nftables: %w", err)
	}
	for _, c := range bases {
		c.Chains = names[Place{Family: c.Family, Table: c.Table}]
		var a nlmsg.Attributes
		a.Text(unix.NFTA_RULE_TABLE, c.Table)
		open, decided := false, false
		err = s.list(unix.NFT_MSG_GETRULE, c.Family, a, func(_ uint8, b []byte) {
			if nlmsg.Text(nlmsg.Find(b, unix.NFTA_RULE_TABLE)) != c.Table {
				return
			}
			r := readRule(b)
			c.Values, c.Sets = append(c.Values, r.values...), c.Sets || r.sets
			if nlmsg.Text(nlmsg.Find(b, unix.NFTA_RULE_CHAIN)) == c.Chain && !decided && !r.conditional {
				if open = r.accepts; r.closes != "" {
					c.How = "last rule " + r.closes
				}
				decided = r.accepts || r.closes != "" // the rules behind it are never reached
			}
		})
		if err != nil {
			return nil, fmt.Errorf("list rules of table %s: %w", Place{Family: c.Family, Table: c.Table}, err)
		}
		if c.How != "" && !open {
			all = append(all, c)
		}
	}
	return all, nil
}

func isForward(family uint8, chain []byte) bool {
	hook := nlmsg.Find(chain, unix.NFTA_CHAIN_HOOK)
	number := nlmsg.Find(hook, unix.NFTA_HOOK_HOOKNUM)
	return slices.Contains([]uint8{unix.NFPROTO_INET, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6}, family) && len(number) >= 4 &&
		binary.BigEndian.Uint32(number) == unix.NF_INET_FORWARD
}

// ruleSeen describes one rule.
type ruleSeen struct {
	values      [][]byte
	sets        bool
	conditional bool // it does not match all packets
	accepts     bool
	closes      string // "drop" or "reject"
}

func readRule(rule []byte) (r ruleSeen) {
	_ = nlmsg.Each(nlmsg.Find(rule, unix.NFTA_RULE_EXPRESSIONS), func(_ uint16, expression []byte) {
		data := nlmsg.Find(expression, unix.NFTA_EXPR_DATA)
		switch nlmsg.Text(nlmsg.Find(expression, unix.NFTA_EXPR_NAME)) {
		case "counter", "log":
		case "reject":
			r.closes = "reject"
		case "immediate":
			code := nlmsg.Find(nlmsg.Find(nlmsg.Find(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT), unix.NFTA_VERDICT_CODE)
			switch {
			case len(code) < 4: // a value for a register
			case binary.BigEndian.Uint32(code) == verdictAccept:
				r.accepts = true
			case binary.BigEndian.Uint32(code) == verdictDrop:
				r.closes = "drop"
			}
		case "cmp":
			r.conditional = true
			r.values = append(r.values, slices.Clone(nlmsg.Find(nlmsg.Find(data, unix.NFTA_CMP_DATA), unix.NFTA_DATA_VALUE)))
		case "lookup":
			r.conditional, r.sets = true, true
		default:
			r.conditional = true
		}
	})
	return r
}
