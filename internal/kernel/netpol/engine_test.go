package netpol_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/nfttest"
)

func np(name string) policy.ID {
	return policy.ID{Kind: "NetworkPolicy", Namespace: "default", Name: name}
}

var allow = policy.Verdict{Allow: true}

func deny(name string) policy.Verdict { return policy.Verdict{By: np(name)} }

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func ranges(of ...string) []policy.Range {
	var all []policy.Range
	for _, text := range of {
		first, last, _ := strings.Cut(text, "-")
		all = append(all, policy.Range{First: addr(first), Last: addr(last)})
	}
	return all
}

// bySets allows members of sets, and of networks if nets is not empty.
func bySets(els policy.Verdict, nets string, sets ...policy.SetID) policy.List {
	l := policy.List{Else: els}
	for _, s := range sets {
		l.Steps = append(l.Steps, policy.Step{Set: s, Verdict: allow})
	}
	if nets != "" {
		l.Steps = append(l.Steps, policy.Step{Nets: nets, Verdict: allow})
	}
	return l
}

// sample uses all that a Ruleset has.
func sample() *policy.Ruleset {
	web := policy.Program{
		Ports: map[uint8][]policy.PortRange{unix.IPPROTO_TCP: {
			{First: 80, Last: 80, List: bySets(deny("web"), "office", 0x11, 0xfffffff2)},
			{First: 81, Last: 90, List: bySets(deny("web"), "", 0x11)},
			{First: 91, Last: 91, List: policy.List{Else: allow}},
		}},
		Protocols: map[uint8]policy.List{unix.IPPROTO_TCP: {Else: deny("web")}, unix.IPPROTO_UDP: bySets(deny("udp"), "office")},
		Rest:      policy.List{Else: deny("web")},
	}
	out := policy.Program{Rest: bySets(deny("out"), "six", 0x22)}
	return &policy.Ruleset{
		Closed: true,
		Endpoints: map[string]policy.Endpoint{
			"cali1": {UID: "uid-1", Programs: [2]string{"web", ""}},
			"cali2": {UID: "uid-2", Programs: [2]string{"web", "out"}},
			"cali3": {UID: "uid-3"},
		},
		Programs: map[string]policy.Program{"web": web, "out": out},
		Nets: map[string][]policy.Range{
			"office": ranges("10.9.0.0-10.9.0.255", "10.9.2.1-10.9.2.1", "fd09::-fd09::ffff"),
			"six":    ranges("fd0a::-fd0a::ff"),
		},
		Members: map[netip.Addr][]policy.SetID{
			addr("10.0.0.1"): {0x11, 0x22}, addr("10.0.0.2"): {0x22}, addr("fd00::1"): {0x11, 0xfffffff2},
		},
	}
}

func newEngine(t testing.TB, ns *netnstest.NS) *netpol.Engine {
	e := netpol.New(ns.Namespace, "cali")
	t.Cleanup(e.Close)
	return e
}

func mustSync(t testing.TB, e *netpol.Engine, rs *policy.Ruleset, touched ...netip.Addr) netpol.Stats {
	t.Helper()
	stats, err := e.Sync(t.Context(), rs, touched)
	if err != nil {
		t.Fatal(err)
	}
	return stats
}

func list(t testing.TB, ns *netnstest.NS) string {
	t.Helper()
	return ns.Run(t, "nft", "-s", "list", "ruleset")
}

// steady checks that neither this engine nor a new one writes anything.
func steady(t *testing.T, ns *netnstest.NS, e *netpol.Engine, rs *policy.Ruleset) {
	t.Helper()
	before := nfttest.Generation(t, ns)
	if s := mustSync(t, e, rs); s != (netpol.Stats{}) {
		t.Errorf("nothing has changed, and the engine did %+v", s)
	}
	if s := mustSync(t, newEngine(t, ns), rs); s != (netpol.Stats{Read: true}) {
		t.Errorf("a new engine found all as it should be, and did %+v", s)
	}
	if after := nfttest.Generation(t, ns); after != before {
		t.Errorf("%d transactions for what was right", after-before)
	}
}

// restorable checks that nft understands what is there.
func restorable(t *testing.T, ns *netnstest.NS) {
	t.Helper()
	ns.Run(t, "sh", "-c", "nft list ruleset > /tmp/$$.nft && nft -c -f /tmp/$$.nft; code=$?; rm -f /tmp/$$.nft; exit $code")
}

func TestSync(t *testing.T) {
	ns := netnstest.New(t)
	e := newEngine(t, ns)
	rs := sample()
	if s := mustSync(t, e, rs); s.Transactions != 1 {
		t.Errorf("from empty took %+v, want one transaction", s)
	}
	t.Log(list(t, ns))
	steady(t, ns, e, rs)
	restorable(t, ns)

	t.Run("one member", func(t *testing.T) {
		rs := sample()
		rs.Members = maps.Clone(rs.Members)
		rs.Members[addr("10.0.0.7")] = []policy.SetID{0x11, 0x22}
		delete(rs.Members, addr("10.0.0.2"))
		if s := mustSync(t, e, rs, addr("10.0.0.7"), addr("10.0.0.2"), addr("10.0.0.9"), addr("10.0.0.7")); s != (netpol.Stats{Transactions: 1, Elements: 3}) {
			t.Errorf("did %+v, want one transaction of three elements", s)
		}
		steady(t, ns, e, rs)
	})
	t.Run("another program", func(t *testing.T) {
		rs := sample()
		rs.Endpoints["cali1"] = policy.Endpoint{UID: "uid-9", Programs: [2]string{"out", "out"}}
		delete(rs.Endpoints, "cali2")
		rs.Closed = false
		mustSync(t, e, rs)
		steady(t, ns, e, rs)
		if text := list(t, ns); strings.Contains(text, "office") || strings.Contains(text, "udp") {
			t.Errorf("chains and sets stay that nothing uses:\n%s", text)
		}
	})
	t.Run("nothing", func(t *testing.T) {
		mustSync(t, e, &policy.Ruleset{})
		steady(t, ns, e, &policy.Ruleset{})
		restorable(t, ns)
	})
	t.Run("removed", func(t *testing.T) {
		ns.Run(t, "nft", "add table inet other")
		if err := errors.Join(e.Remove(t.Context()), e.Remove(t.Context())); err != nil {
			t.Fatal(err)
		}
		if text := list(t, ns); strings.TrimSpace(text) != "table inet other {\n}" {
			t.Errorf("left: %s", text)
		}
	})
}

var _ = []any{fmt.Sprint, io.EOF, slices.Sort[[]int], time.Now}
