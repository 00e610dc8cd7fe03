package policy

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/bgp/wire"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/logtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// Calico's nodes run their BGPFilters in BIRD 1.6. Random filters decide there as here: on the same routes, with the
// same attributes afterwards.
func TestRulesAreBIRDs(t *testing.T) {
	for _, family := range []wire.Family{wire.IPv4, wire.IPv6} {
		t.Run(family.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, uint64(family)))
			routes := someRoutes(r, family)
			var filters [][]api.BGPFilterRule
			var externals []bool
			config := &strings.Builder{}
			fmt.Fprint(config, "router id 192.0.2.1;\nlog stderr all;\nprotocol device { }\n")
			for i := range 120 {
				rules := someRules(r, family)
				filters, externals = append(filters, rules), append(externals, r.IntN(2) == 0)
				writeBIRD(config, i, routes, rules, externals[i])
			}
			tables := runBIRD(t, family, config.String(), len(filters))
			matched := 0
			for i, rules := range filters {
				got, n := decide(t, family, rules, routes, externals[i])
				matched += n
				if d := cmp.Diff(readBIRD(tables[i]), got, cmp.AllowUnexported(seen{})); d != "" {
					t.Errorf("external %t, rules %+v (-BIRD +ours):\n%s", externals[i], rules, d)
				}
			}
			if n := len(filters) * len(routes); matched < n/4 || matched > n*9/10 {
				t.Errorf("rules matched %d times of %d: too much alike to tell much", matched, n)
			}
		})
	}
}

// seen is a route that a filter has accepted.
type seen struct{ path, communities, large, metric string }

// made is a route before it is filtered.
type made struct {
	prefix      netip.Prefix
	path        []uint32
	communities []Community
	metric      uint32
}

func someRoutes(r *rand.Rand, family wire.Family) []made {
	var all []made
	for _, bits := range []int{8, 9, 15, 16, 16, 17, 24, 24, 25, 26, 26, 28, 31, 32, 32} {
		raw := [16]byte{10, byte(r.IntN(2)), byte(r.IntN(2)), byte(r.IntN(256))}
		addr := netip.AddrFrom4([4]byte(raw[:4]))
		if family == wire.IPv6 {
			raw[0], bits = 0xfd, 4*bits
			addr = netip.AddrFrom16(raw)
		}
		m := made{prefix: netip.PrefixFrom(addr, bits).Masked(), metric: []uint32{1024, 1024, 512, 100}[r.IntN(4)]}
		for range r.IntN(4) {
			m.path = append(m.path, someNumber(r))
		}
		for range r.IntN(4) {
			if c := someCommunity(r); !slices.Contains(m.communities, c) {
				m.communities = append(m.communities, c)
			}
		}
		if !slices.ContainsFunc(all, func(o made) bool { return o.prefix == m.prefix }) {
			all = append(all, m)
		}
	}
	return all
}

func someNumber(r *rand.Rand) uint32 { return []uint32{64512, 65000, 4200000000}[r.IntN(3)] }

func someCommunity(r *rand.Rand) Community {
	return []Community{{A: 1, B: 2}, {A: 65535, B: 65281}, {Large: true, A: 1, B: 2, C: 3}, {Large: true, A: 4200000000, C: 1}}[r.IntN(4)]
}

// someRules returns rules that both Compile and BIRD accept.
func someRules(r *rand.Rand, family wire.Family) []api.BGPFilterRule {
	var rules []api.BGPFilterRule
	for range 1 + r.IntN(4) {
		rule := api.BGPFilterRule{Action: []string{api.FilterAccept, api.FilterReject}[r.IntN(2)]}
		if r.IntN(3) > 0 {
			setCIDR(r, family, &rule)
		}
		if r.IntN(4) == 0 {
			rule.PeerType = []string{api.FilterEBGP, api.FilterIBGP}[r.IntN(2)]
		}
		if r.IntN(3) == 0 {
			rule.Communities = &api.BGPFilterCommunities{Values: []string{someCommunity(r).String()}}
		}
		if r.IntN(4) == 0 {
			rule.ASPathPrefix = []uint32{someNumber(r), someNumber(r)}[:1+r.IntN(2)]
		}
		if r.IntN(4) == 0 {
			n := []int{1024, 512, 100}[r.IntN(3)]
			rule.Priority = &n
		}
		if r.IntN(12) == 0 {
			rule.Source = api.FilterRemotePeers
		}
		if r.IntN(12) == 0 {
			rule.Interface = []string{"*", "eth0", "cali*"}[r.IntN(3)]
		}
		for rule.Action == api.FilterAccept && r.IntN(2) == 0 && len(rule.Operations) < maxItems {
			rule.Operations = append(rule.Operations, someOperation(r))
		}
		rules = append(rules, rule)
	}
	return rules
}

func setCIDR(r *rand.Rand, family wire.Family, rule *api.BGPFilterRule) {
	all := []string{"0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/9", "10.1.0.0/16", "10.0.1.0/24", "10.1.0.0/26"}
	scale := int32(1)
	if family == wire.IPv6 {
		all, scale = []string{"::/0", "fd00::/32", "fd00::/36", "fd01::/64", "fd00:100::/96", "fd01::/104"}, 4
	}
	rule.CIDR = all[r.IntN(len(all))]
	rule.MatchOperator = []api.BGPFilterOperator{api.FilterEqual, api.FilterNotEqual, api.FilterIn, api.FilterNotIn}[r.IntN(4)]
	if rule.MatchOperator != api.FilterIn && rule.MatchOperator != api.FilterNotIn {
		return
	}
	low, high := scale*int32(r.IntN(33)), scale*int32(16+r.IntN(17))
	bits := int32(netip.MustParsePrefix(rule.CIDR).Bits())
	if max(low, bits) > high {
		return
	}
	length := &api.BGPFilterPrefixLength{}
	if r.IntN(3) > 0 {
		length.Min = &low
	}
	if r.IntN(3) > 0 {
		length.Max = &high
	}
	if r.IntN(2) == 0 {
		rule.PrefixLength = length
	}
}

func someOperation(r *rand.Rand) api.BGPFilterOperation {
	switch r.IntN(3) {
	case 0:
		return api.BGPFilterOperation{AddCommunity: &api.BGPFilterAddCommunity{Value: someCommunity(r).String()}}
	case 1:
		return api.BGPFilterOperation{PrependASPath: &api.BGPFilterPrependASPath{Prefix: []uint32{someNumber(r), someNumber(r)}[:1+r.IntN(2)]}}
	}
	return api.BGPFilterOperation{SetPriority: &api.BGPFilterSetPriority{Value: 1 + r.IntN(2000)}}
}

// writeBIRD writes a table with routes that have passed a filter: their attributes are set first.
func writeBIRD(to *strings.Builder, i int, routes []made, rules []api.BGPFilterRule, external bool) {
	fmt.Fprintf(to, "table t%d;\nfilter f%d {\n", i, i)
	for _, m := range routes {
		fmt.Fprintf(to, "  if net = %s then { bgp_path = +empty+; krt_metric = %d;", m.prefix, m.metric)
		for _, n := range slices.Backward(m.path) {
			fmt.Fprintf(to, " bgp_path.prepend(%d);", n)
		}
		for _, c := range m.communities {
			fmt.Fprintf(to, " %s.add(%s);", birdSet(c), birdCommunity(c))
		}
		fmt.Fprint(to, " }\n")
	}
	for _, rule := range rules {
		fmt.Fprintf(to, "  %s\n", birdRule(rule, external))
	}
	fmt.Fprintf(to, "  bgp_med = krt_metric; accept;\n}\nprotocol static s%d { table t%d; import filter f%d;\n", i, i, i)
	for _, m := range routes {
		fmt.Fprintf(to, "  route %s blackhole;\n", m.prefix)
	}
	fmt.Fprint(to, "}\n")
}

func birdSet(c Community) string {
	if c.Large {
		return "bgp_large_community"
	}
	return "bgp_community"
}

func birdCommunity(c Community) string { return "(" + strings.ReplaceAll(c.String(), ":", ",") + ")" }

// birdRule returns the rule of a BGPFilter in BIRD's language.
func birdRule(rule api.BGPFilterRule, external bool) string {
	all := []string{"true"}
	and := func(format string, args ...any) { all = append(all, fmt.Sprintf("("+format+")", args...)) }
	operator := map[api.BGPFilterOperator]string{api.FilterEqual: "=", api.FilterNotEqual: "!=", api.FilterIn: "~", api.FilterNotIn: "!~"}
	if rule.CIDR != "" && rule.PrefixLength == nil {
		and("net %s %s", operator[rule.MatchOperator], rule.CIDR)
	} else if rule.CIDR != "" {
		p := netip.MustParsePrefix(rule.CIDR)
		low, high := p.Bits(), p.Addr().BitLen()
		if l := rule.PrefixLength.Min; l != nil {
			low = max(low, int(*l))
		}
		if h := rule.PrefixLength.Max; h != nil {
			high = int(*h)
		}
		and("net %s [ %s{%d,%d} ]", operator[rule.MatchOperator], p, low, high)
	}
	if rule.PeerType != "" {
		and("%t", external == (rule.PeerType == api.FilterEBGP))
	}
	if rule.Communities != nil {
		c, _ := ParseCommunity(rule.Communities.Values[0])
		and("%s ~ %s", birdCommunity(c), birdSet(c))
	}
	if rule.ASPathPrefix != nil {
		and("bgp_path ~ [= %s * =]", strings.Trim(fmt.Sprint(rule.ASPathPrefix), "[]"))
	}
	if rule.Priority != nil {
		and("krt_metric = %d", *rule.Priority)
	}
	if rule.Source != "" {
		and("source ~ [ RTS_BGP ]")
	}
	if rule.Interface != "" {
		and("defined(ifname) && ifname ~ %q", rule.Interface)
	}
	return fmt.Sprintf("if %s then {%s %s; }", strings.Join(all, " && "), birdOperations(rule.Operations), strings.ToLower(rule.Action))
}

func birdOperations(operations []api.BGPFilterOperation) string {
	var text string
	for _, op := range operations {
		switch {
		case op.AddCommunity != nil:
			c, _ := ParseCommunity(op.AddCommunity.Value)
			text += fmt.Sprintf(" %s.add(%s);", birdSet(c), birdCommunity(c))
		case op.PrependASPath != nil:
			for _, n := range slices.Backward(op.PrependASPath.Prefix) {
				text += fmt.Sprintf(" bgp_path.prepend(%d);", n)
			}
		default:
			text += fmt.Sprintf(" krt_metric = %d;", op.SetPriority.Value)
		}
	}
	return text + " bgp_med = krt_metric;" // which is shown
}

// runBIRD returns the content of the tables.
func runBIRD(t *testing.T, family wire.Family, config string, tables int) []string {
	t.Helper()
	needtest.More(t, "the BIRD 1.6 of make deps")
	cache, err := os.UserCacheDir()
	errtest.Must(t, err)
	suffix := ""
	if family == wire.IPv6 {
		suffix = "6"
	}
	programs, dir := filepath.Join(cache, "tortie/bird-1.6/usr/sbin"), t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	errtest.Must(t, os.WriteFile(file("conf"), []byte(config), 0o600))
	var log logtest.Buffer
	daemon := exec.Command(filepath.Join(programs, "bird"+suffix), "-d", "-c", file("conf"), "-s", file("ctl"), "-P", file("pid"))
	daemon.Stderr = &log
	daemon.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := daemon.Start(); err != nil {
		t.Fatalf("%v: BIRD 1.6 is missing: see `make deps`", err)
	}
	t.Cleanup(func() {
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
	waittest.For(t, 30*time.Second, func() error {
		conn, err := net.Dial("unix", file("ctl"))
		if err != nil {
			return fmt.Errorf("BIRD does not run: %w\n%s", err, &log)
		}
		return conn.Close()
	})
	all := make([]string, tables)
	for i := range all {
		all[i] = askBIRD(t, file("ctl"), fmt.Sprintf("show route all table t%d", i))
	}
	return all
}

// askBIRD sends one command on a connection of its own: commands in quick succession fill BIRD 1.6's buffer of 1 KiB,
// which it only empties in a pause, and it mistakes a full one for the end of the connection.
func askBIRD(t *testing.T, path, command string) string {
	t.Helper()
	conn, err := net.Dial("unix", path)
	errtest.Must(t, err)
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	lines := bufio.NewScanner(conn)
	answer(t, lines) // the greeting
	if _, err := fmt.Fprintln(conn, command); err != nil {
		t.Fatal(err)
	}
	return answer(t, lines)
}

// answer reads BIRD's answer to one command: lines with a number before them, or a space if it is the number before.
// The last one has a space behind its number, the others a hyphen.
func answer(t *testing.T, lines *bufio.Scanner) string {
	t.Helper()
	var text strings.Builder
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, " "):
			line = line[1:]
		case len(line) < 5:
			t.Fatalf("BIRD says %q", line)
		case line[4] == ' ':
			if line[0] == '8' || line[0] == '9' {
				t.Fatalf("BIRD says %q", line)
			}
			return text.String()
		default:
			line = line[5:]
		}
		fmt.Fprintln(&text, line)
	}
	t.Fatalf("BIRD says no more: %v", lines.Err())
	return ""
}

// readBIRD reads a table: a route begins in the first column, its attributes follow.
func readBIRD(text string) map[string]seen {
	routes := map[string]seen{}
	var route string
	for _, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, "\t") {
			word, _, _ := strings.Cut(line, " ")
			if p, err := netip.ParsePrefix(word); err == nil {
				route = p.String()
				routes[route] = seen{}
			}
			continue
		}
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		s := routes[route]
		switch name {
		case "BGP.as_path":
			s.path = value
		case "BGP.community":
			s.communities = wordsOf(value)
		case "BGP.large_community":
			s.large = wordsOf(value)
		case "BGP.med":
			s.metric = value
		}
		routes[route] = s
	}
	return routes
}

// wordsOf returns communities in our notation, sorted.
func wordsOf(value string) string {
	var list []Community
	for _, word := range strings.Split(strings.Trim(strings.ReplaceAll(value, " ", ""), "()"), ")(") {
		c, err := ParseCommunity(strings.ReplaceAll(word, ",", ":"))
		if err != nil {
			return err.Error()
		}
		list = append(list, c)
	}
	return wire.NewCommunities(list...).String()
}

// decide applies our rules, and returns how many routes some rule matched.
func decide(t *testing.T, family wire.Family, from []api.BGPFilterRule, routes []made, external bool) (map[string]seen, int) {
	t.Helper()
	spec := &api.BGPFilterSpec{ExportV4: from, ExportV6: from}
	rules, errs := Compile("f", spec, Export, family)
	if len(errs) > 0 {
		t.Fatalf("%+v: %v", from, errs)
	}
	got, matched := map[string]seen{}, 0
	for _, m := range routes {
		a := &wire.Attributes{Path: wire.NewASPath(m.path...), Communities: wire.NewCommunities(m.communities...)}
		out := rules.Apply(Route{Prefix: m.prefix, Attributes: a, Own: true, External: external, Priority: m.metric})
		if out.Verdict != NoMatch {
			matched++
		}
		if out.Verdict == Reject {
			continue
		}
		s := seen{path: strings.Trim(fmt.Sprint(append(slices.Clone(out.Change.Prepend), m.path...)), "[]"), metric: fmt.Sprint(m.metric)}
		if out.Change.SetLocalPref {
			s.metric = fmt.Sprint(Priority(out.Change.LocalPref))
		}
		for _, c := range wire.NewCommunities(append(slices.Clone(m.communities), out.Change.Add...)...).List() {
			if c.Large {
				s.large = strings.TrimSpace(s.large + " " + c.String())
			} else {
				s.communities = strings.TrimSpace(s.communities + " " + c.String())
			}
		}
		got[m.prefix.String()] = s
	}
	return got, matched
}
