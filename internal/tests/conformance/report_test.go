package conformance

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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
	kernel           string // that it ran on
}

// results may be added to by several tests at once.
type results struct {
	kernel string         // of this machine
	inV3   map[string]int // outcomes of another run, in projectcalico.org/v3
	lock   sync.Mutex
	all    []result
}

func newResults(t *testing.T) *results {
	t.Helper()
	var name unix.Utsname
	errtest.Must(t, unix.Uname(&name))
	return &results{kernel: unix.ByteSliceToString(name.Release[:])}
}

func (r *results) add(one result) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if one.why == "" {
		one.kernel = r.kernel
	}
	r.all = append(r.all, one)
}

// columns are those of the values.
var columns = []string{"Suite", "Test", "Result", "Seconds", "Kernel"}

// written returns the rows of another run.
func written(t *testing.T, file string) [][]string {
	t.Helper()
	f, err := os.Open(file)
	errtest.Must(t, err)
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	errtest.Must(t, err)
	if len(rows) == 0 || !slices.Equal(rows[0], columns) {
		t.Fatalf("%s: its first row is not %q", file, columns)
	}
	return rows[1:]
}

// takeV3 takes the outcomes of a run in Calico's other API group.
func (r *results) takeV3(t *testing.T, file string) {
	t.Helper()
	r.inV3 = map[string]int{}
	for _, row := range written(t, file) {
		r.inV3[row[2]]++
		if row[2] == "failed" {
			t.Errorf("%s has failed in projectcalico.org/v3", row[1])
		}
	}
}

// take takes what another kernel has shown of specs that this one could not run.
func (r *results) take(t *testing.T, file string) {
	t.Helper()
	for _, row := range written(t, file) {
		for i := range r.all {
			one := &r.all[i]
			if one.why == "" || one.suite != row[0] || one.spec != row[1] {
				continue
			}
			seconds, err := strconv.Atoi(row[3])
			if err != nil {
				t.Errorf("%s: %q has not run: %v", file, row, err)
				continue
			}
			one.why, one.passed, one.took, one.kernel = "", row[2] == passed, time.Duration(seconds)*time.Second, row[4]
			if !one.passed {
				t.Errorf("%s has failed on kernel %s", one.spec, one.kernel)
			}
		}
	}
}

const passed = "passed"

// outcome is what has become of a spec, and why it was not run.
func (one result) outcome() string {
	switch {
	case one.why != "":
		return "not run: " + one.why
	case one.passed:
		return passed
	}
	return "failed"
}

const intro = `<!-- Written by make e2e; what it does is in internal/tests/conformance. -->

# Conformance of policy

What other projects' tests of network policy have shown, on [the lab](lab.md): three nodes, kube-proxy in nftables mode, pods with IPv4 over
VXLAN. Each test, with its time: [conformance.csv](conformance.csv). Pods serve SCTP by [the lab's own
program](../lab/conformance/agnhost/main.go), which waits for its client.

`

// write logs the number of specs of each outcome, and writes the report if it is asked for.
func (r *results) write(t *testing.T) {
	t.Helper()
	slices.SortStableFunc(r.all, func(a, b result) int {
		return cmp.Or(cmp.Compare(a.suite, b.suite), cmp.Compare(a.spec, b.spec))
	})
	var b bytes.Buffer
	b.WriteString(intro)
	b.WriteString(r.kernels())
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

// kernels says what ran where, and in which API group.
func (r *results) kernels() string {
	count := map[string]int{}
	for _, one := range r.all {
		if one.kernel != "" {
			count[one.kernel]++
		}
	}
	text := ""
	for _, kernel := range slices.Sorted(maps.Keys(count)) {
		what := ""
		if kernel != r.kernel {
			what = ", in a virtual machine, as they send SCTP"
		}
		text += fmt.Sprintf("- Kernel %s: %d tests%s\n", kernel, count[kernel], what)
	}
	var outcomes []string
	for _, outcome := range slices.Sorted(maps.Keys(r.inV3)) {
		outcomes = append(outcomes, fmt.Sprint(r.inV3[outcome], " ", outcome))
	}
	if len(outcomes) > 0 {
		text += "- With Calico's objects in `projectcalico.org/v3`, in another run: " + strings.Join(outcomes, "; ") + "\n"
	}
	return text
}

// values returns all specs as comma-separated values.
func (r *results) values(t *testing.T) []byte {
	t.Helper()
	rows := [][]string{columns}
	for _, one := range r.all {
		seconds := ""
		if one.why == "" {
			seconds = fmt.Sprintf("%.0f", one.took.Seconds())
		}
		rows = append(rows, []string{one.suite, one.spec, one.outcome(), seconds, one.kernel})
	}
	var b bytes.Buffer
	errtest.Must(t, csv.NewWriter(&b).WriteAll(rows))
	return b.Bytes()
}

// summary returns how many specs of a suite have passed, have failed and were not run, by the reason, and the names of
// those that failed.
func (r *results) summary(suite string) string {
	count, failed := map[string]int{passed: 0, "failed": 0}, ""
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

// Counts and failed specs are on the page, all specs among the values, and what one kernel cannot run is taken from
// another's.
func TestReport(t *testing.T) {
	r := &results{kernel: "6.2", all: []result{
		{suite: apiSuite, spec: "good", passed: true, took: 1600 * time.Millisecond, kernel: "6.2"},
		{suite: apiSuite, spec: "bad", took: time.Second, kernel: "6.2"},
		{suite: apiSuite, spec: "idle", why: "no SCTP"}, {suite: kubernetesSuite, spec: "another", kernel: "6.2"},
	}}
	if got := r.summary(apiSuite); got != "- 1 failed\n- 1 not run: no SCTP\n- 1 passed\n- **failed**: bad\n" {
		t.Error(got)
	}
	header := strings.Join(columns, ",") + "\n"
	values := func(idle string) string {
		return header + apiSuite + ",good,passed,2,6.2\n" + apiSuite + ",bad,failed,1,6.2\n" + idle + kubernetesSuite + ",another,failed,0,6.2\n"
	}
	if got, want := string(r.values(t)), values(apiSuite+",idle,not run: no SCTP,,\n"); got != want {
		t.Errorf("values\n%s\nwant\n%s", got, want)
	}
	file := filepath.Join(t.TempDir(), "sctp.csv")
	ran := apiSuite + ",idle,passed,70,6.1\n"
	errtest.Must(t, os.WriteFile(file, []byte(header+ran+apiSuite+",bad,passed,3,6.1\n"), 0o600)) // which this kernel has run itself
	r.take(t, file)
	if got, want := string(r.values(t)), values(ran); got != want {
		t.Errorf("values with another kernel's\n%s\nwant\n%s", got, want)
	}
	if got, want := r.kernels(), "- Kernel 6.1: 1 tests, in a virtual machine, as they send SCTP\n- Kernel 6.2: 3 tests\n"; got != want {
		t.Errorf("kernels %q, want %q", got, want)
	}
	errtest.Must(t, os.WriteFile(file, []byte(header+ran+apiSuite+",idle,not run: no SCTP,,\n"+apiSuite+",good,passed,3,6.1\n"), 0o600))
	r.takeV3(t, file)
	if got, want := r.kernels(), "in another run: 1 not run: no SCTP; 2 passed\n"; !strings.HasSuffix(got, want) {
		t.Errorf("kernels %q, want at the end %q", got, want)
	}
}
