package rights

import (
	"slices"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/testkit/labtest"
)

// chartArgs ask for all that may need rights.
var chartArgs = []string{"--set", "bgp.passwordSecret=bgp,migrateFromHostLocal=true"}

// elsewhere are the accounts whose rights are used in tests of their own: in internal/program/controllers.
var elsewhere = []string{"tortie-kube-controllers"}

// unseen are rights that are used and need not show in what was asked.
var unseen = []string{
	// The API server asks for it within a patch that finds nothing: without it that fails, and so the test.
	"tortie-upgrade create customresourcedefinitions.apiextensions.k8s.io",
	// Of a claim that another node has won: which of two nodes that start together is first is chance. Tested in internal/ipam.
	"tortie-node delete blockaffinities.crd.projectcalico.org",
}

// TestRules has agents, which have the chart's capabilities and no more, plugins, installer and Helm's hooks live through what they meet, and
// compares what they asked of the API server with what the chart lets them ask: no right is missing, and none is there that nobody uses.
func TestRules(t *testing.T) {
	l := newLife(t)
	l.beginning(t)
	l.installation(t)
	l.containers(t)
	l.scarcity(t)
	for _, r := range l.server.AuditedRequests(t) {
		if r.Resource == "services" || r.Resource == "endpointslices" {
			t.Errorf("%s, and no address of a service is announced yet", r.Rule())
		}
	}
	l.configuration(t)
	l.capabilities(t)
	l.hooks(t)

	asked, unused := map[string]bool{}, []string{}
	for _, r := range l.server.AuditedRequests(t) {
		rule := r.Rule()
		if r.Forbidden {
			t.Errorf("the chart has no right for: %s %s/%s", rule, r.Namespace, r.Name)
		}
		asked[rule] = true
	}
	for rule := range labtest.Rules(t, chartArgs...) {
		account, _, _ := strings.Cut(rule, " ")
		if !asked[rule] && !slices.Contains(unseen, rule) && !slices.Contains(elsewhere, account) {
			unused = append(unused, rule)
		}
	}
	slices.Sort(unused)
	if len(unused) > 0 {
		t.Errorf("nobody uses:\n%s", strings.Join(unused, "\n"))
	}
}
