package perf

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/pathtest"
)

func TestDecompose(t *testing.T) {
	for _, e := range []pathtest.Encap{pathtest.Routes, pathtest.IPIP} {
		p, err := pathtest.New(t.Context(), e)
		errtest.Must(t, err)
		w := podWire(t, p)
		m := &meter{T: t, bare: map[string]float64{"KiB of a stream": 1, "round trip": 1, "connection": 1, "datagram": 1}}
		of := kinds
		nft := func(text string) {
			for _, n := range p.Nodes {
				errtest.Must(t, n.NS.Do(func() error {
					c := exec.CommandContext(t.Context(), "nft", "-f", "-")
					c.Stdin, c.Stderr = strings.NewReader(text), os.Stderr
					return c.Run()
				}))
			}
		}
		m.add("no rules", w, of...)
		errtest.Must(t, p.Track(t.Context(), true))
		m.add("conntrack", w, of...)
		m.add("conntrack again", w, of...)
		nft(`table inet x { chain pre { type filter hook prerouting priority raw; }; }`)
		m.add("+ empty raw chain", w, of...)
		nft(`table inet x { chain src { ip daddr 127.0.0.0/8 counter drop; }; chain pre { iifname "cali*" jump src; }; }`)
		m.add("+ iifname jump", w, of...)
		nft(`table inet x { chain src { fib saddr . iif oif 0 counter drop; }; }`)
		m.add("+ fib", w, of...)
		nft(`table inet x { chain fwd { type filter hook forward priority -1; }; }`)
		m.add("+ empty forward", w, of...)
		nft(`table inet x { chain fwd { tcp flags & (syn|ack) != syn accept; udp dport != 4789 accept; }; }`)
		m.add("+ forward rules", w, of...)
		nft(`table inet x { chain inp { type filter hook input priority -1; }; }`)
		m.add("+ empty input", w, of...)
		nft(`delete table inet x`)
		m.add("conntrack, table gone", w, of...)
		errtest.Must(t, p.Track(t.Context(), false))
		m.add("no rules again", w, of...)
		errtest.Must(t, p.AddRules(t.Context()))
		m.add("agent's rules", w, of...)
		m.add("agent's rules again", w, of...)
		for _, n := range p.Nodes[:1] {
			errtest.Must(t, n.NS.Do(func() error {
				c := exec.CommandContext(t.Context(), "nft", "list", "ruleset")
				c.Stdout = os.Stdout
				return c.Run()
			}))
		}
		show(t, m.all)
	}
}
