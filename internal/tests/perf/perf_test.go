package perf

import (
	"encoding/csv"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/kernel/flowtable"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/pathtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// kernel names the column of testdata/ratios.csv; empty: nothing is compared, as outside of the counting machine, where
// time is no number of instructions.
var kernel = flag.String("kernel", "", "column of testdata/ratios.csv to compare with")

// quick leaves out single policies: a thousand cost more; conntrack alone and tunnels by hand, which are the kernel's;
// VXLAN over IPv6; of three nodes all but streams; and of WireGuard all but streams by IPv4, peers too.
var quick = flag.Bool("quick", false,
	"leave out paths with a single policy, with nothing but conntrack and by hand, VXLAN over IPv6, and most of WireGuard and of three nodes")

// least reports whether a quick run is of the first tier. It measures the cost of the agent's rules with
// encapsulations, and other rules with plain routes over IPv4 only. It leaves out WireGuard, whose streams are a third
// of a quick run.
func least() bool { return *quick && tier.Size(true, false) }

// ofLeast reports whether least leaves only the agent's rules of an encapsulation.
func ofLeast(e pathtest.Encap) bool { return least() && e.Name != pathtest.Routes.Name }

// onePolicy ends the names of paths with a single policy, tracked the names of paths with conntrack as for kube-proxy,
// withFlowtable the names of paths that a flowtable of the agent may shorten.
const (
	onePolicy     = ", 1 policy"
	manyPolicies  = ", 1,000 policies"
	tracked       = ", conntrack alone"
	withFlowtable = manyPolicies + flowtableOnly
	flowtableOnly = ", flowtable"
	noRules       = ", no rules"
)

var withPolicies = map[int]string{1: onePolicy, 1000: manyPolicies}

// bases are the paths that the others are compared with, in the same run: of two nodes, and of three.
const (
	base  = "node to node"
	base3 = "three nodes, node to two nodes"
)

// figure is what a unit takes, in nanoseconds, and how many times the base that is: of a path node to node, of other
// work the least that the kernel asks.
type figure struct {
	what, unit  string
	cost, ratio float64
}

func TestInstructions(t *testing.T) {
	needtest.More(t, "a virtual machine that counts instructions: make perf")
	debug.SetGCPercent(-1)
	own := work(t) // measuring traffic leaves the test's other threads without a share of the processor
	all := append(measure(t), own...)
	show(t, all)
	if *kernel != "" {
		compare(t, all)
	}
}

// meter keeps what is measured. bare is what the path costs that the others are compared with.
type meter struct {
	*testing.T
	all  []figure
	bare map[string]float64
}

// add measures kinds of traffic by a path.
func (m *meter) add(path string, w *wire, kinds ...kind) {
	m.Helper()
	costs := w.cost(m.T, path, kinds)
	if path == base || path == base3 {
		m.bare = costs
	}
	for _, k := range kinds {
		m.all = append(m.all, figure{path, k.unit, costs[k.unit], costs[k.unit] / m.bare[k.unit]})
	}
}

// measure measures all paths of a kernel.
func measure(t *testing.T) []figure {
	t.Helper()
	m := &meter{T: t}
	encaps := []pathtest.Encap{pathtest.Routes, pathtest.Routes6, pathtest.IPIP, pathtest.VXLAN}
	if !*quick {
		encaps = append(encaps, pathtest.VXLAN6)
	}
	for _, e := range encaps {
		m.encapsulated(e)
	}
	if !*quick {
		m.byHand(pathtest.IPIPByHand, pathtest.VXLANByHand)
	}
	if !least() {
		m.encrypted(pathtest.WireGuard, pathtest.WireGuardByHand, pathtest.WireGuardByRule)
	}
	if !*quick {
		m.encrypted(pathtest.WireGuard6, pathtest.WireGuardByHand6, pathtest.WireGuardByRule6)
	}
	m.three(pathtest.Routes, pathtest.IPIP)
	return m.all
}

// encapsulated measures the ways of an encapsulation, one more after each step.
func (m *meter) encapsulated(e pathtest.Encap) {
	m.Helper()
	p, err := pathtest.New(m.Context(), e)
	errtest.Must(m, err)
	if len(m.all) == 0 {
		m.add(base, newWire(m.T, p.Nodes[0].NS, end{ns: p.Nodes[1].NS, addr: p.Nodes[1].Addr}), kinds...)
	}
	w := podWire(m.T, p)
	if !ofLeast(e) {
		m.add(e.Name+noRules, w, kinds...)
	}
	if !*quick {
		errtest.Must(m, p.Track(m.Context(), true))
		m.add(e.Name+tracked, w, kinds...)
		errtest.Must(m, p.Track(m.Context(), false))
	}
	errtest.Must(m, p.AddRules(m.Context()))
	m.add(e.Name, w, kinds...)
	if !ofLeast(e) {
		m.policies(e, p, w)
	}
	if e.Name == pathtest.IPIP.Name {
		m.devices()
	}
}

// policies measures an encapsulation with the agent's rules and policies, and with a flowtable then.
func (m *meter) policies(e pathtest.Encap, p *pathtest.Mesh, w *wire) {
	m.Helper()
	counts := []int{1, 1000}
	if *quick {
		counts = counts[1:]
	}
	for _, count := range counts {
		addPolicies(m.T, p, count)
		m.add(e.Name+withPolicies[count], w, kinds...)
	}
	added, err := p.AddFlowtable(m.Context())
	errtest.Must(m, err)
	before := m.all[len(m.all)-len(kinds):]
	m.add(e.Name+withFlowtable, w, kinds...)
	if added {
		gains(m.T, before, m.all[len(m.all)-len(kinds):])
	}
}

// byHand measures tunnels that the agent did not make.
func (m *meter) byHand(encaps ...pathtest.Encap) {
	m.Helper()
	for _, e := range encaps {
		p, err := pathtest.New(m.Context(), e)
		errtest.Must(m, err)
		m.add(e.Name, podWire(m.T, p), kinds[:2]...)
	}
}

// devices measures IPIP with the agent's rules and a flowtable, without policies, and fails the test where devices of
// kind ipip for single nodes are not worth as much as is asked of them: against tunl0, and against no tunnel at all,
// each with the same rules.
func (m *meter) devices() {
	m.Helper()
	p, err := pathtest.New(m.Context(), pathtest.IPIP)
	errtest.Must(m, err)
	errtest.Must(m, p.AddRules(m.Context()))
	_, err = p.AddFlowtable(m.Context())
	errtest.Must(m, err)
	m.add(pathtest.IPIP.Name+flowtableOnly, podWire(m.T, p), kinds...)
	if flowtable.Running().Before(6, 19) {
		return
	}
	stream, roundTrip, connection := kinds[0].unit, kinds[1].unit, kinds[2].unit
	for _, bar := range []struct {
		unit, than string
		most       float64
	}{
		{stream, pathtest.IPIP.Name, 1 / 1.12},
		{roundTrip, pathtest.IPIP.Name, 0.65},
		{connection, pathtest.IPIP.Name, 0.90},
		{stream, pathtest.Routes.Name, 1 / 0.98},
	} {
		for _, rules := range []string{"", manyPolicies} {
			with, than := m.cost(pathtest.IPIP.Name+rules+flowtableOnly, bar.unit), m.cost(bar.than+rules, bar.unit)
			if with == 0 || with > than*bar.most {
				m.Errorf("IPIP%s by a device for one node, %s: %.0f, which is more than %.2f times the %.0f of %s", rules, bar.unit, with,
					bar.most, than, bar.than)
			}
		}
	}
}

// cost is what was measured of a path; 0: nothing was.
func (m *meter) cost(path, unit string) float64 {
	for _, f := range m.all {
		if f.what == path && f.unit == unit {
			return f.cost
		}
	}
	return 0
}

// podWire leads from the first node's pod to the other nodes' pods.
func podWire(t *testing.T, p *pathtest.Mesh) *wire {
	t.Helper()
	var to []end
	for _, n := range p.Nodes[1:] {
		to = append(to, end{ns: n.Pod, addr: n.PodAddr()})
	}
	return newWire(t, p.Nodes[0].Pod, to...)
}

// leastOfHand is the least throughput of a stream by the agent's WireGuard, relative to WireGuard by hand that also has
// its routes in their own table: the rule that leads there costs 2 to 4 %.
const leastOfHand = 0.97

// encrypted measures WireGuard as the agent makes it, without its rules and with them, beside the same by hand.
func (m *meter) encrypted(agent, plain, byRule pathtest.Encap) {
	m.Helper()
	of := kinds
	if *quick {
		of = kinds[:1]
	}
	add := func(e pathtest.Encap, name string) (p *pathtest.Mesh, w *wire, stream figure) {
		m.Helper()
		p, err := pathtest.New(m.Context(), e)
		errtest.Must(m, err)
		w = podWire(m.T, p)
		w.nice = 19
		m.add(name, w, of...)
		return p, w, m.all[len(m.all)-len(of)]
	}
	if !*quick {
		add(plain, plain.Name)
	}
	hand, handWire, by := add(byRule, byRule.Name)
	if !*quick {
		errtest.Must(m, hand.Track(m.Context(), true))
		m.add(byRule.Name+tracked, handWire, of...)
	}
	p, w, own := add(agent, agent.Name+noRules)
	if own.cost > by.cost/leastOfHand {
		m.Errorf("%s, %s: %.0f, and %.0f by hand: less than %.2f of its throughput", own.what, own.unit, own.cost, by.cost, leastOfHand)
	}
	errtest.Must(m, p.AddRules(m.Context()))
	m.add(agent.Name, w, of...)
	if *quick {
		return
	}
	for _, count := range []int{1, 1000} {
		addPolicies(m.T, p, count)
		m.add(agent.Name+withPolicies[count], w, of...)
	}
}

// three measures traffic from a node's pod to pods of two other nodes, streams to both at once, and the effect of a
// flowtable on them.
func (m *meter) three(encaps ...pathtest.Encap) {
	m.Helper()
	of := kinds[:2]
	if *quick {
		of = kinds[:1]
	}
	for i, e := range encaps {
		p, err := pathtest.NewThree(m.Context(), e)
		errtest.Must(m, err)
		if i == 0 {
			a, b := p.Nodes[1], p.Nodes[2]
			m.add(base3, newWire(m.T, p.Nodes[0].NS, end{ns: a.NS, addr: a.Addr}, end{ns: b.NS, addr: b.Addr}), of...)
		}
		w := podWire(m.T, p)
		errtest.Must(m, p.AddRules(m.Context()))
		m.add("three nodes, "+e.Name, w, of...)
		added, err := p.AddFlowtable(m.Context())
		errtest.Must(m, err)
		before := m.all[len(m.all)-len(of):]
		m.add("three nodes, "+e.Name+", flowtable", w, of...)
		if added {
			gains(m.T, before, m.all[len(m.all)-len(of):])
		}
	}
}

// gains fails the test where established connections cost a hundredth more with a flowtable than without: then there
// must be none.
func gains(t *testing.T, without, with []figure) {
	t.Helper()
	for i, f := range with {
		if established := f.unit == kinds[0].unit || f.unit == kinds[1].unit; established && f.cost > without[i].cost*1.01 {
			t.Errorf("%s, %s: %.0f, and %.0f without: the kernel loses by a flowtable", f.what, f.unit, f.cost, without[i].cost)
		}
	}
}

// show prints what hack/instructions reads.
func show(t *testing.T, all []figure) {
	t.Helper()
	fmt.Printf("perf: kernel | %s\n", release(t))
	for _, f := range all {
		fmt.Printf("perf: %-42s | %-16s | %10.0f | %6.3f\n", f.what, f.unit, f.cost, f.ratio)
	}
}

// release returns the kernel's release.
func release(t *testing.T) string {
	t.Helper()
	var host unix.Utsname
	errtest.Must(t, unix.Uname(&host))
	return unix.ByteSliceToString(host.Release[:])
}

// leftOut reports whether quick runs may leave out a line of the file. The first tier identifies left-out
// encapsulations by their rules.
func leftOut(what, unit string) bool {
	begins := func(prefix string) bool { return strings.HasPrefix(what, prefix) }
	ends := func(suffix string) bool { return strings.HasSuffix(what, suffix) }
	if least() && !begins(pathtest.Routes.Name+noRules) && !begins(pathtest.Routes.Name+manyPolicies) &&
		(ends(noRules) || ends(manyPolicies) || ends(withFlowtable)) {
		return true
	}
	return ends(onePolicy) || ends(tracked) || ends("by hand") || begins(pathtest.WireGuard.Name) || begins(pathtest.VXLAN6.Name) ||
		begins(manyPeers) || begins("three nodes") && unit == kinds[1].unit
}

// limit is a line of the file. cost is what this kernel took; 0: it was another one.
type limit struct{ ratio, cost, tolerance float64 }

// limits returns the file's figures with their tolerances, by subject and unit.
func limits(t *testing.T) map[[2]string]limit {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "ratios.csv"))
	errtest.Must(t, err)
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	errtest.Must(t, err)
	column := slices.Index(lines[0], *kernel)
	if column < 3 {
		t.Fatalf("testdata/ratios.csv has no column %q: it has %q", *kernel, lines[0])
	}
	number := func(text string) float64 {
		n, err := strconv.ParseFloat(text, 64)
		errtest.Must(t, err)
		return n
	}
	counted := slices.Index(lines[0], release(t))
	all := map[[2]string]limit{}
	for _, line := range lines[1:] {
		l := limit{ratio: number(line[column]), tolerance: number(line[2])}
		if counted > column {
			l.cost = number(line[counted])
		}
		all[[2]string{line[0], line[1]}] = l
	}
	return all
}

// compare fails the test where a ratio is worse than the file's, or, in a full run, better, which lowers the file; and
// where the file's kernel takes more, which shows what a path and its base both lose.
func compare(t *testing.T, all []figure) {
	t.Helper()
	want := limits(t)
	for _, f := range all {
		key := [2]string{f.what, f.unit}
		had, there := want[key]
		delete(want, key)
		switch {
		case !there:
			t.Errorf("%s, %s: %.3f is not in testdata/ratios.csv: add it", f.what, f.unit, f.ratio)
		case f.ratio > had.ratio*(1+had.tolerance):
			t.Errorf("%s, %s: %.3f, worse than %.3f: find out why", f.what, f.unit, f.ratio, had.ratio)
		case had.cost > 0 && f.cost > had.cost*(1+had.tolerance):
			t.Errorf("%s, %s: %.0f instructions, more than %.0f: find out why", f.what, f.unit, f.cost, had.cost)
		case f.ratio < had.ratio*(1-had.tolerance) && !*quick:
			t.Errorf("%s, %s: %.3f, better than %.3f: write it into testdata/ratios.csv", f.what, f.unit, f.ratio, had.ratio)
		}
	}
	for key := range want {
		if ofProcesses(key[1]) != ofProcesses(all[0].unit) { // which the other test measures
			continue
		}
		if *quick && leftOut(key[0], key[1]) {
			continue
		}
		t.Errorf("%s, %s: in testdata/ratios.csv, and not measured: remove it", key[0], key[1])
	}
}
