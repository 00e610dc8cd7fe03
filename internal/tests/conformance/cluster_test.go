package conformance

import (
	"context"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/meshtest"
)

// features are what the suite runs beyond its standard.
const features = "ClusterNetworkPolicyNamedPorts,ClusterNetworkPolicyEgressNodePeers"

// fewTests are tests that together use both tiers, each action, priorities, ports, and NetworkPolicies between the tiers.
const fewTests = "^(CNPAdminTierIntegration|CNPAdminTierPriorityField|CNPAdminTierEgressNamedPort|CNPBaselineTierIngressTCP|CNPAdminTierEgressUDP)$"

// ended matches the line of a test or case that has ended.
var ended = regexp.MustCompile(`(?m)^ *--- (PASS|FAIL|SKIP): TestConformance/(\S+) \(([0-9.]+)s\)\n((?: +\S+\.go:\d+: not run: .*\n)?)`)

// clusterNetworkPolicy runs the tests of ClusterNetworkPolicy, all of which one process runs one after the other.
func clusterNetworkPolicy(t *testing.T, lab *labtest.Lab, r *results) {
	args := []string{"clusternetworkpolicy", "-supported-features=" + features, "-test.v"}
	if !*everything {
		args = append(args, "-test.run=TestConformance/"+fewTests)
	}
	ctx, cancel := context.WithTimeout(t.Context(), suitePatience*meshtest.TimeScale)
	defer cancel()
	out, err := lab.Do(ctx, "conformance", args...)
	passed := 0
	for _, m := range ended.FindAllStringSubmatch(out, -1) {
		if one := parse(m); one.test() {
			t.Run(one.spec, one.show)
			r.add(one)
			if one.passed {
				passed++
			}
		}
	}
	if err != nil || passed < 5 {
		t.Errorf("%d tests have passed: %v\n%s", passed, err, tail(out))
	}
}

// parse returns the result of a match of ended.
func parse(match []string) result {
	outcome, name, seconds, skip := match[1], match[2], match[3], match[4]
	took, _ := strconv.ParseFloat(seconds, 64) // the expression has found a number
	_, why, _ := strings.Cut(strings.TrimSpace(skip), "not run: ")
	return result{suite: apiSuite, spec: name, passed: outcome == "PASS", why: why, took: time.Duration(took * float64(time.Second))}
}

// test says whether it is the result of a test, and not of a case of one.
func (one result) test() bool { return !strings.Contains(one.spec, "/") }

// show gives a test of this package the result.
func (one result) show(t *testing.T) {
	switch {
	case one.why != "":
		t.Skip(one.why)
	case !one.passed:
		t.Error("failed: the end of the suite's output has the reason")
	}
}
