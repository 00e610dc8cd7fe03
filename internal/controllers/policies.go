package controllers

import (
	"context"
	"time"
)

// With TORTIE_POLICY=off an Event on each NetworkPolicy warns, once, that it restricts nothing, and a metric counts the
// policies. An Event's name is derived from its object and text, so an Event of an earlier leader is not repeated.

const (
	// policyEvery is the interval of Events: a thousand policies at the first start do not load the API server.
	policyEvery = 200 * time.Millisecond
	// policyRetry is the pause before a failed write is repeated, and before a new leader begins.
	policyRetry = 10 * time.Second

	policyText = "Tortie does not enforce policies in this cluster: TORTIE_POLICY is off (the chart's value policy.enabled is false). " +
		"Unless another policy engine does, this NetworkPolicy restricts nothing."
)

// reportPolicies writes an Event for each NetworkPolicy while this process leads, until ctx ends.
func (c *Controllers) reportPolicies(ctx context.Context) {
	r := newReviews(c)
	for {
		all := c.deps.Policies.All()
		c.board.metrics.policies.Set(float64(len(all)))
		editions := make([]edition, len(all)) // one per policy: the text does not depend on its content
		for i := range all {
			editions[i] = edition{id: all[i].UID, about: reference(&all[i], &all[i].Meta)}
		}
		for _, v := range r.due(editions, time.Now(), 0, r.done) {
			r.done[v.id] = r.report(ctx, &v, []remark{{"PolicyNotEnforced", policyText}})
		}
		select {
		case <-ctx.Done():
			return
		case <-c.deps.Policies.Changed():
		case <-time.After(policyRetry):
		}
	}
}
