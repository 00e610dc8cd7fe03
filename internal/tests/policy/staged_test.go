package policy

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/policy"
	"github.com/tortie-net/tortie/internal/testkit/policytest"
)

// A cluster with some policies staged to be added, replaced or deleted would decide as the reference does after these
// changes, and decides now as the reference does on the policies in force.
func TestStaged(t *testing.T) {
	changed := 0
	for s := *seed; s < *seed+100; s++ {
		g := policytest.NewGenerator(s)
		after := g.CalicoCluster()
		before, staged := stage(g, after)
		state := before.State()
		wanted, _ := policy.WithStaged(state, staged)
		selection := policy.Select(state)
		now := policy.NewJudge(selection, localPods(state))
		now.Replace(state.Pods) // pods of other nodes come
		pending := now.With(policy.Select(wanted))
		for _, p := range g.CalicoPackets(after, perCluster) {
			for d, pod := range ends(after, p) {
				if pod == nil || pod.Spec.NodeName != policytest.Node {
					continue
				}
				is, would := before.Judge(pod, d == policy.Ingress, p), after.Judge(pod, d == policy.Ingress, p)
				got, gotPending := judged(now, pod, d, p), judged(pending, pod, d, p)
				if got != textOf(is) || gotPending != textOf(would) {
					t.Fatalf("-seed %d: %s of %s is judged %s, staged %s; the reference says %s, staged %s\nBefore:\n%s\nAfter:\n%s", s, p, d, got,
						gotPending, textOf(is), textOf(would), before, after)
				}
				if is.Allow != would.Allow {
					changed++
				}
			}
		}
	}
	if changed < 30 {
		t.Errorf("staged policies change %d verdicts: the test shows little", changed)
	}
}

func localPods(s policy.State) map[policy.PodKey]*policy.Pod {
	local := map[policy.PodKey]*policy.Pod{}
	for key := range maps.Values(s.Local) {
		local[key] = s.Pods[key]
	}
	return local
}

func judged(j *policy.Judge, pod *api.Pod, d policy.Direction, p policytest.Packet) string {
	got, known := j.Judge(policytest.LinkOf(pod), d, peerOf(d, p), coreOf(p))
	if !known {
		return "unknown"
	}
	return fmt.Sprint(got.Verdict.Allow, got.Tier, got.Policy, got.Rule)
}

func textOf(d policytest.Decision) string { return fmt.Sprint(d.Allow, d.Tier, by(d), d.Rule) }

// stage returns what a cluster was before all staged policies were set or deleted, and these.
func stage(g policytest.Generator, after *policytest.Cluster) (before *policytest.Cluster, all []policy.Staged) {
	b := *after
	before = &b
	b.NetworkPolicies, b.CalicoNetworkPolicies, b.CalicoGlobalNetworkPolicies = nil, nil, nil
	var objects []*api.CalicoTier
	for i := range after.Tiers {
		objects = append(objects, &after.Tiers[i])
	}
	tiers, _ := policy.FromCalicoTiers(objects)
	after.State() // reads the names of the objects
	for i, p := range after.NetworkPolicies {
		s, _, _ := policy.FromStagedKubernetesNetworkPolicy(&api.CalicoStagedKubernetesNetworkPolicy{Meta: p.Meta,
			Spec: api.CalicoStagedKubernetesNetworkPolicySpec{NetworkPolicySpec: p.Spec}})
		other := g.NetworkPolicy(after, i)
		other.Meta = p.Meta
		b.NetworkPolicies = tryOut(g, b.NetworkPolicies, p, other, s, nil, &all)
	}
	for i, p := range after.CalicoNetworkPolicies {
		s, _, err := policy.FromStagedNetworkPolicy(&api.CalicoStagedNetworkPolicy{Meta: p.Meta,
			Spec: api.CalicoStagedNetworkPolicySpec{StagedAction: "Set", CalicoPolicySpec: p.Spec.CalicoPolicySpec}}, tiers)
		other := g.CalicoNetworkPolicy(after, i)
		other.Meta, other.Spec.Tier = p.Meta, tierOf(p.Name, p.Spec.Tier, other.Spec.Tier)
		b.CalicoNetworkPolicies = tryOut(g, b.CalicoNetworkPolicies, p, other, s, err, &all)
	}
	for i, p := range after.CalicoGlobalNetworkPolicies {
		s, _, err := policy.FromStagedGlobalNetworkPolicy(&api.CalicoStagedGlobalNetworkPolicy{Meta: p.Meta,
			Spec: api.CalicoStagedGlobalNetworkPolicySpec{CalicoGlobalNetworkPolicySpec: p.Spec}}, tiers)
		other := g.CalicoGlobalNetworkPolicy(i)
		other.Meta, other.Spec.Tier = p.Meta, tierOf(p.Name, p.Spec.Tier, other.Spec.Tier)
		b.CalicoGlobalNetworkPolicies = tryOut(g, b.CalicoGlobalNetworkPolicies, p, other, s, err, &all)
	}
	gone := g.NetworkPolicy(after, 100)
	if len(after.NetworkPolicies) > 0 {
		b.NetworkPolicies = append(b.NetworkPolicies, gone)
		s, _, _ := policy.FromStagedKubernetesNetworkPolicy(&api.CalicoStagedKubernetesNetworkPolicy{Meta: gone.Meta,
			Spec: api.CalicoStagedKubernetesNetworkPolicySpec{StagedAction: "Delete"}})
		all = append(all, s)
	}
	return before, all
}

// tierOf returns the tier of another policy of that name: the prefix default. is no part of a name in tier default only.
func tierOf(name, tier, other string) string {
	if strings.HasPrefix(name, "default.") {
		return tier
	}
	return other
}

// tryOut leaves a policy unchanged, or stages it as a new one or as a replacement.
func tryOut[T any](g policytest.Generator, before []T, p, other T, s policy.Staged, err error, all *[]policy.Staged) []T {
	choice := g.IntN(3)
	if err != nil || choice == 0 {
		return append(before, p)
	}
	*all = append(*all, s)
	if choice == 1 {
		return before
	}
	return append(before, other)
}
