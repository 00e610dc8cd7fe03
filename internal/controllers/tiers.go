package controllers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/api/groups"
	"github.com/tortie-net/tortie/internal/api/names"
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/datastore"
)

// tierTime bounds the requests about tiers of one look.
const tierTime = 30 * time.Second

// policiesOf counts policies by the tier that they name.
type policiesOf map[string]int

// tierStep is one write for a tier: finalizers unless nil, else the status.
type tierStep struct {
	tier       *api.CalicoTier
	finalizers []string
	status     *api.CalicoTierStatus
}

// tierSteps returns the due writes for tiers. A tier has its finalizer until it is deleted and no policy names it;
// while one does, the condition Ready is False. Its message has Calico's content in other wording, and is updated when
// the number changes.
func tierSteps(tiers []*api.CalicoTier, in policiesOf, now time.Time) (steps []tierStep) {
	for _, t := range tiers {
		deleted := t.DeletionTimestamp != ""
		list, differs := withFinalizer(&t.Meta, tierFinalizer, !deleted)
		switch {
		case !differs:
		case deleted && in[t.Name] > 0:
			var had []api.Condition
			if t.Status != nil {
				had = t.Status.Conditions
			}
			want := api.Condition{Type: "Ready", Status: "False", Reason: "Terminating", Message: fmt.Sprintf(
				"policies in the tier: %d; the tier is deleted when they are deleted or in another tier", in[t.Name])}
			if next, changed := withCondition(had, want, now); changed {
				steps = append(steps, tierStep{tier: t, status: &api.CalicoTierStatus{Conditions: next}})
			}
		default:
			steps = append(steps, tierStep{tier: t, finalizers: list})
		}
	}
	return steps
}

// countPolicies counts the policies of a view, of the four kinds that have a tier.
func countPolicies(v *cluster.PolicyView) policiesOf {
	in := policiesOf{}
	for _, p := range v.Calico.NetworkPolicies {
		in[names.Tier(p.Spec.Tier)]++
	}
	for _, p := range v.Calico.GlobalNetworkPolicies {
		in[names.Tier(p.Spec.Tier)]++
	}
	for _, p := range v.Staged.NetworkPolicies {
		in[names.Tier(p.Spec.Tier)]++
	}
	for _, p := range v.Staged.GlobalNetworkPolicies {
		in[names.Tier(p.Spec.Tier)]++
	}
	return in
}

// tierOwner keeps finalizers and conditions of tiers, by a watch. It belongs to one goroutine.
type tierOwner struct {
	*Controllers
	next   time.Time // not before
	failed progress.Changes
}

// sync makes the due writes for tiers, and no request if there are none. Otherwise it first lists the tiers, and the
// four kinds of policies if a tier is being deleted, so that no policy loses its tier because a watch is behind; then
// it makes one request for each tier. A failure is retried after five to fifteen seconds.
func (o *tierOwner) sync(ctx context.Context, v *cluster.PolicyView, now time.Time) {
	if o.deps.Group.Known() != groups.V3 || !o.mayWrite() || now.Before(o.next) ||
		len(tierSteps(v.Calico.Tiers, countPolicies(v), now)) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tierTime)
	defer cancel()
	err := o.write(ctx, now)
	if err != nil {
		o.next = now.Add(policyRetry/2 + rand.N(policyRetry))
	}
	if o.failed.New(err) {
		o.deps.Log.Warn("cannot keep tiers in order; retrying", "err", err)
	}
}

// mayWrite reports whether this process leads and the last pass found the datastore unlocked, and no kube-controllers
// of Calico's.
func (o *tierOwner) mayWrite() bool {
	s := o.board.read()
	return o.elector.Leading() && o.alone.Load() && s.Passes > 0 && !s.Locked
}

func (o *tierOwner) write(ctx context.Context, now time.Time) error {
	var list api.List[api.CalicoTier, *api.CalicoTier]
	if err := o.deps.Store.List(ctx, &list, datastore.ListOptions{}); err != nil {
		return fmt.Errorf("list tiers: %w", err)
	}
	var tiers []*api.CalicoTier
	deleted := false
	for i := range list.Items {
		tiers = append(tiers, &list.Items[i])
		deleted = deleted || list.Items[i].DeletionTimestamp != ""
	}
	in := policiesOf{}
	if deleted {
		if err := o.count(ctx, in); err != nil {
			return err
		}
	}
	var errs []error
	for _, step := range tierSteps(tiers, in, now) {
		errs = append(errs, o.take(ctx, step))
	}
	return errors.Join(errs...)
}

// take writes a step. A conflict is not an error: the watch shows the other change, or the tier is gone.
func (o *tierOwner) take(ctx context.Context, step tierStep) error {
	if step.status == nil {
		return setFinalizers(ctx, o.deps.Store, step.tier, step.finalizers)
	}
	err := o.deps.Store.SetStatus(ctx, step.tier, step.status)
	if err == nil || datastore.Contended(err) || errors.Is(err, datastore.ErrNotFound) {
		return nil
	}
	return fmt.Errorf("status of Tier %s: %w", step.tier.Name, err)
}

// count counts the policies of the four kinds. A kind without a definition has none.
func (o *tierOwner) count(ctx context.Context, in policiesOf) error {
	for _, of := range []api.Resource{(*api.CalicoNetworkPolicy)(nil), (*api.CalicoGlobalNetworkPolicy)(nil),
		(*api.CalicoStagedNetworkPolicy)(nil), (*api.CalicoStagedGlobalNetworkPolicy)(nil)} {
		kind := of.ResourceType()
		err := o.deps.Store.List(ctx, &tierList{kind, in}, datastore.ListOptions{})
		if err != nil && !errors.Is(err, datastore.ErrNotFound) {
			return fmt.Errorf("list %s: %w", kind.Plural, err)
		}
	}
	return nil
}

// tierList is a list of policies of a kind that counts their tiers.
type tierList struct {
	of api.Type
	in policiesOf
}

// inTier is a policy of any kind, reduced to its tier.
type inTier struct {
	api.Meta `json:"metadata"`
	Spec     struct {
		Tier string `json:"tier"`
	} `json:"spec"`
}

// ResourceType implements api.Resource.
func (*inTier) ResourceType() api.Type { return api.Type{} }

// ItemType implements api.ResourceList.
func (l *tierList) ItemType() api.Type { return l.of }

// NewItem implements api.ResourceList.
func (*tierList) NewItem() api.Resource { return &inTier{} }

// Add implements api.ResourceList.
func (l *tierList) Add(item api.Resource) { l.in[names.Tier(item.(*inTier).Spec.Tier)]++ }
