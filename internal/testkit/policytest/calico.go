package policytest

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
)

// tier is a list of policies, in Calico's model. A tier without an object comes last and denies.
type tier struct {
	name    string
	missing bool
	order   float64
	pass    bool // what no rule matches goes on to the next tier
}

// Tiers that need no object, and that no object changes.
var (
	adminTier    = tier{name: "kube-admin", order: 1000, pass: true}
	defaultTier  = tier{name: "default", order: 1e6}
	baselineTier = tier{name: "kube-baseline", order: 1e7, pass: true}
)

// tierOf returns the tier that a policy names.
func (c *Cluster) tierOf(name string) tier {
	if name == "" || name == defaultTier.name {
		return defaultTier
	}
	for _, t := range c.Tiers {
		if t.Name == name {
			return tier{name: name, order: orderOf(t.Spec.Order), pass: t.Spec.DefaultAction == "Pass"}
		}
	}
	return tier{name: name, missing: true, order: math.Inf(1)}
}

func compareTiers(a, b tier) int {
	if a.missing != b.missing {
		if b.missing {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(a.name, b.name))
}

// orderOf returns +Inf, the last order, for nil.
func orderOf(order *float64) float64 {
	if order == nil {
		return math.Inf(1)
	}
	return *order
}

// calicoPolicies returns the policies of Calico's kinds that apply to a side.
func (c *Cluster) calicoPolicies(s side) (all []applying) {
	for _, p := range c.CalicoNetworkPolicies {
		if p.Namespace == s.pod.Namespace && c.forPod(&p.Spec.CalicoPolicySpec, s) {
			all = append(all, c.calicoPolicy("CalicoNetworkPolicy", p.Meta, &p.Spec.CalicoPolicySpec, s))
		}
	}
	for _, p := range c.CalicoGlobalNetworkPolicies {
		if c.forPodAnywhere(&p.Spec, s) {
			all = append(all, c.calicoPolicy("CalicoGlobalNetworkPolicy", p.Meta, &p.Spec.CalicoPolicySpec, s))
		}
	}
	return all
}

// forPodAnywhere reports whether a GlobalNetworkPolicy applies: policies before connection tracking and before DNAT are
// for host endpoints only.
func (c *Cluster) forPodAnywhere(spec *api.CalicoGlobalNetworkPolicySpec, s side) bool {
	return !spec.DoNotTrack && !spec.PreDNAT && coversDirection(spec.Types, s.ingress) && isReadable(spec) &&
		c.thingOf(s.pod).isSubjectOf(spec)
}

// isReadable reports whether all selectors can be read: otherwise the policy is as good as absent.
func isReadable(spec *api.CalicoGlobalNetworkPolicySpec) bool {
	return isSelector(spec.NamespaceSelector) && hasSelectors(&spec.CalicoPolicySpec)
}

func hasSelectors(spec *api.CalicoPolicySpec) bool {
	return !slices.ContainsFunc(selectorsOf(spec), func(text string) bool { return !isSelector(text) })
}

func (c *Cluster) forPod(spec *api.CalicoPolicySpec, s side) bool {
	if !coversDirection(spec.Types, s.ingress) || !hasSelectors(spec) {
		return false
	}
	pod := c.thingOf(s.pod)
	return pod.selectedBy(spec.Selector) && (spec.ServiceAccountSelector == "" || pod.hasServiceAccount(spec.ServiceAccountSelector))
}

// coversDirection reports whether types include a direction: without types a policy is for both, even if it has rules
// for one. An unknown type counts as both.
func coversDirection(types []string, ingress bool) bool {
	other := "Ingress"
	if ingress {
		other = "Egress"
	}
	return len(types) == 0 || slices.ContainsFunc(types, func(t string) bool { return !strings.EqualFold(t, other) })
}

func selectorsOf(spec *api.CalicoPolicySpec) []string {
	all := []string{spec.Selector, spec.ServiceAccountSelector}
	for _, r := range slices.Concat(spec.Ingress, spec.Egress) {
		for _, e := range []api.CalicoEntityRule{r.Source, r.Destination} {
			all = append(all, e.Selector, e.NotSelector, e.NamespaceSelector)
			if e.ServiceAccounts != nil {
				all = append(all, e.ServiceAccounts.Selector)
			}
		}
	}
	return all
}

func (c *Cluster) calicoPolicy(kind string, m api.Meta, spec *api.CalicoPolicySpec, s side) applying {
	a := applying{tier: c.tierOf(spec.Tier), order: orderOf(spec.Order), kind: kind, namespace: m.Namespace, name: m.Name}
	if a.shown = m.Name; a.tier == defaultTier {
		a.shown = strings.TrimPrefix(m.Name, "default.") // as Calico stores names until 3.31
	}
	if m.Namespace != "" && a.tier == adminTier { // a tenant's policy must not precede administrators' denials
		a.tier = defaultTier
	}
	rules := spec.Egress
	if s.ingress {
		rules = spec.Ingress
	}
	for _, r := range rules {
		a.does = append(a.does, c.calicoAct(&r, m.Namespace, s))
	}
	return a
}
