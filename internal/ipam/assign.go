package ipam

import (
	"context"
	"errors"
	"net/netip"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/datastore"
)

// assignment is one Assign over all its tries. The first try accepts lists that are a little old, since every write is
// guarded, and takes it that the handle is new. Later tries look for the handle, and read the lists again, for certain, unless
// nothing but a block or the handle was in the way: then what the last try knew of all else is as good as before.
type assignment struct {
	client *Client
	req    *Request

	known *State // what the next try need not read again; nil: all
	sure  bool   // known was read for certain
	plan  Plan   // the last try's
	wrote bool   // a write landed or may have landed
}

// unsure is a refusal that rests on lists that may be old, or on not having looked for the handle, which may hold an address.
type unsure struct{ error }

func (u *unsure) Unwrap() error { return u.error }

func refused(err error) bool {
	return errors.Is(err, ErrNoPool) || errors.Is(err, ErrExhausted) || errors.Is(err, ErrBlockLimit)
}

func (a *assignment) try(ctx context.Context, n int) error {
	st, err := a.read(ctx, n > 1)
	if err != nil {
		return err
	}
	a.known = nil
	if a.plan, err = a.planFrom(ctx, st, n > 1); err != nil {
		if !a.sure && refused(err) {
			return &unsure{err}
		}
		return err
	}
	landed, err := a.client.commit(ctx, a.plan)
	a.wrote = a.wrote || landed > 0
	if !a.plan.claims() {
		a.known = st
	}
	return err
}

// read collects what a plan depends on: what changes seldom, then the handle and the blocks.
func (a *assignment) read(ctx context.Context, again bool) (*State, error) {
	st := &State{}
	if a.known != nil {
		*st = *a.known
		st.Handle, st.Cluster, st.HaveCluster = nil, nil, false
	}
	st.Now, st.Blocks = a.client.now(), map[netip.Prefix]*Block{}
	g, gctx := errgroup.WithContext(ctx)
	if a.known == nil {
		a.sure = again
		a.readSlow(gctx, g, st)
	}
	if again {
		g.Go(func() error { return a.client.readHandle(gctx, st, a.req.Handle) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return st, a.client.readBlocks(ctx, st, a.req)
}

// readSlow starts to read what changes seldom.
func (a *assignment) readSlow(ctx context.Context, g *errgroup.Group, st *State) {
	c, opts := a.client, datastore.ListOptions{Stale: !a.sure}
	g.Go(func() error { return c.readConfig(ctx, st) })
	g.Go(func() error { return c.readReservations(ctx, st, opts) })
	g.Go(func() error { return c.readNode(ctx, st, a.req.Host) })
	g.Go(func() error { return c.readPools(ctx, st, opts) })
	g.Go(func() error { return c.readAffinities(ctx, st, a.req.Host, opts) })
}

// planFrom plans, and lists the cluster's blocks only if the host's own do not do.
func (a *assignment) planFrom(ctx context.Context, st *State, again bool) (Plan, error) {
	plan, err := PlanAssign(st, a.req)
	if !errors.Is(err, errNeedCluster) {
		return plan, err
	}
	if err := a.client.readCluster(ctx, st, datastore.ListOptions{Stale: !again}); err != nil {
		return Plan{}, err
	}
	return PlanAssign(st, a.req)
}
