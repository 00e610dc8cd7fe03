package rights

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tortie-net/tortie/internal/labtest"
)

// chartArgs ask for all that may need rights.
var chartArgs = []string{"--set", "bgp.passwordSecret=bgp,migrateFromHostLocal=true"}

// rules are what the chart lets its accounts do, in the form of Asked: "ACCOUNT VERB RESOURCE.GROUP".
func rules(t *testing.T) map[string]bool {
	t.Helper()
	roles := map[string][]rbacv1.PolicyRule{}
	granted := map[string]bool{}
	chart := labtest.Chart(t, chartArgs...)
	for _, obj := range chart {
		var role rbacv1.Role
		if strings.HasSuffix(obj.GetKind(), "Role") {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &role); err != nil {
				t.Fatal(err)
			}
			roles[obj.GetKind()+" "+obj.GetName()] = role.Rules
		}
	}
	for _, obj := range chart {
		var binding rbacv1.RoleBinding
		if !strings.HasSuffix(obj.GetKind(), "RoleBinding") {
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &binding); err != nil {
			t.Fatal(err)
		}
		for _, rule := range roles[binding.RoleRef.Kind+" "+binding.RoleRef.Name] {
			for _, subject := range binding.Subjects {
				expand(granted, subject.Name, rule)
			}
		}
	}
	return granted
}

func expand(granted map[string]bool, account string, rule rbacv1.PolicyRule) {
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				granted[fmt.Sprintf("%s %s %s.%s", account, verb, resource, group)] = true
			}
		}
	}
}

// elsewhere are the accounts whose rights are used in tests of their own.
var elsewhere = []string{"tortie-kube-controllers", "tortie-test", "tortie-uninstall", "tortie-upgrade"}

// TestRules has agents, plugins and installer live through what they meet, and compares what they asked of the API server with what
// the chart lets them ask: no right is missing, and none is there that nobody uses.
func TestRules(t *testing.T) {
	l := newLife(t)
	l.beginning(t)
	l.installation(t)
	l.containers(t)
	l.scarcity(t)
	l.configuration(t)

	asked, unused := map[string]bool{}, []string{}
	for _, r := range l.server.Asked(t) {
		rule := fmt.Sprintf("%s %s %s.%s", r.Account, r.Verb, r.Resource, r.Group)
		if r.Forbidden {
			t.Errorf("the chart has no right for: %s %s/%s", rule, r.Namespace, r.Name)
		}
		asked[rule] = true
	}
	for rule := range rules(t) {
		account, _, _ := strings.Cut(rule, " ")
		if !asked[rule] && !slices.Contains(elsewhere, account) {
			unused = append(unused, rule)
		}
	}
	slices.Sort(unused)
	if len(unused) > 0 {
		t.Errorf("nobody uses:\n%s", strings.Join(unused, "\n"))
	}
}
