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

// outcome is what has become of a spec.
func (one result) outcome() string {
	switch {
	case one.why != "":
		return "not run"
	case one.passed:
		return "passed"
	}
	return "failed"
}

const intro = `<!-- Written by make e2e; what it does is in internal/tests/conformance. -->

# Conformance of policy

What other projects' tests of network policy have shown, on [the lab](lab.md): three nodes, kube-proxy in nftables mode, pods with IPv4 over VXLAN.
Each test, with its time: [conformance.csv](conformance.csv). Here are those that did not pass.

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
		counts, lists := r.lists(suite)
		t.Logf("%s: %s", suite, counts)
		fmt.Fprintf(&b, "\n## %s\n\n%s\n%s", suite, counts, lists)
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

// lists returns how many specs of a suite have passed, have failed and were not run, and lists of those that did not pass: those not run
// below their reasons.
func (r *results) lists(suite string) (counts, lists string) {
	failed, idle, count := "", map[string]string{}, map[string]int{}
	for _, one := range r.all {
		if one.suite != suite {
			continue
		}
		count[one.outcome()]++
		switch one.outcome() {
		case "failed":
			failed += "- **failed**: " + one.spec + "\n"
		case "not run":
			idle[one.why] += "- " + one.spec + "\n"
		}
	}
	if failed != "" {
		lists = "\n" + failed
	}
	for _, why := range slices.Sorted(maps.Keys(idle)) {
		lists += fmt.Sprintf("\nNot run: %s:\n\n%s", why, idle[why])
	}
	return fmt.Sprintf("%d passed, %d failed, %d not run.", count["passed"], count["failed"], count["not run"]), lists
}

// Failed specs and those not run are on the page, all specs among the values.
func TestReport(t *testing.T) {
	r := &results{all: []result{
		{suite: apiSuite, spec: "good", passed: true, took: 1600 * time.Millisecond}, {suite: apiSuite, spec: "bad", took: time.Second},
		{suite: apiSuite, spec: "idle", why: "no SCTP"}, {suite: kubernetesSuite, spec: "another"},
	}}
	if counts, lists := r.lists(apiSuite); counts != "1 passed, 1 failed, 1 not run." || lists != "\n- **failed**: bad\n\nNot run: no SCTP:\n\n- idle\n" {
		t.Errorf("%s\n%s", counts, lists)
	}
	want := "Suite,Test,Result,Seconds\n" + apiSuite + ",good,passed,2\n" + apiSuite + ",bad,failed,1\n" + apiSuite + ",idle,not run,\n" +
		kubernetesSuite + ",another,failed,0\n"
	if got := string(r.values(t)); got != want {
		t.Errorf("values\n%s\nwant\n%s", got, want)
	}
}
