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

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/pathtest"
)

// kernel names the column of testdata/ratios.csv; empty: nothing is compared, as outside of the counting machine, where time is no number of
// instructions.
var kernel = flag.String("kernel", "", "column of testdata/ratios.csv to compare with")

// quick leaves out single policies: a thousand cost more; and conntrack alone, which is the kernel's.
var quick = flag.Bool("quick", false, "leave out paths with a single policy, and with nothing but conntrack")

// onePolicy ends the names of paths with a single policy, and tracked those of paths with conntrack as kube-proxy asks for it.
const (
	onePolicy = ", 1 policy"
	tracked   = ", conntrack alone"
)

// base is the path that the others are compared with, in the same run.
const base = "node to node"

// figure is what a unit takes, in nanoseconds, and how many times the base that is: of a path node to node, of other work the least that the kernel asks.
type figure struct {
	what, unit  string
	cost, ratio float64
}

func TestInstructions(t *testing.T) {
	needtest.More(t, "a virtual machine that counts instructions: make perf")
	debug.SetGCPercent(-1)
	all := append(measure(t), work(t)...)
	show(all)
	if *kernel != "" {
		compare(t, all)
	}
}

// measure measures all paths of a kernel.
func measure(t *testing.T) (all []figure) {
	t.Helper()
	bare := map[string]float64{}
	add := func(path string, w *wire) {
		costs := w.cost(t)
		if path == base {
			bare = costs
		}
		for _, k := range kinds {
			all = append(all, figure{path, k.unit, costs[k.unit], costs[k.unit] / bare[k.unit]})
		}
	}
	for _, e := range []pathtest.Encap{pathtest.Routes, pathtest.Routes6, pathtest.IPIP, pathtest.VXLAN} {
		p, err := pathtest.New(t.Context(), e)
		errtest.Must(t, err)
		from, to := p.Nodes[0], p.Nodes[1]
		if len(all) == 0 {
			add(base, newWire(t, from.NS, to.NS, to.Addr))
		}
		w := newWire(t, from.Pod, to.Pod, to.PodAddr())
		add(e.Name+", no rules", w)
		if !*quick {
			errtest.Must(t, p.Track(t.Context(), true))
			add(e.Name+tracked, w)
			errtest.Must(t, p.Track(t.Context(), false))
		}
		errtest.Must(t, p.AddRules(t.Context()))
		add(e.Name, w)
		if !*quick {
			addPolicies(t, p, 1)
			add(e.Name+onePolicy, w)
		}
		addPolicies(t, p, 1000)
		add(e.Name+", 1,000 policies", w)
		added, err := p.AddFlowtable(t.Context())
		errtest.Must(t, err)
		before := all[len(all)-len(kinds):]
		add(e.Name+", 1,000 policies, flowtable", w)
		if added {
			gains(t, before, all[len(all)-len(kinds):])
		}
	}
	return all
}

// gains fails the test where established connections cost a hundredth more with a flowtable than without: then there must be none.
func gains(t *testing.T, without, with []figure) {
	t.Helper()
	for i, f := range with {
		if established := f.unit == kinds[0].unit || f.unit == kinds[1].unit; established && f.cost > without[i].cost*1.01 {
			t.Errorf("%s, %s: %.0f, and %.0f without: the kernel loses by a flowtable", f.what, f.unit, f.cost, without[i].cost)
		}
	}
}

func show(all []figure) {
	for _, f := range all {
		fmt.Printf("perf: %-30s %-16s %10.0f %6.3f\n", f.what, f.unit, f.cost, f.ratio)
	}
}

// limit is a line of the file.
type limit struct{ ratio, tolerance float64 }

// limits are the file's ratios, by what is measured and its unit, and how far two runs of the same code differ: what the kernel's timers and hash
// tables make of the same packets is not the same in each.
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
	all := map[[2]string]limit{}
	for _, line := range lines[1:] {
		tolerance, err := strconv.ParseFloat(line[2], 64)
		errtest.Must(t, err)
		ratio, err := strconv.ParseFloat(line[column], 64)
		errtest.Must(t, err)
		all[[2]string{line[0], line[1]}] = limit{ratio, tolerance}
	}
	return all
}

// compare fails the test where a ratio is worse than the file's, or, in a full run, better, which lowers the file.
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
		case f.ratio < had.ratio*(1-had.tolerance) && !*quick:
			t.Errorf("%s, %s: %.3f, better than %.3f: write it into testdata/ratios.csv", f.what, f.unit, f.ratio, had.ratio)
		}
	}
	for key := range want {
		if *quick && (strings.HasSuffix(key[0], onePolicy) || strings.HasSuffix(key[0], tracked)) {
			continue
		}
		t.Errorf("%s, %s: in testdata/ratios.csv, and not measured: remove it", key[0], key[1])
	}
}
