package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
	"github.com/tortie-net/tortie/internal/testkit/needtest"
	"github.com/tortie-net/tortie/internal/testkit/waittest"
)

// tree writes files below a new directory, and the Makefile of the repository's suites, with these lines more.
func tree(t *testing.T, makefile string, files map[string]string) string {
	t.Helper()
	for _, name := range []string{"MAKEFLAGS", "MFLAGS", "STRICT", "PACKAGES", "RUN", "TORTIE_TIER"} { // of an outer make
		t.Setenv(name, "")
	}
	suites, err := filepath.Abs("../suites.mk")
	errtest.Must(t, err)
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		errtest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		errtest.Must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	errtest.Must(t, os.WriteFile(filepath.Join(root, "Makefile"), []byte("include "+suites+"\n"+makefile), 0o644))
	return root
}

// module is tree of a Go module with gotestsum, where each directory is a suite.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	makefile := ""
	for name := range files {
		dir := filepath.Dir(name)
		makefile += dir + ".packages = ./" + dir + "\n"
		if dir == "hangs" {
			makefile += "hangs.flags = -timeout=10ms\n"
		}
	}
	files["go.mod"] = "module example.net/tortie\n\ngo 1.26\n"
	root := tree(t, makefile, files)
	build := exec.Command("go", "build", "-o", filepath.Join(root, "bin", "gotestsum"), "gotest.tools/gotestsum")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building gotestsum: %v: %s", err, out)
	}
	return root
}

func runSuite(t *testing.T, root, name string) result {
	t.Helper()
	return suite{name: name}.run(t.Context(), root, t.TempDir())
}

func namesOf(failures []failure) []string {
	var names []string
	for _, f := range failures {
		names = append(names, strings.TrimPrefix(f.name, "example.net/tortie/"))
	}
	return names
}

func TestCountsOfGoTest(t *testing.T) {
	root := module(t, map[string]string{
		"good/good_test.go": `package good
import "testing"
func TestOne(t *testing.T) {}
func TestTable(t *testing.T) { t.Run("a", func(t *testing.T) {}); t.Run("b", func(t *testing.T) {}) }
func TestSkipped(t *testing.T) { t.Skip("no reason") }
func TestShort(t *testing.T) { t.Skip("` + needtest.Skipped + `the lab") }
`,
		"bad/bad_test.go": `package bad
import "testing"
func TestGood(t *testing.T) {}
func TestTable(t *testing.T) { t.Run("good", func(t *testing.T) {}); t.Run("bad", func(t *testing.T) { t.Error("one is not two") }) }
func TestAfterChildren(t *testing.T) { t.Run("good", func(t *testing.T) {}); t.Error("the parent itself") }
`,
		"broken/broken_test.go": "package broken\nfunc TestX(t *testing.T) {}\n",
		"panics/panics_test.go": "package panics\nimport \"testing\"\nfunc TestMain(m *testing.M) { panic(\"at once\") }\n" +
			"func TestX(t *testing.T) {}\n",
		// When gotestsum runs it again it passes, without a test.
		"exits/exits_test.go": `package exits
import ("os"; "testing")
var ran bool
func TestMain(m *testing.M) { m.Run(); if ran { println("a goroutine is left"); os.Exit(1) } }
func TestX(t *testing.T) { ran = true }
`,
		"hangs/hangs_test.go": "package hangs\nimport \"testing\"\nfunc TestX(t *testing.T) { t.Log(\"begun\"); select {} }\n",
		"empty/empty.go":      "package empty\n",
	})
	for _, c := range []struct {
		suite           string
		passed, skipped int
		failures        []string
		said            string
	}{
		{"good", 4, 2, nil, ""},
		{"bad", 3, 0, []string{"bad.TestAfterChildren", "bad.TestTable/bad"}, "bad_test.go:4: one is not two"},
		{"broken", 0, 0, []string{"broken"}, "undefined: testing"},
		{"panics", 0, 0, []string{"panics"}, "panic: at once"},
		{"exits", 1, 0, []string{"exits"}, "a goroutine is left"},
		{"hangs", 0, 0, []string{"hangs.TestX"}, "panic: test timed out after 10ms"},
		{"empty", 0, 0, nil, ""},
	} {
		t.Run(c.suite, func(t *testing.T) {
			r := runSuite(t, root, c.suite)
			slices.SortFunc(r.failures, func(a, b failure) int { return strings.Compare(a.name, b.name) })
			if r.passed != c.passed || r.skipped != c.skipped || !slices.Equal(namesOf(r.failures), c.failures) || r.flaky != nil {
				t.Errorf("got %+v, want %+v", r, c)
			}
			if c.failures != nil && !strings.Contains(r.failures[len(r.failures)-1].said, c.said) {
				t.Errorf("it said %q, want %q", r.failures[len(r.failures)-1].said, c.said)
			}
		})
	}
	r := runSuite(t, root, "good")
	if !slices.Equal(r.skips, []string{"example.net/tortie/good.TestSkipped"}) || r.left["left out of a short run: needs the lab"] != 1 {
		t.Errorf("skipped: %q, %v", r.skips, r.left)
	}
}

// A failed test runs again up to twice, alone and whole: one that then passes is flaky. More than ten do not run again.
func TestFlaky(t *testing.T) {
	const counts = `
import ("os"; "testing")
// ran returns how many tests have run so far: each is a byte of the file "runs".
func ran() int64 {
	f, err := os.OpenFile("runs", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil { panic(err) }
	defer f.Close()
	if _, err := f.WriteString("x"); err != nil { panic(err) }
	info, err := f.Stat()
	if err != nil { panic(err) }
	return info.Size()
}
`
	const once = `func TestX(t *testing.T) { if ran() < 2 { t.Error("the first time") } }; func TestGood(t *testing.T) {}`
	many := ""
	for _, c := range "ABCDEFGHIJK" {
		many += "func Test" + string(c) + "(t *testing.T) { ran(); t.Error(1) }\n"
	}
	root := module(t, map[string]string{
		"once/x_test.go":   "package once" + counts + once,
		"strict/x_test.go": "package strict" + counts + once,
		"parts/x_test.go": "package parts" + counts + `func TestX(t *testing.T) {
	n := ran()
	t.Run("a", func(t *testing.T) { n++ })
	t.Run("b", func(t *testing.T) { if n < 4 { t.Error("the first times") } })
}`,
		"always/x_test.go": "package always" + counts + `func TestX(t *testing.T) { ran(); t.Error("every time") }`,
		"skips/x_test.go":  "package skips" + counts + `func TestX(t *testing.T) { if ran() > 1 { t.Skip("later") }; t.Error("the first time") }`,
		"many/x_test.go":   "package many" + counts + many,
	})
	for _, c := range []struct {
		suite                       string
		runs, passed, failed, flaky int
		said                        string
	}{
		{"once", 2, 2, 0, 1, "the first time"},
		{"strict", 1, 1, 1, 0, "the first time"},
		{"parts", 3, 3, 0, 1, "the first times"},
		{"always", 3, 0, 1, 0, "every time"},
		{"skips", 2, 0, 1, 0, "the first time"},
		{"many", 11, 0, 11, 0, "1"},
	} {
		t.Run(c.suite, func(t *testing.T) {
			if c.suite == "strict" {
				t.Setenv("STRICT", "1")
			}
			r := runSuite(t, root, c.suite)
			runs, err := os.ReadFile(filepath.Join(root, c.suite, "runs"))
			errtest.Must(t, err)
			if len(runs) != c.runs || r.passed != c.passed || len(r.failures) != c.failed || len(r.flaky) != c.flaky {
				t.Fatalf("%d runs, %+v; want %+v", len(runs), r, c)
			}
			for _, f := range slices.Concat(r.failures, r.flaky) {
				alone := "make suite-" + c.suite + " PACKAGES=example.net/tortie/" + c.suite + " RUN=Test"
				if !strings.Contains(f.said, c.said) || !strings.HasPrefix(f.alone, alone) {
					t.Errorf("%s said %q, want %q; alone by %q, want %q", f.name, f.said, c.said, f.alone, alone)
				}
			}
		})
	}
}

// A suite of commands is one test, which fails with what it printed last.
func TestCommands(t *testing.T) {
	root := tree(t, "suite-good:\n\ttrue\nsuite-bad:\n\t@echo the reason\n\tfalse\nsuite-offline:\n\t@echo NOT CHECKED: no network\n", nil)
	if r := runSuite(t, root, "good"); r.passed != 1 || r.failures != nil {
		t.Errorf("good: %+v", r)
	}
	if r := runSuite(t, root, "bad"); r.passed != 0 || len(r.failures) != 1 || !strings.Contains(r.failures[0].said, "the reason") {
		t.Errorf("bad: %+v", r)
	}
	if r := runSuite(t, root, "offline"); r.passed != 0 || r.failures != nil || !slices.Equal(r.skips, []string{"NOT CHECKED: no network"}) {
		t.Errorf("offline: %+v", r)
	}
}

// A suite that runs beside others ends after the one that follows, here: it waits for that.
func TestBeside(t *testing.T) {
	root := tree(t, "suite-waits:\n\tuntil [ -e made ]; do sleep 0.01; done\nsuite-makes:\n\ttouch made\n"+
		"suite-fails:\n\tfalse\nsuite-left:\n\ttrue\n", nil)
	suites, err := choose([]string{"+waits", "makes", "fails!", "left"}, "")
	errtest.Must(t, err)
	results := runAll(t.Context(), suites, root, t.TempDir())
	if len(results) != 3 || results[0].passed != 1 || results[1].passed != 1 || len(results[2].failures) != 1 {
		t.Errorf("got %+v, want two that passed, one that failed, and the last not begun", results)
	}
}

// An interrupted run lets what it began clean up, begins nothing more, and fails.
func TestInterrupted(t *testing.T) {
	const cleansUp = "\n\t@trap 'touch $@.cleaned; exit' TERM; touch $@.begun; while :; do sleep 0.01; done\n"
	root := tree(t, "suite-a:"+cleansUp+"suite-b:"+cleansUp+"suite-c:"+cleansUp, nil)
	ctx, cancel := context.WithCancel(t.Context())
	suites, err := choose([]string{"+a", "b", "c"}, "")
	errtest.Must(t, err)
	logs := t.TempDir()
	ended := make(chan []result)
	go func() { ended <- runAll(ctx, suites, root, logs) }()
	waittest.For(t, time.Minute, func() error {
		_, a := os.Stat(filepath.Join(root, "suite-a.begun"))
		_, b := os.Stat(filepath.Join(root, "suite-b.begun"))
		return errors.Join(a, b)
	})
	cancel()
	results := <-ended
	for _, name := range []string{"a", "b"} {
		if _, err := os.Stat(filepath.Join(root, "suite-"+name+".cleaned")); err != nil {
			t.Error(err)
		}
	}
	if len(results) != 2 || len(results[0].failures) != 1 || len(results[1].failures) != 1 {
		t.Errorf("got %+v, want the failures of two suites", results)
	}
}

// What is left of a suite when its command has ended, ends.
func TestOrphans(t *testing.T) {
	root := tree(t, "suite-a:\n\tsleep 1000 >/dev/null 2>&1 & echo $$! > pid\n", nil)
	if r := runSuite(t, root, "a"); r.passed != 1 {
		t.Errorf("got %+v", r)
	}
	text, err := os.ReadFile(filepath.Join(root, "pid"))
	errtest.Must(t, err)
	status, err := os.ReadFile("/proc/" + strings.TrimSpace(string(text)) + "/stat") // a zombie has not been reaped yet
	if err == nil && !strings.Contains(string(status), ") Z ") {
		t.Errorf("it runs: %s", status)
	}
}

// Of a long output the summary has the first and the last records.
func TestInShort(t *testing.T) {
	for _, c := range []struct {
		name, output string
		want         []string
	}{
		{"records", strings.Repeat("    a_test.go:1: begun\n", 9) + "noise\n    a_test.go:2: the reason\n",
			[]string{"a_test.go:1: begun", "...", "a_test.go:2: the reason"}},
		{"lines", strings.Repeat("step\n", 20) + "make: Error 1\n", []string{"step", "...", "make: Error 1"}},
	} {
		got := strings.Split(strings.ReplaceAll(inShort(c.output), "    ", ""), "\n")
		got = slices.Compact(got[:len(got)-1])
		if want := []string{c.want[0], c.want[1], c.want[0], c.want[2]}; !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", c.name, got, want)
		}
	}
}

// The summary ends with the counts, and after these with the flaky tests.
func TestSummary(t *testing.T) {
	good := result{name: "a", passed: 2}
	bad := result{name: "b", log: "logs/b.log", passed: 1, skipped: 1, skips: []string{"pkg.TestS"}}
	bad.failures = []failure{{"pkg.TestX", "    x_test.go:7: the reason\n", "make it"}}
	flaky := result{name: "c", passed: 1, flaky: []failure{{"pkg.TestF", "    x_test.go:9: by chance\n", "make it"}}}
	for _, c := range []struct {
		name    string
		results []result
		planned int
		counts  string
		has     []string
		ok      bool
	}{
		{"all good", []result{good}, 1, "2 passed, 0 failed", nil, true},
		{"one failed", []result{good, bad}, 2, "3 passed, 1 failed",
			[]string{"FAILED in b: pkg.TestX\n    x_test.go:7: the reason\n    log: logs/b.log\n    alone: make it\n", "skipped in b: pkg.TestS\n"},
			false},
		{"one not run", []result{good}, 2, "2 passed, 1 failed", []string{"not run: 1 of 2 suites\n"}, false},
		{"one flaky", []result{flaky, good}, 2, "3 passed, 0 failed", []string{"FLAKY in c: pkg.TestF"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			if ok := summarize(&out, c.results, c.planned); ok != c.ok {
				t.Errorf("ok is %v", ok)
			}
			if !strings.HasSuffix(out.String(), "\n"+c.counts+"\n"+flakyText(c.results)) {
				t.Errorf("the end is not %q and the flaky tests:\n%s", c.counts, &out)
			}
			for _, text := range c.has {
				if !strings.Contains(out.String(), text) {
					t.Errorf("without %q:\n%s", text, &out)
				}
			}
		})
	}
	path := filepath.Join(t.TempDir(), "flaky.txt")
	for _, want := range []string{flakyText([]result{flaky}), ""} {
		errtest.Must(t, writeFlaky(path, []result{good, flaky}[:1+min(1, len(want))]))
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("flaky.txt is %q, %v; want %q", got, err, want)
		}
	}
}

func TestChoose(t *testing.T) {
	list := []string{"a!", "+b"}
	if got, err := choose(list, "b"); err != nil || !slices.Equal(got, []suite{{name: "b", beside: true}}) {
		t.Errorf("choose b: %v, %v", got, err)
	}
	if _, err := choose(list, "b,c"); !errtest.Names(err, "a,b") {
		t.Errorf("an unknown suite: %v", err)
	}
}

// Each test of the repository is in a suite of make test-all: no list of packages and no pattern leaves one out.
func TestNoneLeftOut(t *testing.T) {
	list, err := exec.Command("make", "-C", "../..", "-s", "--no-print-directory", "list-suites", "TORTIE_TIER=all").Output()
	errtest.Must(t, err)
	type part struct{ run, skip *regexp.Regexp }
	parts := map[string][]part{} // by directory in the repository
	for line := range strings.Lines(string(list)) {
		field := strings.Split(strings.TrimSuffix(line, "\n"), ";")
		if len(field) != 5 {
			t.Fatalf("make list-suites prints %q, want five fields", line)
		}
		name, module, packages, run, skip := field[0], field[1], field[2], field[3], field[4]
		run, _, _ = strings.Cut(run, "/") // the rest is a pattern of parts
		for pkg := range strings.FieldsSeq(packages) {
			dir := filepath.Join(module, strings.TrimPrefix(pkg, "github.com/tortie-net/tortie/"+strings.TrimPrefix(module+"/", "./")))
			if pkg == "github.com/tortie-net/tortie/"+module {
				dir = module
			}
			if _, err := os.Stat(filepath.Join("../..", dir)); err != nil {
				t.Errorf("suite %s has the package %s: %v", name, pkg, err)
			}
			parts[dir] = append(parts[dir], part{regexp.MustCompile(cmp.Or(run, ".")), regexp.MustCompile(cmp.Or(skip, "^$"))})
		}
	}
	out, err := exec.Command("git", "-C", "../..", "grep", "-E", "^func (Test|Fuzz|Example)", "--", "*_test.go").Output()
	errtest.Must(t, err)
	found := 0
	for line := range strings.Lines(string(out)) {
		file, declared, _ := strings.Cut(line, ":func ")
		test, arguments, _ := strings.Cut(declared, "(")
		if strings.HasPrefix(arguments, "m *testing.M") {
			continue
		}
		found++
		dir := filepath.Dir(file)
		has := func(p part) bool { return p.run.MatchString(test) && !p.skip.MatchString(test) }
		if !slices.ContainsFunc(parts[dir], has) && !byHand[dir+"."+test] {
			t.Errorf("no suite of hack/suites.mk runs %s of %s", test, dir)
		}
	}
	if found < 1000 {
		t.Errorf("%d tests, want all", found)
	}
}

// byHand are the tests that only other targets of make run.
var byHand = map[string]bool{"internal/tests/perf.TestPrograms": true} // make perf
