package labtest

import (
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tortie-net/tortie/internal/testkit/errtest"
)

// Rules returns the permissions that the chart grants its accounts, in the form of AuditedRequest.Rule. args are
// Helm's.
func Rules(t testing.TB, args ...string) map[string]bool {
	t.Helper()
	roles := map[string][]rbacv1.PolicyRule{}
	granted := map[string]bool{}
	chart := Chart(t, args...)
	for _, obj := range chart {
		var role rbacv1.Role
		if strings.HasSuffix(obj.GetKind(), "Role") {
			errtest.Must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &role))
			roles[obj.GetKind()+" "+obj.GetName()] = role.Rules
		}
	}
	for _, obj := range chart {
		var binding rbacv1.RoleBinding
		if !strings.HasSuffix(obj.GetKind(), "RoleBinding") {
			continue
		}
		errtest.Must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &binding))
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

// Rule returns the permission that a request needs: "ACCOUNT VERB RESOURCE.GROUP".
func (a AuditedRequest) Rule() string {
	return fmt.Sprintf("%s %s %s.%s", a.Account, a.Verb, a.Resource, a.Group)
}

// Twin returns the permission of crd.projectcalico.org/v1 that a test uses in place of rule, with this project's
// definitions. A rule of projectcalico.org/v3 becomes a rule of the first group. A rule of a status that is a
// subresource only in Calico's definitions becomes a rule of the object. Any other rule is its own twin.
func Twin(rule string) string {
	what, ofCalico := strings.CutSuffix(rule, ".projectcalico.org")
	what = strings.TrimSuffix(what, ".crd")
	if !ofCalico {
		return rule
	}
	what = strings.Replace(what, " ipamconfigurations", " ipamconfigs", 1)
	for _, kind := range []string{"caliconodestatuses", "kubecontrollersconfigurations"} {
		what = strings.Replace(what, " "+kind+"/status", " "+kind, 1)
	}
	return what + ".crd.projectcalico.org"
}
