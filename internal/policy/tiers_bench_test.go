package policy

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/tortie-net/tortie/internal/api"
)

// tieredState has GlobalNetworkPolicies in three tiers that all select each of the pods.
func tieredState(b *testing.B, policies, pods, local int) State {
	b.Helper()
	s := State{Local: map[string]PodKey{}, Pods: map[PodKey]*Pod{},
		Namespaces: map[string]map[string]string{"ns": {"kubernetes.io/metadata.name": "ns"}}}
	var tiers []*api.CalicoTier
	names := []string{"first", "second", "third"}
	for i, name := range names {
		order := float64(100 * (i + 1))
		tiers = append(tiers, &api.CalicoTier{Meta: api.Meta{Name: name}, Spec: api.CalicoTierSpec{Order: &order, DefaultAction: "Pass"}})
	}
	read, wrong := FromCalicoTiers(tiers)
	if len(wrong) > 0 {
		b.Fatal(wrong)
	}
	for i := range policies {
		order := float64(i)
		g := &api.CalicoGlobalNetworkPolicy{Meta: api.Meta{Name: fmt.Sprintf("%s.%d", names[i%3], i)}}
		g.Spec.Tier, g.Spec.Order, g.Spec.Selector, g.Spec.Types = names[i%3], &order, "has(role)", []string{"Ingress"}
		g.Spec.Ingress = []api.CalicoRule{{Action: "Deny", Source: api.CalicoEntityRule{Selector: fmt.Sprintf("nobody == '%d'", i)}}}
		p, err := FromCalicoGlobalNetworkPolicy(g, read)
		if err != nil {
			b.Fatal(err)
		}
		s.Policies = append(s.Policies, p)
	}
	for i := range pods {
		p := &Pod{PodKey: PodKey{"ns", fmt.Sprint("pod-", i)}, UID: fmt.Sprint(i),
			Labels:    map[string]string{"role": []string{"friend", "foe", "server"}[i%3]},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}}
		s.Pods[p.PodKey] = p
		if i < local {
			s.Local[fmt.Sprint("cali", i)] = p.PodKey
		}
	}
	return s
}

func BenchmarkTiers(b *testing.B) {
	s := tieredState(b, 500, 45, 9)
	b.Run("select", func(b *testing.B) {
		for b.Loop() {
			Select(s)
		}
	})
	sel := Select(s)
	b.Run("interest", func(b *testing.B) {
		for b.Loop() {
			sel.Interest()
		}
	})
	b.Run("compile", func(b *testing.B) {
		for b.Loop() {
			sel.Compile()
		}
	})
	b.Run("update", func(b *testing.B) {
		c := sel.Compile()
		p := *s.Pods[PodKey{"ns", "pod-40"}]
		p.Name = "new"
		for b.Loop() {
			s.Pods[p.PodKey] = &p
			c.Update(s, []PodKey{p.PodKey})
			delete(s.Pods, p.PodKey)
			c.Update(s, []PodKey{p.PodKey})
		}
	})
}
