package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// event is one line of `go test -json`; see `go doc test2json`.
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64
	Output  string
	// FailedBuild and ImportPath relate the output of the compiler to a package.
	FailedBuild string
	ImportPath  string
}

// counter reads the events of one run of go test.
type counter struct {
	log      io.Writer
	recent   tail
	outcome  map[string]map[string]string           // package, test: pass, fail or skip
	output   map[string]map[string]*strings.Builder // package, test: what it wrote
	packages map[string]string                      // pass, fail or skip
	order    []string
}

func newCounter(log io.Writer) *counter {
	return &counter{
		log: log, outcome: map[string]map[string]string{}, output: map[string]map[string]*strings.Builder{}, packages: map[string]string{},
	}
}

// last returns the last line that a test wrote.
func (c *counter) last() string { return c.recent.last() }

func (c *counter) read(r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20) // a test may write a long line
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			e = event{Action: "output", Output: lines.Text() + "\n"} // output of a wrapper of go test
		}
		if err := c.take(e); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (c *counter) take(e event) error {
	switch e.Action {
	case "output", "build-output":
		if e.Package == "" {
			e.Package = e.ImportPath
		}
		tests := inner(c.output, e.Package)
		if tests[e.Test] == nil {
			tests[e.Test] = &strings.Builder{}
		}
		tests[e.Test].WriteString(e.Output)
		if strings.TrimSpace(e.Output) != "" {
			_, _ = c.recent.Write([]byte(e.Output)) // never fails
		}
		_, err := io.WriteString(c.log, e.Output)
		return err
	case "pass", "fail", "skip":
		if e.Test != "" {
			inner(c.outcome, e.Package)[e.Test] = e.Action
			return nil
		}
		c.packages[e.Package] = e.Action
		c.order = append(c.order, e.Package)
		c.report(e)
	}
	return nil
}

func inner[V any](m map[string]map[string]V, key string) map[string]V {
	if m[key] == nil {
		m[key] = map[string]V{}
	}
	return m[key]
}

// wrote returns the output of a test, or of its package if the name is empty.
func (c *counter) wrote(pkg, test string) string {
	if b := c.output[pkg][test]; b != nil {
		return b.String()
	}
	return ""
}

// report prints a line for a finished package, with the output of failed tests.
func (c *counter) report(e event) {
	var r result
	c.countPackage(e.Package, &r)
	name := e.Package[strings.Index(e.Package, "/tortie/")+1:]
	switch {
	case e.Action == "fail":
		for _, test := range r.failures {
			fmt.Print(c.failureOutput(e.Package, test))
		}
		if e.FailedBuild != "" {
			fmt.Print(c.wrote(e.FailedBuild, ""))
		}
		fmt.Printf("    FAIL %s: %d failed, %d passed (%.1fs)\n", name, r.failed, r.passed, e.Elapsed)
	case r.passed+r.skipped > 0:
		fmt.Printf("    ok   %s: %d passed (%.1fs)\n", name, r.passed, e.Elapsed)
	}
}

// shownLines is how many of the last lines of a failed test's output are printed; the log has all. shownRecords is how many of its first
// records are repeated after them: the logs at the end of a test (of ten agents, say) bury the reason.
const (
	shownLines   = 40
	shownRecords = 15
)

// record matches the first line of a record of a test: file.go:12: and a text.
var record = regexp.MustCompile(`(?m)^ +[a-z0-9_]+\.go:\d+: .*`)

// failureOutput returns the end of the output of a failed test, and then the first lines of its records; for a package that failed by itself,
// the package's output.
func (c *counter) failureOutput(pkg, name string) string {
	output := c.wrote(pkg, strings.TrimPrefix(strings.TrimPrefix(name, pkg), "."))
	lines := strings.SplitAfter(output, "\n")
	more := len(lines) - shownLines
	if more <= 0 {
		return output
	}
	said := record.FindAllString(output, -1)
	said = said[:min(len(said), shownRecords)]
	return fmt.Sprintf("    (%d more lines are in the log)\n%s    what it said, in short:\n%s\n", more, strings.Join(lines[more:], ""), strings.Join(said, "\n"))
}

// into adds the counts of all packages.
func (c *counter) into(r *result) {
	for _, pkg := range c.order {
		c.countPackage(pkg, r)
	}
}

// countPackage counts a package's leaves: a test with subtests counts only if it failed by itself. A package that failed without a failed test
// (compilation, panic, timeout) is one failure.
func (c *counter) countPackage(pkg string, r *result) {
	tests := c.outcome[pkg]
	before := r.failed
	names := make([]string, 0, len(tests))
	for name := range tests {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if tests[name] != "fail" && hasChild(names, name) || tests[name] == "fail" && hasFailedChild(tests, name) {
			continue
		}
		switch tests[name] {
		case "pass":
			r.passed++
		case "skip":
			r.skipped++
			if said := short.FindStringSubmatch(c.wrote(pkg, name)); said != nil {
				r.leave(said[1])
				continue
			}
			r.skips = append(r.skips, pkg+"."+name)
		case "fail":
			r.fail(pkg+"."+name, c.wrote(pkg, name))
		}
	}
	if c.packages[pkg] == "fail" && r.failed == before {
		r.fail(pkg, c.wrote(pkg, ""))
	}
}

// short matches the reason of a skipped test in a short run, by internal/testkit/needtest.
var short = regexp.MustCompile(`(?m): left out of a short run: needs (.*)$`)

func hasChild(names []string, parent string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, parent+"/") })
}

func hasFailedChild(tests map[string]string, parent string) bool {
	for name, outcome := range tests {
		if outcome == "fail" && strings.HasPrefix(name, parent+"/") {
			return true
		}
	}
	return false
}
