package main

import (
	"context"
	"io"
	"maps"
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
)

// module writes a Go module with a package for each possible result.
func module(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.net/tortie\n\ngo 1.26\n",
		"good/good_test.go": `package good
import "testing"
func TestOne(t *testing.T) {}
func TestTable(t *testing.T) { t.Run("a", func(t *testing.T) {}); t.Run("b", func(t *testing.T) {}) }
func TestSkipped(t *testing.T) { t.Skip("no reason") }
`,
		"bad/bad_test.go": `package bad
import "testing"
func TestGood(t *testing.T) {}
func TestTable(t *testing.T) { t.Run("good", func(t *testing.T) {}); t.Run("bad", func(t *testing.T) { t.Error("one is not two") }) }
func TestAfterChildren(t *testing.T) { t.Run("good", func(t *testing.T) {}); t.Error("the parent itself") }
`,
		"broken/broken_test.go": "package broken\nfunc TestX(t *testing.T) {}\n",
		"panics/panics_test.go": "package panics\nimport \"testing\"\nfunc TestMain(m *testing.M) { panic(\"at once\") }\nfunc TestX(t *testing.T) {}\n",
		"empty/empty.go":        "package empty\n",
	} {
		path := filepath.Join(root, name)
		errtest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		errtest.Must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return root
}

func runSuite(t *testing.T, s suite) result {
	t.Helper()
	s.name = "suite"
	return s.run(context.Background(), filepath.Join(t.TempDir(), "log"))
}

func TestCountsOfGoTest(t *testing.T) {
	root := module(t)
	cases := []struct {
		pkg                     string
		passed, failed, skipped int
		failures                []string
	}{
		{"good", 3, 0, 1, nil},
		{"bad", 3, 2, 0, []string{"example.net/tortie/bad.TestAfterChildren", "example.net/tortie/bad.TestTable/bad"}},
		{"broken", 0, 1, 0, []string{"example.net/tortie/broken"}},
		{"panics", 0, 1, 0, []string{"example.net/tortie/panics"}},
		{"empty", 0, 0, 0, nil},
	}
	for _, c := range cases {
		t.Run(c.pkg, func(t *testing.T) {
			r := runSuite(t, suite{root: root, tests: &goTest{only: "./" + c.pkg}})
			if r.passed != c.passed || r.failed != c.failed || r.skipped != c.skipped || !slices.Equal(r.failures, c.failures) {
				t.Errorf("got %+v, want %+v", r, c)
			}
		})
	}
}

func TestExceptAndMisspeltPackages(t *testing.T) {
	root := module(t)
	if r := runSuite(t, suite{root: root, tests: &goTest{except: []string{"bad", "broken", "panics"}}}); r.failed != 0 || r.passed != 3 {
		t.Errorf("without the failing packages: %+v", r)
	}
	if r := runSuite(t, suite{root: root, tests: &goTest{only: "./godo"}}); r.failed != 1 {
		t.Errorf("a package that does not exist: %+v, want a failure", r)
	}
}

// What a package's tests link counts, whether by the package itself, its tests inside or outside of it, or another package.
func TestWithout(t *testing.T) {
	root := module(t)
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		errtest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		errtest.Must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	write("rig/rig.go", "package rig\n")
	write("over/over.go", "package over\nimport _ \"example.net/tortie/rig\"\n")
	write("inside/x_test.go", "package inside\nimport _ \"example.net/tortie/rig\"\n")
	write("outside/x.go", "package outside\n")
	write("outside/x_test.go", "package outside_test\nimport _ \"example.net/tortie/over\"\n")
	write("itself/x.go", "package itself\nimport _ \"example.net/tortie/over\"\n")
	write("itself/x_test.go", "package itself\n")
	write("free/x_test.go", "package free\n")
	s := suite{root: root, tests: &goTest{without: "rig"}}
	got, err := s.packages(t.Context())
	errtest.Must(t, err)
	for name, want := range map[string]bool{"inside": false, "outside": false, "itself": false, "free": true, "good": true} {
		if slices.Contains(got, "example.net/tortie/"+name) != want {
			t.Errorf("%s is run: %t, want %t", name, !want, want)
		}
	}
}

// Suites of some tests have these, of one package.
func TestNamedTests(t *testing.T) {
	out, err := exec.Command("git", "-C", "../..", "grep", "-E", "^func Test", "--", "*_test.go").Output()
	errtest.Must(t, err)
	for _, c := range []struct {
		pattern, dir string
		elsewhere    bool // there may be tests of such names that the suite does not have
	}{
		{tunnelTest, tunnelPackage, false}, {interopTests, interopPackage, true}, {peerTests, flowtablePackage, false}, {ipipTests, flowtablePackage, true},
	} {
		pattern, found := regexp.MustCompile(c.pattern), 0
		for line := range strings.Lines(string(out)) {
			file, declared, _ := strings.Cut(line, ":func ")
			switch name, _, _ := strings.Cut(declared, "("); {
			case !pattern.MatchString(name):
			case filepath.Dir(file) == c.dir:
				found++
			case !c.elsewhere:
				t.Errorf("%s has a test like %s, want it in %s alone", file, c.pattern, c.dir)
			}
		}
		if want := 1 + strings.Count(c.pattern, "|"); found != want {
			t.Errorf("%s has %d tests like %s, want %d", c.dir, found, c.pattern, want)
		}
	}
}

// A suite begins with its longest packages, and has each once; one that was renamed is an error.
func TestFirst(t *testing.T) {
	s := suite{name: "unit", tests: &goTest{first: []string{"tests/mesh", "ipam"}}}
	got, err := s.inOrder([]string{"x/api", "x/ipam", "x/ipam/gc", "x/tests/mesh"})
	if want := []string{"x/tests/mesh", "x/ipam", "x/api", "x/ipam/gc"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if _, err := s.inOrder([]string{"x/api", "x/ipam"}); err == nil || !strings.Contains(err.Error(), "tests/mesh") {
		t.Errorf("without a package to begin with: %v", err)
	}
}

// What a short run leaves out is counted by what it needs, as internal/testkit/needtest says it.
func TestShort(t *testing.T) {
	c := newCounter(io.Discard)
	for _, e := range []event{
		{Action: "output", Package: "p", Test: "TestA", Output: "    a_test.go:7: " + needtest.Skipped + "the lab\n"}, {Action: "skip", Package: "p", Test: "TestA"},
		{Action: "output", Package: "p", Test: "TestB", Output: "    a_test.go:9: " + needtest.Skipped + "the lab\n"}, {Action: "skip", Package: "p", Test: "TestB"},
		{Action: "output", Package: "p", Test: "TestC", Output: "    a_test.go:9: another reason\n"}, {Action: "skip", Package: "p", Test: "TestC"},
		{Action: "pass", Package: "p"},
	} {
		errtest.Must(t, c.take(e))
	}
	var r result
	c.into(&r)
	if r.skipped != 3 || !maps.Equal(r.left, map[string]int{"the lab": 2}) || !slices.Equal(r.skips, []string{"p.TestC"}) {
		t.Errorf("got %+v", r)
	}
}

func TestSteps(t *testing.T) {
	r := runSuite(t, suite{root: t.TempDir(), steps: []step{
		{name: "good", args: []string{"true"}},
		{name: "bad", args: []string{"false"}},
		{name: "missing", args: []string{"no-such-program"}},
		{name: "offline", args: []string{"echo", "NOT CHECKED: no network"}},
	}})
	if r.passed != 1 || !slices.Equal(r.skips, []string{"offline"}) || !slices.Equal(r.failures, []string{"bad", "missing"}) {
		t.Errorf("got %+v", r)
	}
}

// A suite that runs beside others ends after the one that follows, here: it waits for that.
func TestBeside(t *testing.T) {
	root := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	one := func(name, script string) suite {
		return suite{name: name, root: root, beside: name == "waits", vital: true, steps: []step{{name: "script", args: []string{"sh", "-c", script}}}}
	}
	all := []suite{one("waits", "until [ -e made ]; do sleep 0.01; done"), one("makes", "touch made"), one("fails", "false"), one("left", "true")}
	results := runAll(ctx, all, t.TempDir())
	if len(results) != 3 || results[0].passed != 1 || results[1].passed != 1 || results[2].failed != 1 {
		t.Errorf("got %+v, want two that passed, one that failed, and the last not begun", results)
	}
}

// The reason of a failure is printed, wherever it is in the test's output.
func TestFailureOutput(t *testing.T) {
	c := newCounter(io.Discard)
	said := []string{"    x_test.go:7: the reason\n", "    node.go:12: what an agent logged:\n", strings.Repeat("        noise\n", 100), "--- FAIL: TestX (1s)\n"}
	for _, s := range said {
		errtest.Must(t, c.take(event{Action: "output", Package: "p", Test: "TestX", Output: s}))
	}
	got := c.failureOutput("p", "p.TestX")
	if !strings.Contains(got, "--- FAIL: TestX (1s)\n    what it said, in short:\n    x_test.go:7: the reason\n    node.go:12: what") {
		t.Errorf("of a long output is shown:\n%s", got)
	}
	if n := strings.Count(got, "\n"); n > shownLines+shownRecords {
		t.Errorf("%d lines are shown", n)
	}
}

// Of a long output the summary has the first and the last records.
func TestInShort(t *testing.T) {
	for _, c := range []struct {
		name, output string
		want         []string
	}{
		{"records", strings.Repeat("    a_test.go:1: begun\n", 9) + "noise\n    a_test.go:2: the reason\n", []string{"a_test.go:1: begun", "...", "a_test.go:2: the reason"}},
		{"lines", strings.Repeat("step\n", 20) + "make: Error 1\n", []string{"step", "...", "make: Error 1"}},
	} {
		got := strings.Split(strings.ReplaceAll(inShort(c.output), "    ", ""), "\n")
		got = slices.Compact(got[:len(got)-1])
		if want := []string{c.want[0], c.want[1], c.want[0], c.want[2]}; !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", c.name, got, want)
		}
	}
}

func TestSummary(t *testing.T) {
	results := []result{{name: "a", passed: 2}, {name: "b", passed: 1, failed: 1, failures: []string{"pkg.TestX"}, said: map[string]string{"pkg.TestX": inShort("    x_test.go:7: the reason\n")}, skipped: 1, skips: []string{"pkg.TestS"}}}
	cases := []struct {
		name    string
		results []result
		planned int
		last    string
		ok      bool
	}{
		{"all good", results[:1], 1, "2 passed, 0 failed", true},
		{"one failed", results, 2, "3 passed, 1 failed", false},
		{"one not run", results[:1], 2, "2 passed, 1 failed", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f, err := os.Create(filepath.Join(t.TempDir(), "out"))
			errtest.Must(t, err)
			defer f.Close()
			if ok := summarize(f, c.results, c.planned, "logs"); ok != c.ok {
				t.Errorf("ok is %v", ok)
			}
			text, err := os.ReadFile(f.Name())
			errtest.Must(t, err)
			lines := strings.Split(strings.TrimSpace(string(text)), "\n")
			if got := lines[len(lines)-1]; got != c.last {
				t.Errorf("last line %q, want %q", got, c.last)
			}
			if len(c.results) > 1 && (!strings.Contains(string(text), "pkg.TestX (log: logs/b.log)\n    x_test.go:7: the reason\n") || !strings.Contains(string(text), "pkg.TestS")) {
				t.Errorf("failed and skipped tests are not named:\n%s", text)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	all := []suite{{name: "a"}, {name: "b"}}
	if got, err := choose(all, "b"); err != nil || len(got) != 1 || got[0].name != "b" {
		t.Errorf("choose b: %v, %v", got, err)
	}
	if _, err := choose(all, "b,c"); !errtest.Names(err, "a b") {
		t.Errorf("an unknown suite: %v", err)
	}
}
