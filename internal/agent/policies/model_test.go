package policies

import (
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/policy"
)

// Of a policy that has become unreadable the last version that was not stays in force; one that never was readable, or that only has the name of
// another, is left out. Each is named.
func TestUnreadablePolicies(t *testing.T) {
	of := func(uid, tier string) *api.ClusterNetworkPolicy {
		return &api.ClusterNetworkPolicy{Meta: api.Meta{Name: "deny", UID: uid}, Spec: api.ClusterNetworkPolicySpec{
			Tier: tier, Priority: 7, Subject: api.ClusterNetworkPolicySubject{Namespaces: &api.LabelSelector{}},
		}}
	}
	m := model{}
	id := policy.ID{Kind: "ClusterNetworkPolicy", Name: "deny"}
	for _, step := range []struct {
		uid, tier string
		order     float64 // of what is in force; -1: nothing
		leftOut   int
	}{
		{"first", "Nowhere", -1, 1}, {"first", "Admin", 7, 0}, {"first", "Nowhere", 7, 1}, {"first", "Nowhere", 7, 1}, {"second", "Nowhere", -1, 1}, {"second", "Baseline", 7, 0},
	} {
		m.take(cluster.PolicyView{ClusterNetworkPolicies: []*api.ClusterNetworkPolicy{of(step.uid, step.tier)}})
		m.build(routed{})
		if len(m.leftOut[id]) != step.leftOut || len(m.Policies) == 0 != (step.order < 0) || len(m.Policies) > 0 && m.Policies[0].Order != step.order {
			t.Errorf("%+v: %d policies, left out %v", step, len(m.Policies), m.leftOut)
		}
	}
}
