package ipam

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/tortie-net/tortie/internal/api"
	"github.com/tortie-net/tortie/internal/datastore"
)

// certainty is how old what a view shows may be. No refusal rests on less than the last.
type certainty int

const (
	told  certainty = iota // what changes seldom is what somebody else knew
	stale                  // lists may be a little old
	sure
)

// view is what one operation has read, and reads while it decides.
type view struct {
	client    *Client
	host      string
	known     *Known
	certainty certainty
	st        *State // nil: to be read

	handleID string          // empty if none matters
	handle   *api.IPAMHandle // as it was last seen or written
	look     bool            // it must be read
	named    bool            // it was created by this operation, which has not tried to assign anything yet
}

func newView(c *Client, host string, known *Known) view {
	v := view{client: c, host: host, known: known}
	if known == nil {
		v.certainty = stale
	}
	return v
}

func (v *view) listOptions() datastore.ListOptions {
	return datastore.ListOptions{Stale: v.certainty < sure}
}

// read reads what changes seldom, unless that was read.
func (v *view) read(ctx context.Context) error {
	if v.st != nil {
		return nil
	}
	st := newState(v.client.now())
	err := error(nil)
	if v.certainty == told {
		err = st.storeKnown(v.known, v.host)
	} else {
		err = v.client.readSlow(ctx, st, v.host, v.listOptions())
	}
	if err == nil {
		v.st = st
	}
	return err
}

// refused reports an error that reading again, for certain, can mend.
func refused(err error) bool {
	for _, r := range []error{ErrNoPool, ErrExhausted, ErrBlockLimit, ErrTaken} {
		if errors.Is(err, r) {
			return true
		}
	}
	return false
}

// decide plans. A refusal is repeated with more certainty before it stands: the lists may be old, and the handle, which was
// taken for new, may hold an address. meet is called with what a plan needs.
func (v *view) decide(ctx context.Context, req *Request, meet func(context.Context, *need) error) (Plan, error) {
	for {
		plan, err := v.plan(ctx, req, meet)
		if v.certainty == sure || !refused(err) {
			return plan, err
		}
		v.doubt()
	}
}

// doubt forgets all that was read, to read it with more certainty.
func (v *view) doubt() {
	v.certainty = min(v.certainty+1, sure)
	v.st = nil
	v.look = v.handleID != "" && v.handle == nil && v.certainty == sure
}

func (v *view) plan(ctx context.Context, req *Request, meet func(context.Context, *need) error) (Plan, error) {
	if err := v.read(ctx); err != nil {
		return Plan{}, err
	}
	for {
		if err := v.lookAtHandle(ctx); err != nil {
			return Plan{}, err
		}
		plan, err := PlanAssign(v.st, req)
		var n *need
		if !errors.As(err, &n) {
			return plan, err
		}
		if err := meet(ctx, n); err != nil {
			return Plan{}, err
		}
	}
}

// lookAtHandle reads the handle if it must be read, and beside it the blocks that it named before: it probably does still.
func (v *view) lookAtHandle(ctx context.Context) error {
	if v.look {
		var blocks []blockRead
		g, gctx := errgroup.WithContext(ctx)
		before := handleBlocks(v.handle)
		g.Go(func() (err error) { v.handle, err = v.client.readHandle(gctx, v.handleID); return err })
		g.Go(func() (err error) { blocks, err = v.client.readBlocks(gctx, before); return err })
		if err := g.Wait(); err != nil {
			return err
		}
		for _, b := range blocks {
			v.st.store(b.cidr, b.block, b.damage)
		}
		v.look, v.named = false, false
	}
	v.st.Handle, v.st.HandleNew = v.handle, v.named
	return nil
}

// answers are what came of reading what a plan needs.
type answers struct {
	blocks         []blockRead
	affinities     []*api.BlockAffinity
	cluster, names []api.IPAMBlock
	labels         map[string]string
}

// fetch reads what a plan needs, all at once, while beside runs. Whoever looks at the cluster is about to claim a block: the
// host's claims are read again too, as they are from before the wait for the host's lock, or from the agent. A neighbour may
// have claimed a block with room for all meanwhile, and a burst on a new node would else claim one for each pod. What is known
// from the agent is then read altogether: nothing guards a claim against a pool that is gone.
func (v *view) fetch(ctx context.Context, n *need, beside func() error) error {
	g, gctx := errgroup.WithContext(ctx)
	c, opts, a, slow := v.client, v.listOptions(), answers{}, &State{}
	namesOnly := opts
	namesOnly.NamesOnly = true
	renew := (n.names || n.cluster) && v.certainty < sure
	for _, r := range []struct {
		wanted bool
		read   func() error
	}{
		{beside != nil, beside},
		{len(n.blocks) > 0, func() (err error) { a.blocks, err = c.readBlocks(gctx, n.blocks); return err }},
		{n.cluster, func() (err error) { a.cluster, err = c.readCluster(gctx, opts); return err }},
		{n.names && !n.cluster, func() (err error) { a.names, err = c.readCluster(gctx, namesOnly); return err }},
		{renew && v.certainty == told, func() error { return c.readSlow(gctx, slow, v.host, opts) }},
		{renew && v.certainty > told, func() (err error) { a.affinities, err = c.readAffinities(gctx, v.host, opts); return err }},
		{n.labels, func() (err error) { a.labels, err = c.readLabels(gctx, v.host); return err }},
	} {
		if r.wanted {
			g.Go(r.read)
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	switch {
	case renew && v.certainty == told:
		v.st.Config, v.st.Pools, v.st.Reserved, v.st.Affinities, v.st.Flaws = slow.Config, slow.Pools, slow.Reserved, slow.Affinities, slow.Flaws
		v.certainty = stale
	case renew:
		v.st.storeClaims(a.affinities)
	}
	v.st.storeAnswers(n, &a)
	return nil
}

// storeAnswers takes note of what a plan needed.
func (st *State) storeAnswers(n *need, a *answers) {
	for _, b := range a.blocks {
		st.store(b.cidr, b.block, b.damage)
	}
	switch {
	case n.cluster:
		st.storeCluster(a.cluster)
	case n.names:
		st.storeNames(a.names)
	}
	if n.labels {
		st.NodeLabels, st.HaveLabels = a.labels, true
	}
}
