package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/app/progress"
	"github.com/tortie-net/tortie/internal/datastore"
	"github.com/tortie-net/tortie/internal/ipam/inventory"
)

// hostKeeper creates, updates and removes automatic host endpoints. It makes no request while the watched ones are
// correct.
type hostKeeper struct {
	store datastore.Store
	feed  hostFeed // nil: no agent enforces policies
	log   *slog.Logger
	said  progress.Changes
}

// hostFeed lists the host endpoints; cluster.PolicyFeed is one.
type hostFeed interface {
	HostEndpoints() (all []*api.CalicoHostEndpoint, listed bool)
}

// mostProblems bounds the reported problems, which nodes can cause.
const mostProblems = 10

// sync writes the differences, and returns the requests that cannot be met. It leaves a locked datastore alone.
func (k *hostKeeper) sync(ctx context.Context, v *inventory.View, s HostSettings) (problems []string, err error) {
	switch {
	case !v.Ready:
		return nil, nil
	case k.feed != nil:
		existing, listed := k.feed.HostEndpoints()
		if !listed {
			return nil, nil
		}
		plan := planHosts(s, v, existing)
		problems = plan.problems
		if err = k.write(ctx, v, &plan); errors.Is(err, datastore.ErrUnauthorized) && !errors.Is(err, datastore.ErrRefused) {
			problems, err = append(problems,
				"no right to write HostEndpoints: set the chart's value policy.autoHostEndpoints to true: "+err.Error()), nil
		}
	case s.Auto == enabled:
		problems = []string{"no HostEndpoints are made: set the chart's value policy.enabled to true, without which no agent enforces policies"}
	}
	if n := len(problems); n > mostProblems {
		problems = append(problems[:mostProblems:mostProblems], fmt.Sprintf("and %d more", n-mostProblems))
	}
	if text := strings.Join(problems, "; "); k.said.New(problem(text)) {
		k.log.Warn("cannot provide all requested host endpoints of nodes", "problems", text)
	}
	return problems, err
}

// problem returns an error for a text, nil for an empty one.
func problem(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

// write carries out a plan. After a conflict the next pass sees the other write.
func (k *hostKeeper) write(ctx context.Context, v *inventory.View, plan *hostPlan) error {
	there := map[string]bool{}
	for i := range v.Nodes {
		there[v.Nodes[i].Name] = true
	}
	remove := func(ctx context.Context, h api.Resource) error {
		if node := h.(*api.CalicoHostEndpoint).Spec.Node; !there[node] {
			if err := k.gone(ctx, node); err != nil {
				return err
			}
		}
		return k.store.Delete(ctx, h)
	}
	var failed error
	for _, w := range []struct {
		verb string
		all  []*api.CalicoHostEndpoint
		do   func(context.Context, api.Resource) error
	}{{"create", plan.create, k.store.Create}, {"update", plan.update, k.store.Update}, {"delete", plan.remove, remove}} {
		for _, h := range w.all {
			err := w.do(ctx, h)
			switch {
			case err == nil:
				k.log.Info("host endpoint of a node: "+w.verb, "name", h.Name, "node", h.Spec.Node)
			case datastore.Contended(err):
			case endsAll(err) || ctx.Err() != nil:
				return fmt.Errorf("%s HostEndpoint %s: %w", w.verb, h.Name, err)
			default:
				failed = errors.Join(failed, fmt.Errorf("%s HostEndpoint %s: %w", w.verb, h.Name, err))
			}
		}
	}
	return failed
}

// endsAll reports whether the other writes, which may be thousands, would fail alike. ErrNotFound concerns the kind's
// definition.
func endsAll(err error) bool {
	return errors.Is(err, datastore.ErrUnauthorized) || errors.Is(err, datastore.ErrUnavailable) || errors.Is(err, datastore.ErrNotFound)
}

// gone reads a Node that is missing in the view once more: without its host endpoint a node is open. It returns
// ErrConflict if the Node exists.
func (k *hostKeeper) gone(ctx context.Context, node string) error {
	err := k.store.Get(ctx, &inventory.Node{Meta: api.Meta{Name: node}})
	switch {
	case err == nil:
		return datastore.ErrConflict
	case errors.Is(err, datastore.ErrNotFound):
		return nil
	}
	return err
}
