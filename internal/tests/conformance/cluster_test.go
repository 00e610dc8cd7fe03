package conformance

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// features are what the suite runs beyond its standard.
const features = "ClusterNetworkPolicyNamedPorts,ClusterNetworkPolicyEgressNodePeers"

// fewTests are tests that together use both tiers, each action, priorities, ports, and NetworkPolicies between the
// tiers.
const fewTests = "^(CNPAdminTierIntegration|CNPAdminTierPriorityField|CNPAdminTierEgressNamedPort|CNPBaselineTierIngressTCP|" +
	"CNPAdminTierEgressUDP)$"

// ended matches the line of a test or case that has ended, and skipped the reason of one that is not run.
var (
	ended   = regexp.MustCompile(`(?m)^ *--- (PASS|FAIL|SKIP): TestConformance/(\S+) \(([0-9.]+)s\)$`)
	skipped = regexp.MustCompile(`(?m)^=== (?:RUN|NAME) +TestConformance/(\S+)\n +\S+\.go:\d+: not run: (.*)$`)
)

// clusterNetworkPolicy runs the tests of ClusterNetworkPolicy, all of which one process runs one after the other.
func clusterNetworkPolicy(t *testing.T, lab *labtest.Lab, r *results) {
	args := []string{"clusternetworkpolicy", "-supported-features=" + features, fmt.Sprintf("-timescale=%d", labtest.TimeScale), "-test.v"}
	switch {
	case *onlySCTP:
		args = append(args, "-only-sctp")
	case !*everything:
		args = append(args, "-test.run=TestConformance/"+fewTests)
	}
	ctx, cancel := context.WithTimeout(t.Context(), suitePatience*meshtest.TimeScale)
	defer cancel()
	out, err := lab.Do(ctx, "conformance", args...)
	passed := 0
	for _, one := range parse(out) {
		t.Run(one.spec, one.show)
		r.add(one)
		if one.passed {
			passed++
		}
	}
	if err != nil || passed < 5 {
		t.Errorf("%d tests have passed: %v\n%s", passed, err, tail(out))
	}
}

// parse returns the results of the tests in the suite's output, without those of their cases.
func parse(out string) (all []result) {
	why := map[string]string{}
	for _, m := range skipped.FindAllStringSubmatch(out, -1) {
		why[m[1]] = m[2]
	}
	for _, m := range ended.FindAllStringSubmatch(out, -1) {
		if strings.Contains(m[2], "/") {
			continue
		}
		took, _ := strconv.ParseFloat(m[3], 64) // the expression has found a number
		all = append(all,
			result{suite: apiSuite, spec: m[2], passed: m[1] == "PASS", why: why[m[2]], took: time.Duration(took * float64(time.Second))})
	}
	return all
}

// show gives a test of this package the result.
func (one result) show(t *testing.T) {
	switch {
	case one.why != "":
		t.Skip(one.why)
	case !one.passed:
		t.Error("failed: the end of the suite's output has the reason")
	}
}

// The reason why a test is not run is no other test's, and one without a reason has failed.
func TestParse(t *testing.T) {
	got := parse(`=== RUN   TestConformance/A
    main.go:62: not run: no SCTP
=== RUN   TestConformance/B
=== RUN   TestConformance/B/case
=== RUN   TestConformance/C
--- PASS: TestConformance (2.50s)
    --- SKIP: TestConformance/A (0.00s)
    --- PASS: TestConformance/B (2.50s)
        --- PASS: TestConformance/B/case (2.00s)
    --- SKIP: TestConformance/C (0.00s)
`)
	want := []string{"A not run: no SCTP 0s", "B passed 2.5s", "C failed 0s"}
	var shown []string
	for _, one := range got {
		shown = append(shown, fmt.Sprint(one.spec, " ", one.outcome(), " ", one.took))
	}
	if !slices.Equal(shown, want) {
		t.Errorf("%q, want %q", shown, want)
	}
}
