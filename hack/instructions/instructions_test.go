package instructions

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/difftest"
	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// repository makes one with both files, of before and after the last release, and returns its root and a maker of
// further files.
func repository(t *testing.T) (root string, file func(name, text string) string) {
	t.Helper()
	root = t.TempDir()
	file = func(name, text string) string {
		path := filepath.Join(root, name)
		errtest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		errtest.Must(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	file(File,
		"what,unit,tolerance,stable,newest,6.1.0,7.2.0\nnode to node,round trip,0.04,1.000,1.000,900,800\ngone,round trip,0.09,1,1,1,1\n")
	file(released, "what,unit,tolerance,stable,newest\nnode to node,round trip,0.10,1.000,1.000\nroutes,round trip,0.10,2.500,2.400\n")
	return root, file
}

func run(kernel, base, routes, ratio string) string {
	return "=== RUN   TestInstructions\nperf: kernel | " + kernel +
		"\nperf: node to node  | round trip       |       " + base + " |  1.000\n" +
		"perf: routes        | round trip       |      " + routes + " |  " + ratio + "\nPASS\n"
}

// Several runs of a kernel count by their mean; what is new gets a tolerance, and what no run has goes.
func TestRecord(t *testing.T) {
	root, file := repository(t)
	errtest.Must(t, Record(root, map[string][]string{
		"stable": {file("a", run("6.1.1", "1000", "2200", "2.200")), file("b", run("6.1.1", "1002", "2100", "2.100")),
			file("d", "perf: node to node | round trip | 1001 | 1.000\n")},
		"newest": {file("c", run("7.2.1", "900", "1800", "2.000"))},
	}, false))
	got, err := os.ReadFile(filepath.Join(root, File))
	errtest.Must(t, err)
	difftest.Want(t, "ratios", "what,unit,tolerance,stable,newest,6.1.1,7.2.1\n"+
		"node to node,round trip,0.04,1.000,1.000,1001,900\n"+
		"routes,round trip,0.04,2.150,2.000,2150,1800\n", string(got))
}

func TestRecordRefusesPartOfRuns(t *testing.T) {
	root, file := repository(t)
	whole, short := file("whole", run("6.1.1", "1000", "2200", "2.200")), file("short", "perf: node to node | round trip | 900 | 1.000\n")
	for _, c := range []struct {
		name, newest, want string
	}{
		{"no run", "", "no run on the newest kernel"},
		{"a run that failed", file("failed", "FAIL\n"), "no figures"},
		{"a row of one kernel alone", short, "routes, round trip: not counted on the newest kernel"},
		{"a line that is cut", file("cut", "perf: node to node | round trip |"), "no line of a figure"},
	} {
		runs := map[string][]string{"stable": {whole}}
		if c.newest != "" {
			runs["newest"] = []string{c.newest}
		}
		if err := Record(root, runs, false); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// What is worse than before, or than at the last release, is written only on demand: ratios, and what the same kernel
// takes, though its base takes more, too.
func TestRecordRefusesWorseFigures(t *testing.T) {
	root, file := repository(t)
	counted := map[string][]string{
		"stable": {file("a", run("6.1.0", "950", "2600", "2.737"))},
		"newest": {file("b", run("7.2.1", "990", "1800", "2.000"))},
	}
	before, err := os.ReadFile(filepath.Join(root, File))
	errtest.Must(t, err)
	err = Record(root, counted, false)
	if err == nil {
		t.Fatal("worse figures were written")
	}
	difftest.Contains(t, err.Error(), "node to node, round trip, stable kernel: 950 instructions, before 900\n",
		"routes, round trip, stable kernel: 2.737, at the last release 2.500\n", "-worse")
	if strings.Contains(err.Error(), "newest") {
		t.Errorf("what is not worse: %v", err)
	}
	after, err := os.ReadFile(filepath.Join(root, File))
	errtest.Must(t, err)
	difftest.Want(t, "ratios", string(before), string(after))
	errtest.Must(t, Record(root, counted, true))
}

// A requirement that is not met has its reason; what is not counted is left out.
func TestRequired(t *testing.T) {
	root, file := repository(t)
	const begin = "what,unit,tolerance,stable,newest,6.1.0,7.2.0\n"
	file(File, begin+"\"VXLAN, no rules\",round trip,0,1,1,1000,1000\nVXLAN,round trip,0,1,1,1049,1060\n"+
		"\"1,000 WireGuard peers programmed\",peer,0,1,1,400000,1000000\n"+
		"WireGuard by hand,KiB of a stream,0,1,1,960,970\n\"WireGuard, no rules\",KiB of a stream,0,1,1,1000,1000\n")
	got, err := Required(root)
	errtest.Must(t, err)
	difftest.Want(t, "requirements", [][]string{
		{"Requirement", "Asked", "6.1.0", "7.2.0", "Why it is not met"},
		{"The agent's rules by none, on their worst way: a round trip", "≤ 1.05", "1.049", "1.060", whyTracking},
		{"WireGuard by one by hand: the least throughput of a stream", "≥ 0.97", "0.960", "0.970", whyRule},
		{"1,000 WireGuard peers: seconds of the agent, if an instruction takes a nanosecond", "≤ 1.00", "0.400", "1.000", ""},
	}, got)
	file(File, begin+"\"IPIP, 1,000 policies\",connection,0,1,1,1000,1000\n\"IPIP, 1,000 policies, flowtable\",connection,0,1,1,1000,910\n")
	if _, err := Required(root); !errtest.Names(err, "a connection 0.910 0.90 no reason") {
		t.Errorf("a requirement without a reason: %v", err)
	}
}
