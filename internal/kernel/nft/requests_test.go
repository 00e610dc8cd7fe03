package nft

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nlmsg"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// recorder keeps the requests that pass.
type recorder struct {
	conn
	requests []nlmsg.Message
}

func (r *recorder) Execute(m nlmsg.Message, take func(nlmsg.Message) error) error {
	r.requests = append(r.requests, m)
	return r.conn.Execute(m, take)
}

// TestOnlyOurTableIsAsked: no request is about another table, even of the same family.
func TestOnlyOurTableIsAsked(t *testing.T) {
	ns := netnstest.New(t)
	part := Part{Prefixes: []string{"own-"}, Former: []string{"own-former"}, Chains: []Chain{
		{Name: "own-chain", Rules: []Rule{NewRule("", In("own-set", IPv4.Src), Count())}},
	}, Sets: []Set{{Name: "own-set", Key: []Type{IPv4Addr}, Elements: []Element{{First: "\x0a\x00\x00\x01"}}}}}
	if _, err := New(ns.Namespace).Sync(t.Context(), part); err != nil {
		t.Fatal(err)
	}
	for _, family := range []string{"inet", "ip", "ip6"} {
		ns.Run(t, "nft", "add table "+family+" other; add chain "+family+" other own-chain; add rule "+family+
			" other own-chain counter; add set "+family+" other own-set { type ipv4_addr; }")
	}
	s, err := dial(t.Context(), ns.Namespace)
	errtest.Must(t, err)
	defer s.Close()
	r := &recorder{conn: s.conn}
	have, err := socket{r, TableName}.read(part)
	errtest.Must(t, err)
	if len(have.chains) != 1 || len(have.chains["own-chain"].rules) != 1 || len(have.sets) != 1 || len(have.sets["own-set"].elements) != 1 {
		t.Errorf("read %+v, want the one chain with its rule, and the set with its element", have)
	}
	if len(r.requests) < 6 {
		t.Errorf("only %d requests were seen", len(r.requests))
	}
	for _, m := range r.requests {
		table := nlmsg.Text(nlmsg.Find(m.Body[nlmsg.SizeofNfgenmsg:], unix.NFTA_TABLE_NAME))
		listsChains := m.Kind == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN && m.Flags&unix.NLM_F_DUMP != 0
		if m.Body[0] != family || table != TableName || listsChains {
			t.Errorf("request %d of family %d is about table %q; chains of all tables: %v", m.Kind, m.Body[0], table, listsChains)
		}
	}
}
