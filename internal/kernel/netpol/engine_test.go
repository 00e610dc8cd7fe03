package netpol_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/netlinkx"
	"github.com/tortie-net/tortie/internal/kernel/netpol"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/nfttest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
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

// restorable checks that nft understands the table.
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
	difftest.Golden(t, "sample.txt", list(t, ns))
	steady(t, ns, e, rs)
	restorable(t, ns)

	t.Run("one member", func(t *testing.T) {
		rs := sample()
		rs.Members = maps.Clone(rs.Members)
		rs.Members[addr("10.0.0.7")] = []policy.SetID{0x11, 0x22}
		delete(rs.Members, addr("10.0.0.2"))
		if s := mustSync(t, e, rs, addr("10.0.0.7"), addr("10.0.0.2"), addr("10.0.0.9"),
			addr("10.0.0.7")); s != (netpol.Stats{Transactions: 1, Elements: 3}) {
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
		if text := list(t, ns); strings.Contains(text, "office") || strings.Contains(text, "default/udp") {
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

// TestDrift changes the table by hand. The next Sync repairs it.
func TestDrift(t *testing.T) {
	const table = "inet tortie-policy"
	for name, script := range map[string]string{
		"table deleted":      "delete table " + table,
		"table flushed":      "flush table " + table,
		"table dormant":      "add table " + table + " { flags dormant; }",
		"ruleset flushed":    "flush ruleset",
		"base chain flushed": "flush chain " + table + " egress",
		"base chain deleted": "flush chain " + table + " to-host; delete chain " + table + " to-host",
		"base chain drops":   "add chain " + table + " ingress { policy drop; }",
		"base chain moved": "flush chain " + table + " to-host; delete chain " + table + " to-host; add chain " + table +
			" to-host { type filter hook forward priority 7; }",
		"rule in front": "insert rule " + table + " ingress accept",
		"rule behind":   "add rule " + table + " %L% accept",
		"rule deleted":  "flush chain " + table + " %L%",
		"link deleted":  "delete element " + table + " to { \"cali1\" }",
		"link added":    "add element " + table + " from { \"cali9\" : accept }",
		"link accepts": "delete element " + table + " to { \"cali1\" }; add element " + table +
			" to { \"cali1\" comment \"uid-1\" : accept }",
		"member deleted":  "delete element " + table + " members4-4096 { 0x11 . 10.0.0.1 }",
		"member added":    "add element " + table + " members6-4096 { 0x99 . fd00::7 }",
		"network deleted": "delete element " + table + " nets4-office { 10.9.2.1 }",
		"network added":   "add element " + table + " nets4-office { 1.0.0.0/8 }",
		"port added":      "add element " + table + " %PORTS% { 1000-2000 : accept }",
		"opened":          "flush set " + table + " closed",
		"neighbours":      "flush set " + table + " neighbours",
		"chain of a stranger": "add chain " + table + " other; add rule " + table + " other ip saddr @nets4-office counter; insert rule " +
			table + " egress jump other",
		"set of a stranger": "add set " + table + " other { type ipv4_addr; }",
		"base chain of another": "add chain " + table + " other { type filter hook input priority 0; }; add rule " + table +
			" other iifname @nope drop; ",
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			e := newEngine(t, ns)
			rs := sample()
			mustSync(t, e, rs)
			want := list(t, ns)
			script = strings.NewReplacer("%L%", named(want, "chain l-"), "%PORTS%", named(want, "map ports-"),
				" iifname @nope", " iifname 7").Replace(script)
			ns.Run(t, "nft", script)
			transactions := 1
			if name == "table deleted" || name == "ruleset flushed" {
				transactions = 2 // while links are shut new interval sets come before their rules
			}
			if s := mustSync(t, e, rs); !s.Read || s.Transactions != transactions {
				t.Errorf("did %+v, want %d after a look", s, transactions)
			}
			if got := list(t, ns); got != want {
				t.Errorf("after the repair:\n%s\nwant:\n%s", got, want)
			}
			steady(t, ns, e, rs)
		})
	}
}

// TestLost: a program that removes base chains, or their rules, finds links shut before there is a Sync, unless no link
// must be closed.
func TestLost(t *testing.T) {
	const table = "inet tortie-policy"
	for script, shut := range map[string]bool{
		"delete table " + table: true, "flush ruleset": true, "flush table " + table: true, "flush chain " + table + " ingress": true,
		"flush chain " + table + " to-host; delete chain " + table + " to-host": true, "flush map " + table + " to": false,
	} {
		for _, closed := range []bool{true, false} {
			t.Run(fmt.Sprint(script, ", closed ", closed), func(t *testing.T) {
				ns := netnstest.New(t)
				e := newEngine(t, ns)
				wake, err := e.Events(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				rs := sample()
				rs.Closed = closed
				mustSync(t, e, rs)
				want := list(t, ns)
				ns.Run(t, "nft", script)
				<-wake
				waittest.Until(t, 10*time.Second, fmt.Sprintf("shut: want %v", shut && closed), func() bool {
					text := list(t, ns)
					return strings.Contains(text, "chain shut-forward") == (shut && closed) &&
						strings.Contains(text, "chain shut-to-host") == (shut && closed)
				})
				mustSync(t, e, rs)
				if got := list(t, ns); got != want {
					t.Errorf("after the repair:\n%s\nwant:\n%s", got, want)
				}
			})
		}
	}
}

// named finds the first name in nft's list that follows a kind and begins with a prefix.
func named(text, begin string) string {
	kind, prefix, _ := strings.Cut(begin, " ")
	_, rest, _ := strings.Cut(text, "\t"+kind+" "+prefix)
	name, _, _ := strings.Cut(rest, " ")
	return prefix + name
}

// TestStrangers are not touched, and their transactions are no reason to look.
func TestStrangers(t *testing.T) {
	ns := netnstest.New(t)
	e := newEngine(t, ns)
	mustSync(t, e, sample())
	ns.Run(t, "nft", "add table inet other; add chain inet other egress; add rule inet other egress counter; add table ip tortie-policy; "+
		"add set ip tortie-policy to { type ifname; }")
	if s := mustSync(t, e, sample()); s != (netpol.Stats{}) {
		t.Errorf("did %+v after a stranger's transaction", s)
	}
	mustSync(t, e, &policy.Ruleset{})
	for _, table := range []string{"inet other", "ip tortie-policy"} {
		if text := ns.Run(t, "nft", "list table "+table); !strings.Contains(text, "chain") && !strings.Contains(text, "set") {
			t.Errorf("table %s: %s", table, text)
		}
	}
}

// TestEvents: a flush by hand wakes, the engine's own transactions do not, however large.
func TestEvents(t *testing.T) {
	ns := netnstest.New(t)
	e := newEngine(t, ns)
	wake, err := e.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rs := sample()
	for i := range 60_000 {
		rs.Members[netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})] = []policy.SetID{0x22}
	}
	if s := mustSync(t, e, rs); s.Transactions < 3 {
		t.Errorf("%d elements took %d transactions", s.Elements, s.Transactions)
	}
	steady(t, ns, e, rs)
	rs = sample()
	mustSync(t, e, rs)
	ns.Run(t, "nft", "add table ip other")
	ns.Run(t, "nft", "delete table ip other")
	if touched, err := e.Touched(t.Context()); err != nil || touched { // it reads all pending events
		t.Errorf("without a change of the table by another: touched %v, %v", touched, err)
	}
	select {
	case <-wake:
		t.Error("woken without a change of the table by another")
	default:
	}
	ns.Run(t, "nft", "delete table inet tortie-policy")
	select {
	case <-wake:
	case <-time.After(20 * time.Second):
		t.Fatal("not woken")
	}
	mustSync(t, e, rs)
	difftest.Golden(t, "sample.txt", list(t, ns))
}

// TestRefused: a program that the kernel does not take closes its own pods in its direction, and no others.
func TestRefused(t *testing.T) {
	ns := netnstest.New(t)
	e := newEngine(t, ns)
	mustSync(t, e, sample())
	rs := sample()
	overlap := []policy.PortRange{{First: 1, Last: 10, List: bySets(deny("odd"), "", 0x11)},
		{First: 5, Last: 20, List: bySets(deny("odd"), "", 0x22)}}
	rs.Programs["odd"] = policy.Program{Ports: map[uint8][]policy.PortRange{unix.IPPROTO_TCP: overlap}, Rest: policy.List{Else: deny("odd")}}
	rs.Programs["lost"] = policy.Program{Rest: bySets(deny("lost"), "nowhere")}
	rs.Endpoints["cali4"] = policy.Endpoint{UID: "uid-4", Programs: [2]string{"odd", "out"}}
	rs.Endpoints["cali5"] = policy.Endpoint{UID: "uid-5", Programs: [2]string{"web", "lost"}}
	rs.Members[addr("10.0.0.8")] = []policy.SetID{0x11}
	check := func(stats netpol.Stats, err error) {
		t.Helper()
		if !errors.Is(err, netpol.ErrRefused) {
			t.Fatalf("did %+v: %v, want ErrRefused", stats, err)
		}
		for _, word := range []string{"cali4", "ingress", "NetworkPolicy default/odd", "cali5", "egress", "NetworkPolicy default/lost"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%v: does not name %s", err, word)
			}
		}
	}
	check(e.Sync(t.Context(), rs, nil))
	to := ns.Run(t, "nft", "list map inet tortie-policy to")
	from := ns.Run(t, "nft", "list map inet tortie-policy from")
	if !strings.Contains(to, `"cali4" comment "uid-4" : drop`) || !strings.Contains(from, `"cali4" comment "uid-4" : goto p-`) ||
		!strings.Contains(to, `"cali5" comment "uid-5" : goto p-`) || !strings.Contains(from, `"cali5" comment "uid-5" : drop`) {
		t.Errorf("links:\n%s%s", to, from)
	}
	if !strings.Contains(list(t, ns), "10.0.0.8") {
		t.Error("the rest was not done")
	}
	stats, err := e.Sync(t.Context(), rs, nil)
	if check(stats, err); stats.Transactions != 0 || stats.Read {
		t.Errorf("the second Sync did %+v", stats)
	}
	mustSync(t, e, sample())
	steady(t, ns, e, sample())
}

// TestGrow outgrows the sets of members.
func TestGrow(t *testing.T) {
	ns := netnstest.New(t)
	e := newEngine(t, ns)
	rs := sample()
	mustSync(t, e, rs)
	var touched []netip.Addr
	for i := range 5000 {
		a := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		touched = append(touched, a)
		rs.Members[a] = []policy.SetID{0x22}
		if i%1000 == 999 {
			mustSync(t, e, rs, touched...)
			touched = nil
		}
	}
	steady(t, ns, e, rs)
	if text := list(t, ns); strings.Contains(text, "-4096") || !strings.Contains(text, "members4-16384") {
		t.Error("the sets of members have not grown")
	}
	rs = sample()
	mustSync(t, e, rs)
	steady(t, ns, e, rs)
}

// TestRestart: what another process has left is taken over but for the difference.
func TestRestart(t *testing.T) {
	ns := netnstest.New(t)
	mustSync(t, newEngine(t, ns), sample())
	handles := ns.Run(t, "nft", "-a", "list", "chain", "inet", "tortie-policy", "egress")
	rs := sample()
	rs.Endpoints["cali1"] = policy.Endpoint{UID: "uid-1"}
	rs.Endpoints["cali2"] = policy.Endpoint{UID: "uid-2"}
	rs.Endpoints["cali4"] = policy.Endpoint{UID: "uid-4", Programs: [2]string{"", "out"}}
	rs.Members[addr("10.0.0.4")] = []policy.SetID{0x22}
	e := newEngine(t, ns)
	if s := mustSync(t, e, rs); s.Transactions != 2 || s.Elements != 11 {
		t.Errorf("did %+v, want two transactions: one member, which no rule that was read may look for; cali1 to and from anew, cali2 to and "+
			"from anew, cali4 to and from, one member", s)
	}
	if now := ns.Run(t, "nft", "-a", "list", "chain", "inet", "tortie-policy", "egress"); now != handles {
		t.Errorf("the base chain was made anew:\n%s\nbefore:\n%s", now, handles)
	}
	steady(t, ns, e, rs)
}

// TestPlugin is what the plugins ask for.
func TestPlugin(t *testing.T) {
	ns := netnstest.New(t)
	inForce := func(link, wantUID string, wantTable bool) {
		t.Helper()
		ns.Within(t, func() error {
			uid, table, err := netpol.InForce(link)
			if uid != wantUID || table != wantTable {
				t.Errorf("InForce(%s) = %q, %v, want %q, %v", link, uid, table, wantUID, wantTable)
			}
			return err
		})
	}
	within := func(f func() error) { t.Helper(); ns.Within(t, f) }
	isClosed := func(want bool) {
		t.Helper()
		within(func() error {
			got, err := netpol.Closed()
			if got != want {
				t.Errorf("closed %v, want %v", got, want)
			}
			return err
		})
	}
	inForce("cali1", "", false)
	isClosed(false)
	within(func() error { return closeOther("cali1", "uid-1") })
	within(func() error { return netpol.Hold("cali") })
	isClosed(true)
	held := list(t, ns)
	within(func() error { return netpol.Hold("cali") })
	if again := list(t, ns); again != held || !strings.Contains(held, "ipv6") {
		t.Errorf("held twice:\n%s\nonce:\n%s", again, held)
	}
	handles := ns.Run(t, "nft", "-a", "list", "chain", "inet", "tortie-policy", "egress")
	inForce("cali1", "", true)
	e := newEngine(t, ns)
	mustSync(t, e, sample())
	if now := ns.Run(t, "nft", "-a", "list", "chain", "inet", "tortie-policy", "egress"); now != handles {
		t.Error("the engine has made the base chains of Hold anew")
	}
	before := list(t, ns)
	within(func() error { return netpol.Hold("cali") })
	within(func() error { return closeOther("cali1", "uid-1") })
	within(func() error { return closeOther("cali9", "uid-1") })
	if now := list(t, ns); now != before {
		t.Errorf("changed what was right:\n%s", now)
	}
	inForce("cali1", "uid-1", true)
	inForce("cali9", "", true)

	within(func() error { return closeOther("cali1", "uid-7") })
	inForce("cali1", "", true)
	mustSync(t, e, sample()) // it does not know the next pod yet
	inForce("cali1", "", true)
	mustSync(t, newEngine(t, ns), sample())
	inForce("cali1", "", true)
	rs := sample()
	rs.Endpoints["cali1"] = policy.Endpoint{UID: "uid-7", Programs: [2]string{"web", ""}}
	mustSync(t, e, rs)
	inForce("cali1", "uid-7", true)
	steady(t, ns, e, rs)
	rs.Closed = false
	mustSync(t, e, rs)
	isClosed(false)
}

func BenchmarkInForce(b *testing.B) {
	ns := netnstest.New(b)
	mustSync(b, newEngine(b, ns), sample())
	for link, want := range map[string]string{"cali1": "uid-1", "cali9": ""} {
		b.Run(fmt.Sprintf("%q", want), func(b *testing.B) {
			ns.Within(b, func() error {
				for b.Loop() {
					if uid, _, err := netpol.InForce(link); uid != want || err != nil {
						return fmt.Errorf("%s: %q, %v", link, uid, err)
					}
				}
				return nil
			})
		})
	}
}

// TestSilent: a kernel that cannot log denials still denies and counts.
func TestSilent(t *testing.T) {
	ns := netnstest.New(t)
	e := newEngine(t, ns)
	e.Silence(4096)
	mustSync(t, e, sample())
	if text := list(t, ns); strings.Contains(text, "log") ||
		!strings.Contains(text, `counter drop comment "ingress NetworkPolicy default/web"`) {
		t.Errorf("has:\n%s", text)
	}
	if s := mustSync(t, e, sample()); s != (netpol.Stats{}) {
		t.Errorf("nothing has changed, and the engine did %+v", s)
	}
	mustSync(t, newEngine(t, ns), sample())
	if !strings.Contains(list(t, ns), "log") {
		t.Error("another engine does not log")
	}
}

// TestNames: long names are cut for nft, and stay different.
func TestNames(t *testing.T) {
	ns := netnstest.New(t)
	rs := &policy.Ruleset{Closed: true, Endpoints: map[string]policy.Endpoint{}, Programs: map[string]policy.Program{}}
	for _, end := range []string{"a", "b"} {
		id := policy.ID{Kind: "NetworkPolicy", Namespace: strings.Repeat("n", 63), Name: strings.Repeat("p", 252) + end}
		rs.Programs[end] = policy.Program{Rest: policy.List{Else: policy.Verdict{By: id}}}
		rs.Endpoints["cali"+end] = policy.Endpoint{UID: end, Programs: [2]string{end, ""}}
	}
	e := newEngine(t, ns)
	mustSync(t, e, rs)
	steady(t, ns, e, rs)
	restorable(t, ns)
	if n := strings.Count(list(t, ns), "chain deny-"); n != 2 {
		t.Errorf("%d chains deny, want 2", n)
	}
}

// TestEnd: answers to connections of UDP that were ended are kept for a time, of both families, and by the next agent.
func TestEnd(t *testing.T) {
	ns := netnstest.New(t)
	e := newEngine(t, ns)
	flow := func(client, server string, protocol uint8) netlinkx.Flow {
		return netlinkx.Flow{Client: addr(client), Server: addr(server), Protocol: protocol, Port: 53, SourcePort: 4000}
	}
	flows := []netlinkx.Flow{flow("10.0.0.1", "10.0.0.2", policy.UDP), flow("fd00::1", "fd00::2", policy.UDP),
		flow("10.0.0.3", "10.0.0.4", policy.TCP)}
	if err := e.End(t.Context(), flows); err == nil {
		t.Error("no error without a table")
	}
	mustSync(t, e, sample())
	for range 2 {
		if err := e.End(t.Context(), flows); err != nil {
			t.Fatal(err)
		}
	}
	kept := func() {
		t.Helper()
		text := list(t, ns)
		for want, count := range map[string]int{"10.0.0.2 . 10.0.0.1 . 53 . 4000": 1, "fd00::2 . fd00::1 . 53 . 4000": 1, "10.0.0.3": 0} {
			if got := strings.Count(text, want); got != count {
				t.Errorf("%q is there %d times, want %d", want, got, count)
			}
		}
	}
	kept()
	steady(t, ns, e, sample())
	kept()
}
