package nft_test

import (
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
)

// TestClosings: chains of the forward hook that drop packets which they do not accept, by the policy or by the last
// reachable rule.
func TestClosings(t *testing.T) {
	ns := netnstest.New(t)
	for _, table := range []string{
		"table inet a { chain drops { type filter hook forward priority 0; policy drop; iifname \"eth7\" accept; }; }",
		"table ip b { chain rejects { type filter hook forward priority 0; tcp dport 22 accept; counter reject; }; }",
		"table ip c { chain drops { type filter hook forward priority 0; drop; accept; }; }",
		"table ip d { chain open { type filter hook forward priority 0; policy drop; counter accept; drop; }; }",
		"table ip e { chain in { type filter hook input priority 0; policy drop; }; chain some { type filter hook forward priority 0; ip " +
			"daddr 10.0.0.1 drop; }; }",
		"table bridge f { chain b { type filter hook forward priority 0; policy drop; }; }",
		"table ip6 g { chain sets { type filter hook forward priority 0; policy drop; ip6 saddr { fd00::1, fd00::2 } accept; }; }",
	} {
		ns.Run(t, "nft", table)
	}
	all, err := nft.New(ns.Conn.Namespace()).Closings(t.Context())
	errtest.Must(t, err)
	got := map[string]string{}
	for _, c := range all {
		got[c.Place.String()] = c.How
		if c.Sets != (c.Table == "g") || !slices.Contains(c.Chains, c.Chain) {
			t.Errorf("%+v", c)
		}
		if named := slices.ContainsFunc(c.Values,
			func(v []byte) bool { return len(v) >= 4 && string(v[:4]) == "eth7" }); named != (c.Table == "a") {
			t.Errorf("%s compares with %q", c.Place, c.Values)
		}
	}
	difftest.Want(t, "closings", map[string]string{"inet a drops": "policy drop", "ip b rejects": "last rule reject",
		"ip c drops": "last rule drop", "ip6 g sets": "policy drop"}, got)
}
