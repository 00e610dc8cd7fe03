package cluster

import (
	"errors"
	"slices"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster/state"
	"github.com/tortie-net/tortie/internal/policy"
)

// StagedView has the staged policies, in no particular order.
type StagedView struct {
	NetworkPolicies           []*api.CalicoStagedNetworkPolicy
	GlobalNetworkPolicies     []*api.CalicoStagedGlobalNetworkPolicy
	KubernetesNetworkPolicies []*api.CalicoStagedKubernetesNetworkPolicy
	// Listed: all three kinds have been listed.
	Listed bool
}

// stagedStores are nil unless staged policies are watched.
type stagedStores struct {
	policies       *objectStore[api.CalicoStagedNetworkPolicy]
	globalPolicies *objectStore[api.CalicoStagedGlobalNetworkPolicy]
	kubernetes     *objectStore[api.CalicoStagedKubernetesNetworkPolicy]
}

// WatchStaged makes the feed watch staged policies, too. Nothing waits for them. It must be called before Run.
func (f *PolicyFeed) WatchStaged() error {
	s := &f.staged
	err := errors.Join(
		addCalico(f, &s.policies, "StagedNetworkPolicy", partStaged),
		addCalico(f, &s.globalPolicies, "StagedGlobalNetworkPolicy", partStaged),
		addCalico(f, &s.kubernetes, "StagedKubernetesNetworkPolicy", partStaged),
	)
	noted := func() { f.note(partStaged) }
	s.policies.listed, s.globalPolicies.listed, s.kubernetes.listed = noted, noted, noted
	for _, by := range f.followers {
		by.failed = f.noteFailure
	}
	return err
}

func (s *stagedStores) watched() bool { return s.kubernetes != nil }

// full reports whether all three kinds have been listed.
func (s *stagedStores) full() bool {
	return s.watched() && s.policies.isFull() && s.globalPolicies.isFull() && s.kubernetes.isFull()
}

func (s *stagedStores) problems() []state.Problem {
	if !s.watched() {
		return nil
	}
	return slices.Concat(s.policies.problemsBy(key), s.globalPolicies.problemsBy(key), s.kubernetes.problemsBy(key))
}

// findNeeds adds the needs of Calico's staged kinds.
func (s *stagedStores) findNeeds(w *calicoWatches, before map[string]policyNeeds) {
	if !s.watched() {
		return
	}
	findNeeds(w, before, s.policies.each(), func(o *api.CalicoStagedNetworkPolicy, tiers map[string]policy.Tier) (policy.Policy, error) {
		staged, _, err := policy.FromStagedNetworkPolicy(o, tiers)
		return staged.Policy, err
	})
	findNeeds(w, before, s.globalPolicies.each(),
		func(o *api.CalicoStagedGlobalNetworkPolicy, tiers map[string]policy.Tier) (policy.Policy, error) {
			staged, _, err := policy.FromStagedGlobalNetworkPolicy(o, tiers)
			return staged.Policy, err
		})
}

// refreshStaged rebuilds the staged part of the view. The caller holds the lock.
func (f *PolicyFeed) refreshStaged(v *StagedView) {
	if s := &f.staged; s.watched() && f.stale&partStaged != 0 {
		*v = StagedView{s.policies.each(), s.globalPolicies.each(), s.kubernetes.each(), s.full()}
	}
}

// readStaged reads staged policies. Unreadable ones are left out, with an error in NotTried.
func readStaged(v *StagedView, s *PolicyState) {
	v.Each(s.Tiers, func(_ api.Resource, read ReadsStaged) {
		staged, tried, err := read()
		if err != nil {
			s.NotTried[staged.By] = []string{err.Error()}
		}
		if len(staged.Problems) > 0 {
			s.NotTried[staged.By] = staged.Problems
		}
		if tried {
			s.Staged = append(s.Staged, staged)
		}
	})
}

// ReadsStaged converts a staged policy; tried is false if there is nothing to try.
type ReadsStaged func() (s policy.Staged, tried bool, err error)

// Each calls take with each object and its reader.
func (v *StagedView) Each(tiers map[string]policy.Tier, take func(o api.Resource, read ReadsStaged)) {
	for _, o := range v.NetworkPolicies {
		take(o, func() (policy.Staged, bool, error) { return policy.FromStagedNetworkPolicy(o, tiers) })
	}
	for _, o := range v.GlobalNetworkPolicies {
		take(o, func() (policy.Staged, bool, error) { return policy.FromStagedGlobalNetworkPolicy(o, tiers) })
	}
	for _, o := range v.KubernetesNetworkPolicies {
		take(o, func() (policy.Staged, bool, error) { return policy.FromStagedKubernetesNetworkPolicy(o) })
	}
}

// Policies returns the objects as if they were enforced. An object that stages nothing, or a deletion, is read as a
// policy without effect.
func (v *StagedView) Policies(tiers map[string]policy.Tier) (all []PolicyObject) {
	v.Each(tiers, func(o api.Resource, read ReadsStaged) {
		m := o.GetMeta()
		all = append(all, PolicyObject{o, policyID(o.ResourceType(), m.Namespace, m.Name), func() (policy.Policy, error) {
			s, _, err := read()
			return s.Policy, err
		}})
	})
	return all
}
