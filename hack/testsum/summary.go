package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"gotest.tools/gotestsum/testjson"
)

// result is the result of one suite. A suite without tests counts as one.
type result struct {
	name, log       string
	passed, skipped int
	took            time.Duration
	tail            tail
	failures, flaky []failure
	skips           []string       // names of skipped tests
	left            map[string]int // by reason: tests that the short run, or the first tier, leaves out
}

// failure is a test that failed, or a suite that failed as a whole.
type failure struct{ name, said, alone string }

// notChecked is the prefix of the last line of a suite that could not run on this machine, which is not a failure.
const notChecked = "NOT CHECKED"

// left matches the reason of a test that this run leaves out; see internal/testkit/needtest and tier.
var left = regexp.MustCompile(`(?m): (left (?:out|to) .*)$`)

// read completes the result by the events of go test, if there are any. ended is how the suite ended.
func (r *result) read(events string, ended error) {
	f, err := os.Open(events)
	switch {
	case err == nil:
		defer f.Close()
		broken := packages{}
		// An interrupted run ends within a line.
		run, err := testjson.ScanTestOutput(testjson.ScanConfig{Stdout: f, Handler: broken, IgnoreNonJSONOutputLines: true})
		if err != nil {
			r.failures = append(r.failures, failure{name: r.name, said: inShort(err.Error())})
		}
		r.count(run, broken)
	case !errors.Is(err, fs.ErrNotExist):
		r.failures = append(r.failures, failure{name: r.name, said: inShort(err.Error())})
	case ended == nil && strings.HasPrefix(r.tail.last(), notChecked):
		r.skipped++
		r.skips = append(r.skips, r.tail.last())
	case ended == nil:
		r.passed++
	}
	if ended != nil && len(r.failures) == 0 {
		said := fmt.Sprintf("%s\n%v", r.tail, ended)
		r.failures = append(r.failures, failure{name: r.name, said: inShort(said), alone: "make suite-" + r.name})
	}
}

// packages has the packages that failed without a failed test: by compilation, by TestMain, by their exit. gotestsum
// runs none of their tests again, and counts that as success.
type packages map[string]bool

// Event implements testjson.EventHandler. The value false means a package with a failed test. The event of a test that
// was running when its package ended follows the package's, without a time.
func (p packages) Event(e testjson.TestEvent, _ *testjson.Execution) error {
	_, known := p[e.Package]
	switch {
	case e.Action != testjson.ActionFail:
	case e.Test != "":
		p[e.Package] = p[e.Package] && e.Elapsed >= 0
	case !known:
		p[e.Package] = true
	}
	return nil
}

// Err implements testjson.EventHandler.
func (packages) Err(string) error { return nil }

// count counts the tests of a run. The last run of a test counts: gotestsum repeats failed tests.
func (r *result) count(run *testjson.Execution, broken packages) {
	for _, name := range run.Packages() {
		pkg := run.Package(name)
		r.countTests(run, name, pkg)
		if broken[name] {
			said := append(run.OutputLines(testjson.TestCase{Package: name}), run.Errors()...)
			r.failures = append(r.failures, failure{name: name, said: inShort(strings.Join(said, "\n")), alone: r.alone(name, "")})
		}
	}
}

func (r *result) countTests(run *testjson.Execution, name string, pkg *testjson.Package) {
	passed, failed := latest(pkg.Passed), latest(pkg.Failed)
	for test, tc := range latest(pkg.Skipped) {
		r.skipped++
		if m := left.FindStringSubmatch(strings.Join(run.OutputLines(tc), "")); m != nil {
			if r.left == nil {
				r.left = map[string]int{}
			}
			r.left[m[1]]++
		} else if failed[test].ID == 0 {
			r.skips = append(r.skips, name+"."+test)
		}
	}
	r.passed += len(passed)
	// A test that ran again passed if its root did, whatever parts of it failed before.
	isFlaky := func(tc testjson.TestCase) bool {
		root, _ := tc.Test.Split()
		return passed[root].ID > failed[root].ID
	}
	for _, tc := range testjson.FilterFailedUnique(slices.Collect(maps.Values(failed))) {
		root, _ := tc.Test.Split()
		f := failure{name: name + "." + tc.Test.Name(), said: r.said(run, tc), alone: r.alone(name, root)}
		if isFlaky(tc) {
			r.flaky = append(r.flaky, f)
			continue
		}
		r.failures = append(r.failures, f)
		if passed[tc.Test.Name()].ID != 0 {
			r.passed--
		}
	}
}

// latest returns the last case of each test.
func latest(cases []testjson.TestCase) map[string]testjson.TestCase {
	last := map[string]testjson.TestCase{}
	for _, tc := range cases {
		if tc.ID > last[tc.Test.Name()].ID {
			last[tc.Test.Name()] = tc
		}
	}
	return last
}

// said returns a test's output in short; after a panic or timeout, with that first.
func (r *result) said(run *testjson.Execution, tc testjson.TestCase) string {
	own := strings.Join(run.OutputLines(tc), "")
	for _, line := range run.OutputLines(testjson.TestCase{Package: tc.Package}) {
		if strings.HasPrefix(line, "panic: ") {
			return "    " + line + inShort(own)
		}
	}
	return inShort(own)
}

// alone returns the command that runs a test alone.
func (r *result) alone(pkg, test string) string {
	command := fmt.Sprintf("make suite-%s PACKAGES=%s", r.name, pkg)
	if test != "" {
		command += " RUN=" + test
	}
	const tier = "TORTIE_TIER"
	if value := os.Getenv(tier); value != "" {
		command = tier + "=" + value + " " + command
	}
	return command
}

// record matches the first line of a record of a test: file.go:12: and a text.
var record = regexp.MustCompile(`(?m)^ +[a-z0-9_]+\.go:\d+: .*`)

// inShort returns the first and the last records of a test's output, or lines if there are no records: the log may be
// gone when the summary is read.
func inShort(output string) string {
	const half, width = 4, 300
	said := record.FindAllString(output, -1)
	if said == nil {
		said = strings.FieldsFunc(output, func(c rune) bool { return c == '\n' })
	}
	if more := len(said) - 2*half; more > 0 {
		said = slices.Concat(said[:half], []string{"..."}, said[half+more:])
	}
	var b strings.Builder
	for _, line := range said {
		fmt.Fprintf(&b, "    %.*s\n", width, strings.TrimSpace(line))
	}
	return b.String()
}

// report prints the failures of a suite.
func report(w io.Writer, r result) {
	for _, f := range r.failures {
		fmt.Fprintf(w, "FAILED in %s: %s\n%s    log: %s\n    alone: %s\n", r.name, f.name, f.said, r.log, cmp.Or(f.alone, "make suite-"+r.name))
	}
}

// summarize prints the table of suites, and then the skipped, the failed and last the flaky tests. It reports whether
// all suites ran and none failed.
func summarize(w io.Writer, results []result, planned int) bool {
	var passed, failed int
	fmt.Fprintf(w, "\n%-16s %7s %7s %7s %7s %8s\n", "suite", "passed", "failed", "flaky", "skipped", "seconds")
	for _, r := range results {
		fmt.Fprintf(w, "%-16s %7d %7d %7d %7d %8.1f\n", r.name, r.passed, len(r.failures), len(r.flaky), r.skipped, r.took.Seconds())
		passed, failed = passed+r.passed, failed+len(r.failures)
	}
	for _, r := range results {
		for _, name := range slices.Sorted(slices.Values(r.skips)) {
			fmt.Fprintf(w, "skipped in %s: %s\n", r.name, name)
		}
		for _, why := range slices.Sorted(maps.Keys(r.left)) {
			fmt.Fprintf(w, "of %s %d tests %s\n", r.name, r.left[why], why)
		}
	}
	for _, r := range results {
		report(w, r)
	}
	if missing := planned - len(results); missing > 0 {
		fmt.Fprintf(w, "not run: %d of %d suites\n", missing, planned)
		failed += missing
	}
	fmt.Fprintf(w, "%d passed, %d failed\n", passed, failed)
	fmt.Fprint(w, flakyText(results))
	return failed == 0
}

// flakyText lists each test that failed and then passed alone, with its output.
func flakyText(results []result) string {
	var b strings.Builder
	for _, r := range results {
		for _, f := range r.flaky {
			fmt.Fprintf(&b, "FLAKY in %s: %s failed, and passed when it ran again\n%s    log: %s\n    alone: %s\n",
				r.name, f.name, f.said, r.log, f.alone)
		}
	}
	return b.String()
}

// writeFlaky writes the flaky tests of this run to a file, which is empty if there are none.
func writeFlaky(path string, results []result) error {
	if err := os.WriteFile(path, []byte(flakyText(results)), 0o644); err != nil {
		return fmt.Errorf("writing the flaky tests: %w", err)
	}
	return nil
}
