package nft_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/nfttest"
)

// felix is another program with tables of its own, and chains in iptables' tables.
var felix = nft.Foreign{Tables: []string{"calico"}, Chain: "cali-", Mark: "cali:"}

// felixTables is what Felix has in its mode of nftables: chains with verdict maps that lead to others.
const felixTables = `
table ip calico {
	map cali-from-wl { type ifname : verdict
		elements = { "cali1" : goto filter-cali-fw-1 }
	}
	set cali40s { type ipv4_addr
		elements = { 10.0.0.1 }
	}
	chain filter-cali-fw-1 { ip saddr @cali40s accept; drop
	}
	chain filter-FORWARD { type filter hook forward priority 0; policy accept; iifname vmap @cali-from-wl
	}
}
table ip6 calico {
	chain filter-FORWARD { type filter hook forward priority 0; policy accept
	}
}
table inet own {
	chain cali { }
	chain FORWARD { type filter hook forward priority 0; jump cali
	}
}
`

// felixRules is what Felix has in its mode of iptables, with rules of others around it.
var felixRules = []string{
	"-t filter -N cali-FORWARD", "-t filter -N cali-from-wl-dispatch", "-t filter -N KUBE-FORWARD", "-t filter -N calico-not",
	"-t filter -A cali-FORWARD -i cali+ -j cali-from-wl-dispatch", "-t filter -A cali-from-wl-dispatch -j DROP",
	"-t filter -A FORWARD -s 10.1.0.0/16 -j ACCEPT", "-t filter -A FORWARD -j KUBE-FORWARD", "-t filter -A FORWARD -j calico-not",
	"-t filter -I FORWARD 1 -m comment --comment cali:wUHhoiAYhphO9Mso -j cali-FORWARD",
	"-t filter -A FORWARD -m comment --comment cali:S93hcgKJrXEqnTfs -m mark --mark 0x10000/0x10000 -j ACCEPT",
	"-t nat -N cali-POSTROUTING", "-t nat -A cali-POSTROUTING -s 10.9.0.0/16 -j MASQUERADE", "-t nat -A POSTROUTING -j cali-POSTROUTING",
	"-t nat -A POSTROUTING -s 10.77.0.0/16 -j MASQUERADE",
}

func withFelix(t *testing.T) (*netnstest.NS, *nft.Table) {
	t.Helper()
	ns := netnstest.New(t)
	for _, program := range []string{"iptables-nft", "ip6tables-nft"} {
		for _, rule := range felixRules {
			if strings.HasPrefix(program, "ip6") && strings.Contains(rule, "10.") {
				continue
			}
			ns.Run(t, program, strings.Fields(rule)...)
		}
	}
	file := filepath.Join(t.TempDir(), "felix.nft")
	errtest.Must(t, os.WriteFile(file, []byte(felixTables), 0o600))
	ns.Run(t, "nft", "-f", file)
	return ns, nft.New(ns.Namespace)
}

func TestForeign(t *testing.T) {
	ns, table := withFelix(t)
	part := nft.Part{Prefixes: []string{"nat-"},
		Chains: []nft.Chain{{Name: "nat-x", Rules: []nft.Rule{nft.NewRule("", nft.IPv4.Is(), nft.Do(nft.Accept))}}}}
	syncPart(t, table, part)
	found, err := table.Find(t.Context(), felix)
	errtest.Must(t, err)
	if got, want := found.String(), "table ip calico, table ip6 calico, 2 chains in table ip filter, 1 chains in table ip nat, 2 chains in "+
		"table ip6 filter, 1 chains in table ip6 nat"; got != want {
		t.Errorf("found %s, want %s", got, want)
	}
	if len(found.Rules) != 6 {
		t.Errorf("rules in others' chains: %v, want 6", found.Rules)
	}
	if removed, err := table.Remove(t.Context(), felix); err != nil || removed.String() != found.String() {
		t.Fatalf("removed %s, %v", removed, err)
	}
	text := ruleset(t, ns)
	for _, gone := range []string{"cali-", "cali:", "table ip calico", "table ip6 calico"} {
		if strings.Contains(text, gone) {
			t.Errorf("%q is still there:\n%s", gone, text)
		}
	}
	difftest.Contains(t, text, "10.1.0.0/16", "KUBE-FORWARD", "jump calico-not", "10.77.0.0/16", "table inet own", "jump cali\n",
		"table inet tortie", "nat-x")
	before := nfttest.Generation(t, ns)
	if removed, err := table.Remove(t.Context(), felix); err != nil || !removed.Empty() || removed.String() != "" {
		t.Errorf("removed again: %s, %v", removed, err)
	}
	if nfttest.Generation(t, ns) != before {
		t.Error("nothing was there, and something was written")
	}
}
