package rights

import (
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/labtest"
	"github.com/tortie-net/tortie/internal/testkit/tier"
)

// chartArgs enable everything that may need permissions.
var chartArgs = []string{"--set", "bgp.passwordSecret=bgp,migrateFromHostLocal=true"}

// elsewhere are the accounts with permissions that internal/program/controllers tests.
var elsewhere = []string{"tortie-kube-controllers"}

// unseen are permissions that are needed and may be missing from the audit log.
var unseen = []string{
	// The API server checks it within a patch of a missing object: without it that request fails, and so does the test.
	"tortie-definitions create customresourcedefinitions.apiextensions.k8s.io",
	// Deletes an affinity that lost a race: which of two nodes wins is random. Tested in internal/ipam.
	"tortie-node delete blockaffinities.crd.projectcalico.org",
}

// TestRules runs agents with exactly the chart's capabilities, plugins, installer and Helm's hooks through all
// situations, and compares the audit log with the chart's permissions: none is missing, and none is unused.
func TestRules(t *testing.T) {
	tier.All(t)
	l := newLife(t)
	l.beginning(t)
	l.installation(t)
	l.containers(t)
	l.scarcity(t)
	for _, r := range l.server.AuditedRequests(t) {
		if r.Resource == "services" || r.Resource == "endpointslices" {
			t.Errorf("%s although no service address is announced yet", r.Rule())
		}
	}
	l.configuration(t)
	l.capabilities(t)
	l.hooks(t)

	asked, unused := map[string]bool{}, []string{}
	for _, r := range l.server.AuditedRequests(t) {
		rule := r.Rule()
		if r.Forbidden {
			t.Errorf("the chart grants no permission for: %s %s/%s", rule, r.Namespace, r.Name)
		}
		asked[rule] = true
	}
	for rule := range labtest.Rules(t, chartArgs...) {
		account, _, _ := strings.Cut(rule, " ")
		if !asked[labtest.Twin(rule)] && !slices.Contains(unseen, labtest.Twin(rule)) && !slices.Contains(elsewhere, account) {
			unused = append(unused, rule)
		}
	}
	slices.Sort(unused)
	if len(unused) > 0 {
		t.Errorf("unused permissions:\n%s", strings.Join(unused, "\n"))
	}
}
