package nft_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/nft"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/netnstest"
	"github.com/tortie-net/tortie/internal/testkit/nfttest"
)

func ruleset(t testing.TB, ns *netnstest.NS) string {
	t.Helper()
	return ns.Run(t, "nft", "list", "ruleset")
}

func syncPart(t testing.TB, table *nft.Table, p nft.Part) (written bool) {
	t.Helper()
	written, err := table.Sync(t.Context(), p)
	errtest.Must(t, err)
	return written
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func key(addr string) string { return nft.AddrKey(netip.MustParseAddr(addr)) }

// policy is a part as a policy engine would have it: chains for pods, verdict maps that lead to them, sets of all
// kinds.
func policy() nft.Part {
	tcp, udp := nft.ByteKey(unix.IPPROTO_TCP), nft.ByteKey(unix.IPPROTO_UDP)
	link := func(name string) string { return name + strings.Repeat("\x00", 16-len(name)) }
	return nft.Part{
		Prefixes: []string{"policy-"},
		Chains: []nft.Chain{
			{Name: "policy-forward", Hook: &nft.Hook{Type: nft.Filter, Number: nft.Forward, Priority: nft.PriorityFilter - 1}, Rules: []nft.Rule{
				nft.NewRule("from pods", nft.InLink.HasPrefix("cali"), nft.Count(), nft.Map("policy-from", nft.InLink)),
				nft.NewRule("", nft.OutLink.Is(nft.LinkKey("cali1")), nft.Do(nft.Jump("policy-pod1"))),
			}},
			{Name: "policy-pod1", Rules: []nft.Rule{
				nft.NewRule("", nft.IPv4.Is(), nft.In("policy-peers4", nft.IPv4.Src, nft.L4Proto, nft.DestPort), nft.Do(nft.Accept)),
				nft.NewRule("", nft.IPv4.Is(), nft.In("policy-ranges4", nft.IPv4.Src, nft.L4Proto, nft.DestPort), nft.Do(nft.Accept)),
				nft.NewRule("", nft.IPv6.Is(), nft.NotIn("policy-net6", nft.IPv6.Src), nft.Do(nft.Return)),
				nft.NewRule("", nft.L4Proto.Is(tcp), nft.SrcPort.IsNot(nft.PortKey(53)), nft.Map("policy-ports", nft.DestPort)),
				nft.NewRule("the rest", nft.Count(), nft.Do(nft.Drop)),
			}},
			{Name: "policy-pod2", Rules: []nft.Rule{nft.NewRule("", nft.Do(nft.Goto("policy-pod1")))}},
		},
		Sets: []nft.Set{
			{Name: "policy-from", Key: []nft.Type{nft.LinkName}, Value: nft.VerdictType, Elements: []nft.Element{
				{First: link("cali1"), Verdict: nft.Goto("policy-pod1")}, {First: link("cali2"), Verdict: nft.Jump("policy-pod2")},
				{Verdict: nft.Drop},
			}},
			{Name: "policy-peers4", Key: []nft.Type{nft.IPv4Addr, nft.Protocol, nft.Port}, Elements: []nft.Element{
				{First: nft.Key(key("10.0.0.1"), tcp, nft.PortKey(80))}, {First: nft.Key(key("10.0.0.2"), udp, nft.PortKey(53))},
			}},
			{Name: "policy-ranges4", Key: []nft.Type{nft.IPv4Addr, nft.Protocol, nft.Port}, Interval: true, Elements: []nft.Element{
				{First: nft.Key(key("10.1.0.0"), tcp, nft.PortKey(8000)), Last: nft.Key(key("10.1.255.255"), tcp, nft.PortKey(8999))},
				{First: nft.Key(key("10.2.0.0"), udp, nft.PortKey(1)), Last: nft.Key(key("10.2.0.255"), udp, nft.PortKey(65535))},
			}},
			{Name: "policy-net6", Key: []nft.Type{nft.IPv6Addr}, Interval: true, Elements: nft.Ranges(prefixes("fd00::/8", "2001:db8::/32"))},
			{Name: "policy-ports", Key: []nft.Type{nft.Port}, Value: nft.VerdictType, Interval: true, Elements: []nft.Element{
				{First: nft.PortKey(80), Last: nft.PortKey(89), Verdict: nft.Accept},
				{First: nft.PortKey(90), Last: nft.PortKey(65535), Verdict: nft.Return},
			}},
			{Name: "policy-marks", Key: []nft.Type{nft.IPv4Addr}, Value: nft.Port,
				Elements: []nft.Element{{First: key("10.0.0.9"), Value: nft.PortKey(7)}}},
		},
	}
}

func TestText(t *testing.T) {
	ns := netnstest.New(t)
	syncPart(t, nft.New(ns.Namespace), policy())
	difftest.Golden(t, "policy.txt", ns.Run(t, "nft", "list", "table", "inet", "tortie"))
}

// TestSteady: neither the same Table nor a new one writes a correct part.
func TestSteady(t *testing.T) {
	ns := netnstest.New(t)
	table := nft.New(ns.Namespace)
	if !syncPart(t, table, policy()) {
		t.Error("Sync says that nothing was written to an empty namespace")
	}
	before := nfttest.Generation(t, ns)
	for range 3 {
		if syncPart(t, table, policy()) || syncPart(t, nft.New(ns.Namespace), policy()) {
			t.Error("Sync says that something was written although all was right")
		}
	}
	if after := nfttest.Generation(t, ns); after != before {
		t.Errorf("%d transactions for what was right", after-before)
	}
	syncPart(t, table, nft.Part{Prefixes: policy().Prefixes})
	if left := ruleset(t, ns); left != "" {
		t.Errorf("left of an empty part:\n%s", left)
	}
	before = nfttest.Generation(t, ns)
	if syncPart(t, table, nft.Part{Prefixes: policy().Prefixes}) || nfttest.Generation(t, ns) != before {
		t.Error("nothing was removed, and that took a transaction")
	}
}

// TestDrift changes the table by hand in every way that nft supports. One transaction repairs it.
func TestDrift(t *testing.T) {
	const table, forward = "inet tortie", "inet tortie policy-forward"
	for name, script := range map[string]string{
		"table deleted":      "delete table " + table,
		"table flushed":      "flush table " + table,
		"table dormant":      "add table " + table + " { flags dormant; }",
		"base chain flushed": "flush chain " + forward,
		"base chain deleted": "flush chain " + forward + "; delete chain " + forward,
		"chain flushed":      "flush chain inet tortie policy-pod1",
		"chain drops":        "add chain " + forward + " { policy drop; }",
		"chain at another place": "flush chain " + forward + "; delete chain " + forward + "; add chain " + forward +
			" { type filter hook forward priority 5; }",
		"chain at another hook": "flush chain " + forward + "; delete chain " + forward + "; add chain " + forward +
			" { type filter hook input priority -1; }",
		"chain became a base": "flush chain inet tortie policy-pod2; flush map inet tortie policy-from; delete chain inet tortie " +
			"policy-pod2; add chain inet tortie policy-pod2 { type filter hook input priority 0; }",
		"base became a chain":    "flush chain " + forward + "; delete chain " + forward + "; add chain " + forward,
		"rule in front":          "insert rule " + forward + " accept",
		"rule behind":            "add rule inet tortie policy-pod1 accept",
		"rule between":           "add rule inet tortie policy-pod1 index 1 log prefix \"x\" ct state new meta mark 5",
		"rule with a set":        "add rule inet tortie policy-pod1 ip saddr { 10.0.0.1, 10.0.0.7 } accept",
		"rule with other things": "add rule inet tortie policy-pod1 ct state established limit rate 5/second reject",
		"stale chain":            "add chain inet tortie policy-old; add rule inet tortie policy-old counter",
		"stale chains in use": "add chain inet tortie policy-old; add chain inet tortie policy-older; add rule inet tortie policy-older " +
			"drop; add rule inet tortie policy-old jump policy-older; add rule inet tortie policy-pod1 jump policy-old",
		"stale set": "add set inet tortie policy-old { type ipv4_addr; elements = { 10.0.0.1 }; }",
		"stale map in use": "add chain inet tortie policy-older; add map inet tortie policy-old { type ipv4_addr : verdict; " +
			"elements = { 10.0.0.1 : jump policy-older }; }; add rule inet tortie policy-older counter; add rule inet tortie policy-pod1 ip " +
			"saddr vmap @policy-old",
		"set flushed": "flush set inet tortie policy-net6",
		"set of another kind": "flush chain inet tortie policy-pod1; delete set inet tortie policy-net6; add set inet tortie " +
			"policy-net6 { type ipv6_addr; }",
		"set became a map": "flush chain inet tortie policy-pod1; delete set inet tortie policy-net6; add map inet tortie policy-net6 { " +
			"type ipv6_addr : verdict; flags interval; }",
		"verdict changed":         "delete element inet tortie policy-from { cali1 }; add element inet tortie policy-from { cali1 : accept }",
		"value changed":           "delete element inet tortie policy-marks { 10.0.0.9 }; add element inet tortie policy-marks { 10.0.0.9 : 8 }",
		"catch-all removed":       "delete element inet tortie policy-from { * }",
		"catch-all changed":       "delete element inet tortie policy-from { * }; add element inet tortie policy-from { * : accept }",
		"range of ports narrowed": "delete element inet tortie policy-ports { 80-89 }; add element inet tortie policy-ports { 80-85 : accept }",
		"concatenation removed":   "delete element inet tortie policy-peers4 { 10.0.0.1 . tcp . 80 }",
		"concatenation added":     "add element inet tortie policy-ranges4 { 10.9.0.0/16 . tcp . 1-10 }",
	} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			ours := nft.New(ns.Namespace)
			syncPart(t, ours, policy())
			want := sorted(ruleset(t, ns))
			ns.Run(t, "nft", script)
			if sorted(ruleset(t, ns)) == want {
				t.Fatal("the script changes nothing")
			}
			before := nfttest.Generation(t, ns)
			if !syncPart(t, ours, policy()) {
				t.Error("Sync says that nothing had to be written")
			}
			if n := nfttest.Generation(t, ns) - before; n != 1 {
				t.Errorf("%d transactions, want 1", n)
			}
			difftest.Want(t, "", want, sorted(ruleset(t, ns)))
		})
	}
}

// sorted removes the order of chains and of hash tables' elements from a text, as neither has a meaning.
func sorted(text string) string {
	blocks := strings.Split(strings.ReplaceAll(text, "table inet tortie {\n", ""), "\n\t}\n")
	for i, b := range blocks {
		lines := strings.FieldsFunc(b, func(r rune) bool { return r == ',' || r == '\n' })
		if !strings.Contains(b, "chain ") {
			for j := range lines {
				lines[j] = strings.Trim(strings.TrimPrefix(strings.TrimSpace(lines[j]), "elements = {"), " }")
			}
			slices.Sort(lines)
		}
		blocks[i] = strings.TrimSpace(strings.Join(lines, "\n"))
	}
	slices.Sort(blocks)
	return strings.Join(blocks, "\n\n")
}

// TestOwners: two owners and foreign objects share the table, and no owner touches the others'. The table is removed
// with the last.
func TestOwners(t *testing.T) {
	ns := netnstest.New(t)
	const foreign = "table inet foreign {\n\tchain policy-forward {\n\t\tcounter packets 0 bytes 0\n\t}\n}\n"
	ns.Run(t, "nft", "add table inet foreign; add chain inet foreign policy-forward; add rule inet foreign policy-forward counter")
	table := nft.New(ns.Namespace)
	other := nft.Part{Prefixes: []string{"other-"}, Chains: []nft.Chain{{Name: "other-input", Rules: []nft.Rule{nft.NewRule("", nft.Count())},
		Hook: &nft.Hook{Type: nft.Filter, Number: nft.Input}}}}
	syncPart(t, table, other)
	alone := ruleset(t, ns)
	syncPart(t, table, policy())
	ns.Run(t, "nft", "add chain inet tortie handmade; add set inet tortie own-set { type ipv4_addr; }")
	both := sorted(ruleset(t, ns))
	before := nfttest.Generation(t, ns)
	if syncPart(t, table, other) || syncPart(t, table, policy()) || nfttest.Generation(t, ns) != before {
		t.Error("two owners who are content write")
	}
	ns.Run(t, "nft", "flush table inet tortie")
	syncPart(t, table, other)
	syncPart(t, table, policy())
	difftest.Want(t, "after both have repaired theirs", both, sorted(ruleset(t, ns)))
	syncPart(t, table, nft.Part{Prefixes: policy().Prefixes})
	ns.Run(t, "nft", "delete chain inet tortie handmade; delete set inet tortie own-set")
	difftest.Want(t, "after one has gone", alone, ruleset(t, ns))
	syncPart(t, table, nft.Part{Prefixes: other.Prefixes, Former: []string{"other-input"}})
	difftest.Want(t, "after both have gone", foreign, ruleset(t, ns))
}

// TestSomebodyHoldsOn: a rule in a foreign chain of our table uses one of our chains. The error names the remedy, and
// nothing is half changed.
func TestSomebodyHoldsOn(t *testing.T) {
	ns := netnstest.New(t)
	table := nft.New(ns.Namespace)
	syncPart(t, table, policy())
	ns.Run(t, "nft", "add chain inet tortie handmade; add rule inet tortie handmade jump policy-pod1")
	before := ruleset(t, ns)
	_, err := table.Sync(t.Context(), nft.Part{Prefixes: policy().Prefixes})
	if !errors.Is(err, unix.EBUSY) || !errtest.Names(err, "nft tortie") {
		t.Errorf("Sync = %v, want an error with a remedy", err)
	}
	if diff := cmp.Diff(before, ruleset(t, ns)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	if syncPart(t, table, policy()) {
		t.Error("written although all is right")
	}
}

// TestLeavingAfterDrift: an owner that leaves finds a base chain by its name although its rules are gone.
func TestLeavingAfterDrift(t *testing.T) {
	ns := netnstest.New(t)
	syncPart(t, nft.New(ns.Namespace), policy())
	ns.Run(t, "nft", "flush chain inet tortie policy-forward")
	syncPart(t, nft.New(ns.Namespace), nft.Part{Prefixes: policy().Prefixes, Former: []string{"policy-forward"}})
	if left := ruleset(t, ns); left != "" {
		t.Errorf("left:\n%s", left)
	}
}

func TestCounters(t *testing.T) {
	ns := netnstest.New(t)
	ns.Addr(t, "lo", "192.0.2.1/32")
	table := nft.New(ns.Namespace)
	part := func(comments ...string) nft.Part {
		c := nft.Chain{Name: "count-input", Hook: &nft.Hook{Type: nft.Filter, Number: nft.Input}}
		for _, comment := range comments {
			c.Rules = append(c.Rules, nft.NewRule(comment, nft.L4Proto.Is("\x11"), nft.DestPort.Is(nft.PortKey(7000)), nft.Count()))
		}
		return nft.Part{Prefixes: []string{"count-"}, Chains: []nft.Chain{c}}
	}
	want := func(want map[string]uint64) {
		t.Helper()
		counters, err := table.Counters(t.Context(), "count-")
		errtest.Must(t, err)
		got := map[string]uint64{}
		for comment, c := range counters {
			got[comment] = c.Packets
			if c.Bytes != c.Packets*33 {
				t.Errorf("%s: %d bytes in %d packets of 33", comment, c.Bytes, c.Packets)
			}
		}
		difftest.Want(t, "counters", want, got)
	}
	send := func() {
		t.Helper()
		ns.Within(t, func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Sendto(fd, []byte("hello"), 0, &unix.SockaddrInet4{Port: 7000, Addr: [4]byte{192, 0, 2, 1}})
		})
	}
	syncPart(t, table, part("first", "middle", "last"))
	send()
	send()
	want(map[string]uint64{"first": 2, "middle": 2, "last": 2})
	syncPart(t, table, part("first", "new", "another", "last"))
	send()
	want(map[string]uint64{"first": 3, "new": 1, "another": 1, "last": 3})
	syncPart(t, table, part("first", "last"))
	syncPart(t, table, part("first", "last", "behind"))
	send()
	want(map[string]uint64{"first": 4, "last": 4, "behind": 1})
	syncPart(t, table, part("front", "first", "last", "behind"))
	send()
	want(map[string]uint64{"front": 1, "first": 5, "last": 5, "behind": 2})
}

func TestBadPart(t *testing.T) {
	table := nft.New(netnstest.New(t).Namespace)
	for want, change := range map[string]func(*nft.Part){
		`somebody-else ["policy-"]`: func(p *nft.Part) { p.Chains[0].Name = "somebody-else" },
		"policy-pod1 rule":          func(p *nft.Part) { p.Chains[1].Rules = nil },
		"twice":                     func(p *nft.Part) { p.Sets[1].Name = p.Sets[0].Name },
		"1 127":                     func(p *nft.Part) { p.Sets[0].Name = "policy-" + strings.Repeat("x", 121) },
		"policy-pod2 set policy-gone": func(p *nft.Part) {
			p.Chains[2].Rules = []nft.Rule{nft.NewRule("", nft.In("policy-gone", nft.DestPort))}
		},
		"policy-pod2 chain policy-gone": func(p *nft.Part) { p.Chains[2].Rules = []nft.Rule{nft.NewRule("", nft.Do(nft.Jump("policy-gone")))} },
		"chain policy-nobody":           func(p *nft.Part) { p.Sets[0].Elements[0].Verdict = nft.Goto("policy-nobody") },
		"4 bytes":                       func(p *nft.Part) { p.Sets[5].Elements[0].First = "x" },
		"policy-net6 bounds":            func(p *nft.Part) { p.Sets[3].Elements[0].Last = "" },
		"overlap": func(p *nft.Part) {
			p.Sets[3].Elements = append(p.Sets[3].Elements, nft.Range(netip.MustParsePrefix("fd00:1::/32")))
		},
		"policy-ports 0050-0007":      func(p *nft.Part) { p.Sets[4].Elements[0].Last = nft.PortKey(7) },
		"policy-marks 0a000009 value": func(p *nft.Part) { p.Sets[5].Elements[0].Value = "" },
		"policy-peers4 key":           func(p *nft.Part) { p.Sets[1].Elements = []nft.Element{{}} },
		"policy-pod2 comment 127":     func(p *nft.Part) { p.Chains[2].Rules = []nft.Rule{nft.NewRule(strings.Repeat("x", 128), nft.Count())} },
	} {
		p := policy()
		change(&p)
		if _, err := table.Sync(t.Context(), p); !errtest.Names(err, want) {
			t.Errorf("Sync = %v, want an error with %q", err, want)
		}
	}
}

// TestOthersWriteMeanwhile: somebody changes nftables all the time, our table among it.
func TestOthersWriteMeanwhile(t *testing.T) {
	ns := netnstest.New(t)
	table := nft.New(ns.Namespace)
	syncPart(t, table, policy())
	want := sorted(ruleset(t, ns))
	var wait sync.WaitGroup
	for _, script := range []string{
		"add table ip busy; add chain ip busy c; add rule ip busy c counter; delete table ip busy",
		"flush chain inet tortie policy-pod1",
	} {
		wait.Go(func() {
			for range 30 {
				ns.Run(t, "nft", script)
			}
		})
	}
	for i := range 30 {
		p := policy()
		p.Sets[3].Elements = append(p.Sets[3].Elements, nft.Ranges(prefixes(fmt.Sprintf("fe80:%d::/32", i)))...)
		syncPart(t, table, p)
	}
	wait.Wait()
	syncPart(t, table, policy())
	difftest.Want(t, "", want, sorted(ruleset(t, ns)))
}

// TestRandomParts changes from one random part to the next. The kernel then has the same content as a namespace with
// only the last part, and another Sync writes nothing.
func TestRandomParts(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	ns := netnstest.New(t)
	table := nft.New(ns.Namespace)
	for i := range 60 {
		p := randomPart(random)
		syncPart(t, table, p)
		if syncPart(t, nft.New(ns.Namespace), p) {
			t.Fatalf("step %d: not read back as it was written:\n%s", i, ruleset(t, ns))
		}
		if i%10 != 0 {
			continue
		}
		fresh := netnstest.New(t)
		syncPart(t, nft.New(fresh.Namespace), p)
		if diff := cmp.Diff(sorted(ruleset(t, fresh)), sorted(ruleset(t, ns))); diff != "" {
			t.Fatalf("step %d (-from nothing +from the step before):\n%s", i, diff)
		}
	}
}

func randomPart(r *rand.Rand) nft.Part {
	p := nft.Part{Prefixes: []string{"random-"}}
	for i := range 4 {
		if r.IntN(3) > 0 {
			p.Chains = append(p.Chains, nft.Chain{Name: fmt.Sprint("random-", i)})
		}
	}
	for i := range 5 {
		if r.IntN(3) > 0 {
			p.Sets = append(p.Sets, randomSet(r, i))
		}
	}
	for i := range p.Chains {
		c := &p.Chains[i]
		if i == 0 && r.IntN(2) == 0 {
			c.Hook = &nft.Hook{Type: nft.Filter, Number: nft.HookNumber(r.IntN(5)), Priority: int32(r.IntN(3) - 1)}
		}
		for range 1 + r.IntN(4) {
			c.Rules = append(c.Rules, randomRule(r, p.Sets, p.Chains[i+1:]))
		}
	}
	return p
}

func randomSet(r *rand.Rand, i int) nft.Set {
	s := nft.Set{Name: fmt.Sprint("random-set", i), Key: []nft.Type{nft.IPv4Addr}}
	switch i {
	case 0, 1:
		s.Interval = true
		var all []netip.Prefix
		for range r.IntN(20) {
			all = append(all,
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(r.IntN(3)), byte(r.IntN(256)), byte(r.IntN(256))}), 16+r.IntN(17)).Masked())
		}
		s.Elements = nft.Ranges(all)
	default:
		if i == 4 {
			s.Value = nft.VerdictType
		}
		for _, b := range r.Perm(20)[:r.IntN(20)] {
			e := nft.Element{First: key(fmt.Sprint("10.0.0.", b))}
			if i == 4 {
				e.Verdict = nft.Accept
			}
			s.Elements = append(s.Elements, e)
		}
	}
	return s
}

func randomRule(r *rand.Rand, sets []nft.Set, later []nft.Chain) nft.Rule {
	terms := []nft.Term{nft.IPv4.Is()}
	if len(sets) > 0 && r.IntN(2) == 0 {
		if s := sets[r.IntN(len(sets))]; s.Value == nft.VerdictType {
			terms = append(terms, nft.Map(s.Name, nft.IPv4.Src))
		} else {
			terms = append(terms, nft.NotIn(s.Name, nft.IPv4.Dest))
		}
	}
	if r.IntN(2) == 0 {
		terms = append(terms, nft.L4Proto.Is("\x11"), nft.DestPort.Is(nft.PortKey(uint16(r.IntN(3)))))
	}
	terms = append(terms, nft.Count())
	if len(later) > 0 && r.IntN(2) == 0 {
		terms = append(terms, nft.Do(nft.Jump(later[r.IntN(len(later))].Name)))
	}
	return nft.NewRule([]string{"", "a comment"}[r.IntN(2)], terms...)
}

// Repaired is called after others have removed something, also in a Sync with a changed part; the owner's own changes
// are no repairs, even if others change the table elsewhere.
func TestRepairsAreTold(t *testing.T) {
	ns := netnstest.New(t)
	table := nft.New(ns.Namespace)
	told := 0
	table.Repaired = func(string) { told++ }
	p := policy()
	less := func() {
		p.Chains = slices.Clone(p.Chains)
		p.Chains[1].Rules = p.Chains[1].Rules[1:]
	}
	for i, c := range []struct {
		name string
		do   func()
		want int
	}{
		{"written first", func() {}, 0},
		{"undone by another program", func() { ns.Run(t, "nft", "flush ruleset") }, 1},
		{"undone while something else is desired", func() { ns.Run(t, "nft", "flush ruleset"); less() }, 2},
		{"others write beside it while something else is desired", func() { ns.Run(t, "nft", "add table ip others"); less() }, 2},
		{"something else is desired", less, 2},
	} {
		c.do()
		if syncPart(t, table, p); told != c.want {
			t.Errorf("%d, %s: told %d times, want %d", i, c.name, told, c.want)
		}
	}
}
