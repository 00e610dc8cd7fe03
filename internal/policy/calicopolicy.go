package policy

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/api/selector"
)

// FromCalicoNetworkPolicy converts Calico's NetworkPolicy; tiers come from FromCalicoTiers. It returns an error if a
// selector cannot be read: the policy is then as good as absent, as it is to Calico. Any other unreadable part is
// closed and named in Problems: see calicoRule. A policy without types counts in both directions. A policy with
// unreadable rules (Spec.Unreadable) denies everything to the pods that it selects.
func FromCalicoNetworkPolicy(n *api.CalicoNetworkPolicy, tiers map[string]Tier) (Policy, error) {
	r := &calicoReader{namespace: n.Namespace}
	p := r.policy(ID{KindCalicoNetworkPolicy, n.Namespace, n.Name}, &n.Spec.CalicoPolicySpec, tiers)
	p.Subject.Namespace = n.Namespace
	return r.done(p)
}

// FromCalicoGlobalNetworkPolicy is FromCalicoNetworkPolicy for a GlobalNetworkPolicy. A policy with preDNAT or
// doNotTrack applies to host endpoints only.
func FromCalicoGlobalNetworkPolicy(g *api.CalicoGlobalNetworkPolicy, tiers map[string]Tier) (Policy, error) {
	r := &calicoReader{}
	p := r.policy(ID{Kind: KindCalicoGlobalNetworkPolicy, Name: g.Name}, &g.Spec.CalicoPolicySpec, tiers)
	r.namespaces("spec.namespaceSelector", g.Spec.NamespaceSelector, &p.Subject)
	r.narrowAll(&g.Spec, &p.Subject)
	p.Forward, p.PreDNAT, p.NoTrack = g.Spec.ApplyOnForward, g.Spec.PreDNAT, g.Spec.DoNotTrack
	switch {
	case g.Spec.DoNotTrack && g.Spec.PreDNAT:
		r.problem("spec.doNotTrack", true, "excludes preDNAT, so that the policy counts for nothing: leave one of them out")
		p.Applies, p.Rules = [2]bool{}, [2][]Rule{}
	case g.Spec.PreDNAT:
		if len(g.Spec.Egress) > 0 {
			r.problem("spec.egress", len(g.Spec.Egress),
				"rules count for nothing with preDNAT, which is about what comes in: move them to another policy")
		}
		p.Applies[Egress], p.Rules[Egress] = false, nil
	}
	return r.done(p)
}

// calicoReader reads a Calico policy.
type calicoReader struct {
	reader
	namespace  string // of the policy; empty: a GlobalNetworkPolicy
	unselected bool   // a selector cannot be read
}

func (r *calicoReader) done(p Policy) (Policy, error) {
	if r.unselected {
		return Policy{}, errors.New(strings.Join(r.problems, "; "))
	}
	p.Problems = r.problems
	return p, nil
}

func (r *calicoReader) policy(id ID, spec *api.CalicoPolicySpec, tiers map[string]Tier) Policy {
	p := Policy{ID: id, Tier: r.tier(spec.Tier, tiers), Order: orderOf(spec.Order), Called: spec.Called, Applies: r.types(spec)}
	p.Subject = Pods{Calico: true, Labels: r.labels("spec.selector", spec.Selector),
		AccountLabels: r.labels("spec.serviceAccountSelector", spec.ServiceAccountSelector)}
	if spec.Unreadable != "" {
		r.note("spec cannot be read, so that it denies everything to the pods that it selects: correct it: " + spec.Unreadable)
	}
	for d, stored := range [2][]api.CalicoRule{Ingress: spec.Ingress, Egress: spec.Egress} {
		rules := r.rules(Direction(d), stored)
		switch {
		case !p.Applies[d]:
		case spec.Unreadable != "":
			p.Rules[d] = []Rule{{Action: Deny, AnyPeer: true, AnyPort: true}}
		default:
			p.Rules[d] = rules
		}
	}
	return p
}

// orderOf returns the order; nil is +Inf, which comes last.
func orderOf(order *float64) float64 {
	if order == nil {
		return math.Inf(1)
	}
	return *order
}

// types returns the directions in which the policy counts; it ignores case. Without types the policy counts in both,
// even if it has rules for one: Calico's clients write the types, kubectl does not.
func (r *calicoReader) types(spec *api.CalicoPolicySpec) (applies [2]bool) {
	if len(spec.Types) == 0 {
		if spec.Unreadable == "" && (len(spec.Ingress) == 0 || len(spec.Egress) == 0) {
			r.problem("spec.types", "", "is missing, so that the policy counts for both directions: give Ingress, Egress, or both")
		}
		return [2]bool{true, true}
	}
	for i, name := range spec.Types {
		switch {
		case strings.EqualFold(name, api.PolicyTypeIngress):
			applies[Ingress] = true
		case strings.EqualFold(name, api.PolicyTypeEgress):
			applies[Egress] = true
		default:
			r.problem(fmt.Sprintf("spec.types[%d]", i), name, "counts as both directions: use Ingress or Egress")
			applies = [2]bool{true, true}
		}
	}
	return applies
}

// calicoTiers are the tiers that exist without an object, and that no object changes. Calico 3.32 renames the two of
// Kubernetes' administrators.
var calicoTiers = map[string]Tier{
	names.TierDefault:    TierDefault,
	TierAdmin.Name:       TierAdmin,
	TierBaseline.Name:    TierBaseline,
	"adminnetworkpolicy": TierAdmin, "baselineadminnetworkpolicy": TierBaseline,
}

// tier finds the tier that a policy names. A tier that does not exist comes last and denies. In the administrators'
// tier a policy of a namespace would precede their final Deny rules, so it counts in tier default.
func (r *calicoReader) tier(field string, tiers map[string]Tier) Tier {
	name := names.Tier(field)
	tier := tierOf(name, tiers)
	switch {
	case r.namespace != "" && tier == TierAdmin:
		r.problem("spec.tier", name,
			"is for policies of the cluster, so that this one counts in tier default: leave the tier out, or write a GlobalNetworkPolicy")
		return TierDefault
	case tier.Missing:
		r.problem("spec.tier", name, "does not exist, so that the policy comes after those of all tiers: create the Tier, or correct the name")
	}
	return tier
}

func tierOf(name string, tiers map[string]Tier) Tier {
	if tier, ok := calicoTiers[name]; ok {
		return tier
	}
	if tier, ok := tiers[name]; ok {
		return tier
	}
	return Tier{Name: name, Order: math.Inf(1), End: Deny, Missing: true}
}

// In returns the policy with its tier as tiers define it: otherwise a policy read with older tiers would be in a tier
// of its own.
func (p Policy) In(tiers map[string]Tier) Policy {
	p.Tier = tierOf(p.Tier.Name, tiers)
	return p
}

// FromCalicoTiers converts Tiers; both results are by the tier's name.
func FromCalicoTiers(all []*api.CalicoTier) (tiers map[string]Tier, problems map[string][]string) {
	tiers, problems = map[string]Tier{}, map[string][]string{}
	for _, t := range all {
		r := &reader{}
		tier := Tier{Name: t.Name, Order: orderOf(t.Spec.Order), End: Deny}
		switch t.Spec.DefaultAction {
		case "", api.CalicoDeny:
		case api.CalicoPass:
			tier.End = Pass
		default:
			r.problem("spec.defaultAction", t.Spec.DefaultAction, "counts as Deny: use Deny or Pass")
		}
		if own, fixed := calicoTiers[t.Name]; fixed {
			r.fixedTier(t, own, tier)
			tier = own
		}
		tiers[t.Name] = tier
		if len(r.problems) > 0 {
			problems[t.Name] = r.problems
		}
	}
	return tiers, problems
}

// fixedTier reports differences between a Tier object and a built-in tier. Until release 3.28 Calico's Tiers have no
// defaultAction, so its absence is no difference.
func (r *reader) fixedTier(t *api.CalicoTier, own, said Tier) {
	if said.Order != own.Order {
		r.problem("spec.order", said.Order, fmt.Sprintf("is ignored: it is %g for this tier", own.Order))
	}
	if said.End != own.End && t.Spec.DefaultAction != "" {
		r.problem("spec.defaultAction", t.Spec.DefaultAction,
			fmt.Sprintf("is ignored: it is %s for this tier", map[Action]string{Deny: api.CalicoDeny, Pass: api.CalicoPass}[own.End]))
	}
}

// labels reads a selector on labels as Calico shows them.
func (r *calicoReader) labels(field, text string) selector.Selector {
	s, err := selector.Parse(text)
	switch {
	case err != nil:
		r.unselected = true
		r.problem(field, text, "is no selector, so that the policy counts for nothing: correct it: "+err.Error())
	case s.Global():
		r.problem(field, text, "has global(), which is true of everything here: use it as a namespaceSelector of a rule")
	}
	return s
}

// narrowAll narrows all() in the policy's selector as Calico does: beside a namespaceSelector to what has a namespace,
// else beside a serviceAccountSelector to what has a service account.
func (r *calicoReader) narrowAll(spec *api.CalicoGlobalNetworkPolicySpec, p *Pods) {
	const all = "all()"
	label := labelNamespace
	if spec.NamespaceSelector == "" {
		label = labelAccount
	}
	if (spec.NamespaceSelector != "" || spec.ServiceAccountSelector != "") && strings.Contains(spec.Selector, all) {
		p.Labels = r.labels("spec.selector", strings.ReplaceAll(spec.Selector, all, "has("+label+")"))
	}
	if spec.ServiceAccountSelector == "" {
		return
	}
	if s, err := selector.ParseScoped(orAll(spec.ServiceAccountSelector), hasAccount); err == nil {
		p.AccountLabels, p.ByAccount = s, true
	}
}

// namespaces reads a selector on namespaces into p: all() selects what has a namespace, global() what has none. What
// has no namespace lacks all labels of namespaces, which a selector may require.
func (r *calicoReader) namespaces(field, text string, p *Pods) {
	if text == "" {
		return
	}
	s, err := selector.ParseScoped(orAll(text), hasNamespace)
	if err != nil {
		r.labels(field, text)
		return
	}
	p.Namespace, p.Namespaces = "", s
	if bare := strings.Trim(text, " \t"); strings.HasPrefix(bare, "global(") && strings.Index(bare, ")") == len(bare)-1 {
		p.Scope, p.Namespaces = Global, selector.Selector{}
	}
}
