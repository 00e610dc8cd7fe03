package conformance

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
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

// String is the time of a spec that has passed, and the outcome of any other.
func (one result) String() string {
	switch {
	case one.why != "":
		return "not run: " + one.why
	case one.passed:
		return fmt.Sprintf("%.0fs", one.took.Seconds())
	}
	return "**failed**"
}

const intro = `<!-- Written by make e2e; what it does is in internal/tests/conformance. -->

# Conformance of policy

What other projects' tests of network policy have shown, on [the lab](lab.md): three nodes, kube-proxy in nftables mode, pods with IPv4 over VXLAN.
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
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n%s", suite, counts, lists)
	}
	if *report == "" {
		return
	}
	errtest.Must(t, os.WriteFile(*report, b.Bytes(), 0o644))
}

// lists returns how many specs of a suite have passed, have failed and were not run, and lists of them: those not run below their reasons.
func (r *results) lists(suite string) (counts, lists string) {
	run, idle := "", map[string]string{}
	passed, failed, left := 0, 0, 0
	for _, one := range r.all {
		if one.suite != suite {
			continue
		}
		switch {
		case one.why != "":
			left++
			idle[one.why] += "- " + one.spec + "\n"
			continue
		case one.passed:
			passed++
		default:
			failed++
		}
		run += fmt.Sprintf("- %s (%s)\n", one.spec, one)
	}
	for _, why := range slices.Sorted(maps.Keys(idle)) {
		run += fmt.Sprintf("\nNot run: %s:\n\n%s", why, idle[why])
	}
	return fmt.Sprintf("%d passed, %d failed, %d not run.", passed, failed, left), run
}
