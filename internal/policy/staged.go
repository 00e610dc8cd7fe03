package policy

import (
	"fmt"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
)

// Staged is a policy that is tried out: it decides on nothing.
type Staged struct {
	// By names the staged object, with its kind as Calico calls it.
	By ID
	// Policy is the one that is tried out. If it is to be deleted only its ID counts.
	Policy
	Delete bool
}

// The words of spec.stagedAction. Empty means Set.
const (
	stagedSet    = "Set"
	stagedDelete = "Delete"
	stagedLearn  = "Learn"
	stagedIgnore = "Ignore"
)

// FromStagedNetworkPolicy converts Calico's StagedNetworkPolicy as FromCalicoNetworkPolicy does; tried is false if
// there is nothing to try out.
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

// WithStaged returns the State in which all that is tried out is in force; and by ID the staged policies by which
// policies have come, or have been replaced or deleted.
func WithStaged(state State, all []Staged) (State, map[ID]ID) {
	by := map[ID]ID{}
	replaced := map[ID]ID{}
	for _, s := range all {
		replaced[s.target()] = s.By
		if !s.Delete {
			by[s.ID] = s.By
		}
	}
	state.Policies = slices.DeleteFunc(slices.Clone(state.Policies), func(p Policy) bool {
		staged, found := replaced[Staged{Policy: p}.target()]
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

// Pending says whether staged policies change who decides, or how, on a connection: judged is with them in force,
// enforced without. by, of WithStaged, is the one because of which; own: it is that one which would decide.
func (judged *Judgement) Pending(enforced *Judgement, stagedBy map[ID]ID) (by ID, own, changes bool) {
	by, own = stagedBy[judged.Policy]
	same := judged.Tier == enforced.Tier && judged.Policy == enforced.Policy && judged.Rule == enforced.Rule &&
		judged.Verdict.Allow == enforced.Verdict.Allow
	if !own {
		by = stagedBy[enforced.Policy] // which it deletes
	}
	return by, own, own || !same
}

// target is equal for a policy and the staged one that is for it, whichever releases of Calico have stored them.
func (s Staged) target() ID { return ID{s.ID.Kind, s.ID.Namespace, s.ID.bare()} }
