package ipam

import (
	"context"
	"errors"
	"maps"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
)

// commit writes a plan, stage by stage, and stops after a stage in which a write fails. It reports whether a write was
// applied or, for lack of an answer, may have been.
func (c *Client) commit(ctx context.Context, p Plan) (wrote bool, err error) {
	revisions := map[string]api.Meta{} // of what this plan wrote already: an affinity is written twice
	for rest := p.writes; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].stage == rest[0].stage {
			n++
		}
		landed, err := c.commitStage(ctx, rest[:n], revisions)
		wrote = wrote || landed
		if err != nil {
			return wrote, err
		}
		rest = rest[n:]
	}
	return wrote, nil
}

// commitStage sends the writes of a stage in parallel and waits for all answers: until its answer arrives, a write may
// be applied at any time.
func (c *Client) commitStage(ctx context.Context, writes []write, revisions map[string]api.Meta) (wrote bool, err error) {
	for _, w := range writes {
		if prev, ok := revisions[keyOf(w.obj)]; ok {
			m := w.obj.GetMeta()
			m.UID, m.ResourceVersion = prev.UID, prev.ResourceVersion
		}
	}
	results := make([]error, len(writes))
	if len(writes) == 1 {
		results[0] = c.write(ctx, writes[0])
	} else {
		var g errgroup.Group
		g.SetLimit(maxParallel)
		for i, w := range writes {
			g.Go(func() error { results[i] = c.write(ctx, w); return nil })
		}
		_ = g.Wait() // the results have the errors
	}
	var contended error
	for i, w := range writes {
		switch r := results[i]; {
		case r == nil:
			wrote, writes[i].landed, revisions[keyOf(w.obj)] = true, true, *w.obj.GetMeta()
		case datastore.Contended(r):
			contended = errors.Join(contended, c.resolveClaim(ctx, w, r))
		default:
			wrote, err = true, errors.Join(err, r)
		}
	}
	if err != nil {
		return wrote, err
	}
	return wrote, contended
}

func keyOf(obj api.Resource) string { return obj.ResourceType().Kind + "/" + obj.GetMeta().Name }

// resolveClaim handles an affinity that could not be created since one of that name exists. Lists may never show that
// affinity: it is marked deleted by a process that died before the deletion, or has no labels, as before Calico 3.31,
// or its content does not match its name. A read finishes the deletion; a write corrects the others. It returns the
// conflict, or why the affinity could not be read or corrected.
func (c *Client) resolveClaim(ctx context.Context, w write, conflict error) error {
	claim, ok := w.obj.(*api.BlockAffinity)
	if !ok || w.verb != create {
		return conflict
	}
	met := &api.BlockAffinity{Meta: api.Meta{Name: claim.Name}, Spec: claim.Spec}
	err := c.store.Get(ctx, met)
	right := met.Spec.Node == claim.Spec.Node && met.Spec.CIDR == claim.Spec.CIDR
	if err == nil && (!right || !maps.Equal(met.Labels, claim.Labels)) {
		met.Labels, met.Annotations = claim.Labels, claim.Annotations
		if !right {
			met.Spec = claim.Spec
		}
		err = c.store.Update(ctx, met)
	}
	if err == nil || errors.Is(err, datastore.ErrNotFound) {
		return conflict
	}
	return err
}

func (c *Client) write(ctx context.Context, w write) error {
	switch w.verb {
	case create:
		return c.store.Create(ctx, w.obj)
	case update:
		return c.store.Update(ctx, w.obj)
	default:
		return c.store.Delete(ctx, w.obj)
	}
}
