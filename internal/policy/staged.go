package policy

import (
	"fmt"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

// Staged is a staged policy, which is not enforced.
type Staged struct {
	// By names the staged object, with Calico's kind.
	By ID
	// Policy is what would be enforced. With Delete only its ID and Called count.
	Policy
	Delete bool
}

// Values of spec.stagedAction. Empty means Set.
const (
	stagedSet    = "Set"
	stagedDelete = "Delete"
	stagedLearn  = "Learn"
	stagedIgnore = "Ignore"
)

// FromStagedNetworkPolicy converts Calico's StagedNetworkPolicy as FromCalicoNetworkPolicy does; tried is false if the
// action changes nothing.
func FromStagedNetworkPolicy(o *api.CalicoStagedNetworkPolicy, tiers map[string]Tier) (s Staged, tried bool, err error) {
	return stagedPolicy(o, o.Spec.StagedAction, ID{KindCalicoNetworkPolicy, o.Namespace, o.Name}, func() (Policy, error) {
		return FromCalicoNetworkPolicy(&api.CalicoNetworkPolicy{Meta: o.Meta,
			Spec: api.CalicoNetworkPolicySpec{CalicoPolicySpec: o.Spec.CalicoPolicySpec}}, tiers)
	})
}

// FromStagedGlobalNetworkPolicy is FromStagedNetworkPolicy for a StagedGlobalNetworkPolicy.
func FromStagedGlobalNetworkPolicy(o *api.CalicoStagedGlobalNetworkPolicy, tiers map[string]Tier) (s Staged, tried bool, err error) {
	return stagedPolicy(o, o.Spec.StagedAction, ID{Kind: KindCalicoGlobalNetworkPolicy, Name: o.Name}, func() (Policy, error) {
		return FromCalicoGlobalNetworkPolicy(&api.CalicoGlobalNetworkPolicy{Meta: o.Meta, Spec: o.Spec.CalicoGlobalNetworkPolicySpec}, tiers)
	})
}

// FromStagedKubernetesNetworkPolicy is FromStagedNetworkPolicy for a StagedKubernetesNetworkPolicy.
func FromStagedKubernetesNetworkPolicy(o *api.CalicoStagedKubernetesNetworkPolicy) (s Staged, tried bool, err error) {
	return stagedPolicy(o, o.Spec.StagedAction, ID{KindNetworkPolicy, o.Namespace, o.Name}, func() (Policy, error) {
		return FromNetworkPolicy(&api.NetworkPolicy{Meta: o.Meta, Spec: o.Spec.NetworkPolicySpec}), nil
	})
}

func stagedPolicy(o api.Resource, action string, id ID, read func() (Policy, error)) (s Staged, tried bool, err error) {
	s = Staged{By: ID{o.ResourceType().Kind, id.Namespace, id.Name}, Policy: Policy{ID: id}}
	if spec := api.OfCalicoPolicy(o); spec != nil {
		s.Called = spec.Called
	}
	switch action {
	case "", stagedSet:
		s.Policy, err = read()
		return s, err == nil, err
	case stagedDelete:
		s.Delete = true
		return s, true, nil
	case stagedLearn, stagedIgnore:
		return s, false, nil
	}
	return s, false, fmt.Errorf("spec.stagedAction %q: the policy is not tried out: use Set, Delete, Learn or Ignore", action)
}

// WithStaged returns the State with all staged policies in force. The map has the staged policy that added, replaced or
// deleted a policy, by the policy's ID.
func WithStaged(state State, all []Staged) (State, map[ID]ID) {
	by := map[ID]ID{}
	replaced := map[ID]ID{}
	for _, s := range all {
		replaced[s.Shown()] = s.By
		if !s.Delete {
			by[s.ID] = s.By
		}
	}
	state.Policies = slices.DeleteFunc(slices.Clone(state.Policies), func(p Policy) bool {
		staged, found := replaced[p.Shown()]
		if found {
			by[p.ID] = staged
		}
		return found
	})
	for _, s := range all {
		if !s.Delete {
			state.Policies = append(state.Policies, s.Policy)
		}
	}
	return state, by
}

// Pending reports whether staged policies change the decision on a connection: judged is with them in force, enforced
// without. by, from WithStaged, is the staged policy that changes it; own: that policy itself would decide.
func (judged *Judgement) Pending(enforced *Judgement, stagedBy map[ID]ID) (by ID, own, changes bool) {
	by, own = stagedBy[judged.Policy]
	same := judged.Tier == enforced.Tier && judged.Policy == enforced.Policy && judged.Rule == enforced.Rule &&
		judged.Verdict.Allow == enforced.Verdict.Allow
	if !own {
		by = stagedBy[enforced.Policy] // a deleted or replaced policy
	}
	return by, own, own || !same
}
