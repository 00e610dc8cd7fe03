package controllers

import (
	"context"
	"maps"
	"time"

	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/cluster"
)

// With TORTIE_POLICY=off an Event on each NetworkPolicy says, once, that it restricts nothing, and a metric counts them. An Event's name is
// derived from its object and text, so one that an earlier leader wrote is not written again.

const (
	// policyEvery is the interval of Events: a thousand policies at the first start are no load for the API server.
	policyEvery = 200 * time.Millisecond
	// policyRetry is when a failed write is tried again, and how soon a new leader begins.
	policyRetry = 10 * time.Second

	policyText = "Tortie does not enforce policies in this cluster: TORTIE_POLICY is off (the chart's value policy.enabled is false). Unless another " +
		"policy engine does, this NetworkPolicy restricts nothing."
)

// unenforced are the NetworkPolicies that were reported, by UID. It belongs to the goroutine of reportPolicies.
type unenforced struct {
	reported map[string]bool
	failed   progress.Changes
}

// reportPolicies writes an Event for each NetworkPolicy until ctx ends.
func (c *Controllers) reportPolicies(ctx context.Context) {
	u := unenforced{reported: map[string]bool{}}
	for {
		all := c.deps.Policies.All()
		c.board.metrics.policies.Set(float64(len(all)))
		u.forget(all)
		c.reportNew(ctx, &u, all)
		select {
		case <-ctx.Done():
			return
		case <-c.deps.Policies.Changed():
		case <-time.After(policyRetry):
		}
	}
}

// forget drops those that were deleted.
func (u *unenforced) forget(all []cluster.NetworkPolicy) {
	there := make(map[string]bool, len(all))
	for i := range all {
		there[all[i].UID] = true
	}
	maps.DeleteFunc(u.reported, func(uid string, _ bool) bool { return !there[uid] })
}

// reportNew reports those that were not reported yet, while this process leads.
func (c *Controllers) reportNew(ctx context.Context, u *unenforced, all []cluster.NetworkPolicy) {
	for i := range all {
		p := &all[i]
		if u.reported[p.UID] || !c.elector.Leading() || ctx.Err() != nil {
			continue
		}
		err := c.deps.Events.WarnOnce(ctx, reference(p, &p.Meta), "PolicyNotEnforced", policyText)
		u.reported[p.UID] = err == nil
		if u.failed.New(err) {
			c.deps.Log.Warn("cannot write the Event that a NetworkPolicy is not enforced; retrying", "err", err)
		}
		time.Sleep(policyEvery)
	}
}
