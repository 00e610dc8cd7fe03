package cluster

import (
	"slices"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
)

// A policy is read again when its tier changes, one that has become unreadable stays as it was, and what is wrong is
// named.
func TestPolicyReader(t *testing.T) {
	web := func(selector string) *api.CalicoNetworkPolicy {
		return &api.CalicoNetworkPolicy{Meta: api.Meta{Namespace: "shop", Name: "web", UID: "1"},
			Spec: api.CalicoNetworkPolicySpec{CalicoPolicySpec: api.CalicoPolicySpec{
				Tier: "first", Selector: selector, Types: []string{"Ingress"},
			}}}
	}
	tier := func(action string) []*api.CalicoTier {
		return []*api.CalicoTier{{Meta: api.Meta{Name: "first"}, Spec: api.CalicoTierSpec{DefaultAction: action}}}
	}
	sets := []*api.CalicoNetworkSet{
		{Meta: api.Meta{Namespace: "shop", Name: "set"}, Spec: api.CalicoNetworkSetSpec{Nets: []string{"192.0.2.0/24", "nonsense"}}},
	}
	id := policy.ID{Kind: policy.KindCalicoNetworkPolicy, Namespace: "shop", Name: "web"}
	readable, unreadable := web("all()"), web("((")
	var r PolicyReader
	for i, step := range []struct {
		of      *api.CalicoNetworkPolicy
		tiers   []*api.CalicoTier
		end     policy.Action
		missing bool
		leftOut int
	}{
		{readable, nil, policy.Deny, true, 0}, {readable, tier("Pass"), policy.Pass, false, 0}, {readable, tier("Deny"), policy.Deny, false, 0},
		{unreadable, tier("Deny"), policy.Deny, false, 1},
		{unreadable, tier("Pass"), policy.Pass, false, 1}, {unreadable, nil, policy.Deny, true, 1},
	} {
		v := &PolicyView{Calico: CalicoView{NetworkPolicies: []*api.CalicoNetworkPolicy{step.of}, Tiers: step.tiers, NetworkSets: sets}}
		s := r.State(v)
		if len(s.Policies) != 1 || s.Policies[0].Tier.End != step.end || s.Policies[0].Tier.Missing != step.missing ||
			len(s.LeftOut[id]) != step.leftOut {
			t.Errorf("step %d: %+v, left out %v", i, s.Policies, s.LeftOut)
		}
		if len(s.Sets) != 1 || len(s.Sets[0].Nets) != 1 || len(s.Invalid[policy.ID{Kind: "NetworkSet", Namespace: "shop", Name: "set"}]) != 1 {
			t.Errorf("step %d: sets %+v, invalid %v", i, s.Sets, s.Invalid)
		}
	}
	crowded := &api.CalicoNetworkSet{Meta: api.Meta{Namespace: "shop", Name: "crowded"},
		Spec: api.CalicoNetworkSetSpec{Nets: slices.Repeat([]string{"192.0.2.0/24"}, 20_000)}}
	s := new(PolicyReader).State(&PolicyView{Calico: CalicoView{NetworkSets: []*api.CalicoNetworkSet{crowded}}})
	if len(s.Sets) != 1 || len(s.Sets[0].Nets)+len(s.Sets[0].Private) != 20_000 || len(s.Sets[0].Private) == 0 ||
		len(s.Invalid[policy.ID{Kind: "NetworkSet", Namespace: "shop", Name: "crowded"}]) != 1 {
		t.Errorf("a set of too many networks: %d and %d, invalid %v", len(s.Sets[0].Nets), len(s.Sets[0].Private), s.Invalid)
	}
	if s := new(PolicyReader).State(
		&PolicyView{Calico: CalicoView{NetworkPolicies: []*api.CalicoNetworkPolicy{unreadable}}}); len(s.Policies) != 0 ||
		len(s.LeftOut[id]) != 1 {
		t.Errorf("a policy that was never readable: %+v, left out %v", s.Policies, s.LeftOut)
	}
}
