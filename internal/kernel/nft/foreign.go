package nft

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
)

// Foreign identifies the objects of another program in nf_tables, including iptables' tables where its commands use
// nf_tables.
type Foreign struct {
	// Tables are the names of tables that belong to the program as a whole, in any family.
	Tables []string
	// Chain is the prefix of the names of its chains in tables of others; empty: it has none.
	Chain string
	// Mark is contained in the comments of its rules in chains of others. A rule that leads to a chain of its own needs
	// none.
	Mark string
}

// Remains are the traces of a Foreign.
type Remains struct {
	Tables []Place // of its own
	Chains []Place // of its own in tables of others
	Rules  []Place // of its own in chains of others
}

// Place is a table, a chain or a rule.
type Place struct {
	Family uint8
	Table  string
	Chain  string // empty: the table
	Handle uint64 // 0: the chain
}

// Empty reports that nothing was found.
func (r Remains) Empty() bool { return len(r.Tables)+len(r.Chains)+len(r.Rules) == 0 }

// String returns, for people, the tables, and the number of chains in tables of others.
func (r Remains) String() string {
	var words []string
	for _, t := range r.Tables {
		words = append(words, "table "+t.String())
	}
	for _, t := range tablesOf(r.Chains) {
		n := 0
		for _, c := range r.Chains {
			if c.Family == t.Family && c.Table == t.Table {
				n++
			}
		}
		words = append(words, fmt.Sprintf("%d chains in table %s", n, t))
	}
	return strings.Join(words, ", ")
}

// String returns p in nft's syntax.
func (p Place) String() string {
	name := map[uint8]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet", unix.NFPROTO_ARP: "arp",
		unix.NFPROTO_BRIDGE: "bridge"}[p.Family]
	text := cmp.Or(name, fmt.Sprint("family ", p.Family)) + " " + p.Table
	if p.Chain != "" {
		text += " " + p.Chain
	}
	return text
}

func tablesOf(places []Place) []Place {
	var tables []Place
	for _, p := range places {
		if t := (Place{Family: p.Family, Table: p.Table}); !slices.Contains(tables, t) {
			tables = append(tables, t)
		}
	}
	return tables
}

// Find returns the objects of another program; a kernel without nf_tables has none.
func (t *Table) Find(ctx context.Context, f Foreign) (Remains, error) {
	s, err := dial(ctx, t.ns)
	if err != nil {
		return Remains{}, err
	}
	defer s.Close()
	r, err := s.remains(f)
	if Missing(err) {
		return Remains{}, nil
	}
	return r, err
}

// Missing reports whether an error of listing means that the kernel has no nf_tables.
func Missing(err error) bool {
	return netlinkx.IsUnsupported(err) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, fs.ErrNotExist)
}

// Remove removes all that Find finds, in one transaction: no packet passes a part of it. It returns what it removed.
func (t *Table) Remove(ctx context.Context, f Foreign) (r Remains, err error) {
	for range attempts {
		if r, err = t.tryRemove(ctx, f); !stale(err) {
			return r, err
		}
		time.Sleep(rand.N(attemptPause))
	}
	return r, err
}

func (t *Table) tryRemove(ctx context.Context, f Foreign) (r Remains, err error) {
	if err := ctx.Err(); err != nil {
		return r, err
	}
	s, err := dial(ctx, t.ns)
	if err != nil {
		return r, err
	}
	defer s.Close()
	generation, err := s.generation()
	if err != nil {
		return r, err
	}
	if r, err = s.remains(f); err != nil || r.Empty() {
		return r, err
	}
	if err := s.commit(generation, r.removal()); err != nil {
		return r, fmt.Errorf("remove %s: %w", r, err)
	}
	return r, nil
}

// remains collects the program's tables, chains and rules.
func (s socket) remains(f Foreign) (r Remains, err error) {
	err = s.list(unix.NFT_MSG_GETTABLE, unix.NFPROTO_UNSPEC, nil, func(family uint8, b []byte) {
		if name := nlmsg.Text(nlmsg.Find(b, unix.NFTA_TABLE_NAME)); slices.Contains(f.Tables, name) {
			r.Tables = append(r.Tables, Place{Family: family, Table: name})
		}
	})
	if err != nil {
		return r, fmt.Errorf("list tables of nftables: %w", err)
	}
	err = s.list(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC, nil, func(family uint8, b []byte) {
		p := chainPlace(family, b)
		if f.Chain != "" && !slices.Contains(f.Tables, p.Table) && strings.HasPrefix(p.Chain, f.Chain) {
			r.Chains = append(r.Chains, p)
		}
	})
	if err != nil {
		return r, fmt.Errorf("list chains of nftables: %w", err)
	}
	for _, t := range tablesOf(r.Chains) {
		var a nlmsg.Attributes
		a.Text(unix.NFTA_RULE_TABLE, t.Table)
		err = s.list(unix.NFT_MSG_GETRULE, t.Family, a, func(_ uint8, b []byte) {
			p := Place{Family: t.Family, Table: t.Table, Chain: nlmsg.Text(nlmsg.Find(b, unix.NFTA_RULE_CHAIN)),
				Handle: nlmsg.Number64(nlmsg.Find(b, unix.NFTA_RULE_HANDLE))}
			if nlmsg.Text(nlmsg.Find(b, unix.NFTA_RULE_TABLE)) == t.Table && !strings.HasPrefix(p.Chain, f.Chain) && f.made(b) {
				r.Rules = append(r.Rules, p)
			}
		})
		if err != nil {
			return r, fmt.Errorf("list rules of table %s: %w", t, err)
		}
	}
	return r, nil
}

// made reports whether a rule outside of the program's chains belongs to it: by the comment, which iptables keeps in a
// match or in the user data, or because it leads to one of the chains.
func (f Foreign) made(rule []byte) bool {
	if f.Mark != "" && (bytes.Contains(nlmsg.Find(rule, unix.NFTA_RULE_USERDATA), []byte(f.Mark)) ||
		bytes.Contains(nlmsg.Find(rule, unix.NFTA_RULE_EXPRESSIONS), []byte(f.Mark))) {
		return true
	}
	leads := false
	_ = nlmsg.Each(nlmsg.Find(rule, unix.NFTA_RULE_EXPRESSIONS), func(_ uint16, expression []byte) {
		data := nlmsg.Find(expression, unix.NFTA_EXPR_DATA)
		verdict := nlmsg.Find(nlmsg.Find(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT)
		leads = leads || strings.HasPrefix(nlmsg.Text(nlmsg.Find(verdict, unix.NFTA_VERDICT_CHAIN)), f.Chain)
	})
	return leads
}

// list dumps the objects of one family, or of all.
func (s socket) list(kind int, family uint8, attrs nlmsg.Attributes, take func(family uint8, b []byte)) error {
	return s.ask(nlmsg.Netfilter(unix.NFNL_SUBSYS_NFTABLES, kind, unix.NLM_F_DUMP, family, attrs), take)
}

// Chains lists all chains of all families, including iptables' own where its commands use nf_tables. Missing holds for
// the error if the kernel has no nf_tables.
func (t *Table) Chains(ctx context.Context) (chains []Place, err error) {
	s, err := dial(ctx, t.ns)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	err = s.list(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC, nil, func(family uint8, b []byte) {
		chains = append(chains, chainPlace(family, b))
	})
	return chains, err
}

func chainPlace(family uint8, b []byte) Place {
	return Place{Family: family, Table: nlmsg.Text(nlmsg.Find(b, unix.NFTA_CHAIN_TABLE)),
		Chain: nlmsg.Text(nlmsg.Find(b, unix.NFTA_CHAIN_NAME))}
}

// removal returns the transaction: first the rules that lead to chains, then the rules in the chains, then the chains,
// then the tables.
func (r Remains) removal() []nlmsg.Message {
	var requests []nlmsg.Message
	request := func(kind int, p Place, attrs nlmsg.Attributes) {
		requests = append(requests, nlmsg.Netfilter(unix.NFNL_SUBSYS_NFTABLES, kind, 0, p.Family, attrs))
	}
	for _, p := range r.Rules {
		var a nlmsg.Attributes
		a.Text(unix.NFTA_RULE_TABLE, p.Table)
		a.Text(unix.NFTA_RULE_CHAIN, p.Chain)
		a.Add(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, p.Handle))
		request(unix.NFT_MSG_DELRULE, p, a)
	}
	for _, step := range []struct {
		kind  int
		chain uint16
	}{
		{unix.NFT_MSG_DELRULE, unix.NFTA_RULE_CHAIN},
		{unix.NFT_MSG_DELCHAIN, unix.NFTA_CHAIN_NAME},
	} {
		for _, p := range r.Chains {
			var a nlmsg.Attributes
			a.Text(unix.NFTA_TABLE_NAME, p.Table) // the attribute has one number in all kinds of objects
			a.Text(step.chain, p.Chain)
			request(step.kind, p, a)
		}
	}
	for _, p := range r.Tables {
		var a nlmsg.Attributes
		a.Text(unix.NFTA_TABLE_NAME, p.Table)
		request(unix.NFT_MSG_DELTABLE, p, a)
	}
	return requests
}
