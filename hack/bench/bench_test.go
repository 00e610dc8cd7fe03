package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

func TestQuantile(t *testing.T) {
	var hundred []float64
	for i := 100; i > 0; i-- {
		hundred = append(hundred, float64(i))
	}
	for _, c := range []struct {
		of      []float64
		q, want float64
	}{
		{[]float64{7}, 0, 7},
		{[]float64{7}, 0.99, 7},
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 1, 3, 2}, 0.5, 2}, // the lower of the two in the middle
		{hundred, 0, 1},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 1, 100},
	} {
		if got := quantile(c.of, c.q); got != c.want {
			t.Errorf("quantile %g of %d values: %g, want %g", c.q, len(c.of), got, c.want)
		}
	}
	if hundred[0] != 100 {
		t.Error("quantile has sorted what it was given")
	}
}

// A figure's median is that of all values, and its spread that of the medians of its rounds.
func TestRows(t *testing.T) {
	var f figures
	of := key{"add", "calico", 0, "ADD", "ms"}
	f.record(of, 1, 100, 2)
	f.record(of, 5, 4, 6)
	f.record(key{partPolicy, "by ports", 0, "first packet", "ns"}, 2068)
	f.record(of) // no values, no round
	difftest.Want(t, "rows", [][]string{
		columns,
		{"add", "calico", "", "ADD", "ms", "4", "2", "5", "100", "100", "6"},
		{partPolicy, "by ports", "0", "first packet", "ns", "2068", "2068", "2068", "2068", "2068", "1"},
	}, f.rows())
}

// Each limit is met by one figure here, or missed.
func TestJudge(t *testing.T) {
	var f figures
	record := func(part, subject string, size int, what, unit string, values ...float64) {
		f.record(key{part, subject, size, what, unit}, values...)
	}
	record("add", nameGet, 0, "ADD", "ms", 5)
	record("add", nameGet, 0, "ADD, CPU", "ms", 3)
	record("add", nameCalico, 0, "ADD", "ms", 20.5)
	record("add", nameCalico, 0, "ADD, CPU", "ms", 9)
	record("add", nameCalico, 0, largest, "MiB", 10, 17)
	record("add", nameVeth, 0, "DEL", "ms", 15)
	record("add", nameCalico, 0, "DEL", "ms", 30)
	for group, values := range map[groups.Group][2]float64{groups.V1: {100, 100}, groups.V3: {103, 104}} {
		record(partGroups, string(group), 0, "ADD", "ms", values[0])
		record(partGroups, string(group), 0, "DEL", "ms", values[1])
	}
	record("burst", namePtp, 30, allADDs, "ms", 300)
	record("burst", nameCalico, 30, allADDs, "ms", 1750)
	record("burst", nameCalico, 100, conflicts, "", 2)
	record("routes", "BIRD 2", 10000, untilLast, "ms", 100)
	record("routes", "the agent", 10000, untilLast, "ms", 201)
	record("memory", "full mesh", 1000, resident, "MiB", 65)
	record(partPolicy, "by ports", 1, "first packet", "ns", 100)
	record(partPolicy, "by ports", 10, "first packet", "ns", 119)
	record(partPolicy, "by ports", 1000, "first packet", "ns", 201)
	record(partMesh, "a new node's first block, until it is a route in another kernel", 0, "", "ms", 80, 2500)
	record(partMesh, "the whole table is removed: put right", 0, "", "ms", 999)
	record(partMesh, "packets lost of these", 0, "", "", 0)
	record(partMesh, "60 pods at once on one node, until all run: "+namePtp, 0, "", "ms", 100)
	record(partMesh, "60 pods at once on one node, until all run: Tortie", 0, "", "ms", 111)
	record(partMesh, "a policy applied, until it denies on all nodes", 0, "", "ms", 99, 600)
	var got []string
	for _, v := range f.judge() {
		got = append(got, fmt.Sprintf("%s: %s, %s: %t", v.what, v.measured, v.limit, v.met))
	}
	difftest.Want(t, "verdicts", []string{
		"ADD, time: 4.10×, ≤ 4× one GET: false",
		"ADD, CPU: 3.00×, ≤ 4× one GET: true",
		"ADD and DEL, largest process: 17 MiB, ≤ 16 MiB: false",
		"DEL, time: 1.50×, ≤ 1.5× (veth floor + one GET): true",
		"ADD in projectcalico.org/v3, time: 1.03×, ≤ 1.03× in crd.projectcalico.org/v1: true",
		"DEL in projectcalico.org/v3, time: 1.04×, ≤ 1.03× in crd.projectcalico.org/v1: false",
		"30 ADDs at once, rate: 5.0×, ≥ 5× Calico's, by ptp in both runs: true",
		"100 ADDs at once, conflicts of each: 2, ≤ 1.5: false",
		"10000 learned routes in the kernel, time: 2.01×, ≤ 2× BIRD 2: false",
		"agent, 1000 nodes, full mesh: memory: 65 MiB, ≤ 64 MiB: false",
		"first packet, 10 policies by ports: 1.19×, ≤ 1.2× one policy: true",
		"first packet, 1000 policies by ports: 2.01×, ≤ 2× one policy: false",
		"a new node's first block, until it is a route in another kernel: 2500 ms, ≤ 2000 ms: false",
		"the whole table is removed: put right: 999 ms, ≤ 1000 ms: true",
		"packets lost of these: 0, ≤ 0: true",
		"60 pods at once on one node, until all run: Tortie: 1.11×, ≤ 1.1× ptp + host-local: false",
		"a policy applied, until it denies on all nodes, median: 99 ms, ≤ 100 ms: true",
		"a policy applied, until it denies on all nodes, 99th percentile: 600 ms, ≤ 500 ms: false",
	}, got)
}

// The name of a measuring test's figure may say what it is part of.
func TestNamed(t *testing.T) {
	got, err := named("routes | BIRD 2 | 10000 | until the last route", "ms")
	if want := (key{"routes", "BIRD 2", 10000, untilLast, "ms"}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := named("packets lost of these", ""); err != nil || got != (key{part: partMesh, subject: "packets lost of these"}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, name := range []string{"routes | BIRD 2", "routes | BIRD 2 | many | CPU"} {
		if _, err := named(name, "ms"); !errtest.Names(err, name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The benchmark's line, of which clusters with others and tiers are left out.
func TestFirstPackets(t *testing.T) {
	var f figures
	errtest.Must(t, f.firstPackets("BenchmarkFirstPacket/ports-2   \t 5\t 2068 ns-with-0\t 3404 ns-with-10\t 3437 ns-with-10-crowded\t"+
		" 4091 ns-with-500-in-tiers\t 1.011 x-with-10\nBenchmarkFirstPacket/peers-2 \t 5\t 2051 ns-with-0\nPASS\n"))
	var got []string
	for _, one := range f.all {
		got = append(got, fmt.Sprint(one.subject, " ", one.size, " ", one.at(0.5)))
	}
	difftest.Want(t, "figures", []string{"by ports 0 2068", "by ports 10 3404", "by peers 0 2051"}, got)
	if err := f.firstPackets("PASS\n"); !errtest.Names(err, "ns-with-N") {
		t.Errorf("no figures: %v", err)
	}
}

func TestFlags(t *testing.T) {
	o, err := parse([]string{"-root", "..", "-only", "add,mesh", "-quick"})
	if err != nil || !slices.Equal(o.only, []string{"add", "mesh"}) || o.size.rounds != quick.rounds || filepath.Base(o.bin) != "bin" {
		t.Errorf("%+v, %v", o, err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-only", "all"}, `no part "all"`},
		{[]string{"-rounds", "5"}, "-rounds"},
	} {
		if _, err := parse(c.args); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want one with %s", c.args, err, c.want)
		}
	}
}

func TestForeignPlugin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "conf")
	write := func(text string) string {
		errtest.Must(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	s, err := foreign(write(`{"type":"other","kubeconfig":"__KUBECONFIG_FILEPATH__","node":"__KUBERNETES_NODE_NAME__"}`))
	if err != nil || s.program != "other" {
		t.Fatalf("%+v, %v", s, err)
	}
	conf, err := s.conf(nil, &node{name: "bench-7"}, slot{})
	if want := `{"type":"other","kubeconfig":"` + kubeconfigPath + `","node":"bench-7"}`; err != nil || string(conf) != want {
		t.Errorf("configuration %s, %v; want %s", conf, err, want)
	}
	if _, err := foreign(write(`{"plugins":[]}`)); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a list of plugins: %v", err)
	}
}

// A minimal run of what has no tests of its own: every plugin succeeds, all figures are written, and nothing is left
// behind.
func TestSmallestRun(t *testing.T) {
	if os.Getuid() != 0 {
		t.Fatal("bench needs root")
	}
	o, err := parse([]string{"-root", filepath.Join("..", ".."), "-only", "add,burst"})
	errtest.Must(t, err)
	o.size = sizes{rounds: 2, perRound: 2, bursts: []int{3}, repeats: 1}
	t.Setenv("TMPDIR", t.TempDir())
	before := leftovers(t)
	b, err := measure(t.Context(), o)
	errtest.Must(t, err)
	for _, s := range b.subjects {
		for _, want := range []string{"ADD", "ADD, CPU", largest} {
			if b.of("add", s.name, 0, want) == nil {
				t.Errorf("no figure %q of %q", want, s.name)
			}
		}
		if s.del && (b.of("burst", s.name, 3, allADDs) == nil || b.of("burst", s.name, 3, "all DELs") == nil) {
			t.Errorf("no burst of %q", s.name)
		}
	}
	if f := b.of("add", nameVeth, 0, largest); f.at(1) < 1 || f.at(1) > 32 {
		t.Errorf("memory of a small program: %g MiB", f.at(1))
	}
	dir := t.TempDir()
	errtest.Must(t, b.publish(dir))
	for _, name := range []string{"benchmarks.csv", "benchmarks-required.csv"} {
		file, err := os.Open(filepath.Join(dir, name))
		errtest.Must(t, err)
		defer file.Close()
		if lines, err := csv.NewReader(file).ReadAll(); err != nil || len(lines) < 5 {
			t.Errorf("%s: %d lines, %v", name, len(lines), err)
		}
	}
	if after := leftovers(t); !slices.Equal(before, after) {
		t.Errorf("left behind: before %v, after %v", before, after)
	}
}

// leftovers returns what a run may leave behind: children, mounts, temporary files.
func leftovers(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pid := range descendants(os.Getpid()) {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // empty if it has exited
		all = append(all, "process "+strings.TrimSpace(string(name)))
	}
	files, err := os.ReadDir(os.TempDir())
	errtest.Must(t, err)
	for _, f := range files {
		all = append(all, "file "+f.Name())
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	errtest.Must(t, err)
	for line := range strings.Lines(string(mounts)) { // other programs of the machine mount, too
		if strings.Contains(line, os.TempDir()) || strings.Contains(line, cniBin) || strings.Contains(line, netnsDir+"/pod") {
			all = append(all, "mount "+line)
		}
	}
	return all
}
