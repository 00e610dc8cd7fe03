package cluster

import (
	"context"
	"log/slog"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/wait"
)

// NetworkPolicy is the metadata of a Kubernetes NetworkPolicy that is not enforced.
type NetworkPolicy struct {
	api.Meta `json:"metadata"`
}

// ResourceType implements api.Resource.
func (*NetworkPolicy) ResourceType() api.Type {
	return api.Type{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy", Plural: "networkpolicies", Namespaced: true}
}

// Policies follow the NetworkPolicies of the cluster. They have their own feed: nothing waits for it, and a missing
// right stops nothing.
type Policies struct {
	feed
	policies *objectStore[NetworkPolicy]
	changed  chan struct{}
}

// NewPolicies prepares the watch; Run starts it.
func NewPolicies(at Server, log *slog.Logger) (*Policies, error) {
	feed, err := newFeed(at, log)
	if err != nil {
		return nil, err
	}
	p := &Policies{feed: feed, changed: make(chan struct{}, 1)}
	p.policies = newObjectStore(func(before, after *NetworkPolicy) bool { return before.UID == after.UID },
		func(*NetworkPolicy) { wait.Signal(p.changed) })
	nameOnly := func(n *NetworkPolicy) {
		n.Meta = api.Meta{Namespace: n.Namespace, Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion}
	}
	return p, add(&p.feed, source[NetworkPolicy]{partial: true, pages: podPage, trim: nameOnly}, p.policies)
}

// Run watches until ctx ends.
func (p *Policies) Run(ctx context.Context) error {
	p.run(ctx)
	return nil
}

// Changed wakes its one reader after a NetworkPolicy came or went.
func (p *Policies) Changed() <-chan struct{} { return p.changed }

// All returns the known NetworkPolicies, in no particular order.
func (p *Policies) All() []NetworkPolicy { return p.policies.all(nil) }
