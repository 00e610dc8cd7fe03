package controllers

import (
	"context"
	"log/slog"
	"maps"
	"time"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/cluster"
)

// Until NetworkPolicies are enforced, whoever makes one is told that it protects nothing: by an Event at each of them, once, and by a
// metric. An Event's name follows from what it is about and says, so one that there is already, of an earlier leader, is not written again.

const (
	// policyEvery is the pause between two Events: a thousand policies at the first start are no load for the API server.
	policyEvery = 200 * time.Millisecond
	// policyRetry is when what could not be written is tried again, and how soon a new leader begins.
	policyRetry = 10 * time.Second

	policyText = "Tortie does not enforce NetworkPolicies yet. Unless something else in this cluster does, this one restricts nothing: " +
		"traffic to and from the pods that it selects is let through."
)

// unenforced are the NetworkPolicies that were told of, by UID. They belong to the goroutine of tellPolicies.
type unenforced struct {
	told      map[string]bool
	complaint string
}

// tellPolicies tells of NetworkPolicies until ctx ends.
func (c *Controllers) tellPolicies(ctx context.Context) {
	u := unenforced{told: map[string]bool{}}
	for {
		all := c.deps.Policies.All()
		c.board.metrics.policies.Set(float64(len(all)))
		u.forget(all)
		c.tellOf(ctx, &u, all)
		select {
		case <-ctx.Done():
			return
		case <-c.deps.Policies.Changed():
		case <-time.After(policyRetry):
		}
	}
}

// forget forgets those that do not exist any more.
func (u *unenforced) forget(all []cluster.NetworkPolicy) {
	there := make(map[string]bool, len(all))
	for i := range all {
		there[all[i].UID] = true
	}
	maps.DeleteFunc(u.told, func(uid string, _ bool) bool { return !there[uid] })
}

// tellOf tells of those that were not told of yet, as long as this process leads.
func (c *Controllers) tellOf(ctx context.Context, u *unenforced, all []cluster.NetworkPolicy) {
	for i := range all {
		p := &all[i]
		if u.told[p.UID] || !c.elector.Leading() || ctx.Err() != nil {
			continue
		}
		kind := p.ResourceType()
		about := api.ObjectReference{APIVersion: kind.APIVersion(), Kind: kind.Kind, Namespace: p.Namespace, Name: p.Name, UID: p.UID}
		err := c.deps.Events.WarnOnce(ctx, about, "PolicyNotEnforced", policyText)
		u.told[p.UID] = err == nil
		u.complain(c.deps.Log, err)
		time.Sleep(policyEvery)
	}
}

// complain logs why Events cannot be written, once for each reason.
func (u *unenforced) complain(log *slog.Logger, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != u.complaint {
		log.Warn("it could not be told that a NetworkPolicy is not enforced; it is tried again", "err", err)
	}
	u.complaint = text
}
