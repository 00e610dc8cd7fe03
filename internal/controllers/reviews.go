package controllers

import (
	"context"
	"maps"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/cluster"
	"github.com/tortie-net/tortie/internal/policy"
)

const (
	// reviewAge is how long a policy must have been unchanged before remarks on its pods: these are often created after
	// their policies.
	reviewAge = 45 * time.Second
	// reviewPause bounds how often the feed is read.
	reviewPause = time.Second
)

// reviews write Events about policies, once for each edition: at once for its errors, later for remarks that need its
// pods, which are watched only in between. They belong to one goroutine.
type reviews struct {
	*Controllers
	since      map[string]time.Time // when an edition was first seen
	told, done map[string]bool      // its errors are written; the rest is
	failed     progress.Changes
}

func newReviews(c *Controllers) *reviews {
	return &reviews{Controllers: c, since: map[string]time.Time{}, told: map[string]bool{}, done: map[string]bool{}}
}

// edition is a version of a policy.
type edition struct {
	id     string
	about  api.ObjectReference
	decode func() (policy.Policy, error)
}

// reviewPolicies reviews new and changed policies while this process leads, until ctx ends.
func (c *Controllers) reviewPolicies(ctx context.Context) {
	r := newReviews(c)
	tiers := tierOwner{Controllers: c}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-c.deps.PolicyFeed.Changed():
		case <-time.After(policyRetry):
		}
		r.look(ctx, &tiers, time.Now())
		time.Sleep(reviewPause)
	}
}

// look reviews the due policies, or requests the pods for that and leaves the rest to the next look.
func (r *reviews) look(ctx context.Context, tiers *tierOwner, now time.Time) {
	view := r.deps.PolicyFeed.Take()
	if !view.Listed || !r.elector.Leading() {
		return
	}
	tiers.sync(ctx, &view, now)
	all := editions(&view)
	for _, v := range r.due(all, now, 0, r.told) {
		r.told[v.id] = r.report(ctx, &v, faults(v.decode()))
	}
	due := r.due(all, now, reviewAge, r.done)
	policies := make([]policy.Policy, len(due)) // one that cannot be read applies to nothing
	for i := range due {
		policies[i], _ = due[i].decode()
	}
	interest := interestOf(policies)
	r.deps.PolicyFeed.Want(interest)
	if !view.KnowsAll(interest) {
		return
	}
	state := policy.State{Pods: view.Pods, Namespaces: view.Namespaces, Accounts: view.Calico.Accounts}
	for _, h := range view.Calico.HostEndpoints {
		host, _ := policy.FromCalicoHostEndpoint(h)
		state.HostEndpoints = append(state.HostEndpoints, host)
	}
	for i := range due {
		r.done[due[i].id] = r.report(ctx, &due[i], review(&policies[i], &state))
	}
}

// editions returns the present policies, and once each NetworkSet that exceeds the limit of its namespace. Calico's
// tiers affect how a policy is read, but not the remarks.
func editions(view *cluster.PolicyView) (all []edition) {
	tiers, _ := policy.FromCalicoTiers(view.Calico.Tiers)
	for _, p := range append(view.Policies(tiers), view.Staged.Policies(tiers)...) {
		m := p.GetMeta()
		all = append(all, edition{m.UID + "/" + m.ResourceVersion, reference(p, m), p.Read})
	}
	for s, of := range policy.FindSurplus(view.Calico.NetworkSets) {
		if len(of.Problems) > 0 {
			told := policy.Policy{Problems: of.Problems}
			all = append(all, edition{s.UID + "/surplus", reference(s, &s.Meta), func() (policy.Policy, error) { return told, nil }})
		}
	}
	return all
}

func reference(of api.Resource, m *api.Meta) api.ObjectReference {
	kind := of.ResourceType()
	return api.ObjectReference{APIVersion: kind.APIVersion(), Kind: kind.Kind, Namespace: m.Namespace, Name: m.Name, UID: m.UID}
}

// due returns the editions of an age that are not done yet, and forgets deleted ones.
func (r *reviews) due(all []edition, now time.Time, age time.Duration, done map[string]bool) (due []edition) {
	there := make(map[string]bool, len(all))
	for _, v := range all {
		there[v.id] = true
		if _, known := r.since[v.id]; !known {
			r.since[v.id] = now
		}
		if !done[v.id] && now.Sub(r.since[v.id]) >= age {
			due = append(due, v)
		}
	}
	maps.DeleteFunc(r.since, func(id string, _ time.Time) bool { return !there[id] })
	maps.DeleteFunc(done, func(id string, _ bool) bool { return !there[id] })
	return due
}

// report writes Events of remarks on an edition, and reports whether all are written.
func (r *reviews) report(ctx context.Context, v *edition, remarks []remark) (done bool) {
	var failed error
	for _, m := range remarks {
		if ctx.Err() != nil || !r.elector.Leading() {
			return false
		}
		if err := r.deps.Events.WarnOnce(ctx, v.about, m.reason, m.text); err != nil {
			failed = err
		}
		time.Sleep(policyEvery)
	}
	if r.failed.New(failed) {
		r.deps.Log.Warn("cannot write an Event about an object; retrying", "err", failed)
	}
	return failed == nil
}
