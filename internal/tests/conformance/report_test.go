package conformance

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// The suites, by the names of their Go modules.
const (
	kubernetesSuite = "k8s.io/kubernetes"
	apiSuite        = "sigs.k8s.io/network-policy-api"
)

// result is what a spec has shown: it has passed or failed, or it was not run, and why.
type result struct {
	suite, spec, why string
	passed           bool
	took             time.Duration
}

// results may be added to by several tests at once.
type results struct {
	lock sync.Mutex
	all  []result
}

func (r *results) add(one result) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.all = append(r.all, one)
}

// outcome is what has become of a spec, and why it was not run.
func (one result) outcome() string {
	switch {
	case one.why != "":
		return "not run: " + one.why
	case one.passed:
		return "passed"
	}
	return "failed"
}

const intro = `<!-- Written by make e2e; what it does is in internal/tests/conformance. -->

# Conformance of policy

What other projects' tests of network policy have shown, on [the lab](lab.md): three nodes, kube-proxy in nftables mode, pods with IPv4 over VXLAN.
Each test, with its time: [conformance.csv](conformance.csv).

`

// write logs the number of specs of each outcome, and writes the report if it is asked for.
func (r *results) write(t *testing.T) {
	t.Helper()
	slices.SortStableFunc(r.all, func(a, b result) int {
		return cmp.Or(cmp.Compare(a.suite, b.suite), cmp.Compare(a.spec, b.spec))
	})
	var b bytes.Buffer
	b.WriteString(intro)
	var kernel unix.Utsname
	errtest.Must(t, unix.Uname(&kernel))
	fmt.Fprintf(&b, "Kernel %s.\n", unix.ByteSliceToString(kernel.Release[:]))
	for _, suite := range []string{kubernetesSuite, apiSuite} {
		t.Logf("%s:\n%s", suite, r.summary(suite))
		fmt.Fprintf(&b, "\n## %s\n\n%s", suite, r.summary(suite))
	}
	if *report == "" {
		return
	}
	for path, text := range map[string][]byte{*report: b.Bytes(), strings.TrimSuffix(*report, ".md") + ".csv": r.values(t)} {
		errtest.Must(t, os.WriteFile(path, text, 0o644))
	}
}

// values returns all specs as comma-separated values.
func (r *results) values(t *testing.T) []byte {
	t.Helper()
	rows := [][]string{{"Suite", "Test", "Result", "Seconds"}}
	for _, one := range r.all {
		seconds := ""
		if one.why == "" {
			seconds = fmt.Sprintf("%.0f", one.took.Seconds())
		}
		rows = append(rows, []string{one.suite, one.spec, one.outcome(), seconds})
	}
	var b bytes.Buffer
	errtest.Must(t, csv.NewWriter(&b).WriteAll(rows))
	return b.Bytes()
}

// summary returns how many specs of a suite have passed, have failed and were not run, by the reason, and the names of those that failed.
func (r *results) summary(suite string) string {
	count, failed := map[string]int{"passed": 0, "failed": 0}, ""
	for _, one := range r.all {
		if one.suite != suite {
			continue
		}
		count[one.outcome()]++
		if one.outcome() == "failed" {
			failed += "- **failed**: " + one.spec + "\n"
		}
	}
	text := ""
	for _, outcome := range slices.Sorted(maps.Keys(count)) {
		text += fmt.Sprintf("- %d %s\n", count[outcome], outcome)
	}
	return text + failed
}

// Counts and failed specs are on the page, all specs among the values.
func TestReport(t *testing.T) {
	r := &results{all: []result{
		{suite: apiSuite, spec: "good", passed: true, took: 1600 * time.Millisecond}, {suite: apiSuite, spec: "bad", took: time.Second},
		{suite: apiSuite, spec: "idle", why: "no SCTP"}, {suite: kubernetesSuite, spec: "another"},
	}}
	if got := r.summary(apiSuite); got != "- 1 failed\n- 1 not run: no SCTP\n- 1 passed\n- **failed**: bad\n" {
		t.Error(got)
	}
	want := "Suite,Test,Result,Seconds\n" + apiSuite + ",good,passed,2\n" + apiSuite + ",bad,failed,1\n" + apiSuite + ",idle,not run: no SCTP,\n" +
		kubernetesSuite + ",another,failed,0\n"
	if got := string(r.values(t)); got != want {
		t.Errorf("values\n%s\nwant\n%s", got, want)
	}
}
